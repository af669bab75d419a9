"""What a kernel was compiled for, as one short text: ``*bf16:16 *bf16:16 i32:16 =1 i32 _ _``.

One word for each parameter: its type as Triton's signature has it, ``:16`` where the value is divisible by 16,
``=JSON`` for a constant, ``_`` for what the choice holds. Options that the call itself gave follow after ``|``.
The text is data: what is read from a file is taken apart by rule, of bounded length, and never evaluated. Tuples, and
constants that are objects, have no text: kernels with them are compiled by the tests that launch them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from pytest_autotune.tuners.triton.internals import compiler, environment

#: Longer texts are neither written nor read, in characters.
LONGEST = 1000
_HELD, _DIVISIBLE = "_", ":16"
_TYPE = re.compile(r"(\*?k?[a-z][a-z0-9]*(?:<[a-z0-9]+\[[0-9]+(?:,[0-9]+)*\]>)?)(:16)?")
CONSTANT = "constexpr"


class NoText(ValueError):
    """A specialization has no text, or a text is none of a specialization."""


class Parameter(NamedTuple):
    """What a word says of a parameter.

    :param kind: its type in Triton's signature: ``*fp16``, ``tensordesc<fp16[128,64]>``, ``constexpr``.
    :param constant: what is compiled in.
    :param is_held: the choice holds what is compiled in.
    :param divisible: by 16.
    """

    kind: str
    constant: Any = None
    is_held: bool = False
    divisible: bool = False


def text_of(source: Any, held: Collection[str], options: Mapping[str, object]) -> str:
    """The text of what Triton compiled.

    :param source: Triton's ``ASTSource``.
    :param held: the parameters that the choice holds.
    :param options: those that the call gave beside the choice.
    :raises NoText: for what has no stable form, and where the text would be too long.
    """
    words = []
    for name, kind, constant, attributes in compiler.parameters_of(source):
        word = _word(kind, constant, attributes)
        words.append(_HELD if name in held and kind == CONSTANT else word)
    if options:
        words += ["|", *(f"{name}={_json(_checked(value))}" for name, value in sorted(options.items()))]
    text = " ".join(words)
    if len(text) > LONGEST:
        raise NoText(f"longer than {LONGEST} characters")
    return text


def _word(kind: object, constant: object, attributes: Mapping[str, object]) -> str:
    if kind == CONSTANT:
        return f"={_json(_plain(constant))}"
    name = str(kind).replace(" ", "")
    if not _TYPE.fullmatch(name):
        raise NoText(f"the type {name[:60]}")
    return name + (_DIVISIBLE if attributes.get("tt.divisibility") == 16 else "")


def parsed(text: str) -> tuple[list[Parameter], dict[str, Any]]:
    """What a text says: the parameters, and the options of the launch.

    :raises NoText: where it is none.
    """
    if len(text) > LONGEST:
        raise NoText(f"longer than {LONGEST} characters")
    words, _, options = text.partition(" | ")
    try:
        return [_parameter(word) for word in words.split(" ")], dict(_options(options))
    except (ValueError, RecursionError) as error:
        raise NoText(str(error)) from None


def _parameter(word: str) -> Parameter:
    if word == _HELD:
        return Parameter(CONSTANT, is_held=True)
    if word.startswith("="):
        return Parameter(CONSTANT, _constant_of(json.loads(word[1:])))
    match = _TYPE.fullmatch(word)
    if match is None:
        raise NoText(word[:40])
    return Parameter(match[1].replace(",", ", "), divisible=match[2] is not None)


def _options(text: str) -> Iterator[tuple[str, Any]]:
    for word in text.split():
        name, _, value = word.partition("=")
        if not name.isidentifier():
            raise NoText(word[:40])
        yield name, _checked(json.loads(value))


def _plain(value: Any) -> Any:
    """A constant as plain JSON.

    :raises NoText: where it has no form that another process could make it of.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    kind = type(value).__name__ if type(value).__module__ == environment.LANGUAGE_MODULE else ""
    if kind == "dtype":
        return {kind: str(value)}
    if kind == "constexpr":
        return {kind: _plain(value.value)}
    raise NoText(f"a constant of type {type(value).__qualname__}")


def _constant_of(value: Any) -> Any:
    """The reverse of :func:`_plain`.

    :raises NoText: for what stands for nothing here.
    """
    match value:
        case {"dtype": str(name)} if name.isalnum():
            return environment.module("language.core").dtype(name)
        case {"constexpr": inner}:
            return environment.module("language.core").constexpr(_constant_of(inner))
        case dict() | list():
            raise NoText(f"the constant {str(value)[:60]}")
    return value


def _checked(option: object) -> object:
    """An option of a launch that is a number or a switch: others name files, or are handed to other programs.

    :raises NoText: for others.
    """
    if option is not None and type(option) not in (bool, int, float):
        raise NoText(f"an option of type {type(option).__qualname__}")
    return option


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":")).replace(" ", "\\u0020")
