"""Which code a digest leaves to its library, and the public name that stands in it in place of that code.

A word that says what it stands for adds nothing to a digest: ``tl.exp``, or ``exp`` for that function. A word that
stands for another function adds its public name: ``exp`` adds ``tl.exp2``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from types import FunctionType, ModuleType

from pytest_autotune.tuners.shared.distributions import Distribution, find_distribution, find_distribution_of_file
from pytest_autotune.tuners.shared.functions import is_standard, of_library, python_function
from pytest_autotune.tuners.shared.scalars import unwrapped

_LANGUAGE, _LIBDEVICE = "tl", "libdevice"
#: What both of them have, from Triton 3.4 to 3.9. Triton is not asked: a digest is the same under all its versions.
_IN_BOTH = {"abs", "ceil", "cos", "div_rn", "erf", "exp", "exp2", "floor", "fma", "log", "log2", "rsqrt", "sin", "sqrt"}
_IN_BOTH |= {"sqrt_rn"}
#: Of these, the word alone says the function that public kernels import under it, so that they keep their digests:
#: libdevice's of these, as in Liger, Unsloth and FlagGems, and else that of ``tl``.
_MOSTLY_LIBDEVICE = {"div_rn", "rsqrt"}


class LibraryName(str):
    """The public name of a function that a kernel reaches through a module of Triton's language."""


class Libraries:
    """The code that one digest leaves out: that of all libraries, but not of the kernel's own distribution.

    :param root: the kernel, or the class, that the digest is of; None for a value.
    """

    def __init__(self, root: FunctionType | type | None) -> None:
        self._root = root
        #: The distributions that were left out, beside Python's own library and the known packages.
        self.left_out: set[Distribution] = set()

    @cached_property
    def has_root(self) -> bool:
        """Whether the kernel is a known package's own: its digest has no names, since all of it is one library's."""
        return self._root is not None and of_library(self._root)

    @cached_property
    def _distribution(self) -> Distribution | None:
        """The kernel's own distribution; None where it is the user's code."""
        return None if self._root is None else find_distribution(self._root)

    def has_code(self, code: FunctionType | type) -> bool:
        """Whether a function or class is a library's."""
        if of_library(code):
            return True
        distribution = find_distribution(code)
        if distribution is None or distribution == self._distribution:
            return False
        self.left_out.add(distribution)
        return True

    def has_file(self, filename: str) -> bool:
        """Whether a file is a library's."""
        return is_standard(filename) or find_distribution_of_file(filename) not in (None, self._distribution)

    def find_text(self, value: object, path: str) -> str | None:
        """Return what a digest holds of a library's function or class: its public name, or None.

        Of the known packages it is None where the source says the name. Of other distributions, whose code once stood
        in the digest, it is always the name.

        :param path: the name in the source, empty where none stands there.
        """
        if isinstance(value, LibraryName):
            return str(value)
        if self.has_root:
            return None
        code = python_function(value) or value
        name = find_public_name(code)
        if isinstance(code, (FunctionType, type)) and not of_library(code):
            return name
        return None if not name or _is_clear(path, value, name) else name


def is_library_callable(value: object) -> bool:
    """Whether a value is a function of a library that is not written in Python: ``torch.relu``, ``numpy.exp``."""
    value = unwrapped(value)
    if not callable(value) or inspect.ismethod(value) or not of_library(type(value)):
        return False
    return not hasattr(value, "__origin__")  # else it is an annotation


def find_path(value: object, names: Iterable[tuple[str, ...]]) -> str:
    """Return which of the dotted names in a source ends in the name of a function or class; empty where none does."""
    word = find_public_name(python_function(value) or value).rpartition(".")[2]
    return next((".".join(path) for path in names if path[-1] == word), "")


def find_name_in_module(module: ModuleType, attribute: str, path: str) -> LibraryName | None:
    """Return the public name of what a module of Triton's language has, where the source does not say which module.

    :param path: the name in the source: ``lib.exp``.
    """
    if attribute not in _IN_BOTH or not module.__name__.startswith("triton.language"):
        return None
    # The interpreter of Triton 3.4 leaves other functions in the module: it is not asked for the function.
    name = f"{_public_module(module.__name__)}.{attribute}"
    return None if _is_clear(path, None, name) else LibraryName(name)


def find_public_name(code: object) -> str:
    """Return a name of a function or class that stays in new versions of its library; empty where there is none."""
    module, name = getattr(code, "__module__", None), getattr(code, "__name__", None)
    # Whether what typing has is a class depends on the version of Python.
    if isinstance(name, str) and module is None:
        # Methods of classes that are not written in Python: str.upper, numpy.add.reduce.
        owner = getattr(code, "__objclass__", None) or getattr(code, "__self__", None)
        owner_name = find_public_name(owner) if owner is not None else ""
        return f"{owner_name}.{name}" if owner_name else ""
    if not isinstance(module, str) or not isinstance(name, str) or module == "typing":
        return ""
    if isinstance(code, (FunctionType, type)):
        name = code.__qualname__
    return f"{_public_module(module)}.{name}"


def find_shortest_name(cls: type) -> str:
    """Return the shortest name under which a class can be imported: ``cutlass.Float32``; empty if there is none.

    The module that defines a class, such as ``cutlass.base_dsl.typing``, may be another one in a new version.
    """
    name = ""
    for module in _modules_of(cls):
        if vars(module).get(cls.__name__) is cls:
            name = f"{module.__name__}.{cls.__name__}"
    return name


def _public_module(module: str) -> str:
    """Return the public name of a module: ``tl`` for ``triton.language.math``, ``numpy`` for ``numpy._core``."""
    parts = module.split(".")
    if parts[:2] == ["triton", "language"]:
        return parts[-1] if "extra" in parts else _LANGUAGE
    return ".".join(part for part in parts if not part.startswith("_")) or module.lstrip("_")


def _is_clear(path: str, value: object, name: str) -> bool:
    """Whether a name in the source says which function of a library it stands for.

    :param name: the public name of the function.
    """
    source_module, _, word = path.rpartition(".")
    source_module = source_module.rpartition(".")[2]
    module, _, own_word = name.rpartition(".")
    if word != own_word:
        # Python makes up a name for a function that has none, and a library may have two names for one function.
        return ">" in name or any(vars(library).get(word) is value for library in _modules_of(value))
    if word not in _IN_BOTH or module not in (_LANGUAGE, _LIBDEVICE):
        return True
    if source_module:
        return (module == _LIBDEVICE) == source_module.endswith("device")  # FLA imports it as tldevice
    return (module == _LIBDEVICE) == (word in _MOSTLY_LIBDEVICE)


def _modules_of(value: object) -> Iterator[ModuleType]:
    """Yield the imported modules that may hold a function under its public names: its own, and the packages above."""
    name = getattr(value, "__module__", None) or ""
    while name:
        if (module := sys.modules.get(name)) is not None:
            yield module
        name = name.rpartition(".")[0]
