"""What the processes of a run have reported: what each says of itself when it ends, and all of it together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from pytest_autotune.cache.model import Versions
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.workers.events import END, Event

#: The only process of a run without workers.
ALONE = "main"


@dataclass(frozen=True)
class ProcessFacts:
    """What a process that ran tests reports of itself when it ends.

    :param deselected: how many collected tests it did not run.
    :param notes: lines for the summary.
    :param untracked: kernels whose tuning never passed the session.
    :param unhooked: tuner -> why it could not be hooked.
    :param versions: tuner -> those of the libraries that it ran under.
    :param imported: loaded kernels, as ``tuner:kernel``, whose module was imported.
    :param drawn: the tests, by node id, whose arguments Hypothesis draws.
    :param disabled: how many tests a marker let run without the tuners' being hooked.
    :param waited_s: seconds spent waiting for other workers' tunings.
    """

    worker: str = ""
    deselected: int = 0
    notes: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    unhooked: tuple[tuple[str, str], ...] = ()
    versions: tuple[tuple[str, Versions], ...] = ()
    imported: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    disabled: int = 0
    waited_s: float = 0.0

    @property
    def event(self) -> Event:
        """The facts as they are written down."""
        versions = [(tuner, str(versions)) for tuner, versions in self.versions]
        return Event(END, data=asdict(self) | {"versions": versions})

    @staticmethod
    def of(event: Event) -> ProcessFacts:
        """The reverse of :attr:`event`.

        :raises ValueError: for an event that only looks like it.
        """
        try:
            mapping = event.data
            unhooked = tuple((str(tuner), str(why)) for tuner, why in mapping["unhooked"])
            versions = tuple((str(tuner), Versions.of(text)) for tuner, text in mapping["versions"])
            texts = {name: tuple(mapping[name]) for name in ("notes", "untracked", "imported", "drawn")}
            return ProcessFacts(**{**mapping, **texts, "unhooked": unhooked, "versions": versions})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not the end of a process: {error}") from None


@dataclass(frozen=True)
class Collected:
    """What the processes of a run have reported, and what the process knows where that comes together.

    :param lookups: (process, what it asked for); no lookup twice.
    :param recovered: what killed runs with this dump path had tuned.
    :param others: what is neither a lookup nor an end.
    :param facts: of each process that could still send them, by its name.
    :param crashed: the workers that could not.
    :param incomplete: the first reason why the run was not complete; empty when it was.
    :param only_skipped: that reason is a skipped test, in a run of the whole suite.
    :param interrupted: the run was ended before its tests were.
    :param own_notes: lines of the process where all this comes together.
    """

    lookups: tuple[tuple[str, Lookup], ...] = ()
    recovered: tuple[Lookup, ...] = ()
    facts: tuple[ProcessFacts, ...] = ()
    others: tuple[Event, ...] = ()
    crashed: tuple[str, ...] = ()
    incomplete: str = ""
    only_skipped: bool = False
    interrupted: bool = False
    own_notes: tuple[str, ...] = ()

    @property
    def versions(self) -> Mapping[str, Versions]:
        """Tuner -> the versions that it ran under."""
        return {tuner: versions for process in self.facts for tuner, versions in process.versions}

    @property
    def deselected(self) -> int:
        """How many of the collected tests no process was to run."""
        return max((process.deselected for process in self.facts), default=0)

    @property
    def disabled(self) -> int:
        """How many tests a marker leaves out."""
        return sum(process.disabled for process in self.facts)

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines of adapters and of the plugin itself, each once."""
        return tuple(dict.fromkeys([*self.own_notes, *(note for process in self.facts for note in process.notes)]))

    @property
    def untracked(self) -> tuple[str, ...]:
        """Kernels whose tuning never passed the session."""
        return tuple(sorted({kernel for process in self.facts for kernel in process.untracked}))

    @property
    def unhooked(self) -> tuple[tuple[str, str], ...]:
        """(tuner, why it could not be hooked)."""
        return tuple(sorted({pair for process in self.facts for pair in process.unhooked}))

    @property
    def waited_s(self) -> Mapping[str, float]:
        """Worker -> seconds that it waited for others' tunings."""
        return {process.worker: process.waited_s for process in self.facts if process.worker}


def collect(events: Iterable[tuple[str, Event]], recovered: Iterable[tuple[str, Event]] = ()) -> Collected:
    """What the events of a run tell; what only looks like one, as in a damaged file, is left out.

    :param events: (process, what happened there).
    :param recovered: those of killed runs with this dump path.
    """
    lookups: list[tuple[str, Lookup]] = []
    facts: list[ProcessFacts] = []
    others: list[Event] = []
    for process, event in events:
        with suppress(ValueError):
            if event.kind == END:
                facts.append(ProcessFacts.of(event))
            elif (lookup := Lookup.of(event)) is not None:
                lookups.append(("" if process == ALONE else process, lookup))
            else:
                others.append(event)
    tuned = collect(recovered).lookups if recovered else ()
    return Collected(
        tuple(lookups),
        tuple(lookup for _, lookup in tuned if lookup.tuned),
        tuple(sorted(facts, key=lambda process: process.worker)),
        tuple(others),
    )
