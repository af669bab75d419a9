"""What a kernel was compiled for, as one short text: ``*bf16:16 *bf16:16 i32:16 =1 i32 _ _``.

One word for each parameter: its type as Triton's signature has it, ``:16`` where the value is divisible by 16,
``=JSON`` for a constant, ``_`` for what the choice holds. Options that the call itself gave follow after ``|``.
The text is data: what is read from a file is taken apart by rule, of bounded length, and never evaluated.
"""

from __future__ import annotations

import enum
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pytest_autotune.tuners.triton.internals import autotuners, compiler, environment

#: Longer texts are neither written nor read, in characters.
LONGEST = 1000
_DIVISIBLE, _SMALL = ":16", ":S"
_TYPE = re.compile(r"(\*?k?[a-z][a-z0-9]*)(<[a-z0-9]+\[[0-9]+(?:,[0-9]+)*\]>)?((?::16|:S)*)")
_OPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DECODER = json.JSONDecoder()


class NoText(ValueError):
    """A specialisation has no text, or a text is none of a specialisation."""


def plain(value: Any) -> Any:
    """A constant as plain JSON.

    :raises NoText: where it has no form that another process could make it of.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (tuple, list):
        return {type(value).__name__: [plain(one) for one in value]}
    if isinstance(value, enum.Enum):
        return {"enum": f"{_name(type(value))}.{value.name}"}
    kind = type(value).__module__, type(value).__name__
    if kind == ("torch", "dtype"):
        return {"torch": str(value).partition(".")[2]}
    if kind == (environment.LANGUAGE_MODULE, "dtype"):
        return {"dtype": str(value)}
    if kind == (environment.LANGUAGE_MODULE, "constexpr"):
        return {"constexpr": plain(value.value)}
    if kind == (environment.JIT_MODULE, "JITFunction"):
        return {"jit": _name(value.fn)}
    raise NoText(f"a constant of type {type(value).__qualname__}")


def _name(of: Any) -> str:
    return f"{of.__module__}:{of.__qualname__}"


def constant_of(value: Any) -> Any:
    """The reverse of :func:`plain`: by names in modules that are imported, looked up as what stands in them.

    Nothing is imported, and no code of a module runs: attributes that a module makes when asked are not found.

    :raises NoText: for what stands for nothing here.
    """
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise NoText("a list")
        return value
    if len(value) != 1:
        raise NoText("an object")
    ((kind, of),) = value.items()
    if kind in ("tuple", "list") and isinstance(of, list):
        return {"tuple": tuple, "list": list}[kind](map(constant_of, of))
    if kind == "constexpr":
        return _class(environment.LANGUAGE_MODULE, "constexpr")(constant_of(of))
    if isinstance(of, str):
        if kind in ("torch", "dtype"):
            module = "torch" if kind == "torch" else environment.LANGUAGE_MODULE
            found = vars(_module(module)).get(of)
            if type(found) is _class(module, "dtype"):
                return found
            if kind == "dtype" and re.fullmatch(r"[a-z][a-z0-9]{0,15}", of):
                return _class(environment.LANGUAGE_MODULE, "dtype")(of)
        if kind == "jit":
            return jit_function_of(named(of))
        if kind == "enum":
            name, _, member = of.rpartition(".")
            members = getattr(named(name), "__members__", {}) if isinstance(named(name), enum.EnumMeta) else {}
            if member in members:
                return members[member]
    raise NoText(f"the constant {str(value)[:60]}")


def _module(name: str) -> ModuleType:
    module = sys.modules.get(name)
    if module is None:
        raise NoText(f"the module {name[:60]} is not imported")
    return module


def _class(module: str, name: str) -> Any:
    return vars(_module(module))[name]


def named(name: str) -> Any:
    """What stands under ``module:qualified.name`` in an imported module.

    :raises NoText: where nothing does.
    """
    module, _, path = name.partition(":")
    found: Any = _module(module)
    for part in path.split("."):
        if not isinstance(found, (type, ModuleType)) or part not in vars(found):
            raise NoText(f"{name[:100]} is not there")
        found = vars(found)[part]
    return found


def jit_function_of(layer: Any) -> Any:
    """The function of Triton under decorators of Triton.

    :raises NoText: where there is none.
    """
    function = autotuners.jit_function(layer)
    if function is None:
        raise NoText("no function of Triton")
    return function


@dataclass(frozen=True)
class Typed:
    """A parameter that is given when the kernel is launched.

    :param kind: its type in Triton's signature: ``*fp16``, ``i32``, ``tensordesc<fp16[128,64]>``.
    :param divisible: by 16.
    :param small: a buffer of under 2 GB, which AMD's backend asks for.
    """

    kind: str
    divisible: bool = False
    small: bool = False


@dataclass(frozen=True)
class Constant:
    """A parameter that is compiled in; ``value`` is plain JSON, as :func:`.constants.plain` makes it."""

    value: Any


class Held:
    """A parameter whose value the choice holds."""


Part = Typed | Constant | Held | tuple[Any, ...]


@dataclass(frozen=True)
class Specialisation:
    """What a text says.

    :param parts: one for each parameter; tuples hold parts.
    :param options: of the launch, as plain JSON.
    """

    parts: tuple[Part, ...]
    options: Mapping[str, Any]


def text_of(source: Any, held: Collection[str], options: Mapping[str, object]) -> str:
    """The text of what Triton compiled.

    :param source: Triton's ``ASTSource``: function, signature, constants and attributes.
    :param held: the parameters that the choice holds.
    :param options: those that the call gave beside the choice.
    :raises NoText: for a constant without a stable form, and where the text would be too long.
    """
    text = " ".join(words_of(source, held).values())
    if options:
        given = (f"{name}={_json(_checked(value))}" for name, value in sorted(options.items()))
        text = f"{text} | {' '.join(given)}"
    if len(text) > LONGEST:
        raise NoText(f"longer than {LONGEST} characters")
    return text


def words_of(source: Any, held: Collection[str]) -> dict[str, str]:
    """The word of each parameter.

    :raises NoText: for a constant without a stable form.
    """

    def word(kind: Any, path: tuple[int, ...]) -> str:
        if isinstance(kind, (tuple, list)) and not hasattr(kind, "_fields"):
            return f"({','.join(word(one, (*path, index)) for index, one in enumerate(kind))})"
        if kind == "constexpr":
            return f"={_json(plain(compiler.constant_at(source, path)))}"
        attributes = compiler.attributes_at(source, path)
        marks = _DIVISIBLE if attributes.get("tt.divisibility") == 16 else ""
        marks += _SMALL if attributes.get("tt.pointer_range") else ""
        name = str(kind).replace(" ", "")
        if not _TYPE.fullmatch(name):
            raise NoText(f"the type {name[:60]}")
        return f"{name}{marks}"

    return {
        name: "_" if name in held else word(kind, (index,))
        for index, (name, kind) in enumerate(compiler.kinds_of(source).items())
    }


def parsed(text: str) -> Specialisation:
    """What a text says.

    :raises NoText: where it is none.
    """
    if len(text) > LONGEST:
        raise NoText(f"longer than {LONGEST} characters")
    try:
        return _Parser(text).specialisation()
    except (ValueError, RecursionError) as error:
        raise NoText(str(error)) from None


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def specialisation(self) -> Specialisation:
        parts: list[Part] = []
        options: dict[str, Any] = {}
        while self._at < len(self._text):
            if self._takes("| "):
                options = dict(self._options())
                break
            parts.append(self._part())
            if self._at < len(self._text) and not self._takes(" "):
                raise NoText(self._text[self._at :][:40])
        return Specialisation(tuple(parts), options)

    def _takes(self, word: str) -> bool:
        found = self._text.startswith(word, self._at)
        self._at += len(word) * found
        return found

    def _part(self) -> Part:
        if self._takes("_"):
            return Held()
        if self._takes("="):
            return Constant(self._constant())
        if self._takes("("):
            parts: list[Part] = []
            while not self._takes(")"):
                if parts and not self._takes(","):
                    raise NoText(self._text[self._at :][:40])
                parts.append(self._part())
            return tuple(parts)
        match = _TYPE.match(self._text, self._at)
        if match is None:
            raise NoText(self._text[self._at :][:40])
        self._at = match.end()
        kind, shape, marks = match.groups()
        return Typed(kind + (shape or ""), _DIVISIBLE in marks, _SMALL in marks)

    def _constant(self) -> Any:
        value, self._at = _DECODER.raw_decode(self._text, self._at)
        return value

    def _options(self) -> Iterator[tuple[str, Any]]:
        while self._at < len(self._text):
            match = _OPTION.match(self._text, self._at)
            if match is None or not self._text.startswith("=", match.end()):
                raise NoText(self._text[self._at :][:40])
            self._at = match.end() + 1
            yield match[0], _checked(self._constant())
            if self._at < len(self._text) and not self._takes(" "):
                raise NoText(self._text[self._at :][:40])


def _checked(option: object) -> object:
    """An option of a launch that is a number or a switch: others name files, or are handed to other programs.

    :raises NoText: for others.
    """
    if option is not None and type(option) not in (bool, int, float):
        raise NoText(f"an option of type {type(option).__qualname__}")
    return option


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
