import pytest
import torch
from example_kernels.matmul_cutile import matmul


@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (4096, 4096, 512)], ids=str)
def test_matmul(shape, device, generator):
    m, n, k = shape
    a = torch.randn(m, k, device=device, generator=generator).half()
    b = torch.randn(k, n, device=device, generator=generator).half()
    torch.testing.assert_close(matmul(a, b).float(), a.float() @ b.float(), rtol=2e-2, atol=0.5)
