"""What a tuner can do for the door beside saying what it asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytest_autotune.cache.model import Candidate, Digest

#: Says what the digests of a fingerprint are made of (:mod:`pytest_autotune.cache.made_of`).
MadeOf = Callable[[], Iterable[Digest]]
#: Says whether there may be a kernel of some name in this process.
Exists = Callable[[str], bool]


def nothing_noted() -> Iterable[Digest]:
    """Says nothing about any digest."""
    return ()


@dataclass(frozen=True)
class Abilities:
    """What a tuner can do for the door when it is asked; nothing of it has to be there.

    :param candidates: all that are on offer now, without times, in the tuner's own order: a sweep gives one of them
        as ``Tuning.entry``, and so does a user's wish for the first one, or the nearest entry's choice, in place
        of a tuning. Left out, the tuner searches all the same.
    :param exists: whether there may still be a kernel of some name in this process. Where there is none, an
        entry of that name with the same key, device and fingerprint, a ``source`` in it, is taken for one of
        the kernel that is asked for, under its old name. Left out, none is.
    :param meanwhile: called where another worker tunes the problem now, to help it instead of only waiting.
    :param made_of: what the digests of the fingerprint stand for; called where the problem is stale, or tuned. Noted
        with the entry, so that one that is stale can say what has changed.
    """

    candidates: Callable[[], Iterable[Candidate]] | None = None
    exists: Exists | None = None
    meanwhile: Callable[[], None] | None = None
    made_of: MadeOf = nothing_noted


NO_ABILITIES = Abilities()
