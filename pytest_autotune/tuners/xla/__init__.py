"""XLA, as JAX uses it: its own persisted autotuning, driven through the options of every run.

``adapter`` stands between JAX and the run; ``compilations`` is what XLA is given for each of them;
``messages`` and ``files`` are XLA's file formats; ``entries`` turns its entries into
ours, and reads HLO and what it measured; ``outcomes`` knows hits from misses.
"""
