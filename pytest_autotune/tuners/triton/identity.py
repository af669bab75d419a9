"""The identity of a call of an autotuned kernel: its problem, its candidates, and its fingerprint.

The problem tells which choice is needed: the kernel's name, the key and the device. The fingerprint tells whether a
choice is still valid: the kernel's source, its list of candidates, pruning, and settings of Triton. The texts here are
part of committed caches. A changed text makes their entries miss or stale.
"""

from __future__ import annotations

import enum
import inspect
import numbers
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.digest_parts import digest_of_candidates, digest_of_parts
from pytest_autotune.cache.model import (
    NEW_CANDIDATES_TYPE,
    PRUNED,
    Device,
    Digest,
    Problem,
    UncacheableError,
    Value,
    plain_value,
)
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.tuners.shared.candidates import LaunchError
from pytest_autotune.tuners.source.attributes import (
    MISSING,
    class_module,
    class_name,
    find_in_class,
    find_owner,
    is_dataclass_instance,
    is_instance,
    is_scalar,
    list_field_values,
    list_items,
    list_stored_attributes,
)
from pytest_autotune.tuners.source.functions import (
    closure_cells,
    is_class_of_user,
    python_function,
    qualified_name,
    unwrapped,
)
from pytest_autotune.tuners.source.source_digest import (
    FORM,
    DigestedSource,
    callable_text,
    combine_parts,
    digest,
    has_names,
    immutable_text,
    is_code,
    is_library_class,
    read_code_in_values,
    read_source,
    stable_value,
)
from pytest_autotune.tuners.source.values import DtypeName, list_defaults
from pytest_autotune.tuners.triton.internals import autotuners, compiler

#: The functions of ``triton.heuristics``. Each stands in a pair with the name of the value that it computes.
Heuristics = list[tuple[str, Callable[..., object]]]
#: A part of a key before it is encoded: its name, such as ``M`` or ``x_ptr.dtype``, and its value.
KeyPart = tuple[str, object]
#: The beginnings of the names of values in closures. Triton compiles such a value into the kernel, but Triton's own key
#: does not have it.
_CLOSURE_PREFIXES = ("closure.", "heuristics.")
NAME = "triton"
#: Stands in the fingerprint for the candidates that a performance model leaves.
BY_MODEL = "by a performance model"


@dataclass(frozen=True)
class Call:
    """A launch of an autotuned kernel for which Triton's memory has no choice.

    :param tuning_key: Triton's key of the launch in ``autotuner.cache``.
    :param heuristics: the functions of the ``triton.heuristics`` inside and around the autotuner.
    """

    autotuner: Any
    tuning_key: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    heuristics: Heuristics

    @classmethod
    def from_bench_fn(
        cls, autotuner: Any, tuning_key: Any, bench_fn: Callable[[], None], outer_heuristics: Iterable[Any] = ()
    ) -> Call:
        """Return the call for which Triton made a benchmark function.

        :param bench_fn: the function that Triton passes to ``check_disk_cache``. Only its closure has the arguments of
            the launch.
        :param outer_heuristics: the ``triton.heuristics`` around the autotuner.
        :raises LookupError: if the function is not the function of a known Triton.
        """
        args, kwargs = autotuners.find_arguments(bench_fn)
        return cls(autotuner, tuning_key, args, kwargs, list_heuristics(autotuner, outer_heuristics))

    @cached_property
    def is_interpreted(self) -> bool:
        """Whether the kernel runs under Triton's interpreter."""
        return autotuners.is_interpreted(self.autotuner)

    @property
    def named(self) -> dict[str, Any]:
        """Every argument of the launch by its name, Triton's own ``grid`` and ``warmup`` included."""
        return {**dict(zip(self.autotuner.arg_names, self.args, strict=False)), **self.kwargs}

    def arguments(self, config: Any) -> dict[str, Any]:
        """Return the arguments that Triton passes to its hooks for a config."""
        return {**self.named, **config.all_kwargs()}

    def adopt(self, config: Any, times_ms: Mapping[Any, float], seconds: float = 0.0) -> None:
        """Leave the autotuner in the state that Triton's benchmark would leave if it had chosen this config.

        Like Triton's benchmark, the method calls the autotuner's ``pre_hook`` with ``reset_only=True``. Unless the
        kernel's author wrote the hook, it then fills the tensors of ``reset_to_zero`` with zeros.

        :param times_ms: the time of each config in milliseconds. Triton keeps three numbers for each: the median and
            two other quantiles.
        :param seconds: the duration of the benchmark.
        :raises LaunchError: if the hook raises an error. The autotuner then has no choice.
        """
        arguments = self.arguments(config)
        # While the stream captures a CUDA graph, the reset would become a part of the graph.
        if not stream_is_capturing():
            try:
                self.autotuner.pre_hook(arguments, reset_only=True)
            except Exception as error:
                raise LaunchError(error) from error
        self.autotuner.configs_timings = {timed: [time_ms] * 3 for timed, time_ms in times_ms.items()}
        self.autotuner.bench_time = seconds
        # Triton's `run` looks into `cache` without a lock. From here on, launches in other threads use the choice.
        self.autotuner.cache[self.tuning_key] = config


def list_heuristics(autotuner: Any, outer_heuristics: Iterable[Any] = ()) -> Heuristics:
    """Return the functions of the ``triton.heuristics`` inside an autotuner, and of those around it."""
    functions: Heuristics = []
    for heuristics in (*autotuners.list_inner_heuristics(autotuner), *outer_heuristics):
        functions += heuristics.values.items()
    return functions


# The key of the problem.


def list_key_values(call: Call, function: FunctionType) -> Iterator[KeyPart]:
    """Yield the values of a call that its choice depends on, each with its name.

    Triton's own key is a tuple of values, for example ``(512, 64, "torch.bfloat16")``. The key here has names, because
    positions would change if the kernel got another parameter. Example: ``M=512``, ``N=64``,
    ``x_ptr.dtype=torch.bfloat16``, ``closure.ACTIVATION="relu"``.

    :param function: the function of the kernel.
    """
    autotuner = call.autotuner
    arguments = {name: value for name, value in call.named.items() if name in autotuner.arg_names}
    # The values that the kernel's author listed in key=.
    for name in dict.fromkeys(autotuner.keys):
        if name in arguments:
            yield name, arguments[name]
    # The dtypes of all arguments, which Triton adds to its own key, and functions, which Triton's key lacks.
    for name, value in arguments.items():
        yield from _list_compiled_properties(
            name, value, is_in_key=name in autotuner.keys, kernel_module=function.__module__
        )
    # The values in closures. Two kernels that a factory function made may differ only in these values.
    yield from _list_closure_values("closure", function)
    for name, heuristic in call.heuristics:
        heuristic_function = python_function(heuristic)
        if heuristic_function is not None:
            yield from _list_closure_values(f"heuristics.{name}", heuristic_function)


def can_share_tuning_key(call: Call) -> bool:
    """Whether two calls with equal keys in Triton's memory may need different entries.

    Triton would then use the choice of the first call for the second. Triton's key has the arguments in ``key=``, and
    the ``dtype`` of each argument. It lacks functions, classes of objects, and dtypes in tuples and tensor descriptors,
    on which an entry depends. A call that passes None for a ``tl.constexpr`` outside the key also counts, because
    another call may pass a function there. So does a tuple, because another call may pass tensors in it.
    """
    arguments = call.named
    if _passes_none_as_constexpr(call):
        return True
    for name in call.autotuner.arg_names:
        # Triton's key has this argument.
        if name in call.autotuner.keys:
            continue
        argument = arguments.get(name)
        if is_instance(argument, tuple):
            return True
        # For a scalar, an entry has nothing. For a tensor, it has the dtype, as Triton's key.
        if is_scalar(argument) or _is_tensor(argument):
            continue
        for property_name, _ in _list_compiled_properties(name, argument, is_in_key=False, kernel_module=""):
            # Triton's key has the dtype of each argument with a ``dtype``, and no other property.
            if property_name != f"{name}.dtype":
                return True
    return False


def _passes_none_as_constexpr(call: Call) -> bool:
    """Whether a parameter outside the key is a ``tl.constexpr`` and has the value None in a call."""
    function = python_function(call.autotuner)
    if function is None:
        return False
    values = {**dict(list_defaults(function)), **call.named}
    # Triton's key has these parameters, or a heuristic or a candidate sets them.
    names_set_elsewhere = {*call.autotuner.keys, *dict(call.heuristics)}
    for config in call.autotuner.configs:
        names_set_elsewhere.update(config.kwargs)
    for name, annotation in function.__annotations__.items():
        # Triton's own test, see its ``KernelParam.is_constexpr``. The annotation may be a text.
        is_constexpr = "constexpr" in str(annotation)
        if is_constexpr and name not in names_set_elsewhere and values.get(name, MISSING) is None:
            return True
    return False


def _list_compiled_properties(name: str, value: Any, *, is_in_key: bool, kernel_module: str) -> Iterator[KeyPart]:
    """Yield the properties of an argument that Triton compiles into the kernel, each with its name.

    ==================== ==========================================
    argument ``x``       yielded
    ==================== ==========================================
    a tensor             ``x.dtype``
    a tensor descriptor  ``x.base.dtype``
    a tuple              the properties of its items: ``x.0.dtype``
    a function           ``x``, unless ``x`` is in the key anyway
    an object with code  as a function
    an object of the     ``x.class``, unless ``x`` is in the key anyway
    user
    ==================== ==========================================

    :param is_in_key: whether the kernel's author listed the argument in ``key=``.
    :param kernel_module: the name of the kernel's module.
    """
    # The class is in the key besides the source: an update after an edit of one class then keeps the entries for
    # objects of other classes.
    if not is_in_key and _may_have_methods(value) and is_class_of_user(type(unwrapped(value))):
        yield f"{name}.class", _describe_class(type(unwrapped(value)), kernel_module)
    has_dtype = hasattr(value, "dtype")
    if has_dtype:
        yield f"{name}.dtype", DtypeName(str(value.dtype))
    # A named tuple may have a field "dtype" besides its other items.
    if isinstance(value, tuple):
        for position, item in enumerate(value):
            yield from _list_compiled_properties(
                f"{name}.{position}", item, is_in_key=is_in_key, kernel_module=kernel_module
            )
        return
    if not has_dtype and hasattr(getattr(value, "base", None), "dtype"):
        yield f"{name}.base.dtype", DtypeName(str(value.base.dtype))
        return
    # A tensor has no code. A dataclass of the user may have a dtype and a function.
    may_have_code = not has_dtype or is_dataclass_instance(value)
    if may_have_code and not is_in_key and _has_code(unwrapped(value)):
        yield name, value


def _describe_class(cls: type, kernel_module: str) -> str:
    """Return the name of a class with its module, or without it if the module is the kernel's.

    If the file of both is moved, the class keeps its name in the key.
    """
    module = class_module(cls)
    if module == kernel_module:
        return class_name(cls)
    return f"{module}.{class_name(cls)}"


def _has_code(value: object) -> bool:
    """Whether an argument is code, or holds code, which Triton may compile into the kernel.

    Such an argument belongs to the key. The key can hold functions and classes of the user. It can hold no other object
    with code, so a call with such an object is uncacheable.
    """
    # A function, a method, or a function with some of its arguments.
    if is_instance(value, (partial, MethodType)) or python_function(value) is not None:
        return True
    # A class. The classes of libraries, such as their dtypes, are no code of the user.
    if is_instance(value, type):
        return not is_library_class(value)
    # A module, also of a library: the kernel may call its functions, and no source names the module.
    if is_instance(value, ModuleType):
        return True
    # An object that holds functions.
    if is_instance(value, dict):
        return any(_has_function(item) for item in dict.values(value))
    if is_dataclass_instance(value):
        return any(_has_function(item) for _, item in list_field_values(value))
    if is_class_of_user(type(value)) and any(_has_function(item) for _, item in list_stored_attributes(value)):
        return True
    # An object that can be called, if its class is the user's.
    has_call_method = type(find_in_class(type(value), "__call__")) is FunctionType
    return has_call_method and not is_library_class(type(value))


def _has_function(value: object) -> bool:
    """Whether a value is a function, or a tuple with one."""
    if is_instance(value, tuple):
        return any(map(_has_function, list_items(value)))
    return python_function(value) is not None


def _list_closure_values(prefix: str, function: FunctionType) -> Iterator[KeyPart]:
    """Yield the plain values in the closure of a function, each with its name.

    The fingerprint covers the functions and classes in the closure, by their source.

    :param prefix: begins each name: ``closure`` gives ``closure.ACTIVATION``.
    """
    for name, value in closure_cells(function).items():
        if not is_code(value):
            yield f"{prefix}.{name}", value


def encode_key_value(name: str, value: object) -> Value:
    """Encode a part of a key. Two values get the same form if Triton's memory takes them for the same key.

    Triton's memory is a dict, in which ``True``, ``1`` and ``1.0`` are one key. All three therefore become the integer
    1. A value in a closure keeps its type, because Triton compiles the value into the kernel as it is.

    :raises UncacheableError: if the value has no stable form.
    """
    # The value inside a tl.constexpr.
    value = unwrapped(value)
    if name.startswith(_CLOSURE_PREFIXES):
        return stable_value(name, value, dtype_apart=True)
    # A dict takes a member of an IntEnum and its integer for the same key. A float could not hold a large integer.
    if isinstance(value, numbers.Integral):
        return plain_value(name, int(value))
    if _is_compared_as_number(name, value):
        number = float(value)  # type: ignore[arg-type]
        if number.is_integer():
            return plain_value(name, int(number))
        return plain_value(name, number)
    # The dtype of a tensor is the same for torch and Triton. As an argument, torch.float16 and tl.float16 differ.
    is_dtype_of_tensor = isinstance(value, DtypeName)
    return stable_value(name, value, dtype_apart=not is_dtype_of_tensor)


def _is_compared_as_number(name: str, value: object) -> bool:
    """Whether Triton's memory compares a part of a key only by its number, as with a member of an IntEnum."""
    return not name.startswith(_CLOSURE_PREFIXES) and isinstance(unwrapped(value), numbers.Real)


# The identity of a call.


@dataclass(frozen=True)
class CallIdentity:
    """The problem of a call, with the facts on which the choice depends.

    :param uncacheable: the reason why the choice cannot be cached; empty if it can. If there is a reason, the other
        fields below are empty.
    :param config_by_params: the candidates by their params.
    :param source: the source of the kernel and its heuristics.
    """

    problem: Problem
    uncacheable: str = ""
    fingerprint: tuple[Value, ...] = ()
    config_by_params: Mapping[tuple[Value, ...], Any] = field(default_factory=dict)
    source: DigestedSource | None = None


def compute_identity(call: Call, function: FunctionType, configs: Sequence[Any], device: Device) -> CallIdentity:
    """Return the problem of a call, its fingerprint and its candidates.

    If the choice cannot be cached, the identity has only the problem and the reason.

    :param function: the function of the kernel.
    :param configs: the candidates that pruning left.
    """
    key_values = list(list_key_values(call, function))
    key = _encode_key(key_values)
    problem = Problem(NAME, qualified_name(function), tuple(key.values), device)
    reason = _explain_uncacheable(call.autotuner, function) or key.uncacheable
    if reason:
        return CallIdentity(problem, uncacheable=reason)
    config_by_params: dict[tuple[Value, ...], Any] = {}
    try:
        for config, params in zip(configs, distinct_params(configs), strict=True):
            # If the list holds the same candidate twice, Triton uses the first.
            config_by_params.setdefault(params, config)
        source = _read_source(call.autotuner.fn, call.heuristics, key_values, _list_argument_objects(call))
        fingerprint = [*_list_digest_values(call.autotuner, source), *_list_pruned_values(call.autotuner, configs)]
    except UncacheableError as error:
        return CallIdentity(problem, uncacheable=str(error))
    return CallIdentity(problem, fingerprint=tuple(fingerprint), config_by_params=config_by_params, source=source)


def _explain_uncacheable(autotuner: Any, function: FunctionType) -> str:
    """Return the reason why no choice of an autotuner can be cached; empty if there is none.

    :param function: the function of the kernel.
    """
    # The user checks with this hook whether a search takes place. With a choice from a cache, there would be none.
    observer = autotuners.find_search_observer(autotuner, function)
    if observer:
        return f"{observer} observes each search, so the search cannot be skipped"
    # An entry belongs to a kernel by the kernel's name.
    if function.__name__ == "<lambda>":
        return "a lambda has no name"
    return ""


@dataclass(frozen=True)
class _EncodedKey:
    """The key of a problem.

    :param values: the parts that have a stable form. They still tell problems apart in reports.
    :param uncacheable: names the first part without a stable form; empty if there is none.
    """

    values: list[Value]
    uncacheable: str


def _encode_key(key_values: Iterable[KeyPart]) -> _EncodedKey:
    """Encode the parts of a key, and note the first part without a stable form."""
    values = []
    uncacheable = ""
    for name, value in key_values:
        try:
            values.append(encode_key_value(name, value))
        except UncacheableError as error:
            uncacheable = uncacheable or str(error)
    return _EncodedKey(values, uncacheable)


def compute_fingerprint(autotuner: Any, heuristics: Heuristics) -> tuple[Value, ...]:
    """Return the part of a fingerprint that is known without a call: all but pruning and the arguments' classes.

    Compiling ahead of the tests uses this part to recognize stale entries.

    :param heuristics: the functions of the ``triton.heuristics`` inside and around the autotuner.
    :raises UncacheableError: if a part of the fingerprint has no stable form.
    """
    return tuple(_list_digest_values(autotuner, _read_source(autotuner.fn, heuristics, key_values=())))


def list_digests(call: Call, identity: CallIdentity, configs: Sequence[Any]) -> Iterator[Digest]:
    """Yield the digests of a fingerprint with their parts, so that a report can name the part that changed.

    The parts of ``source`` are functions and constants. The parts of ``search`` and of the pruned list are candidates.

    :param configs: the candidates that pruning left.
    """
    for value in identity.fingerprint:
        if value.name == "source" and identity.source is not None:
            yield digest_of_parts(str(value.value), identity.source.parts)
        elif value.name == "search":
            yield digest_of_candidates(str(value.value), distinct_params(call.autotuner.configs))
        # If only a performance model has pruned, the value is the text BY_MODEL and no digest.
        elif value.name == PRUNED and value.type in ("digest", NEW_CANDIDATES_TYPE):
            before_model = _select_before_model(call.autotuner, configs)
            yield digest_of_candidates(str(value.value), distinct_params(before_model))


def find_target_device() -> Device:
    """Return the device for which Triton's driver compiles.

    The adapter needs this function if torch uses no GPU, for example with a CPU backend of Triton.
    """
    target = compiler.find_target()
    if target.backend == "cpu":
        return devices.cpu()
    return Device(str(target.backend), compiler.describe_arch(target))


# The fingerprint.


def _list_digest_values(autotuner: Any, source: DigestedSource) -> list[Value]:
    """Return the values of the fingerprint that do not depend on pruning: ``source``, ``search`` and ``settings``."""
    return [
        Value("source", source.digest, FORM),
        Value("search", _compute_list_digest(autotuner.configs), "digest"),
        *list_settings(autotuner),
    ]


def _compute_list_digest(configs: Iterable[Any]) -> str:
    """Return the digest of a list of candidates. The order does not count."""
    return digest("\n".join(sorted(search_text(config) for config in configs)))


class Pruning(enum.Enum):
    """The functions of the user that removed candidates of a call before the search.

    The *pruner* is the user's function ``early_config_prune``. It returns a part of the candidates, or new candidates.
    The *model* is the user's function ``perf_model``. It estimates the time of each candidate that the pruner left, and
    the candidates with the best estimates stay.
    """

    NOTHING = "nothing"
    MODEL = "the model"
    PRUNER = "the pruner"
    #: The pruner removed candidates. The kernel also has a model, which may have removed more or none.
    PRUNER_WITH_MODEL = "the pruner, in a kernel with a model"


def _list_pruned_values(autotuner: Any, configs: Sequence[Any]) -> list[Value]:
    """Return a list with the fingerprint's value for the candidates that pruning left; empty if pruning left all.

    Pruning may depend on arguments outside of the key, so two calls with the same key can have different candidates.
    The fingerprint tells such calls apart:

    ========================= ==========================================
    pruning                   value
    ========================= ==========================================
    ``NOTHING``               no value
    ``MODEL``                 ``BY_MODEL``
    ``PRUNER``                digest of the pruner's list
    ``PRUNER_WITH_MODEL``     digest of the pruner's list and ``BY_MODEL``
    ========================= ==========================================

    The model's list is in no digest. The estimates may differ in each run, so such a digest would make entries stale at
    random.

    :param configs: the candidates that pruning left.
    """
    # Pruning left all candidates, as in most calls. No digest is computed.
    if _is_same_list(configs, autotuner.configs):
        return []
    pruner_configs = _select_before_model(autotuner, configs)
    pruner_digest = _compute_list_digest(pruner_configs)
    pruning = _find_pruning(autotuner, configs, pruner_digest)
    if pruning is Pruning.NOTHING:
        return []
    if pruning is Pruning.MODEL:
        return [Value(PRUNED, BY_MODEL)]
    # The type tells a report whether the pruner selected candidates or made new ones.
    value_type = NEW_CANDIDATES_TYPE
    if _has_only_listed(pruner_configs, autotuner.configs):
        value_type = "digest"
    if pruning is Pruning.PRUNER_WITH_MODEL:
        return [Value(PRUNED, digest(f"{pruner_digest} {BY_MODEL}"), value_type)]
    return [Value(PRUNED, pruner_digest, value_type)]


def _find_pruning(autotuner: Any, configs: Sequence[Any], pruner_digest: str) -> Pruning:
    """Return which functions removed candidates. Lists with the same candidates in another order count as equal.

    :param configs: the candidates that pruning left.
    :param pruner_digest: the digest of the list that the pruner left to the model.
    """
    has_model = autotuner.perf_model is not None
    digest_of_all = _compute_list_digest(autotuner.configs)
    if pruner_digest != digest_of_all:
        if has_model:
            return Pruning.PRUNER_WITH_MODEL
        return Pruning.PRUNER
    # Without a pruner, the list that the model got is the list of all candidates, too.
    if has_model and _compute_list_digest(configs) != digest_of_all:
        return Pruning.MODEL
    return Pruning.NOTHING


def _has_only_listed(pruner_configs: Iterable[Any], all_configs: Iterable[Any]) -> bool:
    """Whether each candidate of the pruner equals a candidate in the kernel's list."""
    return set(map(search_text, pruner_configs)) <= set(map(search_text, all_configs))


def _is_same_list(configs: Sequence[Any], all_configs: Sequence[Any]) -> bool:
    """Whether two lists hold the same objects in the same order."""
    if configs is all_configs:
        return True
    if len(configs) != len(all_configs):
        return False
    return all(config is candidate for config, candidate in zip(configs, all_configs, strict=True))


def _select_before_model(autotuner: Any, configs: Sequence[Any]) -> Sequence[Any]:
    """Return the candidates before the performance model removed some; without a model, return ``configs``.

    :param configs: the candidates that pruning left.
    """
    # The kernel has a pruner, and perhaps a model. The adapter's hook has noted the pruner's list.
    if isinstance(configs, autotuners.PrunedConfigs):
        return configs.before_model
    # The kernel has no model.
    if autotuner.perf_model is None:
        return configs
    # The kernel has only a model, which chose among all candidates.
    return list(autotuner.configs)


def _list_argument_objects(call: Call) -> list[object]:
    """Return the arguments of a call that may have methods of the user, such as an object of a frozen dataclass."""
    objects: list[object] = []
    arguments = call.named
    for name in call.autotuner.arg_names:
        argument = arguments.get(name)
        if _may_have_methods(argument):
            objects.append(unwrapped(argument))
    return objects


def _may_have_methods(argument: object) -> bool:
    """Whether an argument may have methods of the user that Triton compiles.

    Functions and classes are left out, because they belong to the key. Tensors and numbers are left out: Triton takes
    an IntEnum's member, and any object of a subclass of int or float, for its number.
    """
    # For speed, before unwrapped(): most arguments are scalars or tensors.
    if is_scalar(argument) or _is_tensor(argument):
        return False
    value = unwrapped(argument)
    is_number = is_scalar(value) or is_instance(value, (int, float))
    return not is_number and not is_code(value)


def _is_tensor(value: object) -> bool:
    """Whether a value is a tensor, or the user's own wrapper of a tensor. Triton compiles none of its methods.

    The class of a tensor's library defines ``dtype``. Triton takes every value with a ``data_ptr`` for a pointer.
    """
    dtype_owner = find_owner(type(value), "dtype")
    if dtype_owner is not None and not is_class_of_user(dtype_owner):
        return True
    return find_owner(type(value), "data_ptr") is not None


def _read_source(
    kernel: Any, heuristics: Heuristics, key_values: Sequence[KeyPart], objects: Sequence[object] = ()
) -> DigestedSource:
    """Return the digested source of a kernel, of its heuristics, and of the classes of its arguments.

    The digest is computed from these lines::

        <digest of the kernel's source>
        BLOCK_N: <digest of the heuristic's source>
        mode: <text of the class of the value in the key>
        arguments: <digest of the classes of the arguments, and of the code that the arguments store>

    A kernel without heuristics and without such classes has only the first line. Its digest is this line itself.

    :param heuristics: the functions of the ``triton.heuristics`` inside and around the autotuner.
    :param key_values: the values of the key, each with its name.
    :param objects: the arguments that may have methods of the user.
    """
    # The name of the kernel does not count, so that a renamed kernel keeps its digest.
    kernel_source = read_source(kernel, named=False)
    lines = [kernel_source.digest]
    parts = dict(kernel_source.parts)
    libraries = kernel_source.libraries
    for name, function in heuristics:
        has_source = python_function(function) is not None
        # The text of a bound method has the values of its object, on which the method may depend. A source lacks them.
        if not has_source or inspect.ismethod(function):
            lines.append(f"{name}: {callable_text(function)}")
            continue
        heuristic_source = read_source(function)
        lines.append(f"{name}: {heuristic_source.digest}")
        for part_name, part_digest in heuristic_source.parts.items():
            parts[f"{name}.{part_name}"] = part_digest
        libraries = libraries | heuristic_source.libraries
    lines += _list_class_lines(key_values)
    if objects:
        code_in_objects = read_code_in_values(objects, python_function(kernel), carried=True)
        if code_in_objects is not None:
            lines.append(f"arguments: {code_in_objects.digest}")
            parts = combine_parts([parts, code_in_objects.parts])
            libraries = libraries | code_in_objects.libraries
    if len(lines) == 1:
        return kernel_source
    return DigestedSource(digest("\n".join(lines)), parts, libraries)


def _list_class_lines(key_values: Sequence[KeyPart]) -> Iterator[str]:
    """Yield a line for each value of a key whose class gives names to values: an enum or a named tuple.

    The key holds only the name of an enum's member, and the values of a named tuple. The user may edit the class, so
    that the same name has another value. A member of an IntEnum needs no line, because the key holds its number.
    """
    for name, value in key_values:
        if has_names(value) and not _is_compared_as_number(name, value):
            yield f"{name}: {immutable_text(value)}"


def list_settings(autotuner: Any) -> list[Value]:
    """Return a list with the fingerprint's value for settings of Triton that change the compiled code.

    The list is empty if all settings have their defaults, or if the kernel is interpreted.
    """
    if autotuners.is_interpreted(autotuner):
        return []
    changed = list(compiler.list_changed_settings())
    if not changed:
        return []
    return [Value("settings", ", ".join(changed), "settings")]


# The candidates.


def distinct_params(configs: Sequence[Any]) -> list[tuple[Value, ...]]:
    """Return the params of each candidate. Different candidates have different params.

    Params are the arguments that Triton passes to the kernel: ``BLOCK=64 num_warps=4 num_stages=3``. If two candidates
    have equal arguments, they differ in another attribute, such as ``pre_hook``. Their params then get these
    attributes, too.

    :raises UncacheableError: if such an attribute has no stable form, so that nothing tells two candidates apart.
    """
    all_params = [_encode_params(config) for config in configs]
    counts = Counter(all_params)
    distinct = []
    for params, config in zip(all_params, configs, strict=True):
        if counts[params] > 1:
            params += tuple(_encode_extra(name, value) for name, value in _list_extras(config))
        distinct.append(params)
    return distinct


def _encode_params(config: Any) -> tuple[Value, ...]:
    """Return the arguments that Triton passes to the kernel for a candidate."""
    return tuple(stable_value(name, value, dtype_apart=True) for name, value in config.all_kwargs().items())


def _list_extras(config: Any) -> Iterator[tuple[str, object]]:
    """Yield the attributes of a candidate that Triton does not pass to the kernel: ``pre_hook``, a backend's own."""
    passed = config.all_kwargs()
    for name, value in sorted(vars(config).items()):
        if name != "kwargs" and name not in passed and value is not None:
            yield name, value


def _encode_extra(name: str, value: object) -> Value:
    """Encode an attribute of a candidate that Triton does not pass to the kernel.

    :raises UncacheableError: if the attribute has no stable form.
    """
    if callable(value):
        return Value(name, callable_text(value), "function")
    return stable_value(name, value)


def search_text(config: Any) -> str:
    """Return the text that stands for a candidate in the digest of a list of candidates.

    The text has the candidate's params, the classes of enums and named tuples in them, and all further attributes. Each
    stands in it as a tuple like ``Value.encoded``: name, kind, text, type. Example: ``[("BLOCK", "int", "64", "")]``.
    """
    encoded = [value.encoded for value in _encode_params(config)]
    for name, value in config.all_kwargs().items():
        if has_names(value):
            encoded.append((name, "", str(immutable_text(value)), ""))
    for name, value in _list_extras(config):
        try:
            encoded.append(_encode_extra(name, value).encoded)
        except UncacheableError:
            encoded.append((name, type(value).__qualname__, _describe_unstable(value), ""))
    return repr(encoded)


def _describe_unstable(value: object) -> str:
    """Return a text for an attribute without a stable form: for a function its source, and nothing for other objects.

    The text leaves out the values in the function's closure and defaults, because these have no stable form.
    """
    if callable(value):
        return callable_text(value, carried=False)
    return ""
