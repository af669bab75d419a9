"""How every renderer names a problem, a choice, and what differs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_autotune.cache.counted import counted, duration
from pytest_autotune.cache.diff import Change, winner
from pytest_autotune.cache.model import Entry, Problem, Value

#: What is counted by another word than the one that rows of it begin with, in the singular and in the plural.
_NOUNS = {"MISS": ("miss", "misses"), "MISMATCH": ("mismatch", "mismatches"), "HIT": ("hit", "hits")}
#: How many kernels one line names.
_NAMED = 3


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


def choice_text(entry: Entry) -> str:
    """What an entry makes its tuner do."""
    best = winner(entry)
    if best is not None:
        return (best.words or "-") + (f" (failed: {best.failed})" if best.failed else "")
    if entry.candidates:
        return "every candidate failed"
    return f"{len(entry.native)} bytes of the tuner" if entry.native else "nothing"


def time_text(entry: Entry) -> str:
    """The measured time of what an entry chooses, as people say it; empty where none is known."""
    best = winner(entry)
    return duration(best.time_us) if best is not None and best.time_us is not None else ""


def changed(change: Change) -> tuple[str, str]:
    """What became of a choice, ``BLOCK 32 -> 64; source changed``, and of its time, ``12 us -> 10 us``."""
    sides = [entry for entry in (change.old, change.new) if entry is not None]
    choices = [best for entry in sides if (best := winner(entry)) is not None]
    params = [{value.name: value.words for value in best.params} for best in choices]
    if len(params) == 2 and all(params):
        before, now = params
        names = [name for name in {**now, **before} if before.get(name) != now.get(name)]
        what = ", ".join(f"{name} {before.get(name, '-')} -> {now.get(name, '-')}" for name in names)
    else:
        what = arrow(map(choice_text, sides))
    digests = sorted({value.name for value in set(sides[0].fingerprint) ^ set(sides[-1].fingerprint)})
    rests_on = f"{', '.join(digests)} changed" if digests else ""
    return "; ".join(filter(None, [what, rests_on])), arrow(map(time_text, sides))


def arrow(words: Iterable[str]) -> str:
    """What was, and what is where that is something else."""
    return " -> ".join(dict.fromkeys(filter(None, words)))


def noun(number: int, word: str, more: str = "") -> str:
    """So many rows that begin with a word: ``"2 more misses"``."""
    return counted(number, *(f"{more}{one}" for one in _NOUNS.get(word, (word.lower(), word.lower()))))


def some_of(kernels: Sequence[str]) -> str:
    """Kernels, as many as one line names: ``toy:a, toy:b, toy:c and 2 other kernels``."""
    others = len(kernels) - _NAMED
    return ", ".join(kernels[:_NAMED]) + (f" and {counted(others, 'other kernel')}" if others > 0 else "")
