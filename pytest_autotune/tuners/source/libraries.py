"""Tells the code of libraries from the user's code.

Code belongs to a library if it is a part of Python or of a known package, or if pip installed it. A *distribution* is a
project that pip installed. The folder ``NAME-VERSION.dist-info`` that pip leaves lists the files of the distribution.

Only the folders above a file are read, and each answer is kept. ``importlib.metadata.packages_distributions()`` would
read all installed distributions, which takes 90 ms.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FunctionType, ModuleType
from urllib.parse import unquote, urlsplit

from pytest_autotune.cache.model import Versions
from pytest_autotune.devices import imported_torch
from pytest_autotune.tuners.source.attributes import (
    class_module,
    class_name,
    is_heap_class,
    is_instance,
    module_attributes,
)

#: Digests leave out the functions of these packages: a version of a package is no version of the kernel.
_PACKAGES = {"triton", "torch", "numpy", "cupy", "numba", "pyopencl", "jax", "cutlass", "cuda", "pytest"}
_PACKAGES |= {"jaxlib", "_pytest", "pytest_autotune"}
#: The module of the types that pybind11 adds to each program. They change between versions of pybind11.
_PACKAGES |= {"pybind11_builtins"}
#: A package with one of these names is the library itself, wherever it lies: a suite is tuned with it.
_UNMISTAKABLE = ("triton", "torch", "jax", "jaxlib", "pytest_autotune")
_STANDARD = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib")})
#: The names of the folders that pip installs into.
_SITE_FOLDERS = frozenset({"site-packages", "dist-packages"})
_DIST_INFO = ".dist-info"
_UNKNOWN = "?"
#: The rootdirs of the runs of pytest in this process. A run may be inside another run, and the innermost run counts.
_rootdirs: list[Path] = []


@dataclass(frozen=True, order=True)
class Distribution:
    """An installed project, as pip knows it.

    :param name: the name of its ``dist-info``, or of its top package if it has no ``dist-info``.
    :param version: ``"?"`` if it has no ``dist-info``.
    :param folder: the folder that it was installed in.
    """

    name: str
    version: str
    folder: str


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
        # A function of the kernel's distribution under functools.wraps(), as in is_library_code().
        # Code of exec() has no file, so it belongs to no distribution.
        file_distribution = None
        if type(code) is FunctionType:
            file_distribution = find_distribution_of_file(code.__code__.co_filename)
        if file_distribution is not None and file_distribution == self._distribution:
            return False
        self.left_out.add(distribution)
        return True

    def has_object(self, value: object) -> bool:
        """Whether the class of a value belongs to a library. No distribution is noted: the kernel calls none of it."""
        cls = type(value)
        return is_library_code(cls) or find_distribution(cls) not in (None, self._distribution)

    def has_file(self, filename: str) -> bool:
        """Whether a file belongs to a library."""
        return is_standard(filename) or find_distribution_of_file(filename) not in (None, self._distribution)


# Python's own library and known packages.


def is_library_code(value: FunctionType | type | ModuleType) -> bool:
    """Whether code belongs to Python's own library or a known package.

    A module of the suite does not, even if it is called ``queue.py`` or ``cuda.py``.
    """
    if type(value) is FunctionType:
        filename = value.__code__.co_filename
        if not is_library_module(value.__module__ or "", filename):
            return False
        # functools.wraps() gives a function of the user the module of a library's function. Code of exec() has no file.
        name = value.__globals__.get("__name__")
        if name == value.__module__ or not is_instance(name, str) or filename.startswith("<"):
            return True
        return is_library_module(name, filename)
    if is_instance(value, ModuleType):
        return is_library_module(str(module_attributes(value).get("__name__", "")), find_file(value))
    assert is_instance(value, type)
    if is_made_class(value):
        return False
    module = class_module(value)
    return is_library_module(module, find_file(sys.modules.get(module)))


def is_made_class(cls: type) -> bool:
    """Whether ``types.new_class`` made a class, as before Python 3.12 also ``dataclasses.make_dataclass`` does.

    Such a class has the ``__module__`` of the functions in ``types``, and ``types`` has no class of its name.
    """
    return class_module(cls) == "types" and vars(types).get(class_name(cls)) is not cls and is_heap_class(cls)


def is_library_module(module: str, filename: str) -> bool:
    """Whether a module belongs to Python's own library or a known package; see :func:`is_library_code`."""
    if _is_known(module, filename):
        return True
    # `pip install --target` leaves no folder that is called site-packages.
    return module.partition(".")[0] in _PACKAGES and find_distribution_of_file(filename) is not None


@lru_cache(maxsize=4096)
def _is_known(module: str, filename: str) -> bool:
    """Whether the name and the folder of a module tell that it belongs to Python's own library or a known package."""
    top_package = module.split(".")[0]
    if not filename or not Path(filename).is_file():
        # Only the name is known: the module is built in or frozen, or exec() made its code.
        if top_package in ("test", "__main__"):  # a user's module may have these names of Python's library
            return False
        return top_package in _PACKAGES or top_package in sys.stdlib_module_names
    if is_standard(filename) or top_package in _UNMISTAKABLE:
        return True
    is_in_site_folder = not _SITE_FOLDERS.isdisjoint(Path(filename).resolve().parts)
    return top_package in _PACKAGES and is_in_site_folder


@lru_cache(maxsize=4096)
def is_standard(filename: str) -> bool:
    """Whether a file belongs to Python's own library."""
    path = Path(filename).resolve()
    return _SITE_FOLDERS.isdisjoint(path.parts) and any(str(path).startswith(f"{folder}/") for folder in _STANDARD)


# Installed distributions.


@contextmanager
def rootdir_of_run(rootdir: Path) -> Iterator[None]:
    """Take the files in the rootdir for the user's own code, except those in a virtual environment there."""
    _rootdirs.append(rootdir.resolve())
    try:
        yield
    finally:
        _rootdirs.pop()


def current_rootdir() -> Path | None:
    """Return the rootdir of the innermost run; None outside any run."""
    if not _rootdirs:
        return None
    return _rootdirs[-1]


def find_file(module: ModuleType | None) -> str:
    """Return the file of a module; empty if it has none."""
    if not is_instance(module, ModuleType):
        return ""
    filename = module_attributes(module).get("__file__")
    if not is_instance(filename, str):
        return ""
    return filename


def find_distribution(code: FunctionType | type | ModuleType) -> Distribution | None:
    """Return the installed distribution that a function, class or module belongs to.

    The user's own code belongs to no distribution. Code is the user's own in one of three cases:

    - it lies in the rootdir of the run;
    - its distribution is editable, or was installed from the rootdir;
    - pip did not install it: no ``site-packages`` contains it, and no ``dist-info`` lists it.
    """
    if is_instance(code, ModuleType):
        return find_distribution_of_file(find_file(code))
    if is_instance(code, type):
        return find_distribution_of_file(find_file(sys.modules.get(class_module(code))))
    assert type(code) is FunctionType
    filename = code.__code__.co_filename
    # The file decides first: functools.wraps() gives a function of the user the module of a library's function. Code of
    # exec() has no file.
    has_file = not filename.startswith("<")
    if has_file and find_distribution_of_file(filename) is None:
        return None
    return find_distribution_of_file(find_file(sys.modules.get(code.__module__ or "")))


def find_distribution_of_file(filename: str) -> Distribution | None:
    """Return the installed distribution that a file belongs to; see :func:`find_distribution`."""
    if not filename or filename.startswith("<"):  # "<string>"
        return None
    return _find_distribution_of_file(filename, current_rootdir())


@lru_cache(maxsize=4096)
def _find_distribution_of_file(filename: str, rootdir: Path | None) -> Distribution | None:
    """Return the installed distribution that a file belongs to; see :func:`find_distribution`.

    :param rootdir: the rootdir of the run; None outside any run.
    """
    path = Path(filename).resolve()
    if rootdir is not None and _is_in_rootdir(path, rootdir):
        return None
    # The distribution lists its files relative to the folder that it was installed in, which is above the file.
    for folder in path.parents:
        dist_info = _find_dist_info(folder, path)
        if dist_info is not None:
            if _is_of_project(dist_info, rootdir):
                return None
            return _read_distribution(dist_info)
        # No distribution in a folder above site-packages lists files in site-packages, so the search ends. The file may
        # have been copied into site-packages without pip.
        if folder.name in _SITE_FOLDERS:
            top_package = Path(path.relative_to(folder).parts[0]).stem
            return Distribution(top_package, _UNKNOWN, str(folder))
    return None


def _is_in_rootdir(path: Path, rootdir: Path) -> bool:
    """Whether a file lies in the rootdir, outside of any virtual environment there."""
    if rootdir.name in _SITE_FOLDERS or not path.is_relative_to(rootdir):
        return False
    return _SITE_FOLDERS.isdisjoint(path.relative_to(rootdir).parts)


def _find_dist_info(folder: Path, path: Path) -> Path | None:
    """Return the ``dist-info`` in a folder that lists the package of a file; None if no ``dist-info`` lists it.

    The package is looked up and not the file itself, so that one answer serves all files of the package.
    """
    if not _list_dist_infos(folder):
        return None
    dist_infos = _select_dist_infos(folder, _find_package_file(folder, path))
    if not dist_infos:
        return None
    # Distributions that share a namespace of the old kind each bring its __init__.py: the file itself decides.
    if len(dist_infos) > 1:
        name = path.relative_to(folder).as_posix()
        for dist_info in dist_infos:
            if _has_file(dist_info, name):
                return dist_info
    return dist_infos[0]


def _find_package_file(folder: Path, path: Path) -> str:
    """Return the ``__init__.py`` of a file's package, or the file itself outside any package, relative to a folder."""
    package = folder
    for part in path.relative_to(folder).parts[:-1]:
        package /= part
        if (package / "__init__.py").is_file():
            return (package / "__init__.py").relative_to(folder).as_posix()
    return path.relative_to(folder).as_posix()


@lru_cache(maxsize=1024)
def _list_dist_infos(folder: Path) -> tuple[Path, ...]:
    """Return the ``dist-info`` folders in a folder."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(_DIST_INFO))
    except OSError:  # the folder is in a zip file, or may not be read
        return ()
    return tuple(folder / name for name in names)


@lru_cache(maxsize=1024)
def _select_dist_infos(folder: Path, name: str) -> tuple[Path, ...]:
    """Return the ``dist-info`` folders in a folder that list a file.

    :param name: the file, relative to the folder.
    """
    return tuple(dist_info for dist_info in _list_dist_infos(folder) if _has_file(dist_info, name))


def _has_file(dist_info: Path, name: str) -> bool:
    """Whether the ``RECORD`` of a distribution lists a file."""
    try:
        record = (dist_info / "RECORD").read_bytes()
    except OSError:
        return False
    return f"\n{name},".encode() in b"\n" + record


@lru_cache(maxsize=1024)
def _is_of_project(dist_info: Path, rootdir: Path | None) -> bool:
    """Whether a distribution is editable, or was installed from a folder or file in the rootdir.

    pip writes ``direct_url.json`` for such a distribution: ``{"url": "file:///repo", "dir_info": {"editable": true}}``.
    """
    try:
        source = json.loads((dist_info / "direct_url.json").read_bytes())
        url = urlsplit(source["url"])
        is_editable = source.get("dir_info", {}).get("editable", False)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # pip installed it from an index
        return False
    if is_editable:
        return True
    if url.scheme != "file" or rootdir is None:
        return False
    return Path(unquote(url.path)).resolve().is_relative_to(rootdir)


def _read_distribution(dist_info: Path) -> Distribution:
    name, _, version = dist_info.name.removesuffix(_DIST_INFO).partition("-")
    return Distribution(name.lower().replace("_", "-"), version or _UNKNOWN, str(dist_info.parent))


# Versions.


def find_version(library: str) -> str:
    """Return the version of an imported or installed library, without its local part; ``"?"`` if it is unknown."""
    installed = getattr(sys.modules.get(library), "__version__", None)
    # A test may have put a mock in the library's place.
    if not isinstance(installed, str):
        installed = None
        with suppress(PackageNotFoundError):
            installed = version(library)
    return str(installed or "?").split("+")[0]


def list_versions(*libraries: str, distributions: Iterable[Distribution] = ()) -> Versions:
    """Return the versions of imported libraries: ``triton 3.6.0, torch 2.11.0, cuda 13.0``.

    ``cuda`` or ``hip`` is the version that torch was built for.

    :param distributions: the distributions that a kernel uses besides.
    """
    pairs: list[tuple[str, str]] = []  # a library and its version
    for library in libraries:
        if library in sys.modules:
            pairs.append((library, find_version(library)))
    torch = imported_torch()
    if "torch" in libraries and torch is not None:
        for platform in ("cuda", "hip"):
            platform_version = getattr(torch.version, platform, None)
            if platform_version:
                pairs.append((platform, str(platform_version)))
    pairs += sorted((distribution.name, distribution.version) for distribution in distributions)
    return Versions(tuple(pairs))
