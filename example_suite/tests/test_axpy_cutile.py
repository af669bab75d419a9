import pytest
import torch
from example_kernels.axpy_cutile import axpy


@pytest.mark.parametrize("n", [1 << 20, 1 << 22])
def test_axpy(n, device, generator):
    x, y = torch.randn(n, device=device, generator=generator), torch.randn(n, device=device, generator=generator)
    torch.testing.assert_close(axpy(2.0, x, y), 2.0 * x + y)
