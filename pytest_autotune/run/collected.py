"""What the processes of a run have reported: what they asked for, and what each says of itself when it ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pytest_autotune.cache.model import Versions
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.workers.events import Event

#: The kind of event by which a process that has ended reports what is to be known of itself.
END = "end"
#: The only process of a run without workers.
ALONE = "main"


@dataclass(frozen=True)
class Collected:
    """What the processes of a run have reported, and what the process knows where that comes together.

    :param lookups: (process, what it asked for); no lookup twice.
    :param recovered: what killed runs with this dump path had tuned.
    :param others: what is neither a lookup nor an end.
    :param crashed: the workers that could not say anything when they ended.
    :param incomplete: the first reason why the run was not complete; empty when it was.
    :param only_skipped: that reason is a skipped test, in a run of the whole suite.
    :param test_counts: outcome of tests, in pytest's words -> how many have it.
    :param untracked: kernels whose tuning never passed the session.
    :param unhooked: (tuner, why).
    :param versions: tuner -> those of the libraries that it ran under.
    :param imported: loaded kernels, as ``tuner:kernel``, whose module was imported.
    :param drawn: the tests, by node id, whose arguments Hypothesis draws.
    :param disabled: the tests that a marker let run without the tuners' being hooked.
    :param missing: the caches, as they are typed, that tests load and that had no entry; of a run that writes.
    """

    lookups: tuple[tuple[str, Lookup], ...] = ()
    recovered_lookups: tuple[Lookup, ...] = ()
    mode_events: tuple[Event, ...] = ()
    crashed_workers: tuple[str, ...] = ()
    incomplete_reason: str = ""
    is_only_skipped: bool = False
    is_interrupted: bool = False
    test_counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    unhooked: tuple[tuple[str, str], ...] = ()
    versions: Mapping[str, Versions] = field(default_factory=dict)
    imported_kernels: tuple[str, ...] = ()
    hypothesis_tests: tuple[str, ...] = ()
    disabled_tests: tuple[str, ...] = ()
    missing_caches: tuple[str, ...] = ()
    deselected_count: int = 0


def collect(events: Iterable[tuple[str, Event]], recovered: Iterable[tuple[str, Event]] = ()) -> Collected:
    """What the events of a run tell, and those of killed runs; what only looks like one, in a damaged file, is none."""
    lookups: list[tuple[str, Lookup]] = []
    others: list[Event] = []
    names = ("notes", "untracked", "imported_kernels", "hypothesis_tests", "disabled_tests", "missing_caches")
    texts: dict[str, dict[str, None]] = {name: {} for name in names}
    unhooked: set[tuple[str, str]] = set()
    versions: dict[str, Versions] = {}
    deselected = 0
    for process, event in sorted(events, key=lambda pair: pair[0]):
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            if event.kind == END:
                for name, found in texts.items():
                    found.update(dict.fromkeys(map(str, event.data[name])))
                unhooked.update((tuner, str(why)) for tuner, why in event.data["unhooked"].items())
                versions.update((tuner, Versions.parse(text)) for tuner, text in event.data["versions"].items())
                deselected = max(deselected, event.data["deselected"])
            elif (lookup := Lookup.from_event(event)) is not None:
                lookups.append(("" if process == ALONE else process, lookup))
            else:
                others.append(event)
    said: dict[str, Any] = {name: tuple(found) for name, found in texts.items()}
    tuned = collect(recovered).lookups if recovered else ()
    return Collected(
        tuple(lookups),
        tuple(lookup for _, lookup in tuned if lookup.is_tuned),
        tuple(others),
        unhooked=tuple(sorted(unhooked)),
        versions=versions,
        **said,
        deselected_count=deselected,
    )
