"""Compiles the choices of a loaded cache in threads while tests run, into Triton's own cache on disk.

An entry holds texts, each of which describes a specialization: types, alignments and constants that the choice was
compiled for. If a test launches a kernel that a thread compiles now, the test waits, and then reads the kernel from
disk.

:class:`AheadCompiler` lists the jobs, and a job compiles one specialization. The second half of the module finds the
autotuners that tests reach, so that the jobs have the order of the tests.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.merge import MAX_SPECIALIZATIONS
from pytest_autotune.cache.model import Device, Entry, Fingerprint, Value
from pytest_autotune.run.session import Job, Session, Suite
from pytest_autotune.tuners.source.functions import python_function, qualified_name
from pytest_autotune.tuners.source.libraries import is_library_code
from pytest_autotune.tuners.triton.compile_watcher import CompiledElsewhere, CompileWatcher, leave_to_others
from pytest_autotune.tuners.triton.identity import NAME, compute_fingerprint, distinct_params, list_heuristics
from pytest_autotune.tuners.triton.internals import apart, autotuners, compiler
from pytest_autotune.tuners.triton.internals.autotuners import OuterHeuristics
from pytest_autotune.tuners.triton.internals.compile_time import CompileTime
from pytest_autotune.tuners.triton.specialization_text import CONSTANT, NoText, Parameter, parse_specialization

#: At most this many objects that tests reach are looked at.
MAX_OBJECTS = 100_000


@dataclass(frozen=True)
class _CompileJob:
    """A job of a thread: compile a choice for one specialization.

    :param kernel: Triton's ``JITFunction``.
    :param config: the choice.
    :param text: the specialization, see :mod:`.specialization_text`.
    :param arch: the architecture of the device, for example ``sm_90``.
    :param cache_folder: Triton's folder for compiled kernels at the time when the job was listed.
    """

    kernel: Any
    config: Any
    text: str
    arch: str
    cache_folder: str

    def run(self) -> bool:
        """Compile the specialization.

        :returns: whether this job compiled the specialization. It is False in three cases: the kernel lies on disk, a
            test or another process compiles the kernel now, or a test has changed something that the job relies on.
        """
        # A thread that compiles ahead has no use for a kernel that is compiled elsewhere, so it does not wait for it.
        leave_to_others()
        try:
            # The running test has given Triton another folder.
            if compiler.find_cache_folder() != self.cache_folder:
                return False
            # The running test has turned Triton's cache on disk off, or observes compilations through a listener.
            if not compiler.uses_disk_cache():
                return False
            return self._compile()
        except (CompiledElsewhere, apart.ChangedMeanwhile):
            return False

    def _compile(self) -> bool:
        """Compile the specialization; returns whether the kernel was not yet on disk.

        :raises Exception: if the text is damaged or does not fit the kernel, or the kernel does not compile.
        """
        parameters, launch_options = parse_specialization(self.text)
        specialization = self._build_specialization(parameters)
        options = {**self.config.all_kwargs(), **launch_options}
        return apart.compile_apart(self.kernel, specialization, options, self.arch)

    def _build_specialization(self, parameters: Sequence[Parameter]) -> apart.Specialization:
        """Return the specialization in the form that Triton's compiler takes.

        Example: the words ``*bf16:16 =1`` for the parameters ``x_ptr`` and ``N`` give the signature ``{"x_ptr":
        "*bf16", "N": "constexpr"}`` and the constants ``{(1,): 1}``. Assumptions are Triton's attributes of a
        parameter, such as the divisibility by 16.

        :param parameters: the parameters that the text describes, in the order of the kernel's parameters.
        :raises NoText: if the kernel has another number of parameters.
        """
        if len(self.kernel.params) != len(parameters):
            raise NoText("another number of parameters")
        specialization = apart.Specialization()
        for position, parameter in enumerate(parameters):
            kernel_parameter = self.kernel.params[position]
            name = kernel_parameter.name
            specialization.signature[name] = parameter.kind
            # Triton's name for the parameter. An item of a tuple would have a longer path.
            path = (position,)
            if parameter.kind == CONSTANT:
                constant = parameter.constant
                if parameter.is_in_choice:
                    constant = self.config.kwargs[name]
                specialization.constants[path] = constant
                assumptions = apart.find_assumptions_of_constant(constant)
            else:
                assumptions = apart.find_assumptions(parameter.kind, kernel_parameter, divisible=parameter.divisible)
            if assumptions is not None:
                specialization.assumptions[path] = assumptions
        return specialization


@dataclass(frozen=True)
class _FailedJob:
    """Takes the place of a kernel's jobs if they could not be listed. Its run raises the error, which is then reported.

    :param error: the error of the listing.
    """

    error: Exception

    def run(self) -> bool:
        raise self.error


class AheadCompiler:
    """Lists the jobs that compile loaded choices in threads while tests run.

    :param autotuner_class: Triton's ``Autotuner``.
    :param heuristics: finds the ``triton.heuristics`` around an autotuner.
    :param compile_watcher: makes a test wait if a thread compiles the test's kernel now.
    """

    def __init__(
        self, session: Session, autotuner_class: Any, heuristics: OuterHeuristics, compile_watcher: CompileWatcher
    ) -> None:
        self._session = session
        self._autotuner_class = autotuner_class
        self._heuristics = heuristics
        self._compile_watcher = compile_watcher

    def list_jobs(self, suite: Suite) -> list[Job]:
        """Return the jobs of a suite, in the order in which its tests use the kernels.

        :raises HookError: if this Triton is not known to compile in this way.
        """
        index = self._session.index
        # The run loads nothing, or no loaded entry has a specialization.
        if index is None or not any(entry.compiled for entry in index if entry.problem.tuner == NAME):
            return []
        device = _find_device(index)
        # The type of GPU is unknown, or it is not from NVIDIA. AMD backends also assume the sizes of buffers, which the
        # texts of specializations do not hold.
        if device is None or not device.arch.startswith("sm_"):
            return []
        # A test could not find the compiled kernels on disk, or a listener of a test would observe the compilations.
        if not compiler.uses_disk_cache():
            return []
        apart.check_version()
        self._compile_watcher.watch()
        jobs: list[Job] = []
        for autotuner in self._list_autotuners(suite):
            try:
                compile_jobs = self._list_jobs_of(autotuner, index, device)
            except Exception as error:
                # The other kernels still compile ahead.
                jobs.append(_FailedJob(error).run)
            else:
                jobs += [job.run for job in compile_jobs]
        return jobs

    def _list_autotuners(self, suite: Suite) -> list[Any]:
        """Return the autotuners of a suite. The autotuners that its tests reach come first, in the order of the tests.

        A test may launch an autotuner that the plugin cannot reach from the test. The list therefore ends with all
        other autotuners. If the run deselected tests, the other autotuners probably belong to the deselected tests, so
        the list has none of them.
        """
        live_by_id = {id(autotuner): autotuner for autotuner in autotuners.list_live_objects(self._autotuner_class)}
        reached = [value for value in list_reached(suite.tests) if id(value) in live_by_id]
        if suite.is_part:
            return reached
        reached_ids = set(map(id, reached))
        not_reached = [autotuner for autotuner_id, autotuner in live_by_id.items() if autotuner_id not in reached_ids]
        return reached + not_reached

    def _list_jobs_of(self, autotuner: Any, index: EntryIndex, device: Device) -> list[_CompileJob]:
        """Return a job for each specialization of the loaded choices of an autotuner."""
        entries = self._list_entries(autotuner, index, device)
        if not entries:
            return []
        kernel = autotuners.find_jit_function(autotuner)
        # The launch itself must compile this kernel. An earlier compilation could give it other code.
        if CompileTime.from_kernel(kernel).needs_launch:
            return []
        cache_folder = compiler.find_cache_folder()
        heuristics = list_heuristics(autotuner, self._heuristics.list_around(autotuner))
        config_by_params = dict(zip(distinct_params(autotuner.configs), autotuner.configs, strict=True))
        fingerprint = Fingerprint(compute_fingerprint(autotuner, heuristics))
        # Entries that differ only in their key can have the same choice and specializations, so a dict removes equal
        # jobs. Its keys are the id of the config and the text of the specialization. They do not hold the config
        # itself, because hash(config) would have Triton hash the functions in the config.
        jobs: dict[tuple[int, str], _CompileJob] = {}
        for entry in entries:
            config = _find_config(entry, config_by_params, fingerprint)
            if config is not None:
                for text in entry.compiled[:MAX_SPECIALIZATIONS]:
                    jobs[id(config), text] = _CompileJob(kernel, config, text, device.arch, cache_folder)
        return list(jobs.values())

    def _list_entries(self, autotuner: Any, index: EntryIndex, device: Device) -> list[Entry]:
        """Return the entries of an autotuner's kernel that have specializations for this type of device."""
        function = python_function(autotuner)
        # Triton's interpreter compiles nothing.
        if function is None or autotuners.is_interpreted(autotuner):
            return []
        module = sys.modules.get(function.__module__)
        # The module was loaded again, so the tests use the autotuner of the new module and not this autotuner.
        if module is None or function.__globals__ is not vars(module):
            return []
        kernel_name = qualified_name(function)
        # autotune_ignore names the kernel.
        if self._session.is_left_out(NAME, kernel_name):
            return []
        entries = []
        for entry in index.list_kernel_entries(NAME, kernel_name):
            entry_device = entry.problem.device
            # autotune_device_alias may allow the entries of another device. Code fits only its own architecture.
            is_usable = self._session.policy.may_use_entries_of(device, entry_device)
            if entry.compiled and is_usable and entry_device.arch == device.arch:
                entries.append(entry)
        return entries


def _find_config(entry: Entry, config_by_params: Mapping[tuple[Value, ...], Any], fingerprint: Fingerprint) -> Any:
    """Return the config that is an entry's choice; None if a launch will not use this choice.

    :param config_by_params: the kernel's configs.
    :param fingerprint: the kernel's fingerprint without pruning, which depends on the launch.
    """
    # Every candidate failed, so there is no choice.
    if entry.choice is None:
        return None
    # The entry is stale: the kernel, its list or a setting has changed.
    if entry.fingerprint.without_pruning() != fingerprint:
        return None
    # The pruner may have made the choice, so that the kernel's list does not have it.
    return config_by_params.get(entry.choice.params)


def _find_device(index: EntryIndex) -> Device | None:
    """Return the type of GPU that the tests use; None if nothing tells it yet.

    The function does not initialise CUDA. The initialisation would freeze ``CUDA_VISIBLE_DEVICES``, and break suites
    that fork.
    """
    if devices.cuda_is_initialised():
        return devices.current_gpu()
    # Most machines have a single type of GPU. The driver tells this type if the loaded cache has entries for it.
    return devices.find_only_type(index.list_devices(NAME))


# The objects that tests reach.


def list_reached(tests: Iterable[Iterable[object]]) -> Iterator[object]:
    """Yield all objects that tests reach: first the objects of the first test, the nearest first.

    An object reaches another if it refers to it, directly or through further objects.

    :param tests: the functions and values of each test.
    """
    # The dictionary keeps the objects alive. Otherwise a new object could get the id of an object that was deleted.
    seen: dict[int, object] = {}
    for test in tests:
        pending = deque(test)
        while pending and len(seen) < MAX_OBJECTS:
            value = pending.popleft()
            if id(value) not in seen:
                seen[id(value)] = value
                yield value
                pending.extend(_list_next(value))


def _list_next(value: Any) -> list[object]:
    """Return the objects to which the search goes on from an object.

    These are the objects that it refers to, and for a function also the values of the names in its code. From a module
    or the code of a library, the search does not go on.
    """
    # The exact type, because isinstance would run code of the object.
    exact_type = type(value)
    is_function = exact_type is FunctionType
    is_class = issubclass(exact_type, type)
    # The suite's own code reaches the suite's kernels. A library refers to very many other objects.
    if (is_function or is_class) and is_library_code(value):
        return []
    # A function uses only the values of a module that it names. They are listed with the function.
    is_module_globals = exact_type is dict and "__builtins__" in value
    if exact_type is ModuleType or is_module_globals:
        return []
    next_objects: list[object] = []
    if is_function:
        next_objects += _list_named_values(value)
    # The garbage collector does not track numbers and texts, which refer to nothing.
    next_objects += filter(gc.is_tracked, gc.get_referents(value))
    return next_objects


def _list_named_values(function: FunctionType) -> Iterator[object]:
    """Yield the values of the names in a function's code, also of names in modules that the code names.

    Example: for ``kernels.matmul.launch(x)`` the names are ``kernels``, ``matmul`` and ``launch``. The globals have the
    module ``kernels``, this module has the module ``matmul``, which has the function ``launch``. The code does not tell
    which name belongs to which module, so each name is looked up in each of these modules.
    """
    names = list(dict.fromkeys(list_names_in_code(function.__code__)))
    # The function may import a module when it runs, so the names of all modules are a scope, too.
    scopes: list[Mapping[str, Any]] = [function.__globals__, sys.modules]
    # The loop appends further scopes to this list, and comes to them later.
    for scope in scopes:
        for name in names:
            value = scope.get(name)
            if type(value) is not ModuleType:
                yield value
            elif not is_library_code(value) and not _has_scope(scopes, value):
                scopes.append(vars(value))


def _has_scope(scopes: Iterable[Mapping[str, Any]], module: ModuleType) -> bool:
    """Whether the names of a module are among the scopes.

    The scopes are compared by ``is``, because ``==`` would compare all their values, and so run the code of the values.
    """
    return any(scope is vars(module) for scope in scopes)


def list_names_in_code(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in some code, and in the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from list_names_in_code(constant)
