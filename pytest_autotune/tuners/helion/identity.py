"""The identity of a search of Helion: its kernel and key, and the digests that its choice rests on."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.digest_parts import digest_of_candidates, digest_of_parts
from pytest_autotune.cache.model import Device, Digest, Problem, UncacheableError, Value
from pytest_autotune.tuners.shared.configurations import Configurations, param_value
from pytest_autotune.tuners.source.functions import closure_cells, python_function, qualified_name
from pytest_autotune.tuners.source.source_digest import (
    DigestedSource,
    callable_text,
    digest,
    is_code,
    read_source,
    stable_value,
)

NAME = "helion"
#: The reason for which an autotune_multi() or a kernel of another language is uncacheable.
NO_KERNEL = "a search for a kernel that is not Helion's, or for several argument sets, has no key"
#: Helion's searches that try a list of the user's. ``RandomSearch`` is derived from the first, and makes its own list.
_FINITE_SEARCHES = ("FiniteSearch", "CachedFiniteSearch")
#: The settings that change the code of every config.
_CODE_SETTINGS = (
    "allow_warp_specialize",
    "backend",
    "dot_precision",
    "fast_math",
    "index_dtype",
    "persistent_reserved_sms",
    "static_shapes",
)
#: The settings that change which configs a search tries. A list of configs is tried as a whole.
_SEARCH_SETTINGS = (
    "autotune_best_of_k",
    "autotune_budget_seconds",
    "autotune_config_overrides",
    "autotune_effort",
    "autotune_force_persistent",
    "autotune_initial_population_strategy",
    "autotune_max_generations",
    "autotune_seed_configs",
    "disable_autotuner_heuristics",
)
#: The settings that are functions of the user: one drops or changes configs, one measures them.
_FUNCTION_SETTINGS = ("autotune_benchmark_fn", "autotune_config_filter")


@dataclass(frozen=True)
class HelionSearch:
    """A search of Helion, with the names that the adapter reads.

    :param search: Helion's ``BaseSearch``.
    """

    search: Any

    @property
    def bound_kernel(self) -> Any:
        """The kernel for arguments of one kind, which compiles configs."""
        return self.search.kernel

    def find_function(self) -> FunctionType | None:
        """Return the Python function of the kernel; None for a kernel of another language, which Helion can tune."""
        kernel = getattr(self.bound_kernel, "kernel", None)
        if kernel is None:
            return None
        return python_function(kernel)

    @property
    def kernel_name(self) -> str:
        """The name of the kernel in the cache."""
        function = self.find_function()
        if function is None:
            return type(self.bound_kernel).__qualname__
        return qualified_name(function)

    @property
    def has_key(self) -> bool:
        """Whether the search is for a kernel of Helion and for one set of arguments."""
        return self.find_function() is not None and isinstance(self.search.args, (list, tuple))

    @property
    def configs(self) -> Sequence[Any]:
        """The configs of a finite search, in the user's order; empty for a search that makes its own configs.

        The user's ``autotune_config_filter`` may change configs, so a search with a filter makes its own configs, too.
        """
        if self.search.settings.autotune_config_filter is not None:
            return ()
        if type(self.search).__name__ not in _FINITE_SEARCHES:
            return ()
        return list(self.search.configs)

    @property
    def is_interpreted(self) -> bool:
        """Whether Triton's interpreter runs the kernel."""
        triton: Any = sys.modules.get("triton")
        if triton is None or self.search.settings.backend != "triton":
            return False
        return bool(triton.knobs.runtime.interpret)

    @property
    def is_on_gpu(self) -> bool:
        """Whether the search measures on a GPU."""
        return not self.is_interpreted and self.bound_kernel.env.device.type != "cpu"

    def find_device(self) -> Device:
        """Return the device that the kernel runs on."""
        if self.is_interpreted:
            return devices.INTERPRETER
        gpu = devices.current_gpu()
        if gpu is None or not self.is_on_gpu:
            return devices.cpu()
        return gpu


@dataclass(frozen=True)
class SearchIdentity:
    """The problem of a search, and the facts that its choice rests on.

    :param source: of the kernel with its helper functions.
    :param configurations: the configs of a finite search; None for a search that makes its own.
    :param space: the digest of the configs that the kernel can have.
    :param settings: the digest of the settings that matter, with their values as its parts.
    """

    problem: Problem
    source: DigestedSource
    configurations: Configurations | None
    space: str
    settings: Digest

    def list_digests(self) -> list[Digest]:
        """Return the functions, configs and settings that the digests of the fingerprint are made of."""
        digests = [digest_of_parts(self.source.digest, self.source.parts), self.settings]
        if self.configurations is not None:
            params = [candidate.params for candidate in self.configurations.list_candidates()]
            digests.append(digest_of_candidates(self.space, params))
        return digests


def name_problem(search: HelionSearch) -> Problem:
    """Return the problem without its key, for a search that has no stable form."""
    return Problem(NAME, search.kernel_name, (), search.find_device())


def compute_identity(search: HelionSearch) -> SearchIdentity:
    """Return the identity of a search.

    :raises UncacheableError: if a part of it has no stable form.
    """
    function = search.find_function()
    if function is None or not search.has_key:
        raise UncacheableError(NO_KERNEL)
    if function.__name__ == "<lambda>":
        raise UncacheableError("a lambda has no name")
    problem = Problem(NAME, search.kernel_name, compute_key(search), search.find_device())
    source = read_source(function)
    settings = _digest_settings(search)
    if search.configs:
        configurations = Configurations(search.configs)
        return SearchIdentity(problem, source, configurations, configurations.digest, settings)
    spec = search.search.config_spec
    controls = search.search.settings.autotune_search_acf or None
    space = digest(spec.cache_fingerprint_hash(advanced_controls_files=controls))
    return SearchIdentity(problem, source, None, space, settings)


# The key.


def compute_key(search: HelionSearch) -> tuple[Value, ...]:
    """Return the named values that Helion tells problems apart by.

    Helion's key has a part for each argument, then parts that belong to no argument: the type of device, its
    capability, whether the run is distributed, the result of the user's ``key=``, and values that the kernel asks for.

    :raises UncacheableError: for a value that has no stable form.
    """
    kernel = search.bound_kernel.kernel
    args = search.search.args
    parts = list(kernel.specialization_key(args))
    values = []
    if getattr(kernel, "cute_structural_policy", None) is not None:
        values.append(param_value("policy", _to_plain(parts.pop(0))))
    for name, arg, part in zip(kernel.signature.parameters, args, parts, strict=False):
        values += _list_argument_values(name, arg, part)
    for name, value in closure_cells(kernel.fn).items():
        if not is_code(value):
            values.append(stable_value(f"closure.{name}", value, dtype_apart=True))
    values.append(param_value("specialization", _to_plain(parts[len(args) :])))
    return tuple(values)


def _list_argument_values(name: str, arg: Any, part: Any) -> Iterator[Value]:
    """Yield the key of one argument.

    :param part: Helion's key of the argument. For a tensor it has dtype and sizes, then the strides or, with
        ``static_shapes=False``, whether an index needs 64 bits, then the dimensions that are marked as static.
    """
    if isinstance(arg, FunctionType):  # Helion's key is a code object, which has no stable form
        yield stable_value(name, arg)
        return
    if not hasattr(arg, "dtype") or not isinstance(part, tuple):
        yield stable_value(name, _to_plain(part))
        return
    dtype, shape, *layout = part
    yield stable_value(f"{name}.dtype", dtype)
    yield stable_value(f"{name}.shape", _to_plain(shape))
    for item in layout:
        if isinstance(item, bool):
            yield stable_value(f"{name}.needs_int64", item)
        elif isinstance(item, tuple):
            yield stable_value(f"{name}.stride", _to_plain(item))
        elif item:
            yield stable_value(f"{name}.static_indices", _to_plain(item))


def _to_plain(value: object) -> object:
    """Return a part of Helion's key as tuples and plain values. A set has no order, so it is sorted."""
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(value, key=repr))
    if isinstance(value, (list, tuple)):
        return tuple(_to_plain(item) for item in value)
    return value


# The fingerprint.


def _digest_settings(search: HelionSearch) -> Digest:
    """Return the digest of the settings that decide which choice is the best.

    :raises UncacheableError: if a setting has no stable form.
    """
    settings = search.search.settings
    parts = list(_describe_settings(settings, _CODE_SETTINGS))
    if not search.configs:
        parts.append(f"search={type(search.search).__name__}")
        parts += _describe_settings(settings, _SEARCH_SETTINGS)
    for name in _FUNCTION_SETTINGS:
        function = getattr(settings, name, None)
        if function is not None:
            parts.append(f"{name}={digest(callable_text(function))}")
    return Digest(digest("\n".join(parts)), tuple(parts))


def _describe_settings(settings: Any, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        value = getattr(settings, name, None)  # a version may lack a setting
        yield f"{name}={param_value(name, value).display_text}"
