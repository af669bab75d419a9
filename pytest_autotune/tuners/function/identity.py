"""The key of a problem, encoded, and the source that its choice depends on.

A *source* is anything that ``source=`` takes: a function, a class, a text, the path of a file, or a module. By
default, the callbacks ``run`` and ``compile`` are the sources.

A digest of source follows names, by the rule of :mod:`pytest_autotune.tuners.source.source_digest`. It also leaves out
the values that belong to one call: values in closures and defaults of functions that a test makes, the arguments of a
``partial``, the object of a method. A function that is a value of a key or of a configuration includes these values
(:mod:`.carried`).
"""

from __future__ import annotations

import enum
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeGuard
from weakref import ref

from pytest_autotune.cache.model import UncacheableError, Value, plain_value
from pytest_autotune.cache.structured import JSON_LIST, JSON_TUPLE
from pytest_autotune.tuners.function.carried import carried_text
from pytest_autotune.tuners.source.attributes import (
    class_attributes,
    class_mro,
    class_name,
    find_in_class,
    is_descriptor,
    is_instance,
    is_scalar,
    list_items,
    list_parts,
    list_stored_attributes,
    mangled_name,
    module_attributes,
    read_stored,
)
from pytest_autotune.tuners.source.code_text import (
    NoDigestError,
    UncacheableErrors,
    list_imports,
    read_function,
    syntax_text,
)
from pytest_autotune.tuners.source.compiled_code import parse
from pytest_autotune.tuners.source.functions import (
    closure_cells,
    is_extension_function,
    is_library_callable,
    list_layers,
    python_function,
    unwrap_attribute,
    unwrapped,
    without_memo,
)
from pytest_autotune.tuners.source.libraries import Libraries, is_library_code
from pytest_autotune.tuners.source.module_text import check_module_not_edited, read_imported_modules
from pytest_autotune.tuners.source.source_digest import (
    DigestedSource,
    combine_sources,
    digest,
    immutable_text,
    read_class_source,
    read_code_in_objects,
    read_code_in_values,
    read_method_source,
    read_source,
    stable_value,
)
from pytest_autotune.tuners.source.values import list_used_values

#: Stands for the class of a function that is no method.
_NO_CLASS = type(None)
#: At most so many values are looked at in the decorators of a method.
_MAX_WRAPPED = 100


class _KeptSources:
    """The source of each function that was read. It holds as long as its names stand for the same values.

    The keys are ids, because a function's decorator, or a metaclass, may have a hash of the user.
    """

    def __init__(self) -> None:
        self._sources: dict[tuple[int, int], DigestedSource] = {}
        #: Weak references to the objects of these ids. They tell when an id is free for another object.
        self._references: dict[tuple[int, int], tuple[ref[object], ref[type]]] = {}

    def find(self, kernel: object, cls: type) -> DigestedSource | None:
        """Return the source of a function; None if it was not read.

        :param cls: the class of the object that a method is called with; ``_NO_CLASS`` for a function.
        """
        return self._sources.get((id(kernel), id(cls)))

    def keep(self, kernel: object, cls: type, source: DigestedSource) -> None:
        """Keep the source of a function as long as the function and the class live."""
        key = id(kernel), id(cls)
        forget = partial(self._forget, key)
        try:
            self._references[key] = ref(kernel, forget), ref(cls, forget)
        except TypeError:  # the kernel takes no weak references
            return
        self._sources[key] = source

    def clear(self) -> None:
        """Forget all sources, as a new process has none."""
        self._sources.clear()
        self._references.clear()

    def _forget(self, key: tuple[int, int], _: object) -> None:
        self._sources.pop(key, None)
        self._references.pop(key, None)


_sources = _KeptSources()


def list_sources(source: object, *callbacks: object) -> tuple[object, ...]:
    """Return the objects whose source a choice depends on: the argument ``source=``, else the callbacks.

    Each test may write its own lambda for the same problem, so the text of a lambda does not count. The user's
    functions that the lambda calls, the code that it reaches through objects, and the code in the arguments of a
    ``partial`` stand for it. A lambda stays its own source if it is a method, if it calls no function of the user, or
    if these functions are not all known.

    :param source: the argument ``source=``; None if the user did not pass it.
    :param callbacks: the callbacks of the search; None for a callback that the user did not pass.
    """
    if is_instance(source, (list, tuple)):
        return tuple(list_items(source))
    if source is not None:
        return (source,)
    sources: list[object] = []
    for callback in callbacks:
        if callback is None:
            continue
        with UncacheableErrors():
            callback = _replace_method_by_class(without_memo(callback))
        if _is_class_of_user(_without_arguments(callback)):
            sources.append(callback)
            continue
        with UncacheableErrors():
            function = python_function(_find_kernel(callback))
        if function is None:
            code_of_user = _find_source_behind_library(callback)
            if code_of_user is not None:
                sources.append(code_of_user)
            continue
        # Not __name__: functools.wraps() gives a wrapper the name of the lambda inside.
        is_lambda = function.__code__.co_name == "<lambda>"
        # A lambda in the body of a class may use members of its object. Only the digest of a method follows these.
        is_method = is_instance(_without_arguments(callback), MethodType)
        sources_of_lambda: list[object] = []
        if is_lambda and not is_method:
            sources_of_lambda = _list_sources_of_lambda(callback, function)
        sources += sources_of_lambda or [callback]
    return tuple(sources)


def _list_sources_of_lambda(callback: object, function: FunctionType) -> list[object]:
    """Return the sources that stand for a lambda; none if the lambda has to stay its own source.

    :param callback: the lambda, or a ``partial`` with the lambda and arguments.
    :param function: the lambda itself.
    """
    try:
        called_functions = _list_called_functions(function)
        # The functions are not all known, or the lambda calls none.
        if not called_functions:
            return []
        code_in_objects = read_code_in_objects(function)
        code_in_arguments = read_code_in_values(_list_arguments(callback), function)
    except Exception:
        # An object that the lambda names, or an argument of the partial, has raised the error. The digest of the lambda
        # meets the same error, and there the error is reported.
        return []
    sources = list(called_functions)
    for code in (code_in_objects, code_in_arguments):
        if code is not None:
            sources.append(code)
    return sources


def _list_called_functions(function: FunctionType) -> list[object] | None:
    """Return the user's functions that a lambda names, such as ``add`` for ``lambda config: add(x, config)``.

    None if these functions may not be all that the lambda calls.
    """
    try:
        names = read_function(function).names
    except UncacheableError:
        # Without a source, nothing tells which functions the lambda calls.
        return None
    called_functions: list[object] = []
    for _, value in list_used_values(function, names):
        if _hides_calls(value):
            return None
        inner_function = python_function(value)
        if inner_function is not None and not is_library_code(inner_function):
            called_functions.append(value)
    return called_functions


def _hides_calls(value: object) -> bool:
    """Whether a lambda that uses a value may call functions of the user that the lambda does not name.

    The digest of the lambda itself follows such a value.
    """
    # The lambda may call methods of the class.
    if is_instance(value, type):
        return not is_library_code(value)
    # The object of a method, or an argument of a partial, may have code.
    if is_instance(value, (partial, MethodType)):
        return True
    inner_function = python_function(value)
    if inner_function is None:
        # An object that can be called has no source of its own, for example a function under functools.singledispatch.
        return callable(value) and (not is_library_callable(value) or is_extension_function(value))
    # A decorator of a library, such as functools.lru_cache, may have a function of the user inside.
    return is_library_code(inner_function) and bool(_list_inner_functions(inner_function))


def _list_inner_functions(function: FunctionType) -> list[object]:
    """Return the functions of the caller inside a function that a decorator of a library made."""
    candidates = [*closure_cells(function).values(), vars(function).get("__wrapped__")]
    functions: list[object] = []
    for candidate in candidates:
        inner_function = python_function(candidate)
        if inner_function is not None and not is_library_code(inner_function):
            functions.append(candidate)
    return functions


def source_text(source: object) -> str | None:
    """Return the digest of the argument ``source=``; None if the source cannot be read.

    :param source: a function or kernel, a class, a text, the path of a file, or a module.
    """
    try:
        read = read_source_argument(source)
    except NoDigestError:
        return None
    if read is None:
        return None
    return read.digest


def read_source_argument(source: object) -> DigestedSource | None:
    """Return the source for the argument ``source=``; None if it cannot be read.

    :raises TypeError: if the argument has no source.
    :raises NoDigestError: if the source was edited after its import, or reading it fails.
    """
    if is_instance(source, DigestedSource):
        return source
    if is_instance(source, str):
        return _build_text_source("text", str.__str__(source))
    if is_instance(source, Path):
        # Line ends depend on the settings of a checkout.
        content = source.read_bytes().replace(b"\r\n", b"\n")
        return _build_text_source(source.name, content.decode("utf-8", "surrogateescape"))
    with UncacheableErrors():
        source = _replace_method_by_class(without_memo(source))
        bound_kernel = _BoundKernel.build(source)
    # A callable of a library, such as an object of a torch.nn.Module, has no function of its own to read.
    try:
        code_of_user = _read_code_behind_library(source)
    except NoDigestError:
        raise
    except UncacheableError:
        return None
    if code_of_user is not None:
        return code_of_user
    root = _find_root(bound_kernel.kernel)
    if root is None and not is_instance(bound_kernel.kernel, ModuleType):
        # Not repr(): it may run code of the user.
        kind = class_name(type(source))
        raise TypeError(f"source= takes functions, classes, texts, paths and Python modules, not a {kind}")
    kernel_source = _read_kernel(bound_kernel)
    arguments = _list_arguments(source)
    if kernel_source is None or not arguments:
        return kernel_source
    with UncacheableErrors():
        code_in_arguments = read_code_in_values(arguments, root)
    if code_in_arguments is None:
        return kernel_source
    return combine_sources([kernel_source, code_in_arguments])


def _read_code_behind_library(source: object) -> DigestedSource | None:
    """Return the source of the user's code behind a callable whose own code is a library's; None if there is none.

    ``torch.nn.Module.__call__`` calls the ``forward()`` of the user's object, and ``map`` in a ``partial`` calls its
    first argument. The library's code tells nothing about the code that it calls.

    :raises UncacheableError: if the source of a function cannot be read.
    """
    callee = _without_arguments(source)
    if type(callee) is FunctionType or _is_class_of_user(callee) or not callable(callee):
        return None
    function = python_function(_find_kernel(callee))
    if function is not None:
        is_library_method = is_instance(callee, MethodType) and _wraps_nothing_of_user(function)
        if not is_library_method:
            # The source is the function itself.
            return None
    values = _list_arguments(source)
    root: type | None = None
    # The object that the library's code calls.
    owner: object = callee
    if is_instance(callee, MethodType):
        owner = callee.__self__
    is_of_user = _is_class_of_user(type(owner))
    if not is_instance(owner, type):
        values.append(owner)
        if is_of_user:
            root = type(owner)
    if is_instance(callee, MethodType) and (function is None or not is_of_user):
        # The name of the method counts, too. A method in Python on an object of the user is an exception: it may call
        # any method of the object, so the whole object counts.
        values.append(callee)
    with UncacheableErrors():
        return read_code_in_values(values, root)


def _find_source_behind_library(callback: object) -> object:
    """Return the source of the user's code behind a callable of a library; None if there is none.

    If the source of a function cannot be read, return the callback: :func:`read_source_argument` then returns None for
    it, and the report says that there is no source.

    :raises NoDigestError: if the code was edited after its import, or reading it fails.
    """
    try:
        return _read_code_behind_library(callback)
    except NoDigestError:
        raise
    except UncacheableError:
        return callback


def _replace_method_by_class(source: object) -> object:
    """Return ``partial(Attention, *args)`` for ``partial(Attention.apply, *args)``.

    Such a method of a library on a class of the user may call any method of the class, so the class is the source.
    Other sources are returned as they are.
    """
    callee = _without_arguments(source)
    if not is_instance(callee, MethodType) or not _is_class_of_user(callee.__self__):
        return source
    function = python_function(callee.__func__)
    if function is None or not _wraps_nothing_of_user(function):
        return source
    return partial(callee.__self__, *_list_arguments(source))


def _wraps_nothing_of_user(function: FunctionType) -> bool:
    """Whether a function is a library's, and has no function of the user inside, as one of ``contextmanager`` has."""
    return is_library_code(function) and not _list_inner_functions(function)


def _find_root(kernel: object) -> FunctionType | type | None:
    """Return the function inside a kernel, or a class of the user itself; None for all else."""
    if _is_class_of_user(kernel):
        return kernel
    return python_function(kernel)


def _is_class_of_user(value: object) -> TypeGuard[type]:
    """Whether a value is a class of the user. A call of the class makes an object, and so runs the class's code."""
    return is_instance(value, type) and not is_library_code(value)


@dataclass(frozen=True)
class _BoundKernel:
    """A function, method, class or module, with the object that the method is called with.

    :param kernel: the function inside a bound method, a callable object or a ``partial``; else the source itself.
    :param owner_class: the class of the object that a method is called with; ``_NO_CLASS`` for all else.
    :param owner: the object, if it stores attributes; else None.
    """

    kernel: object
    owner_class: type
    owner: object

    @classmethod
    def build(cls, source: object) -> _BoundKernel:
        """Return the kernel for the argument ``source=``."""
        owner_class = _find_class_of_method(source)
        return cls(_find_kernel(source), owner_class, _find_owner(source, owner_class))


def _read_kernel(bound_kernel: _BoundKernel) -> DigestedSource | None:
    """Return the source of a function, a method, a class or a module; None if it cannot be read.

    The source is read again only if a value that it was computed from has changed.
    """
    if bound_kernel.owner is not None:
        # Another object may store other attributes, so no source is kept.
        return _read_or_none(bound_kernel)
    kernel, owner_class = bound_kernel.kernel, bound_kernel.owner_class
    kept_source = _sources.find(kernel, owner_class)
    if kept_source is not None and kept_source.used_values is not None and kept_source.used_values.still_hold():
        return kept_source
    current_source = _read_or_none(bound_kernel)
    if current_source is not None:
        _sources.keep(kernel, owner_class, current_source)
    return current_source


def _list_arguments(source: object) -> list[object]:
    """Return the arguments of a ``partial``, or of several; none for other sources.

    The class of the ``partial`` is returned, too, if it is a class of the user.
    """
    arguments: list[object] = []
    while is_instance(source, partial):
        if _is_class_of_user(type(source)):
            arguments.append(type(source))
        arguments += [*source.args, *dict(sorted(source.keywords.items())).values()]
        source = source.func
    return arguments


def _build_text_source(name: str, text: str) -> DigestedSource:
    """Return a text as a source with a single part of this name."""
    return DigestedSource(digest(text), {name: digest(text)})


def _read_or_none(bound_kernel: _BoundKernel) -> DigestedSource | None:
    """Return the source of a function, a method, a class or a module; None if it cannot be read.

    :raises NoDigestError: if the source was edited after its import, or code of the user raises an error.
    """
    kernel = bound_kernel.kernel
    try:
        if is_instance(kernel, ModuleType):
            check_module_not_edited(kernel)
            return _read_module(kernel)
        if _is_class_of_user(kernel):
            return read_class_source(kernel)
        if bound_kernel.owner_class is not _NO_CLASS and python_function(kernel) is not None:
            return read_method_source(kernel, bound_kernel.owner_class, bound_kernel.owner)
        return read_source(kernel, carried=False, includes_heuristics=True, is_kept=True)
    except NoDigestError:
        raise
    except (UncacheableError, OSError, TypeError, SyntaxError):
        return None
    except Exception as error:  # of the user's code, such as a recursion
        raise NoDigestError(f"its source cannot be read: {type(error).__name__}") from error


def _read_module(module: ModuleType) -> DigestedSource:
    """Return the source of a module and of the user's modules that it imports."""
    tree = parse(inspect.getsource(module))
    text = syntax_text(tree)
    package = getattr(module, "__package__", None) or ""
    imported_texts = read_imported_modules(list_imports(tree), package, Libraries(root=None))
    imported_texts.pop(module.__name__, None)
    if not imported_texts:
        return _build_text_source(module.__name__, text)
    digests_by_module = {module.__name__: digest(text)}
    for name, imported_text in imported_texts.items():
        digests_by_module[name] = digest(imported_text)
    lines = [f"{name}: {module_digest}" for name, module_digest in sorted(digests_by_module.items())]
    return DigestedSource(digest("\n".join(lines)), digests_by_module)


def _find_class_of_method(source: object) -> type:
    """Return the class of the object that a method, or a callable object, is called with.

    For a function that is no method, return ``_NO_CLASS``. The class matters, because ``self.area()`` runs another
    function for an object of a subclass. For ``Kernel.launch``, the class is the class that defines the method.
    """
    # The object of partial(Kernel.launch, kernel) is an argument, whose whole class counts.
    has_object = is_instance(source, partial) and bool(source.args)
    source = _without_arguments(source)
    if is_instance(source, MethodType):
        owner: object = source.__self__
        if is_instance(owner, type):  # the source is a class method
            return owner
        return type(owner)
    # An object of the user with a __call__. A decorated function may be an object with a __call__, too, but then the
    # kernel is the function inside.
    is_object = type(source) is not FunctionType and callable(source)
    if is_object and _find_kernel(source) is find_in_class(type(source), "__call__"):
        return type(source)
    if has_object or _is_class_of_user(source):
        return _NO_CLASS
    return _find_defining_class(python_function(source))


def _takes_object(function: FunctionType) -> bool:
    """Whether the first parameter of a function is ``self`` or ``cls``. A class may also be a mere list of functions.

    For a decorated method, the function inside counts.
    """
    inner: object = function
    for _ in range(_MAX_WRAPPED):
        wrapped = read_stored(inner, "__wrapped__")
        if wrapped is None:
            break
        inner = wrapped
    inner_function = python_function(inner)
    return inner_function is not None and inner_function.__code__.co_varnames[:1] in (("self",), ("cls",))


def _find_defining_class(function: FunctionType | None) -> type:
    """Return the class in the module of a function that has the function as a method; ``_NO_CLASS`` without any."""
    if function is None or "." not in function.__qualname__ or not _takes_object(function):
        return _NO_CLASS
    module = sys.modules.get(str(function.__module__))
    if not is_instance(module, ModuleType):
        return _NO_CLASS
    attributes = module_attributes(module)
    cls: type = _NO_CLASS
    *class_path, name = function.__qualname__.split(".")
    for word in class_path:
        inner = attributes.get(word)
        if not is_instance(inner, type):  # such as the function around a class
            return _NO_CLASS
        cls = inner
        attributes = class_attributes(cls)
    member = attributes.get(mangled_name(name, class_name(cls)))
    # Python passes an object only to descriptors. A kernel of Triton in the body of a class is none.
    if is_library_code(cls) or is_instance(member, staticmethod) or not is_descriptor(member):
        return _NO_CLASS
    if not _has_inside(member, function):
        return _NO_CLASS
    return cls


def _find_owner(source: object, cls: type) -> object:
    """Return the object that a method is called with, if the object stores attributes or has items; else None.

    :param cls: the class of the object; ``_NO_CLASS`` for a function without an object.
    """
    source = _without_arguments(source)
    if is_instance(source, MethodType):
        source = source.__self__
    # The source is a function for Kernel.launch, and a class for a class method.
    if type(source) is not cls:
        return None
    if not list_stored_attributes(source) and not list_parts(source):
        return None
    return source


def has_method(cls: type, function: object) -> bool:
    """Whether a class or a base of it has a function as a method, also below decorators."""
    name = read_stored(function, "__name__", "")
    for base in class_mro(cls):
        member = class_attributes(base).get(mangled_name(name, class_name(base)))
        if _has_inside(unwrap_attribute(member), function):
            return True
    return False


def _has_inside(member: object, function: object) -> bool:
    """Whether a member of a class is a function, or wraps it in decorators."""
    pending = [member]
    for _ in range(_MAX_WRAPPED):
        if not pending:
            break
        value = pending.pop(0)
        for layer in list_layers(value):
            if layer is function:
                return True
            if type(layer) is FunctionType:
                pending += [read_stored(layer, "__wrapped__"), *closure_cells(layer).values()]
    return False


def find_first_argument(function: object, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Return the argument for the first parameter of a function, such as ``self``; None if the call has none."""
    if args:
        return args[0]
    inner_function = python_function(function)
    if inner_function is None:
        return None
    # Parameters come first among the names of variables.
    first_names = inner_function.__code__.co_varnames[:1]
    return next((kwargs[name] for name in first_names if name in kwargs), None)


def _without_arguments(source: object) -> object:
    """Return the function inside a ``partial``, or inside several."""
    while is_instance(source, partial):
        source = without_memo(source.func)
    return source


def _find_kernel(source: object) -> object:
    """Return the function or kernel inside a ``partial``, a bound method or a callable object of the user.

    All other sources are returned as they are.
    """
    source = _without_arguments(source)
    if is_instance(source, MethodType):
        source = source.__func__
    if type(source) is FunctionType:
        return source
    # A class of the user is called as a whole, also if its metaclass has a __call__.
    if _is_class_of_user(source):
        return source
    call: object = source
    if python_function(source) is None and callable(source):
        call = find_in_class(type(source), "__call__")
    inner_function = python_function(call)
    # The object was not written in Python, such as a kernel of CuPy.
    if inner_function is None:
        return source
    # A library's __call__ says nothing about the object: all modules of torch have the same __call__.
    if is_library_code(inner_function):
        return source
    return call


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is not below ``n``; 1 for 0 and 1.

    :raises ValueError: for a negative number.
    """
    if n < 0:
        raise ValueError(f"power_of_two({n}): a size is not negative")
    if n <= 1:
        return 1
    return 1 << (n - 1).bit_length()


def multiple_of(n: int, k: int) -> int:
    """Return the smallest multiple of ``k`` that is not below ``n``.

    :raises ValueError: for a negative size, and for a step below 1.
    """
    if n < 0 or k <= 0:
        raise ValueError(f"multiple_of({n}, {k}): expected a size of 0 or more, and a step of 1 or more")
    # Minus signs turn Python's rounding down into rounding up.
    return -(-n // k) * k


def stable_part(name: str, value: object) -> Value:
    """Encode a value of a key. A function is encoded with the values that it carries.

    :raises UncacheableError: for a value without a stable form.
    :raises CarriedError: for a function that carries such a value.
    """
    if is_scalar(value):  # for speed: most values of a key are scalars
        return plain_value(name, value)
    inner: Any = unwrapped(value)
    if _find_container_type(inner) is not None:
        encoded_items = []
        for item in list_items(inner):
            # Without the name, which only the whole value has.
            encoded_items.append(stable_part(name, item).encoded[1:])
        return Value(name, repr(encoded_items), "tuple")
    encoded = stable_value(name, value, carried=False)
    if encoded.type != "function":
        return encoded
    carried = carried_text(inner)
    if not carried:
        return encoded
    # Functions of one factory have the same source. A second digest tells them apart.
    return replace(encoded, value=f"{encoded.value}@{digest(carried)}")


def configuration_value(name: str, value: object) -> Value:
    """Encode a value of a configuration. A tuple or list is JSON, which a reviewer reads in the cache file.

    The tuple ``(1, 1)`` and the list ``[1, 1]`` are two candidates. Both have the text ``[1, 1]``, and the types
    ``"json.tuple"`` and ``"json.list"`` differ. All other values are encoded as in a key, see :func:`stable_part`.

    :raises UncacheableError: for a value without a stable form.
    :raises CarriedError: for a function that carries such a value.
    """
    inner = unwrapped(value)
    container = _find_container_type(inner)
    if container is None:
        return stable_part(name, value)
    text = json.dumps(_plain_items(name, inner, container), ensure_ascii=False)
    if container is tuple:
        return Value(name, text, JSON_TUPLE)
    return Value(name, text, JSON_LIST)


def _find_container_type(value: object) -> type | None:
    """Return ``tuple`` or ``list`` for an instance of it; None for other values."""
    if is_instance(value, enum.Enum):  # the class of an enum may also inherit from tuple
        return None
    if is_instance(value, tuple):
        return tuple
    if is_instance(value, list):
        return list
    return None


def _plain_items(name: str, items: Any, container: type) -> list[object]:
    """Return the items of a tuple or list as JSON can hold them.

    A scalar stays a scalar, and an inner container of the same type becomes a list. All other items become a mapping of
    their type to their value. ``(1, (2, 3), [4], torch.float16)`` becomes
    ``[1, [2, 3], {"list": [4]}, {"dtype": "fp16"}]``. A configuration cannot hold a mapping itself, so no two values
    have the same JSON.

    :param name: of the whole value, for errors.
    :param container: the type of the tuple or list.
    """
    plain_items: list[object] = []
    for item in list_items(items):
        inner = unwrapped(item)
        inner_container = _find_container_type(inner)
        if inner_container is None:
            plain_items.append(_plain_item(stable_part(name, item)))
        elif inner_container is container:
            plain_items.append(_plain_items(name, inner, inner_container))
        else:
            plain_items.append({inner_container.__name__: _plain_items(name, inner, inner_container)})
    return plain_items


def _plain_item(encoded: Value) -> object:
    """Return an encoded value as JSON can hold it: ``{"dtype": "fp16"}``, or a scalar itself."""
    if encoded.type:
        return {encoded.type: encoded.value}
    return encoded.value


def key_values(key: object, only_stable: bool = False) -> tuple[Value, ...]:
    """Encode the argument ``key=``, in its order.

    :param only_stable: leave out the values without a stable form.
    :raises TypeError: if the key is no mapping of names to values.
    :raises UncacheableError: for a value without a stable form.
    """
    value_by_name = key
    if key is None:
        value_by_name = {}
    if not isinstance(value_by_name, Mapping) or not all(isinstance(name, str) for name in value_by_name):
        raise TypeError(f"key= takes a mapping of names to values, not a {type(key).__name__}")
    values = []
    for name, value in value_by_name.items():
        try:
            values.append(stable_part(name, value))
        except UncacheableError:
            if not only_stable:
                raise
    return tuple(values)


def list_class_lines(name: str, value: object) -> list[str]:
    """Return a line for each member of a user's enum, and for each named tuple of the user, in a key or configuration.

    The encoded value has only the name of a member, such as ``Mode.FAST``, and only the values of a named tuple. The
    user may edit the class, so that the member has another value, or the tuple other names.

    :raises UncacheableError: if the source of code in a member's value cannot be read.
    """
    if is_scalar(value):  # for speed: most values of a key are scalars
        return []
    inner: Any = unwrapped(value)
    if is_instance(inner, enum.Enum):
        if is_library_code(type(inner)):
            return []
        return [f"{name}: {_describe_member(inner)}"]
    if _find_container_type(inner) is None:
        return []
    lines = []
    field_names = find_in_class(type(inner), "_fields")
    if is_instance(field_names, tuple) and not is_library_code(type(inner)):
        lines.append(f"{name}: {class_name(type(inner))}({', '.join(map(str, list_items(field_names)))})")
    for index, item in enumerate(list_items(inner)):
        lines += list_class_lines(f"{name}.{index}", item)
    return lines


def _describe_member(member: enum.Enum) -> str:
    """Return the name and the value of an enum's member as text.

    If the value may change, only the code in it counts, and the arguments of a partial, unless one of them may change.
    """
    text = str(immutable_text(member))
    value = read_stored(member, "_value_")
    if is_scalar(value) or immutable_text(value) is not None:
        return text
    if is_instance(value, partial):
        # Such as the member TILED = functools.partial(tiled, rows=2).
        arguments = (value.args, tuple(sorted(value.keywords.items())))
        text += f" {immutable_text(arguments)}"
    stored_code = read_code_in_values([value], root=None)
    if stored_code is None:
        return text
    return f"{text} {stored_code.digest}"


def list_key_class_lines(key: object) -> list[str]:
    """Return the lines of :func:`list_class_lines` for the values of the argument ``key=``.

    :param key: the argument, which :func:`key_values` has encoded.
    """
    lines: list[str] = []
    if isinstance(key, Mapping):
        for name, value in key.items():
            lines += list_class_lines(name, value)
    return lines
