"""One search of Helion: its kernel, the key and the fingerprint of its problem, and the race of its configs.

Helion has two kinds of searches. A finite search tries the user's list, ``@helion.kernel(configs=[...])``. Any other
search makes its configs while it runs, so its candidates are not known before.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.digest_parts import digest_of_candidates, digest_of_parts
from pytest_autotune.cache.model import Candidate, Device, Digest, Entry, Problem, UncacheableError, Value
from pytest_autotune.cache.structured import decode_params
from pytest_autotune.run.lookup import Question
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.measuring.clocks import Clock, Runner, torch_clock
from pytest_autotune.tuners.measuring.race import Contest
from pytest_autotune.tuners.shared.arguments import is_tensor
from pytest_autotune.tuners.shared.configurations import Configurations, param_value
from pytest_autotune.tuners.source.functions import closure_cells, python_function, qualified_name
from pytest_autotune.tuners.source.libraries import list_versions
from pytest_autotune.tuners.source.source_digest import (
    FORM,
    DigestedSource,
    callable_text,
    digest,
    is_code,
    read_source,
    stable_value,
)

NAME = "helion"
#: The classes of finite searches. ``RandomSearch`` is derived from ``FiniteSearch``, but makes its list itself. So the
#: name of the class decides, and not ``isinstance``.
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
#: Further settings that change the code of every config, or decide which configs are accurate enough, and their
#: defaults. A default is left out of the fingerprint: else entries from before the adapter read the setting would be
#: stale.
_ADDED_SETTINGS = {
    "autotune_accuracy_check": True,
    "autotune_baseline_atol": None,
    "autotune_baseline_rtol": None,
    "cute_flatten_nested_reductions": False,
    "cute_full_slice_matmul_tiling": False,
    "cute_materialize_transformed_operands": False,
    "cute_region_fission": False,
    "cute_rng_stream": "word0",
    "cute_segmented_matmul_tiling": False,
    "debug_dtype_asserts": False,
    "distributed": False,
    "pallas_interpret": False,
    "pallas_topk_recall_target": 0.99,
    "triton_do_not_specialize": False,
}
#: The settings that change which configs a search makes. A finite search tries its whole list under any of them.
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
#: The settings that are functions of the user: the first measures a config, the second drops or changes configs.
_FUNCTION_SETTINGS = ("autotune_benchmark_fn", "autotune_config_filter")


@dataclass(frozen=True)
class HelionSearch:
    """A search of Helion, with plain names for the attributes that the adapter reads.

    :param base_search: Helion's ``BaseSearch``.
    """

    base_search: Any

    @property
    def bound_kernel(self) -> Any:
        """Helion's ``BoundKernel``: the kernel for tensors of one dtype and shape. It compiles configs."""
        return self.base_search.kernel

    @property
    def problem(self) -> Problem:
        """The problem without its key."""
        return Problem(NAME, self.kernel_name, (), self.find_device())

    @property
    def kernel_name(self) -> str:
        """The name of the kernel in caches and reports, such as ``lib.ops.add``."""
        function = self.find_function()
        if function is None:
            return type(self.bound_kernel).__qualname__
        return qualified_name(function)

    def find_function(self) -> FunctionType | None:
        """Return the Python function of the kernel; None for a kernel of another language, which Helion can tune."""
        kernel = getattr(self.bound_kernel, "kernel", None)
        if kernel is None:
            return None
        return python_function(kernel)

    @property
    def has_argument_sets(self) -> bool:
        """Whether the search is for several sets of arguments, as in ``autotune_multi()``."""
        return not isinstance(self.base_search.args, (list, tuple))

    def list_configs(self) -> Sequence[Any]:
        """Return the configs of a finite search, in the user's order; nothing for any other search."""
        if type(self.base_search).__name__ not in _FINITE_SEARCHES:
            return ()
        if self.base_search.settings.autotune_config_filter is not None:
            # The user's filter may change a config. So the configs are known only when the search tries them.
            return ()
        return list(self.base_search.configs)

    def find_device(self) -> Device:
        """Return the device that the kernel runs on."""
        if self.is_interpreted:
            return devices.INTERPRETER
        gpu = devices.current_gpu()
        if gpu is None or not self.is_on_gpu:
            return devices.cpu()
        return gpu

    @property
    def is_interpreted(self) -> bool:
        """Whether Triton's interpreter runs the kernel."""
        if self.base_search.settings.backend != "triton":
            return False
        triton: Any = sys.modules.get("triton")
        return triton is not None and bool(triton.knobs.runtime.interpret)

    @property
    def is_on_gpu(self) -> bool:
        """Whether the search measures on a GPU."""
        return not self.is_interpreted and self.bound_kernel.env.device.type != "cpu"


# The question.


def build_question(search: HelionSearch) -> SearchQuestion:
    """Return the question for a search.

    :raises UncacheableError: if a part of the problem has no stable form.
    """
    function = search.find_function()
    if function is None:
        raise UncacheableError("the search is not for a kernel of Helion, so it has no key")
    if search.has_argument_sets:
        raise UncacheableError("autotune_multi() searches for several sets of arguments, which have no common key")
    if function.__name__ == "<lambda>":
        raise UncacheableError("a lambda has no name")
    problem = Problem(NAME, search.kernel_name, compute_key(search), search.find_device())
    source = read_source(function)
    settings = _digest_settings(search)
    configs = search.list_configs()
    if configs:
        # A finite search: its list of configs is the search space.
        configurations = Configurations(configs)
        return SearchQuestion(search, problem, source, configurations.digest, settings, configurations)
    # Any other search makes its own configs. Helion computes a digest of the configs that the kernel can have. This
    # digest also depends on the files with advanced controls of the compiler (acf).
    spec = search.base_search.config_spec
    controls = search.base_search.settings.autotune_search_acf or None
    space_digest = digest(spec.cache_fingerprint_hash(advanced_controls_files=controls))
    return SearchQuestion(search, problem, source, space_digest, settings, configurations=None)


class SearchQuestion(Question):
    """Asks for the config of a search.

    :param source: the source of the kernel with its helper functions.
    :param space_digest: the digest of the list of configs, or of the configs that the kernel can have.
    :param settings: the digest of the settings that change the code or the search. Its parts are texts such as
        ``dot_precision=tf32``.
    :param configurations: the configs of a finite search; None for any other search.
    """

    def __init__(
        self,
        search: HelionSearch,
        problem: Problem,
        source: DigestedSource,
        space_digest: str,
        settings: Digest,
        configurations: Configurations | None,
    ) -> None:
        fingerprint = [
            Value("source", source.digest, FORM),
            Value("search", space_digest, "digest"),
            Value("settings", settings.id, "digest"),
        ]
        # Each kernel imports Helion. Helion is named first below, so leave it out here: it must not be listed twice.
        libraries = [library for library in source.libraries if library.name != "helion"]
        versions = list_versions("helion", "triton", "torch", distributions=libraries)
        super().__init__(problem, fingerprint, versions=versions, may_be_renamed=True)
        self.search = search
        self.configurations = configurations
        self._source = source
        self._space_digest = space_digest
        self._settings = settings

    def note_large_source(self, session: Session) -> None:
        """Add a line to the summary if the source has so many parts that a library must be among them."""
        note = self._source.note(self.problem.name)
        if note:
            session.note(note)

    def offers(self, entry: Entry) -> bool:
        """Whether Helion would accept the entry's choice now."""
        return self.find_config(entry.choice) is not None

    def find_config(self, choice: Candidate | None) -> Any:
        """Return Helion's config for a choice; None if the kernel cannot have this config.

        A finite search has its own object for the config. Otherwise the config is built from the params of the choice,
        such as ``block_sizes=[32]`` and ``num_warps=4``.
        """
        if choice is None:
            return None  # the entry says that every candidate failed
        if self.configurations is not None:
            if not self.configurations.has(choice):
                return None
            return self.configurations.find(choice)
        if choice.id or not choice.params:
            return None  # the adapter writes params and no id, so somebody else has written this entry
        try:
            config = sys.modules["helion"].Config.from_dict(decode_params(choice.params))
            # For a config that the kernel cannot have, normalize() raises an error of some class. normalize() changes
            # its argument, so decode the params a second time.
            self.search.base_search.config_spec.normalize(decode_params(choice.params))
        except Exception:
            return None
        return config

    def candidates(self) -> Sequence[Candidate]:
        """Return the configs of a finite search. The candidates of any other search are not known."""
        if self.configurations is None:
            return ()
        return self.configurations.list_candidates()

    def digests(self) -> Iterable[Digest]:
        """Return the functions, settings and configs that the fingerprint is made of."""
        digests = [digest_of_parts(self._source.digest, self._source.parts), self._settings]
        if self.configurations is not None:
            params = [candidate.params for candidate in self.configurations.list_candidates()]
            digests.append(digest_of_candidates(self._space_digest, params))
        return digests


# The key.


def compute_key(search: HelionSearch) -> tuple[Value, ...]:
    """Return the named values by which Helion distinguishes problems.

    They are ``Kernel.specialization_key()``, under the names of the arguments. For ``add(x, factor)`` on the CPU, with
    one vector and one float, that method returns::

        (
            (torch.float32, (100,), (1,), frozenset()),  # x: dtype, shape, strides, static dimensions
            float,  # factor
            "cpu",  # the type of device; the rest belongs to no argument
            None,  # its capability
            False,  # whether the run is distributed
            ...  # the result of the user's key=, and values that the kernel specializes on
        )

    A kernel of Helion's backend ``cute`` may have a ``cute_structural_policy``, which then stands before the arguments.
    The adapter adds the values in the closure of the kernel, because they are compiled in.

    :raises UncacheableError: if a value has no stable form.
    """
    kernel = search.bound_kernel.kernel
    args = search.base_search.args
    parts = list(kernel.specialization_key(args))
    values = []
    if getattr(kernel, "cute_structural_policy", None) is not None:
        # The policy is a tuple, and param_value() writes a tuple as readable text.
        values.append(param_value("policy", _to_plain(parts.pop(0))))
    argument_parts = parts[: len(args)]
    other_parts = parts[len(args) :]
    # A call may leave out the last parameters, which have defaults.
    for name, arg, part in zip(kernel.signature.parameters, args, argument_parts, strict=False):
        values += _list_argument_values(name, arg, part)
    for name, value in closure_cells(kernel.fn).items():
        if not is_code(value):
            # dtype_apart: torch.float16 and tl.float16 are two values here, because the kernel is compiled with them.
            values.append(stable_value(f"closure.{name}", value, dtype_apart=True))
    values.append(param_value("specialization", _to_plain(other_parts)))
    return tuple(values)


def _list_argument_values(name: str, arg: Any, part: Any) -> Iterator[Value]:
    """Yield the values of the key for one argument.

    :param part: Helion's key of the argument. For a tensor it is a tuple of dtype, shape, strides, and the dimensions
        that are marked as static. With ``static_shapes=False`` the third item is a boolean in place of the strides:
        whether an index needs 64 bits.
    """
    if isinstance(arg, FunctionType):
        # Helion's key of a function is its code object, which has no stable form.
        yield stable_value(name, arg)
        return
    if not is_tensor(arg) or not isinstance(part, tuple):
        # A number, whose key is its class, or a constant, whose key is its value. An object of the user may have a
        # dtype, too, and then its key has parts of other kinds.
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
        elif item:  # a set of dimensions, which is mostly empty
            yield stable_value(f"{name}.static_indices", _to_plain(item))


def _to_plain(value: object) -> object:
    """Return a part of Helion's key as tuples and plain values. A set has no order, so it is sorted."""
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(value, key=repr))
    if isinstance(value, (list, tuple)):
        return tuple(_to_plain(item) for item in value)
    return value


# The settings.


def _digest_settings(search: HelionSearch) -> Digest:
    """Return the digest of the settings that decide which choice is the best.

    :raises UncacheableError: if a setting has no stable form.
    """
    settings = search.base_search.settings
    parts = list(_describe_settings(settings, _CODE_SETTINGS))
    for name, default in _ADDED_SETTINGS.items():
        if getattr(settings, name, default) != default:
            parts += _describe_settings(settings, [name])
    if not search.list_configs():
        parts.append(f"search={type(search.base_search).__name__}")
        parts += _describe_settings(settings, _SEARCH_SETTINGS)
    for name in _FUNCTION_SETTINGS:
        function = getattr(settings, name, None)
        if function is not None:
            parts.append(f"{name}={digest(callable_text(function))}")
    return Digest(digest("\n".join(parts)), tuple(parts))


def _describe_settings(settings: Any, names: Iterable[str]) -> Iterator[str]:
    """Yield the name and the value of each setting, such as ``dot_precision=tf32``."""
    for name in names:
        value = getattr(settings, name, None)  # a version of Helion may lack a setting
        yield f"{name}={param_value(name, value).display_text}"


# The race.


class ConfigContest:
    """Builds the race of a loaded choice with the other configs of a finite search.

    :param configurations: the configs of a finite search; None for any other search.
    """

    def __init__(self, search: HelionSearch, configurations: Configurations | None) -> None:
        self._search = search
        self._configurations = configurations

    def build(self) -> Contest | str:
        """Return the race, or the reason why there is none."""
        if self._configurations is None:
            return "Helion's search made the candidates, so there is no list of them to race"
        if self._search.is_interpreted:
            return "the kernel was interpreted, so times mean nothing"
        if not self._search.is_on_gpu:
            return "there is no GPU"
        candidates = self._configurations.list_candidates()
        # A candidate whose launch fails drops out of the race, whatever the error.
        return Contest(candidates, self.build_runners, self.make_clock, expected=(Exception,))

    def build_runners(self, candidates: Sequence[Candidate]) -> dict[Candidate, Runner]:
        """Compile configs, and return a runner for each config that compiles.

        The kernel may write into its arguments, so all launches get a copy of the test's arguments.
        """
        assert self._configurations is not None
        args = copy.deepcopy(self._search.base_search.args)
        runners = {}
        for candidate in candidates:
            config = self._configurations.find(candidate)
            try:
                function = self._search.bound_kernel.compile_config(config, allow_print=False)
                launch = ConfigLaunch(function, args)
                launch.run()  # Triton compiles in the first launch
            except Exception:
                continue  # a search of Helion, too, goes on without such a config
            runners[candidate] = Runner(launch.run)
        return runners

    def make_clock(self) -> Clock:
        """Return the clock that times the launches."""
        return torch_clock(flush_l2=True)


@dataclass(frozen=True)
class ConfigLaunch:
    """A compiled config with the arguments of its launches."""

    function: Any
    args: Sequence[Any]

    def run(self) -> Any:
        """Launch the kernel once."""
        return self.function(*self.args)
