"""``cute``: the configuration that the two tuners of CuTe DSL choose, ``cutlass.testing.tune`` and ``autotune_jit``."""
