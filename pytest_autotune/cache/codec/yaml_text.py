"""The YAML format: a plain mapping, printed by us and read from the events of PyYAML's parser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from pytest_autotune.cache.codec.mapping import Codec, Plain, for_json, to_mapping
from pytest_autotune.cache.codec.reading import from_mapping
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Entry

#: Characters that YAML does not allow in quotes, or takes for the end of a line.
_NOT_LITERAL = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
#: A cache is nested less deeply.
_MAX_DEPTH = 20


def encode(entries: Sequence[Entry]) -> str:
    """Return a cache of these entries as YAML: a line for each device and value, and every text in quotes."""
    lines = _print_fields(for_json(to_mapping(entries)), "")
    return "\n".join([*lines, ""])


def _print_fields(fields: Plain, indent: str) -> Iterator[str]:
    """Yield the lines of a mapping.

    A scalar, and an empty list or mapping, stands behind its name. Another mapping has a line for each of its fields,
    and another list a line for each of its items. Only an entry has several lines.

    :param indent: the spaces at the beginning of each line.
    """
    for name, field in fields.items():
        is_scalar = not isinstance(field, (dict, list))
        if is_scalar or not field:
            yield f"{indent}{name}: {_print_inline(field)}"
            continue
        yield f"{indent}{name}:"
        if isinstance(field, dict):
            yield from _print_fields(field, f"{indent}  ")
        elif name == "entries":
            for entry in field:
                yield from _print_entry(entry, indent)
        else:
            for item in field:
                yield f"{indent}- {_print_inline(item)}"


def _print_entry(entry: Plain, indent: str) -> Iterator[str]:
    """Yield the lines of an entry. The first line has a dash, which makes the entry an item of a list."""
    first_line, *other_lines = _print_fields(entry, f"{indent}  ")
    yield f"{indent}- {first_line.lstrip()}"
    yield from other_lines


def _print_inline(field: object) -> str:
    """Return a field as it stands inside a line: ``{name: "M", int: 64}``, ``["a", "b"]`` or ``1.5``."""
    if isinstance(field, dict):
        pairs = [f"{name}: {_print_inline(value)}" for name, value in field.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(field, list):
        items = [_print_inline(item) for item in field]
        return f"[{', '.join(items)}]"
    if isinstance(field, float) and "e" in repr(field):
        digits, exponent = repr(field).split("e")
        if "." not in digits:
            # YAML 1.1 reads "1e5" as text, and "1.0e5" as a number.
            digits += ".0"
        return f"{digits}e{exponent}"
    return _NOT_LITERAL.sub(_escape, json.dumps(field, ensure_ascii=False))


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def decode(text: str, place: str) -> Cache:
    """Return the cache that the YAML text holds.

    :raises CacheError: if the text is not a cache; with line and column if it is not YAML.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        plain = _DocumentReader(yaml.parse(text, loader), place).read_document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        event = f"is not YAML: {getattr(error, 'problem', None) or error}"
        if mark is None:
            raise CacheError(place, event) from None
        raise CacheError(_place_of_mark(place, mark), event) from None
    return from_mapping(plain, place, text)


def _place_of_mark(place: str, mark: Any) -> str:
    return f"{place}:{mark.line + 1}:{mark.column + 1}"


class _DocumentReader:
    """Turns the events of a YAML parser into plain data without tags, aliases and repeated names.

    Events are used for two reasons. Libyaml composes nested nodes by recursion, and crashes the process if they are
    nested some thousand deep. YAML 1.1 would see dates, octal numbers and "yes" in text without quotes.
    """

    def __init__(self, events: Iterator[Any], place: str) -> None:
        self._events = events
        self._place = place

    def read_document(self) -> object:
        """Return the data of the only document.

        :raises CacheError: for another number of documents, and for data that no cache has.
        """
        documents = []
        for event in self._events:
            if type(event).__name__ == "DocumentStartEvent":
                documents.append(self._read_node(next(self._events), 0))
        if len(documents) != 1:
            raise CacheError(self._place, f"{len(documents)} YAML documents where one belongs")
        return documents[0]

    def _read_node(self, event: Any, depth: int) -> object:
        """Return the data of the node that begins with an event: a scalar, a list or a mapping.

        :param depth: the number of lists and mappings that contain the node.
        :raises CacheError: for an alias, a tag, and too many nested nodes.
        """
        kind = type(event).__name__
        if kind == "AliasEvent":
            self._refuse(event, "an alias of YAML: caches have none")
        if depth > _MAX_DEPTH:
            self._refuse(event, "is nested too deeply for a cache")
        if event.tag is not None:
            self._refuse(event, f"the tag {event.tag} of YAML: caches have none")
        if kind == "ScalarEvent":
            # PyYAML's word for a scalar without quotes and without a tag is that its tag is implicit.
            is_unquoted = event.implicit[0]
            if is_unquoted:
                return _read_unquoted(event.value)
            return event.value
        if kind == "SequenceStartEvent":
            return [self._read_node(item, depth + 1) for item in self._events_until("SequenceEndEvent")]
        return self._read_mapping(depth)

    def _read_mapping(self, depth: int) -> Plain:
        """Return the mapping whose first event was read. Its events are a name, the events of a node, a name …"""
        plain: Plain = {}
        for name_event in self._events_until("MappingEndEvent"):
            name = getattr(name_event, "value", None)
            if name is None:
                self._refuse(name_event, "a name that is not text")
            if name in plain:
                self._refuse(name_event, f'the name "{name}" stands twice in one mapping')
            plain[name] = self._read_node(next(self._events), depth + 1)
        return plain

    def _events_until(self, end: str) -> Iterator[Any]:
        """Yield the first event of each item of a list, or of each name in a mapping, until the list or mapping ends.

        Between two of them, the caller reads the other events of the item, or of the node behind the name.

        :param end: the name of the class of the last event.
        """
        for event in self._events:
            if type(event).__name__ == end:
                return
            yield event

    def _refuse(self, event: Any, problem: str) -> NoReturn:
        raise CacheError(_place_of_mark(self._place, event.start_mark), problem)


def _read_unquoted(word: str) -> Any:
    """Return a word without quotes: a number, true, false or null as in JSON, else text."""
    try:
        return json.loads(word)
    except ValueError:
        return word


CODEC = Codec("YAML", (".yaml", ".yml"), decode, encode)
