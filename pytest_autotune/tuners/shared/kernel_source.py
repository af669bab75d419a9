"""A digest of a kernel's source that changes when the kernel does, and only then.

It is equal across Python and Triton versions, under the interpreter and the
compiler, wherever in a file the kernel stands and however it is laid out: it is
made of what the parser sees, without docstrings and the kernel's own decorators,
together with the functions, classes and constants that the kernel uses.
"""

from __future__ import annotations

import ast
import enum
import hashlib
import inspect
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from weakref import WeakKeyDictionary

from pytest_autotune.cache.model import UnportableError
from pytest_autotune.tuners.shared.library_code import of_library
from pytest_autotune.tuners.shared.syntax import syntax_text

DIGEST_LENGTH = 12
#: The type of a value of a fingerprint that holds a digest of source: another rule gets another name.
FORM = "digest.2"
#: What ``triton.jit`` was told that is compiled in.
_OPTIONS = ("noinline", "do_not_specialize", "do_not_specialize_on_alignment", "debug")
_Constant = Callable[[object], str | None]


def digest(text: str) -> str:
    """A short digest of text, as fingerprints hold them."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]


def layers(value: object) -> Iterator[object]:
    """A kernel or helper, then what each of its decorators wraps, down to the Python function."""
    for _ in range(16):  # deeper than any stack of decorators
        if value is None:
            return
        yield value
        if inspect.isfunction(value):
            return
        inner = getattr(value, "fn", None)
        value = getattr(value, "py_func", None) if inner is None else inner  # Triton's name for it, and Numba's


def python_function(value: object) -> FunctionType | None:
    """The Python function inside a kernel, a helper or the wrappers around them."""
    if inspect.isfunction(value):
        return value
    for layer in layers(value):
        if inspect.isfunction(layer):
            return layer
    return None


def qualified_name(function: FunctionType) -> str:
    """``module.qualname`` of a function."""
    return f"{function.__module__}.{function.__qualname__}"


def source_digest(kernel: object, constant: _Constant, *, own_cells: bool = False, named: bool = True) -> str:
    """The digest of a kernel's source with everything of its own that it uses.

    The text of a function is read once. What its names stand for is looked up at
    every call: a global may be another one the next time.

    :param kernel: a Python function, or what its decorators made of it.
    :param constant: the stable text of a constant, or None for what is none.
    :param own_cells: whether plain values in the kernel's own closure belong to it. They do not where kernels
        made by a factory share their source, and what tells them apart is in the key.
    :param named: whether the kernel's own name belongs to it. It does not where a renamed kernel is the same.
    :raises UnportableError: when the source of a function cannot be read.
    """
    return _Digests(constant).of(kernel, own_cells, named)


def class_digest(cls: type, constant: _Constant) -> str:
    """The digest of a class: its text, its methods with what they use, and the values of its attributes.

    :param constant: as for :func:`source_digest`.
    """
    return _Digests(constant).of_class(cls)


def closure_cells(function: FunctionType) -> dict[str, object]:
    """The values that a function has taken from the functions around it, by name."""
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return cells


class _Digests:
    """The digests of one question: each function and class once, however they refer to each other."""

    def __init__(self, constant: _Constant) -> None:
        self._constant = constant
        self._seen: dict[object, str] = {}

    def of(self, value: object, own_cells: bool = True, named: bool = True) -> str:
        function = python_function(value)
        assert function is not None
        if function in self._seen:
            return self._seen[function]
        self._seen[function] = f"recursive {function.__qualname__}"
        read = _read(function)
        parts = [read.text if named else read.nameless_text]
        for name, used in _used(function, read.names):
            text = self._text(used, own_cells or name not in function.__code__.co_freevars)
            if text is not None:
                parts.append(f"{name}: {text}")
        parts += [f"default {name}: {self._text(used)}" for name, used in _defaults(function)]
        parts += _options(value)
        self._seen[function] = digest("\n".join(parts))
        return self._seen[function]

    def of_class(self, cls: type) -> str:
        if cls in self._seen:
            return self._seen[cls]
        self._seen[cls] = f"recursive {cls.__qualname__}"
        parts = [cls.__qualname__, _class_text(cls)]
        parts += [self.of_class(base) for base in cls.__bases__ if not of_library(base)]
        members = cls.__members__ if issubclass(cls, enum.Enum) else {}
        parts += [f"{name}: {self._constant(member)}" for name, member in members.items()]
        for name, value in sorted(vars(cls).items()):
            text = self._attribute_text(name, getattr(value, "__func__", value)) if name not in members else None
            if text is not None:
                parts.append(f"{name}: {text}")
        self._seen[cls] = digest("\n".join(parts))
        return self._seen[cls]

    def _attribute_text(self, name: str, value: object) -> str | None:
        if python_function(value) is not None:
            try:
                return self._text(value)
            except UnportableError:  # one that a decorator of the class made
                return None
        return None if name.startswith("_") and name.endswith("_") else self._text(value)

    def _text(self, value: object, plain: bool = True) -> str | None:
        """What stands for something that a function uses; None where that is nothing of its own."""
        function = python_function(value)
        if function is not None:
            return None if of_library(function) else self.of(value)
        if isinstance(value, type):
            return None if of_library(value) else self.of_class(value)
        return self._constant(value) if plain else None


@dataclass(frozen=True)
class _Read:
    """What was read of a function: its text, and the dotted names in it that are not its own variables."""

    code: CodeType
    text: str
    nameless_text: str
    names: tuple[tuple[str, ...], ...]


_functions: WeakKeyDictionary[FunctionType, _Read] = WeakKeyDictionary()
_classes: WeakKeyDictionary[type, str] = WeakKeyDictionary()


def _read(function: FunctionType) -> _Read:
    read = _functions.get(function)
    if read is None or read.code is not function.__code__:
        node = _lambda(function) if function.__name__ == "<lambda>" else _definition(function)
        text = syntax_text(node, without=("decorator_list",))
        nameless_text = syntax_text(node, without=("decorator_list", "name"))
        read = _Read(function.__code__, text, nameless_text, tuple(_names(function, node)))
        _functions[function] = read
    return read


def _definition(function: FunctionType) -> ast.AST:
    """The ``def`` of a function.

    :raises UnportableError: when its source cannot be read.
    """
    try:
        # Of the code: of a function, inspect would read what functools.wraps() says it wraps.
        lines, _ = inspect.getsourcelines(function.__code__)
        source = "".join(lines)
        node = _first_statement(source)
    except (OSError, TypeError, SyntaxError, IndexError, tokenize.TokenError):
        raise UnportableError(f"the source of {qualified_name(function)} cannot be read") from None
    # Python 3.13 takes code of exec() for lines of another "<string>".
    if getattr(node, "name", None) != function.__code__.co_name:
        raise UnportableError(f"the source of {qualified_name(function)} cannot be read")
    return node


def _first_statement(source: str) -> ast.stmt:
    if source[:1].isspace():
        block = ast.parse(f"if 1:\n{source}").body[0]
        assert isinstance(block, ast.If)
        return block.body[0]
    return ast.parse(source).body[0]


def _lambda(function: FunctionType) -> ast.AST:
    """The expression of a lambda: of those that begin on its line, one that compiles to the same code.

    :raises UnportableError: when its source cannot be read.
    """
    code = function.__code__
    try:
        lines, _ = inspect.findsource(code)
        tree = _parsed("".join(lines))
    except (OSError, TypeError, SyntaxError):
        raise UnportableError(f"the source of {qualified_name(function)} cannot be read") from None
    on_line = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno]
    for node in sorted(on_line, key=lambda node: node.col_offset):
        if len(on_line) == 1 or _same_code(code, _compiled(node, code.co_freevars)):
            return node
    raise UnportableError(f"the source of {qualified_name(function)} cannot be read")


@lru_cache(maxsize=8)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _compiled(node: ast.Lambda, cells: tuple[str, ...]) -> CodeType | None:
    """The code of a lambda that takes some names from the function around it."""
    around = ast.parse(f"def around({', '.join(cells)}): pass").body[0]
    assert isinstance(around, ast.FunctionDef)
    around.body = [ast.copy_location(ast.Return(node), node)]
    code: CodeType = compile(ast.Module([around], []), "<lambda>", "exec", dont_inherit=True)
    for name in ("around", "<lambda>"):
        found = [const for const in code.co_consts if isinstance(const, CodeType) and const.co_name == name]
        if not found:
            return None
        code = found[-1]
    return code


def _same_code(one: CodeType, other: CodeType | None) -> bool:
    def parts(code: CodeType) -> tuple[object, ...]:
        return code.co_code, repr(_plain(code)), code.co_names, code.co_varnames, code.co_freevars

    return other is not None and parts(one) == parts(other)


def _plain(code: CodeType) -> list[object]:
    return [_plain(const) if isinstance(const, CodeType) else const for const in code.co_consts]


def _class_text(cls: type) -> str:
    text = _classes.get(cls)
    if text is None:
        try:
            text = syntax_text(_first_statement(inspect.getsource(cls)))
        except (OSError, TypeError, SyntaxError, IndexError, tokenize.TokenError):
            text = ""
        _classes[cls] = text
    return text


def _names(function: FunctionType, node: ast.AST) -> list[tuple[str, ...]]:
    """The dotted names in a function that do not begin with a variable of its own, sorted."""
    code = function.__code__
    local = {*code.co_varnames, *code.co_cellvars} - set(code.co_freevars)
    # The variables of a comprehension are the function's own since Python 3.12 only.
    targets = [part.target for part in ast.walk(node) if isinstance(part, ast.comprehension)]
    local -= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    # What a function sets itself says nothing of its source.
    local |= {name for part in ast.walk(node) if isinstance(part, (ast.Global, ast.Nonlocal)) for name in part.names}
    names: set[tuple[str, ...]] = set()
    parts = [part for name, part in ast.iter_fields(node) if name != "decorator_list"]
    for part in parts:
        for top in part if isinstance(part, list) else [part]:
            for inner in ast.walk(top) if isinstance(top, ast.AST) else ():
                name = _dotted(inner)
                if name and name[0] not in local:
                    names.add(name)
    return sorted(names)


def _dotted(node: ast.AST) -> tuple[str, ...]:
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return (node.id, *reversed(attributes)) if isinstance(node, ast.Name) else ()


def _used(function: FunctionType, names: tuple[tuple[str, ...], ...]) -> list[tuple[str, object]]:
    """What a function takes from outside, by the name it uses, sorted by name; nothing of Python's own or a library."""
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


def _defaults(function: FunctionType) -> Iterator[tuple[str, object]]:
    """The defaults of a function's parameters: what a factory computed is not in the text."""
    values = function.__defaults__ or ()
    code = function.__code__
    yield from zip(code.co_varnames[code.co_argcount - len(values) : code.co_argcount], values, strict=True)
    yield from sorted((function.__kwdefaults__ or {}).items())


def _options(kernel: object) -> Iterator[str]:
    """What decorators were told that is compiled in, where it is not what they do by themselves."""
    for layer in layers(kernel):
        given = getattr(getattr(layer, "rewriter", None), "kwargs", None)  # where Triton's interpreter keeps it
        for name in _OPTIONS:
            value = given.get(name) if isinstance(given, dict) else getattr(layer, name, None)
            if isinstance(value, (list, tuple, set, frozenset)):
                value = sorted(map(str, value))
            if value and isinstance(value, (bool, str, int, list)):
                yield f"{name}={value!r}"
