"""A digest of a kernel's source that changes when the kernel does, and only then.

The rule, for every tuner: a digest follows names. It holds what Python's parser sees of a function, without docstrings
and the function's own decorators, so that it is equal on every version of Python, wherever in a file the function
stands and however it is laid out; and of what the function names, and so on from there:

- the functions and classes of the suite, and the public names of what libraries have, where the source says others;
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any, Optional

from pytest_autotune.cache.model import UncacheableError, Value, plain_value
from pytest_autotune.tuners.shared.code_text import class_text, function_text, literal_text
from pytest_autotune.tuners.shared.decorator_options import compiled_in
from pytest_autotune.tuners.shared.distributions import Distribution
from pytest_autotune.tuners.shared.functions import (
    closure_cells,
    is_dsl_wrapper,
    kept_source,
    layers,
    of_library,
    plain_function,
    python_function,
    qualified_name,
)
from pytest_autotune.tuners.shared.imported_modules import read_imported_modules
from pytest_autotune.tuners.shared.libraries import (
    Libraries,
    LibraryName,
    find_name_in_module,
    find_path,
    find_public_name,
    find_shortest_name,
    is_library_callable,
)
from pytest_autotune.tuners.shared.scalars import is_dtype_class, list_triton_items, scalar_value, unwrapped

#: The type of a value of a fingerprint that holds a digest of source: another rule gets another name.
FORM = "digest.2"
DIGEST_LENGTH = 12
#: The source of a kernel with more parts is noted.
MOST_PARTS = 500
_PLAIN = (int, str, bool, float, type(None))


def is_code(value: object) -> bool:
    """Whether a value is a part of the program, which digests of source follow, and not data."""
    # On Python 3.10, Any is no class yet.
    return isinstance(value, (ModuleType, type, type(Optional))) or python_function(value) is not None


def is_library_class(value: object) -> bool:
    """Whether a value is a class of a library, such as a dtype of CuTe."""
    return isinstance(value, type) and Libraries(None).has_code(value)


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
    return read_source(kernel, own_cells=own_cells, named=named, carried=carried).digest


def source_parts(
    kernel: object, *, own_cells: bool = False, named: bool = True, carried: bool = True
) -> dict[str, str]:
    """The functions, classes and constants in :func:`source_digest`, by name, each with a digest of it alone."""
    return read_source(kernel, own_cells=own_cells, named=named, carried=carried).parts


@dataclass(frozen=True)
class DigestedSource:
    """The source of a kernel, with everything of its own that it uses.

    :param parts: the name of each function, class and constant -> a digest of it alone.
    :param libraries: the installed distributions that it names functions of, beside the known packages.
    """

    digest: str
    parts: dict[str, str]
    libraries: frozenset[Distribution] = frozenset()

    def note(self, kernel: str) -> str:
        """Return a line for the summary where so much is followed that a library must be among it; else nothing."""
        if len(self.parts) <= MOST_PARTS:
            return ""
        edits = f"an edit of any of {len(self.parts):,} functions and constants makes its choices stale"
        return f"{kernel}: {edits}: install the libraries among them with pip, so that their code is left out"


def read_source(kernel: object, *, own_cells: bool = False, named: bool = True, carried: bool = True) -> DigestedSource:
    """Return the source of a kernel; see :func:`source_digest` for the parameters and errors."""
    function = python_function(kernel)
    if function is None:
        raise UncacheableError(f"no Python function is found in a {type(kernel).__qualname__}")
    digests = _Digests(carried, function)
    text = digests.of(kernel, own_cells, named)
    return DigestedSource(text, digests.parts, frozenset(digests.libraries.left_out))


def combine_sources(sources: Sequence[DigestedSource]) -> DigestedSource:
    """Return several sources as one, such as those of a kernel and of the functions that launch it."""
    if len(sources) == 1:
        return sources[0]
    parts: dict[str, str] = {}
    libraries: set[Distribution] = set()
    for source in sources:
        parts.update(source.parts)
        libraries |= source.libraries
    return DigestedSource(digest("\n".join(source.digest for source in sources)), parts, frozenset(libraries))


def read_method_source(method: object, cls: type) -> DigestedSource:
    """Return the source of a method, without values in closures and defaults.

    :param cls: the class of the object that the method is called with.
    :raises UncacheableError: when the source of a function cannot be read.
    """
    digests = _Digests(False, python_function(method))
    text = digests.of_method(method, cls)
    return DigestedSource(text, digests.parts, frozenset(digests.libraries.left_out))


def class_digest(cls: type) -> str:
    """The digest of a class: its text, its methods with what they use, and the values of its attributes."""
    return _Digests(True, cls).of_class(cls)


def immutable_text(value: object) -> str | None:
    """The text of a value that cannot change, and of those in it, the same in every process; None for any other."""
    return _Digests(True, None).constant(value)


class _Digests:
    """The digests of one question: each function and class once, however they refer to each other."""

    def __init__(self, carried: bool, root: FunctionType | type | None) -> None:
        self._carried = carried
        self._seen: dict[object, str] = {}
        self.libraries = Libraries(root)
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
        free = function.__code__.co_freevars
        cells = () if own_cells and self._carried else free
        uses = used_by(function, own.names)
        # What the code of a decorator names is its library's, and may be something else in a new version.
        is_of_decorator = bool(uses) and self.libraries.has_file(function.__code__.co_filename)
        for name, used in uses:
            is_named_code = is_code(used)
            if not is_named_code and is_dsl_wrapper(function):
                continue
            if name in cells and not is_named_code:
                continue
            text = None if is_of_decorator and self._is_of_library(used) else self._text(used, name)
            if text is None and name in free and not is_named_code:
                kind = type(used).__qualname__
                raise UncacheableError(f"{name} of {qualified_name(function)} is a {kind}, which has no stable form")
            if text is None:
                text = self._text_with_gaps(used)
            if text is not None:
                parts.append(f"{name}: {text}")
                if not is_named_code or self._is_of_library(used):
                    self._is_part(name, text)
        package = function.__globals__.get("__package__") or ""
        for module, module_text in read_imported_modules(own.imports, package, self.libraries).items():
            parts.append(f"import {module}: {digest(module_text)}")
            self._is_part(module, module_text)
        fixed = [*self._default_texts(function, own.names), *compiled_in(value)]
        parts += fixed
        self._is_part(function.__qualname__, "\n".join([parts[0], *fixed]))
        for layer in layers(value):
            if not inspect.isfunction(layer) and (text := self._class_text(type(layer))) is not None:
                parts.append(text)
        self._seen[function] = digest("\n".join(parts))
        return self._seen[function]

    def _list_members(self, method: object) -> list[str]:
        """Return the names that a method takes from its object, also inside the wrappers of its decorators."""
        members: list[str] = []
        seen: list[FunctionType] = []
        pending = [method]
        while pending:
            value = pending.pop(0)
            function = python_function(value)
            if function is None or function in seen:
                continue
            seen.append(function)
            pending += closure_cells(function).values()
            pending.append(getattr(function, "__wrapped__", None))
            if not self._is_of_library(function) and not self.libraries.has_file(function.__code__.co_filename):
                members += function_text(function, kept_source(value)).members
        return members

    def of_method(self, function: object, cls: type) -> str:
        """Return the digest of a method, with the members of the class that the method reaches through its object."""
        lines = [self.of(function)]
        # The methods above may be reached with super(), so each class that has a member counts.
        seen: set[tuple[type, str]] = set()
        pending = self._list_members(function)
        while pending:
            name = pending.pop(0)
            for base in cls.__mro__:
                attribute = _mangle(name, base)
                if attribute not in vars(base) or (base, name) in seen or self.libraries.has_code(base):
                    continue
                seen.add((base, name))
                member = plain_function(vars(base)[attribute])
                text = self._attribute_text(name, member)
                if text is not None:
                    lines.append(f"{base.__qualname__}.{name}: {text}")
                pending += self._list_members(member)
        return lines[0] if len(lines) == 1 else digest("\n".join(lines))

    def _default_texts(self, function: FunctionType, names: tuple[tuple[str, ...], ...]) -> Iterator[str]:
        for name, used in _defaults(function):
            if self._carried or is_code(used):
                text = self._text(used, find_path(used, names) or name) or self._text_with_gaps(used)
                yield f"default {name}: {text}"

    def _is_of_library(self, value: object) -> bool:
        code = python_function(value) or value
        if isinstance(code, (FunctionType, type)):
            return self.libraries.has_code(code)
        return isinstance(value, LibraryName) or is_library_callable(value)

    def of_class(self, cls: type) -> str:
        if cls in self._seen:
            return self._seen[cls]
        self._seen[cls] = f"recursive {cls.__qualname__}"
        parts = [cls.__qualname__, class_text(cls)]
        self._is_part(cls.__qualname__, parts[1])
        parts += [text for base in cls.__bases__ if (text := self._class_text(base)) is not None]
        metaclass_text = self._class_text(type(cls))
        if metaclass_text is not None:
            parts.append(f"metaclass: {metaclass_text}")
        members = cls.__members__ if issubclass(cls, enum.Enum) else {}
        parts += [f"{name}: {self.constant(member)}" for name, member in members.items()]
        for name, value in sorted(vars(cls).items()):
            text = self._attribute_text(name, plain_function(value)) if name not in members else None
            if text is not None:
                parts.append(f"{name}: {text}")
        for name, field in sorted(vars(cls).get("__dataclass_fields__", {}).items()):
            factory = python_function(field.default_factory)
            if factory is not None and not self._is_of_library(factory):
                parts.append(f"factory {name}: {self._attribute_text(name, factory)}")
        # namedtuple() keeps them nowhere else, and of typing.NamedTuple the text of the class need not have the values.
        for name, value in sorted(vars(cls).get("_field_defaults", {}).items()):
            if literal_text(value) not in parts[1] and (text := self._text(value, "")) is not None:
                parts.append(f"default {name}: {text}")
        self._seen[cls] = digest("\n".join(parts))
        return self._seen[cls]

    def _class_text(self, cls: type) -> str | None:
        """What stands for a class that the source need not name, such as that of a decorator."""
        if of_library(cls):
            return None
        return self.libraries.find_text(cls, "") if self.libraries.has_code(cls) else self.of_class(cls)

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
        if isinstance(value, (bytes, complex, range)) or type(value) in (Decimal, Fraction):
            return repr(value)
        if (items := list_triton_items(value)) is not None:
            return f"{kind}({self._items(items)})"
        if (function := python_function(value)) is not None:
            text = "" if self.libraries.has_code(function) else self.of(value)
            return repr(("", "function", f"{qualified_name(function)}@{text}"))
        return repr(scalar_value("", value, dtype_apart=True).encoded)

    def _items(self, items: Iterable[tuple[str, object]]) -> str:
        return ", ".join(f"{name}={self._constant(value)}" for name, value in items)

    def _is_part(self, name: str, text: str) -> None:
        # Two functions of one name count together.
        self.parts[name] = digest(self.parts.get(name, "") + text)

    def _attribute_text(self, name: str, value: object) -> str | None:
        is_special = name.startswith("_") and name.endswith("_")
        if (function := python_function(value)) is None:
            # torch gives each class of autograd.Function a class of its own.
            if is_special or (isinstance(value, type) and of_library(value)):
                return None
            if hasattr(type(value), "__get__"):  # a descriptor: its class says what the attribute gives
                return self._class_text(type(value))
            return self._text(value, name) or self._text_with_gaps(value)
        if is_special and of_library(function):  # such as what enum puts into the classes of enums
            return None
        try:
            return self._text(value, name)
        except UncacheableError:  # one that a decorator of the class made
            return None

    def _text(self, value: object, path: str) -> str | None:
        """What stands for something that a function uses; None where that is nothing of its own.

        :param path: the name in the source that stands for it; empty where none does.
        """
        if isinstance(value, (MethodType, BuiltinMethodType)):
            text = self._bound_method_text(value, path)
            if text is not None:
                return text
        function = python_function(value)
        if function is not None:
            return self._library_text(value, function, path) if self.libraries.has_code(function) else self.of(value)
        if isinstance(value, type):
            return self.libraries.find_text(value, path) if self.libraries.has_code(value) else self.of_class(value)
        if isinstance(value, partial):
            given = [*value.args, *(part for pair in sorted(value.keywords.items()) for part in pair)]
            texts = [self._text(part, "") for part in (value.func, *given)]
            return None if None in texts[1:] else f"partial({', '.join(map(str, texts))})"
        text = self.constant(value)
        if text is not None:
            return self._with_class(text, value)
        return self.libraries.find_text(value, path) if self._is_of_library(value) else None

    def _bound_method_text(self, method: MethodType | BuiltinMethodType, path: str) -> str | None:
        """Return the text of a method that is bound to an object or a class; None for a function of a library."""
        owner = method.__self__
        cls = owner if isinstance(owner, type) else type(owner)
        if isinstance(owner, ModuleType) or self.libraries.has_code(cls):
            return None
        function: Any = getattr(method, "__func__", method)
        if python_function(function) is None or self._is_of_library(function):
            # A library's method, such as apply() of torch.autograd.Function, may call any method of the user's class.
            return f"{method.__name__} of {self.of_class(cls)}"
        return self.of_method(function, cls)

    def _library_text(self, value: object, function: FunctionType, path: str) -> str | None:
        """Return the name of a library's function; of a wrapper that a decorator made also the functions inside it.

        ``contextlib.contextmanager`` has the user's function in its closure, ``functools.singledispatch`` only as
        ``__wrapped__``.
        """
        text = self.libraries.find_text(value, path)
        wrapped = getattr(function, "__wrapped__", None)
        if of_library(function) and wrapped is None:
            return text
        inner_functions = [used for used in closure_cells(function).values() if python_function(used) is not None]
        texts = [self.of(used) for used in inner_functions if not self._is_of_library(used)]
        if not texts and python_function(wrapped) is not None and not self._is_of_library(wrapped):
            texts.append(self.of(wrapped))
        registry = getattr(function, "registry", None)  # functools.singledispatch: class -> implementation
        if isinstance(registry, Mapping):
            for cls in sorted(registry, key=find_public_name):
                implementation = registry[cls]
                if python_function(implementation) is not None and not self._is_of_library(implementation):
                    texts.append(self.of(implementation))
        if not texts:
            return text
        return f"{text}({', '.join(texts)})"

    def _with_class(self, text: str, value: object) -> str:
        cls = type(unwrapped(value))
        return text if self.libraries.has_code(cls) else f"{text} of {self.of_class(cls)}"

    def _text_with_gaps(self, value: object) -> str | None:
        """What stands for a tuple of which a part may change; None where all of it may, and for what is no tuple."""
        value = unwrapped(value)
        if not isinstance(value, tuple) or self.libraries.has_root:
            return None
        texts = [self._text(item, "") or self._text_with_gaps(item) for item in value]
        if not any(texts):
            return None
        return self._with_class(f"{type(value).__qualname__}({', '.join(text or '...' for text in texts)})", value)


def _mangle(name: str, cls: type) -> str:
    """Return the name under which a class has an attribute: Python mangles a private name such as ``__launch``."""
    if not name.startswith("__") or name.endswith("__"):
        return name
    return f"_{cls.__name__.lstrip('_')}{name}"


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
            if not isinstance(value, ModuleType):
                break
            path += f".{attribute}"
            if of_library(value):
                value = find_name_in_module(value, attribute, path) or value
                break
            value = getattr(value, attribute, None)
        if not isinstance(value, ModuleType):
            found[path] = value
    return sorted(found.items(), key=lambda item: item[0])


def _is_frozen(cls: Any) -> bool:
    return bool(cls.__dataclass_params__.frozen)


def _name_of_function(value: object) -> str:
    function = python_function(value)
    return qualified_name(function) if function is not None else ""


def _defaults(function: FunctionType) -> Iterator[tuple[str, object]]:
    """The defaults of a function's parameters: what a factory computed is not in the text."""
    values = function.__defaults__ or ()
    code = function.__code__
    yield from zip(code.co_varnames[code.co_argcount - len(values) : code.co_argcount], values, strict=True)
    yield from sorted((function.__kwdefaults__ or {}).items())


def stable_value(name: str, value: object, dtype_apart: bool = False, carried: bool = True) -> Value:
    """Encode a value so that it means the same in another process.

    Takes plain scalars, those of numpy too, dtypes of any library, members of an enum, classes, functions with a name
    and what they took from the functions around them, and tuples and lists of these.

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
    if isinstance(inner, type) and not is_dtype_class(inner):
        return _class_value(name, inner)
    return scalar_value(name, value, dtype_apart)


def _class_value(name: str, cls: type) -> Value:
    """Encode a class of a library by its public name, and a class of the suite by its name and its digest.

    :raises UncacheableError: for a class that has no public name in its library.
    """
    if not is_library_class(cls):
        return Value(name, f"{cls.__module__}.{cls.__qualname__}@{class_digest(cls)}", "class")
    public_name = find_shortest_name(cls)
    if not public_name:
        raise UncacheableError(f"{name} is the class {cls.__qualname__}, which its library {cls.__module__} has not")
    return Value(name, public_name, "class")


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
