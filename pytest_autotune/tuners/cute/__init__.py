"""The tuner ``cute``: caches the choices of ``cutlass.testing.tune`` and ``cute.testing.autotune_jit`` of CuTe DSL."""
