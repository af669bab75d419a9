"""Entries of Triton's tuner for tests that merge or compare caches."""

from __future__ import annotations

from pytest_autotune.cache.model import Candidate, Device, Entry, Problem, Scalar, Value

H200 = Device("NVIDIA H200", "sm_90", 132)
A100 = Device("NVIDIA A100", "sm_80", 108)


def entry(m: Scalar = 64, block: int = 32, time_us: float = 10.0, source: str = "s", device: Device = H200) -> Entry:
    """Return an entry that chooses ``block`` for the problem ``M=m``."""
    return Entry(
        Problem("triton", "lib.add", (Value("M", m),), device),
        (Value("source", source, "digest"),),
        Candidate(params=(Value("BLOCK", block),), time_us=time_us),
    )
