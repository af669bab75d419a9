import pytest
import torch
from example_kernels.gemm_cute import gemm


@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (1000, 1024, 1024), (4096, 4096, 512)], ids=str)
def test_gemm(shape, device, generator):
    m, n, k = shape
    a = torch.randn(m, k, device=device, generator=generator).half()
    b = torch.randn(n, k, device=device, generator=generator).half()
    expected = a.float() @ b.float().T
    torch.testing.assert_close(gemm(a, b).float(), expected, rtol=2e-2, atol=0.5)
