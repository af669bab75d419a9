"""Source as text that is equal on every Python, unlike the texts of ``ast.dump`` and ``ast.unparse``.

The text has everything that Python's parser sees. The parser does not see the layout: comments, line breaks, quotes,
redundant parentheses, trailing commas. Inductor generates source in one layout, and its source is digested by tokens
(:func:`token_text`).

The source of a function or class is read once, because it does not change while the function or class lives.
:mod:`.source_digest` decides which functions and classes a digest holds.
"""

from __future__ import annotations

import ast
import inspect
import io
import linecache
import os
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import UncacheableError
from pytest_autotune.tuners.source.attributes import (
    class_attributes,
    class_module,
    class_name,
    find_owner,
    has_type,
    is_instance,
    module_attributes,
)
from pytest_autotune.tuners.source.functions import python_function, qualified_name

_LAYOUT_WORDS = {tokenize.INDENT: "<indent>", tokenize.DEDENT: "<dedent>", tokenize.NEWLINE: "<newline>"}
_OMITTED_TOKENS = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}
#: Fields that follow from other fields, or that describe how a statement is written.
_OMITTED_FIELDS = {"ctx", "kind", "simple", "type_comment", "type_ignores"}
#: The types of the constants of a module that are compared with its file.
_CONSTANTS: frozenset[type] = frozenset({int, str, bool, float, bytes, type(None)})
#: Statements whose assignments are not those of the module or class around them.
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: The errors of reading and parsing a source.
_SOURCE_ERRORS = (OSError, TypeError, SyntaxError, IndexError, tokenize.TokenError)


# The text of a tree, and of tokens.


def syntax_text(node: ast.AST, without: Iterable[str] = ()) -> str:
    """Return the text of a tree of the parser. Statements that are only a string, such as docstrings, are omitted.

    :param without: the fields of the tree's top that are omitted.
    """
    return _describe_node(node, frozenset(without))


def literal_text(value: object) -> str:
    """Return the text of a value as it stands in :func:`syntax_text` of source that contains the value."""
    try:
        return syntax_text(ast.parse(repr(value), mode="eval").body)
    except (SyntaxError, ValueError):
        return repr(value)


def _describe_value(value: Any) -> str:
    """Return the text of a value that a field of the tree has."""
    if isinstance(value, list):
        return f"[{', '.join(_describe_value(item) for item in value)}]"
    if isinstance(value, ast.AST):
        return _describe_node(value)
    return f"{type(value).__name__} {value!r}"


def _describe_node(node: ast.AST, without: frozenset[str] = frozenset()) -> str:
    fields = []
    for name in sorted(node._fields):
        if name in _OMITTED_FIELDS or name in without:
            continue
        value = getattr(node, name, None)
        if isinstance(value, list):
            value = list(_list_items(node, value))
        # A field that this version of Python lacks is empty in other versions.
        if value is None or value == []:
            continue
        # A nested expression is described here and not by _describe_value: an expression of many operators is a deep
        # tree, and Python allows 1,000 calls inside each other.
        if isinstance(value, ast.AST):
            fields.append(f"{name}={_describe_node(value)}")
        else:
            fields.append(f"{name}={_describe_value(value)}")
    return f"{type(node).__name__}({', '.join(fields)})"


def _list_items(node: ast.AST, items: list[Any]) -> Iterator[Any]:
    """Yield the items of a list field, in the form that all versions of Python have in common."""
    if isinstance(node, ast.JoinedStr):
        yield from _join_texts(items)
        return
    for item in items:
        if isinstance(node, ast.Delete) and isinstance(item, ast.Tuple):  # del (a, b) is del a, b
            yield from item.elts
        elif not _is_string_statement(item):
            yield item


def _is_string_statement(item: Any) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)


def _join_texts(items: list[Any]) -> Iterator[Any]:
    """Yield the parts of an f-string. Versions of Python divide the text between two values at different places."""
    text = ""
    for item in items:
        if isinstance(item, ast.Constant):
            text += str(item.value)
            continue
        if text:
            yield text
            text = ""
        yield item
    if text:
        yield text


def token_text(source: str) -> str:
    """Return the tokens of generated source, each in a line.

    f-strings are omitted, because versions of Python divide them into different tokens.
    """
    words: list[str] = []
    depth = 0  # in f-strings that are several tokens, since Python 3.12
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind.endswith("STRING_START"):
            depth += 1
        is_in_f_string = depth > 0 or (kind == "STRING" and _is_f_string(token.string))
        if not is_in_f_string and token.type not in _OMITTED_TOKENS:
            words.append(_LAYOUT_WORDS.get(token.type, token.string))
        if kind.endswith("STRING_END"):
            depth -= 1
    return "\n".join(words)


def _is_f_string(literal: str) -> bool:
    """Whether the literal of a string has the prefix of an f-string."""
    quote = literal[-1]
    return "f" in literal[: literal.find(quote)].lower()


# Functions.


class NoDigestError(UncacheableError):
    """No digest can be made, and a choice without the digest could be wrong: its problem is uncacheable."""


class UnreadableSourceError(UncacheableError):
    """A function has no source, such as a function that ``exec()`` made."""


@contextmanager
def uncacheable_errors() -> Iterator[None]:
    """Turn every error of a digest into a NoDigestError: such an error must not fail the user's test."""
    try:
        yield
    except UncacheableError:
        raise
    except Exception as error:
        raise NoDigestError(f"no digest of its source: {type(error).__name__}") from error


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
        modules = [module, *(f"{module}.{name}" for name in self.names)]
        # Python also runs the packages above a module. It has run those above the statement itself before.
        parent = module.rpartition(".")[0]
        while parent and not f"{package}.".startswith(f"{parent}."):
            modules.append(parent)
            parent = parent.rpartition(".")[0]
        return modules


@dataclass(frozen=True)
class FunctionText:
    """The source of a function, as the parser sees it.

    :param code: the function's code when the source was read.
    :param kept_source: see :func:`read_function`.
    :param text: the text of the definition without its decorators.
    :param nameless_text: the same text without the function's name.
    :param names: the dotted names that do not begin with a variable of the function.
    :param members: the names that a method takes from its object or class: ``area`` for ``self.area``.
    :param imports: the import statements inside the function.
    :param assigned: the names outside the function that it assigns: ``("COUNT",)`` after ``global COUNT``,
        ``("state", "count")`` for ``state.count += 1``.
    :param assigned_in_class: the attributes that it assigns of an unnamed class: ``count`` for ``cls.count += 1``.
    """

    code: CodeType
    kept_source: str
    text: str
    nameless_text: str
    names: tuple[tuple[str, ...], ...]
    members: tuple[str, ...]
    imports: tuple[Import, ...]
    assigned: tuple[tuple[str, ...], ...]
    assigned_in_class: tuple[str, ...]


_function_texts: WeakKeyDictionary[FunctionType, FunctionText] = WeakKeyDictionary()
_class_texts: WeakKeyDictionary[type, str] = WeakKeyDictionary()
#: If a file is older, it was not edited after its import.
_STARTED_S = HostTime.time()
#: No file has so many lines.
_FAR_LINE = 1 << 24


def read_function(function: FunctionType, kept_source: str = "") -> FunctionText:
    """Return the source of a function.

    :param kept_source: the source that the maker of a kernel keeps; empty if it keeps none.
    :raises UncacheableError: if the source cannot be read, or its file was edited after the import.
    """
    text = _function_texts.get(function)
    if text is not None and text.code is function.__code__ and text.kept_source == kept_source:
        return text
    if function.__name__ == "<lambda>":
        text = _read_lambda(function.__code__, kept_source, qualified_name(function))
    else:
        text = _build_function_text(function.__code__, kept_source, _parse_definition(function, kept_source))
    _function_texts[function] = text
    return text


@lru_cache(maxsize=1024)
def _read_lambda(code: CodeType, kept_source: str, name: str) -> FunctionText:
    # A lambda in the arguments of a call is a new function in each call. Its code is the same.
    return _build_function_text(code, kept_source, _find_lambda(code, name))


def _build_function_text(code: CodeType, kept_source: str, node: ast.AST) -> FunctionText:
    return FunctionText(
        code,
        kept_source,
        syntax_text(node, without=("decorator_list",)),
        syntax_text(node, without=("decorator_list", "name")),
        tuple(_list_outer_names(code, node)),
        _list_members(node),
        list_imports(node),
        tuple(_list_assigned(code, node)),
        tuple(_list_assigned_in_class(node)),
    )


def find_definition(function: FunctionType) -> ast.AST:
    """Return the ``def`` of a function, or its lambda, as the parser sees it.

    :raises UncacheableError: if the source cannot be read, or its file was edited after the import.
    """
    if function.__name__ == "<lambda>":
        return _find_lambda(function.__code__, qualified_name(function))
    return _parse_definition(function, "")


def read_class_text(cls: type) -> str:
    """Return the text of a class; empty if its source cannot be read."""
    # A metaclass of the user may have a hash of its own.
    can_be_kept = find_owner(type(cls), "__hash__") is object
    if can_be_kept and cls in _class_texts:
        return _class_texts[cls]
    try:
        text = syntax_text(_parse_first_statement(_read_class_source(cls)))
    except _SOURCE_ERRORS:
        text = ""
    if can_be_kept:
        _class_texts[cls] = text
    return text


def _read_class_source(cls: type) -> str:
    # inspect asks a class for attributes, so it gets a class of the same name without a metaclass of the user.
    attributes = {"__module__": class_module(cls), "__qualname__": class_name(cls)}
    if "__firstlineno__" in class_attributes(cls):  # since Python 3.13
        attributes["__firstlineno__"] = class_attributes(cls)["__firstlineno__"]
    return inspect.getsource(type(class_name(cls).rpartition(".")[2], (), attributes))


def _parse_definition(function: FunctionType, kept_source: str) -> ast.AST:
    name = qualified_name(function)
    try:
        # The source of the code: for a function, inspect would return the source of its __wrapped__.
        source = kept_source or "".join(inspect.getsourcelines(function.__code__)[0])
        node = _parse_first_statement(source)
    except _SOURCE_ERRORS:
        raise UnreadableSourceError(f"the source of {name} cannot be read") from None
    if kept_source:
        return node
    # Python 3.13 takes code of exec() for lines of another "<string>".
    if getattr(node, "name", None) != function.__code__.co_name:
        raise UnreadableSourceError(f"the source of {name} cannot be read")
    _check_not_edited(function.__code__, name)
    return node


def _parse_first_statement(source: str) -> ast.stmt:
    """Parse a source that may be indented."""
    if source[:1].isspace():
        block = ast.parse(f"if 1:\n{source}").body[0]
        assert isinstance(block, ast.If)
        return block.body[0]
    return ast.parse(source).body[0]


def _check_not_edited(code: CodeType, name: str) -> None:
    """Check that the file of some code was not edited after its import.

    :raises UncacheableError: if the file now has other code: nobody has measured that code.
    """
    if any(variable.startswith("@py_") for variable in code.co_varnames):
        return  # pytest has rewritten the assertions
    try:
        modified_s = os.stat(code.co_filename).st_mtime
    except OSError:
        return
    if modified_s <= _STARTED_S:
        return
    lines, _ = inspect.findsource(code)
    try:
        file_codes = _compile_all("".join(lines))
    except (SyntaxError, ValueError):
        file_codes = ()
    for file_code in file_codes:
        is_at_same_place = file_code.co_name == code.co_name and file_code.co_firstlineno == code.co_firstlineno
        if is_at_same_place and _is_same_code(code, file_code):
            return
    raise NoDigestError(f"the source of {name} was edited since it was imported")


def check_module_not_edited(module: ModuleType) -> None:
    """Check that no function, method or constant of a module was edited in its file after the import.

    :raises NoDigestError: if the file now has other code.
    """
    attributes = module_attributes(module)
    values = list(attributes.values())
    for value in list(values):
        if is_instance(value, type) and class_module(value) == attributes.get("__name__"):
            values += class_attributes(value).values()
    filename = attributes.get("__file__")
    for value in values:
        function = python_function(value)
        if function is not None and function.__code__.co_filename == filename:
            _check_not_edited(function.__code__, str(attributes.get("__name__")))
    if is_instance(filename, str):
        _check_constants_not_edited(attributes, filename)


def _check_constants_not_edited(attributes: Mapping[str, object], filename: str) -> None:
    """Check that each constant of a module has the value that its file has now.

    :param attributes: the attributes of the module.
    :raises NoDigestError: if a constant has another value. Names that the module assigns several times do not count.
    """
    try:
        if os.stat(filename).st_mtime <= _STARTED_S:
            return
        tree = ast.parse(Path(filename).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    names = Counter(node.id for node in ast.walk(tree) if _is_stored_name(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            names.update(node.names)
    for statement in tree.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Constant):
            continue
        for target in statement.targets:
            if not isinstance(target, ast.Name) or names[target.id] > 1:
                continue
            value = attributes.get(target.id)
            if not has_type(value, _CONSTANTS) or literal_text(value) != syntax_text(statement.value):
                name = attributes.get("__name__")
                raise NoDigestError(f"the source of {name} was edited since it was imported: {target.id}")


@lru_cache(maxsize=8)
def _compile_all(source: str | ast.Module) -> tuple[CodeType, ...]:
    """Return the code of a module, and of all functions and classes in it."""
    codes: list[CodeType] = [compile(source, "<source>", "exec", dont_inherit=True)]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return tuple(codes)


def _is_same_code(code: CodeType, other: CodeType) -> bool:
    """Whether two pieces of code do the same, wherever they stand."""
    return (
        code.co_code == other.co_code
        and repr(_list_constants(code)) == repr(_list_constants(other))
        and code.co_names == other.co_names
        and code.co_varnames == other.co_varnames
        and code.co_freevars == other.co_freevars
    )


def _list_constants(code: CodeType) -> list[object]:
    """Return the constants of some code, with the constants of the functions inside it in place of their code."""
    constants: list[object] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_list_constants(constant))
        else:
            constants.append(constant)
    return constants


# Lambdas.


def _find_lambda(code: CodeType, name: str) -> ast.AST:
    """Return the expression of a lambda: among those that begin in its line, the first with the same code.

    :raises UncacheableError: if there is none, or the file was edited after the import.
    """
    try:
        source = "".join(inspect.findsource(code)[0])
        nodes = _list_lambdas(_parse_module(source), code.co_firstlineno)
        if len(nodes) > 1:
            nodes = _select_lambdas(source, code)
    except (OSError, TypeError, SyntaxError):
        nodes = []
    if not nodes:
        raise UnreadableSourceError(f"the source of {name} cannot be read")
    _check_not_edited(code, name)
    return nodes[0]


@lru_cache(maxsize=8)
def _parse_module(source: str) -> ast.Module:
    return ast.parse(source)


def _list_lambdas(tree: ast.Module, line: int) -> list[ast.Lambda]:
    """Return the lambdas that begin in a line, from left to right."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == line]
    return sorted(nodes, key=_column_of)


def _column_of(node: ast.Lambda) -> int:
    return node.col_offset


def _select_lambdas(source: str, code: CodeType) -> list[ast.Lambda]:
    """Return the lambdas in the line of some code that compile to the same code."""
    tree = ast.parse(source)
    nodes = _list_lambdas(tree, code.co_firstlineno)
    # Each lambda gets a line of its own: the line tells which code was compiled from which lambda.
    for number, node in enumerate(nodes):
        node.lineno = _FAR_LINE + number
        node.end_lineno = node.lineno + 1
    code_by_line = {compiled.co_firstlineno: compiled for compiled in _compile_all(tree)}
    return [node for node in nodes if _is_same_code(code, code_by_line[node.lineno])]


# The names in a function.


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
        elif isinstance(part, ast.Call) and _describe_owner(part.func) in owners:  # self(x)
            members.add("__call__")
    return tuple(sorted(members))


def _describe_owner(node: ast.AST) -> str:
    """Return ``self``, ``self.__class__``, ``type(self)`` or ``super()`` as text; empty for other expressions."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "super":  # its arguments do not matter: all classes above are read
            return "super()"
        argument = ""
        if len(node.args) == 1:
            argument = _describe_owner(node.args[0])
        return f"{node.func.id}({argument})"
    return ".".join(_split_dotted_name(node))


def _list_outer_names(code: CodeType, node: ast.AST) -> list[tuple[str, ...]]:
    """Return the dotted names in a function that do not begin with one of its variables, sorted."""
    variables = _list_variables(code, node)
    names: set[tuple[str, ...]] = set()
    for part in _list_parts_without_decorators(node):
        for inner in ast.walk(part):
            name = _split_dotted_name(inner)
            if name and name[0] not in variables:
                names.add(name)
    return sorted(names)


def _list_variables(code: CodeType, node: ast.AST) -> set[str]:
    """Return the names of a function that stand for its own variables, or that it assigns outside of itself."""
    variables = {*code.co_varnames, *code.co_cellvars} - set(code.co_freevars)
    if getattr(node, "name", code.co_name) != code.co_name:
        # The source was given for the code of another function.
        variables = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                variables.add(part.id)
    # Only since Python 3.12, the variables of a comprehension are variables of the function.
    variables -= _list_comprehension_variables(node)
    return variables | _list_assigned_outer_names(node)


def _list_comprehension_variables(node: ast.AST) -> set[str]:
    variables = set()
    for comprehension in ast.walk(node):
        if isinstance(comprehension, ast.comprehension):
            variables |= {part.id for part in ast.walk(comprehension.target) if isinstance(part, ast.Name)}
    return variables


def _list_assigned_outer_names(node: ast.AST) -> set[str]:
    """Return the global and nonlocal names that a function assigns. Their values do not describe its source.

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


def _list_assigned(code: CodeType, node: ast.AST) -> list[tuple[str, ...]]:
    """Return the dotted names outside a function that the function assigns, sorted."""
    variables = _list_variables(code, node)
    names: set[tuple[str, ...]] = {(name,) for name in _list_assigned_outer_names(node) if name not in code.co_freevars}
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and not isinstance(part.ctx, ast.Load):
            name = _split_dotted_name(part)
            if name and name[0] not in variables:
                names.add(name)
    return sorted(names)


def _list_assigned_in_class(node: ast.AST) -> list[str]:
    """Return the attributes that a function assigns of ``cls``, of ``type(…)`` or of ``….__class__``, sorted."""
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and not isinstance(part.ctx, ast.Load):
            owner = _describe_owner(part.value)
            if owner == "cls" or owner.startswith("type(") or owner.endswith(".__class__"):
                names.add(part.attr)
    return sorted(names)


def read_module_assignments(filename: str, name: str) -> str:
    """Return the text of the statements of a module that assign a name, outside of functions; empty if there are none.

    :param filename: the file of the module.
    """
    try:
        tree = _parse_module("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return ""
    return _describe_assignments(tree, name)


def read_class_assignments(cls: type, name: str) -> str:
    """Return the text of the statements in the body of a class that assign an attribute; empty if there are none."""
    try:
        definition = _parse_first_statement(_read_class_source(cls))
    except _SOURCE_ERRORS:
        return ""
    return _describe_assignments(definition, name)


def _describe_assignments(tree: ast.AST, name: str) -> str:
    """Return the text of each statement that assigns a name, in a module or class without its functions and classes."""
    texts = []
    pending = list(ast.iter_child_nodes(tree))
    while pending:
        node = pending.pop(0)
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = [part.id for part in ast.walk(node) if _is_stored_name(part)]
            if name in targets:
                texts.append(syntax_text(node))
        elif isinstance(node, ast.stmt) and not isinstance(node, _SCOPES):
            pending += ast.iter_child_nodes(node)
    return "\n".join(texts)


def _is_stored_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _list_parts_without_decorators(node: ast.AST) -> list[ast.AST]:
    """Return the nodes directly below a definition, without its decorators."""
    parts: list[ast.AST] = []
    for name, value in ast.iter_fields(node):
        if name == "decorator_list":
            continue
        items: Sequence[Any] = value if isinstance(value, list) else [value]
        parts += [item for item in items if isinstance(item, ast.AST)]
    return parts


def _split_dotted_name(node: ast.AST) -> tuple[str, ...]:
    """Return ``("tl", "math", "exp")`` for ``tl.math.exp``; an empty tuple for other expressions."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ()
    return (node.id, *reversed(attributes))
