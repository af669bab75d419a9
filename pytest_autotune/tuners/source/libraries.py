"""Tells the code of libraries from the user's code, and finds the public names that stand for it in a digest.

A digest holds the words of the source. A word that is the name of its function is clear: ``tl.exp``, or ``exp`` for
``tl.exp``. Then the digest needs nothing more. If a word stands for a function with another name, the digest also holds
the function's public name: ``tl.exp2`` for a word ``exp``.

A digest follows a name at the top of a module to its object. A name that a function imports when it runs has no object
before that. Its module is therefore read and not imported: an import would run code that the test did not launch, and a
digest is the same whether or not the module was imported before. The text of the whole module counts, because text
alone does not say which of its functions an import leads to.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from pytest_autotune.cache.model import Versions
from pytest_autotune.tuners.source.attributes import class_name, is_instance, module_attributes, read_stored
from pytest_autotune.tuners.source.code_text import Import, list_imports, syntax_text
from pytest_autotune.tuners.source.distributions import Distribution, find_distribution, find_distribution_of_file
from pytest_autotune.tuners.source.functions import (
    is_library_code,
    is_library_module,
    is_standard,
    python_function,
    read_attribute,
    unwrapped,
)
from pytest_autotune.tuners.source.module_text import check_module_not_edited

_LANGUAGE, _LIBDEVICE = "tl", "libdevice"
#: The functions that both modules have, from Triton 3.4 to 3.9. The list is fixed, so that digests are the same under
#: all versions of Triton.
_IN_BOTH = {"abs", "ceil", "cos", "div_rn", "erf", "exp", "exp2", "floor", "fma", "log", "log2", "rsqrt", "sin", "sqrt"}
_IN_BOTH |= {"sqrt_rn"}
#: A word without a module before it means the function that most public kernels import under this word, so that their
#: digests need no public name. For these words it is libdevice's (Liger, Unsloth, FlagGems), for all others ``tl``'s.
_MOSTLY_LIBDEVICE = {"div_rn", "rsqrt"}


class LibraryName(str):
    """The public name of a function that a kernel reaches through a module of Triton's language."""


class Libraries:
    """The libraries whose code one digest leaves out: all but the kernel's own distribution.

    :param root: the kernel, or the class, that the digest is for; None for a value.
    """

    def __init__(self, root: FunctionType | type | None) -> None:
        self._root = root
        #: The distributions whose code was left out, besides Python's own library and the known packages.
        self.left_out: set[Distribution] = set()

    @cached_property
    def has_root(self) -> bool:
        """Whether the kernel itself belongs to a known package. Its digest then has no public names."""
        return self._root is not None and is_library_code(self._root)

    @cached_property
    def _distribution(self) -> Distribution | None:
        """The kernel's own distribution; None if it is the user's code."""
        if self._root is None:
            return None
        return find_distribution(self._root)

    def has_code(self, code: FunctionType | type) -> bool:
        """Whether a function or class belongs to a library."""
        if is_library_code(code):
            return True
        distribution = find_distribution(code)
        if distribution is None or distribution == self._distribution:
            return False
        self.left_out.add(distribution)
        return True

    def has_file(self, filename: str) -> bool:
        """Whether a file belongs to a library."""
        return is_standard(filename) or find_distribution_of_file(filename) not in (None, self._distribution)

    def find_text(self, value: object, path: str) -> str | None:
        """Return the public name that stands for a library's function or class in a digest; None if none is needed.

        :param path: the name in the source; empty if the source has no name for the function or class.
        """
        if is_instance(value, LibraryName):
            return str(value)
        if self.has_root:
            # The whole digest is of one library, which may name its functions as it likes.
            return None
        code = python_function(value) or value
        public_name = find_public_name(code)
        if is_instance(code, (FunctionType, type)) and not is_library_code(code):
            # This is an installed distribution outside the list of known packages. Its public name is always in the
            # digest, even where the source has the function's name: two modules may have functions of the same name.
            return public_name
        if not public_name or _is_clear(path, value, public_name):
            return None
        return public_name


def is_library_callable(value: object) -> bool:
    """Whether a value is a function of a library that is not written in Python: ``torch.relu``, ``numpy.exp``."""
    value = unwrapped(value)
    if not callable(value) or is_instance(value, MethodType) or not is_library_code(type(value)):
        return False
    # An annotation such as list[int] can be called, and is no function.
    return read_attribute(value, "__origin__") is None


def find_path(value: object, names: Iterable[tuple[str, ...]]) -> str:
    """Return the first dotted name that ends in the name of a function or class; empty if none does.

    :param names: the dotted names in a source, split: ``("tl", "exp")``.
    """
    word = find_public_name(python_function(value) or value).rpartition(".")[2]
    for name in names:
        if name[-1] == word:
            return ".".join(name)
    return ""


def find_name_in_module(module: ModuleType, attribute: str, path: str) -> LibraryName | None:
    """Return the public name of a function in a module of Triton's language; None if the name in the source is clear.

    :param path: the name in the source, such as ``lib.exp``.
    """
    if attribute not in _IN_BOTH or not _module_name(module).startswith("triton.language"):
        return None
    # The name is built without the function itself. The interpreter of Triton 3.4 leaves other functions in the module.
    name = f"{_public_module(_module_name(module))}.{attribute}"
    if _is_clear(path, value=None, public_name=name):
        return None
    return LibraryName(name)


def find_public_name(code: object) -> str:
    """Return a name of a function or class that stays in new versions of its library; empty if there is none."""
    module, name = read_attribute(code, "__module__"), read_attribute(code, "__name__")
    if is_instance(name, str) and module is None:
        return _find_method_name(code, name)
    # In typing, the version of Python decides which names are classes. A digest must not depend on the version.
    if not is_instance(module, str) or not is_instance(name, str) or module == "typing":
        return ""
    if type(code) is FunctionType:
        name = code.__qualname__
    elif is_instance(code, type):
        name = class_name(code)
    return f"{_public_module(module)}.{name}"


def _find_method_name(method: object, name: str) -> str:
    """Return the public name of a method of a class that is not written in Python: ``str.upper``."""
    owner = read_attribute(method, "__objclass__") or read_attribute(method, "__self__")
    if owner is None:
        return ""
    owner_name = find_public_name(owner)
    if not owner_name:
        return ""
    return f"{owner_name}.{name}"


def find_shortest_name(cls: type) -> str:
    """Return the shortest name under which a class can be imported: ``cutlass.Float32``; empty if there is none.

    The module that defines a class, such as ``cutlass.base_dsl.typing``, may be another one in a new version.
    """
    word = class_name(cls).rpartition(".")[2]
    name = ""
    for module in _list_modules(cls):
        if module_attributes(module).get(word) is cls:
            name = f"{_module_name(module)}.{word}"
    return name


def _public_module(module: str) -> str:
    """Return the public name of a module: ``tl`` for ``triton.language.math``, ``numpy`` for ``numpy._core``."""
    parts = module.split(".")
    if parts[:2] == ["triton", "language"]:
        if "extra" in parts:
            return parts[-1]
        return _LANGUAGE
    return ".".join(part for part in parts if not part.startswith("_")) or module.lstrip("_")


def _is_clear(path: str, value: object, public_name: str) -> bool:
    """Whether a name in the source already tells which function of a library it stands for.

    ====================  ===================  =======================================================
    name in the source    public name          clear?
    ====================  ===================  =======================================================
    ``exp``               ``tl.exp``           yes: without a module, most words mean Triton's language
    ``exp``               ``libdevice.exp``    no
    ``rsqrt``             ``libdevice.rsqrt``  yes: see ``_MOSTLY_LIBDEVICE``
    ``tldevice.exp``      ``libdevice.exp``    yes
    ``tl.exp``            ``libdevice.exp``    no
    ``sigmoid``           ``tl.sigmoid``       yes: no other module has the word
    ``power``             ``tl.exp2``          no, unless the library has the function as ``power``, too
    ====================  ===================  =======================================================

    :param path: the name in the source.
    :param value: the function, for its library's other names; None if there is no function at hand.
    """
    module_in_source, _, word = path.rpartition(".")
    module_in_source = module_in_source.rpartition(".")[2]
    module, _, public_word = public_name.rpartition(".")
    if word != public_word:
        # Python makes up the name "<lambda>". Nothing can have this name in a source.
        if ">" in public_name:
            return True
        return any(module_attributes(library).get(word) is value for library in _list_modules(value))
    if word not in _IN_BOTH or module not in (_LANGUAGE, _LIBDEVICE):
        # Only a function that both of Triton's modules have can be taken for another function.
        return True
    meant_module = _LANGUAGE
    if module_in_source:
        if module_in_source.endswith("device"):  # FLA imports libdevice as tldevice
            meant_module = _LIBDEVICE
    elif word in _MOSTLY_LIBDEVICE:
        meant_module = _LIBDEVICE
    return module == meant_module


def _module_name(module: ModuleType) -> str:
    return str(module_attributes(module).get("__name__", ""))


def _list_modules(value: object) -> Iterator[ModuleType]:
    """Yield the module of a function, and the packages that contain the module, from the inside to the outside."""
    name = read_attribute(value, "__module__")
    while is_instance(name, str) and name:
        module = sys.modules.get(name)
        if is_instance(module, ModuleType):
            yield module
        name = name.rpartition(".")[0]


# Versions.


def find_version(library: str) -> str:
    """Return the version of an imported or installed library, without its local part; ``"?"`` if it is unknown."""
    installed = getattr(sys.modules.get(library), "__version__", None)
    if installed is None:
        with suppress(PackageNotFoundError):
            installed = version(library)
    return str(installed or "?").split("+")[0]


def list_versions(*libraries: str, distributions: Iterable[Distribution] = ()) -> Versions:
    """Return the versions of imported libraries: ``triton 3.6.0, torch 2.11.0, cuda 13.0``.

    ``cuda`` or ``hip`` is the version that torch was built for.

    :param distributions: the distributions that a kernel uses besides.
    """
    pairs = [(library, find_version(library)) for library in libraries if library in sys.modules]
    torch: Any = sys.modules.get("torch")
    if "torch" in libraries and torch is not None:
        for platform in ("cuda", "hip"):
            platform_version = getattr(torch.version, platform, None)
            if platform_version:
                pairs.append((platform, str(platform_version)))
    pairs += sorted((distribution.name, distribution.version) for distribution in distributions)
    return Versions(tuple(pairs))


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
        if file.name in texts or is_library_module(file.name, file.path) or libraries.has_file(file.path):
            continue
        tree = _parse_file(file.path)
        if tree is None:
            continue
        loaded = sys.modules.get(file.name)
        if is_instance(loaded, ModuleType):
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
        spec = read_stored(loaded, "__spec__")
    path = read_stored(loaded, "__file__") or read_stored(spec, "origin")
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
    """Return the folders of a package's modules; None if there is no such package."""
    loaded = sys.modules.get(package)
    if loaded is not None:
        return _list_if_any(read_stored(loaded, "__path__"))
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
