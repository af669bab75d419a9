"""What a process reports of itself when it ends."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from pytest_autotune.cache.model import Versions
from pytest_autotune.run.compiled_for import CompiledAhead, CompiledFor
from pytest_autotune.workers.events import END, Event


@dataclass(frozen=True)
class ProcessFacts:
    """What a process that ran tests reports of itself when it ends.

    :param deselected: how many collected tests it did not run.
    :param notes: lines for the summary.
    :param unseen: kernels whose tuning never passed our door.
    :param unhooked: tuner -> why it could not be hooked.
    :param versions: tuner -> those of the libraries that it ran under.
    :param imported: loaded kernels, as ``tuner:kernel``, whose module was imported.
    :param waited_s: seconds spent waiting for other workers' tunings.
    :param compiled_for: what choices were compiled for.
    :param ahead: what was compiled ahead of its tests.
    """

    worker: str = ""
    deselected: int = 0
    notes: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    unhooked: tuple[tuple[str, str], ...] = ()
    versions: tuple[tuple[str, Versions], ...] = ()
    imported: tuple[str, ...] = ()
    waited_s: float = 0.0
    compiled_for: tuple[CompiledFor, ...] = ()
    ahead: CompiledAhead = field(default_factory=CompiledAhead)

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
            texts = {name: tuple(mapping[name]) for name in ("notes", "unseen", "imported")}
            compiled_for = tuple(CompiledFor(**one) for one in mapping["compiled_for"])
            ahead = CompiledAhead(**mapping["ahead"])
            found = {"unhooked": unhooked, "versions": versions, "compiled_for": compiled_for, "ahead": ahead}
            return ProcessFacts(**{**mapping, **texts, **found})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not the end of a process: {error}") from None
