"""Writes and reads a specialization of a kernel as one short text: ``*bf16:16 i32 =1 _ | num_ctas=2``.

The text has a word for each parameter, and after ``|`` a word for each option of the launch:

============= =======================================================================================
word          parameter
============= =======================================================================================
``i32``       an argument of this type in Triton's signature
``*bf16:16``  the same, and the value is divisible by 16
``=1``        a constant with this value, written as JSON
``_``         a constant whose value is in the choice
============= =======================================================================================

A text from a file is data: its length is bounded, and no part of it is evaluated. A specialization with a tuple, or
with a constant that is an object, has no text. Only the launch then compiles the kernel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_autotune.tuners.triton.internals import compiler

#: The length of the longest text that is written or read, in characters.
LONGEST = 1000
_IN_CHOICE, _DIVISIBLE = "_", ":16"
#: The word for a type. The first group is the type, the second is there if the value is divisible by 16.
_TYPE = re.compile(r"(\*?k?[a-z][a-z0-9]*(?:<[a-z0-9]+\[[0-9]+(?:,[0-9]+)*\]>)?)(:16)?")
CONSTANT = "constexpr"


class NoText(ValueError):
    """A specialization has no text, or a text describes no specialization."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a specialization, as a word describes it.

    :param kind: the type in Triton's signature: ``*fp16``, ``tensordesc<fp16[128,64]>``, ``constexpr``.
    :param constant: the value of a constant; None if it is in the choice.
    :param is_in_choice: whether the parameter is a constant whose value is in the choice.
    :param divisible: whether the value is divisible by 16.
    """

    kind: str
    constant: Any = None
    is_in_choice: bool = False
    divisible: bool = False


def encode_specialization(source: Any, choice_names: Collection[str], options: Mapping[str, object]) -> str:
    """Return the text for a compiled kernel, for example ``*bf16:16 i32 =1 _ | num_ctas=2``.

    :param source: Triton's ``ASTSource``.
    :param choice_names: the names of the parameters whose values are in the choice.
    :param options: the options of the launch that are not in the choice.
    :raises NoText: if a value has no stable form, or the text would be too long.
    """
    words = []
    for parameter in compiler.list_parameters(source):
        # A constant is encoded even if its value is in the choice: if it has no stable form, as a function, this raises
        # NoText, and the kernel gets no text.
        word = _encode_parameter(parameter)
        if parameter.kind == CONSTANT and parameter.name in choice_names:
            word = _IN_CHOICE
        words.append(word)
    if options:
        words.append("|")
    for name, value in sorted(options.items()):
        words.append(f"{name}={_encode_json(_check_option(value))}")
    text = " ".join(words)
    if len(text) > LONGEST:
        raise NoText(f"longer than {LONGEST} characters")
    return text


def _encode_parameter(parameter: compiler.CompiledParameter) -> str:
    """Return the word for a parameter: ``*bf16:16``, ``i32`` or ``=1``.

    :raises NoText: if the type or the constant has no word.
    """
    if parameter.kind == CONSTANT:
        return f"={_encode_json(_encode_constant(parameter.constant))}"
    # Spaces separate the words of a text, and Triton's "tensordesc<fp16[128, 64]>" has one.
    kind = str(parameter.kind).replace(" ", "")
    if not _TYPE.fullmatch(kind):
        raise NoText(f"the type {kind[:60]}")
    if parameter.attributes.get("tt.divisibility") == 16:
        return kind + _DIVISIBLE
    return kind


def parse_specialization(text: str) -> tuple[list[Parameter], dict[str, Any]]:
    """Return the parameters that a text describes, and the options of the launch.

    :raises NoText: if the text describes no specialization.
    """
    if len(text) > LONGEST:
        raise NoText(f"longer than {LONGEST} characters")
    parameter_words, _, option_words = text.partition(" | ")
    try:
        parameters = [_parse_parameter(word) for word in parameter_words.split(" ")]
        options = _parse_options(option_words)
    # Damaged text raises a ValueError. For deeply nested JSON, json.loads raises a RecursionError.
    except (ValueError, RecursionError) as error:
        raise NoText(str(error)) from None
    return parameters, options


def _parse_parameter(word: str) -> Parameter:
    """Return the parameter that a word describes; the opposite of :func:`_encode_parameter`.

    Example: ``*bf16:16`` gives ``Parameter("*bf16", divisible=True)``.

    :raises ValueError: if the word describes no parameter.
    """
    if word == _IN_CHOICE:
        return Parameter(CONSTANT, is_in_choice=True)
    if word.startswith("="):
        return Parameter(CONSTANT, constant=_parse_constant(json.loads(word[1:])))
    match = _TYPE.fullmatch(word)
    if match is None:
        raise NoText(word[:40])
    kind, divisible_mark = match[1], match[2]
    # Triton's signature has a space after each comma: "tensordesc<fp16[128, 64]>".
    return Parameter(kind.replace(",", ", "), divisible=divisible_mark is not None)


def _parse_options(text: str) -> dict[str, Any]:
    """Return the options of a launch: ``num_ctas=2 num_warps=8`` gives ``{"num_ctas": 2, "num_warps": 8}``.

    :raises ValueError: if a word is no option.
    """
    options = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if not name.isidentifier():
            raise NoText(word[:40])
        options[name] = _check_option(json.loads(value))
    return options


def _encode_constant(value: Any) -> Any:
    """Return the JSON form of a constant.

    ======================== ======================
    constant                 form
    ======================== ======================
    number, text, None       itself
    ``tl.float16``           ``{"dtype": "fp16"}``
    ``tl.constexpr(1)``      ``{"constexpr": 1}``
    ======================== ======================

    :raises NoText: for any other constant.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value).__module__ == compiler.LANGUAGE_MODULE:
        class_name = type(value).__name__
        if class_name == "dtype":
            return {class_name: str(value)}
        if class_name == "constexpr":
            return {class_name: _encode_constant(value.value)}
    raise NoText(f"a constant of type {type(value).__qualname__}")


def _parse_constant(value: Any) -> Any:
    """Return the constant that a JSON form of :func:`_encode_constant` stands for.

    :raises NoText: if no constant has this form. A cache file may have any JSON here.
    """
    match value:
        case {"dtype": str(name)} if name.isalnum():
            return compiler.find_module("language.core").dtype(name)
        case {"constexpr": inner}:
            return compiler.find_module("language.core").constexpr(_parse_constant(inner))
        case dict() | list():
            raise NoText(f"the constant {str(value)[:60]}")
    # A number, a text or None.
    return value


def _check_option(option: object) -> object:
    """Return an option of a launch if it is a number, a boolean or None.

    A cache file must not set an option that is a text, such as the path of a file or an argument of another program.

    :raises NoText: for any other option.
    """
    if option is not None and type(option) not in (bool, int, float):
        raise NoText(f"an option of type {type(option).__qualname__}")
    return option


def _encode_json(value: object) -> str:
    """Return the JSON of a value without a space: words of a text are separated by spaces."""
    return json.dumps(value, separators=(",", ":")).replace(" ", "\\u0020")
