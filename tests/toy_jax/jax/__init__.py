"""A toy JAX: as much of it as the adapter touches, over a toy XLA that looks up, tunes and dumps by XLA's rules.

Real XLA needs a GPU to tune. What the rules are is known from real runs: see tests/test_xla_deviceless.py and the
tests with the marker ``gpu``.
"""

import os
from types import SimpleNamespace

import jaxlib  # noqa: F401

from jax._src import compilation_cache, compiler, toy_xla, xla_bridge

__version__ = os.environ.get("TOY_JAX", "0.11.2")


class _Config:
    jax_enable_compilation_cache = True
    jax_compilation_cache_dir = os.environ.get("TOY_JAX_CACHE_DIR")

    def update(self, name, value):
        setattr(self, name, value)


config = _Config()


def default_backend():
    return os.environ.get("TOY_JAX_PLATFORM", "gpu")


def compile(*fusions, flags=(), overrides=()):
    """Compile a program of these fusions; returns the block size that XLA chose for each."""
    xla_bridge.initialised = True
    device = SimpleNamespace(
        device_kind=os.environ.get("TOY_DEVICE", "NVIDIA H200"),
        compute_capability="9.0",
        core_count=132,
        process_index=0,
        local_hardware_id=0,
    )
    others = [SimpleNamespace(process_index=1)] if os.environ.get("TOY_JAX_DISTRIBUTED") else []
    backend = SimpleNamespace(platform=default_backend(), devices=lambda: [device, *others])
    options = toy_xla.Options(dict(flags), list(overrides))
    if compilation_cache.is_cache_used(backend):
        return "from JAX's own cache"
    return compiler.backend_compile_and_load(backend, toy_xla.Program(fusions), [device], options, [])
