"""The record of a pytest process: facts from which ``pytest-autotune gate`` rebuilds the result of many processes.

The JSON report of a run has the record, as its field ``process``. The gate settles the lookups (the questions of the
tuners, with their outcomes) of all records together, by the functions of :mod:`pytest_autotune.run.settle`. Its verdict
is therefore the verdict of one process that ran all tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_autotune.cache.merge import without_candidates
from pytest_autotune.cache.model import Entry, Identity, Versions
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import SPECIALIZATION, Lookup, Policy
from pytest_autotune.run.request import RunRequest
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.unused import Bypass
from pytest_autotune.workers.events import Event

#: The kind of the events that name the unused entries.
_UNUSED = "unused"


@dataclass(frozen=True)
class ProcessRecord:
    """The record of one process.

    :param collected: the reports of the process and its workers, with their lookups.
    :param request: the user's wishes for the end of the run, without plan and modes.
    :param is_update: the process wrote the cache that it loaded.
    :param is_optional: all caches of the process are optional: the caches, their tuners and GPUs may be absent.
    :param modes: name of a mode -> the value of its option.
    :param unused: the entries that the process itself calls unused.
    :param initial_entries: the digests of the identities of the entries that the process loaded, or that its dump path
        had when it began.
    """

    collected: Collected
    request: RunRequest = field(default_factory=RunRequest)
    is_update: bool = False
    is_optional: bool = False
    modes: Mapping[str, str] = field(default_factory=dict)
    unused: frozenset[Identity] = frozenset()
    initial_entries: frozenset[str] = frozenset()

    @property
    def bypass(self) -> Bypass:
        """The kernels that this process bypassed."""
        return Bypass.build(self.request, self.collected)


def encode_record(result: RunResult) -> dict[str, Any]:
    """Return the record of a process as values of JSON, for :func:`decode_record`.

    The record leaves out the facts that the JSON report holds for users: :func:`decode_record` reads them there.
    """
    collected, request = result.collected, result.request
    lookups = []
    for lookup in collected.lookups:
        # Only a run that recovers the lookup needs the path.
        event = replace(lookup, test_cache_path="").to_event()
        lookups.append([lookup.process, _encode_event(event)])
    return {
        "lookups": lookups,
        "mode_events": _encode_mode_events(collected.mode_events),
        "modes": {section.name: section.typed_value for section in result.sections},
        # The identity of an entry is encoded as an event.
        "unused": [_encode_event(Event(_UNUSED, entry.identity)) for entry in result.unused_entries],
        "initial_entries": sorted({entry.identity.digest for entry in result.initial_entries}),
        "unhooked": [list(tuner_and_reason) for tuner_and_reason in collected.unhooked],
        "missing_packages": [list(tuner_and_package) for tuner_and_package in collected.missing_packages],
        "versions": {library: str(versions) for library, versions in collected.versions.items()},
        "imported_kernels": list(collected.imported_kernels),
        "hypothesis_tests": list(collected.hypothesis_tests),
        "disabled_tests": list(collected.disabled_tests),
        "is_interrupted": collected.is_interrupted,
        "early_end": collected.early_end,
        "has_visible_gpu": collected.has_visible_gpu,
        "is_update": request.plan.is_update,
        "is_optional": result.has_only_optional_caches,
        **_encode_policy(request.policy),
        "tuners_named_by": request.tuners_named_by,
        "adapters": request.adapters,
    }


def _encode_mode_events(events: Iterable[Event]) -> list[Any]:
    """Return the events of modes as values of JSON, without specializations.

    A specialization only changes the contents of a dump, and the gate writes no dump.
    """
    return [_encode_event(event) for event in events if event.kind != SPECIALIZATION]


def _encode_policy(policy: Policy) -> dict[str, Any]:
    """Return the parts of a policy that the gate needs, as fields of the record."""
    return {
        "on_miss": policy.on_miss,
        "on_stale": policy.on_stale,
        "tuners": policy.tuners,
        "ignore": list(policy.ignore),
        "device_aliases": dict(policy.device_aliases),
    }


def _decode_policy(record: Mapping[str, Any]) -> Policy:
    return Policy(
        on_miss=read_text(record, "on_miss"),
        on_stale=read_text(record, "on_stale"),
        tuners=_read_optional_texts(record["tuners"]),
        ignore=_read_texts(record["ignore"]),
        device_aliases=dict(record["device_aliases"]),
    )


def _encode_event(event: Event) -> Any:
    """Return an event as values of JSON. The event's entry loses all that the gate does not need, such as times."""
    entry = event.entry
    if entry is not None:
        event = replace(event, entry=_without_measurements(entry))
    return json.loads(event.encode())


def _without_measurements(entry: Entry) -> Entry:
    """Return an entry with its identity and its choice, and without the rest of its search."""
    return replace(without_candidates(entry), native=b"", compiled=(), digests=())


def decode_record(report: Mapping[str, Any]) -> ProcessRecord:
    """Return the record in a JSON report.

    :param report: the whole report, because some facts of the process stand outside of its field ``process``.
    :raises ValueError, TypeError, KeyError, AttributeError: if the report has no record, or a damaged record.
    """
    record = report["process"]
    request = RunRequest(
        update_arguments=read_text(report, "update"),
        policy=_decode_policy(record),
        tuners_named_by=read_text(record, "tuners_named_by"),
        adapters=_read_optional_texts(record["adapters"]),
    )
    return ProcessRecord(
        collected=_decode_collected(report, record),
        request=request,
        is_update=_read_flag(record, "is_update"),
        is_optional=_read_flag(record, "is_optional"),
        modes=_decode_modes(record["modes"]),
        unused=_decode_identities(record["unused"]),
        initial_entries=frozenset(_read_texts(record["initial_entries"])),
    )


def _decode_collected(report: Mapping[str, Any], record: Mapping[str, Any]) -> Collected:
    """Return the reports of the workers of a process.

    :param report: the JSON report, which has the facts that users read.
    :param record: its field ``process``, which has the other facts.
    """
    return Collected(
        lookups=_decode_lookups(record["lookups"]),
        mode_events=tuple(_decode_event(plain) for plain in record["mode_events"]),
        crashed_workers=_read_texts(report["crashed"]),
        incomplete_reason=read_text(report, "incomplete_reason"),
        not_passed_reason=read_text(report, "not_passed_reason"),
        has_only_skips=_read_flag(report, "only_skips"),
        is_interrupted=_read_flag(record, "is_interrupted"),
        early_end=read_text(record, "early_end"),
        has_visible_gpu=_read_flag(record, "has_visible_gpu"),
        test_counts={str(outcome): int(count) for outcome, count in report["tests"].items()},
        notes=_read_texts(report["notes"]),
        untracked=_read_texts(report["untracked"]),
        unhooked=tuple((str(tuner), str(reason)) for tuner, reason in record["unhooked"]),
        missing_packages=tuple((str(tuner), str(package)) for tuner, package in record["missing_packages"]),
        versions={str(library): Versions.parse(text) for library, text in record["versions"].items()},
        imported_kernels=_read_texts(record["imported_kernels"]),
        hypothesis_tests=_read_texts(record["hypothesis_tests"]),
        disabled_tests=_read_texts(record["disabled_tests"]),
    )


def _decode_modes(modes: Mapping[str, Any]) -> Mapping[str, str]:
    """Return name of a mode -> the value of its option, which must be a text."""
    for name, value in modes.items():
        if not isinstance(value, str):
            raise TypeError(f"the value of the mode {name} is no text")
    return dict(modes)


def _decode_lookups(processes_and_events: Sequence[Any]) -> tuple[Lookup, ...]:
    """Return the lookups of a record.

    :param processes_and_events: for each lookup, the name of its process and the event that encodes it.
    :raises ValueError: if an event is no lookup.
    """
    lookups = []
    for process, plain in processes_and_events:
        lookup = Lookup.from_event(_decode_event(plain))
        if lookup is None:
            raise ValueError("one of its records is no result of a problem")
        lookups.append(replace(lookup, process=str(process)))
    return tuple(lookups)


def _decode_identities(plain_events: Sequence[Any]) -> frozenset[Identity]:
    """Return the identities of events.

    :raises ValueError: if an event has no identity.
    """
    identities = set()
    for plain in plain_events:
        identity = _decode_event(plain).identity
        if identity is None:
            raise ValueError("one of its records does not name its problem")
        identities.add(identity)
    return frozenset(identities)


def _decode_event(plain: Any) -> Event:
    """Return the event that :func:`_encode_event` has made values of JSON."""
    return Event.decode(json.dumps(plain))


def read_text(fields: Mapping[str, Any], name: str) -> str:
    """Return a field of a report that must be a text.

    A damaged report may have null there, which must not become the text ``None``.

    :raises TypeError: if the field has another type.
    """
    text = fields[name]
    if not isinstance(text, str):
        raise TypeError(f"{name} is no text")
    return text


def _read_flag(fields: Mapping[str, Any], name: str) -> bool:
    """Return a field of a report that must be true or false.

    :raises TypeError: if the field has another type.
    """
    flag = fields[name]
    if not isinstance(flag, bool):
        raise TypeError(f"{name} is neither true nor false")
    return flag


def _read_texts(plain: Sequence[Any]) -> tuple[str, ...]:
    return tuple(str(text) for text in plain)


def _read_optional_texts(plain: Sequence[Any] | None) -> tuple[str, ...] | None:
    if plain is None:
        return None
    return _read_texts(plain)
