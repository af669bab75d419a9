"""A small library of Triton kernels, each with an `@triton.autotune` of its own."""
