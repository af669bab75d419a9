"""XLA, as JAX uses it: its own persisted autotuning, driven through the options of every run.

``adapter`` stands between JAX and the run; ``flags`` is what XLA is given for a compilation;
``messages`` and ``files`` are XLA's file formats; ``entries`` turns its entries into
ours; ``log`` and ``hlo`` read what it logs in words; ``outcomes`` knows hits from misses.
"""

from __future__ import annotations

from pytest_autotune.tuners.xla.adapter import Adapter

__all__ = ["Adapter"]
