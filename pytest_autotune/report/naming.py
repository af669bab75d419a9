"""How every face names a problem, a process, and what processes disagree about. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_autotune.cache.merge import Disagreement
from pytest_autotune.cache.model import Problem, Value


def says_something(value: Value) -> bool:
    """Whether a part of a key says something to a reader: no digest does.

    Settings do only where they differ: then the reason of a row names them.
    """
    return value.type not in ("digest", "settings")


def readable(key: Iterable[Value]) -> str:
    """The parts of a key that say something to a reader: ``M=64, N=64``."""
    return ", ".join(map(str, filter(says_something, key)))


def described(problem: Problem, label: str = "") -> str:
    """A problem as rows name it: ``triton:lib.matmul (M=64, N=64)``."""
    about = ", ".join(filter(None, [readable(problem.key), label]))
    return f"{problem.library}:{problem.kernel}{f' ({about})' if about else ''}"


def process(worker: str) -> str:
    """A process by the name of its worker, which is empty for the only one of a run."""
    return worker or "main"


def disagreed(disagreement: Disagreement) -> tuple[str, str]:
    """What processes chose for one problem, ``toy:k (M=64): gw0 chose A, gw1 chose B``; and whose choice was kept."""
    choices = ", ".join(f"{process(who)} chose {choice}" for who, choice in disagreement.choices)
    return f"{disagreement.problem}: {choices}", process(disagreement.choices[0][0])
