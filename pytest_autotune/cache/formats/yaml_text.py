"""The YAML format: a plain mapping, printed by us and read from the events of PyYAML's parser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats.mapping import Plain, to_mapping
from pytest_autotune.cache.formats.mapping_reader import MOST_NAMES, MOST_VALUES, Objects, cache_from
from pytest_autotune.cache.formats.schema import check_lists
from pytest_autotune.cache.model import Cache, Scalar

# What YAML does not take literally, or takes for the end of a line.
_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def encode(cache: Cache) -> str:
    """The cache as YAML: a line for each device and value, every text in quotes.

    :raises CacheError: for an entry that a reader would not take back.
    """
    plain = to_mapping(cache)
    lines = [f"format_version: {plain['format_version']}"]
    for name in ("devices", "entries"):
        lines += _yaml_field(name, plain[name], "")
    return "\n".join(lines) + "\n"


def _yaml_field(name: str, field: object, indent: str) -> Iterator[str]:
    if not isinstance(field, (dict, list)) or not field:
        yield f"{indent}{name}: {_yaml_flow(field)}"
    elif isinstance(field, dict):
        yield f"{indent}{name}:"
        for inner, value in field.items():
            yield from _yaml_field(inner, value, indent + "  ")
    else:
        yield f"{indent}{name}:"
        for item in field:
            if name == "entries":
                first, *others = (line for inner, value in item.items() for line in _yaml_field(inner, value, ""))
                yield f"{indent}- {first}"
                yield from (f"{indent}  {line}" for line in others)
            else:
                yield f"{indent}- {_yaml_flow(item)}"


def _yaml_flow(field: object) -> str:
    if isinstance(field, dict):
        return f"{{{', '.join(f'{name}: {_yaml_flow(value)}' for name, value in field.items())}}}"
    if isinstance(field, list):
        return f"[{', '.join(map(_yaml_flow, field))}]"
    if isinstance(field, float) and "e" in repr(field):
        digits, exponent = repr(field).split("e")
        return f"{digits if '.' in digits else digits + '.0'}e{exponent}"
    return _NOT_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(field, ensure_ascii=False))


def decode(text: str, where: str) -> Cache:
    """The cache that the YAML text holds.

    :raises CacheError: where it holds none, with line and column where it is no YAML.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", None)
    if loader is None:
        if len(text) > _MOST_YAML_WITHOUT_C:
            raise CacheError(where, "takes minutes to read without libyaml", "use .textproto or .json")
        loader = yaml.SafeLoader
    check_lists(text, where)
    objects = Objects()
    try:
        plain = _Events(yaml.parse(text, loader), where, objects).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        raise CacheError(at, f"is not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise CacheError(where, f"is not YAML: {error}") from None
    return cache_from(plain, objects, text, where)


_DEEPEST = 20
# PyYAML's own parser takes a minute for so many characters.
_MOST_YAML_WITHOUT_C = 4_000_000
_PLAIN_INT = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")
_PLAIN_FLOAT = re.compile(r"-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
_PLAIN_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


class _Events:
    """Turns the events of a YAML parser into plain data: no tags, no aliases, no name twice.

    Events, because libyaml composes nested nodes by recursion and crashes the
    process when they are nested some thousand deep. What is not quoted is a
    number, true, false, null or text: YAML 1.1 sees dates, octals and "yes".
    """

    def __init__(self, events: Iterator[Any], where: str, objects: Objects) -> None:
        self._events = events
        self._where = where
        self._objects = objects
        self._words: dict[str, str] = {}

    def document(self) -> object:
        """The one document of the stream."""
        plain: object = None
        documents = 0
        for event in self._events:
            if type(event).__name__ == "DocumentStartEvent":
                documents += 1
                if documents > 1:
                    self._refuse(event, "a second YAML document")
                plain = self._node(next(self._events), 0)
        return plain

    def _node(self, event: Any, depth: int) -> object:
        kind = type(event).__name__
        if kind == "AliasEvent":
            self._refuse(event, "an alias of YAML: caches have none")
        if depth > _DEEPEST:
            self._refuse(event, "is nested too deeply for a cache")
        if event.tag is not None:
            self._refuse(event, f"the tag {event.tag} of YAML: caches have none")
        if kind == "ScalarEvent":
            word = self._shared(event.value)
            return _plain_scalar(word) if event.implicit[0] else word
        if kind == "SequenceStartEvent":
            return self._list(event, depth)
        plain: Plain = {}
        for name_event in self._until("MappingEndEvent"):
            name = self._node(name_event, depth + 1)
            if type(name) is not str:
                self._refuse(name_event, "a name that is not text")
            if name in plain:
                self._refuse(name_event, f'the name "{name}" stands twice in one mapping')
            if len(plain) >= MOST_NAMES:
                self._refuse(name_event, f"a mapping of more than {MOST_NAMES} names: not a cache")
            if name not in self._objects.known:
                self._objects.saw(name, name_event.start_mark.line + 1)
            plain[name] = self._node(next(self._events), depth + 1)
        return self._objects.of(plain.items())

    def _list(self, event: Any, depth: int) -> list[object]:
        items: list[object] = []
        for item in self._until("SequenceEndEvent"):
            if type(item).__name__ == "SequenceStartEvent":
                self._refuse(event, "a list in a list: caches have none")
            items.append(self._node(item, depth + 1))
        return items

    def _shared(self, word: str) -> str:
        """The word, as one object for all that are equal; parsers make each anew."""
        return self._words.setdefault(word, word) if len(self._words) < MOST_VALUES else word

    def _until(self, end: str) -> Iterator[Any]:
        for event in self._events:
            if type(event).__name__ == end:
                return
            yield event

    def _refuse(self, event: Any, found: str) -> NoReturn:
        mark = event.start_mark
        raise CacheError(f"{self._where}:{mark.line + 1}:{mark.column + 1}", found)


def _plain_scalar(word: str) -> Scalar:
    if word in _PLAIN_WORDS:
        return _PLAIN_WORDS[word]
    if _PLAIN_INT.fullmatch(word):
        return int(word)
    return float(word) if _PLAIN_FLOAT.fullmatch(word) else word
