"""JAX functions whose fusions XLA tunes: a dot with its epilogue, a softmax and an attention block."""

import jax
import jax.numpy as jnp


@jax.jit
def dense(x, weights, bias):
    """``gelu(x @ weights + bias)``; XLA fuses what follows the dot into one kernel, or not, by its tuning."""
    return jax.nn.gelu(x @ weights + bias)


@jax.jit
def softmax(x):
    return jax.nn.softmax(x, axis=-1)


@jax.jit
def attention(q, k, v):
    """Attention over (batch, heads, length, size)."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)
