"""Reads the modules that a function imports inside its own body, and the modules that these import, as text.

A digest follows a name at the top of a module to its object. A name that a function imports when it runs has no object
before that. The module is therefore read and not imported: an import would run code that the test did not launch, and
a digest is the same whether or not the module was imported before.

The text of the whole module counts, because text alone does not say which of its functions an import leads to. Modules
of libraries are left out, as in :mod:`.libraries`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from pytest_autotune.tuners.shared.code_text import Import, check_module_not_edited, list_imports, syntax_text
from pytest_autotune.tuners.shared.functions import is_library_module
from pytest_autotune.tuners.shared.libraries import Libraries


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
        if file.name in texts or is_library_module(file.name, file.path) or libraries.has_file(file.path):
            continue
        tree = _parse_file(file.path)
        if tree is None:
            continue
        loaded = sys.modules.get(file.name)
        if isinstance(loaded, ModuleType):
            check_module_not_edited(loaded)
        texts[file.name] = syntax_text(tree)
        pending += _list_module_files(list_imports(tree), file.package)
    return texts


def _list_module_files(imports: Sequence[Import], package: str) -> list[_ModuleFile]:
    files = []
    for statement in imports:
        for module in statement.list_modules(package):
            file = _find_module_file(module)
            if file is not None:
                files.append(file)
    return files


def _find_module_file(module: str) -> _ModuleFile | None:
    """Return the source file of a module without importing the module; None if it has none."""
    loaded = sys.modules.get(module)
    if loaded is None:
        spec = _find_spec(module)
    else:
        spec = getattr(loaded, "__spec__", None)
    path = getattr(loaded, "__file__", None) or getattr(spec, "origin", None)
    if not isinstance(path, str) or not path.endswith(".py"):
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
    """Return the folders of a package's modules; None if there is no such package."""
    loaded = sys.modules.get(package)
    if loaded is not None:
        return _list_if_any(getattr(loaded, "__path__", None))
    spec = _find_spec(package)
    if spec is not None and spec.origin is not None:
        return _list_if_any(spec.submodule_search_locations)
    # A package without __init__.py. Python finds its folders only after it has imported the packages above it.
    parent, _, name = package.rpartition(".")
    parent_folders: list[str] | None = sys.path
    if parent:
        parent_folders = _find_search_path(parent)
    folders = []
    for parent_folder in parent_folders or ():
        folder = Path(parent_folder) / name
        if folder.is_dir():
            folders.append(str(folder))
    return folders or None


def _list_if_any(folders: Iterable[str] | None) -> list[str] | None:
    if folders is None:
        return None
    return list(folders)


def _parse_file(path: str) -> ast.Module | None:
    try:
        return ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
