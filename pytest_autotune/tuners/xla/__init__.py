"""XLA, as JAX uses it: its own persisted autotuning, driven through the options of every run."""
