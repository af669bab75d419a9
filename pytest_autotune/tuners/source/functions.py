"""The Python function inside a kernel: the layers of its decorators, its name and its closure.

The *layers* of a kernel are the kernel, then the object inside each of its decorators, down to the Python function: an
``Autotuner``, its ``JITFunction``, and the function of that.

This module also finds the public name that stands for a library's function in a digest. A digest holds the words of the
source. A word that is the name of its function is clear: ``tl.exp``, or ``exp`` for ``tl.exp``. Then the digest needs
nothing more. If a word stands for a function with another name, the digest also holds the function's public name:
``tl.exp2`` for a word ``exp``.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache, partial, partialmethod, singledispatchmethod
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from pathlib import Path
from types import (
    BuiltinMethodType,
    DynamicClassAttribute,
    FunctionType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Optional

from pytest_autotune.tuners.source.attributes import (
    MISSING,
    class_attributes,
    class_module,
    class_mro,
    class_name,
    find_in_class,
    find_owner,
    is_instance,
    is_scalar,
    module_attributes,
    own_attributes,
    read_stored,
)
from pytest_autotune.tuners.source.libraries import (
    Libraries,
    find_distribution,
    find_file,
    is_library_code,
    is_library_module,
)

_LANGUAGE, _LIBDEVICE = "tl", "libdevice"
#: The functions that both modules have, from Triton 3.4 to 3.9. The list is fixed, so that digests are the same under
#: all versions of Triton.
_IN_BOTH = {"abs", "ceil", "cos", "div_rn", "erf", "exp", "exp2", "floor", "fma", "log", "log2", "rsqrt", "sin", "sqrt"}
_IN_BOTH |= {"sqrt_rn"}
#: A word without a module before it means the function that most public kernels import under this word, so that their
#: digests need no public name. For these words it is libdevice's (Liger, Unsloth, FlagGems), for all others ``tl``'s.
_MOSTLY_LIBDEVICE = {"div_rn", "rsqrt"}
#: The types of functions that Cython and nanobind make, and of a function in a class that pybind11 makes.
_BINDING_TYPES = frozenset(
    {"cython_function_or_method", "fused_cython_function", "nb_func", "nb_method", "nb_bound_method", "instancemethod"}
)
#: The types of bound methods: of methods in Python, of methods in C, and of special methods in C such as
#: ``(1).__add__``. Functions in C, such as ``min``, have the second type, too.
BOUND_METHODS = (MethodType, BuiltinMethodType, MethodWrapperType)
#: The packages in which the plugin looks for a ``numpy.ufunc`` that has no ``__module__``. The functions of numpy have
#: it since numpy 2.2.
_PACKAGES_WITH_UFUNCS = ("numpy", "scipy.special")
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
#: The flags of code that a call does not run, and the kinds of objects that the call returns.
_DEFERRED_KINDS = {
    CO_COROUTINE: "a coroutine",
    CO_GENERATOR: "a generator",
    CO_ASYNC_GENERATOR: "an asynchronous generator",
}
#: The file that has the wrapper of ``@pytest_autotune.tuned``.
_TUNED_FILE = str(Path(__file__).parents[1] / "function" / "tuner.py")
#: The name of the function that Triton makes for ``kernel[grid]``.
_KERNEL_WITH_GRID = "KernelInterface.__getitem__.<locals>.<lambda>"
#: The package of an object's class -> the attributes that may have the function or kernel. The objects are Numba's
#: ``kernel[32, 128]`` and ``cuda.reduce``, ``numpy.vectorize``, ``tilelang.jit`` and ``torch.jit.script``.
_ATTRIBUTES_BY_PACKAGE = {
    "numba": ("dispatcher", "_functor"),
    "numpy": ("pyfunc",),
    "tilelang": ("func", "orig_func"),
    "torch": ("_torchdynamo_inline",),
}
#: The class of the memos that ``functools.cache`` and ``lru_cache`` make.
_MEMO = type(lru_cache(len))
#: Descriptors of Python's library that call a function of the user, and may stand inside a ``classmethod``.
_DESCRIPTORS = (property, DynamicClassAttribute, cached_property, partialmethod, singledispatchmethod)
#: The methods by which a function, a kernel or a method of a class is used: ``f(x)``, ``f[grid](x)``, ``f.run(x)`` and
#: ``obj.f``.
_USES_OF_FUNCTIONS = ("__call__", "__getitem__", "run", "__get__")
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
            value = _find_kernel_behind(value)
        else:
            value = _find_wrapped(value)


def _find_kernel_behind(function: FunctionType) -> object:
    """Return the kernel that a call of a library's function launches; None for other functions.

    The function is either a wrapper by ``@pytest_autotune.tuned``, or ``kernel[grid]`` of a Triton kernel.
    """
    if function.__code__.co_filename == _TUNED_FILE:
        return vars(function).get("__wrapped__")
    # functools.wraps() gives a wrapper the name of the function inside, but not its globals.
    if function.__qualname__ == _KERNEL_WITH_GRID and function.__globals__.get("__name__") == "triton.runtime.jit":
        kernel = closure_cells(function).get("self")
        # An object of a user's own class may have its function under any name.
        if class_module(type(kernel)).startswith("triton.runtime.") or _find_wrapped(kernel) is not None:
            return kernel
    return None


def _find_wrapped(value: object) -> object:
    """Return the function or kernel inside a decorator's object, or in ``kernel.run``; None for other values.

    A decorator's object has it in an attribute: ``fn`` in Triton, ``py_func`` in Numba, ``_pyfunc`` in cuTile and
    ``__wrapped__`` in functools. :data:`_ATTRIBUTES_BY_PACKAGE` has further attributes.
    """
    # A class may have such an attribute, too. It is a class all the same.
    if is_instance(value, type):
        return None
    if is_instance(value, MethodType):
        # The method ``run`` of a Triton kernel stands for the kernel.
        owner: object = value.__self__
        if class_module(type(owner)).startswith("triton.runtime."):
            return owner
        # functools.wraps() gives a method ``__wrapped__``, too. The function there does not stand for the method, whose
        # object counts as well.
        owner_class = type(owner)
        if is_instance(owner, type):
            owner_class = owner
        if is_class_of_user(owner_class):
            return None
    # For speed, Triton's attribute comes first: a lookup reads a Triton kernel several times.
    if class_module(type(value)).startswith("triton.runtime."):
        inner = own_attributes(value).get("fn")
        if inner is not None:
            return inner
    names = ["fn", "py_func", "_pyfunc", "__wrapped__"]
    # A memo has a copy of the attributes of the function or object inside.
    if _is_data(value) or is_instance(value, _MEMO):
        names = ["__wrapped__"]
    package = class_module(type(value)).partition(".")[0]
    names += _ATTRIBUTES_BY_PACKAGE.get(package, ())
    for name in names:
        inner = read_attribute(value, name)
        if inner is not None:
            if stands_for_its_function(type(value)):
                return inner
            return None
    return None


def stands_for_its_function(cls: type) -> bool:
    """Whether an object of a class with an attribute such as ``fn`` stands for the function in this attribute.

    An object of a library stands for it. An object of the user stands for it if its class can be called, indexed, run
    or bound like a function or kernel. Otherwise the object merely stores a function: the members that the code names
    count.
    """
    for name in _USES_OF_FUNCTIONS:
        owner = find_owner(cls, name)
        # A torch.nn.Module of the user is called, and its method forward() runs. So the __call__ of torch says nothing.
        if owner is not None and class_module(owner).partition(".")[0] != "torch":
            return True
    return not is_class_of_user(cls)


def is_class_of_user(cls: type) -> bool:
    """Whether a class is neither a part of a known package nor of another distribution that pip installed."""
    return not is_library_code(cls) and find_distribution(cls) is None


def read_attribute(value: object, name: str) -> Any:
    """Return an attribute of an object without running code of the user; None if there is none.

    A property is called only if a class of a library defines it.
    """
    attribute = read_stored(value, name)
    if attribute is not None:
        return attribute
    owner = find_owner(type(value), name)
    if owner is None:
        return None
    is_property = is_instance(class_attributes(owner)[name], property)
    if not is_property or not is_library_code(owner):
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
    # For speed: most values are functions or scalars.
    if type(value) is FunctionType and _find_kernel_behind(value) is None:
        return value
    if is_scalar(value):
        return None
    for layer in list_layers(value):
        if type(layer) is FunctionType and _find_kernel_behind(layer) is None:
            return layer
    return None


def without_memo(value: object) -> object:
    """Return the class, object or library function inside a memo or ``staticmethod``; other values as they are.

    ``functools.cache`` and ``lru_cache`` make memos. A memo or static method of a Python function stays as it is: see
    :func:`list_layers`.
    """
    for _ in range(_MAX_LAYERS):
        if not is_instance(value, (_MEMO, staticmethod)) or python_function(value) is not None:
            break
        value = read_stored(value, "__wrapped__", value)
    return value


def find_generic_class(value: object) -> type | None:
    """Return the class ``A`` that an alias such as ``A[int]`` has the attributes of; None for other values."""
    if class_module(type(value)) not in ("typing", "types"):
        return None
    origin = read_stored(value, "__origin__")
    if not is_instance(origin, type):
        return None
    return origin


def find_deferred_kind(value: object) -> str:
    """Return ``"a coroutine"`` for an ``async def`` function, ``"a generator"`` for a generator function; else empty.

    A call of such a function runs nothing, and returns an object of this kind. The function may be inside a
    ``partial``, a bound method or an object with a ``__call__``.
    """
    while is_instance(value, (partial, MethodType)):
        if is_instance(value, partial):
            value = value.func
        else:
            value = value.__func__
    if type(value) is not FunctionType:
        value = find_in_class(type(value), "__call__")
    if type(value) is not FunctionType:
        return ""
    for flag, kind in _DEFERRED_KINDS.items():
        if value.__code__.co_flags & flag:
            return kind
    return ""


def list_heuristics(kernel: object) -> list[tuple[str, object]]:
    """Return the functions of the ``triton.heuristics`` around a kernel, with the name of each value."""
    heuristics: list[tuple[str, object]] = []
    for layer in list_layers(kernel):
        # The class of the layer may be the user's subclass of Triton's Heuristics.
        for cls in class_mro(type(layer)):
            if class_name(cls) == "Heuristics" and class_module(cls).startswith("triton."):
                heuristics += sorted(own_attributes(layer).get("values", {}).items())
    return heuristics


def find_constructor_of_aggregate(cls: type) -> object:
    """Return the ``__init__`` of a class that Triton's ``@aggregate`` made; None for other classes.

    ``@aggregate`` replaces the user's class by a new class, which gets the user's methods except ``__init__``. The
    ``__new__`` of the new class calls the ``__init__`` of the user's class, and has that class as ``cls`` in its
    closure.
    """
    attributes = class_attributes(cls)
    if attributes.get("__triton_aggregate__") is not True:
        return None
    new_method = unwrap_attribute(attributes.get("__new__"))
    if type(new_method) is not FunctionType:
        return None
    user_class = closure_cells(new_method).get("cls")
    if not is_instance(user_class, type):
        return None
    return find_in_class(user_class, "__init__")


def list_implementations(function: FunctionType) -> dict[type, object]:
    """Return the functions that ``functools.singledispatch`` selects from, by the class of the first argument."""
    registry = vars(function).get("registry")
    # functools.wraps() gives the wrapper of another decorator a copy of this attribute.
    is_of_functools = function.__globals__.get("__name__") == "functools"
    if not is_instance(registry, MappingProxyType) or not is_of_functools:
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
    # A test may have put a mock in numpy's place.
    scalar_class = getattr(numpy, "generic", None)
    if isinstance(scalar_class, type) and is_instance(value, scalar_class):
        return numpy.generic.item(value)
    return value


def is_code(value: object) -> bool:
    """Whether a value is a part of the program, whose source a digest holds, and not data."""
    # On Python 3.10, typing.Any is not a class.
    return is_instance(value, (ModuleType, type, type(Optional))) or python_function(value) is not None


def unwrap_attribute(value: object) -> object:
    """Return the function inside an attribute of a class, such as a property or a class method; else the value."""
    value = _unwrap_descriptor_in_class_method(without_memo(value))
    if is_instance(value, (property, DynamicClassAttribute)):
        return value.fget
    if is_instance(value, (cached_property, partialmethod, singledispatchmethod)):
        return value.func
    # A bound method such as kernel.run stands for its kernel, so it stays as it is.
    if is_instance(value, MethodType) and python_function(value) is not None:
        return value
    return read_stored(value, "__func__", value)


def _unwrap_descriptor_in_class_method(value: object) -> object:
    """Return the property or other descriptor inside a ``classmethod``.

    Other values stay as they are, also a class method of a function.
    """
    inner = value
    for _ in range(_MAX_LAYERS):
        if not is_instance(inner, classmethod):
            break
        inner = read_stored(inner, "__func__")
    if is_instance(inner, _DESCRIPTORS):
        return inner
    return value


def list_other_functions(value: object) -> dict[str, object]:
    """Return the functions inside an attribute of a class besides the function of :func:`unwrap_attribute`.

    A property may have a setter and a deleter, and a ``singledispatchmethod`` has a function for each class.
    """
    value = _unwrap_descriptor_in_class_method(value)
    if is_instance(value, (property, DynamicClassAttribute)):
        accessors = {"setter": value.fset, "deleter": value.fdel}
        return {name: accessor for name, accessor in accessors.items() if accessor is not None}
    if is_instance(value, singledispatchmethod):
        functions: dict[str, object] = {}
        for cls, function in value.dispatcher.registry.items():
            functions[f"{class_module(cls)}.{class_name(cls)}"] = function
        return dict(sorted(functions.items()))
    return {}


def list_partial_arguments(value: object) -> list[tuple[str, object]]:
    """Return the arguments in a ``partialmethod``, each with its position or name; none for other values."""
    value = _unwrap_descriptor_in_class_method(value)
    if not is_instance(value, partialmethod):
        return []
    arguments: list[tuple[str, object]] = [(str(position), argument) for position, argument in enumerate(value.args)]
    return arguments + sorted(value.keywords.items())


def find_kept_source(layers: Iterable[object]) -> str:
    """Return the source text that a kernel of Triton stores; empty if no layer is such a kernel.

    Triton reads the text from the file when it makes the kernel. A library may give the kernel another text later.

    :param layers: the kernel's layers, see :func:`list_layers`.
    """
    for layer in layers:
        cls = type(layer)
        is_triton_function = find_owner(cls, "_unsafe_update_src") is not None
        # A constexpr_function has a source, too, but no run(): Python runs it.
        if is_triton_function and find_owner(cls, "run") is not None:
            source = str(read_attribute(layer, "src"))
            source_in_file = "".join(read_attribute(layer, "raw_src") or ())  # since Triton 3.5
            # Triton removes the decorators. The source in the file keeps them.
            if _is_source_of(source_in_file, source):
                return source_in_file
            return source
    return ""


@lru_cache(maxsize=256)
def _is_source_of(source_in_file: str, source: str) -> bool:
    """Whether Triton's source of a kernel is the source in the kernel's file, and no library gave it."""
    return textwrap.dedent(source_in_file).endswith(source)


def list_compiled_options(layers: Iterable[object]) -> list[str]:
    """Return the arguments of a kernel's decorators that are compiled in, as text, unless they are the defaults.

    ``@triton.jit(noinline=True)`` gives ``noinline=True``, and ``@numba.njit(fastmath=True)`` gives ``fastmath=True``.
    All options of cuTile's ``@ct.kernel(occupancy=2)`` are returned that are not None.

    :param layers: the kernel's layers, see :func:`list_layers`.
    """
    texts: list[str] = []
    for layer in layers:
        options = own_attributes(layer)
        # A kernel under Triton's interpreter keeps its options in an object, its rewriter.
        options_of_rewriter = own_attributes(options.get("rewriter")).get("kwargs")
        if isinstance(options_of_rewriter, dict):
            options = options_of_rewriter
        texts += _describe_options(options, _TRITON_OPTIONS)
        if class_module(type(layer)).startswith("numba"):
            texts += _list_numba_options(layer)
        options_of_cutile = options.get("_compiler_options")
        if options_of_cutile is not None:
            for name, value in sorted(own_attributes(options_of_cutile).items()):
                if value is not None:
                    texts.append(f"{name}={value}")
    return texts


def _list_numba_options(layer: object) -> list[str]:
    """Return ``name=value`` for each argument of Numba's decorators that is compiled in.

    ``njit`` and ``cuda.jit`` store the arguments in the layer. ``guvectorize``, ``vectorize`` and ``cfunc`` store them
    in an attribute of the layer. The first object with ``targetoptions`` has them.
    """
    holders = [layer]
    for name in ("gufunc_builder", "_dispatcher", "_compiler"):
        holders.append(read_stored(layer, name))
    for holder in holders:
        attributes = own_attributes(holder)
        options = attributes.get("targetoptions")
        if isinstance(options, dict):
            texts = []
            if options.get("opt") is False:
                texts.append("opt=False")
            # "locals", the types of variables, are beside the options: locals={"x": numba.int8}.
            texts += [*_describe_options(options, _NUMBA_OPTIONS), *_describe_options(attributes, ["locals"])]
            if options.get("launch_bounds") is not None:
                texts.append(f"launch_bounds={options['launch_bounds']}")
            if options.get("link"):
                texts.append(f"link={_list_linked_names(options['link'])}")
            return texts
    return []


def _list_linked_names(files: str | Iterable[object]) -> list[str]:
    """Return a name for each file that Numba links to a kernel. An object that has code gives the name of its class.

    The names have no folders, so that they are the same on each machine. The content of the files does not count.
    """
    names = []
    if is_instance(files, str):
        files = [files]
    for file in files:
        if is_instance(file, (str, os.PathLike)):
            names.append(os.path.basename(file))
        else:
            names.append(class_name(type(file)))
    return names


def _describe_options(options: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    """Yield ``name=value`` for each of the named options, unless its value is a default, such as False or empty."""
    for name in names:
        value = options.get(name)
        if value is None or value is False:  # for speed: most options have their default
            continue
        if is_instance(value, dict):
            value = list(value.items())
        # The order of the items has no meaning.
        if is_instance(value, (list, tuple, set, frozenset)):
            value = sorted(map(str, value))
        # None, False, 0 and an empty list are defaults.
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


def is_wrapper_beside_original(function: FunctionType) -> bool:
    """Whether a function wraps ``helper`` by ``functools.wraps()``, and the module still has ``helper`` under its name.

    So no decorator above ``helper`` made the wrapper: it would have replaced ``helper``. Probably a test did.
    ``timed_helper = timed(helper)`` in a module also gives True.
    """
    inner = vars(function).get("__wrapped__")
    # The test may wrap a method that is bound to an object: ``functools.wraps(steps.go)``.
    if is_instance(inner, MethodType):
        inner = inner.__func__
    if inner is None:
        return False
    # functools.wraps() gave the wrapper the module and the name of the inner function.
    return _find_by_qualname(str(function.__module__), function.__qualname__) is inner


def _find_by_qualname(module_name: str, qualname: str) -> object:
    """Return the function that a module has under a ``__qualname__``, such as ``Steps.go``; None if there is none."""
    value: object = sys.modules.get(module_name)
    for word in qualname.split("."):
        if is_instance(value, ModuleType):
            value = module_attributes(value).get(word)
        elif is_instance(value, type):
            value = unwrap_attribute(class_attributes(value).get(word))
        else:
            return None
    return value


def closure_cells(function: FunctionType) -> dict[str, object]:
    """Return the values that a function has from the functions around it, by name."""
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # the variable is not assigned yet
            continue
    return cells


def find_cell(function: FunctionType, name: str) -> object:
    """Return the cell of a variable in the closure of a function; None if the closure has no such variable."""
    if name not in function.__code__.co_freevars:
        return None
    return (function.__closure__ or ())[function.__code__.co_freevars.index(name)]


# The names of library functions.


class LibraryName(str):
    """The public name of a function that a kernel reaches through a module of Triton's language."""


def find_library_text(value: object, path: str, libraries: Libraries) -> str | None:
    """Return the public name that a digest has for a library's function or class; None if the digest needs no name.

    For a known package, the digest needs no name if the name in the source is clear, see :func:`_is_clear`. The digest
    of a kernel of a known package needs no name, either, except a :class:`LibraryName`.

    :param path: the name in the source; empty if the source has no name for the function or class.
    """
    if is_instance(value, LibraryName):
        return str(value)
    # The kernel itself belongs to a library, which may name its functions as it likes.
    if libraries.has_root:
        return None
    code = python_function(value) or value
    public_name = find_public_name(code)
    if not _is_of_known_package(code):
        # The function is of another installed distribution, or of an extension module of no known package. Its public
        # name is always in the digest, even where the source has the function's name: two modules may have functions of
        # the same name.
        return public_name or None
    if not public_name or _is_clear(path, value, public_name):
        return None
    return public_name


def _is_of_known_package(code: object) -> bool:
    """Whether a function or class belongs to Python's own library, or to torch, Triton or another known package.

    The names of the known packages are in :mod:`.libraries`. True also for a function without a module, such as a
    method of a type that is not written in Python.
    """
    if is_instance(code, (FunctionType, type)):
        return is_library_code(code)
    module = read_attribute(code, "__module__")
    if is_extension_function(code):
        module = _find_name_of_extension_function(code).rpartition(".")[0]
    if not is_instance(module, str):
        return True
    return is_library_module(module, find_file(sys.modules.get(module)))


def is_library_callable(value: object) -> bool:
    """Whether a value is a function of a library that is not written in Python: ``torch.relu``, ``numpy.exp``."""
    value = unwrapped(value)
    if is_extension_function(value):
        return True
    if not callable(value) or is_instance(value, MethodType) or not is_library_code(type(value)):
        return False
    # An annotation such as list[int] can be called, and is no function.
    return read_attribute(value, "__origin__") is None


def is_extension_function(value: object) -> bool:
    """Whether a value is a function of an extension module that was made with Cython, nanobind or pybind11.

    True also for such a function that is bound to an object of a library, as ``numpy.random.normal`` is. False if no
    name identifies the function. The plain functions of a module of pybind11 are builtin functions, and give False.
    """
    if is_instance(value, MethodType) and is_library_code(type(value.__self__)):
        value = value.__func__
    cls = type(value)
    module = class_module(cls)
    # The types of Cython may have no module. The type of a method of pybind11's classes is Python's own.
    is_type_known = module in ("", "nanobind", "builtins") or module.startswith("_cython_")
    if class_name(cls) not in _BINDING_TYPES or not is_type_known:
        return False
    return _find_name_of_extension_function(value) != ""


def _find_name_of_extension_function(function: Any) -> str:
    """Return ``module.name`` of a function, see :func:`is_extension_function`, or ``module.Class.name`` of a method.

    The result is empty if there is no name, or if several functions may have it.
    """
    try:
        module, name = function.__module__, function.__qualname__
        if class_name(type(function)) == "instancemethod":
            # The __qualname__ begins with the name of a type of pybind11, which changes between versions. The method's
            # class is only in the docstring: ``go(self: extension.Plan, n: int) -> int``.
            signature = re.search(r"\(self: ([\w.]+)", function.__doc__)
            if signature is None:
                return ""
            return f"{signature[1]}.{function.__name__}"
    except Exception:  # an attribute is missing, or the docstring is
        return ""
    if not is_instance(module, str) or not is_instance(name, str):
        return ""
    if "<" in name:  # <lambda> or <locals>
        return ""
    return f"{_public_module(module)}.{name}"


def is_builtin_function(value: object) -> bool:
    """Whether a value is a library's function that is not written in Python and has a public name: ``torch.exp``.

    A callable object of a library has no such name. A ``partial`` may have one that the user gave it.
    """
    if not is_library_callable(value) or is_code(value) or is_instance(value, partial):
        return False
    return find_public_name(value) != ""


def is_from_library(value: object, libraries: Libraries) -> bool:
    """Whether a value is a function or class of a library."""
    code = python_function(value) or value
    if is_instance(code, (FunctionType, type)):
        return libraries.has_code(code)
    return is_instance(value, LibraryName) or is_library_callable(value)


def is_function_of_user(value: object, libraries: Libraries) -> bool:
    """Whether a value is a Python function of the user, or a decorated function."""
    return python_function(value) is not None and not is_from_library(value, libraries)


def is_callable_object(value: object, libraries: Libraries) -> bool:
    """Whether a value is an object of a class that has a ``__call__`` of the user."""
    return is_function_of_user(find_in_class(type(value), "__call__"), libraries)


def is_object_of_user(value: object, libraries: Libraries) -> bool:
    """Whether a value is an object of a class of the user, and is no function, class or module itself."""
    return not is_code(value) and not libraries.has_object(value)


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
    if is_extension_function(code):
        return _find_name_of_extension_function(code)
    module = read_attribute(code, "__module__")
    name = read_attribute(code, "__name__")
    if not is_instance(name, str):
        return ""
    if module is None:
        return _find_ufunc_name(code, name) or _find_method_name(code, name)
    # In typing, the version of Python decides which names are classes. A digest must not depend on the version.
    if not is_instance(module, str) or module == "typing":
        return ""
    if _is_of_factory(code, module, name):
        # The __qualname__ is that of a function inside the factory.
        return f"{_public_module(module)}.{name}"
    # The __qualname__ also has the class of a method.
    if type(code) is FunctionType:
        name = code.__qualname__
    elif is_instance(code, type):
        name = class_name(code)
    return f"{_public_module(module)}.{name}"


def _is_of_factory(code: object, module: str, name: str) -> bool:
    """Whether a factory of a library made a function or class that the library offers under its ``__name__``.

    ``boolean_dispatch()`` of torch makes ``max_pool1d`` and ``max_pool2d`` in ``torch.nn.functional``. Both have the
    ``__qualname__`` ``boolean_dispatch.<locals>.fn``, so only the ``__name__`` tells them apart.

    :param module: the ``__module__`` of the function or class.
    :param name: the ``__name__`` of the function or class.
    """
    if "<locals>" not in str(read_stored(code, "__qualname__")):
        return False
    # Only a library's module has the same attributes in each run. A test may replace functions in the user's modules.
    if is_instance(code, (FunctionType, type)) and not is_library_code(code):
        return False
    library = sys.modules.get(module)
    return is_instance(library, ModuleType) and module_attributes(library).get(name) is code


def _find_ufunc_name(function: object, name: str) -> str:
    """Return the public name of a function of the class ``numpy.ufunc``: ``numpy.add``; empty for other values."""
    if class_name(type(function)) != "ufunc":
        return ""
    for package in _PACKAGES_WITH_UFUNCS:
        module = sys.modules.get(package)
        if is_instance(module, ModuleType) and module_attributes(module).get(name) is function:
            return f"{package}.{name}"
    return ""


def _find_method_name(method: object, name: str) -> str:
    """Return the public name of a method of a class that is not written in Python: ``str.upper``.

    Empty for a special method that is bound to an object, such as ``(1).__add__``.
    """
    if is_instance(method, MethodWrapperType):
        return ""
    owner = read_attribute(method, "__objclass__") or read_attribute(method, "__self__")
    if owner is None:
        return ""
    owner_name = find_public_name(owner)
    if not owner_name:
        return ""
    return f"{owner_name}.{name}"


def find_name_of_bound_method(method: Any) -> str:
    """Return the name of a method that is bound to an object or a class: ``add`` for ``tensor.add``.

    The name of a class method has the class: ``pathlib.Path.cwd``. The class of an object is left out: with another
    version of Python, or with pytest's option ``-s``, the object may have another class. Methods of two objects have
    the same name, so the name does not identify the method. The result is empty if the method, or the class of a class
    method, has no name.

    :param method: a value of one of the types in ``BOUND_METHODS``.
    """
    name = read_attribute(method, "__name__")
    if not is_instance(name, str):
        return ""
    if not is_instance(method.__self__, type):
        return name
    class_text = find_public_name(method.__self__)
    if not class_text:
        return ""
    return f"{class_text}.{name}"


def find_shortest_name(cls: type) -> str:
    """Return the shortest name under which a class can be imported: ``cutlass.Float32``; empty if there is none.

    The module that defines a class, such as ``cutlass.base_dsl.typing``, may be another one in a new version.
    """
    word = class_name(cls).rpartition(".")[2]
    shortest_name = ""
    # From the inside to the outside: the last package that has the class has the shortest name.
    for module in _list_modules(cls):
        if module_attributes(module).get(word) is cls:
            shortest_name = f"{_module_name(module)}.{word}"
    return shortest_name


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
    module_path, _, word = path.rpartition(".")
    module, _, public_word = public_name.rpartition(".")
    if word != public_word:
        # Python makes up the name "<lambda>". Nothing can have this name in a source.
        if ">" in public_name:
            return True
        return any(module_attributes(library).get(word) is value for library in _list_modules(value))
    # Only a function that both of Triton's modules have can be taken for another function.
    if word not in _IN_BOTH or module not in (_LANGUAGE, _LIBDEVICE):
        return True
    if module_path:
        # FLA imports libdevice as tldevice.
        means_libdevice = module_path.endswith("device")
    else:
        means_libdevice = word in _MOSTLY_LIBDEVICE
    return means_libdevice == (module == _LIBDEVICE)


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
