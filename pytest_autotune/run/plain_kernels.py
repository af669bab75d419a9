"""Kernels that a run launched without a tuner, and what they were compiled for: entries that no lookup asks for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from pytest_autotune.cache.model import (
    MOST_COMPILED,
    Cache,
    Candidate,
    Device,
    Entry,
    Identity,
    Problem,
    UnportableError,
    Versions,
    check_name,
)


@dataclass(frozen=True)
class PlainKernel:
    """One text of what a kernel was compiled for.

    :param tuner: what stands for a tuner in its entry, ``triton.jit``.
    :param versions: of the libraries that compiled it, as an entry has them.
    """

    tuner: str
    kernel: str
    device: tuple[str, str, int]
    text: str
    versions: str

    @property
    def problem(self) -> Problem:
        """What its entry is of: there is one for each kernel and device."""
        return Problem(self.tuner, self.kernel, (), Device(*self.device))


def chooses_nothing(entry: Entry) -> bool:
    """Whether an entry is of a kernel without a tuner: there is nothing that a lookup could ask it for."""
    return not entry.fingerprint and not entry.problem.key and entry.choice == Candidate()


def entries_of(launched: Iterable[PlainKernel], known: Iterable[Cache]) -> list[Entry]:
    """The entries of what was launched; their choice is the only one that there is.

    :param known: what was loaded, and what the dump path held; the first that has an entry precedes.
    """
    before: dict[Identity, Entry] = {}
    for cache in known:
        for entry in cache.entries:
            before.setdefault(entry.identity, entry)
    texts: defaultdict[tuple[Problem, str], set[str]] = defaultdict(set)
    for one in launched:
        with suppress(UnportableError):  # of a module whose file has a name that UTF-8 cannot encode
            check_name(one.kernel)
            texts[one.problem, one.versions].add(one.text)
    return [_entry(problem, versions, met, before) for (problem, versions), met in texts.items()]


def _entry(problem: Problem, versions: str, met: Iterable[str], before: Mapping[Identity, Entry]) -> Entry:
    entry = Entry(problem, choice=Candidate(), versions=Versions.of(versions))
    return replace(before.get(entry.identity, entry), compiled=tuple(sorted(met)[:MOST_COMPILED]))
