import jax
import jax.numpy as jnp
import numpy as np
import pytest
from example_kernels import jax_ops

ON_GPU = jax.default_backend() == "gpu"
BF16_TOLERANCE = {"rtol": 3e-2, "atol": 3e-2}


def random(*shape, dtype):
    """The same numbers in every run."""
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), dtype)


def exact(x):
    return np.asarray(x, np.float64)


def exact_softmax(x):
    numerator = np.exp(x - x.max(axis=-1, keepdims=True))
    return numerator / numerator.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("shape", [(2048, 1024, 4096), (512, 512, 512)] if ON_GPU else [(32, 16, 24)], ids=str)
def test_dense(shape):
    m, k, n = shape
    x, weights = random(m, k, dtype=jnp.bfloat16), random(k, n, dtype=jnp.bfloat16) / k**0.5
    bias = random(n, dtype=jnp.bfloat16)
    y = exact(x) @ exact(weights) + exact(bias)
    expected = 0.5 * y * (1 + np.tanh((2 / np.pi) ** 0.5 * (y + 0.044715 * y**3)))
    np.testing.assert_allclose(exact(jax_ops.dense(x, weights, bias)), expected, **BF16_TOLERANCE)


@pytest.mark.parametrize("shape", [(4096, 2048)] if ON_GPU else [(8, 33)], ids=str)
def test_softmax(shape):
    x = random(*shape, dtype=jnp.float32)
    np.testing.assert_allclose(exact(jax_ops.softmax(x)), exact_softmax(exact(x)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 8, 512, 64)] if ON_GPU else [(1, 2, 16, 8)], ids=str)
def test_attention(shape):
    q, k, v = (random(*shape, dtype=jnp.bfloat16) * scale for scale in (1.0, 0.5, 0.25))
    scores = exact(q) @ exact(k).swapaxes(-1, -2) / shape[-1] ** 0.5
    expected = exact_softmax(scores) @ exact(v)
    np.testing.assert_allclose(exact(jax_ops.attention(q, k, v)), expected, **BF16_TOLERANCE)
