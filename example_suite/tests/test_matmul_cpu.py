import numpy as np
import pytest
from example_kernels.matmul_cpu import matmul_cpu

SHAPES = [(64, 64, 64), (200, 300, 100)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matmul_cpu(shape):
    m, n, k = shape
    numbers = np.random.default_rng(0)
    a, b = numbers.random((m, k), np.float32), numbers.random((k, n), np.float32)
    np.testing.assert_allclose(matmul_cpu(a, b), a @ b, rtol=1e-3)


def test_matmul_cpu_refuses_matrices_that_do_not_fit():
    with pytest.raises(ValueError, match="matrices that fit"):
        matmul_cpu(np.zeros((2, 3)), np.zeros((2, 3)))
