"""Objects of the model as JSON, for the processes of a run: the fields of each object, in the order of its class."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from pytest_autotune.cache.model import (
    Candidate,
    Device,
    Digest,
    Entry,
    Fingerprint,
    Identity,
    Problem,
    Value,
    Versions,
)

_CLASSES: tuple[Any, ...] = (Value, Device, Problem, Candidate, Digest, Entry)


def _encode_bytes(native: bytes) -> str:
    return base64.b64encode(native).decode()


_ENCODERS: Mapping[type, Callable[[Any], object]] = {
    **{cls: attrgetter(*cls.__match_args__) for cls in _CLASSES},
    Versions: str,
    bytes: _encode_bytes,
}


def to_json(plain: object) -> str:
    """Encode plain data with objects of the model in it as JSON in one line.

    :raises TypeError: for an object that is neither of the model nor a value of JSON.
    """
    return _ENCODER.encode(plain)


def _encode_object(value: object) -> object:
    if type(value) not in _ENCODERS:
        raise TypeError(f"a {type(value).__qualname__} is no part of an entry")
    return _ENCODERS[type(value)](value)


#: Used in place of json.dumps(), which a test may mock.
_ENCODER = json.JSONEncoder(default=_encode_object, separators=(",", ":"))


def _read_values(plain: Iterable[Any]) -> tuple[Value, ...]:
    return tuple([Value(*fields) for fields in plain])


def _read_candidate(name: str, params: Any, *rest: Any) -> Candidate:
    return Candidate(name, _read_values(params), *rest)


def _read_problem(tuner: str, kernel: str, key: Any, device: Any) -> Problem:
    return Problem(tuner, kernel, _read_values(key), Device(*device))


def read_identity(problem: Any, fingerprint: Any) -> Identity:
    """Return the identity with these fields.

    :raises TypeError, ValueError, AttributeError: if the fields are not those of an identity.
    """
    return Identity(_read_problem(*problem), Fingerprint(_read_values(fingerprint)))


def read_entry(problem: Any, fingerprint: Any, choice: Any, candidates: Any, native: str, *rest: Any) -> Entry:
    """Return the entry with these fields; raises as :func:`read_identity` does."""
    label, tuning_seconds, versions, compiled, digests, generation, asked_by = rest
    return Entry(
        *read_identity(problem, fingerprint),
        None if choice is None else _read_candidate(*choice),
        tuple([_read_candidate(*fields) for fields in candidates]),
        base64.b64decode(native),
        label,
        tuning_seconds,
        Versions.parse(versions),
        compiled,
        tuple([Digest(*fields) for fields in digests]),
        generation,
        asked_by,
    )
