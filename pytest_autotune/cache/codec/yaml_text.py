"""The YAML format: a plain mapping, printed by us and read from the events of PyYAML's parser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from pytest_autotune.cache.codec.mapping import Codec, Plain, for_json, from_mapping, to_mapping
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Entry

# What YAML does not take literally, or takes for the end of a line.
_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def encode(entries: Sequence[Entry]) -> str:
    """A cache of these entries as YAML, in the order given: a line for each device and value, every text in quotes."""
    return "\n".join([*_lines(for_json(to_mapping(entries)), ""), ""])


def _lines(fields: Plain, indent: str) -> Iterator[str]:
    for name, field in fields.items():
        if not isinstance(field, (dict, list)) or not field:
            yield f"{indent}{name}: {_flow(field)}"
            continue
        yield f"{indent}{name}:"
        if isinstance(field, dict):
            yield from _lines(field, f"{indent}  ")
        elif name == "entries":
            for entry in field:
                first, *others = _lines(entry, f"{indent}  ")
                yield from (f"{indent}- {first.lstrip()}", *others)
        else:
            yield from (f"{indent}- {_flow(item)}" for item in field)


def _flow(field: object) -> str:
    if isinstance(field, dict):
        return f"{{{', '.join(f'{name}: {_flow(value)}' for name, value in field.items())}}}"
    if isinstance(field, list):
        return f"[{', '.join(map(_flow, field))}]"
    if isinstance(field, float) and "e" in repr(field):
        digits, exponent = repr(field).split("e")
        return f"{digits if '.' in digits else digits + '.0'}e{exponent}"
    return _NOT_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(field, ensure_ascii=False))


def decode(text: str, where: str) -> Cache:
    """The cache that the YAML text holds.

    :raises CacheError: where it holds none, with line and column where it is no YAML.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        plain = _Events(yaml.parse(text, loader), where).document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        at = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        raise CacheError(at, f"is not YAML: {getattr(error, 'problem', None) or error}") from None
    return from_mapping(plain, where, text)


_DEEPEST = 20


class _Events:
    """Turns the events of a YAML parser into plain data: no tags, no aliases, no name twice.

    Events, because libyaml composes nested nodes by recursion and crashes the
    process when they are nested some thousand deep. YAML 1.1 would see dates,
    octals and "yes" in what is not quoted.
    """

    def __init__(self, events: Iterator[Any], where: str) -> None:
        self._events = events
        self._where = where

    def document(self) -> object:
        """The one document of the stream."""
        starts = (event for event in self._events if type(event).__name__ == "DocumentStartEvent")
        documents = [self._node(next(self._events), 0) for _ in starts]
        if len(documents) != 1:
            raise CacheError(self._where, f"{len(documents)} YAML documents where one belongs")
        return documents[0]

    def _node(self, event: Any, depth: int) -> object:
        kind = type(event).__name__
        if kind == "AliasEvent":
            self._refuse(event, "an alias of YAML: caches have none")
        if depth > _DEEPEST:
            self._refuse(event, "is nested too deeply for a cache")
        if event.tag is not None:
            self._refuse(event, f"the tag {event.tag} of YAML: caches have none")
        if kind == "ScalarEvent":
            return _plain_scalar(event.value) if event.implicit[0] else event.value
        if kind == "SequenceStartEvent":
            return [self._node(item, depth + 1) for item in self._until("SequenceEndEvent")]
        plain: Plain = {}
        for name_event in self._until("MappingEndEvent"):
            name = getattr(name_event, "value", None)
            if name is None:
                self._refuse(name_event, "a name that is not text")
            if name in plain:
                self._refuse(name_event, f'the name "{name}" stands twice in one mapping')
            plain[name] = self._node(next(self._events), depth + 1)
        return plain

    def _until(self, end: str) -> Iterator[Any]:
        for event in self._events:
            if type(event).__name__ == end:
                return
            yield event

    def _refuse(self, event: Any, found: str) -> NoReturn:
        mark = event.start_mark
        raise CacheError(f"{self._where}:{mark.line + 1}:{mark.column + 1}", found)


def _plain_scalar(word: str) -> Any:
    """What is not quoted: a number, true, false or null, as in JSON, else text."""
    try:
        return json.loads(word)
    except ValueError:
        return word


CODEC = Codec("YAML", (".yaml", ".yml"), decode, encode)
