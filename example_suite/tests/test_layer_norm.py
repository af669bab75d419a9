import pytest
import torch
import triton
from example_kernels.layer_norm import layer_norm

SHAPES = [(4, 96), (3, 5, 50)] if triton.knobs.runtime.interpret else [(4096, 1024), (3, 500, 1999)]
TOLERANCE = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.float16: {"rtol": 1e-2, "atol": 1e-2},
}
EPS = 1e-5


def make_inputs(shape, dtype, device, generator):
    x = torch.randn(shape, dtype=dtype, device=device, generator=generator)
    w = torch.rand(shape[-1], dtype=dtype, device=device, generator=generator)
    b = torch.rand(shape[-1], dtype=dtype, device=device, generator=generator)
    return x, w, b


def reference(x, w, b):
    return torch.nn.functional.layer_norm(x.float(), x.shape[-1:], w.float(), b.float(), EPS)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_forward(shape, dtype, device, generator):
    x, w, b = make_inputs(shape, dtype, device, generator)
    expected = reference(x, w, b).to(dtype)
    torch.testing.assert_close(layer_norm(x, w, b, EPS), expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_backward(shape, dtype, device, generator):
    inputs = [t.requires_grad_() for t in make_inputs(shape, dtype, device, generator)]
    dy = 0.1 * torch.randn(shape, dtype=dtype, device=device, generator=generator)
    expected = torch.autograd.grad(reference(*inputs), inputs, dy.float())
    actual = torch.autograd.grad(layer_norm(*inputs, EPS), inputs, dy)
    for gradient, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, **TOLERANCE[dtype])
