"""XLA, as JAX uses it: its own persisted autotuning, driven through the options of every run.

``adapter`` stands between JAX and the run; ``flags`` is what XLA is given for a compilation;
``messages`` and ``files`` are XLA's file formats; ``entries`` turns its entries into
ours, and reads HLO; ``log`` reads what it measured; ``outcomes`` knows hits from misses.
"""
