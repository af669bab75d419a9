import pytest
import torch
import triton
from example_kernels.matmul import matmul

INTERPRETED = triton.knobs.runtime.interpret
SHAPES = [(64, 64, 64), (33, 50, 40)] if INTERPRETED else [(1024, 1024, 1024), (2048, 512, 1024), (1000, 720, 336)]
DTYPES = [torch.float16, torch.float32]
if not INTERPRETED:
    DTYPES.append(torch.bfloat16)  # The interpreter's tl.dot does not know bf16.
TOLERANCE = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}


def make_inputs(shape, dtype, device, generator):
    m, n, k = shape
    # Divided so that the sums over k stay around 1 and one absolute tolerance fits all shapes.
    a = torch.randn((m, k), dtype=dtype, device=device, generator=generator) / k**0.5
    b = torch.randn((k, n), dtype=dtype, device=device, generator=generator)
    return a, b


def reference(a, b):
    # In float64, since torch may be set to use tf32 for fp32.
    return a.double() @ b.double()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matmul(shape, dtype, device, generator):
    a, b = make_inputs(shape, dtype, device, generator)
    torch.testing.assert_close(matmul(a, b), reference(a, b).to(dtype), **TOLERANCE[dtype])


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_activation(activation, device, generator):
    a, b = make_inputs(SHAPES[0], torch.float16, device, generator)
    expected = getattr(torch.nn.functional, activation)(reference(a, b)).half()
    torch.testing.assert_close(matmul(a, b, activation), expected, **TOLERANCE[torch.float16])


def test_transposed_operands(device, generator):
    m, n, k = SHAPES[0]
    a, b = make_inputs((n, m, k), torch.float16, device, generator)
    expected = reference(b.T, a.T).half()
    torch.testing.assert_close(matmul(b.T, a.T), expected, **TOLERANCE[torch.float16])
