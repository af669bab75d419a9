"""Tells the code of libraries from the user's code, and finds the public names that stand for it in a digest.

A digest holds the words of the source. If a word is the name of the function that it stands for, the digest needs
nothing more: ``tl.exp``, or ``exp`` for ``tl.exp``. If the word stands for another function, the digest also holds the
function's public name: ``tl.exp2`` for a word ``exp``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from types import FunctionType, ModuleType

from pytest_autotune.tuners.shared.distributions import Distribution, find_distribution, find_distribution_of_file
from pytest_autotune.tuners.shared.functions import is_library_code, is_standard, python_function
from pytest_autotune.tuners.shared.scalars import unwrapped

_LANGUAGE, _LIBDEVICE = "tl", "libdevice"
#: The functions that both of them have, from Triton 3.4 to 3.9. The list is fixed, because a digest is the same under
#: all versions of Triton.
_IN_BOTH = {"abs", "ceil", "cos", "div_rn", "erf", "exp", "exp2", "floor", "fma", "log", "log2", "rsqrt", "sin", "sqrt"}
_IN_BOTH |= {"sqrt_rn"}
#: Without a module before it, a word stands for the function that public kernels import under the word, so that they
#: keep their digests. These are libdevice's, as in Liger, Unsloth and FlagGems. All others are those of ``tl``.
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
        """Whether the kernel belongs to a known package. Its digest has no names, because it is all of one library."""
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
        """Return the text that stands for a library's function or class in a digest: its public name, or None.

        For a known package it is None if the source has the name. For other distributions it is always the name,
        because digests once held their code.

        :param path: the name in the source; empty if the source has no name for it.
        """
        if isinstance(value, LibraryName):
            return str(value)
        if self.has_root:
            return None
        code = python_function(value) or value
        name = find_public_name(code)
        if isinstance(code, (FunctionType, type)) and not is_library_code(code):
            return name
        if not name or _is_clear(path, value, name):
            return None
        return name


def is_library_callable(value: object) -> bool:
    """Whether a value is a function of a library that is not written in Python: ``torch.relu``, ``numpy.exp``."""
    value = unwrapped(value)
    if not callable(value) or inspect.ismethod(value) or not is_library_code(type(value)):
        return False
    return not hasattr(value, "__origin__")  # an annotation has it


def find_path(value: object, names: Iterable[tuple[str, ...]]) -> str:
    """Return the first of some dotted names that ends in the name of a function or class; empty if there is none."""
    word = find_public_name(python_function(value) or value).rpartition(".")[2]
    for name in names:
        if name[-1] == word:
            return ".".join(name)
    return ""


def find_name_in_module(module: ModuleType, attribute: str, path: str) -> LibraryName | None:
    """Return the public name of a function in a module of Triton's language, unless the source says which module it is.

    :param path: the name in the source, such as ``lib.exp``.
    """
    if attribute not in _IN_BOTH or not module.__name__.startswith("triton.language"):
        return None
    # The interpreter of Triton 3.4 leaves other functions in the module: it is not asked for the function.
    name = f"{_public_module(module.__name__)}.{attribute}"
    if _is_clear(path, None, name):
        return None
    return LibraryName(name)


def find_public_name(code: object) -> str:
    """Return a name of a function or class that stays in new versions of its library; empty if there is none."""
    module, name = getattr(code, "__module__", None), getattr(code, "__name__", None)
    if isinstance(name, str) and module is None:
        return _find_method_name(code, name)
    # The names in typing have none: it depends on the version of Python which of them are classes.
    if not isinstance(module, str) or not isinstance(name, str) or module == "typing":
        return ""
    if isinstance(code, (FunctionType, type)):
        name = code.__qualname__
    return f"{_public_module(module)}.{name}"


def _find_method_name(method: object, name: str) -> str:
    """Return the public name of a method of a class that is not written in Python: ``str.upper``."""
    owner = getattr(method, "__objclass__", None) or getattr(method, "__self__", None)
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
    name = ""
    for module in _list_modules(cls):
        if vars(module).get(cls.__name__) is cls:
            name = f"{module.__name__}.{cls.__name__}"
    return name


def _public_module(module: str) -> str:
    """Return the public name of a module: ``tl`` for ``triton.language.math``, ``numpy`` for ``numpy._core``."""
    parts = module.split(".")
    if parts[:2] == ["triton", "language"]:
        if "extra" in parts:
            return parts[-1]
        return _LANGUAGE
    return ".".join(part for part in parts if not part.startswith("_")) or module.lstrip("_")


def _is_clear(path: str, value: object, name: str) -> bool:
    """Whether a name in the source tells which function of a library it stands for.

    :param name: the public name of the function.
    """
    source_module, _, word = path.rpartition(".")
    source_module = source_module.rpartition(".")[2]
    module, _, own_word = name.rpartition(".")
    if word != own_word:
        # Python makes up a name such as "<lambda>", and a library may have two names for a function.
        return ">" in name or any(vars(library).get(word) is value for library in _list_modules(value))
    if word not in _IN_BOTH or module not in (_LANGUAGE, _LIBDEVICE):
        return True
    if source_module:
        return (module == _LIBDEVICE) == source_module.endswith("device")  # FLA imports it as tldevice
    return (module == _LIBDEVICE) == (word in _MOSTLY_LIBDEVICE)


def _list_modules(value: object) -> Iterator[ModuleType]:
    """Yield the imported modules that may hold a function under its public names: its own, and the packages above."""
    name = getattr(value, "__module__", None) or ""
    while name:
        module = sys.modules.get(name)
        if module is not None:
            yield module
        name = name.rpartition(".")[0]
