"""Reads types and attributes as Python stores them, so that no code of the user runs.

A digest looks at all objects that a kernel names. ``getattr()``, ``isinstance()`` and ``vars()`` may call code of these
objects: a property, ``__getattr__``, the property ``__class__`` of a proxy, or a method of a metaclass. Such code could
raise an error or change a counter of the test, so the functions here take its place.
"""

from __future__ import annotations

import enum
from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import MISSING as MISSING_DEFAULT
from dataclasses import Field, fields
from functools import cached_property, partial
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, TypeGuard, TypeVar, overload

_T = TypeVar("_T")
#: The type of the accessor that the class of a named tuple has for each field: the private ``_tuplegetter``.
_TupleAccessorType: Any = type(vars(namedtuple("_Tuple", ["field"]))["field"])
#: The kinds of attributes that the interpreter itself reads, such as a slot.
_STORED = frozenset({MemberDescriptorType, GetSetDescriptorType})
_TYPE: Mapping[str, Any] = type.__dict__
#: These functions read a slot of a class or module. They are called for each class above an object.
_read_class_dict: Any = _TYPE["__dict__"].__get__
_read_mro: Any = _TYPE["__mro__"].__get__
_read_module_dict: Any = vars(ModuleType)["__dict__"].__get__
#: The modules of wrapt's proxies that are written in C.
_PROXY_MODULES = frozenset({"_wrappers", "wrapt._wrappers", "wrapt.wrappers"})
#: The flag ``Py_TPFLAGS_HEAPTYPE``.
_HEAP_TYPE = 1 << 9
#: The attributes that Python gives to every function, such as ``__module__``.
_OF_FUNCTIONS = frozenset(dir(FunctionType))
#: The kinds of methods that a class stores. An attribute of the object itself comes before them.
_METHODS = frozenset({FunctionType, staticmethod, classmethod})
_SCALARS: frozenset[type] = frozenset({int, str, bool, float, type(None)})
#: The default of :func:`read_stored` if a caller must tell a missing attribute from None.
MISSING = object()


@overload
def is_instance(value: object, classes: type[_T]) -> TypeGuard[_T]: ...
@overload
def is_instance(value: object, classes: tuple[type, ...]) -> TypeGuard[Any]: ...
def is_instance(value: object, classes: type | tuple[type, ...]) -> bool:
    """Whether the type of a value is one of these classes or a subclass. ``isinstance()`` asks ``__class__``, too."""
    return issubclass(type(value), classes)


def has_type(value: object, classes: frozenset[type]) -> bool:
    """Whether the type of a value is exactly one of these classes, which have no metaclass."""
    cls = type(value)
    # A metaclass may have a hash of the user.
    return type(cls) is type and cls in classes


def is_scalar(value: object) -> bool:
    """Whether a value is None or a plain number, text or bool. It has no code and nothing inside."""
    # A copy of has_type(), for speed: a fingerprint has hundreds of values.
    cls = type(value)
    return type(cls) is type and cls in _SCALARS


def class_attributes(cls: type) -> Mapping[str, Any]:
    """Return the attributes that a class itself has, without those of its bases."""
    attributes: Mapping[str, Any] = _read_class_dict(cls)
    return attributes


def class_mro(cls: type) -> tuple[type, ...]:
    """Return a class and the classes that it inherits from, in the order of look-ups."""
    mro: tuple[type, ...] = _read_mro(cls)
    return mro


def class_bases(cls: type) -> tuple[type, ...]:
    """Return the direct bases of a class."""
    bases: tuple[type, ...] = _TYPE["__bases__"].__get__(cls)
    return bases


def class_name(cls: type) -> str:
    """Return the ``__qualname__`` of a class."""
    return str(_TYPE["__qualname__"].__get__(cls))


def class_module(cls: type) -> str:
    """Return the name of a class's module; empty if it is no text, as for the classes of sympy's functions."""
    try:
        module = _TYPE["__module__"].__get__(cls)
    except AttributeError:
        return ""
    if type(module) is not str:
        return ""
    return module


def is_heap_class(cls: type) -> bool:
    """Whether a class was made while the program runs, and is not built into the interpreter."""
    return bool(_TYPE["__flags__"].__get__(cls) & _HEAP_TYPE)


def mangled_name(name: str, qualified_class_name: str) -> str:
    """Return the name under which a class has an attribute: Python mangles a private name such as ``__launch``.

    :param qualified_class_name: the ``__qualname__`` of the class; empty for a name outside of classes.
    """
    word = qualified_class_name.rpartition(".")[2].lstrip("_")
    if not name.startswith("__") or name.endswith("__") or not word.isidentifier():
        return name
    return f"_{word}{name}"


def unmangled_name(stored_name: str, qualified_class_name: str) -> str:
    """Return the name in the source for a name under which a class has an attribute; see :func:`mangled_name`."""
    prefix = mangled_name("__x", qualified_class_name).removesuffix("x")
    if not stored_name.startswith(prefix):
        return stored_name
    return f"__{stored_name.removeprefix(prefix)}"


def module_attributes(module: ModuleType) -> Mapping[str, Any]:
    """Return the attributes that a module has."""
    attributes: Mapping[str, Any] = _read_module_dict(module)
    return attributes


def find_owner(cls: type, name: str) -> type | None:
    """Return the class from which a class has an attribute: itself or a base; None if there is none."""
    for base in _read_mro(cls):
        if name in _read_class_dict(base):
            return base  # type: ignore[no-any-return]
    return None


def find_in_class(cls: type, name: str, default: Any = None) -> Any:
    """Return an attribute of a class as the class or a base stores it; the default if there is none."""
    for base in _read_mro(cls):
        attributes = _read_class_dict(base)
        if name in attributes:
            return attributes[name]
    return default


def is_descriptor(value: object) -> bool:
    """Whether the class of a value has ``__get__``, which computes an attribute that a class stores as this value.

    Functions and properties are descriptors. A bound method is not: under some versions of Python its class has
    ``__get__``, but the attribute is the method itself.
    """
    return find_owner(type(value), "__get__") is not None and not is_instance(value, MethodType)


def read_stored(value: object, name: str, default: Any = None) -> Any:
    """Return an attribute as an object stores it; the default if there is none.

    The first of these that applies has the attribute:

    1. A slot of the object's class, also of a class that is not written in Python. The interpreter reads the slot.
    2. The ``__dict__`` of the object.
    3. If the object is a class: the class and its bases.
    4. If the object is a bound method: its function, by the same steps.
    5. The class of the object, unless the attribute is a method, a property or another descriptor.
    """
    # For speed, steps 1 and 5 are left out: for this name, the class of all functions has nothing.
    if type(value) is FunctionType and name not in _OF_FUNCTIONS:
        return vars(value).get(name, default)
    # Step 1.
    in_class = find_in_class(type(value), name, MISSING)
    if has_type(in_class, _STORED):
        return _read_slot(in_class, value, default)
    # Step 2.
    attributes = own_attributes(value)
    if name in attributes:
        return attributes[name]
    # Step 3.
    if is_instance(value, type):
        attribute = find_in_class(value, name, MISSING)
        if attribute is not MISSING:
            return attribute
    # Step 4.
    if is_instance(value, MethodType):
        return read_stored(value.__func__, name, default)
    # Step 5.
    if in_class is MISSING or is_descriptor(in_class):
        return default
    return in_class


def _read_slot(slot: Any, value: object, default: Any) -> Any:
    """Return the value of an object's slot; the default if the slot is empty, or reading it may run code of the user.

    :param slot: the slot, as the class of the object has it.
    """
    if _runs_code(slot, type(value)):
        return default
    try:
        return slot.__get__(value, type(value))
    except AttributeError:  # the slot is empty
        return default


def _runs_code(slot: Any, cls: type) -> bool:
    """Whether reading a slot may run code of the user: a proxy of wrapt asks the object behind it for the attribute.

    The slot ``__wrapped__`` has that object itself. Only a lazy proxy calls the user's code to make the object.

    :param cls: the class whose object has the slot.
    """
    if class_module(slot.__objclass__) not in _PROXY_MODULES:
        return False
    if slot.__name__ != "__wrapped__":
        return True
    return any(class_name(base) == "LazyObjectProxy" for base in class_mro(cls))


def own_attributes(value: object) -> Mapping[str, Any]:
    """Return the attributes in the ``__dict__`` of an object; none if it has no ``__dict__``."""
    if type(value) is FunctionType:
        return vars(value)
    attributes = find_in_class(type(value), "__dict__")
    if not has_type(attributes, _STORED) or _runs_code(attributes, type(value)):
        return {}
    try:
        own: Mapping[str, Any] = attributes.__get__(value, type(value))
    except (AttributeError, TypeError):
        return {}
    return own


def list_stored_attributes(value: object) -> list[tuple[str, object]]:
    """Return the names and values of the attributes that an object itself stores, also in ``__slots__``, sorted.

    The value that a ``cached_property`` stored is left out, because the object has it only after the first look-up.
    """
    names = set(own_attributes(value))
    for cls in _read_mro(type(value)):
        for name, attribute in _read_class_dict(cls).items():
            if type(attribute) is MemberDescriptorType:
                names.add(name)
    attributes = []
    for name in sorted(names):
        if is_instance(find_in_class(type(value), name), cached_property):
            continue
        attribute = read_stored(value, name, MISSING)
        if attribute is not MISSING:
            attributes.append((name, attribute))
    return attributes


def find_object_attribute(value: object, name: str) -> Any:
    """Return an attribute that an object itself stores; ``MISSING`` if only its class, or nothing, has the attribute.

    A property of the class comes before a stored attribute. The value that a ``cached_property`` stored is left out,
    because the object has it only after the first look-up.
    """
    in_class = find_in_class(type(value), name, MISSING)
    if type(in_class) is MemberDescriptorType:  # in __slots__
        return read_stored(value, name, MISSING)
    if is_descriptor(in_class) and not has_type(in_class, _METHODS):
        return MISSING
    return own_attributes(value).get(name, MISSING)


def list_items(value: Sequence[object]) -> list[object]:
    """Return the items of a tuple or list. A subclass may have an ``__iter__`` of the user."""
    if is_instance(value, tuple):
        return list(tuple.__getitem__(value, slice(None)))
    items: Any = value
    return list(list.__getitem__(items, slice(None)))


def list_parts(value: object) -> list[object]:
    """Return the items of a tuple, or the function and the arguments of a ``partial``; none for other values."""
    if is_instance(value, partial):
        return [value.func, *value.args, *dict(sorted(value.keywords.items())).values()]
    if is_instance(value, tuple):
        return list_items(value)
    return []


def is_dataclass_instance(value: object) -> bool:
    """Whether a value is an object of a dataclass, and no dataclass itself."""
    return find_owner(type(value), "__dataclass_fields__") is not None


def is_frozen(cls: type) -> bool:
    """Whether a dataclass is frozen."""
    params = find_in_class(cls, "__dataclass_params__")
    # A class that only imitates a dataclass has no params.
    return params is not None and bool(read_stored(params, "frozen"))


def list_field_values(value: object) -> list[tuple[str, object]]:
    """Return the name and value of each field of a dataclass's object; ``MISSING`` for a field that is not set."""
    # dataclasses.fields() reads the fields with getattr(), so it gets a class without a metaclass of the user.
    stand_in = type("Fields", (), {"__dataclass_fields__": find_in_class(type(value), "__dataclass_fields__")})
    return [(field.name, read_stored(value, field.name, MISSING)) for field in fields(stand_in)]


def list_constant_parts(value: object) -> list[object]:
    """Return the items of a tuple or frozen set, the fields of a frozen dataclass's object, or an enum member's value.

    Other values have no parts.
    """
    if is_instance(value, enum.Enum):
        return [read_stored(value, "_value_")]
    if is_instance(value, tuple):
        return list_items(value)
    if is_instance(value, frozenset):
        return list(frozenset.__iter__(value))
    if is_dataclass_instance(value) and is_frozen(type(value)):
        return [field_value for _, field_value in list_field_values(value)]
    return []


def list_field_defaults(cls: type) -> list[tuple[str, object]]:
    """Return (field name, default) for each default of a field that the class does not store as an attribute.

    A named tuple has its defaults in ``_field_defaults``. A dataclass with ``slots=True`` has them in
    ``__dataclass_fields__``, because a slot takes the place of the attribute. Defaults that only a base has are left
    out.
    """
    attributes = class_attributes(cls)
    defaults = dict(_read_dict(attributes, "_field_defaults"))
    for name in _read_dict(attributes, "__dataclass_fields__"):
        default = _find_slot_default(cls, name)
        if default is not MISSING:
            defaults[name] = default
    return sorted(defaults.items())


def find_class_member(cls: type, name: str) -> Any:
    """Return an attribute of a class, without its bases; ``MISSING`` if there is none.

    If the attribute only gives access to a field with a default, the default is returned instead. This is a slot of a
    dataclass, or the accessor of a named tuple's field.
    """
    attributes = class_attributes(cls)
    attribute = attributes.get(name, MISSING)
    if type(attribute) is _TupleAccessorType:
        # A field without a default has only its accessor.
        return _read_dict(attributes, "_field_defaults").get(name, attribute)
    default = _find_slot_default(cls, name)
    if default is MISSING:
        return attribute
    return default


def _find_slot_default(cls: type, name: str) -> Any:
    """Return the default of a dataclass's field for which a slot takes the place of the attribute.

    The slot is one of the class or of a base. The result is ``MISSING`` for any other name. It is also ``MISSING`` for
    a field that the class inherits unchanged, because its default is the base's.
    """
    attributes = class_attributes(cls)
    field = _read_dict(attributes, "__dataclass_fields__").get(name)
    # A dict that the user wrote may hold anything.
    if not is_instance(field, Field) or field.default is MISSING_DEFAULT:
        return MISSING
    if name in attributes:
        if type(attributes[name]) is MemberDescriptorType:
            return field.default
        return MISSING
    # The class inherits the field, or defines it anew and uses the slot of the base.
    if _is_inherited_field(cls, name, field):
        return MISSING
    return field.default


def _read_dict(attributes: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an attribute that is a dict; an empty dict for anything else that the user has put there."""
    value = attributes.get(name)
    if type(value) is not dict:
        return {}
    return value


def _is_inherited_field(cls: type, name: str, field: object) -> bool:
    """Whether a dataclass has a field from a base. Python uses the same object for the field in both classes."""
    for base in class_mro(cls)[1:]:
        if _read_dict(class_attributes(base), "__dataclass_fields__").get(name) is field:
            return True
    return False
