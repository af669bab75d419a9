import cupy
import pytest
from example_kernels.transpose_cuda import transpose


@pytest.mark.parametrize("shape", [(1024, 1024), (4096, 4096), (1000, 8192)], ids=str)
def test_transpose(shape):
    matrix = cupy.random.default_rng(0).random(shape, dtype=cupy.float32)
    cupy.testing.assert_array_equal(transpose(matrix), matrix.T)


def test_transpose_refuses_other_dtypes():
    with pytest.raises(ValueError, match="a matrix of float32"):
        transpose(cupy.zeros((2, 2), dtype=cupy.float64))
