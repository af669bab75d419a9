"""Finds the code of the user that functions reach through objects.

In ``obj.sub.launch(n)``, the function reaches the method ``launch`` of the class of ``obj.sub``, and everything that
this method reaches through its own ``self``. In ``helper(obj)``, nothing tells which members ``helper`` takes, so the
function reaches the whole class and all code that the object stores.

The data that objects store are not looked at: they may change while tests run. :mod:`.code_digests` makes the text of
the code that is found here.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import TypeAlias

from pytest_autotune.tuners.source.attributes import (
    MISSING,
    class_attributes,
    class_module,
    class_mro,
    class_name,
    find_class_member,
    find_in_class,
    find_object_attribute,
    find_owner,
    is_descriptor,
    is_instance,
    list_parts,
    list_stored_attributes,
    mangled_name,
)
from pytest_autotune.tuners.source.code_text import read_function
from pytest_autotune.tuners.source.functions import (
    closure_cells,
    find_kept_source,
    is_callable_object,
    is_from_library,
    is_object_of_user,
    list_layers,
    list_other_functions,
    python_function,
    unwrap_attribute,
    without_memo,
)
from pytest_autotune.tuners.source.libraries import Libraries
from pytest_autotune.tuners.source.values import AssignedNames, UsedValues

#: A dotted name, as its parts.
DottedName: TypeAlias = tuple[str, ...]
#: The dotted name that code takes from an object that it uses as a whole, as in ``helper(obj)`` and ``obj[0]``.
WHOLE_OBJECT: DottedName = ()
#: At most so many uses are followed from one use to the next. A list of linked objects may have thousands.
_MAX_USES = 1000


@dataclass(frozen=True)
class ObjectUse:
    """A dotted name that code takes from an object: ``("sub", "launch")`` for ``obj.sub.launch()``.

    :param owner: the object; None if only its class is known.
    :param name: ``WHOLE_OBJECT`` if the code uses the object in another way than by a name.
    """

    owner: object
    cls: type
    name: DottedName

    def __post_init__(self) -> None:
        # obj.__class__.launch is obj.launch.
        object.__setattr__(self, "name", tuple(part for part in self.name if part != "__class__"))


@dataclass(frozen=True)
class ReachedMember:
    """A member of a class, which code reaches through an object.

    :param cls: the class that defines the member: the object's class, or a base of it.
    :param name: the name in the source.
    :param stored_name: the name in the class, which differs for a private name such as ``__launch``.
    """

    cls: type
    name: str
    stored_name: str


@dataclass(frozen=True)
class ReachedObject:
    """An object that code uses as a whole.

    :param owner: the object; None if the code that it stores does not count.
    """

    owner: object
    cls: type


@dataclass(frozen=True)
class ReachedValue:
    """A value that an object stores, such as a function, and that code reaches through the object.

    :param cls: the class of the object.
    :param name: the name of the attribute.
    :param further_name: the dotted name that the code takes from the value.
    """

    cls: type
    name: str
    value: object
    further_name: DottedName


Reached: TypeAlias = ReachedMember | ReachedObject | ReachedValue


class ReachedObjects:
    """Finds what code reaches through objects, for one digest.

    :param libraries: tells the user's classes from those of libraries.
    :param used_values: gets the attributes that the result depends on.
    :param ignored: the attributes that digested functions assign: each call may change them.
    """

    def __init__(self, libraries: Libraries, used_values: UsedValues, ignored: AssignedNames) -> None:
        self._libraries = libraries
        self._used_values = used_values
        self._ignored = ignored
        #: The classes of the user above each class, and itself, by the id of the class.
        self._classes_by_id: dict[int, list[type]] = {}
        #: The classes of these ids. They stay alive, because Python gives the id of a dead object to a new object.
        self._classes: list[type] = []

    def list_method_uses(self, method: object, cls: type, owner: object) -> list[ObjectUse]:
        """Return the uses of the object that a method is called with.

        :param cls: the class of the object.
        :param owner: the object; None if only its class is known.
        """
        # super() may reach the methods of the classes above, so a change of any of them counts.
        self._list_classes_of_user(cls)
        return [ObjectUse(owner, cls, name) for name in self._list_members(method)]

    def follow(self, uses: Iterable[ObjectUse]) -> list[Reached]:
        """Return what code reaches by some uses of objects. The members that it reaches may use further objects."""
        reached: list[Reached] = []
        followed: set[tuple[int, int, DottedName]] = set()
        pending = list(uses)
        while pending and len(followed) < _MAX_USES:
            use = pending.pop(0)
            key = id(use.owner), id(use.cls), use.name
            if key in followed:
                continue
            followed.add(key)
            if use.name == WHOLE_OBJECT:
                owner = use.owner
                # The digest of an enum has all of its members.
                if is_instance(owner, enum.Enum):
                    owner = None
                reached.append(ReachedObject(owner, use.cls))
                pending += self.list_stored_objects(owner)
            else:
                self._follow_member(use, reached, pending)
        return reached

    def list_stored_objects(self, owner: object) -> list[ObjectUse]:
        """Return a use of each object of the user that an object stores, besides objects that can be called.

        The objects that can be called belong to the code that the object stores.

        :param owner: the object; None if only its class is known, which stores none.
        """
        if owner is None:
            return []
        self._used_values.add_object(owner, names=None)
        uses = []
        for name, attribute in list_stored_attributes(owner):
            if self._ignored.has_object_attribute(owner, type(owner), name):
                continue
            if is_callable_object(attribute, self._libraries):
                continue
            for value in [attribute, *list_parts(attribute)]:
                if is_object_of_user(value, self._libraries):
                    uses.append(ObjectUse(value, type(value), WHOLE_OBJECT))
        return uses

    def _follow_member(self, use: ObjectUse, reached: list[Reached], pending: list[ObjectUse]) -> None:
        """Follow the first name of a use: ``sub`` of ``obj.sub.launch()``.

        :param reached: gets the member that the name stands for.
        :param pending: gets the uses that the member leads to: ``launch`` of the object ``obj.sub``, or the uses of
            ``self`` in a method.
        """
        name = use.name[0]
        for cls in self._list_classes_of_user(use.cls):
            stored_name = mangled_name(name, class_name(cls))
            if find_class_member(cls, stored_name) is MISSING:
                continue
            reached.append(ReachedMember(cls, name, stored_name))
            # Python passes the object only to a function that the class stores as an attribute. A function that is the
            # default of a slot, or of a named tuple's field, gets no object.
            attribute_of_class = class_attributes(cls).get(stored_name, MISSING)
            if attribute_of_class is not MISSING:
                pending += self._list_uses_in_member(attribute_of_class, use)
        attribute = self._find_stored_member(use)
        if is_object_of_user(attribute, self._libraries):
            pending.append(ObjectUse(attribute, type(attribute), use.name[1:]))
        elif attribute is not MISSING:
            reached.append(ReachedValue(use.cls, name, attribute, use.name[1:]))
        if attribute is MISSING and self._calls_method_of_library(use):
            # The library's method may call any method of the user's class.
            reached.append(ReachedObject(None, use.cls))
        # Python calls these methods to find a member.
        if attribute is MISSING and find_owner(use.cls, name) is None:
            pending.append(ObjectUse(use.owner, use.cls, ("__getattr__",)))
        if find_in_class(use.cls, "__getattribute__") is not object.__getattribute__:
            pending.append(ObjectUse(use.owner, use.cls, ("__getattribute__",)))

    def _calls_method_of_library(self, use: ObjectUse) -> bool:
        """Whether code uses a method, written in Python, that the user's class inherits from a library.

        The user's class may override the method with a method that calls ``super().NAME()``.

        Such a method may call other methods of the user's class. Static methods give False, as they get no object, and
        so do three groups of methods that rarely call one:

        - special methods except ``__call__``;
        - all methods of a class that inherits from ``unittest.TestCase``;
        - the methods that ``torch.nn.Module`` itself defines, such as ``eval()``, except ``__call__``.
        """
        name = use.name[0]
        is_special = name.startswith("__") and name != "__call__"
        if is_special or any(_is_test_case(cls) for cls in class_mro(use.cls)):
            return False
        # Python calls the first method in this order. A method of the user leads to the next one if it calls super().
        for cls in class_mro(use.cls):
            attribute = class_attributes(cls).get(name, MISSING)
            if attribute is MISSING:
                continue
            if self._libraries.has_code(cls):
                is_of_torch_module = class_module(cls) == "torch.nn.modules.module" and name != "__call__"
                return is_instance(attribute, (FunctionType, classmethod)) and not is_of_torch_module
            if (name,) not in self._list_members(unwrap_attribute(attribute)):
                # The method of the user does not call super().NAME().
                return False
        return False

    def _list_uses_in_member(self, attribute: object, use: ObjectUse) -> list[ObjectUse]:
        """Return the uses of an object in the functions of a member, such as the getter and setter of a property.

        :param attribute: the member, as its class stores it.
        :param use: the use of the object that the member is called with.
        """
        names = self._list_members(unwrap_attribute(attribute))
        for function in list_other_functions(attribute).values():
            names += self._list_members(function)
        if is_descriptor(attribute) and not self._libraries.has_object(attribute):
            # The __get__ of the user's descriptor may call a function that the descriptor stores.
            for _, stored in list_stored_attributes(attribute):
                names += self._list_members(stored)
        if is_instance(attribute, staticmethod):  # it gets no object
            return [ObjectUse(None, use.cls, name) for name in names if name != WHOLE_OBJECT]
        return [ObjectUse(use.owner, use.cls, name) for name in names]

    def _find_stored_member(self, use: ObjectUse) -> object:
        """Return the value that an object stores under the first name of a use; else MISSING.

        A module or an object of the user that the class stores is returned, too. :class:`ReachedMember` has all else
        that the class stores.
        """
        name = use.name[0]
        # The property `value` of an enum returns this attribute.
        if name == "value" and find_in_class(use.cls, "value") is vars(enum.Enum)["value"]:
            name = "_value_"
        # A private name such as __sub is stored under another name for each class.
        classes = self._list_classes_of_user(use.cls)
        stored_names = []
        for stored_name in dict.fromkeys([name, *(mangled_name(name, class_name(cls)) for cls in classes)]):
            if not self._ignored.has_object_attribute(use.owner, use.cls, stored_name):
                stored_names.append(stored_name)
        if use.owner is not None:
            # All these names are noted before the search. The digest also depends on a name that the object does not
            # have yet, because a test may set it.
            self._used_values.add_object(use.owner, tuple(stored_names))
            for stored_name in stored_names:
                attribute = find_object_attribute(use.owner, stored_name)
                if attribute is not MISSING:
                    return attribute
        for stored_name in stored_names:
            cls = find_owner(use.cls, stored_name)
            if cls is not None and not self._ignored.has_object_of_class(cls, stored_name):
                in_class = without_memo(class_attributes(cls)[stored_name])
                if is_instance(in_class, ModuleType):
                    return in_class
                # A descriptor is not the value: Python calls its __get__. So it counts as a ReachedMember.
                if is_object_of_user(in_class, self._libraries) and not is_descriptor(in_class):
                    return in_class
        return MISSING

    def _list_classes_of_user(self, cls: type) -> Sequence[type]:
        """Return a class and the classes that it inherits from, without those of libraries."""
        if id(cls) not in self._classes_by_id:
            classes = [base for base in class_mro(cls) if not self._libraries.has_code(base)]
            for base in classes:
                self._used_values.add_class(base)
            self._classes.append(cls)
            self._classes_by_id[id(cls)] = classes
        return self._classes_by_id[id(cls)]

    def _list_members(self, method: object) -> list[DottedName]:
        """Return the dotted names that a method takes from its object, also inside the wrappers of its decorators."""
        members: list[DottedName] = []
        read_functions: list[FunctionType] = []
        pending = [method]
        while pending:
            value = pending.pop(0)
            function = python_function(value)
            if function is None or function in read_functions:
                continue
            read_functions.append(function)
            pending += closure_cells(function).values()
            pending.append(vars(function).get("__wrapped__"))
            if is_from_library(function, self._libraries) or self._libraries.has_file(function.__code__.co_filename):
                continue
            source = read_function(function, find_kept_source(list_layers(value)))
            members += source.members
            if source.uses_whole_object:
                members.append(WHOLE_OBJECT)
            self._used_values.add_function(value, function, names=())
        return members


def _is_test_case(cls: type) -> bool:
    return class_module(cls) == "unittest.case" and class_name(cls) == "TestCase"
