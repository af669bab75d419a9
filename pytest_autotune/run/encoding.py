"""What crosses between processes, as text of ours and never a foreign object."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats import entry_from_mapping, entry_to_mapping
from pytest_autotune.cache.model import Entry, Versions
from pytest_autotune.run.compiled_ahead import CompiledAhead
from pytest_autotune.run.compiled_for import CompiledFor
from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.run.plain_kernels import PlainKernel
from pytest_autotune.run.verify import Verdict

_PLAIN = (
    "reason", "test", "label", "tuned", "shared", "disturbed", "alias", "test_failed", "untuned", "unrecorded",
    "inside", "failed",
)  # fmt: skip
_OF_VERDICT = tuple(one.name for one in fields(Verdict) if one.name != "entry")


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
    :param plain_kernels: what kernels without a tuner were compiled for.
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
    plain_kernels: tuple[PlainKernel, ...] = ()
    ahead: CompiledAhead = field(default_factory=CompiledAhead)


def encode_lookup(lookup: Lookup) -> str:
    """A lookup as one line of JSON, with an id; made once for each object, however many ways it goes.

    What another worker is handed, a journal keeps and a report brings is the same line.
    """
    if not lookup.encoded:
        lookup.encoded.append(_to_text(lookup.named()))
    return lookup.encoded[0]


def _to_text(lookup: Lookup) -> str:
    mapping: dict[str, Any] = {
        "id": lookup.id,
        "problem": entry_to_mapping(Entry(lookup.problem, lookup.fingerprint)),
        "outcome": lookup.outcome.value if lookup.outcome else None,
    }
    mapping.update((name, value) for name in _PLAIN if (value := getattr(lookup, name)))
    if lookup.verdict is not None:
        mapping["verdict"] = {name: value for name in _OF_VERDICT if (value := getattr(lookup.verdict, name))}
        if lookup.verdict.entry is not None:
            mapping["verdict"]["entry"] = entry_to_mapping(lookup.verdict.entry)
    if lookup.entry is not None:
        mapping["entry"] = entry_to_mapping(lookup.entry)
    return json.dumps(mapping, separators=(",", ":"))


def decode_lookup(text: str) -> Lookup:
    """The reverse of :func:`encode_lookup`.

    :raises ValueError: for text that is not one whole lookup, such as a torn line.
    """
    try:
        mapping = json.loads(text)
        asked = entry_from_mapping(mapping["problem"])
        outcome = mapping["outcome"]
        return Lookup(
            asked.problem,
            asked.fingerprint,
            Outcome(outcome) if outcome else None,
            entry=entry_from_mapping(mapping["entry"]) if "entry" in mapping else None,
            verdict=_verdict(mapping["verdict"]) if "verdict" in mapping else None,
            id=mapping["id"],
            **{name: mapping[name] for name in _PLAIN if name in mapping},
        )
    except (KeyError, TypeError, AttributeError, RecursionError, CacheError) as error:
        raise ValueError(f"not a lookup: {error!r}") from None


def _verdict(mapping: dict[str, Any]) -> Verdict:
    entry = entry_from_mapping(mapping["entry"]) if "entry" in mapping else None
    return Verdict(**{**mapping, "entry": entry})


def encode_facts(facts: ProcessFacts) -> str:
    """Facts as one line of JSON."""
    return json.dumps(asdict(facts) | {"versions": [(tuner, str(versions)) for tuner, versions in facts.versions]})


def decode_facts(text: str) -> ProcessFacts:
    """The reverse of :func:`encode_facts`."""
    mapping = json.loads(text)
    unhooked = tuple((str(tuner), str(why)) for tuner, why in mapping["unhooked"])
    versions = tuple((str(tuner), Versions.of(text)) for tuner, text in mapping["versions"])
    texts = {name: tuple(mapping[name]) for name in ("notes", "unseen", "imported")}
    compiled_for = tuple(CompiledFor(**one) for one in mapping["compiled_for"])
    plain_kernels = tuple(PlainKernel(**{**one, "device": tuple(one["device"])}) for one in mapping["plain_kernels"])
    ahead = CompiledAhead.of(mapping["ahead"])
    plain = {"unhooked": unhooked, "versions": versions, "compiled_for": compiled_for, "ahead": ahead}
    plain["plain_kernels"] = plain_kernels
    return ProcessFacts(**{**mapping, **texts, **plain})
