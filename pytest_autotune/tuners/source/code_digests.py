"""Computes the digests of functions and classes, with everything of the user's own that they use.

A digest is the hash of a text. For ``def kernel(x): return helper(x) * SCALE``, the text is the source of ``kernel``
and a line for each value that it uses: ``SCALE: 2``, and ``helper: 4f0c2b…`` with the digest of ``helper``.

Words in this module:

- *Code* is a function, class or module. Every other value is a *plain value*.
- A value *counts* if the digest depends on it. A value that may change while tests run does not count.
- The *layers* of a kernel are the objects that its decorators made, from the outermost to the Python function.
- A *part* is one function, class or constant. A report names the parts that differ between two digests.

:mod:`.source_digest` states the rule and has the functions for adapters. :mod:`.code_text` reads source,
:mod:`.objects` finds the code that functions reach through objects, and :mod:`.libraries` says which code belongs to a
library.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ContextDecorator, contextmanager, suppress
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, partial
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from pytest_autotune.cache.model import UncacheableError
from pytest_autotune.tuners.source.attributes import (
    MISSING,
    class_attributes,
    class_bases,
    class_module,
    class_mro,
    class_name,
    find_class_member,
    find_in_class,
    find_owner,
    is_dataclass_instance,
    is_descriptor,
    is_frozen,
    is_instance,
    is_scalar,
    list_constant_parts,
    list_field_defaults,
    list_field_values,
    list_items,
    list_parts,
    list_stored_attributes,
    module_attributes,
    read_stored,
)
from pytest_autotune.tuners.source.code_text import (
    Decorator,
    FunctionText,
    Import,
    NoDigestError,
    has_source,
    literal_text,
    read_decorators,
    read_function,
)
from pytest_autotune.tuners.source.functions import (
    BOUND_METHODS,
    closure_cells,
    find_constructor_of_aggregate,
    find_generic_class,
    find_kept_source,
    find_library_text,
    find_name_of_bound_method,
    find_path,
    find_public_name,
    find_shortest_name,
    is_builtin_function,
    is_callable_object,
    is_code,
    is_dsl_wrapper,
    is_extension_function,
    is_from_library,
    is_function_of_user,
    is_object_of_user,
    is_wrapper_beside_original,
    list_compiled_options,
    list_heuristics,
    list_layers,
    list_other_functions,
    list_partial_arguments,
    python_function,
    qualified_name,
    read_attribute,
    unwrap_attribute,
    unwrapped,
    without_memo,
)
from pytest_autotune.tuners.source.libraries import Libraries, is_library_code, is_made_class
from pytest_autotune.tuners.source.module_text import (
    NO_ASSIGNMENTS,
    Assignments,
    read_class_assignments,
    read_class_text,
    read_imported_modules,
    read_module_assignments,
)
from pytest_autotune.tuners.source.objects import (
    WHOLE_OBJECT,
    DottedName,
    ObjectUse,
    ReachedMember,
    ReachedObject,
    ReachedObjects,
    ReachedValue,
)
from pytest_autotune.tuners.source.values import (
    NOTHING_ASSIGNED,
    AssignedNames,
    Names,
    UsedValues,
    find_last_part,
    find_module_of_class,
    find_named_object,
    find_scope,
    list_defaults,
    list_layout_fields,
    list_triton_items,
    list_used_values,
    list_values_in_class,
    list_values_of_names,
    relative_path,
    scalar_value,
)

DIGEST_LENGTH = 12
#: The longest text, in characters, of the code inside a library's function. A digest replaces a longer text, because
#: texts that contain each other would grow exponentially.
_MAX_TEXT_INSIDE = 1000
#: The packages whose decorators :meth:`CodeDigests._describe_decorators` leaves out. The marks of pytest do not change
#: what a call does. The key and the candidates of a tuner, as in ``pytest_autotune.tuned`` and ``triton.autotune``, are
#: not part of the source.
_PACKAGES_OF_IGNORED_DECORATORS = ("pytest_autotune", "pytest", "_pytest", "triton", "helion")


def digest(text: str) -> str:
    """Return a short digest of text, as fingerprints hold it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]


class CodeDigests:
    """Computes the digests for one kernel, method or class: each function and class once, also in a recursion.

    Adapters begin at :meth:`digest_function`, :meth:`digest_kernel`, :meth:`digest_method`, :meth:`digest_class`,
    :meth:`describe_objects`, :meth:`describe_code_in` or :meth:`describe_constant`. The text of a digest has a line for
    each value that the code uses. The method that returns the text of a value depends on the place of the value:

    =============================  ==============================================  ====================================
    method                         called for                                      the text has
    =============================  ==============================================  ====================================
    _describe_value                a value that a function uses by name, a         its code and its data
                                   default, an argument of a ``partial``
    _describe_fixed_items          a tuple without a text by _describe_value,      the items that cannot change, and
                                   because an item may change                      ``...`` for each other item
    _describe_callable_object      an object with a ``__call__``, and no function  its class, and the code that it
                                   inside                                          stores
    _describe_attribute            an attribute of a class                         the same as for a function, without
                                                                                   all that Python and libraries add
    describe_code_in               a value whose data do not count, such as        the methods that the function uses,
                                   ``obj`` in ``obj.launch(n)``                    and the code in its parts
    _describe_stored               a value that an object stores                   functions, classes and methods in it
    _describe_unnamed_class        a base, a metaclass, the class of a decorator   the class: the source may not name it
    =============================  ==============================================  ====================================

    Each of these methods returns None if the digest needs no text of the value, or can have none.

    :param carried: whether plain values in all closures and defaults count. False for a callback of a test: such values
        count then only in code of a module, see :meth:`_in_code_made_by_import`.
    :param root: the function or class that the digest is for; None for a value.
    :param ignored: the names whose values do not count, because digested functions assign them; see
        :func:`list_passes`.
    :param is_kept: whether the caller keeps the digest, and compares ``used_values`` at later lookups.
    """

    def __init__(
        self,
        carried: bool,
        root: FunctionType | type | None,
        ignored: AssignedNames = NOTHING_ASSIGNED,
        is_kept: bool = False,
    ) -> None:
        self._ignored = ignored
        #: The names that the functions digested so far assign.
        self.assigned = AssignedNames()
        self._carried = carried
        #: Whether the code that is being described now was made by an import: see :meth:`_in_code_made_by_import`.
        self._is_made_by_import = False
        #: Whether values in closures without a stable form are left out now.
        self._has_open_values = False
        #: The digest of each function and class, and the text of the user's code inside each library function. The key
        #: has the id of the object, because a metaclass may have a hash of its own, and whether the values count that
        #: the object carries. For a function, it also has the ids of its decorators, and its compiled options:
        #: ``KERNELS = (kernel, Timed(kernel))``.
        self._text_by_key: dict[tuple[object, ...], str] = {}
        #: The objects of these ids. They stay alive, because Python gives the id of a dead object to a new object.
        self._read_objects: list[object] = []
        #: The ids of the objects whose attributes are being described now: an object may contain itself.
        self._open_objects: set[int] = set()
        #: The same for callable objects whose stored objects are being described now.
        self._open_callables: set[int] = set()
        #: The files of the modules whose code is being described now, from the inside to the outside.
        self._module_files: tuple[str, ...] = ()
        #: Whether a path in no known folder counts by its last part now: see :meth:`_with_short_paths`.
        self._shortens_paths = False
        #: The bound methods that are being digested now, each as the ids of its function, class and object.
        self._open_methods: set[tuple[int, int, int]] = set()
        self.libraries = Libraries(root)
        #: The name of each function, class and constant, with a digest of it without the code that it uses.
        self.parts: dict[str, str] = {}
        #: The names and texts that ``parts`` already covers.
        self._noted_parts: set[tuple[str, str]] = set()
        #: The values that the digests so far were computed from.
        self.used_values = UsedValues(ignored, is_kept)

    @cached_property
    def _reached_objects(self) -> ReachedObjects:
        return ReachedObjects(self.libraries, self.used_values, self._ignored)

    # Functions.

    def digest_function(self, value: object, own_cells: bool = True, named: bool = True) -> str:
        """Return the digest of a kernel or function.

        :param own_cells: whether plain values in the function's closure count.
        :param named: whether the function's own name counts.
        :raises UncacheableError: if a source cannot be read, or a value in a closure has no stable form.
        """
        layers = list(list_layers(value))
        function = layers[-1]
        assert type(function) is FunctionType
        # functools.wraps() gives the wrapper of a test the __qualname__ of the function inside.
        is_made_by_import = _is_outside_functions(function.__qualname__) and not is_wrapper_beside_original(function)
        with self._in_code_made_by_import(is_made_by_import):
            return self._digest_function(value, layers, own_cells, named)

    def _digest_function(self, value: object, layers: Sequence[object], own_cells: bool, named: bool) -> str:
        """Return the digest of a function; see :meth:`digest_function`.

        :param layers: the layers of ``value``. The last layer is the function.
        """
        function = layers[-1]
        assert type(function) is FunctionType
        decorator_identities = _list_decorator_identities(layers)
        key = (id(function), self._is_made_by_import, *map(id, decorator_identities), *list_compiled_options(layers))
        if key in self._text_by_key:
            return self._text_by_key[key]
        # If the function calls itself, its digest contains this text in place of the digest.
        self._text_by_key[key] = f"recursive {function.__qualname__}"
        self._read_objects += [function, *decorator_identities]
        try:
            with self._with_paths_of(function.__globals__):
                text = self._describe_function(value, layers, own_cells, named)
        except Exception:
            # A caller may go on without this function. The text for recursion must not pass for its digest then.
            del self._text_by_key[key]
            raise
        self._text_by_key[key] = digest(text)
        return self._text_by_key[key]

    def digest_kernel(self, value: object, own_cells: bool = True, named: bool = True) -> str:
        """Return the digest of a function or kernel, with the functions of the kernel's ``triton.heuristics``.

        The parameters and errors are those of :meth:`digest_function`.
        """
        lines = [self.digest_function(value, own_cells, named)]
        for name, heuristic in list_heuristics(value):
            text = self._describe_stored(heuristic, "")
            if text is not None:
                self.used_values.add_other()
                lines.append(f"heuristic {name}: {text}")
        if len(lines) == 1:
            return lines[0]
        return digest("\n".join(lines))

    def _describe_function(self, value: object, layers: Sequence[object], own_cells: bool, named: bool) -> str:
        """Return the text that the digest of a function is made of.

        :param layers: the layers of ``value``. The last layer is the function.
        """
        function = layers[-1]
        assert type(function) is FunctionType
        source = read_function(function, find_kept_source(layers))
        self.used_values.add_function(value, function, source.names)
        own_text = source.nameless_text
        if named:
            own_text = source.text
        lines = [own_text]
        lines += self._describe_used_values(function, source, own_cells)
        lines += self._describe_imports(function, source)
        lines += self._describe_assigned(function, source)
        lines += self._describe_wrapped(function)
        # In a library's wrapper, no other line has the arguments of the decorators above the user's function.
        if self.libraries.has_file(function.__code__.co_filename):
            lines += self._describe_decorators(function)
        fixed_lines = [*self._describe_defaults(function, source), *list_compiled_options(layers)]
        lines += fixed_lines
        # The part of this function lacks the values and functions that the function uses. These are parts themselves.
        self._note_part(function.__qualname__, "\n".join([own_text, *fixed_lines]))
        # The source of the function does not name the code of the user's decorators.
        for layer in layers:
            texts: list[str | None] = []
            if is_instance(layer, partial):
                # A partial under functools.wraps(): it calls another function, and passes this function as an argument.
                texts = [self.describe_code_in(part) for part in list_parts(layer)]
            elif type(layer) is not FunctionType:
                texts = [self._describe_unnamed_class(type(layer))]
            lines += [text for text in texts if text is not None]
        return "\n".join(lines)

    def _describe_wrapped(self, wrapper: FunctionType) -> list[str]:
        """Return a line for the user's code in the ``__wrapped__`` of a wrapper, unless its closure has it, too.

        A decorator with ``functools.wraps()`` may call the function through a table: ``OPS[name](*args)``. Others
        have a function for its signature only. A function without a source, such as the ``__init__`` of a dataclass, is
        left out.
        """
        wrapped = vars(wrapper).get("__wrapped__")
        if wrapped is None or any(value is wrapped for value in closure_cells(wrapper).values()):
            return []
        function = python_function(wrapped)
        if function is not None and not has_source(function):
            return []
        return [f"__wrapped__: {text}" for text in self._describe_value_in_wrapper(wrapped, wrapper)]

    def _describe_used_values(self, function: FunctionType, source: FunctionText, own_cells: bool) -> list[str]:
        """Return a line for each value that a function uses by name.

        :param own_cells: whether plain values in the function's closure count.
        """
        # Such as the wrapper of a library's decorator.
        is_library_function = self.libraries.has_file(function.__code__.co_filename)
        lines = []
        for name, value in list_used_values(function, source.names, self._ignored):
            # A value of the library itself, which a new version of the library may replace.
            is_internal = is_library_function and is_from_library(value, self.libraries)
            is_global = _is_global(name, function)
            with self._in_code_made_by_import(is_global):
                if is_code(value):
                    text = self._describe_used_code(name, value, is_internal)
                elif is_library_function and is_instance(value, ContextDecorator):
                    # The object of a decorator such as @Timed(), in the closure of the function that contextlib made.
                    text = self._describe_context(value)
                elif is_dsl_wrapper(function):
                    # CuTe wraps the user's function. The plain values of the wrapper are CuTe's.
                    text = self._describe_code_behind(name, value, source)
                elif is_global:
                    text = self._describe_used_plain_value(function, source, name, value, is_internal)
                elif self._counts_closure(function, own_cells):
                    with self._with_short_paths():
                        text = self._describe_used_plain_value(function, source, name, value, is_internal)
                else:
                    text = self._describe_code_behind(name, value, source)
            if text is not None:
                lines.append(f"{name}: {text}")
        return lines

    def _describe_used_code(self, name: str, value: object, is_internal: bool) -> str | None:
        """Return the text of a function or class that a function uses by name; None if the name tells all.

        :param is_internal: whether a library's function uses code of a library. Then only the user's code inside
            counts, and not the name.
        """
        function = python_function(value)
        if is_internal and function is not None:
            # One decorator of a library above another: the closure of the outer wrapper has the inner wrapper.
            return self._describe_code_of_user_inside(value, function) or None
        text = None
        if not is_internal:
            text = self._describe_value(value, name)
        if text is None:
            text = self._describe_unstable(value)
        if text is not None and is_from_library(value, self.libraries):
            # A report names the user's code inside by its own part. So this part has only the library's name.
            library_name = find_library_text(value, name, self.libraries)
            if library_name is not None:
                self._note_part(name, library_name)
        return text

    def _describe_used_plain_value(
        self, function: FunctionType, source: FunctionText, name: str, value: object, is_internal: bool
    ) -> str | None:
        """Return the text of a plain value that a function uses by name; None if the digest needs no text of the value.

        A library's function needs no text if its own name stands in the source. A value that may change while tests run
        needs a text only if it leads to code of the user.

        :param is_internal: a library's function uses a value of a library. The name of this value is left out.
        :raises UncacheableError: for a value without a stable form in the function's closure, if the digest counts
            closures. Two functions of a factory may differ only in this value.
        """
        text = None
        if not is_internal:
            text = self._describe_value(value, name)
        has_stable_form = text is not None
        if text is None:
            # A clear name needs no text, and still has a stable form: math.floor, if the source says `floor`.
            has_stable_form = is_from_library(value, self.libraries) and find_public_name(value) != ""
        if is_instance(value, MethodType) and is_extension_function(value):
            # The name of a bound method does not say which object it is bound to.
            has_stable_form = False
        is_in_closure = name in function.__code__.co_freevars
        if is_in_closure and not has_stable_form and self._carried and not self._has_open_values:
            kind = class_name(type(value))
            raise UncacheableError(f"{name} of {qualified_name(function)} is a {kind}, which has no stable form")
        if text is None:
            text = self._describe_unstable(value)
        if text is None:
            return self._describe_code_behind(name, value, source)
        self._note_part(name, text)
        return text

    def _describe_unstable(self, value: object) -> str | None:
        """Return the text of a tuple or callable object that has no text by :meth:`_describe_value`; else None."""
        return self._describe_fixed_items(value) or self._describe_callable_object(value)

    def _describe_code_behind(self, name: str, value: object, source: FunctionText) -> str | None:
        """Return the text of the user's code that a function reaches through a plain value; None if there is none.

        The data in the value do not count. The function may still call methods of the value.

        :param name: the name by which the source of the function uses the value.
        """
        if is_code(value) and not is_instance(value, ModuleType):
            return None
        value = without_memo(value)
        if is_builtin_function(value):
            return self._describe_value(value, name)
        return self.describe_code_in(value, _list_names_below(name, source.whole_names), name)

    def _counts_closure(self, function: FunctionType, own_cells: bool) -> bool:
        """Whether the plain values in the closure of a function count."""
        if self._carried:
            return own_cells
        return self._is_user_code_made_by_import(function)

    def _is_user_code_made_by_import(self, function: FunctionType) -> bool:
        """Whether an import made a function, and the user wrote it: then the plain values that it carries count.

        The wrapper of a library's decorator carries values of the library.
        """
        return self._is_made_by_import and not self.libraries.has_file(function.__code__.co_filename)

    @contextmanager
    def _in_code_made_by_import(self, is_made_by_import: bool) -> Iterator[None]:
        """Mark the code described inside this ``with`` block as made by the import of a module.

        A closure of such code counts with its plain values: after ``scale = make_scale(2)`` in a module, 2 is fixed.
        Code made elsewhere may carry values of a test. The mark extends to the code that marked code uses, but not to
        code that objects store (:meth:`_in_code_stored_by_object`).

        :param is_made_by_import: False keeps the mark of the block around this block.
        """
        outer = self._is_made_by_import
        # With `carried`, all values count in any case, and a function has one digest.
        self._is_made_by_import = (outer or is_made_by_import) and not self._carried
        try:
            yield
        finally:
            self._is_made_by_import = outer

    @contextmanager
    def _in_code_stored_by_object(self) -> Iterator[None]:
        """Describe code that an object stores. The plain values that this code carries do not count.

        A test may have stored the code, also in an object that an import made.
        """
        outer = self._is_made_by_import
        self._is_made_by_import = False
        try:
            yield
        finally:
            self._is_made_by_import = outer

    def _describe_imports(self, function: FunctionType, source: FunctionText) -> list[str]:
        """Return a line for each module of the user that a function imports in its body."""
        if not source.imports:
            return []
        return self._describe_modules(source.imports, function.__globals__.get("__package__") or "")

    def _describe_modules(self, imports: Sequence[Import], package: str) -> list[str]:
        """Return a line for each module of the user that import statements lead to.

        :param package: the package that contains the statements.
        """
        lines = []
        for module, module_text in read_imported_modules(imports, package, self.libraries).items():
            self.used_values.add_other()
            lines.append(f"import {module}: {digest(module_text)}")
            self._note_part(module, module_text)
        return lines

    def _describe_module(self, module: ModuleType, names: Iterable[DottedName]) -> str | None:
        """Return the text of a module that an object, a class or a default stores; None for a library's module.

        :param names: the dotted names that the code takes from the module. If the code uses the module in another way,
            the text of the whole module counts.
        """
        attributes = module_attributes(module)
        module_name = str(attributes.get("__name__", ""))
        word = module_name.rpartition(".")[2]
        lines = []
        for name in names:
            if name == WHOLE_OBJECT:
                package = str(attributes.get("__package__") or "")
                lines += self._describe_modules([Import(module_name, (), 0)], package)
            else:
                lines += self._describe_names(((word, *name),), {word: module}, {})
        if not lines:
            return None
        return digest("\n".join(lines))

    def _describe_assigned(self, function: FunctionType, source: FunctionText) -> list[str]:
        """Return a line for each global that a function assigns: the statements of the module that assign it.

        They have its first value. The value itself is left out, because it may have changed since then.
        """
        self.assigned.add(function, source.assigned, source.assigned_in_class, source.assigned_in_object)
        lines = []
        for *owners, name in source.assigned:
            scope = find_scope(function, owners)
            assignments = self._read_assignments(scope, name)
            if not assignments.text:
                continue
            lines.append(f"assigned {name}: {digest(assignments.text)}")
            self._note_part(name, assignments.text)
            assert is_instance(scope, dict)
            lines += self._describe_names(assignments.names, {}, scope)
            for value in assignments.imported_values:
                if is_instance(value, ModuleType):
                    lines += self._describe_assigned_module(name, value)
                else:
                    lines += self._describe_names(((name,),), {name: value}, {})
        for path in source.stored_in_globals:
            value = find_named_object(function, path)
            if is_instance(value, ModuleType):
                lines += self._describe_assigned_module(".".join(path), value)
        return lines

    def _describe_assigned_module(self, name: str, module: ModuleType) -> list[str]:
        """Return a line for a module of the user that has the name of an assigned global; none for a library's."""
        # Other functions may use the global in any way, so the text of the whole module counts.
        text = self.describe_code_in(module)
        if text is None:
            return []
        return [f"{name}: {text}"]

    def _describe_names_in_class(self, cls: type, names: Names) -> list[str]:
        """Return a line for each value that statements in the body of a class use by name, as for a function."""
        self.used_values.add_names_in_class(cls, names)
        return self._describe_values_of_names(names, list_values_in_class(cls, names, self._ignored))

    def _describe_code_named_in_class(self, cls: type, names: Names, result: object = None) -> list[str]:
        """Return a line for each piece of the user's code that statements in the body of a class use by name.

        Plain values are left out: after ``ROOT = os.path.dirname(__file__)``, ``ROOT`` depends on the machine.

        :param result: the object that the statements make, if other code names the members that it uses of the object.
            Only the constructor of the object's class counts then.
        """
        self.used_values.add_names_in_class(cls, names)
        lines = []
        for name, value in list_values_in_class(cls, names, self._ignored):
            if value is type(result) and not self.libraries.has_code(value):
                text = self._describe_constructor(value)
            elif is_code(value) or is_builtin_function(value):
                text = self._describe_attribute(name, value)
            else:
                text = self.describe_code_in(value, _list_names_below(name, names), name)
            if text is not None:
                lines.append(f"{name}: {text}")
        return lines

    def _describe_constructor(self, cls: type) -> str | None:
        """Return the text of the code that makes the objects of a class; None if there is none."""
        uses = [ObjectUse(None, cls, (constructor,)) for constructor in ("__new__", "__init__")]
        try:
            return "\n".join(self._describe_uses(uses)) or None
        except UncacheableError:
            # Such as the __init__ that dataclass makes: it follows from the text of the class.
            return self._describe_attribute(class_name(cls), cls)

    def _describe_names(
        self, names: Names, variables: Mapping[str, object], module_globals: Mapping[str, object]
    ) -> list[str]:
        """Return a line for each value that a statement outside of functions uses by name, as for a function.

        :param names: the dotted names in the statement.
        :param variables: the values of the names that are no globals.
        """
        # A name may get another value at any time.
        self.used_values.add_other()
        values = list_values_of_names(variables, module_globals, names, self._ignored)
        return self._describe_values_of_names(names, values)

    def _describe_values_of_names(self, names: Names, values: Iterable[tuple[str, object]]) -> list[str]:
        """Return a line for each value of the names in a statement; see :meth:`_describe_names`."""
        lines = []
        for name, value in values:
            text = self._describe_value(value, name) or self._describe_unstable(value)
            if text is None and not is_code(value):
                text = self.describe_code_in(value, _list_names_below(name, names), name)
            if text is not None:
                if not is_code(value):
                    self._note_part(name, text)
                lines.append(f"{name}: {text}")
        return lines

    def _read_assignments(self, scope: object, name: str) -> Assignments:
        """Return the statements of a module of the user that assign a global which digested functions assign, too.

        :param scope: the ``__dict__`` of the module. Classes and functions have no such statements.
        """
        if not is_instance(scope, dict) or not self._ignored.has_name(scope, name):
            return NO_ASSIGNMENTS
        filename = scope.get("__file__")
        if not is_instance(filename, str) or self.libraries.has_file(filename):
            return NO_ASSIGNMENTS
        return read_module_assignments(scope, name)

    def _describe_defaults(self, function: FunctionType, source: FunctionText) -> Iterator[str]:
        """Yield a line for each default that counts, or that leads to code of the user."""
        for name, value in list_defaults(function):
            path = find_path(value, source.names) or name
            # Such a default has a line even without a text.
            has_line = is_code(value) or self._carried
            text = None
            if has_line or self._is_user_code_made_by_import(function):
                with self._with_short_paths():
                    text = self._describe_value(value, path) or self._describe_fixed_items(value)
            if text is None:
                text = self._describe_code_behind(path, value, source)
            if has_line or text is not None:
                yield f"default {name}: {text}"

    # Methods, and the objects that code takes members from.

    def digest_method(self, method: object, cls: type, owner: object = None) -> str:
        """Return the digest of a method, with the members that the method reaches through its object.

        :param cls: the class of the object that the method is called with.
        :param owner: the object; None if it stores no attributes and has no items.
        """
        key = id(python_function(method)), id(cls), id(owner)
        if key in self._open_methods:
            return f"recursive method of {class_name(cls)}"
        self._open_methods.add(key)
        try:
            with self._in_code_made_by_import(_is_outside_functions(class_name(cls))):
                lines = [self.digest_function(method)]
            uses = self._reached_objects.list_method_uses(method, cls, owner)
            lines += self._describe_uses(uses)
            # The method uses the whole object. The parts of a tuple or partial may be functions of the user.
            if owner is not None and any(use.name == WHOLE_OBJECT for use in uses):
                lines += self._describe_code_in_parts(owner)
        finally:
            self._open_methods.discard(key)
        if len(lines) == 1:
            return lines[0]
        return digest("\n".join(lines))

    @contextmanager
    def _with_paths_of(self, attributes: Mapping[str, object]) -> Iterator[None]:
        """Describe code. A text in it that is a path counts relative to the folder of the module with these attributes.

        If the path is not near this module, it may be near the module that uses the code: after
        ``load = make_loader(HERE)``, the code of ``load`` stands in the module of ``make_loader``, and ``HERE`` is the
        folder of the other module.
        """
        outer_files, outer_shortens = self._module_files, self._shortens_paths
        filename = attributes.get("__file__")
        if is_instance(filename, str):
            self._module_files = (filename, *outer_files)
        # The globals of this code are no carried values, also if a function that carries the code is being described.
        self._shortens_paths = False
        try:
            yield
        finally:
            self._module_files, self._shortens_paths = outer_files, outer_shortens

    @contextmanager
    def _with_short_paths(self) -> Iterator[None]:
        """Describe a value in a closure or a default. A path that is near no known module counts by its last part.

        The path may belong to a third module: a test imports ``load`` from ``kernels``, and ``kernels`` made it with
        ``make_loader(HERE)`` of ``factories``. The digest of ``load`` knows the files of the test and of ``factories``
        only. For a kernel or heuristic, such a path counts as it is.
        """
        self._shortens_paths = not self._carried
        try:
            yield
        finally:
            self._shortens_paths = False

    def describe_objects(self, function: FunctionType) -> list[str]:
        """Return a text for each object that a function names, if the function reaches code of the user through it.

        The texts lack the names, so functions that use the same code have the same texts.
        """
        source = read_function(function)
        self.used_values.add_function(function, function, source.names)
        texts = []
        for name, value in list_used_values(function, source.names, self._ignored):
            with self._in_code_made_by_import(_is_global(name, function)):
                texts.append(self._describe_code_behind(name, value, source))
        # The defaults are of the function itself, which a test may have made.
        for name, value in list_defaults(function):
            texts.append(self._describe_code_behind(name, value, source))
        return sorted([text for text in texts if text is not None])

    def describe_code_in(
        self, value: object, names: Iterable[DottedName] = (WHOLE_OBJECT,), path: str = ""
    ) -> str | None:
        """Return the text of the user's code that a function reaches through a value; None if there is none.

        The data in the value are left out. Code is in a function or class, behind the methods of an object, and in the
        parts of a tuple or ``partial``. The text of a library's function is its public name. The text of a library's
        bound method is its name, unless ``path`` ends in this name.

        :param names: the dotted names that the function takes from the value: ``("sub", "launch")`` for
            ``value.sub.launch()``. By default, the function uses the value as a whole.
        :param path: the name of the value in the source; empty if the source has no name for it.
        """
        value = without_memo(value)
        inner = unwrapped(value)
        if inner is not value:
            # Code reads the inner value as ``POLICY.value``, so its names begin with ``value``.
            names = [_without_prefix(name, "value") for name in names]
            value = inner
        if is_instance(value, ModuleType):
            return self._describe_module(value, names)
        if is_code(value):
            return self._describe_stored(value, "")
        if is_instance(value, BOUND_METHODS):
            text = self._describe_bound_method(value) or self._describe_method_of_library(value, path)
            if text is not None:
                return text
        # Such as torch.exp, which is a method of a module.
        if is_builtin_function(value):
            return find_library_text(value, "", self.libraries)
        texts: list[str] = []
        if is_object_of_user(value, self.libraries):
            lines = self._describe_uses([ObjectUse(value, type(value), name) for name in names])
            if lines:
                texts.append(digest("\n".join(lines)))
        texts += self._describe_code_in_parts(value)
        if not texts:
            return None
        return ", ".join(texts)

    def _describe_code_in_parts(self, value: object) -> list[str]:
        """Return a text for each item of a tuple, and each part of a ``partial``, that has code of the user."""
        texts = [self.describe_code_in(part) for part in list_parts(value)]
        return [text for text in texts if text is not None]

    def _describe_method_of_library(self, method: Any, path: str) -> str | None:
        """Return the name of a method that is bound to a library's object, and the user's code in method and object.

        The name is left out in three cases:

        - the user bound the function to the object, as in ``MethodType(f, rng)``;
        - the source shows it: its last word is the method's name, as in ``rng.random``. For a class method, its last
          two words must also show the class, as in ``Path.cwd``;
        - code of a library uses the method.

        None if neither a name nor code is left, and for functions such as ``torch.exp``, which have a public name.

        :param path: the name in the source; empty if there is none.
        """
        if is_builtin_function(method) or is_instance(method.__self__, ModuleType):
            return None
        function = None
        is_bound_by_user = False
        if is_instance(method, MethodType):
            function = python_function(method.__func__)
            # Only the user binds a callable that is no Python function, such as print.
            is_bound_by_user = function is None or not is_from_library(function, self.libraries)
        texts: list[str | None] = []
        if is_bound_by_user:
            texts.append(self.describe_code_in(method.__func__))
        else:
            if function is not None:
                texts.append(self._describe_code_of_user_inside(method.__func__, function) or None)
            name = find_name_of_bound_method(method)
            word_count = 2 if is_instance(method.__self__, type) else 1
            is_clear = name.split(".")[-word_count:] == path.split(".")[-word_count:]
            if name and not is_clear and not self._is_describing_library_code():
                texts.append(name)
                self._note_part(path or name, name)
        texts.append(self._describe_code_in_owner(method.__self__))
        return ", ".join([text for text in texts if text is not None]) or None

    def _describe_code_in_owner(self, owner: object) -> str | None:
        """Return the text of the user's code in the object of a bound method, such as ``(add, sub).__getitem__``.

        None for the class of a class method, and for an object that is being described: it may contain the method.
        """
        if is_instance(owner, type) or id(owner) in self._open_objects:
            return None
        self._open_objects.add(id(owner))
        try:
            return self.describe_code_in(owner)
        finally:
            self._open_objects.discard(id(owner))

    def _is_describing_library_code(self) -> bool:
        """Whether the function or class that is being described belongs to a library.

        An example is the wrapper that ``torch.no_grad()`` makes. A digest leaves out the names of the methods that such
        code uses: another version of the library may use others.
        """
        if self.libraries.has_root:
            return True
        return bool(self._module_files) and self.libraries.has_file(self._module_files[0])

    def _describe_uses(self, uses: Iterable[ObjectUse]) -> list[str]:
        """Return a line for each piece of the user's code that other code reaches by some uses of objects."""
        # A dict, because two objects may lead to the same code.
        lines: dict[str, None] = {}
        for reached in self._reached_objects.follow(uses):
            if isinstance(reached, ReachedObject):
                lines[self.digest_class(reached.cls)] = None
                if reached.owner is not None:
                    lines.update(dict.fromkeys(self.describe_stored_code(reached.owner)))
            elif isinstance(reached, ReachedValue):
                with self._in_code_stored_by_object():
                    text = self.describe_code_in(reached.value, [reached.further_name], reached.name)
                if text is not None:
                    lines[f"{class_name(reached.cls)}.{reached.name}={text}"] = None
            else:
                made_by_import = self._in_code_made_by_import(_is_outside_functions(class_name(reached.cls)))
                with self._with_paths_of(find_module_of_class(reached.cls)), made_by_import:
                    lines.update(dict.fromkeys(self._describe_member(reached)))
        return list(lines)

    def _describe_member(self, member: ReachedMember) -> list[str]:
        """Return the lines of a member of a class, and of the further functions in it such as a property's setter."""
        # The class stores a member that its code calls ``__scale`` under another name: ``_Class__scale``.
        attribute = find_class_member(member.cls, member.stored_name)
        lines = []
        if self._ignored.has_attribute(member.cls, member.stored_name):
            # A method of the class changes the attribute. Its first value stands in the body of the class.
            assignments = read_class_assignments(member.cls, member.name)
            text = assignments.text or None
            lines = self._describe_names_in_class(member.cls, assignments.names)
        else:
            text = self._describe_attribute(member.name, unwrap_attribute(attribute))
            if self._lacks_data(attribute, text):
                assignments = read_class_assignments(member.cls, member.name)
                # The text may have only the items of a tuple that cannot change.
                text = ", ".join(filter(None, [text, assignments.text])) or None
                lines = self._describe_code_named_in_class(member.cls, assignments.value_names, attribute)
        if text is not None:
            lines.append(f"{class_name(member.cls)}.{member.name}: {text}")
        for line in self._describe_other_functions(member.name, attribute):
            lines.append(f"{class_name(member.cls)}.{line}")
        return lines

    # Classes.

    def digest_class(self, cls: type) -> str:
        """Return the digest of a class: its text, its bases, its methods and the values of its attributes."""
        with self._in_code_made_by_import(_is_outside_functions(class_name(cls))):
            return self._digest_class(cls)

    def _digest_class(self, cls: type) -> str:
        key = id(cls), self._is_made_by_import
        if key in self._text_by_key:
            return self._text_by_key[key]
        name = class_name(cls)
        self._text_by_key[key] = f"recursive {name}"
        self._read_objects.append(cls)
        try:
            with self._with_paths_of(find_module_of_class(cls)):
                text = self._describe_class(cls, name)
        except Exception:
            # As for a function: the text for recursion must not pass for the digest.
            del self._text_by_key[key]
            raise
        self._text_by_key[key] = digest(text)
        return self._text_by_key[key]

    def _describe_class(self, cls: type, name: str) -> str:
        """Return the text that the digest of a class is made of."""
        self.used_values.add_class(cls)
        class_text = read_class_text(cls)
        self._note_part(name, class_text)
        lines = [name, class_text]
        fields = class_attributes(cls).get("__dataclass_fields__", {})
        # No text has the order of the fields of dataclasses.make_dataclass().
        if is_made_class(cls) or (fields and not class_text):
            lines.append(f"fields: {', '.join(fields)}")
        for base in class_bases(cls):
            base_text = self._describe_unnamed_class(base)
            if base_text is not None:
                lines.append(base_text)
        metaclass_text = self._describe_unnamed_class(type(cls))
        if metaclass_text is not None:
            lines.append(f"metaclass: {metaclass_text}")
        lines += self._describe_attributes(cls, class_text)
        lines += self._describe_field_defaults(cls, class_text)
        return "\n".join(lines)

    def _describe_attributes(self, cls: type, class_text: str) -> Iterator[str]:
        """Yield a line for each member of an enum, and for each other attribute of a class.

        :param class_text: the text of the class's source; empty if it cannot be read.
        """
        enum_members: Mapping[str, object] = {}
        if issubclass(cls, enum.Enum):
            enum_members = find_in_class(cls, "_member_map_")
        names_in_body: dict[DottedName, None] = {}
        # A __new__ of the user may store a function in another attribute of the member than `_value_`. The member's
        # statement in the class names the function.
        has_own_new = self._has_new_of_user(cls)
        for name, member in enum_members.items():
            if has_own_new:
                names_in_body.update(dict.fromkeys(read_class_assignments(cls, name).value_names))
            yield f"{name}: {self.describe_constant(member)}"
            code_text = self._describe_code_in_member(member)
            if code_text is not None:
                yield f"{name} code: {code_text}"
        attributes = dict(class_attributes(cls))
        constructor = find_constructor_of_aggregate(cls)
        if constructor is not None:
            attributes["__init__"] = constructor
        for name, value in sorted(attributes.items()):
            if name in enum_members:
                continue
            value = without_memo(value)
            # The text of the class has the first value of an attribute that a digested function assigns.
            is_assigned = bool(class_text) and self._ignored.has_attribute(cls, name)
            # The function may assign the attribute of another class. Then the methods of this class use the object.
            has_object = is_object_of_user(value, self.libraries) and not is_descriptor(value)
            if is_assigned and (not has_object or self._ignored.has_object_of_class(cls, name)):
                yield from self._describe_names_in_class(cls, read_class_assignments(cls, name).names)
                continue
            text = None
            if not is_assigned:
                text = self._describe_attribute(name, unwrap_attribute(value))
            if self._lacks_data(value, text):
                # The text of the class has the statement that makes the value.
                names_in_body.update(dict.fromkeys(read_class_assignments(cls, name).value_names))
            if text is None and (has_object or is_instance(value, ModuleType)):
                # The methods of the class may use the object or module.
                text = self.describe_code_in(value)
            if text is not None:
                yield f"{name}: {text}"
            yield from self._describe_other_functions(name, value)
        yield from self._describe_code_named_in_class(cls, tuple(names_in_body))

    def _has_new_of_user(self, cls: type) -> bool:
        """Whether an enum, or a class that it inherits from, has a ``__new__`` of the user.

        Enum moves it to ``__new_member__`` and, since Python 3.11, to ``_new_member_``.
        """
        for base in class_mro(cls):
            for name in ("__new__", "__new_member__", "_new_member_"):
                if is_function_of_user(unwrap_attribute(class_attributes(base).get(name)), self.libraries):
                    return True
        return False

    def _lacks_data(self, attribute: object, text: str | None) -> bool:
        """Whether an attribute of a class has data that its text lacks, such as a list or the list in a tuple.

        :param text: see :meth:`_describe_attribute`.
        """
        if is_code(attribute):
            return False
        # Since Python 3.14, a partial is a descriptor.
        if is_descriptor(attribute) and not is_instance(attribute, partial):
            return False
        return text is None or self.describe_constant(attribute) is None

    def _describe_code_in_member(self, member: object) -> str | None:
        """Return the text of the user's code in the value of an enum's member; None if there is none.

        Such code is the function of a ``partial``, or the class of an object inside a tuple.
        """
        value = read_stored(member, "_value_")
        if self.describe_constant(value) is not None:
            return ", ".join(self._digest_classes_inside(member)) or None
        return self._describe_code_in_value(value)

    def _describe_code_in_value(self, value: object) -> str | None:
        """Return the text of the user's code in a value that the body of a class has, such as a ``partial``."""
        text = self.describe_code_in(value)
        if text is None:
            return None
        # The arguments of a partial count, too.
        return self._describe_value(value, "") or text

    def _describe_other_functions(self, name: str, attribute: object) -> Iterator[str]:
        """Yield a line for a property's setter and deleter, and for each function of a ``singledispatchmethod``.

        A ``partialmethod`` has a line for each of its arguments. If the attribute is an object of a subclass of
        ``property``, ``classmethod`` or the like, its class has a line, too. A subclass in a known package has none.
        """
        if is_descriptor(attribute) and unwrap_attribute(attribute) is not attribute:
            descriptor_text = self._describe_subclassed_descriptor(attribute)
            if descriptor_text is not None:
                yield f"{name} descriptor: {descriptor_text}"
        for kind, function in list_other_functions(attribute).items():
            text = self._describe_attribute(name, function)
            if text is not None:
                yield f"{name} {kind}: {text}"
        for argument_name, argument in list_partial_arguments(attribute):
            text = self._describe_value(argument, "") or self._describe_unstable(argument)
            if text is None:
                text = self.describe_code_in(argument)
            if text is not None:
                yield f"{name} argument {argument_name}: {text}"

    def _describe_subclassed_descriptor(self, attribute: object) -> str | None:
        """Return the text of a descriptor whose class may inherit from ``property`` or the like.

        If a value in a closure has no stable form, the descriptor is described again without such values, as the
        function inside it is. A NoDigestError has another cause, such as a file that was edited.
        """
        try:
            return self._describe_descriptor(attribute)
        except NoDigestError:
            raise
        except UncacheableError:
            with self._leaving_out_open_values():
                return self._describe_descriptor(attribute)

    def _describe_field_defaults(self, cls: type, class_text: str) -> Iterator[str]:
        """Yield a line for each default of a dataclass or named tuple that is not an attribute of the class."""
        for name, field in sorted(class_attributes(cls).get("__dataclass_fields__", {}).items()):
            factory = python_function(field.default_factory)
            text = None
            if is_instance(field.default_factory, type) and self.libraries.has_code(field.default_factory):
                # The text of the class has the name of the library's class, such as list.
                continue
            if factory is None:
                text = self._describe_code_in_value(field.default_factory)
            elif not is_from_library(factory, self.libraries):
                text = str(self._describe_attribute(name, factory))
            if text is not None:
                yield f"factory {name}: {text}"
        names_in_body: dict[DottedName, None] = {}
        for name, value in list_field_defaults(cls):
            value_names = read_class_assignments(cls, name).value_names
            # The text of the class has a default that its statement makes without names.
            if not value_names and literal_text(value) in class_text:
                continue
            text = self._describe_value(value, "") or self._describe_unstable(value)
            if text is None:
                text = self.describe_code_in(value)
            if self._lacks_data(value, text):
                names_in_body.update(dict.fromkeys(value_names))
            if text is not None:
                yield f"default {name}: {text}"
        yield from self._describe_code_named_in_class(cls, tuple(names_in_body))

    def _describe_attribute(self, name: str, value: object) -> str | None:
        """Return the text of an attribute of a class; None if nothing of the user's own stands in it.

        Python and libraries add attributes with special names, such as ``__init__``, which begin and end with ``_``:

        =========================  ================================  ====================================
        the value is               with a special name               with another name
        =========================  ================================  ====================================
        a function of the user     its text                          its text
        a function of a library    none in a known package           its text
        a class of the user        its text                          its text
        a class of a library       none in a known package           its public name, if the name is another
        a descriptor               none                              its class, and the code that it stores
        other data                 none                              its text
        =========================  ================================  ====================================

        A *known package* is Python's own library, torch, Triton and a few others: :func:`is_library_code`.
        :meth:`Libraries.has_code` also includes all other packages that pip installed. A name of such a package
        still counts here, because two modules of different packages may have a function of the same name.
        """
        is_special = name.startswith("_") and name.endswith("_")
        function = python_function(value)
        if function is not None:
            return self._describe_function_attribute(name, value, function, is_special)
        if is_instance(value, type):
            return self._describe_class_attribute(name, value, is_special)
        if is_special:
            return None
        # Since Python 3.14, a partial is a descriptor. So is a method in C, such as str.upper. Both count as values.
        if is_descriptor(value) and not is_instance(value, partial) and not is_builtin_function(value):
            return self._describe_descriptor(value)
        text = self._describe_value(value, name) or self._describe_fixed_items(value)
        if text is None and is_instance(value, (partial, *BOUND_METHODS)):
            # An argument of a partial, or the object of a bound method, may change. The function is code all the same.
            return self.describe_code_in(value, path=name)
        return text

    def _describe_descriptor(self, value: object) -> str | None:
        """Return the text of a class's attribute that is a descriptor: its class, and the code that it stores.

        A method of the descriptor's class computes the value of the attribute. The method may call a function that the
        descriptor stores, such as the function under a decorator ``@lazy`` of the user. None for a descriptor of a
        known package.
        """
        class_text = self._describe_unnamed_class(type(value))
        if class_text is None or self.libraries.has_code(type(value)):
            return class_text
        return ", ".join([class_text, *self.describe_stored_code(value)])

    def _describe_function_attribute(
        self, name: str, value: object, function: FunctionType, is_special: bool
    ) -> str | None:
        """Return the text of a function that a class has as an attribute; see :meth:`_describe_attribute`.

        :param function: the Python function inside ``value``.
        """
        # enum puts methods of its own into the user's classes.
        if is_special and is_library_code(function):
            return None
        # A decorator of the class may have made the function, as dataclass makes __init__. The text of the class has
        # the decorator and the fields that the function follows from.
        is_of_user = not is_from_library(value, self.libraries)
        if is_of_user and not has_source(function, find_kept_source(list_layers(value))):
            return None
        try:
            return self._describe_value(value, name)
        except NoDigestError:
            raise
        except UncacheableError:
            with self._leaving_out_open_values():
                return self._describe_value(value, name)

    @contextmanager
    def _leaving_out_open_values(self) -> Iterator[None]:
        """Describe an attribute of a class, and leave out each value in a closure that has no stable form.

        The value is no argument of a factory: the class has one such method, which a decorator with a memo has made.
        """
        outer_open_values, outer_texts = self._has_open_values, self._text_by_key
        self._has_open_values, self._text_by_key = True, dict(outer_texts)
        try:
            yield
        finally:
            # For code outside of the class, the value counts.
            self._has_open_values, self._text_by_key = outer_open_values, outer_texts

    def _describe_class_attribute(self, name: str, cls: type, is_special: bool) -> str | None:
        """Return the text of a class that another class has as an attribute; see :meth:`_describe_attribute`."""
        # A class of the user has an attribute such as _kernel_ = Kernel only if the user wrote it.
        if is_special:
            return self._describe_unnamed_class(cls)
        # torch gives each class of autograd.Function a class of its own, which no module has.
        if is_library_code(cls) and not find_shortest_name(cls):
            return None
        return self._describe_value(cls, name)

    def _describe_unnamed_class(self, cls: type) -> str | None:
        """Return the text of a class that the source may not name, such as the class of a decorator."""
        if is_library_code(cls):
            return None
        if self.libraries.has_code(cls):
            return find_library_text(cls, "", self.libraries)
        return self.digest_class(cls)

    # Values.

    def _describe_value(self, value: object, path: str) -> str | None:
        """Return the text of a value that a function uses; None if the digest needs no text, or can have none.

        ==============================================  ==============================================================
        value                                           text
        ==============================================  ==============================================================
        function, method or class of the user           its digest
        function or class of a library                  its public name; None if the name in the source is clear
        ``partial``, ``Config[int]``                    the texts of its parts; None if a part may change
        list in a ``tl.constexpr``                      the texts of its parts; None if a part has no text
        constant: number, layout, frozen set, …         its value
        any other value                                 None: it may change while tests run
        ==============================================  ==============================================================

        :param path: the name of the value in the source; empty if the source has no name for it.
        """
        value = without_memo(value)
        inner = unwrapped(value)
        if is_instance(inner, type):
            # In tl.constexpr(Config), the class counts.
            value = inner
        if is_instance(value, BOUND_METHODS):
            method_text = self._describe_bound_method(value)
            if method_text is not None:
                return method_text
        function = python_function(value)
        if function is not None:
            return self._describe_function_value(value, function, path)
        if is_instance(value, type):
            return self._describe_class_value(value, path)
        if is_instance(value, partial):
            return self._describe_partial(value)
        # An alias such as Config[int] has the methods of Config.
        generic_class = find_generic_class(value)
        if generic_class is not None and not self.libraries.has_code(generic_class):
            return f"alias of {self.digest_class(generic_class)}"
        is_in_constexpr = inner is not value
        if is_in_constexpr and is_instance(inner, (list, dict, set)):
            return self._describe_contents(inner)
        text = self._describe_data(value, path)
        if text is None and is_in_constexpr:
            # A function inside may have no digest. The collection then counts as a value that may change.
            with suppress(UncacheableError):
                text = self._describe_contents(inner)
        return text

    def _describe_function_value(self, value: object, function: FunctionType, path: str) -> str | None:
        """Return the digest of the user's function, or the public name of a library's.

        None if the name in the source tells the library's function.

        :param value: the function, or the object that its decorators made of it.
        """
        if self.libraries.has_code(function):
            return self._describe_library_function(value, function, path)
        return self.digest_kernel(value)

    def _describe_class_value(self, cls: type, path: str) -> str | None:
        """Return the digest of the user's class, or the public name of a library's.

        None if the name in the source tells the library's class.
        """
        if self.libraries.has_code(cls):
            return find_library_text(cls, path, self.libraries)
        return self.digest_class(cls)

    def _describe_data(self, value: object, path: str) -> str | None:
        """Return the text of a constant, or the public name of a library's function that is not written in Python.

        None if the value may change while tests run, or the name in the source tells the library's function.
        """
        text = self.describe_constant(value)
        if text is not None:
            return ", ".join([self._add_class(text, value), *self._digest_classes_inside(value)])
        if is_from_library(value, self.libraries):
            return find_library_text(value, path, self.libraries)
        return None

    def _describe_contents(self, value: object) -> str | None:
        """Return the text of a collection in a ``tl.constexpr``.

        A collection is a list, a dict, a set or frozen set, a tuple (also Triton's), an enum member, or an object of a
        frozen dataclass. Triton compiles it into the kernel. So a list counts here, although it may change.
        ``{"a": [1]}`` gives ``dict('a', list(1))``, with the texts of :meth:`_describe_value` in place of ``'a'`` and
        ``1``.

        :param value: the collection, without the ``tl.constexpr`` around it, or a collection inside it.
        :returns: None if a part has no text, for a tuple or dataclass without parts, and for any other value.
        """
        if is_instance(value, list):
            kind, parts = "list", list_items(value)
        elif is_instance(value, dict):
            kind, parts = "dict", [part for item in dict.items(value) for part in item]
        elif is_instance(value, set):
            kind, parts = "set", list(set.__iter__(value))
        else:
            kind, parts = class_name(type(value)), self._list_constant_parts(value)
            if not parts:
                return None
            if is_dataclass_instance(value):
                self.used_values.add_constant(value)
        if is_instance(value, (set, frozenset)):
            # Two parts may use each other. Their texts then depend on the order, which differs between processes.
            parts.sort(key=_name_for_order)
        if id(value) in self._open_objects:
            return "recursive"
        self._open_objects.add(id(value))
        try:
            texts = []
            for part in parts:
                text = self._describe_value(part, "") or self._describe_contents(part)
                if text is None:
                    return None
                texts.append(text)
        finally:
            self._open_objects.discard(id(value))
        # Parts with the same name may still be in any order.
        if is_instance(value, (set, frozenset)):
            texts.sort()
        return self._add_class(f"{kind}({', '.join(texts)})", value)

    def _describe_partial(self, value: partial[Any]) -> str | None:
        """Return the text of a partial function; None if an argument of it may change."""
        self.used_values.add_constant(value)
        function_text = self._describe_value(value.func, "") or self._describe_callable_object(value.func)
        if function_text is None:
            # Such as a torch.nn.Module of the user.
            function_text = self.describe_code_in(value.func)
        texts = [str(function_text)]
        # The names of keyword arguments are described like the arguments.
        arguments = list(value.args)
        for name, argument in sorted(value.keywords.items()):
            arguments += [name, argument]
        for argument in arguments:
            text = self._describe_value(argument, "")
            if text is None:
                return None
            texts.append(text)
        return self._add_class(f"partial({', '.join(texts)})", value)

    def _describe_bound_method(self, method: Any) -> str | None:
        """Return the text of a method that is bound to an object or a class; None for a function of a library."""
        owner = method.__self__
        cls = type(owner)
        if is_instance(owner, type):
            cls = owner
        if is_instance(owner, ModuleType) or self.libraries.has_code(cls):
            return None
        function = read_stored(method, "__func__", method)
        if python_function(function) is None or is_from_library(function, self.libraries):
            # A library's method, such as apply() of torch.autograd.Function, may call any method of the user's class.
            return f"{read_attribute(method, '__name__')} of {self.digest_class(cls)}"
        if is_instance(owner, type):
            return self.digest_method(function, cls)
        return self.digest_method(function, cls, owner)

    def _describe_library_function(self, value: object, function: FunctionType, path: str) -> str | None:
        """Return the text of a library's function: its public name, and the user's functions inside.

        A decorator of a library makes such a function: ``contextlib.contextmanager`` has the user's function in its
        closure, ``functools.singledispatch`` only as ``__wrapped__``.

        :param value: the function, or an object that decorators made of it.
        :returns: None if the name in the source is clear, and no function of the user is inside.
        """
        name = find_library_text(value, path, self.libraries)
        code_of_user = self._describe_code_of_user_inside(value, function)
        if not code_of_user:
            return name
        return f"{name}({code_of_user})"

    def _describe_code_of_user_inside(self, value: object, function: FunctionType) -> str:
        """Return the text of the user's code in a library's function; empty if there is none.

        The code is in the objects of decorators, the wrapped functions, their context managers and decorators, and the
        implementations of a ``singledispatch``.

        :param value: the function, or an object that decorators made of it.
        :param function: the function in it.
        """
        key = "code inside", id(value), id(function), self._is_made_by_import
        if key in self._text_by_key:
            return self._text_by_key[key]
        # A decorator of the user's function may name this library function again. This text ends the recursion.
        self._text_by_key[key] = f"recursive {function.__qualname__}"
        self._read_objects += [value, function]
        try:
            texts = self._describe_decorators_of_user(value)
            is_wrapper = vars(function).get("__wrapped__") is not None
            # Wrappers of known packages have ``__wrapped__``. Their other functions wrap nothing of the user.
            if is_wrapper or not is_library_code(function):
                texts += [*self._describe_code_in_wrapper(function), *self._describe_implementations(function)]
        except Exception:
            # The caller may catch the error and go on. A later call must not take the placeholder for the text.
            del self._text_by_key[key]
            raise
        text = ", ".join(texts)
        if len(text) > _MAX_TEXT_INSIDE:
            text = digest(text)
        self._text_by_key[key] = text
        return text

    def _describe_decorators_of_user(self, value: object) -> list[str]:
        """Return a text for each object of the user around a library's function: its class, and the code it stores."""
        texts = []
        for layer in list_layers(value):
            if not self.libraries.has_object(layer):
                # The object may get another attribute at any time.
                self.used_values.add_other()
                texts += [f"object of {self.digest_class(type(layer))}", *self.describe_stored_code(layer)]
        return texts

    def _describe_code_in_wrapper(self, wrapper: FunctionType) -> list[str]:
        """Return the texts of the user's functions, context managers and decorators in a library's wrapper.

        :param wrapper: the function that a decorator of a library made.
        """
        function_texts: list[str] = []
        context_texts: list[str] = []
        for inner in closure_cells(wrapper).values():
            if is_instance(inner, ContextDecorator):
                context_texts.append(self._describe_context(inner))
            else:
                function_texts += self._describe_value_in_wrapper(inner, wrapper)
        # The ``__wrapped__`` may be another function than those in the closure, or (singledispatch) the only one.
        for text in self._describe_value_in_wrapper(vars(wrapper).get("__wrapped__"), wrapper):
            if text not in function_texts:
                function_texts.append(text)
        return [*function_texts, *context_texts, *self._describe_decorators(wrapper)]

    def _describe_value_in_wrapper(self, inner: object, wrapper: FunctionType) -> list[str]:
        """Return the text of a value that a library's wrapper contains, in a list.

        :param inner: a value of the closure, the ``__wrapped__``, or an implementation of a ``singledispatch``.
        :returns: an empty list if the value has no code of the user.
        """
        if is_function_of_user(inner, self.libraries):
            return [self.digest_kernel(inner)]
        text: str | None = None
        function = python_function(inner)
        # The closure of a wrapper may contain the wrapper itself.
        if function is not None and function is not wrapper:
            text = self._describe_code_of_user_inside(inner, function)
        elif is_instance(inner, MethodType) and is_function_of_user(inner.__func__, self.libraries):
            text = self._describe_bound_method(inner)
        elif is_instance(inner, partial) and is_function_of_user(inner.func, self.libraries):
            text = self.describe_code_in(inner)
        elif function is None:
            text = self._describe_callable_object(inner)
        if not text:
            return []
        return [text]

    def _describe_decorators(self, wrapper: FunctionType) -> list[str]:
        """Return the text of the decorators above the user's functions in a wrapper, and of each value that they name.

        The wrapper of ``@torch.autocast("cuda", dtype=DTYPE)`` has the arguments in an object of torch, whose data do
        not count. The source of the user's function has them, too, so it is read instead.

        The result is empty if values in closures count, as for a kernel. The digest of a kernel already has these
        values. If one of them has no stable form, the kernel has no digest.

        :param wrapper: the function that a library's decorator made, or any other function of a library.
        """
        if self._carried or is_dsl_wrapper(wrapper):
            return []
        lines = []
        for function in self._list_functions_inside(wrapper):
            if is_from_library(function, self.libraries) or not has_source(function):
                continue
            decorators = _list_counted_decorators(function)
            if not decorators:
                continue
            text = ", ".join(decorator.text for decorator in decorators)
            self._note_part(function.__qualname__, text)
            lines.append(f"decorators: {text}")
            # In a function inside another function, a name in a decorator may be a variable of the outer function.
            if _is_outside_functions(function.__qualname__):
                lines += self._describe_names_in_decorators(function, decorators)
        return lines

    def _list_functions_inside(self, wrapper: FunctionType) -> list[FunctionType]:
        """Return the functions that a wrapper leads to, directly or through other functions, without the wrapper.

        A function leads to its ``__wrapped__``. A function of a library also leads to the functions in its closure. The
        closure of a user's function is left out, because it can contain helpers that the function does not wrap.
        """
        functions = [wrapper]
        # Functions that are added here are visited later in this loop.
        for function in functions:
            inner_functions: list[object] = [python_function(vars(function).get("__wrapped__"))]
            if self.libraries.has_file(function.__code__.co_filename):
                inner_functions += closure_cells(function).values()
            for inner in inner_functions:
                if type(inner) is FunctionType and inner not in functions:
                    functions.append(inner)
        return functions[1:]

    def _describe_names_in_decorators(self, function: FunctionType, decorators: Iterable[Decorator]) -> list[str]:
        """Return a line for each constant, function and class that the decorators of a function name.

        Objects have no text by :meth:`_describe_value`, and are left out: a registry, as in ``@OPS.register``, may
        store the functions of the whole suite.
        """
        names_in_decorators: set[DottedName] = set()
        for decorator in decorators:
            names_in_decorators.update(decorator.names)
        names = tuple(sorted(names_in_decorators))
        # A later lookup compares these values, to see whether the digest still holds.
        self.used_values.add_function(function, function, names)
        lines = []
        for name, value in list_values_of_names({}, function.__globals__, names, self._ignored):
            try:
                text = self._describe_value(value, name)
            except NoDigestError:
                # The next clause must not catch this error: a file was edited, or could not be read.
                raise
            except UncacheableError:
                # The function or class has no source, because exec() made it. The text of the decorators has its name.
                continue
            if text is not None:
                if not is_code(value):
                    self._note_part(name, text)
                lines.append(f"{name}: {text}")
        return lines

    def _describe_implementations(self, function: FunctionType) -> list[str]:
        """Return the digests of the user's functions that ``functools.singledispatch`` selects from."""
        registry = vars(function).get("registry")
        if not is_instance(registry, MappingProxyType):
            return []
        # A function may be registered at any time.
        self.used_values.add_other()
        texts = []
        for cls in sorted(registry, key=find_public_name):
            texts += self._describe_value_in_wrapper(registry[cls], function)
        return texts

    def _describe_context(self, value: ContextDecorator) -> str:
        """Return the text of a context manager that decorates a function, as ``@manager()`` does.

        :raises UncacheableError: if values in closures count. The arguments of the manager have no stable form.
        """
        if self._carried and not self._has_open_values:
            raise UncacheableError(f"a {class_name(type(value))} decorates a function, and has no stable form")
        return ", ".join([str(self._describe_unnamed_class(type(value))), *self.describe_stored_code(value)])

    def _describe_callable_object(self, value: object) -> str | None:
        """Return the text of a callable object of the user: its class and the code that it stores; else None.

        The object may be a decorator that keeps its function under an unusual name, so all that it stores counts.
        """
        if not is_callable_object(value, self.libraries):
            return None
        texts = [f"object of {self._describe_unnamed_class(type(value))}", *self.describe_stored_code(value)]
        if id(value) not in self._open_callables:
            self._open_callables.add(id(value))
            texts += self._describe_uses(self._reached_objects.list_stored_objects(value))
            self._open_callables.discard(id(value))
        return ", ".join(texts)

    def describe_stored_code(self, value: object) -> list[str]:
        """Return ``name=text`` for each attribute that an object stores, also in ``__slots__``, if its value has code.

        If a method assigns the attribute, only a function of the user counts: the method may run before the lookup or
        after it.
        """
        if id(value) in self._open_objects:  # the object contains itself
            return ["recursive"]
        self._open_objects.add(id(value))
        texts = []
        try:
            for name, attribute in list_stored_attributes(value):
                is_assigned = self._ignored.has_object_attribute(value, type(value), name)
                # Such as _compiled_call_impl, which torch.nn.Module.compile() assigns.
                owner = find_owner(type(value), name)
                is_of_library = owner is not None and self.libraries.has_code(owner)
                if (is_assigned or is_of_library) and not is_function_of_user(attribute, self.libraries):
                    continue
                with self._in_code_stored_by_object():
                    text = self._describe_stored(attribute, name)
                if text is not None:
                    # The object may get another attribute at any time.
                    self.used_values.add_other()
                    texts.append(f"{name}={text}")
        finally:
            self._open_objects.discard(id(value))
        return texts

    def _describe_stored(self, value: object, name: str) -> str | None:
        """Return the text of the code in a value that an object stores; None if the digest needs no text of the value.

        The text of a library's function, class or bound method is its name, or the user's code inside it.

        :param name: the name of the attribute; empty for an item of a tuple or an argument of a partial.
        """
        value = without_memo(value)
        if is_instance(value, ModuleType):
            return self._describe_module(value, [WHOLE_OBJECT])
        if is_instance(value, BOUND_METHODS):
            return self._describe_value(value, name) or self._describe_method_of_library(value, name)
        if is_instance(value, type) or is_function_of_user(value, self.libraries):
            return self._describe_value(value, name)
        items = list_parts(value)
        if items:
            texts = [self._describe_stored(item, "") for item in items]
            if not any(texts):
                return None
            return f"({', '.join(text or '...' for text in texts)})"
        text = self._describe_callable_object(value)
        if text is not None:
            return text
        function = python_function(value)
        if function is None:
            if not is_builtin_function(value):
                return None
            return self._describe_value(value, name)
        # A library's decorator may have made the function, as contextlib.contextmanager does.
        code_of_user = self._describe_code_of_user_inside(value, function)
        return code_of_user or self._describe_value(value, name)

    def _describe_fixed_items(self, value: object) -> str | None:
        """Return the text of a tuple's items that cannot change, with ``...`` for each other item.

        ``(1, [2])`` gives ``tuple(1, ...)``, with the number as :meth:`_describe_value` has it. None for a tuple whose
        items may all change, and for other values.
        """
        value = unwrapped(value)
        if not is_instance(value, tuple) or self.libraries.has_root:
            return None
        texts: list[str | None] = []
        for item in list_items(value):
            text = self._describe_value(item, "") or self._describe_fixed_items(item)
            if text is None and not is_code(item):
                # The data in the item do not count. Its class does.
                text = self.describe_code_in(item)
            texts.append(text)
        if not any(texts):
            return None
        items = ", ".join(text or "..." for text in texts)
        return self._add_class(f"{class_name(type(value))}({items})", value)

    def _add_class(self, text: str, value: object) -> str:
        """Return the text of a value, with the digest of its class if the class is the user's."""
        cls = type(unwrapped(value))
        if self.libraries.has_code(cls):
            return text
        return f"{text} of {self.digest_class(cls)}"

    def _digest_classes_inside(self, constant: object) -> list[str]:
        """Return the digest of each class of the user that has an object inside a constant.

        For ``(Tile(64), 1)``, this is the class ``Tile``. The code that uses the constant may call methods of its
        objects.
        """
        # By id, because a metaclass may have a hash of the user, and because a value may contain itself.
        class_by_id: dict[int, type] = {}
        read_values: dict[int, object] = {}
        constant = unwrapped(constant)
        pending = self._list_constant_parts(constant)
        while pending:
            value = unwrapped(pending.pop())
            if is_scalar(value) or is_code(value) or id(value) in read_values:
                continue
            read_values[id(value)] = value
            cls = type(value)
            # The caller adds the class of the constant itself.
            if cls is not type(constant) and not self.libraries.has_code(cls):
                class_by_id[id(cls)] = cls
            pending += self._list_constant_parts(value)
        # The order of a frozenset differs between processes, and a digest may depend on the classes digested before.
        classes = sorted(class_by_id.values(), key=find_public_name)
        return sorted({self.digest_class(cls) for cls in classes})

    def _list_constant_parts(self, value: object) -> list[object]:
        """Return the parts of a constant of Python's, or of a type or tuple of Triton's."""
        triton_items = list_triton_items(value)
        if triton_items is None:
            return list_constant_parts(value)
        return [item for _, item in triton_items]

    # Constants.

    def describe_constant(self, value: object) -> str | None:
        """Return the text of a value that cannot change; None for other values."""
        try:
            return self._describe_constant(value)
        except UncacheableError:
            return None

    def _describe_constant(self, value: object) -> str:
        """Return the text of a value that cannot change.

        ``(1, 2)`` gives ``tuple(('', 'int', '1', ''), ('', 'int', '2', ''))``: the text of a number is its
        :class:`~pytest_autotune.cache.model.Value`, encoded.

        :raises UncacheableError: for other values.
        """
        value = unwrapped(value)
        # The class of an enum may also inherit from tuple.
        if is_instance(value, enum.Enum):
            member_value = self.describe_constant(read_stored(value, "_value_"))
            return f"{class_name(type(value))}.{read_stored(value, '_name_')}={member_value}"
        text = self._describe_collection(value)
        if text is None:
            text = self._describe_library_constant(value)
        if text is not None:
            return text
        function = python_function(value)
        if function is not None:
            if self.libraries.has_code(function):
                function_digest = self._describe_code_of_user_inside(value, function)
            else:
                function_digest = self.digest_kernel(value)
            return repr(("", "function", f"{qualified_name(function)}@{function_digest}"))
        if is_instance(value, str):
            text = str.__str__(value)
            path = relative_path(text, self._module_files)
            if path is None and self._shortens_paths:
                path = find_last_part(text, self._module_files)
            if path is not None:
                return repr(("", "path", path))
        return repr(scalar_value("", value, dtype_apart=True).encoded)

    def _describe_collection(self, value: object) -> str | None:
        """Return the text of a frozen dataclass's object, a tuple or a frozenset; None for other values.

        :raises UncacheableError: if a part of the collection may change.
        """
        kind = class_name(type(value))
        if is_dataclass_instance(value) and is_frozen(type(value)):
            return f"{kind}({self._describe_fields(value)})"
        if is_instance(value, tuple):
            items = list_items(value)
            field_names = find_in_class(type(value), "_fields")
            if is_instance(field_names, tuple):  # a named tuple
                return f"{kind}({self._describe_items(zip(map(str, field_names), items, strict=False))})"
            return f"{kind}({', '.join(map(self._describe_constant, items))})"
        if is_instance(value, frozenset):
            # Two items may use each other. Their texts then depend on which is described first. So they are described
            # in the order of their names, which is the same in each process.
            texts = [self._describe_constant(item) for item in sorted(frozenset.__iter__(value), key=_name_for_order)]
            return f"{kind}({', '.join(sorted(texts))})"
        return None

    def _describe_library_constant(self, value: object) -> str | None:
        """Return the text of a constant of Python's library or of Triton, such as a ``range``; None for other values.

        :raises UncacheableError: if an attribute of Triton's value may change.
        """
        if type(value) is range or type(value) is Decimal or type(value) is Fraction:
            return repr(value)
        # A subclass may have a __repr__ of the user.
        if is_instance(value, bytes):
            return bytes.__repr__(value)
        if is_instance(value, complex):
            return complex.__repr__(value)
        triton_items = list_triton_items(value)
        if triton_items is not None:
            return f"{class_name(type(value))}({self._describe_items(triton_items)})"
        return None

    def _describe_fields(self, value: object) -> str:
        """Return the text of the fields of a frozen dataclass's object, which may contain the object itself."""
        if id(value) in self._open_objects:
            return "recursive"
        self._open_objects.add(id(value))
        self.used_values.add_constant(value)
        try:
            texts = []
            for name, field_value in list_layout_fields(value) or list_field_values(value):
                text = "unset"
                if field_value is not MISSING:
                    text = self._describe_constant(field_value)
                texts.append(f"{name}={text}")
        finally:
            self._open_objects.discard(id(value))
        return ", ".join(texts)

    def _describe_items(self, items: Iterable[tuple[str, object]]) -> str:
        return ", ".join(f"{name}={self._describe_constant(value)}" for name, value in items)

    def _note_part(self, name: str, text: str) -> None:
        # A function under two decorators is read twice.
        if (name, text) in self._noted_parts:
            return
        self._noted_parts.add((name, text))
        # Functions that share a name are one part.
        self.parts[name] = digest(self.parts.get(name, "") + text)


def _without_prefix(name: DottedName, prefix: str) -> DottedName:
    """Return a dotted name without its first part, if that is the prefix."""
    if name[:1] == (prefix,):
        return name[1:]
    return name


def _list_decorator_identities(layers: Iterable[object]) -> list[object]:
    """Return, for each decorator of the user around a function, the object that tells it from other decorators.

    A partial under ``functools.wraps()`` stands for itself. Another decorator's object stands for its class, because
    its data do not count.
    """
    identities: list[object] = []
    for layer in layers:
        if is_instance(layer, partial):
            identities.append(layer)
        elif type(layer) is not FunctionType and not is_library_code(type(layer)):
            identities.append(type(layer))
    return identities


def list_passes(carried: bool, root: FunctionType | type | None, is_kept: bool = False) -> Iterator[CodeDigests]:
    """Yield the objects that compute a digest again until all names are known that digested functions assign.

    The digest of the last one counts. Functions that assign no global and no class attribute need a single pass.

    :param carried: whether plain values in closures and defaults count.
    :param root: the function or class that the digest is for; None for a value.
    :param is_kept: whether the caller keeps the digest, and compares ``used_values`` at later lookups.
    """
    ignored = AssignedNames()
    while True:
        digests = CodeDigests(carried, root, ignored, is_kept)
        yield digests
        if ignored.has_all(digests.assigned):
            return
        digests.assigned.add_all(ignored)
        ignored = digests.assigned


def _list_counted_decorators(function: FunctionType) -> list[Decorator]:
    """Return the decorators of a function, without those of ``_PACKAGES_OF_IGNORED_DECORATORS``."""
    decorators = []
    for decorator in read_decorators(function):
        package = ""
        if decorator.name:
            package = _read_package_name(function.__globals__.get(decorator.name[0]))
        if package not in _PACKAGES_OF_IGNORED_DECORATORS:
            decorators.append(decorator)
    return decorators


def _read_package_name(value: object) -> str:
    """Return the package that a module or function belongs to; for another value, the package of its class.

    The result is empty for a module without a name.
    """
    if is_instance(value, ModuleType):
        module_name = str(module_attributes(value).get("__name__", ""))
    elif type(value) is FunctionType:
        module_name = str(value.__module__)
    else:
        module_name = class_module(type(value))
    return module_name.partition(".")[0]


def _is_outside_functions(qualname: str) -> bool:
    """Whether a function or class is defined outside of functions, so that the import of its module makes it.

    :param qualname: the ``__qualname__``. A wrapper by ``functools.wraps()`` has the name of the function inside, so
        the wrapper also counts as outside if only the function inside is.
    """
    return "<locals>" not in qualname


def _is_global(name: str, function: FunctionType) -> bool:
    """Whether a dotted name that a function uses begins with a global, and not with a variable of its closure."""
    return name.partition(".")[0] not in function.__code__.co_freevars


def _list_names_below(path: str, names: Iterable[DottedName]) -> list[DottedName]:
    """Return the dotted names that begin with a path, without the path: ``("launch",)`` for ``obj.launch`` and ``obj``.

    The result is empty in one case: the source of the function names the path nowhere.
    """
    parts = tuple(path.split("."))
    return [name[len(parts) :] for name in names if name[: len(parts)] == parts]


def _name_for_order(value: object) -> str:
    """Return a name to sort the items of a set by: the name of a function, or the name of another value's class."""
    function = python_function(value)
    if function is None:
        return class_name(type(value))
    return qualified_name(function)
