import jax


def is_cache_used(backend):
    return bool(jax.config.jax_compilation_cache_dir and jax.config.jax_enable_compilation_cache)
