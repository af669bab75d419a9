import pytest
import torch
from example_kernels.add_cute import add


@pytest.mark.parametrize("n", [1 << 20, 1 << 22])
def test_add(n, device, generator):
    x, y = torch.randn(n, device=device, generator=generator), torch.randn(n, device=device, generator=generator)
    torch.testing.assert_close(add(x, y), x + y)


def test_add_refuses_different_shapes(device):
    with pytest.raises(ValueError, match="equal shapes"):
        add(torch.zeros(8, device=device), torch.zeros(16, device=device))
