import pytest
import torch
import triton
from example_kernels.softmax import softmax

SHAPES = [(5, 33), (2, 4, 128)] if triton.knobs.runtime.interpret else [(1823, 781), (4, 2048, 4096)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_softmax(shape, dtype, device, generator):
    x = torch.randn(shape, dtype=dtype, device=device, generator=generator)
    expected = torch.softmax(x.float(), dim=-1).to(dtype)
    torch.testing.assert_close(softmax(x), expected)


def test_softmax_of_large_values_is_finite(device, generator):
    x = 1e4 * torch.randn(SHAPES[0], device=device, generator=generator)
    torch.testing.assert_close(softmax(x), torch.softmax(x, dim=-1))
