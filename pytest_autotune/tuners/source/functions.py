"""The Python function inside a kernel: the layers of its decorators, its name, its closure, and whose code it is.

:mod:`.distributions` finds the installed package that a file belongs to.
"""

from __future__ import annotations

import sys
import sysconfig
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache, partialmethod, singledispatchmethod
from pathlib import Path
from types import FunctionType, MappingProxyType, ModuleType, SimpleNamespace
from typing import Any, Optional

from pytest_autotune.tuners.source.attributes import (
    MISSING,
    class_attributes,
    class_module,
    class_name,
    find_owner,
    has_type,
    is_heap_class,
    is_instance,
    module_attributes,
    own_attributes,
    read_stored,
)
from pytest_autotune.tuners.source.distributions import find_distribution_of_file, find_file

#: Digests leave out the functions of these packages: a version of a package is no version of the kernel.
_PACKAGES = {"triton", "torch", "numpy", "cupy", "numba", "pyopencl", "jax", "cutlass", "cuda", "pytest"}
_PACKAGES |= {"jaxlib", "_pytest", "pytest_autotune"}
#: A package with one of these names is the library itself, wherever it lies: a suite is tuned with it.
_UNMISTAKABLE = ("triton", "torch", "jax", "jaxlib", "pytest_autotune")
_SCALARS: frozenset[type] = frozenset({int, str, bool, float, type(None)})
_STANDARD = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib")})
_INSTALLED = {"site-packages", "dist-packages"}
#: The arguments of ``triton.jit`` that are compiled in.
_TRITON_OPTIONS = ("noinline", "do_not_specialize", "do_not_specialize_on_alignment", "debug")
#: The arguments of Numba's decorators that are compiled in.
_NUMBA_OPTIONS = (
    "boundscheck",
    "debug",
    "error_model",
    "fastmath",
    "forceobj",
    "inline",
    "max_registers",
    "parallel",
)
#: The file that has the wrapper of ``@pytest_autotune.tuned``.
_TUNED_FILE = str(Path(__file__).parents[1] / "function" / "tuner.py")
#: No stack of decorators is so deep.
_MAX_LAYERS = 16


# The layers of a kernel.


def list_layers(value: object) -> Iterator[object]:
    """Yield a kernel or helper, then the object inside each of its decorators, down to the Python function."""
    for _ in range(_MAX_LAYERS):
        if value is None:
            return
        yield value
        if type(value) is FunctionType:
            if not is_tuned_wrapper(value):
                return
            value = vars(value).get("__wrapped__")
        else:
            value = _find_wrapped(value)


def is_tuned_wrapper(function: FunctionType) -> bool:
    """Whether a function is the wrapper of ``@pytest_autotune.tuned``. A digest reads the function inside."""
    return function.__code__.co_filename == _TUNED_FILE and "__wrapped__" in vars(function)


def _find_wrapped(value: object) -> object:
    """Return the object that a decorator wraps.

    Its attribute is ``fn`` in Triton, ``py_func`` in Numba, ``_pyfunc`` in cuTile and ``__wrapped__`` in functools.
    """
    if not _is_data(value):
        for name in ("fn", "py_func", "_pyfunc"):
            inner = read_attribute(value, name)
            if inner is not None:
                return inner
    return read_attribute(value, "__wrapped__")


def read_attribute(value: object, name: str) -> Any:
    """Return an attribute of an object without running code of the user; None if there is none.

    Only a property that a class of a library defines is called.
    """
    attribute = read_stored(value, name)
    if attribute is not None:
        return attribute
    owner = find_owner(type(value), name)
    if owner is None or not is_instance(class_attributes(owner)[name], property) or not is_library_code(owner):
        return None
    try:
        return getattr(value, name)
    except Exception:  # the library's property may call code of the user, which failed
        return None


def _is_data(value: object) -> bool:
    """Whether a value with an attribute ``fn`` is a record with a function in it, and no kernel."""
    if is_instance(value, (tuple, SimpleNamespace)):
        return True
    cls = type(value)
    if find_owner(cls, "__dataclass_fields__") is None:
        return False
    return not callable(value) and find_owner(cls, "__getitem__") is None


def python_function(value: object) -> FunctionType | None:
    """Return the Python function inside a kernel or helper and the wrappers around it; None if there is none."""
    if type(value) is FunctionType and not is_tuned_wrapper(value):
        return value
    if has_type(value, _SCALARS):  # most values are scalars, and wrap nothing
        return None
    for layer in list_layers(value):
        if type(layer) is FunctionType and not is_tuned_wrapper(layer):
            return layer
    return None


def find_generic_class(value: object) -> type | None:
    """Return the class ``A`` that an alias such as ``A[int]`` has the attributes of; None for other values."""
    if class_module(type(value)) not in ("typing", "types"):
        return None
    origin = read_stored(value, "__origin__")
    if not is_instance(origin, type):
        return None
    return origin


def list_heuristics(kernel: object) -> list[tuple[str, object]]:
    """Return the functions of the ``triton.heuristics`` around a kernel, with the name of each value."""
    heuristics: list[tuple[str, object]] = []
    for layer in list_layers(kernel):
        cls = type(layer)
        if class_name(cls) == "Heuristics" and class_module(cls).startswith("triton."):
            heuristics += sorted(own_attributes(layer).get("values", {}).items())
    return heuristics


def list_implementations(function: FunctionType) -> dict[type, object]:
    """Return the functions that ``functools.singledispatch`` selects from, by the class of the first argument."""
    registry = vars(function).get("registry")
    if not is_instance(registry, MappingProxyType) or not is_library_code(function):
        return {}
    return dict(registry)


def unwrapped(value: Any) -> object:
    """Return the value inside a ``tl.constexpr`` or a scalar of numpy, and other values as they are."""
    while class_name(type(value)) == "constexpr":
        inner = read_stored(value, "value", MISSING)
        if inner is MISSING:
            break
        value = inner
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and is_instance(value, numpy.generic):
        return numpy.generic.item(value)
    return value


def is_code(value: object) -> bool:
    """Whether a value is a part of the program, whose source a digest holds, and not data."""
    # On Python 3.10, typing.Any is not a class.
    return is_instance(value, (ModuleType, type, type(Optional))) or python_function(value) is not None


def unwrap_attribute(value: object) -> object:
    """Return the function inside an attribute of a class: of a property, a class method and the like."""
    if is_instance(value, property):
        return value.fget
    if is_instance(value, (cached_property, partialmethod, singledispatchmethod)):
        return value.func
    return read_stored(value, "__func__", value)


def list_other_functions(value: object) -> dict[str, object]:
    """Return the functions inside an attribute of a class besides the function of :func:`unwrap_attribute`.

    A property may have a setter and a deleter, and a ``singledispatchmethod`` has a function for each class.
    """
    if is_instance(value, property):
        accessors = {"setter": value.fset, "deleter": value.fdel}
        return {name: accessor for name, accessor in accessors.items() if accessor is not None}
    if is_instance(value, singledispatchmethod):
        functions: dict[str, object] = {}
        for cls, function in value.dispatcher.registry.items():
            functions[f"{class_module(cls)}.{class_name(cls)}"] = function
        return dict(sorted(functions.items()))
    return {}


def find_kept_source(layers: Iterable[object]) -> str:
    """Return the source that Triton keeps of a kernel; empty if it keeps none.

    Triton reads the source when it makes the kernel. A library may give the kernel another source.

    :param layers: the kernel's layers, see :func:`list_layers`.
    """
    for layer in layers:
        cls = type(layer)
        # A constexpr_function has a source, too, but no run(): Python runs it.
        if find_owner(cls, "_unsafe_update_src") is None or find_owner(cls, "run") is None:
            continue
        source = str(read_attribute(layer, "src"))
        lines = "".join(read_attribute(layer, "raw_src") or ())  # since Triton 3.5
        if _is_source_of(lines, source):
            return lines
        return source
    return ""


@lru_cache(maxsize=256)
def _is_source_of(lines: str, source: str) -> bool:
    """Whether Triton's source of a kernel is the source in the kernel's file, and no library gave it."""
    return textwrap.dedent(lines).endswith(source)


def list_compiled_options(layers: Iterable[object]) -> list[str]:
    """Return the arguments of a kernel's decorators that are compiled in, as text, unless they are the defaults.

    ``@triton.jit(noinline=True)`` gives ``noinline=True``, and ``@numba.njit(fastmath=True)`` gives ``fastmath=True``.

    :param layers: the kernel's layers, see :func:`list_layers`.
    """
    texts: list[str] = []
    for layer in layers:
        options = own_attributes(layer)
        # A kernel under Triton's interpreter keeps its options in an object, its rewriter.
        kept_by_rewriter = own_attributes(options.get("rewriter")).get("kwargs")
        if isinstance(kept_by_rewriter, dict):
            options = kept_by_rewriter
        texts += _describe_options(options, _TRITON_OPTIONS)
        numba_options = options.get("targetoptions")
        if isinstance(numba_options, dict):
            if numba_options.get("opt") is False:
                texts.append("opt=False")
            texts += _describe_options(numba_options, _NUMBA_OPTIONS)
    return texts


def _describe_options(options: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    """Yield ``name=value`` for each of the named options, unless its value is a default, such as False or empty."""
    for name in names:
        value = options.get(name)
        if value is None or value is False:
            continue
        if is_instance(value, dict):
            value = list(value.items())
        # The order of the items has no meaning.
        if is_instance(value, (list, tuple, set, frozenset)):
            value = sorted(map(str, value))
        if is_instance(value, (bool, str, int, list)) and value:
            yield f"{name}={value!r}"


def is_dsl_wrapper(function: FunctionType) -> bool:
    """Whether a function is the wrapper that ``@cute.jit`` or ``@cute.kernel`` puts around the user's function.

    The values in the closure of the wrapper, such as ``executor_name``, are CuTe's own.
    """
    module = function.__globals__.get("__name__", "")
    return type(module) is str and module.startswith("cutlass.") and "__wrapped__" in vars(function)


def qualified_name(function: FunctionType) -> str:
    """Return ``module.qualname`` of a function."""
    return f"{function.__module__}.{function.__qualname__}"


def closure_cells(function: FunctionType) -> dict[str, object]:
    """Return the values that a function has from the functions around it, by name."""
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # the variable is not assigned yet
            continue
    return cells


# The owner of code.


def is_library_code(value: FunctionType | type | ModuleType) -> bool:
    """Whether code belongs to Python's own library or a known package.

    A module of the suite does not, even if it is called ``queue.py`` or ``cuda.py``.
    """
    if type(value) is FunctionType:
        return is_library_module(value.__module__ or "", value.__code__.co_filename)
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
    root = module.split(".")[0]
    path = Path(filename)
    if not filename or not path.is_file():  # built in, frozen, or made by exec(): only the name is known
        return root in _PACKAGES or (root in sys.stdlib_module_names and root not in ("test", "__main__"))
    if is_standard(filename):
        return True
    path = path.resolve()
    return root in _UNMISTAKABLE or (root in _PACKAGES and not _INSTALLED.isdisjoint(path.parts))


@lru_cache(maxsize=4096)
def is_standard(filename: str) -> bool:
    """Whether a file belongs to Python's own library."""
    path = Path(filename).resolve()
    return _INSTALLED.isdisjoint(path.parts) and any(str(path).startswith(f"{folder}/") for folder in _STANDARD)
