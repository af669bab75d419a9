"""The values that functions and classes use by name: whether they are still the same, and their encoding.

The text of a function does not change, but a test may give a name another value (``monkeypatch.setattr``). A digest
takes up to a millisecond, and looking up the values of all names again takes some microseconds. So a digest is kept
with the values that it was computed from, and holds as long as every name has the same value.

Scalars, dtypes, members of enums and Triton's types are encoded so that they mean the same in another process.
"""

from __future__ import annotations

import enum
import linecache
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeGuard
from weakref import ref

from pytest_autotune.cache.model import Value, plain_value
from pytest_autotune.tuners.source.attributes import (
    class_attributes,
    class_bases,
    class_module,
    class_mro,
    class_name,
    find_object_attribute,
    has_type,
    is_dataclass_instance,
    is_descriptor,
    is_instance,
    list_field_values,
    list_parts,
    list_stored_attributes,
    mangled_name,
    module_attributes,
    read_stored,
)
from pytest_autotune.tuners.source.functions import (
    LibraryName,
    closure_cells,
    find_cell,
    find_name_in_module,
    is_code,
    list_compiled_options,
    list_layers,
    python_function,
    unwrapped,
)
from pytest_autotune.tuners.source.libraries import current_rootdir, is_library_code

#: The module of Triton's language Gluon, which has the classes of layouts.
_GLUON_LANGUAGE = "triton.experimental.gluon.language"
#: Triton's types of values that cannot change, besides its dtypes, with the attributes that distinguish the values.
_TRITON_CORE = "triton.language.core"
_TRITON_VALUES = {
    "pointer_type": ("element_ty", "const", "address_space"),
    "block_type": ("element_ty", "shape"),
    "tuple": ("values",),
}
_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
#: The libraries whose classes of scalars, such as ``numpy.float32``, stand for dtypes.
_DTYPE_CLASSES = ("numpy", "ml_dtypes")
#: The dotted names in a function, each as its parts.
Names = tuple[tuple[str, ...], ...]
#: The types of texts that are made anew at each look.
_TEXTS = frozenset({str, LibraryName})
#: The types of values in which no code can stand. An object may change them in each call.
_PLAIN: frozenset[type] = frozenset({int, str, bool, float, type(None), list, dict, set})


class AssignedNames:
    """The globals and attributes that digested functions assign, such as counters.

    A digest leaves out the values of these names, because each call may change the value. The digest has the statements
    that assign them.
    """

    def __init__(self) -> None:
        #: The names, each after the id of its scope: of its class, of the ``__dict__`` of its module or function, of
        #: another object that has a name, or of the cell of a closure.
        self._names: set[tuple[int, str]] = set()
        #: The attributes of classes that only a running program knows, as in ``cls.count += 1``.
        self._attributes: set[str] = set()
        #: The attributes that methods assign of their object, as in ``self.plan = plan``. Each stands after the module
        #: and the ``__qualname__`` of the class whose body has the method.
        self._members: set[tuple[str, str, str]] = set()

    def add(self, function: FunctionType, names: Names, attributes: Sequence[str], members: Sequence[str]) -> None:
        """Add the names that a function assigns.

        :param names: the dotted names; an attribute of a module or class, a global, or a variable of a function around.
        :param attributes: the attributes of an unnamed class.
        :param members: the attributes of the object that the function is called with, if it is a method.
        """
        # A decorator may have replaced the method in its class. The function's own name still has the class.
        class_of_method = function.__qualname__.rpartition(".")[0]
        for name in attributes:
            self._attributes.add(mangled_name(name, class_of_method))
        for name in members:
            self._members.add((str(function.__module__), class_of_method, mangled_name(name, class_of_method)))
        for *owners, name in names:
            scope: object = None
            if not owners:
                scope = find_cell(function, name)
            if scope is None:
                scope = find_scope(function, owners)
            if scope is None:
                scope = find_named_object(function, owners)
            if owners:
                name = mangled_name(name, class_of_method)
            if scope is not None:
                self._names.add((id(scope), name))

    def add_all(self, names: AssignedNames) -> None:
        """Add the names of another set."""
        self._names |= names._names
        self._attributes |= names._attributes
        self._members |= names._members

    def has_all(self, names: AssignedNames) -> bool:
        """Whether this set has all names of another set."""
        return names._names <= self._names and names._attributes <= self._attributes and names._members <= self._members

    def has_name(self, scope: Mapping[str, object], name: str) -> bool:
        """Whether a global is among the names, whatever its value is."""
        return (id(scope), name) in self._names

    def has_global(self, scope: Mapping[str, object], name: str) -> bool:
        """Whether a global is among the names, and its value is no function or class.

        The functions that assign a module have its text in their digests: they import it, or store it
        in the global.

        :param scope: the ``__dict__`` of a module or function.
        """
        value = scope.get(name)
        return self.has_name(scope, name) and (not is_code(value) or is_instance(value, ModuleType))

    def list_cells(self, function: FunctionType) -> list[str]:
        """Return the variables in the closure of a function that are among the names, and whose values are no code."""
        if not self._names or not function.__closure__:
            return []
        cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
        names = [name for name, cell in cells if (id(cell), name) in self._names]
        return [name for name in names if not is_code(closure_cells(function).get(name))]

    def has_attribute(self, cls: type, name: str) -> bool:
        """Whether an attribute of a class is among the names, and its value is no function or class.

        A module that a method of the class imports is in the digest of this method.
        """
        if name not in self._attributes and (id(cls), name) not in self._names:
            return False
        value = class_attributes(cls).get(name)
        if is_instance(value, ModuleType):
            return self.has_object_of_class(cls, name)
        return not is_code(value) and not is_descriptor(value)

    def has_object_attribute(self, owner: object, cls: type, name: str) -> bool:
        """Whether a function assigns an attribute of an object.

        The function is a method of the object's class or of a base, or it has a name for the object. Any other function
        may assign an attribute of this name to another object.

        :param owner: the object; None if only its class is known.
        """
        if owner is not None and (id(owner), name) in self._names:
            return True
        if not self._members:
            return False
        return any((class_module(base), class_name(base), name) in self._members for base in class_mro(cls))

    def has_object_of_class(self, cls: type, name: str) -> bool:
        """Whether a function assigns an object or module that a class stores.

        The function is a method of this class, or it names the class.
        """
        return (id(cls), name) in self._names or self.has_object_attribute(None, cls, name)


def find_scope(function: FunctionType, owners: Sequence[str]) -> object:
    """Return the object in which ``owner.name = value`` stores the name; None for an object that is not looked at.

    It is a class, or the ``__dict__`` of a module or function. :meth:`AssignedNames.list_cells` is for closures.

    :param owners: the parts of the dotted name of the owner; none for ``name = value`` in the function's own module.
    """
    if not owners:
        return function.__globals__
    owner = find_named_object(function, owners)
    if is_instance(owner, ModuleType):
        return module_attributes(owner)
    if is_instance(owner, type):
        return owner
    if type(owner) is FunctionType:
        return vars(owner)
    return None


def find_named_object(function: FunctionType, path: Sequence[str]) -> object:
    """Return the value of a dotted name in a function; None if an attribute of anything but a module is in the name."""
    first, *attributes = path
    value = closure_cells(function).get(first, function.__globals__.get(first))
    for attribute in attributes:
        if not is_instance(value, ModuleType):
            return None
        value = module_attributes(value).get(attribute)
    return value


#: No names.
NOTHING_ASSIGNED = AssignedNames()


def list_used_values(
    function: FunctionType, names: Names, assigned: AssignedNames = NOTHING_ASSIGNED
) -> list[tuple[str, object]]:
    """Return the values outside a function that it uses by these names: each with its dotted name, sorted by name.

    ===============================================  ==========================================================
    a dotted name in the source                      the result has
    ===============================================  ==========================================================
    ``ops.math.scale``, with modules of the suite    the function ``scale`` under this dotted name
    ``config.block``, with an object                 the object under the name ``config``
    ``helper.limit``, with a function of the suite   the function under ``helper``, the value under ``helper.limit``
    ``tl.exp``, with a library's module              nothing, or the function's public name: see
                                                     :func:`find_name_in_module`
    ``tl.gather``, after ``tl.gather = gather``      the kernel ``gather`` of the user under this dotted name
    ===============================================  ==========================================================

    :param names: the dotted names in the function's source.
    :param assigned: the names that are left out.
    """
    cells = closure_cells(function)
    assigned_cells = assigned.list_cells(function)
    if assigned_cells:
        names = tuple([name for name in names if name[0] not in assigned_cells])
    return list_values_of_names(cells, function.__globals__, names, assigned)


def list_values_of_names(
    variables: Mapping[str, object], module_globals: Mapping[str, object], names: Names, assigned: AssignedNames
) -> list[tuple[str, object]]:
    """Return the values of dotted names; see :func:`list_used_values`.

    :param variables: the values of the names that are no globals.
    """
    values: dict[str, object] = {}
    for name, *attributes in names:
        if name in variables:
            scope = variables
        elif name in module_globals:
            scope = module_globals
        else:
            # A builtin, or a name that has no value yet.
            continue
        path, value, remaining_attributes = _follow_modules(name, scope[name], attributes, assigned)
        if is_instance(value, ModuleType) or assigned.has_global(scope, name):
            continue
        values[path] = value
        if remaining_attributes:
            attribute = remaining_attributes[0]
            if _is_attribute_of_function(value, attribute, assigned):
                values[f"{path}.{attribute}"] = vars(value)[attribute]
    return [(path, values[path]) for path in sorted(values)]


def _is_attribute_of_function(value: object, attribute: str, assigned: AssignedNames) -> TypeGuard[FunctionType]:
    """Whether a value is a function of the user that has an attribute, such as ``helper.limit``."""
    if type(value) is not FunctionType or attribute not in vars(value):
        return False
    # functools.wraps() sets __wrapped__. A special name such as __dict__ stands for no attribute of the user.
    if attribute.startswith("__") and attribute != "__wrapped__":
        return False
    return not is_library_code(value) and not assigned.has_global(vars(value), attribute)


class _FollowedName(NamedTuple):
    """The value that a dotted name leads to through modules: for ``ops.config.block``, the object ``ops.config``.

    :param path: the dotted name of the value.
    :param remaining_attributes: the names after the path, such as ``block``. They were not followed.
    """

    path: str
    value: object
    remaining_attributes: Sequence[str]


def _follow_modules(name: str, value: object, attributes: Sequence[str], assigned: AssignedNames) -> _FollowedName:
    """Follow the attributes of a name, as long as their owner is a module of the user.

    If an attribute is among the assigned names, or nothing is known of a library's attribute, the value is the module.

    :param value: the value of the name itself.
    """
    path = name
    for position, attribute in enumerate(attributes):
        if not is_instance(value, ModuleType):
            return _FollowedName(path, value, attributes[position:])
        path += f".{attribute}"
        if is_library_code(value):
            known_value = _find_added_kernel(value, attribute)
            if known_value is None:
                known_value = find_name_in_module(value, attribute, path) or value
            return _FollowedName(path, known_value, attributes[position + 1 :])
        if assigned.has_global(module_attributes(value), attribute):
            return _FollowedName(path, value, attributes[position + 1 :])
        # Not getattr(): a module may have a __getattr__ that runs code of the user.
        value = module_attributes(value).get(attribute)
    return _FollowedName(path, value, remaining_attributes=())


def _find_added_kernel(library: ModuleType, attribute: str) -> object:
    """Return the kernel of the user that a module of the suite has put into a library's module; None if there is none.

    Functions that are no kernels do not count: tests replace functions of libraries, for example by ``monkeypatch``.
    """
    value = module_attributes(library).get(attribute)
    # A kernel is an object of Triton, and stores its function in this attribute.
    if type(value) is FunctionType or read_stored(value, "fn") is None:
        return None
    function = python_function(value)
    if function is None or is_library_code(function):
        return None
    return value


def list_defaults(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the parameters with a default, and the default. The text lacks the defaults that a factory computed."""
    values = function.__defaults__ or ()
    code = function.__code__
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    yield from zip(names, values, strict=True)
    yield from sorted((function.__kwdefaults__ or {}).items())


class _Value:
    """A value that a digest was computed from.

    It is held weakly if it can be: a digest must not keep a tensor, or the function that it is for, alive.
    """

    __slots__ = ("_reference", "_value")

    def __init__(self, value: object) -> None:
        self._reference: ref[object] | None = None
        self._value: object = None
        if has_type(value, _TEXTS):
            self._value = value
            return
        try:
            self._reference = ref(value)
        except TypeError:  # such as a number or a tuple
            self._value = value

    def get(self) -> object:
        """Return the value; None if it is gone."""
        if self._reference is not None:
            return self._reference()
        return self._value

    def is_still(self, value: object) -> bool:
        """Whether a value is this value, or an equal text."""
        if self._reference is not None:
            return self._reference() is value
        if has_type(value, _TEXTS):
            return value == self._value
        return value is self._value


@dataclass(frozen=True)
class _FunctionState:
    """The values that a function had when its digest was computed.

    :param kernel: the function, or the object that its decorators made of it.
    :param names: the dotted names in the function's source.
    :param assigned: the names whose values do not count.
    :param values: each value that counts, with a name for it.
    """

    kernel: _Value
    function: ref[FunctionType]
    names: Names
    assigned: AssignedNames
    values: tuple[tuple[str, _Value], ...]

    @classmethod
    def build(cls, kernel: object, function: FunctionType, names: Names, assigned: AssignedNames) -> _FunctionState:
        values = tuple([(name, _Value(value)) for name, value in _list_values(kernel, function, names, assigned)])
        return cls(_Value(kernel), ref(function), names, assigned, values)

    def still_holds(self) -> bool:
        """Whether the function has the same code and values."""
        function = self.function()
        if function is None:
            return False
        return _are_still(self.values, _list_values(self.kernel.get(), function, self.names, self.assigned))


def _list_values(
    kernel: object, function: FunctionType, names: Names, assigned: AssignedNames
) -> list[tuple[str, object]]:
    """Return all values that the digest of a function may depend on, each with a name.

    The values named ``option`` are texts such as ``noinline=True``; see :func:`list_compiled_options`.
    """
    # A test may replace even the code of a function: helper.__code__ = other.__code__.
    values: list[tuple[str, object]] = [("code", function.__code__)]
    values += list_used_values(function, names, assigned)
    if function.__closure__:
        # The search for the members of a method (objects.py) follows all values of a closure, and passes no names. So
        # variables that the code assigns with nonlocal are here, too. After such an assignment, the digest is computed
        # again, and is the same.
        values += closure_cells(function).items()
    values += list_defaults(function)
    values += vars(function).items()
    if kernel is not function:
        layers = list(list_layers(kernel))
        values += [("layer", layer) for layer in layers]
        values += [("option", option) for option in list_compiled_options(layers)]
    return values


@dataclass(frozen=True)
class _ClassState:
    """The bases and attributes that a class had when its digest was computed."""

    cls: ref[type]
    assigned: AssignedNames
    values: tuple[tuple[str, _Value], ...]

    @classmethod
    def build(cls, subject: type, assigned: AssignedNames) -> _ClassState:
        values = tuple([(name, _Value(value)) for name, value in _list_attributes(subject, assigned)])
        return cls(ref(subject), assigned, values)

    def still_holds(self) -> bool:
        """Whether the class has the same bases and attributes."""
        subject = self.cls()
        return subject is not None and _are_still(self.values, _list_attributes(subject, self.assigned))


def _list_attributes(cls: type, assigned: AssignedNames) -> list[tuple[str, object]]:
    """Return the bases and attributes of a class, each with a name."""
    attributes: list[tuple[str, object]] = [("base", base) for base in class_bases(cls)]
    for name, value in class_attributes(cls).items():
        if not assigned.has_attribute(cls, name):
            attributes.append((name, value))
    return attributes


@dataclass(frozen=True)
class _ClassBodyState:
    """The values that names in the body of a class had when a digest was computed.

    :param names: the dotted names in the statements that the digest depends on.
    """

    cls: ref[type]
    assigned: AssignedNames
    names: Names
    values: tuple[tuple[str, _Value], ...]

    @classmethod
    def build(cls, subject: type, assigned: AssignedNames, names: Names) -> _ClassBodyState:
        values = tuple([(name, _Value(value)) for name, value in list_values_in_class(subject, names, assigned)])
        return cls(ref(subject), assigned, names, values)

    def still_holds(self) -> bool:
        """Whether the names have the same values."""
        subject = self.cls()
        return subject is not None and _are_still(self.values, list_values_in_class(subject, self.names, self.assigned))


def list_values_in_class(cls: type, names: Names, assigned: AssignedNames) -> list[tuple[str, object]]:
    """Return the values of dotted names in the body of a class; see :func:`list_used_values`."""
    own_attributes = class_attributes(cls)
    attributes: dict[str, object] = {}
    for name, *_ in names:
        if name in own_attributes and not assigned.has_attribute(cls, name):
            attributes[name] = own_attributes[name]
    return list_values_of_names(attributes, find_module_of_class(cls), names, assigned)


def find_module_of_class(cls: type) -> Mapping[str, object]:
    """Return the attributes of the module that a class is in; none if the module is unknown."""
    module = sys.modules.get(class_module(cls))
    if not is_instance(module, ModuleType):
        return {}
    return module_attributes(module)


@dataclass(frozen=True)
class _ObjectState:
    """The class of an object, and the attributes that it stored when a digest was computed, besides plain values.

    :param names: the names of the attributes; None for all.
    """

    owner: _Value
    names: tuple[str, ...] | None
    values: tuple[tuple[str, _Value], ...]

    @classmethod
    def build(cls, owner: object, names: tuple[str, ...] | None) -> _ObjectState:
        values = tuple([(name, _Value(value)) for name, value in _list_object_attributes(owner, names)])
        return cls(_Value(owner), names, values)

    def still_holds(self) -> bool:
        """Whether the object has the same class, and stores the same objects under these names."""
        return _are_still(self.values, _list_object_attributes(self.owner.get(), self.names))


def _list_object_attributes(owner: object, names: tuple[str, ...] | None) -> list[tuple[str, object]]:
    """Return the class of an object, and its attributes under these names, or all, without plain values."""
    if names is None:
        attributes = list_stored_attributes(owner)
    else:
        attributes = [(name, find_object_attribute(owner, name)) for name in names]
    values: list[tuple[str, object]] = [("class", type(owner))]
    values += [(name, value) for name, value in attributes if not has_type(value, _PLAIN)]
    return values


@dataclass(frozen=True)
class _ConstantState:
    """The parts that a frozen dataclass's object or a ``partial`` had when a digest was computed.

    ``object.__setattr__`` and ``partial.__setstate__`` change them.
    """

    constant: _Value
    values: tuple[tuple[str, _Value], ...]

    @classmethod
    def build(cls, constant: object) -> _ConstantState:
        return cls(_Value(constant), tuple([(name, _Value(value)) for name, value in _list_parts(constant)]))

    def still_holds(self) -> bool:
        """Whether the value has the same parts."""
        return _are_still(self.values, _list_parts(self.constant.get()))


def _list_parts(constant: object) -> list[tuple[str, object]]:
    """Return the parts of a frozen dataclass's object or of a ``partial``, each with a name."""
    if is_instance(constant, partial):
        return [("part", part) for part in [*list_parts(constant), *constant.keywords]]
    return [("class", type(constant)), *list_stored_attributes(constant)]


def _are_still(kept: Sequence[tuple[str, _Value]], values: Sequence[tuple[str, object]]) -> bool:
    """Whether the values of now are the kept values, in the same order and under the same names."""
    if len(kept) != len(values):
        return False
    for (kept_name, kept_value), (name, value) in zip(kept, values, strict=True):
        if kept_name != name or not kept_value.is_still(value):
            return False
    return True


class UsedValues:
    """The values that one digest was computed from.

    :param assigned: the names whose values the digest leaves out.
    :param is_kept: whether the caller keeps the digest for later lookups. If it does not, no value is kept either.
    """

    def __init__(self, assigned: AssignedNames, is_kept: bool) -> None:
        self._assigned = assigned
        self._rootdir: Path | None = current_rootdir()
        self._states: list[_FunctionState | _ClassState | _ClassBodyState | _ObjectState | _ConstantState] = []
        self._can_be_compared = is_kept

    def add_function(self, kernel: object, function: FunctionType, names: Names) -> None:
        """Keep the values that a function has now.

        :param kernel: the function, or the object that its decorators made of it.
        """
        if self._can_be_compared:
            self._states.append(_FunctionState.build(kernel, function, names, self._assigned))

    def add_class(self, cls: type) -> None:
        """Keep the attributes that a class has now."""
        if self._can_be_compared:
            self._states.append(_ClassState.build(cls, self._assigned))

    def add_names_in_class(self, cls: type, names: Names) -> None:
        """Keep the values that dotted names in the body of a class have now."""
        if self._can_be_compared and names:
            self._states.append(_ClassBodyState.build(cls, self._assigned, names))

    def add_object(self, owner: object, names: tuple[str, ...] | None) -> None:
        """Keep what an object stores now.

        :param names: the names of the attributes; None for all.
        """
        if self._can_be_compared:
            self._states.append(_ObjectState.build(owner, names))

    def add_constant(self, constant: object) -> None:
        """Keep the parts that a frozen dataclass's object or a ``partial`` has now."""
        if self._can_be_compared:
            self._states.append(_ConstantState.build(constant))

    def add_other(self) -> None:
        """Note that the digest depends on something else, such as a file: it is computed anew at each lookup."""
        self._can_be_compared = False

    def still_hold(self) -> bool:
        """Whether every name still has the value that it had."""
        if not self._can_be_compared or self._rootdir != current_rootdir():
            return False
        return all(state.still_holds() for state in self._states)


# Values that mean the same in every process.


class DtypeName(str):
    """The name of a dtype in the spelling of its library."""


def scalar_value(name: str, value: object, dtype_apart: bool = False) -> Value:
    """Encode a plain value so that it means the same in another process.

    :param dtype_apart: whether ``torch.float16`` and ``tl.float16`` are two values. Otherwise both are ``fp16``.
    :raises UncacheableError: for a value without a stable form.
    """
    value = unwrapped(value)
    dtype = _find_dtype_name(value, dtype_apart)
    if dtype is not None:
        return Value(name, dtype, "dtype")
    if is_instance(value, enum.Enum):
        return Value(name, f"{class_name(type(value))}.{read_stored(value, '_name_')}", "enum")
    return plain_value(name, value)


#: A folder with such a file is the top of a project, or of a part of it.
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", "pytest.ini", "tox.ini", ".git")


def relative_path(text: str, module_files: Sequence[str]) -> str | None:
    """Return a text that is a path, relative to the folder of a module: ``./a.cu`` for ``/repo/tests/a.cu``.

    None for other texts. A path counts relative to a module if both are in one project: such a text has the place of
    the checkout. A text that stands in the source of one of the modules is the same in each checkout. So are the
    folders of the machine.

    :param module_files: the file of the module whose code has the text, such as ``/repo/tests/test_a.py``, then the
        files of the modules that use this code. The first module that the path fits counts.
    """
    if not os.path.isabs(text):
        return None
    for module_file in module_files:
        path = _relative_to_module(text, module_file)
        if path is not None and not _has_text_in_source(text, module_files):
            return path
    return None


def find_last_part(text: str, module_files: Sequence[str]) -> str | None:
    """Return the last part of a path: ``data`` for ``/repo/data``; None for other texts.

    None also for a text in the source of a module, such as ``/opt/data``: it is the same in each checkout. The texts
    ``/`` and ``//`` may be operators, and have no last part.

    :param module_files: see :func:`relative_path`.
    """
    if not os.path.isabs(text) or _has_text_in_source(text, module_files):
        return None
    return os.path.basename(os.path.normpath(text)) or None


def _has_text_in_source(text: str, module_files: Sequence[str]) -> bool:
    """Whether a text stands in quotes in the source of one of several modules."""
    for module_file in module_files:
        source = "".join(linecache.getlines(module_file))
        if f'"{text}"' in source or f"'{text}'" in source:
            return True
    return False


def _relative_to_module(text: str, module_file: str) -> str | None:
    """Return an absolute path relative to the folder of a module; None for a path outside of the module's project.

    ``./a.cu`` for a path in the folder, ``../csrc`` for another path in the project.
    """
    if not os.path.isabs(module_file):
        return None
    folder = os.path.dirname(module_file)
    path_without_end = text.rstrip(os.sep)
    slashes_at_end = text[len(path_without_end) :]
    # os.path.realpath(__file__) has a folder without symbolic links.
    for base in (folder, os.path.realpath(folder)):
        if text == base or text.startswith(base + os.sep):
            return f".{text[len(base) :]}".replace(os.sep, "/")
        project_folder = _find_project_folder(base, current_rootdir())
        if f"{path_without_end}{os.sep}".startswith(project_folder + os.sep):
            return f"{os.path.relpath(text, base)}{slashes_at_end}".replace(os.sep, "/")
    return None


@lru_cache(maxsize=1024)
def _find_project_folder(module_folder: str, rootdir: Path | None) -> str:
    """Return the highest folder above a module that is in its project, or the folder with its package.

    Other folders above are folders of the machine, such as ``/workspace``: two machines may check out the project in
    different places, and both have such a folder. The home folder is a folder of the machine, too, even if it has a
    ``.git``: the search ends below it, unless it is the rootdir.
    """
    project_folder = module_folder
    while os.path.exists(os.path.join(project_folder, "__init__.py")):
        project_folder = os.path.dirname(project_folder)
    folder = project_folder
    home = os.path.realpath(os.path.expanduser("~"))
    is_home_rootdir = rootdir is not None and os.path.realpath(rootdir) == home
    while folder != os.path.dirname(folder):
        if os.path.realpath(folder) == home and not is_home_rootdir:
            break
        if any(os.path.exists(os.path.join(folder, name)) for name in _PROJECT_FILES):
            project_folder = folder
        folder = os.path.dirname(folder)
    return project_folder


def is_dtype_class(value: type) -> bool:
    """Whether a class stands for a dtype, such as ``numpy.float32``."""
    return class_module(value) in _DTYPE_CLASSES


def _find_dtype_name(value: object, apart: bool) -> str | None:
    """Return the name of a dtype; None for other values.

    :param apart: whether the name begins with the dtype's library: ``torch.float16``. Triton's own dtypes have the
        short name ``fp16`` in any case.
    """
    if is_instance(value, type):
        if not is_dtype_class(value):
            return None
        name = class_name(value)
        module = class_module(value)
    elif _is_dtype(value):
        name = str(value).removeprefix("torch.")
        module = class_module(type(value))
    else:
        return None
    if apart and not module.startswith(("triton.", "pytest_autotune.")):
        library = module.split(".")[0]
        return f"{library}.{name}"
    return _DTYPES.get(name, name)


def _is_dtype(value: object) -> bool:
    """Whether a value is a dtype of a library, such as ``torch.float16``."""
    if is_instance(value, DtypeName):
        return True
    module = class_module(type(value))
    # numpy has a class for each of its dtypes, such as numpy.dtypes.Float32DType.
    if module == "numpy.dtypes":
        return True
    word = class_name(type(value)).rpartition(".")[2]
    return word == "dtype" or (module == "cuda.tile" and word == "DType")


def list_layout_fields(value: object) -> list[tuple[str, object]]:
    """Return the names and values of the fields of a Gluon layout; an empty list for other values.

    A layout is a frozen dataclass with lists, such as ``BlockedLayout([1], [32], [4], [0])``. Nobody changes these
    lists. So each is returned as a tuple, which counts as a value that cannot change.
    """
    is_of_gluon = any(class_module(cls).startswith(_GLUON_LANGUAGE) for cls in class_mro(type(value)))
    if not is_of_gluon or not is_dataclass_instance(value):
        return []
    return [(name, _with_tuples(field_value)) for name, field_value in list_field_values(value)]


def _with_tuples(value: Any) -> Any:
    """Return a list as a tuple, and also each list inside it or inside a tuple; other values as they are."""
    if type(value) is list or type(value) is tuple:
        return tuple([_with_tuples(item) for item in value])
    return value


def list_triton_items(value: Any) -> list[tuple[str, object]] | None:
    """Return the attributes that a type or tuple of Triton has under all versions; None for other values."""
    names = _TRITON_VALUES.get(class_name(type(value)))
    if names is None or class_module(type(value)) != _TRITON_CORE:
        return None
    items: list[tuple[str, object]] = []
    for name in names:
        attribute = getattr(value, name)
        if name in ("shape", "values"):
            items.append((name, tuple(attribute)))
        elif name == "address_space" and attribute in (1, "global"):
            # The default is 1 in Triton 3.4 and "global" later. Without it, all versions give the same items.
            continue
        else:
            items.append((name, attribute))
    return items
