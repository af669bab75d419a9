"""Reading the source of functions and classes: as text that the parser sees, and the names that it uses.

Read once for each function and class: it does not change while they live.
"""

from __future__ import annotations

import ast
import inspect
import os
import time
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from weakref import WeakKeyDictionary

from pytest_autotune.cache.model import UnportableError
from pytest_autotune.tuners.shared.source.functions import qualified_name
from pytest_autotune.tuners.shared.source.syntax import syntax_text


@dataclass(frozen=True)
class FunctionText:
    """What was read of a function: its text, and the dotted names in it that are not its own variables."""

    code: CodeType
    kept: str
    text: str
    nameless_text: str
    names: tuple[tuple[str, ...], ...]


_functions: WeakKeyDictionary[FunctionType, FunctionText] = WeakKeyDictionary()
_classes: WeakKeyDictionary[type, str] = WeakKeyDictionary()
#: A file that is older has not been edited since it was imported.
_STARTED = time.time()


def function_text(function: FunctionType, kept: str = "") -> FunctionText:
    """What is read of a function.

    :param kept: its source, where whoever made a kernel of it has kept that.
    :raises UnportableError: when its source cannot be read.
    """
    found = _functions.get(function)
    if found is None or found.code is not function.__code__ or found.kept != kept:
        if function.__name__ == "<lambda>":
            found = _lambda_text(function.__code__, kept, qualified_name(function))
        else:
            found = _text(function.__code__, kept, _definition(function, kept))
        _functions[function] = found
    return found


@lru_cache(maxsize=1024)
def _lambda_text(code: CodeType, kept: str, name: str) -> FunctionText:
    # A lambda among the arguments of a call is a new function each time, of the same code.
    return _text(code, kept, _lambda(code, name))


def _text(code: CodeType, kept: str, node: ast.AST) -> FunctionText:
    text = syntax_text(node, without=("decorator_list",))
    nameless_text = syntax_text(node, without=("decorator_list", "name"))
    return FunctionText(code, kept, text, nameless_text, tuple(_names(code, node)))


def class_text(cls: type) -> str:
    """The text of a class; empty where its source cannot be read."""
    text = _classes.get(cls)
    if text is None:
        try:
            text = syntax_text(_first_statement(inspect.getsource(cls)))
        except (OSError, TypeError, SyntaxError, IndexError, tokenize.TokenError):
            text = ""
        _classes[cls] = text
    return text


def _definition(function: FunctionType, kept: str) -> ast.AST:
    """The ``def`` of a function.

    :raises UnportableError: when its source cannot be read, or was edited since it was imported.
    """
    try:
        # Of the code: of a function, inspect would read what functools.wraps() says it wraps.
        node = _first_statement(kept or "".join(inspect.getsourcelines(function.__code__)[0]))
    except (OSError, TypeError, SyntaxError, IndexError, tokenize.TokenError):
        raise UnportableError(f"the source of {qualified_name(function)} cannot be read") from None
    if kept:
        return node
    # Python 3.13 takes code of exec() for lines of another "<string>".
    if getattr(node, "name", None) != function.__code__.co_name:
        raise UnportableError(f"the source of {qualified_name(function)} cannot be read")
    _check_not_edited(function.__code__, qualified_name(function))
    return node


def _check_not_edited(code: CodeType, name: str) -> None:
    """Compare what is read with what runs, where the file has been written meanwhile.

    :raises UnportableError: when it differs: a digest would be that of code which nobody has measured.
    """
    if any(variable.startswith("@py_") for variable in code.co_varnames):
        return  # pytest has rewritten its assertions
    try:
        written = os.stat(code.co_filename).st_mtime
    except OSError:
        return
    if written > _STARTED and not any(_same_code(code, one) for one in _codes_at(code)):
        raise UnportableError(f"the source of {name} was edited since it was imported")


def _codes_at(code: CodeType) -> Iterator[CodeType]:
    """What the file compiles to now, of that name and on that line."""
    lines, _ = inspect.findsource(code)
    codes = _compiled_file("".join(lines))
    return (one for one in codes if (one.co_name, one.co_firstlineno) == (code.co_name, code.co_firstlineno))


@lru_cache(maxsize=8)
def _compiled_file(source: str) -> tuple[CodeType, ...]:
    try:
        codes: list[CodeType] = [compile(source, "<source>", "exec", dont_inherit=True)]
    except (SyntaxError, ValueError):
        return ()
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
    return tuple(codes)


def _first_statement(source: str) -> ast.stmt:
    if source[:1].isspace():
        block = ast.parse(f"if 1:\n{source}").body[0]
        assert isinstance(block, ast.If)
        return block.body[0]
    return ast.parse(source).body[0]


def _lambda(code: CodeType, name: str) -> ast.AST:
    """The expression of a lambda: of those that begin on its line, one that compiles to the same code.

    :raises UnportableError: when its source cannot be read.
    """
    try:
        lines, _ = inspect.findsource(code)
        tree = _parsed("".join(lines))
    except (OSError, TypeError, SyntaxError):
        raise UnportableError(f"the source of {name} cannot be read") from None
    on_line = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno]
    for node in sorted(on_line, key=lambda node: node.col_offset):
        if len(on_line) == 1 or _same_code(code, _compiled(node, code.co_freevars, tree)):
            _check_not_edited(code, name)
            return node
    raise UnportableError(f"the source of {name} cannot be read")


@lru_cache(maxsize=8)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _compiled(node: ast.Lambda, cells: tuple[str, ...], module: ast.Module) -> CodeType | None:
    """The code of a lambda that takes some names from the function around it.

    :param module: where it stands: a call of what a module imports is compiled in another way.
    """
    around = ast.parse(f"def around({', '.join(cells)}): pass").body[0]
    assert isinstance(around, ast.FunctionDef)
    around.body = [ast.copy_location(ast.Return(node), node)]
    imports = [part for part in module.body if isinstance(part, (ast.Import, ast.ImportFrom))]
    code: CodeType = compile(ast.Module([*imports, around], []), "<lambda>", "exec", dont_inherit=True)
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


def _names(code: CodeType, node: ast.AST) -> list[tuple[str, ...]]:
    """The dotted names in a function that do not begin with a variable of its own, sorted."""
    local = {*code.co_varnames, *code.co_cellvars} - set(code.co_freevars)
    if getattr(node, "name", code.co_name) != code.co_name:  # a source was given for another function's code
        local = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
        local |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
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
