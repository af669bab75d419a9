"""How every renderer names a problem, a choice, and what differs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_autotune.cache.diff import Change, find_winner
from pytest_autotune.cache.digest_parts import describe_changes
from pytest_autotune.cache.model import Entry, Problem, Value
from pytest_autotune.cache.quantities import describe_count, describe_duration

#: What is counted by another word than the one that rows of it begin with, in the singular and in the plural.
_NOUNS = {"MISS": ("miss", "misses"), "MISMATCH": ("mismatch", "mismatches"), "HIT": ("hit", "hits")}
#: How many kernels one line names.
_NAMED = 3


def is_readable(value: Value) -> bool:
    """Whether a part of a key says something to a reader: no digest does.

    Settings do only where they differ: then the reason of a row names them.
    """
    return value.type not in ("digest", "settings")


def describe_key(key: Iterable[Value]) -> str:
    """The parts of a key that say something to a reader: ``M=64, N=64``."""
    return ", ".join(map(str, filter(is_readable, key)))


def describe_problem(problem: Problem, label: str = "") -> str:
    """A problem as rows name it: ``triton:lib.matmul (M=64, N=64)``."""
    about = ", ".join(filter(None, [describe_key(problem.key), label]))
    return f"{problem.library}:{problem.kernel}{f' ({about})' if about else ''}"


def describe_choice(entry: Entry) -> str:
    """What an entry makes its tuner do."""
    best = find_winner(entry)
    if best is not None:
        return (best.display_text or "-") + (f" (failed: {best.failed})" if best.failed else "")
    if entry.candidates:
        return "every candidate failed"
    return f"{len(entry.native)} bytes of the tuner" if entry.native else "nothing"


def describe_time(entry: Entry) -> str:
    """The measured time of what an entry chooses, as people say it; empty where none is known."""
    best = find_winner(entry)
    return describe_duration(best.time_us) if best is not None and best.time_us is not None else ""


def describe_change(change: Change) -> tuple[str, str]:
    """What became of a choice, ``BLOCK 32 -> 64; source changed (relu)``, and of its time, ``12 us -> 10 us``."""
    sides = [entry for entry in (change.old, change.new) if entry is not None]
    choices = [best for entry in sides if (best := find_winner(entry)) is not None]
    params = [{value.name: value.display_text for value in best.params} for best in choices]
    if len(params) == 2 and all(params):
        before, now = params
        names = [name for name in {**now, **before} if before.get(name) != now.get(name)]
        what = ", ".join(f"{name} {before.get(name, '-')} -> {now.get(name, '-')}" for name in names)
    else:
        what = join_with_arrow(map(describe_choice, sides))
    digests = [digest for entry in sides for digest in entry.digests]
    rests_on = describe_changes(sides[0].fingerprint, sides[-1].fingerprint, digests)
    return "; ".join(filter(None, [what, rests_on])), join_with_arrow(map(describe_time, sides))


def join_with_arrow(words: Iterable[str]) -> str:
    """What was, and what is where that is something else."""
    return " -> ".join(dict.fromkeys(filter(None, words)))


def describe_row_count(number: int, word: str, more: str = "") -> str:
    """So many rows that begin with a word: ``"2 more misses"``."""
    return describe_count(number, *(f"{more}{one}" for one in _NOUNS.get(word, (word.lower(), word.lower()))))


def describe_kernels(kernels: Sequence[str]) -> str:
    """Kernels, as many as one line names: ``toy:a, toy:b, toy:c and 2 other kernels``."""
    others = len(kernels) - _NAMED
    return ", ".join(kernels[:_NAMED]) + (f" and {describe_count(others, 'other kernel')}" if others > 0 else "")
