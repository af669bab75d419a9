"""The model as JSON, for the processes of a run: of each object its parts, in the order of its class, and back."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from pytest_autotune.cache.model import Candidate, Device, Digest, Entry, Identity, Problem, Value, Versions

_CLASSES: tuple[Any, ...] = (Value, Device, Problem, Candidate, Digest, Entry)
_PARTS: Mapping[type, Callable[[Any], object]] = {
    **{of: attrgetter(*of.__match_args__) for of in _CLASSES},
    Versions: str,
    bytes: lambda native: base64.b64encode(native).decode(),
}


def to_json(plain: object) -> str:
    """What holds objects of the model as JSON in one line.

    :raises TypeError: where it holds anything else that is no value of JSON.
    """
    return _ENCODER.encode(plain)


def _parts(one: object) -> object:
    if type(one) not in _PARTS:
        raise TypeError(f"a {type(one).__qualname__} is no part of an entry")
    return _PARTS[type(one)](one)


#: Not json.dumps(), which a test may mock.
_ENCODER = json.JSONEncoder(default=_parts, separators=(",", ":"))


def _values(plain: Iterable[Any]) -> tuple[Value, ...]:
    return tuple([Value(*parts) for parts in plain])


def _candidate(name: str, params: Any, *others: Any) -> Candidate:
    return Candidate(name, _values(params), *others)


def _problem(tuner: str, kernel: str, key: Any, device: Any) -> Problem:
    return Problem(tuner, kernel, _values(key), Device(*device))


def identity_of(problem: Any, fingerprint: Any) -> Identity:
    """The identity that has these parts.

    :raises TypeError, ValueError, AttributeError: where they are not those of one.
    """
    return Identity(_problem(*problem), _values(fingerprint))


def entry_of(problem: Any, fingerprint: Any, choice: Any, candidates: Any, native: str, *others: Any) -> Entry:
    """The entry that has these parts; raises as :func:`identity_of` does."""
    label, seconds, versions, compiled, digests, generation = others
    return Entry(
        *identity_of(problem, fingerprint),
        None if choice is None else _candidate(*choice),
        tuple([_candidate(*one) for one in candidates]),
        base64.b64decode(native),
        label,
        seconds,
        Versions.parse(versions),
        compiled,
        tuple([Digest(*one) for one in digests]),
        generation,
    )
