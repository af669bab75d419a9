"""A digest of a kernel's source that changes when the kernel does, and only then.

The rule, for every tuner: a digest follows names. It holds what Python's parser sees of a function, without docstrings
and the function's own decorators, so that it is equal on every version of Python, wherever in a file the function
stands and however it is laid out; and of what the function names, and so on from there:

- the functions and classes of the suite, not those of Python's own library, of the tuner and the like;
- values that cannot change: numbers, text, dtypes, members of an enum, tuples and frozen dataclasses of these;
- options of decorators that are compiled in.

What may change while tests run is left out by its kind: lists, dicts, sets, all other objects and their attributes, and
what is reached without a name. A log, a counter or a memo then makes no choice stale. What matters of it belongs into
the key. In a closure it makes the problem uncacheable, where values in closures count: two functions of a factory may
differ in nothing else. The rule in a user's words: docs/reference.md.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from types import FunctionType, ModuleType
from typing import Any, Optional

from pytest_autotune.cache.model import UncacheableError, Value, plain_value
from pytest_autotune.tuners.shared.code_text import class_text, function_text
from pytest_autotune.tuners.shared.functions import (
    closure_cells,
    kept_source,
    layers,
    of_library,
    python_function,
    qualified_name,
)

#: The type of a value of a fingerprint that holds a digest of source: another rule gets another name.
FORM = "digest.2"
#: Arguments of ``triton.jit`` that are compiled in.
_OPTIONS = ("noinline", "do_not_specialize", "do_not_specialize_on_alignment", "debug")
#: Arguments of Numba's decorators that are compiled in.
_OPTIONS_OF_NUMBA = (
    "boundscheck",
    "debug",
    "error_model",
    "fastmath",
    "forceobj",
    "inline",
    "max_registers",
    "parallel",
)
DIGEST_LENGTH = 12
_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
_PLAIN = (int, str, bool, float, type(None))
#: Libraries whose classes of scalars stand for dtypes: ``numpy.float32``.
_DTYPE_CLASSES = ("numpy", "ml_dtypes")


def is_code(value: object) -> bool:
    """Whether a value is a part of the program, which digests of source follow, and not data."""
    # On Python 3.10, Any is no class yet.
    return isinstance(value, (ModuleType, type, type(Optional))) or python_function(value) is not None


def source_digest(kernel: object, *, own_cells: bool = False, named: bool = True, carried: bool = True) -> str:
    """The digest of a kernel's source with everything of its own that it uses.

    What its names stand for is looked up at every call: a global may be another one the next time.

    :param kernel: a Python function, or what its decorators made of it.
    :param own_cells: whether plain values in the kernel's own closure belong to it. They do not where kernels
        made by a factory share their source, and what they differ in is in the key.
    :param named: whether the kernel's own name belongs to it. It does not where a renamed kernel is the same.
    :param carried: whether plain values in closures and defaults belong to it. They do not where they are those of
        one call.
    :raises UncacheableError: when the source of a function cannot be read.
    """
    return _Digests(carried).of(kernel, own_cells, named)


def source_parts(
    kernel: object, *, own_cells: bool = False, named: bool = True, carried: bool = True
) -> dict[str, str]:
    """The functions, classes and constants in :func:`source_digest`, by name, each with a digest of it alone."""
    digests = _Digests(carried)
    digests.of(kernel, own_cells, named)
    return digests.parts


def class_digest(cls: type) -> str:
    """The digest of a class: its text, its methods with what they use, and the values of its attributes."""
    return _Digests(True).of_class(cls)


def immutable_text(value: object) -> str | None:
    """The text of a value that cannot change, and of those in it, the same in every process; None for any other."""
    return _Digests(True).constant(value)


class _Digests:
    """The digests of one question: each function and class once, however they refer to each other."""

    def __init__(self, carried: bool) -> None:
        self._carried = carried
        self._seen: dict[object, str] = {}
        #: The name of each function, class and constant -> a digest of that without what it uses.
        self.parts: dict[str, str] = {}

    def of(self, value: object, own_cells: bool = True, named: bool = True) -> str:
        function = python_function(value)
        assert function is not None
        if function in self._seen:
            return self._seen[function]
        self._seen[function] = f"recursive {function.__qualname__}"
        own = function_text(function, kept_source(value))
        parts = [own.text if named else own.nameless_text]
        cells = () if own_cells and self._carried else function.__code__.co_freevars
        for name, used in used_by(function, own.names):
            text = self._text(used) if name not in cells or is_code(used) else None
            if text is not None:
                parts.append(f"{name}: {text}")
                if not is_code(used):
                    self._is_part(name, text)
            elif name in function.__code__.co_freevars and name not in cells and not is_code(used):
                kind = type(used).__qualname__
                raise UncacheableError(f"{name} of {qualified_name(function)} is a {kind}, which has no stable form")
        counted = [(name, used) for name, used in _defaults(function) if self._carried or is_code(used)]
        fixed = [*(f"default {name}: {self._text(used)}" for name, used in counted), *compiled_in(value)]
        parts += fixed
        self._is_part(function.__qualname__, "\n".join([parts[0], *fixed]))
        for layer in layers(value):
            if not inspect.isfunction(layer) and not of_library(type(layer)):
                parts.append(self.of_class(type(layer)))
        self._seen[function] = digest("\n".join(parts))
        return self._seen[function]

    def of_class(self, cls: type) -> str:
        if cls in self._seen:
            return self._seen[cls]
        self._seen[cls] = f"recursive {cls.__qualname__}"
        parts = [cls.__qualname__, class_text(cls)]
        self._is_part(cls.__qualname__, parts[1])
        parts += [self.of_class(base) for base in cls.__bases__ if not of_library(base)]
        members = cls.__members__ if issubclass(cls, enum.Enum) else {}
        parts += [f"{name}: {self.constant(member)}" for name, member in members.items()]
        for name, value in sorted(vars(cls).items()):
            text = self._attribute_text(name, _plain_function(value)) if name not in members else None
            if text is not None:
                parts.append(f"{name}: {text}")
        self._seen[cls] = digest("\n".join(parts))
        return self._seen[cls]

    def constant(self, value: object) -> str | None:
        """The text of a value that cannot change; None for any other."""
        try:
            return self._constant(value)
        except UncacheableError:
            return None

    def _constant(self, value: object) -> str:
        value = unwrapped(value)
        kind = type(value).__qualname__
        if isinstance(value, enum.Enum):
            return f"{kind}.{value.name}={self.constant(value.value)}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type) and _is_frozen(type(value)):
            return f"{kind}({self._items((one.name, getattr(value, one.name)) for one in dataclasses.fields(value))})"
        if isinstance(value, tuple) and isinstance(names := getattr(value, "_fields", None), tuple):
            return f"{kind}({self._items(zip(map(str, names), value, strict=False))})"
        if isinstance(value, tuple):
            return f"{kind}({', '.join(map(self._constant, value))})"
        if isinstance(value, frozenset):
            return f"{kind}({', '.join(sorted(map(self._constant, sorted(value, key=_name_of_function))))})"
        if isinstance(value, (bytes, complex, range)):
            return repr(value)
        if (function := python_function(value)) is not None:
            text = "" if of_library(function) else self.of(value)
            return repr(("", "function", f"{qualified_name(function)}@{text}"))
        return repr(_scalar_value("", value, dtype_apart=True).encoded)

    def _items(self, items: Iterable[tuple[str, object]]) -> str:
        return ", ".join(f"{name}={self._constant(value)}" for name, value in items)

    def _is_part(self, name: str, text: str) -> None:
        # Two functions of one name count together.
        self.parts[name] = digest(self.parts.get(name, "") + text)

    def _attribute_text(self, name: str, value: object) -> str | None:
        if python_function(value) is not None:
            try:
                return self._text(value)
            except UncacheableError:  # one that a decorator of the class made
                return None
        return None if name.startswith("_") and name.endswith("_") else self._text(value)

    def _text(self, value: object) -> str | None:
        """What stands for something that a function uses; None where that is nothing of its own."""
        function = python_function(value)
        if function is not None:
            return None if of_library(function) else self.of(value)
        if isinstance(value, type):
            return None if of_library(value) else self.of_class(value)
        if isinstance(value, partial):
            given = [*value.args, *(part for pair in sorted(value.keywords.items()) for part in pair)]
            texts = [self._text(part) for part in (value.func, *given)]
            return None if None in texts[1:] else f"partial({', '.join(map(str, texts))})"
        text = self.constant(value)
        cls = type(unwrapped(value))
        return text if text is None or of_library(cls) else f"{text} of {self.of_class(cls)}"


def used_by(function: FunctionType, names: tuple[tuple[str, ...], ...]) -> list[tuple[str, object]]:
    """What a function takes from outside by these names, sorted; nothing of Python's own or of a library."""
    outside: tuple[Mapping[str, object], ...] = (closure_cells(function), function.__globals__)
    found: dict[str, object] = {}
    for name, *attributes in names:
        scope = next((scope for scope in outside if name in scope), None)
        if scope is None:
            continue
        value, path = scope[name], name
        for attribute in attributes:
            if not isinstance(value, ModuleType) or of_library(value):
                break
            value = getattr(value, attribute, None)
            path += f".{attribute}"
        if not isinstance(value, ModuleType):
            found[path] = value
    return sorted(found.items(), key=lambda item: item[0])


def _is_frozen(cls: Any) -> bool:
    return bool(cls.__dataclass_params__.frozen)


def _name_of_function(value: object) -> str:
    function = python_function(value)
    return qualified_name(function) if function is not None else ""


def _plain_function(value: Any) -> object:
    """The function inside what a class holds."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, cached_property):
        return value.func
    return getattr(value, "__func__", value)


def _defaults(function: FunctionType) -> Iterator[tuple[str, object]]:
    """The defaults of a function's parameters: what a factory computed is not in the text."""
    values = function.__defaults__ or ()
    code = function.__code__
    yield from zip(code.co_varnames[code.co_argcount - len(values) : code.co_argcount], values, strict=True)
    yield from sorted((function.__kwdefaults__ or {}).items())


def compiled_in(kernel: object) -> Iterator[str]:
    """Arguments of a kernel's decorators that are compiled in, where they are not the defaults."""
    for layer in layers(kernel):
        given = getattr(getattr(layer, "rewriter", None), "kwargs", None)  # where Triton's interpreter keeps it
        yield from _given(
            (name, given.get(name) if isinstance(given, dict) else getattr(layer, name, None)) for name in _OPTIONS
        )
        options = getattr(layer, "targetoptions", None)  # of Numba's dispatchers
        if isinstance(options, dict):
            if options.get("opt") is False:
                yield "opt=False"
            yield from _given((name, options.get(name)) for name in _OPTIONS_OF_NUMBA)


def _given(options: Iterable[tuple[str, Any]]) -> Iterator[str]:
    for name, value in options:
        if isinstance(value, dict):
            value = value.items()
        if isinstance(value, Iterable) and not isinstance(value, str):
            value = sorted(map(str, value))
        if value and isinstance(value, (bool, str, int, list)):
            yield f"{name}={value!r}"


def stable_value(name: str, value: object, dtype_apart: bool = False, carried: bool = True) -> Value:
    """Encode a value so that it means the same in another process.

    Takes plain scalars, those of numpy too, dtypes of any library, members of an enum, functions with a name and what
    they took from the functions around them, and tuples and lists of these.

    :param dtype_apart: whether ``torch.float16`` and ``tl.float16`` are two values. As the dtype of data they are one.
    :param carried: whether what functions carry in closures and defaults belongs to them.
    :raises UncacheableError: for what has no stable form, such as a tensor, and for a name that UTF-8 cannot encode.
    """
    if type(value) in _PLAIN:  # nearly all are, and a space has hundreds of them
        return plain_value(name, value)
    inner = unwrapped(value)
    if isinstance(inner, (tuple, list)) and not isinstance(inner, enum.Enum):
        parts = [stable_value("", part, dtype_apart, carried).encoded[1:] for part in inner]
        return Value(name, repr(parts), "tuple")
    function = python_function(inner)
    if function is not None:
        return Value(
            name, f"{qualified_name(function)}@{source_digest(inner, own_cells=True, carried=carried)}", "function"
        )
    return _scalar_value(name, value, dtype_apart)


def callable_text(value: object, carried: bool = True) -> str:
    """What a function that is called beside a kernel does, such as a hook: its source and what it carries.

    :param carried: whether what it carries belongs to it: values in closures, the object of a method.
    :raises UncacheableError: when a part of that has no stable form, or source cannot be read.
    """
    if isinstance(value, functools.partial):
        given = (value.args, tuple(sorted(value.keywords.items()))) if carried else ()
        return f"{callable_text(value.func, carried)}({', '.join(map(_text, given))})"
    if inspect.ismethod(value):
        owner = value.__self__
        cls, content = (owner, "") if isinstance(owner, type) else (type(owner), _text(owner) if carried else "")
        return f"{callable_text(value.__func__, carried)} of {content} {class_digest(cls)}"
    if inspect.isbuiltin(value):
        return f"{value.__module__}.{value.__qualname__}"
    own_call = vars(type(value)).get("__call__")
    if python_function(value) is None and inspect.isfunction(own_call):
        return f"{callable_text(own_call, carried)} of {_text(value) if carried else class_digest(type(value))}"
    return str(stable_value("hook", value, carried=carried).value)


def _text(value: object) -> str:
    text = immutable_text(value)
    if text is None:
        raise UncacheableError(f"a {type(value).__qualname__} has no stable form")
    return text


def digest(text: str) -> str:
    """A short digest of text, as fingerprints hold them."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]


class DtypeName(str):
    """The name of a dtype, however its library spells it."""


def _scalar_value(name: str, value: object, dtype_apart: bool = False) -> Value:
    """Encode a plain value so that it means the same in another process; see :func:`stable_value`."""
    value = unwrapped(value)
    if (dtype := _dtype_name(value, dtype_apart)) is not None:
        return Value(name, dtype, "dtype")
    if isinstance(value, enum.Enum):
        return Value(name, f"{type(value).__qualname__}.{value.name}", "enum")
    return plain_value(name, value)


def unwrapped(value: Any) -> object:
    """The value inside a ``tl.constexpr`` or a scalar of numpy."""
    while type(value).__name__ == "constexpr" and hasattr(value, "value"):
        value = value.value
    numpy: Any = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def _dtype_name(value: object, apart: bool) -> str | None:
    """The name of a dtype, of its library too where those are told apart; Triton's own have none."""
    if isinstance(value, type):
        text = value.__name__ if value.__module__ in _DTYPE_CLASSES else None
    else:
        # numpy has a class for each of its dtypes: Float32DType.
        is_dtype = isinstance(value, DtypeName) or type(value).__name__ == "dtype"
        is_dtype = is_dtype or type(value).__module__ == "numpy.dtypes"
        text = str(value).removeprefix("torch.") if is_dtype else None
    if text is None:
        return None
    library = value.__module__ if isinstance(value, type) else type(value).__module__
    if apart and not library.startswith(("triton.", "pytest_autotune.")):
        return f"{library.split('.')[0]}.{text}"
    return _DTYPES.get(text, text)
