"""Source as text that is equal on every Python, unlike the texts of ``ast.dump`` and ``ast.unparse``.

The text has everything that Python's parser sees. The parser does not see the layout: comments, line breaks, quotes,
redundant parentheses, trailing commas. The parser returns a *tree* of *nodes*: each statement and expression is a node.

A *dotted name* such as ``tl.math.exp`` is a tuple of its parts here: ``("tl", "math", "exp")``.

The text of a function or class is read once, because it does not change while the function or class lives.
:mod:`.source_digest` decides which functions and classes a digest holds. :mod:`.module_text` reads whole modules and
classes.
"""

from __future__ import annotations

import ast
import dis
import inspect
import os
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from pytest_autotune.cache.errors import is_from_signal_handler
from pytest_autotune.cache.model import UncacheableError
from pytest_autotune.tuners import STARTED_S
from pytest_autotune.tuners.source.compiled_code import is_in_source, list_lambdas, parse, without_warnings_of_file
from pytest_autotune.tuners.source.functions import qualified_name

#: Fields that follow from other fields, or that describe how a statement is written.
_OMITTED_FIELDS = {"ctx", "kind", "simple", "type_comment", "type_ignores"}
#: The methods that give an object its first attributes.
_CONSTRUCTORS = ("__init__", "__post_init__")
#: The instructions that read a name outside of all functions: those of functions, classes and type parameters.
_READ_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
#: The names that Python gives each module. They say where its file is: ``ROOT = Path(__file__).parent``.
_NAMES_OF_MODULES = ("__name__", "__file__", "__package__", "__path__", "__spec__")
#: The errors of reading and parsing a source.
SOURCE_ERRORS = (OSError, TypeError, SyntaxError, IndexError, tokenize.TokenError)


# The text of a tree.


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
    """Return the text of a node, such as ``Name(id=str 'x')``; see :func:`syntax_text`."""
    fields = []
    for name in sorted(node._fields):
        if name in _OMITTED_FIELDS or name in without:
            continue
        value = getattr(node, name, None)
        if isinstance(value, list):
            value = list(_list_items(node, value))
        # A field that an older Python lacks is empty in a newer one, so empty fields are left out.
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
    """Yield the parts of an f-string, with neighbouring texts joined: ``f"{a}bc"`` gives the value ``a`` and ``"bc"``.

    Versions of Python divide the text between two values at different places.
    """
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


# Functions.


class NoDigestError(UncacheableError):
    """No digest can be made, and a choice without the digest could be wrong: its problem is uncacheable."""


class UnreadableSourceError(UncacheableError):
    """A function has no source, such as a function that ``exec()`` made."""


class UncacheableErrors:
    """A context that turns every error of a digest into a NoDigestError: such an error must not fail the user's test.

    A class is entered faster than a generator of ``contextlib``, and each call of ``tune()`` enters some.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, error_class: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, UncacheableError):
            return
        if not is_from_signal_handler(error):
            raise NoDigestError(f"its source cannot be read: {type(error).__name__}") from error


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

        In the package ``lib``, ``from .ops import add`` gives ``lib.ops`` and ``lib.ops.add``: a name that is taken
        from a package may be a module of it.

        :param package: the package that contains the statement; empty outside any package.
        """
        module = self.module
        if self.level:
            # One dot means the package itself, and each further dot the package above.
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - self.level + 1])
            module = f"{base}.{module}".strip(".")
        modules = [module]
        for name in self.names:
            modules.append(f"{module}.{name}")
        # Python also runs the packages above a module. It has run those above the statement itself before.
        parent = module.rpartition(".")[0]
        while parent and not f"{package}.".startswith(f"{parent}."):
            modules.append(parent)
            parent = parent.rpartition(".")[0]
        return modules


@dataclass(frozen=True)
class Decorator:
    """A decorator of a function: ``@torch.autocast("cuda", dtype=DTYPE)``.

    :param name: the dotted name of the decorator, or of the function that makes it: ``("torch", "autocast")``.
        Empty for another expression, such as ``TABLE[0]``.
    :param text: see :func:`syntax_text`.
    :param names: the dotted names in it, each in its full length: ``("DTYPE",)`` and ``("torch", "autocast")``. See
        :func:`list_names_in_node`.
    """

    name: tuple[str, ...]
    text: str
    names: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class FunctionText:
    """The source of a function, as the parser sees it.

    :param code: the function's code when the source was read.
    :param kept_source: see :func:`read_function`.
    :param text: the text of the definition without its decorators.
    :param nameless_text: the same text without the function's name.
    :param names: the dotted names that do not begin with a variable of the function.
    :param whole_names: the dotted names that are no part of a longer one, also those that begin with a variable.
    :param members: the names that a method takes from its object or class: ``("sub", "area")`` for ``self.sub.area``.
    :param uses_whole_object: whether a method uses its object in another way: ``len(self)``, ``other = self``.
    :param imports: the import statements inside the function.
    :param assigned: the names outside the function that it assigns: ``("COUNT",)`` after ``global COUNT``,
        ``("state", "count")`` for ``state.count += 1``.
    :param stored_in_globals: the dotted names that it stores in such names: ``("other",)`` for ``ops = other`` after
        ``global ops``.
    :param assigned_in_class: the attributes that it assigns of an unnamed class: ``count`` for ``cls.count += 1``.
    :param assigned_in_object: the attributes that a method assigns of its object or class: ``plan`` for
        ``self.plan = plan`` and ``type(self).plan = plan``. A constructor has only those of its class.
    """

    code: CodeType
    kept_source: str
    text: str
    nameless_text: str
    names: tuple[tuple[str, ...], ...]
    whole_names: tuple[tuple[str, ...], ...]
    members: tuple[tuple[str, ...], ...]
    uses_whole_object: bool
    imports: tuple[Import, ...]
    assigned: tuple[tuple[str, ...], ...]
    stored_in_globals: tuple[tuple[str, ...], ...]
    assigned_in_class: tuple[str, ...]
    assigned_in_object: tuple[str, ...]


_function_texts: WeakKeyDictionary[FunctionType, FunctionText] = WeakKeyDictionary()


def read_function(function: FunctionType, kept_source: str = "") -> FunctionText:
    """Return the source of a function.

    The text of ``def f(x): return x`` is
    ``FunctionDef(args=arguments(args=[arg(arg=str 'x')]), body=[Return(value=Name(id=str 'x'))], name=str 'f')``.

    :param kept_source: the source that the maker of a kernel keeps; empty if it keeps none.
    :raises UncacheableError: if the source cannot be read, or its file was edited after the import.
    """
    text = _function_texts.get(function)
    if text is not None and text.code is function.__code__ and text.kept_source == kept_source:
        return text
    if function.__code__.co_name == "<lambda>":
        _check_code_is_of_file(function)
        text = _read_lambda(function.__code__, kept_source, qualified_name(function))
    else:
        text = _build_function_text(function.__code__, kept_source, _parse_definition(function, kept_source))
    _function_texts[function] = text
    return text


def read_decorators(function: FunctionType) -> list[Decorator]:
    """Return the decorators of a function, from the outermost to the innermost. A lambda has none.

    They are no part of :class:`FunctionText`: few digests need the decorators, and those of a kernel may be long.

    :raises UncacheableError: if the source cannot be read, or its file was edited after the import.
    """
    decorators = []
    for decorator in getattr(find_definition(function), "decorator_list", []):
        named_node = decorator
        if isinstance(decorator, ast.Call):
            named_node = decorator.func
        name = _split_dotted_name(named_node)
        decorators.append(Decorator(name, syntax_text(decorator), tuple(list_names_in_node(decorator))))
    return decorators


def has_source(function: FunctionType, kept_source: str = "") -> bool:
    """Whether the source of a function can be read. It cannot if a decorator made the function with ``exec()``.

    :raises NoDigestError: if the file was edited after the import.
    """
    try:
        read_function(function, kept_source)
    except UnreadableSourceError:
        return False
    return True


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
        tuple(_list_whole_names(node)),
        tuple(_list_members(node)),
        _uses_whole_object(node),
        list_imports(node),
        tuple(_list_assigned(code, node)),
        tuple(_list_stored_in_globals(node)),
        tuple(_list_assigned_in_class(node)),
        tuple(_list_assigned_in_object(node)),
    )


def find_definition(function: FunctionType) -> ast.AST:
    """Return the ``def`` of a function, or its lambda, as the parser sees it.

    :raises UncacheableError: if the source cannot be read, or its file was edited after the import.
    """
    if function.__code__.co_name == "<lambda>":
        _check_code_is_of_file(function)
        return _find_lambda(function.__code__, qualified_name(function))
    return _parse_definition(function, "")


def _parse_definition(function: FunctionType, kept_source: str) -> ast.AST:
    """Return the ``def`` of a function; see :func:`read_function` for the parameters and errors."""
    name = qualified_name(function)
    try:
        # The source of the code: for a function, inspect would return the source of its __wrapped__.
        with without_warnings_of_file(function.__code__.co_filename):
            source = kept_source or "".join(inspect.getsourcelines(function.__code__)[0])
        node = parse_first_statement(source)
    except SOURCE_ERRORS:
        raise UnreadableSourceError(f"the source of {name} cannot be read") from None
    if kept_source:
        # The kernel is made of this source, whatever its file holds now.
        return node
    # The source may be that of another function: Python 3.13 takes code of exec() for lines of another "<string>".
    if getattr(node, "name", None) != function.__code__.co_name:
        raise UnreadableSourceError(f"the source of {name} cannot be read")
    _check_code_is_of_file(function)
    check_not_edited(function.__code__, name)
    return node


def _check_code_is_of_file(function: FunctionType) -> None:
    """Check that the code of a function comes from the file that the code names.

    It may come from another text: ``exec(compile(text, path, "exec"))`` may name the path of a template.

    :raises UnreadableSourceError: if the code comes from another text.
    """
    code = function.__code__
    # For speed: nearly always, an import made the function, so its module names the same file.
    if function.__globals__.get("__file__") == code.co_filename:
        return
    if not _is_code_of_file(code, code.co_filename):
        raise UnreadableSourceError(f"the source of {qualified_name(function)} cannot be read")


@lru_cache(maxsize=1024)
def _is_code_of_file(code: CodeType, filename: str) -> bool:
    """Whether the file that some code names has this code.

    :param filename: the file. Only the memo of this function needs it: equal code may name different files.
    """
    try:
        return is_in_source(code, "".join(inspect.findsource(code)[0]))
    except SOURCE_ERRORS:
        return False


def parse_first_statement(source: str) -> ast.stmt:
    """Parse a source that may be indented, and may begin with form feeds."""
    source = source.lstrip("\f")
    if source[:1].isspace():
        block = parse(f"if 1:\n{source}").body[0]
        assert isinstance(block, ast.If)
        return block.body[0]
    return parse(source).body[0]


def check_not_edited(code: CodeType, name: str) -> None:
    """Check that the file of a function was not edited after its import.

    :param code: the code of the function.
    :param name: the name of the function, for the error.
    :raises UncacheableError: if the file now has other code. A digest of that code would not fit the measurements: they
        are of the code that this process has imported.
    """
    if not may_be_edited(code.co_filename):
        return
    if not is_in_source(code, "".join(inspect.findsource(code)[0])):
        raise NoDigestError(f"the source of {name} was edited since it was imported")


def may_be_edited(filename: str) -> bool:
    """Whether a file was written or replaced after this process began."""
    try:
        status = os.stat(filename)
    except OSError:
        return False
    # ``rsync -t`` and ``cp -p`` keep the st_mtime of the file that they copy. They cannot keep st_ctime.
    return max(status.st_mtime, status.st_ctime) > STARTED_S


# Lambdas.


def _find_lambda(code: CodeType, name: str) -> ast.AST:
    """Return the expression of a lambda: among those that begin in its line, the first with the same code.

    :raises UncacheableError: if there is none, or the file was edited after the import.
    """
    try:
        source = "".join(inspect.findsource(code)[0])
        nodes = list_lambdas(code, source)
    except (OSError, TypeError, SyntaxError):
        nodes = []
    if not nodes:
        raise UnreadableSourceError(f"the source of {name} cannot be read")
    check_not_edited(code, name)
    return nodes[0]


# The names in a function.


def list_imports(tree: ast.AST) -> tuple[Import, ...]:
    """Return the import statements in a tree of the parser, in their order."""
    imports: list[Import] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports.extend(Import(alias.name, names=(), level=0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            imports.append(Import(node.module or "", names, node.level))
    return tuple(imports)


def _list_members(node: ast.AST) -> list[tuple[str, ...]]:
    """Return the dotted names that a method takes from its first parameter, ``super()`` and its class, sorted.

    ``self.sub.area(n)`` gives ``("sub", "area")``.
    """
    first = _find_first_parameter(node)
    if not first:
        return []
    owners = _list_owners(first)
    owners_of_attributes = _list_owners_of_attributes(node)
    members: set[tuple[str, ...]] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and part not in owners_of_attributes:
            member = _split_member(part, owners)
            if member:
                members.add(member)
                members.update(_list_calls_of_assignment(part, member))
        elif isinstance(part, ast.Call) and _describe_owner(part.func) in owners:  # self(x)
            members.add(("__call__",))
    return sorted(members)


def _split_member(node: ast.AST, owners: set[str]) -> tuple[str, ...]:
    """Return ``("sub", "area")`` for ``self.sub.area``; an empty tuple if the expression begins with no owner.

    :param owners: see :func:`_list_owners`.
    """
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
        if _describe_owner(node) in owners:
            return tuple(reversed(attributes))
    return ()


def _list_owners_of_attributes(node: ast.AST) -> set[ast.AST]:
    """Return each expression of which another one takes an attribute: ``tl.math`` and ``tl`` in ``tl.math.exp``."""
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def _find_first_parameter(node: ast.AST) -> str:
    """Return the name of a function's first parameter; empty if it has none."""
    arguments = getattr(node, "args", None)
    if not isinstance(arguments, ast.arguments):
        return ""
    parameters = [*arguments.posonlyargs, *arguments.args]
    if not parameters:
        return ""
    return parameters[0].arg


def _list_owners(first: str) -> set[str]:
    """Return the expressions from which a method takes members, by the name of its first parameter."""
    return {first, f"{first}.__class__", f"type({first})", "super()"}


def _uses_whole_object(node: ast.AST) -> bool:
    """Whether a method uses its first parameter in another way than ``self.NAME``, ``type(self).NAME`` and ``self(…)``.

    The method may then reach each member of the class: ``self[0]`` calls ``__getitem__``, ``helper(self)`` any method.
    """
    first = _find_first_parameter(node)
    owner_nodes = _list_owner_nodes(node, first)
    # A call of `cls` makes another object, as `type(self)(n)` does.
    if _is_class_method(node):
        owner_nodes -= {part.func for part in ast.walk(node) if isinstance(part, ast.Call)}
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id == first and part not in owner_nodes:
            return True
    return False


def _is_class_method(node: ast.AST) -> bool:
    """Whether the first parameter of a method is the class."""
    return _has_decorator(node, "classmethod") or getattr(node, "name", "") == "__new__"


def _has_decorator(node: ast.AST, name: str) -> bool:
    """Whether a builtin such as ``staticmethod`` decorates a function."""
    return any(_split_dotted_name(decorator) == (name,) for decorator in getattr(node, "decorator_list", []))


def _list_owner_nodes(node: ast.AST, first: str) -> set[ast.AST]:
    """Return the nodes of each expression from which a method takes a single member.

    For ``type(self).area(n)``, these are the nodes of ``type(self)``. For ``self(n)``, it is the node of ``self``.
    ``type(self)(n)`` has none: it makes another object, whose members the method may reach.

    :param node: the definition of the method.
    :param first: the name of its first parameter, such as ``self``.
    """
    owners = _list_owners(first)
    owner_nodes: set[ast.AST] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and _describe_owner(part.value) in owners:
            owner_nodes.update(ast.walk(part.value))
        elif isinstance(part, ast.Call) and _describe_owner(part.func) == first:
            owner_nodes.update(ast.walk(part.func))
    return owner_nodes


def _describe_owner(node: ast.AST) -> str:
    """Return a dotted name, or a call such as ``type(self)``, as text; empty for other expressions.

    The result is compared with the texts of :func:`_list_owners`.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return ".".join(_split_dotted_name(node))
    function = node.func.id
    # The arguments of super() do not matter: the members of all classes above are read.
    if function == "super" or len(node.args) != 1:
        return f"{function}()"
    return f"{function}({_describe_owner(node.args[0])})"


def _list_outer_names(code: CodeType, node: ast.AST) -> list[tuple[str, ...]]:
    """Return the dotted names in a function that do not begin with one of its variables, sorted."""
    # The value of an outer name that the function assigns does not describe the function, either.
    variables = _list_variables(code, node) | _list_assigned_outer_names(node)
    names: set[tuple[str, ...]] = set()
    for part in _list_parts_without_decorators(node):
        for inner in ast.walk(part):
            name = _split_dotted_name(inner)
            if name and name[0] not in variables:
                names.add(name)
    return sorted(names)


def list_names_in_node(node: ast.stmt | ast.expr) -> list[tuple[str, ...]]:
    """Return the dotted names in a statement or decorator, sorted.

    Three kinds of names are left out: names that begin with a name that the statement assigns, names that begin with a
    name of :data:`_NAMES_OF_MODULES`, such as ``__file__``, and a part of a longer name: ``tl`` of ``tl.exp``.
    """
    variables = _list_stored_names(node).union(_NAMES_OF_MODULES)
    left_out = _list_owners_of_attributes(node)
    names: set[tuple[str, ...]] = set()
    for part in ast.walk(node):
        name = _split_dotted_name(part)
        if name and name[0] not in variables and part not in left_out:
            names.add(name)
    return sorted(names)


def _list_whole_names(node: ast.AST) -> list[tuple[str, ...]]:
    """Return the dotted names in a function that are no part of a longer one, sorted: not ``tl`` of ``tl.exp``.

    The defaults of the function itself are left out: in ``def f(obj=obj)``, the second ``obj`` is no use of the first.
    """
    left_out = _list_owners_of_attributes(node)
    arguments = getattr(node, "args", None)
    if isinstance(arguments, ast.arguments):
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            if default is not None:
                left_out.update(ast.walk(default))
    names: set[tuple[str, ...]] = set()
    for part in _list_parts_without_decorators(node):
        for inner_node in ast.walk(part):
            name = _split_dotted_name(inner_node)
            if name and inner_node not in left_out:
                names.add(name)
                names.update(_list_calls_of_assignment(inner_node, name))
    return sorted(names)


def _list_calls_of_assignment(node: ast.AST, name: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the method that Python calls if a statement assigns or deletes an attribute: ``obj.__setattr__``."""
    if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
        return []
    if isinstance(node.ctx, ast.Store):
        return [(*name[:-1], "__setattr__")]
    return [(*name[:-1], "__delattr__")]


def _list_variables(code: CodeType, node: ast.AST) -> set[str]:
    """Return the names that stand for variables of a function, and of the functions and classes in it.

    The values of these names outside the function do not describe it.

    :param code: the code of the function.
    :param node: its source, which a library may have replaced by the source of another function.
    """
    is_source_of_code = getattr(node, "name", code.co_name) == code.co_name
    if is_source_of_code:
        variables = _list_variables_of_code(code)
    else:
        variables = _list_stored_names(node)
    # A global with the name of a comprehension's variable counts, because it has always been in these digests.
    return variables - _list_comprehension_variables(node)


def _list_variables_of_code(code: CodeType) -> set[str]:
    """Return the names that are only variables of a function, or of the functions, classes and comprehensions in it.

    A name is left out if the function or any code in it reads the name from outside of the function.
    """
    variables: set[str] = set()
    # The names in co_freevars are variables of the functions around this function.
    outer_names = set(code.co_freevars)
    codes = [code]
    # The list grows in the loop.
    for inner_code in codes:
        codes += [constant for constant in inner_code.co_consts if isinstance(constant, CodeType)]
        variables.update(inner_code.co_varnames, inner_code.co_cellvars)
        class_variables: set[str] = set()
        for instruction in dis.get_instructions(inner_code):
            # Only the body of a class has this instruction. It assigns a name of the class.
            if instruction.opname == "STORE_NAME":
                class_variables.add(instruction.argval)
            # In the body of a class, `size = size` reads the outer name first.
            elif instruction.opname in _READ_GLOBAL and instruction.argval not in class_variables:
                outer_names.add(instruction.argval)
        variables |= class_variables
    return variables - outer_names


def _list_stored_names(node: ast.AST) -> set[str]:
    """Return the parameters of a function, and the names that a tree assigns."""
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.arg):
            names.add(part.arg)
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            names.add(part.id)
    return names


def _list_comprehension_variables(node: ast.AST) -> set[str]:
    variables = set()
    for comprehension in ast.walk(node):
        if isinstance(comprehension, ast.comprehension):
            variables |= {part.id for part in ast.walk(comprehension.target) if isinstance(part, ast.Name)}
    return variables


def _list_assigned_outer_names(node: ast.AST) -> set[str]:
    """Return the global and nonlocal names that a function assigns.

    Their values do not describe the function. A function that declares such a name and only reads it depends on the
    value.
    """
    declared: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, (ast.Global, ast.Nonlocal)):
            declared.update(part.names)
    if not declared:  # for speed: few functions declare a name
        return declared
    assigned: set[str] = set()
    for part in ast.walk(node):
        assigned.update(_list_names_that_node_assigns(part))
    return declared & assigned


def _list_names_that_node_assigns(node: ast.AST) -> list[str]:
    """Return the names that a single node of a tree assigns, deletes, defines or imports."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        # "import package.module" assigns the name of the package.
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name is not None:
        return [node.name]
    return []


def _list_assigned(code: CodeType, node: ast.AST) -> list[tuple[str, ...]]:
    """Return the dotted names outside a function that the function assigns, sorted."""
    variables = _list_variables(code, node)
    names: set[tuple[str, ...]] = set()
    for outer_name in _list_assigned_outer_names(node):
        # A function inside this one may assign a variable of this one.
        if outer_name not in variables:
            names.add((outer_name,))
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and not isinstance(part.ctx, ast.Load):
            name = _split_dotted_name(part)
            if name and name[0] not in variables:
                names.add(name)
    return sorted(names)


def _list_stored_in_globals(node: ast.AST) -> list[tuple[str, ...]]:
    """Return the dotted names whose values a function stores in a global: ``other`` of ``ops = other``, sorted."""
    outer_names = _list_assigned_outer_names(node)
    if not outer_names:
        return []
    names = set()
    for part in ast.walk(node):
        if not isinstance(part, ast.Assign):
            continue
        name = _split_dotted_name(part.value)
        targets = {target.id for target in part.targets if isinstance(target, ast.Name)}
        if name and targets & outer_names:
            names.add(name)
    return sorted(names)


def _list_assigned_in_class(node: ast.AST) -> list[str]:
    """Return the attributes that a function assigns of ``cls``, of ``type(…)`` or of ``….__class__``, sorted.

    Only a running program knows which class that is.
    """
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and not isinstance(part.ctx, ast.Load):
            owner = _describe_owner(part.value)
            if owner == "cls" or owner.startswith("type(") or owner.endswith(".__class__"):
                names.add(part.attr)
    return sorted(names)


def _list_assigned_in_object(node: ast.AST) -> list[str]:
    """Return the attributes that a method assigns of its first parameter or its class.

    Those that a constructor assigns of its object are left out: nobody uses the object before.
    A static method has none: its first parameter may be any object, such as ``ctx`` of ``torch.autograd.Function``.
    """
    if _has_decorator(node, "staticmethod"):
        return []
    first = _find_first_parameter(node)
    if not first:
        return []
    owners = _list_owners(first)
    if getattr(node, "name", "") in _CONSTRUCTORS:
        owners.remove(first)
    names = set()
    for part in ast.walk(node):
        if not isinstance(part, ast.Attribute) or isinstance(part.ctx, ast.Load):
            continue
        if _describe_owner(part.value) in owners:
            names.add(part.attr)
    return sorted(names)


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
