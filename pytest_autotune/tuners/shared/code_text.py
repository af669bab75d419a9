"""What Python's parser sees of source, as text that is equal on every Python: ``ast.dump`` and ``ast.unparse`` are not.

How source is laid out is nothing that it sees: comments, line breaks, quotes, redundant parentheses, trailing commas.
What Inductor generates is laid out in one way, and digested by its tokens (:func:`code_text`).

Source is read once for each function and class: it does not change while they live.
"""

from __future__ import annotations

import ast
import inspect
import io
import os
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import UncacheableError
from pytest_autotune.tuners.shared.functions import qualified_name

_LAYOUT = {tokenize.INDENT: "<indent>", tokenize.DEDENT: "<dedent>", tokenize.NEWLINE: "<newline>"}
_LEFT_OUT = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}
#: Fields that follow from others, or are about how something is written.
_UNSEEN = {"ctx", "kind", "simple", "type_comment", "type_ignores"}


def syntax_text(node: ast.AST, without: Iterable[str] = ()) -> str:
    """The text of a tree of the parser, without statements that are only a string and some fields of its top."""
    return _tree_text(node, frozenset(without))


def literal_text(value: object) -> str:
    """Return the text of a value as it stands in :func:`syntax_text` of source that writes it out."""
    try:
        return syntax_text(ast.parse(repr(value), mode="eval").body)
    except (SyntaxError, ValueError):
        return repr(value)


def _tree_text(value: Any, without: frozenset[str] = frozenset()) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_tree_text(part) for part in value)}]"
    if not isinstance(value, ast.AST):
        return f"{type(value).__name__} {value!r}"
    fields = []
    for name in sorted(value._fields):
        if name in _UNSEEN or name in without:
            continue
        field = getattr(value, name, None)
        if isinstance(field, list):
            field = list(_parts(value, field))
        if field is None or field == []:  # a field that this Python does not have is an empty one of another
            continue
        fields.append(f"{name}={_tree_text(field)}")
    return f"{type(value).__name__}({', '.join(fields)})"


def _parts(node: ast.AST, parts: list[Any]) -> Iterator[Any]:
    if isinstance(node, ast.JoinedStr):
        yield from _joined(parts)
        return
    for part in parts:
        if isinstance(node, ast.Delete) and isinstance(part, ast.Tuple):  # del (a, b) is del a, b
            yield from part.elts
        elif not _is_string_statement(part):
            yield part


def _is_string_statement(part: Any) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)


def _joined(parts: list[Any]) -> Iterator[Any]:
    """The parts of an f-string; Pythons differ in where they divide the text between two values."""
    text = ""
    for part in parts:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        if text:
            yield text
            text = ""
        yield part
    if text:
        yield text


def code_text(source: str) -> str:
    """The tokens of generated Python source, one per line, without f-strings: Pythons differ in their tokens."""
    words: list[str] = []
    inside = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        inside += kind.endswith("STRING_START")
        is_message = inside or (kind == "STRING" and "f" in token.string[: token.string.find(token.string[-1])].lower())
        if not is_message and token.type not in _LEFT_OUT:
            words.append(_LAYOUT.get(token.type, token.string))
        inside -= kind.endswith("STRING_END")
    return "\n".join(words)


@dataclass(frozen=True)
class Import:
    """An import statement.

    :param module: the module as the statement names it; empty in ``from . import name``.
    :param names: the names that are taken from the module; empty in ``import module``.
    :param level: the number of dots before the module.
    """

    module: str
    names: tuple[str, ...]
    level: int

    def list_modules(self, package: str) -> list[str]:
        """Return the absolute names of the modules that the statement may import.

        A name that is taken from a package may be a module of it.

        :param package: the package that contains the statement; empty outside any package.
        """
        module = self.module
        if self.level:
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - self.level + 1])
            module = f"{base}.{module}".strip(".")
        return [module, *(f"{module}.{name}" for name in self.names)]


@dataclass(frozen=True)
class FunctionText:
    """The source of a function, as the parser sees it.

    :param names: the dotted names that do not begin with a variable of the function.
    :param members: the names that a method takes from its object or class: ``area`` for ``self.area``.
    :param imports: the import statements inside the function.
    """

    code: CodeType
    kept: str
    text: str
    nameless_text: str
    names: tuple[tuple[str, ...], ...]
    members: tuple[str, ...]
    imports: tuple[Import, ...]


_functions: WeakKeyDictionary[FunctionType, FunctionText] = WeakKeyDictionary()
_classes: WeakKeyDictionary[type, str] = WeakKeyDictionary()
#: A file that is older has not been edited since it was imported.
_STARTED = HostTime.time()
#: No file has so many lines.
_FAR = 1 << 24


def function_text(function: FunctionType, kept: str = "") -> FunctionText:
    """What is read of a function; ``kept`` is its source, where whoever made a kernel of it has kept that."""
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
    return FunctionText(
        code, kept, text, nameless_text, tuple(_names(code, node)), _list_members(node), list_imports(node)
    )


def list_imports(tree: ast.AST) -> tuple[Import, ...]:
    """Return the import statements in a tree of the parser, in their order."""
    imports: list[Import] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports.extend(Import(alias.name, (), 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            imports.append(Import(node.module or "", names, node.level))
    return tuple(imports)


def _list_members(node: ast.AST) -> tuple[str, ...]:
    """Return the attributes that a method reads of its first parameter, of ``super()`` and of its class, sorted."""
    arguments = getattr(node, "args", None)
    if not isinstance(arguments, ast.arguments):
        return ()
    parameters = [*arguments.posonlyargs, *arguments.args]
    if not parameters:
        return ()
    first = parameters[0].arg
    owners = {first, f"{first}.__class__", f"type({first})", "super()"}
    members = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and _describe_owner(part.value) in owners:
            members.add(part.attr)
    return tuple(sorted(members))


def _describe_owner(node: ast.AST) -> str:
    """Return ``self``, ``self.__class__``, ``type(self)`` or ``super()`` as text; empty for other expressions."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "super":  # its arguments do not matter: all classes above are read
            return "super()"
        argument = _describe_owner(node.args[0]) if len(node.args) == 1 else ""
        return f"{node.func.id}({argument})"
    return ".".join(_dotted(node))


def definition_of(function: FunctionType) -> ast.AST:
    """Return the ``def`` of a function, or its lambda, as the parser sees it.

    :raises UncacheableError: when the source cannot be read.
    """
    if function.__name__ == "<lambda>":
        return _lambda(function.__code__, qualified_name(function))
    return _definition(function, "")


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
    """The ``def`` of a function, if its source can be read, and was not edited since it was imported."""
    try:
        # Of the code: of a function, inspect would read what functools.wraps() says it wraps.
        node = _first_statement(kept or "".join(inspect.getsourcelines(function.__code__)[0]))
    except (OSError, TypeError, SyntaxError, IndexError, tokenize.TokenError):
        raise UncacheableError(f"the source of {qualified_name(function)} cannot be read") from None
    if kept:
        return node
    # Python 3.13 takes code of exec() for lines of another "<string>".
    if getattr(node, "name", None) != function.__code__.co_name:
        raise UncacheableError(f"the source of {qualified_name(function)} cannot be read")
    _check_not_edited(function.__code__, qualified_name(function))
    return node


def _check_not_edited(code: CodeType, name: str) -> None:
    """Refuse a file that was written since and differs from what runs: nobody has measured that code."""
    if any(variable.startswith("@py_") for variable in code.co_varnames):
        return  # pytest has rewritten its assertions
    try:
        written = os.stat(code.co_filename).st_mtime
    except OSError:
        return
    if written <= _STARTED:
        return
    lines, _ = inspect.findsource(code)
    try:
        codes = _codes("".join(lines))
    except (SyntaxError, ValueError):
        codes = ()
    here = code.co_name, code.co_firstlineno
    if not any((one.co_name, one.co_firstlineno) == here and _same_code(code, one) for one in codes):
        raise UncacheableError(f"the source of {name} was edited since it was imported")


@lru_cache(maxsize=8)
def _codes(source: str | ast.Module) -> tuple[CodeType, ...]:
    """All code in what a module compiles to."""
    codes: list[CodeType] = [compile(source, "<source>", "exec", dont_inherit=True)]
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
    """The expression of a lambda: of those that begin on its line, one that compiles to the same code."""
    line = code.co_firstlineno
    try:
        source = "".join(inspect.findsource(code)[0])
        found = _lambdas(_parsed(source), line)
        if len(found) > 1:
            tree = ast.parse(source)
            found = _lambdas(tree, line)
            for number, node in enumerate(found):  # each gets a line of its own, by which its code is known
                node.lineno = _FAR + number
                node.end_lineno = node.lineno + 1
            codes = {one.co_firstlineno: one for one in _codes(tree)}
            found = [node for node in found if _same_code(code, codes[node.lineno])]
    except (OSError, TypeError, SyntaxError):
        found = []
    if not found:
        raise UncacheableError(f"the source of {name} cannot be read")
    _check_not_edited(code, name)
    return found[0]


@lru_cache(maxsize=8)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _lambdas(tree: ast.Module, line: int) -> list[ast.Lambda]:
    """Those that begin on a line, from left to right."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == line]
    return sorted(found, key=lambda node: node.col_offset)


def _same_code(one: CodeType, other: CodeType) -> bool:
    def parts(code: CodeType) -> tuple[object, ...]:
        return code.co_code, repr(_plain(code)), code.co_names, code.co_varnames, code.co_freevars

    return parts(one) == parts(other)


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
    local |= _assigned_outer_names(node)
    names: set[tuple[str, ...]] = set()
    parts = [part for name, part in ast.iter_fields(node) if name != "decorator_list"]
    for part in parts:
        for top in part if isinstance(part, list) else [part]:
            for inner in ast.walk(top) if isinstance(top, ast.AST) else ():
                name = _dotted(inner)
                if name and name[0] not in local:
                    names.add(name)
    return sorted(names)


def _assigned_outer_names(node: ast.AST) -> set[str]:
    """Return the global and nonlocal names that a function assigns: their values say nothing of its source.

    A function that declares such a name and only reads it depends on the value.
    """
    declared: set[str] = set()
    assigned: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, (ast.Global, ast.Nonlocal)):
            declared.update(part.names)
        elif isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            assigned.add(part.id)
    return declared & assigned


def _dotted(node: ast.AST) -> tuple[str, ...]:
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return (node.id, *reversed(attributes)) if isinstance(node, ast.Name) else ()
