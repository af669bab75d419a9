"""A digest of a kernel's source that changes when the kernel changes, and only then.

The rule is the same for every tuner: a digest follows names. It holds the function as Python's parser sees it, without
docstrings and without the function's own decorators. It is therefore equal on every version of Python, and does not
depend on the layout or on the place of the function in its file. The digest also holds everything that the function
names, and so on from there:

- functions and classes of the suite, and the public name of a library's function if the source has another name;
- values that cannot change: numbers, text, dtypes, members of an enum, tuples and frozen dataclasses of these;
- options of decorators that are compiled in;
- the members of the suite's objects: the method ``launch`` for ``obj.launch(n)``.

Values that may change while tests run are left out: lists, dicts, sets, the data of all other objects, and values that
the source does not name. So a log, a counter or a memo makes no choice stale. If such a value matters, it belongs to
the key. In a closure, such a value makes the problem uncacheable, if values in closures count: two
functions of a factory may differ in nothing else. docs/reference/source-digest.md has the rule in a user's words.

Begin to read here: each adapter calls the functions of this module. A module uses only modules below it:

==================  ==============================================================================================
module              what it does
==================  ==============================================================================================
source_digest       the functions for adapters: :func:`read_source` for a kernel, :func:`stable_value` for a value of
                    a key, :func:`callable_text` for a hook
code_digests        computes a digest: the text of a function or class, and of each value that it uses, and so on
objects             finds the methods that code reaches through an object: ``launch`` for ``obj.launch(n)``
module_text         reads the source of a class, and of modules that a function imports when it runs
values              looks up the values of a function's names, tells whether they are still the same, and encodes
                    scalars and dtypes
code_text           reads the source of a function: its text, and the names, members and imports in it
compiled_code       finds a lambda, or the code of an edited file, by compiling the file
functions           takes decorators off a kernel, and finds the public name of a library's function
libraries           tells the user's code from the code of libraries, and finds their versions
attributes          reads attributes without running code of the user
==================  ==============================================================================================

For a kernel, :func:`read_source` calls :meth:`.CodeDigests.digest_function`. This method reads the function
(``code_text.read_function``) and looks up its values (``values.list_used_values``). Each value of the user is digested
in turn: a function by ``digest_function``, a class by ``digest_class``, an object by ``describe_code_in``, which asks
``objects`` for the members. ``UsedValues`` keeps all values that were read, so a caller can use the digest again as
long as they are the same.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType
from typing import Any

from pytest_autotune.cache.model import UncacheableError, Value, plain_value
from pytest_autotune.tuners.source.attributes import (
    class_attributes,
    class_module,
    class_name,
    is_instance,
    is_scalar,
    list_items,
)
from pytest_autotune.tuners.source.code_digests import CodeDigests, list_passes
from pytest_autotune.tuners.source.code_digests import digest as digest
from pytest_autotune.tuners.source.code_text import UncacheableErrors
from pytest_autotune.tuners.source.functions import (
    find_public_name,
    find_shortest_name,
    is_builtin_function,
    list_implementations,
    python_function,
    qualified_name,
    unwrapped,
)
from pytest_autotune.tuners.source.functions import is_code as is_code
from pytest_autotune.tuners.source.libraries import Distribution, Libraries
from pytest_autotune.tuners.source.values import DtypeName, UsedValues, is_dtype_class, scalar_value

#: The type of a fingerprint's value that is a digest of source. A new rule for digests gets a new name.
FORM = "digest.2"
#: A kernel whose source has more parts gets a note.
MOST_PARTS = 500


def is_library_class(value: object) -> bool:
    """Whether a value is a class of a library, such as a dtype of CuTe."""
    return is_instance(value, type) and Libraries(root=None).has_code(value)


def source_digest(kernel: object, *, own_cells: bool = False, named: bool = True, carried: bool = True) -> str:
    """Return the digest of a kernel's source with everything of the user's own that it uses.

    The functions of the kernel's ``triton.heuristics`` are included.

    Each call looks up the values of names again, because a global may have changed.

    :param kernel: a Python function, or the object that its decorators made of it.
    :param own_cells: whether plain values in the kernel's own closure count. They do not count if kernels of a factory
        share their source, and the key holds the values in which they differ.
    :param named: whether the kernel's own name counts. It does not count if a renamed kernel is the same kernel.
    :param carried: whether plain values in all closures and defaults count. False leaves out values that may belong to
        a single call of a tuner, such as a test's tensors in the closure of a callback. Those in code of a module
        count, see :meth:`.CodeDigests._in_code_made_by_import`.
    :raises UncacheableError: if the source of a function cannot be read.
    """
    return read_source(kernel, own_cells=own_cells, named=named, carried=carried, includes_heuristics=True).digest


def source_parts(
    kernel: object, *, own_cells: bool = False, named: bool = True, carried: bool = True
) -> dict[str, str]:
    """Return a digest of each function, class and constant that :func:`source_digest` covers, by its name.

    The digest of a function does not cover the code that the function uses, so a changed function is the only changed
    part.
    """
    return read_source(kernel, own_cells=own_cells, named=named, carried=carried, includes_heuristics=True).parts


@dataclass(frozen=True)
class DigestedSource:
    """The source of a kernel, with everything of the user's own that it uses.

    :param parts: see :func:`source_parts`.
    :param libraries: the installed distributions whose functions the kernel uses, besides the known packages.
    :param used_values: the values that the digest was computed from; None if they were not kept.
    """

    digest: str
    parts: dict[str, str]
    libraries: frozenset[Distribution] = frozenset()
    used_values: UsedValues | None = field(default=None, repr=False, compare=False)

    def note(self, kernel: str) -> str:
        """Return a line for the summary if the source has more than ``MOST_PARTS`` parts; else an empty text.

        A library that is not installed, such as a checkout on the path, is probably among so many parts.
        """
        if len(self.parts) <= MOST_PARTS:
            return ""
        edits = f"an edit of any of {len(self.parts):,} functions and constants makes its choices stale"
        return f"{kernel}: {edits}: install the libraries among them with pip, so that their code is left out"


def read_source(
    kernel: object,
    *,
    own_cells: bool = False,
    named: bool = True,
    carried: bool = True,
    includes_heuristics: bool = False,
    is_kept: bool = False,
) -> DigestedSource:
    """Return the source of a kernel; see :func:`source_digest` for the other parameters and the errors.

    :param includes_heuristics: whether the functions of the kernel's ``triton.heuristics`` count. False for Triton's
        adapter, which reads them itself.
    :param is_kept: whether the caller keeps the source, and asks at later lookups whether its ``used_values`` still
        hold.
    """
    function = _find_function(kernel)
    implementations = list_implementations(function)
    if implementations:
        return _read_implementations(implementations, carried)
    with UncacheableErrors():
        for digests in list_passes(carried, function, is_kept):
            if includes_heuristics:
                text = digests.digest_kernel(kernel, own_cells, named)
            else:
                text = digests.digest_function(kernel, own_cells, named)
    return _build_source(text, digests)


def _find_function(kernel: object) -> FunctionType:
    """Return the Python function inside a kernel or method.

    :raises UncacheableError: if there is none.
    """
    function = python_function(kernel)
    if function is None:
        raise UncacheableError(f"no Python function is found in a {class_name(type(kernel))}")
    return function


def _build_source(text: str, digests: CodeDigests) -> DigestedSource:
    """Return a digest as a source, with the parts, libraries and values that it was computed from."""
    return DigestedSource(text, digests.parts, frozenset(digests.libraries.left_out), digests.used_values)


def _read_implementations(implementations: Mapping[type, object], carried: bool) -> DigestedSource:
    """Return the source of a function under ``functools.singledispatch``.

    :param implementations: the function for each class of the first argument.
    """
    sources = []
    for cls in sorted(implementations, key=find_public_name):
        name = find_public_name(cls)
        sources.append(DigestedSource(digest(name), {}))
        implementation = implementations[cls]
        sources.append(read_source(implementation, own_cells=carried, carried=carried, includes_heuristics=True))
    return combine_sources(sources)


def combine_sources(sources: Sequence[DigestedSource]) -> DigestedSource:
    """Return several sources as one, such as those of a kernel and of the functions that launch it."""
    if len(sources) == 1:
        return sources[0]
    libraries: set[Distribution] = set()
    for source in sources:
        libraries |= source.libraries
    text = digest("\n".join(source.digest for source in sources))
    return DigestedSource(text, combine_parts([source.parts for source in sources]), frozenset(libraries))


def combine_parts(parts_of_sources: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the parts of several sources by name. Different functions of one name have one part, which covers all."""
    combined: dict[str, str] = {}
    for parts in parts_of_sources:
        for name, part_digest in parts.items():
            combined_digest = combined.get(name, part_digest)
            if combined_digest != part_digest:
                part_digest = digest(combined_digest + part_digest)
            combined[name] = part_digest
    return combined


def read_method_source(method: object, cls: type, owner: object) -> DigestedSource:
    """Return the digest of a method and its parts. Plain values that functions of a test carry are left out.

    :param cls: the class of the object that the method is called with.
    :param owner: the object, for the code that it stores; None if it stores nothing.
    :raises UncacheableError: if the source of a function cannot be read.
    """
    with UncacheableErrors():
        for digests in list_passes(carried=False, root=_find_function(method), is_kept=True):
            text = digests.digest_method(method, cls, owner)
    return _build_source(text, digests)


def read_class_source(cls: type) -> DigestedSource:
    """Return the digest of a class and its parts. Plain values that functions of a test carry are left out.

    :raises UncacheableError: if the source of a function cannot be read.
    """
    with UncacheableErrors():
        for digests in list_passes(carried=False, root=cls, is_kept=True):
            text = digests.digest_class(cls)
    return _build_source(text, digests)


def read_code_in_values(
    values: Iterable[object], root: FunctionType | type | None, carried: bool = False, in_any_order: bool = False
) -> DigestedSource | None:
    """Return the source of the user's code that values lead to, such as the arguments of a ``partial``.

    None if they lead to none.

    :param root: the function or class that the values are for.
    :param carried: whether plain values in closures and defaults count.
    :param in_any_order: whether the order and the repetition of values do not change the source.
    :raises UncacheableError: if the source of a function cannot be read.
    """
    with UncacheableErrors():
        for digests in list_passes(carried, root):
            described = [digests.describe_code_in(value) for value in values]
    texts = [text for text in described if text is not None]
    if in_any_order:
        texts = sorted(set(texts))
    return _build_source_of_texts(texts, digests)


def read_code_in_objects(function: FunctionType) -> DigestedSource | None:
    """Return the source of the user's code that a function reaches through objects that it names; None without any.

    :raises UncacheableError: if the source of a function cannot be read.
    """
    with UncacheableErrors():
        for digests in list_passes(carried=False, root=function):
            texts = digests.describe_objects(function)
    return _build_source_of_texts(texts, digests)


def _build_source_of_texts(texts: Sequence[str], digests: CodeDigests) -> DigestedSource | None:
    """Return texts as one source; None without any."""
    if not texts:
        return None
    return _build_source(digest("\n".join(texts)), digests)


def class_digest(cls: type) -> str:
    """Return the digest of a class: its text, its methods with the code that they use, and its attributes' values.

    :raises UncacheableError: if no digest can be made.
    """
    with UncacheableErrors():
        for digests in list_passes(carried=True, root=cls):
            text = digests.digest_class(cls)
    return text


def immutable_text(value: object) -> str | None:
    """Return the text of a value that cannot change, equal in every process; None for other values."""
    with UncacheableErrors():
        return CodeDigests(carried=True, root=None).describe_constant(value)


def _immutable_text(value: object) -> str:
    """Return the text of a value that cannot change.

    :raises UncacheableError: for other values.
    """
    text = immutable_text(value)
    if text is None:
        raise UncacheableError(f"a {class_name(type(value))} has no stable form")
    return text


def has_names(value: object) -> bool:
    """Whether a value is a member of an enum, a named tuple, or a sequence with such a value.

    A key does not hold the definition of such a class: the values of an enum's names, and the names of a tuple.
    """
    if is_scalar(value):  # for speed: most values are scalars
        return False
    value = unwrapped(value)
    if isinstance(value, enum.Enum) or hasattr(value, "_fields"):
        return True
    return isinstance(value, (tuple, list)) and any(map(has_names, value))


def stable_value(name: str, value: object, dtype_apart: bool = False, carried: bool = True) -> Value:
    """Encode a value so that it means the same in another process.

    The value may be a plain scalar (also of numpy), a dtype of any library, a member of an enum, a class, a library's
    function that is written in C, a function with a name and the values in its closure, or a tuple or list of these.

    :param dtype_apart: whether ``torch.float16`` and ``tl.float16`` are two values. They are two values for Triton as
        arguments of a kernel, and the same value as the dtype of a tensor.
    :param carried: whether values in the closures and defaults of functions count.
    :raises UncacheableError: for a value without a stable form, such as a tensor, and a name that UTF-8 cannot encode.
    """
    if is_scalar(value):  # for speed: most values are scalars, and a space has hundreds of values
        return plain_value(name, value)
    if type(value) is DtypeName:  # for speed: the key of a kernel has the dtype of each tensor
        return scalar_value(name, value, dtype_apart)
    with UncacheableErrors():
        return _encode_value(name, value, dtype_apart, carried)


def _encode_value(name: str, value: object, dtype_apart: bool, carried: bool) -> Value:
    """Encode a value that is no plain scalar; see :func:`stable_value`."""
    inner = unwrapped(value)
    if is_instance(inner, (tuple, list)) and not is_instance(inner, enum.Enum):
        encoded_items = []
        for item in list_items(inner):
            # Without the name, which only the whole value has.
            encoded_items.append(stable_value("", item, dtype_apart, carried).encoded[1:])
        return Value(name, repr(encoded_items), "tuple")
    function = python_function(inner)
    if function is not None:
        source = source_digest(inner, own_cells=True, carried=carried)
        return Value(name, f"{qualified_name(function)}@{source}", "function")
    if is_instance(inner, type) and not is_dtype_class(inner):
        return _class_value(name, inner)
    if _is_c_function(inner):
        return Value(name, find_public_name(inner), "function")
    return scalar_value(name, value, dtype_apart)


def _is_c_function(value: object) -> bool:
    """Whether a value is a function of a library written in C, such as ``torch.relu``, ``numpy.add`` or ``str.upper``.

    A method that is bound to an object, such as ``tensor.add``, does not count: its name does not tell the object.
    """
    is_ufunc = class_module(type(value)) == "numpy" and class_name(type(value)) == "ufunc"
    is_function = is_ufunc or is_instance(value, (BuiltinFunctionType, MethodDescriptorType))
    return is_function and is_builtin_function(value)


def _class_value(name: str, cls: type) -> Value:
    """Encode a class of a library by its public name, and a class of the suite by its name and its digest.

    :raises UncacheableError: for a class that has no public name in its library.
    """
    if not is_library_class(cls):
        return Value(name, f"{class_module(cls)}.{class_name(cls)}@{class_digest(cls)}", "class")
    public_name = find_shortest_name(cls)
    if not public_name:
        raise UncacheableError(f"{name} is the class {class_name(cls)}, which its library {class_module(cls)} has not")
    return Value(name, public_name, "class")


def callable_text(value: object, carried: bool = True) -> str:
    """Return the text of a user's function that a tuner calls besides the kernel, such as a hook of a config.

    - A function, or a decorated function: its name and the digest of its source.
    - A ``partial``: the text of its function, and its arguments.
    - A bound method: the text of the method, its object, and the digest of the object's class.
    - An object with a ``__call__``: the text of this method and the object.
    - A function that is not written in Python: its name.

    :param carried: whether the values in closures, the arguments of a ``partial``, and objects count.
    :raises UncacheableError: if a value has no stable form, or a source cannot be read.
    """
    with UncacheableErrors():
        return _describe_callable(value, carried)


def _describe_callable(value: object, carried: bool) -> str:
    """Return the text of a function or callable object; see :func:`callable_text`."""
    if is_instance(value, partial):
        return _describe_partial(value, carried)
    if is_instance(value, MethodType):
        return _describe_method(value.__func__, value.__self__, carried)
    if is_instance(value, BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    call_method = class_attributes(type(value)).get("__call__")
    # A decorator may be an object with a __call__, too. Then the function inside the decorator counts.
    if python_function(value) is None and type(call_method) is FunctionType:
        return _describe_callable_object(value, call_method, carried)
    return str(stable_value("hook", value, carried=carried).value)


def _describe_partial(value: partial[Any], carried: bool) -> str:
    """Return ``function()`` with the arguments, or without arguments if these do not count."""
    function_text = callable_text(value.func, carried)
    if not carried:
        return f"{function_text}()"
    keywords = tuple(sorted(value.keywords.items()))
    return f"{function_text}({_immutable_text(value.args)}, {_immutable_text(keywords)})"


def _describe_method(function: object, owner: object, carried: bool) -> str:
    """Return the text of a method that is bound to an object or a class."""
    cls = owner
    owner_text = ""
    if not is_instance(cls, type):
        cls = type(owner)
        if carried:
            owner_text = _immutable_text(owner)
    return f"{callable_text(function, carried)} of {owner_text} {class_digest(cls)}"


def _describe_callable_object(value: object, call_method: object, carried: bool) -> str:
    """Return the text of an object's ``__call__`` with the object; with its class if the object does not count."""
    call_text = callable_text(call_method, carried)
    if carried:
        return f"{call_text} of {_immutable_text(value)}"
    return f"{call_text} of {class_digest(type(value))}"
