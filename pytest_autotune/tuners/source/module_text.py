"""The source of whole modules and classes: their text, the statements that assign a name, and edits after the import.

:mod:`.code_text` reads functions. A digest of a function seldom needs this module.

A digest follows a name at the top of a module to its object. A name that a function imports when it runs has no object
before that. Its module is therefore read and not imported: an import would run code that the test did not launch, and a
digest is the same whether or not the module was imported before. The text of the whole module counts, because text
alone does not say which of its functions an import leads to.
"""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import sys
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TypeGuard
from weakref import WeakKeyDictionary

from pytest_autotune.tuners.source.attributes import (
    class_attributes,
    class_module,
    class_name,
    find_owner,
    has_type,
    is_instance,
    module_attributes,
    read_stored,
    unmangled_name,
)
from pytest_autotune.tuners.source.code_text import (
    SOURCE_ERRORS,
    Import,
    NoDigestError,
    check_not_edited,
    list_imports,
    list_names_in_node,
    literal_text,
    may_be_edited,
    parse_first_statement,
    syntax_text,
)
from pytest_autotune.tuners.source.compiled_code import parse, parse_module, without_warnings_of_file
from pytest_autotune.tuners.source.functions import python_function
from pytest_autotune.tuners.source.libraries import Libraries, find_file, is_library_module

#: The types of the constants of a module that are compared with its file.
_CONSTANTS: frozenset[type] = frozenset({int, str, bool, float, bytes, type(None)})
#: Statements whose assignments are not those of the module or class around them.
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: The fields of a statement that contain other statements.
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
_class_definitions: WeakKeyDictionary[type, ast.stmt | None] = WeakKeyDictionary()
_class_texts: WeakKeyDictionary[type, str] = WeakKeyDictionary()


def check_module_not_edited(module: ModuleType) -> None:
    """Check that no function, method or constant of a module was edited in its file after the import.

    :raises NoDigestError: if the file now has other code.
    """
    attributes = module_attributes(module)
    module_name = attributes.get("__name__")
    filename = attributes.get("__file__")
    values = list(attributes.values())
    for value in attributes.values():
        is_own_class = is_instance(value, type) and class_module(value) == module_name
        if is_own_class:
            values += class_attributes(value).values()
    for value in values:
        function = python_function(value)
        # Other modules may have made the function.
        if function is not None and function.__code__.co_filename == filename:
            check_not_edited(function.__code__, str(module_name))
    if is_instance(filename, str):
        _check_constants_not_edited(attributes, filename)


def _check_constants_not_edited(attributes: Mapping[str, object], filename: str) -> None:
    """Check that each constant of a module has the value that its file has now.

    :param attributes: the attributes of the module.
    :raises NoDigestError: if a constant has another value. Names that the module assigns several times do not count.
    """
    if not may_be_edited(filename):
        return
    try:
        tree = parse(Path(filename).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    assignments = _count_assignments(tree)
    for statement in tree.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Constant):
            continue
        for target in statement.targets:
            if not isinstance(target, ast.Name) or assignments[target.id] > 1:
                continue
            value = attributes.get(target.id)
            if not has_type(value, _CONSTANTS) or literal_text(value) != syntax_text(statement.value):
                module_name = attributes.get("__name__")
                raise NoDigestError(f"the source of {module_name} was edited since it was imported: {target.id}")


def _count_assignments(tree: ast.Module) -> Counter[str]:
    """Return the number of times that a module, or a function in it, assigns each name or declares it global."""
    assignments: Counter[str] = Counter()
    for node in ast.walk(tree):
        if _is_stored_name(node):
            assignments[node.id] += 1
        elif isinstance(node, ast.Global):
            assignments.update(node.names)
    return assignments


def read_class_text(cls: type) -> str:
    """Return the text of a class; empty if its source cannot be read."""
    if _can_be_kept(cls) and cls in _class_texts:
        return _class_texts[cls]
    definition = _read_class_definition(cls)
    text = ""
    if definition is not None:
        text = syntax_text(definition)
    if _can_be_kept(cls):
        _class_texts[cls] = text
    return text


def _read_class_definition(cls: type) -> ast.stmt | None:
    """Return the ``class`` statement of a class; None if its source cannot be read."""
    if _can_be_kept(cls) and cls in _class_definitions:
        return _class_definitions[cls]
    definition = None
    with suppress(*SOURCE_ERRORS):
        definition = parse_first_statement(_read_class_source(cls))
    if _can_be_kept(cls):
        _class_definitions[cls] = definition
    return definition


def _can_be_kept(cls: type) -> bool:
    """Whether a class can be a key of a dict. A metaclass of the user may have a hash of its own."""
    return find_owner(type(cls), "__hash__") is object


def _read_class_source(cls: type) -> str:
    """Return the source of a class; see ``inspect.getsource`` for the errors."""
    # inspect asks a class for attributes, so it gets a class of the same name without a metaclass of the user.
    attributes = {"__module__": class_module(cls), "__qualname__": class_name(cls)}
    if "__firstlineno__" in class_attributes(cls):  # since Python 3.13
        attributes["__firstlineno__"] = class_attributes(cls)["__firstlineno__"]
    with without_warnings_of_file(find_file(sys.modules.get(class_module(cls)))):
        return inspect.getsource(type(class_name(cls).rpartition(".")[2], (), attributes))


@dataclass(frozen=True)
class Assignments:
    """The statements outside of functions by which a module or class assigns a name. An import is such a statement.

    :param text: the text of the statements; empty if there are none.
    :param names: the dotted names in the statements, without the assigned names.
    :param value_names: the same without the names that only stand in annotations.
    :param imported_values: the modules and values that import statements among them brought.
    """

    text: str
    names: tuple[tuple[str, ...], ...]
    value_names: tuple[tuple[str, ...], ...]
    imported_values: tuple[object, ...] = ()


NO_ASSIGNMENTS = Assignments("", (), ())


def read_module_assignments(scope: Mapping[str, object], name: str) -> Assignments:
    """Return the statements of a module that assign a name.

    :param scope: the ``__dict__`` of the module.
    """
    try:
        tree = parse_module("".join(linecache.getlines(str(scope.get("__file__")))))
    except (SyntaxError, ValueError):
        return NO_ASSIGNMENTS
    statements = _list_statements_by_name(tree).get(name, [])
    return _build_assignments(statements, name, str(scope.get("__package__") or ""))


def read_class_assignments(cls: type, name: str) -> Assignments:
    """Return the statements in the body of a class that assign an attribute."""
    can_be_kept = _can_be_kept(cls)
    body = None
    if can_be_kept:
        body = _class_bodies.get(cls)
    if body is None:
        body = _ClassBody(_read_class_definition(cls))
    if can_be_kept:
        _class_bodies[cls] = body
    return body.read_assignments(unmangled_name(name, class_name(cls)))


class _ClassBody:
    """The statements in the body of a class, by the names that they assign.

    :param definition: the ``class`` statement; None if the source cannot be read.
    """

    def __init__(self, definition: ast.stmt | None) -> None:
        self._statements: dict[str, list[ast.stmt]] = {}
        if definition is not None:
            self._statements = _list_statements_by_name(definition)
        self._assignments: dict[str, Assignments] = {}

    def read_assignments(self, name: str) -> Assignments:
        """Return the statements that assign a name."""
        if name not in self._statements:
            return NO_ASSIGNMENTS
        if name not in self._assignments:
            self._assignments[name] = _build_assignments(self._statements[name], name, package="")
        return self._assignments[name]


_class_bodies: WeakKeyDictionary[type, _ClassBody] = WeakKeyDictionary()


def _list_statements_by_name(tree: ast.AST) -> dict[str, list[ast.stmt]]:
    """Return the statements in a module or class that assign each name, also inside ``if``, ``for``, ``with``, ``try``.

    :param tree: the module or class. The functions and classes in it have names of their own.
    """
    statements: dict[str, list[ast.stmt]] = {}
    pending = deque(ast.iter_child_nodes(tree))
    while pending:
        node = pending.popleft()
        if isinstance(node, ast.stmt):
            for name in _list_assigned_names(node):
                statements.setdefault(name, []).append(node)
        if not isinstance(node, (ast.expr, *_SCOPES)):
            pending += ast.iter_child_nodes(node)
    return statements


def _build_assignments(statements: Iterable[ast.stmt], name: str, package: str) -> Assignments:
    """Return the statements of a module or class that assign a name.

    :param package: the package that contains the module.
    """
    texts = []
    names: dict[tuple[str, ...], None] = {}
    value_names: dict[tuple[str, ...], None] = {}
    imported_values: list[object] = []
    for node in statements:
        statement = _without_body(node)
        texts.append(syntax_text(statement))
        names.update(dict.fromkeys(list_names_in_node(statement)))
        value_names.update(dict.fromkeys(list_names_in_node(_without_annotation(statement))))
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imported_values += _list_imported_values(node, name, package)
    return Assignments("\n".join(texts), tuple(names), tuple(value_names), tuple(imported_values))


def _list_assigned_names(node: ast.stmt) -> set[str]:
    """Return the names that a statement itself assigns, defines or imports, without those of statements inside it."""
    if isinstance(node, _SCOPES):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name for alias in node.names}
    return {part.id for part in ast.walk(_without_body(node)) if _is_stored_name(part)}


def _without_body(node: ast.stmt) -> ast.stmt:
    """Return a statement without the statements inside it: ``for``, ``if``, ``while``, ``with``, ``try``, ``match``."""
    if isinstance(node, _SCOPES):
        return node
    head = copy.copy(node)
    for field in _BODIES:
        if hasattr(head, field):
            setattr(head, field, [])
    return head


def _without_annotation(statement: ast.stmt) -> ast.stmt:
    """Return a statement without the annotation of the name that it assigns."""
    if not isinstance(statement, ast.AnnAssign):
        return statement
    bare_statement = copy.copy(statement)
    bare_statement.annotation = ast.Constant(None)
    return bare_statement


def _list_imported_values(statement: ast.Import | ast.ImportFrom, name: str, package: str) -> list[object]:
    """Return the module or value that an import statement brings under a name; none if it was not imported yet."""
    values = []
    for alias in statement.names:
        if (alias.asname or alias.name) != name:
            continue
        if isinstance(statement, ast.Import):
            value: object = sys.modules.get(alias.name)
        else:
            module_name = Import(statement.module or "", (), statement.level).list_modules(package)[0]
            module = sys.modules.get(module_name)
            value = None
            if is_instance(module, ModuleType):
                value = module_attributes(module).get(alias.name)
        if value is not None:
            values.append(value)
    return values


def _is_stored_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


# Modules that a function imports in its own body.


@dataclass(frozen=True)
class _ModuleFile:
    """The source file of a module.

    :param package: the package that relative imports in the file begin at.
    """

    name: str
    package: str
    path: str


def read_imported_modules(imports: Sequence[Import], package: str, libraries: Libraries) -> dict[str, str]:
    """Return the text of each module of the user that import statements lead to, by the name of the module.

    :param package: the package that contains the statements; empty outside any package.
    :param libraries: tells the user's modules from those of libraries.
    :raises NoDigestError: if a module was edited after its import.
    """
    texts: dict[str, str] = {}
    pending = _list_module_files(imports, package)
    while pending:
        file = pending.pop(0)
        is_of_library = is_library_module(file.name, file.path) or libraries.has_file(file.path)
        if file.name in texts or is_of_library:
            continue
        tree = _parse_file(file.path)
        if tree is None:
            continue
        loaded_module = sys.modules.get(file.name)
        if is_instance(loaded_module, ModuleType):
            check_module_not_edited(loaded_module)
        texts[file.name] = syntax_text(tree)
        pending += _list_module_files(list_imports(tree), file.package)
    return texts


def _list_module_files(imports: Sequence[Import], package: str) -> list[_ModuleFile]:
    """Return the source files of the modules that import statements may import."""
    files = []
    for statement in imports:
        for module in statement.list_modules(package):
            file = _find_module_file(module)
            if file is not None:
                files.append(file)
    return files


def _find_module_file(module: str) -> _ModuleFile | None:
    """Return the source file of a module without importing the module; None if it has none."""
    loaded_module = sys.modules.get(module)
    if loaded_module is None:
        spec = _find_spec(module)
    else:
        spec = read_stored(loaded_module, "__spec__")
    # For None, read_stored() returns None.
    path = read_stored(loaded_module, "__file__") or read_stored(spec, "origin")
    if not is_instance(path, str) or not path.endswith(".py"):
        return None
    if Path(path).name == "__init__.py":
        return _ModuleFile(module, module, path)
    return _ModuleFile(module, module.rpartition(".")[0], path)


def _find_spec(module: str) -> ModuleSpec | None:
    """Return where Python would import a module from.

    ``importlib.util.find_spec`` is not used, because it imports the packages above the module.
    """
    parent = module.rpartition(".")[0]
    search_path = None
    if parent:
        search_path = _find_search_path(parent)
        if search_path is None:
            return None
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(module, search_path)
        except Exception:  # a finder of another library: the import would fail in the same way
            continue
        if spec is not None:
            return spec
    return None


def _find_search_path(package: str) -> list[str] | None:
    """Return the folders in which Python looks for a package's modules; None if there is no such package."""
    loaded_package = sys.modules.get(package)
    if loaded_package is not None:
        return _list_if_any(read_stored(loaded_package, "__path__"))
    spec = _find_spec(package)
    if spec is not None and spec.origin is not None:
        return _list_if_any(spec.submodule_search_locations)
    # A package without __init__.py. Python finds its folders only after it has imported the packages above it.
    parent, _, name = package.rpartition(".")
    if parent:
        parent_folders = _find_search_path(parent) or []
    else:
        parent_folders = sys.path
    folders = []
    for parent_folder in parent_folders:
        folder = Path(parent_folder) / name
        if folder.is_dir():
            folders.append(str(folder))
    return folders or None


def _list_if_any(folders: Iterable[str] | None) -> list[str] | None:
    """Return folders as a list; None for None. The ``__path__`` of a package may be another iterable."""
    if folders is None:
        return None
    return list(folders)


def _parse_file(path: str) -> ast.Module | None:
    """Return the tree of a source file; None if it cannot be read."""
    try:
        return parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
