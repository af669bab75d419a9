"""A cache as a plain mapping that mirrors the protocol buffer, field by field: what YAML and JSON hold."""

from __future__ import annotations

import base64
import math
from typing import Any

from pytest_autotune.cache.formats.schema import FORMAT_VERSION, check_scalar, device_ids, in_order
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Value
from pytest_autotune.cache.packed_texts import packed

Plain = dict[str, Any]


def entry_to_mapping(entry: Entry, device: str | None = None) -> Plain:
    """The entry as JSON and YAML hold it.

    :param device: the id that stands for its device; None: the device itself.
    :raises CacheError: for an integer beyond 64 bits.
    """
    problem = entry.problem
    plain: Plain = {"tuner": problem.tuner, "kernel": problem.kernel}
    if problem.key:
        plain["key"] = [_value_to(value) for value in problem.key]
    plain["device"] = _device_to(problem.device) if device is None else device
    if entry.fingerprint:
        plain["fingerprint"] = [_value_to(value) for value in entry.fingerprint]
    if entry.choice is not None:
        plain["choice"] = _candidate_to(entry.choice)
    if entry.candidates:
        plain["candidates"] = [_candidate_to(candidate) for candidate in entry.candidates]
    if entry.native:
        plain["native"] = base64.b64encode(entry.native).decode()
    if entry.label:
        plain["label"] = entry.label
    if entry.tuning_seconds:
        plain["tuning_seconds"] = _number_to(entry.tuning_seconds)
    if entry.versions:
        plain["environment"] = str(entry.versions)
    if entry.compiled:
        plain["compiled"] = list(packed(entry.compiled))
    if entry.made_of:
        plain["made_of"] = list(entry.made_of)
    return plain


def _device_to(device: Device) -> Plain:
    plain: Plain = {"name": device.name, "arch": device.arch, "multiprocessors": device.multiprocessors}
    return {name: field for name, field in plain.items() if field}


def _value_to(value: Value) -> Plain:
    plain: Plain = {"name": value.name} if value.name else {}
    scalar = value.value
    if isinstance(scalar, bool):
        plain["bool"] = scalar
    elif isinstance(scalar, int):
        check_scalar(value)
        plain["int"] = scalar
    elif isinstance(scalar, float):
        plain["float"] = _number_to(scalar)
    elif scalar is not None:
        plain["text"] = scalar
    if value.type:
        plain["type"] = value.type
    return plain


def _candidate_to(candidate: Candidate) -> Plain:
    plain: Plain = {"id": candidate.id} if candidate.id else {}
    if candidate.params:
        plain["params"] = [_value_to(value) for value in candidate.params]
    if candidate.time_us is not None:
        plain["time_us"] = _number_to(candidate.time_us)
    if candidate.failed:
        plain["failed"] = candidate.failed
    if candidate.label:
        plain["label"] = candidate.label
    return plain


def _number_to(number: float) -> float | str:
    return float(number) if math.isfinite(number) else str(float(number))


def to_mapping(cache: Cache) -> Plain:
    """The cache as JSON and YAML hold it.

    :raises CacheError: for an entry that a reader would not take back.
    """
    ids = device_ids(cache.devices)
    return {
        "format_version": FORMAT_VERSION,
        "devices": [{"id": id, **_device_to(device)} for device, id in ids.items()],
        "entries": [entry_to_mapping(entry, ids[entry.problem.device]) for entry in in_order(cache.entries)],
    }
