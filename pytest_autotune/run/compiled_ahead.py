"""What was compiled ahead of the tests in a run, what that saved, and what the tests compiled all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import Enum


class Why(Enum):
    """Why a test compiled something itself."""

    #: It was to be compiled ahead, and no child had come to it.
    FIRST = "before a child came to them"
    #: No tuner chose for it, so nothing is known of it before it is launched.
    PLAIN = "without an autotuner"
    #: A search, what the cache does not say yet, another compiler's kernels.
    OTHER = "for other reasons"


@dataclass(frozen=True)
class CompiledAhead:
    """What one process reports of it.

    :param known: how many compilations the cache says that its tests need.
    :param left_out: why, and how many others that the cache knows of are none of those.
    :param compiled: (name of what was compiled, seconds that it took), by the children of this process.
    :param found: the names of what its children found done, or being done.
    :param failed: reasons why children could not do something; one for each.
    :param begun_s: seconds after which the first child began; None where none did.
    :param asked: the names of what its tests asked the compiler for.
    :param itself: (name, seconds, whether an autotuner launched it), of what its tests compiled themselves.
    :param waited_s: seconds that its tests waited for what was being compiled by others.
    :param skipped: why nothing was compiled ahead, where something might have been; else empty.
    """

    known: int = 0
    left_out: tuple[tuple[str, int], ...] = ()
    compiled: tuple[tuple[str, float], ...] = ()
    found: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    begun_s: float | None = None
    asked: tuple[str, ...] = ()
    itself: tuple[tuple[str, float, bool], ...] = ()
    waited_s: float = 0.0
    skipped: str = ""

    @classmethod
    def of(cls, mapping: dict[str, object]) -> CompiledAhead:
        """The reverse of ``dataclasses.asdict``, after it went through JSON."""
        given = {one.name: mapping[one.name] for one in fields(cls)}
        return cls(**{name: _tuples(value) for name, value in given.items()})  # type: ignore[arg-type]


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class Compiled:
    """What the tests of a run compiled themselves, for one reason."""

    kernels: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Ahead:
    """What was compiled ahead in a whole run.

    :param known: how many compilations the cache says that the tests need; the most of any process.
    :param left_out: why, and how many others that the cache knows of are none of those.
    :param kernels: how many were compiled ahead.
    :param seconds: that they took in all, on several cores.
    :param used: how many of them a test asked for.
    :param waited_seconds: that tests waited for what was being compiled by others.
    :param saved_seconds: that tests would have compiled instead, without what they waited.
    :param begun_seconds: after which the first child of any process began; None where none did.
    :param failed: reasons why children could not do something, and how often.
    :param by_tests: what tests compiled themselves.
    :param skipped: why a process compiled nothing ahead, where something might have been; else empty.
    """

    known: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    kernels: int = 0
    seconds: float = 0.0
    used: int = 0
    waited_seconds: float = 0.0
    saved_seconds: float = 0.0
    begun_seconds: float | None = None
    failed: dict[str, int] = field(default_factory=dict)
    by_tests: dict[Why, Compiled] = field(default_factory=dict)
    skipped: str = ""


def summed_up(processes: Iterable[CompiledAhead]) -> Ahead:
    """What the processes of a run have compiled ahead. Whatever several of them asked for, one would have compiled."""
    processes = list(processes)
    compiled = {name: seconds for process in processes for name, seconds in process.compiled}
    met = compiled.keys() | {name for process in processes for name in process.found}
    used = compiled.keys() & {name for process in processes for name in process.asked}
    waited = sum(sorted(process.waited_s for process in processes))
    left_out: Counter[str] = Counter()
    for process in processes:
        left_out |= Counter(dict(process.left_out))
    itself: dict[Why, list[float]] = {}
    for process in processes:
        for name, seconds, is_tuned in process.itself:
            was_awaited = name in met or (is_tuned and process.known and process.begun_s is None)
            why = Why.FIRST if was_awaited else Why.OTHER if is_tuned else Why.PLAIN
            itself.setdefault(why, []).append(seconds)
    return Ahead(
        known=max((process.known for process in processes), default=0),
        left_out=dict(sorted(left_out.items())),
        kernels=len(compiled),
        seconds=round(sum(sorted(compiled.values())), 3),
        used=len(used),
        waited_seconds=round(waited, 3) if compiled else 0.0,
        saved_seconds=round(max(sum(sorted(compiled[name] for name in used)) - waited, 0.0), 3),
        begun_seconds=min((process.begun_s for process in processes if process.begun_s is not None), default=None),
        failed=dict(sorted(Counter(reason for process in processes for reason in process.failed).items())),
        by_tests={why: Compiled(len(of), round(sum(sorted(of)), 3)) for why in Why if (of := itself.get(why))},
        skipped=min((process.skipped for process in processes if process.skipped), default=""),
    )
