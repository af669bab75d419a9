import pytest
import torch
from example_kernels.axpy_helion import axpy


@pytest.mark.parametrize("size", [1000, 5000])
def test_axpy(device, generator, size):
    x, y = torch.randn(2, size, device=device, generator=generator)
    torch.testing.assert_close(axpy(2.0, x, y), 2 * x + y)
