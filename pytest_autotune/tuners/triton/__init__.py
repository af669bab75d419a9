"""``triton.autotune``."""
