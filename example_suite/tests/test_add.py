import pytest
import torch
import triton
from example_kernels.add import add

# The interpreter executes kernels in Python, so it gets small sizes.
SIZES = [1, 1000, 4096] if triton.knobs.runtime.interpret else [1, 98_432, 2**24]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_add(n, dtype, device, generator):
    x = torch.randn(n, dtype=dtype, device=device, generator=generator)
    y = torch.randn(n, dtype=dtype, device=device, generator=generator)
    torch.testing.assert_close(add(x, y), x + y)


def test_add_refuses_different_shapes(device):
    with pytest.raises(ValueError, match="equal shapes"):
        add(torch.zeros(3, device=device), torch.zeros(4, device=device))
