"""The adapter for ``triton.autotune``."""
