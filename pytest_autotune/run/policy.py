"""What a run does with its lookups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase

from pytest_autotune.cache.model import library_of
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.mode import Mode


class OnMiss(str, Enum):
    """What becomes of a problem that the loaded caches do not cover, as options spell it."""

    TUNE = "tune"
    FIRST = "first"
    NEAREST = "nearest"
    ERROR = "error"


class OnStale(str, Enum):
    """What becomes of a stale problem, as options spell it."""

    TUNE = "tune"
    USE = "use"
    ERROR = "error"


class Refusal(LookupError):
    """A lookup that the policy calls an error; no guard holds it back."""


def is_ignored(tuner: str, kernel: str, globs: Iterable[str]) -> bool:
    """Whether globs of ``tuner:kernel`` bypass a kernel."""
    names = {f"{tuner}:{kernel}", f"{library_of(tuner)}:{kernel}"}
    return any(fnmatchcase(name, glob) for name in names for glob in globs)


@dataclass(frozen=True)
class Policy:
    """What a run does with its lookups.

    :param dumping: what is chosen will be written down, so every search must be a real one.
    :param on_miss: applies to every outcome but a hit.
    :param on_stale: applies to stale problems, beside ``on_miss``.
    :param tuners: the tuners to act on, each with those below it; None for all.
    :param ignore: globs of ``tuner:kernel`` that are bypassed.
    :param aliases: device name -> name of a device whose entries it may use.
    :param compile_threads: this process's share of the cores.
    :param modes: what the run does beside loading and dumping.
    :param debug: show the tracebacks of errors that cost no test.
    """

    dumping: bool = False
    on_miss: OnMiss = OnMiss.TUNE
    on_stale: OnStale = OnStale.TUNE
    tuners: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    compile_threads: int = 1
    modes: tuple[Mode, ...] = ()
    debug: bool = False

    @property
    def picks(self) -> bool:
        """Whether a mode gives candidates in place of searches, so that every test asks anew."""
        return any(mode.picks for mode in self.modes)

    @property
    def wants_no_tuning(self) -> bool:
        """Whether something is to stand in for a tuning."""
        return self.on_miss == OnMiss.FIRST or self.on_miss == OnMiss.NEAREST

    def is_error(self, outcome: Outcome | None) -> bool:
        """Whether a problem with this outcome is an error, where no entry is used for it all the same."""
        if outcome is None or outcome is Outcome.HIT:
            return False
        return self.on_miss == OnMiss.ERROR or (outcome is Outcome.STALE and self.on_stale == OnStale.ERROR)
