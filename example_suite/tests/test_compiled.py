import pytest
import torch
from example_kernels.compiled import batched


@pytest.fixture
def one_thread():
    """The candidates are measured with as many threads as torch uses: the same on every machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_batched_on_the_cpu():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(8, 128, 96, generator=generator), torch.randn(8, 96, 64, generator=generator)
    options = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN"}
    compiled = torch.compile(batched, options=options)
    torch.testing.assert_close(compiled(a, b), batched(a, b))
