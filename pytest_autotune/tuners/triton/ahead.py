"""Compiles the choices of a loaded cache beside the tests, into Triton's own cache on disk.

Each entry says which specializations its choice was compiled for. A test that launches a kernel while it is compiled
waits for the compilation, and finds the kernel on disk.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.merge import MAX_SPECIALIZATIONS
from pytest_autotune.cache.model import Device, Entry
from pytest_autotune.run.mode import Job, Suite
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.shared.functions import python_function, qualified_name
from pytest_autotune.tuners.shared.reach import list_reached
from pytest_autotune.tuners.triton.compilations import CompiledElsewhere, CompileWatcher, leave_to_others
from pytest_autotune.tuners.triton.identity import NAME, compute_fingerprint, distinct_params, list_heuristics
from pytest_autotune.tuners.triton.internals import apart, autotuners, environment
from pytest_autotune.tuners.triton.internals.autotuners import OuterHeuristics
from pytest_autotune.tuners.triton.internals.compile_time import CompileTime
from pytest_autotune.tuners.triton.specialization_text import CONSTANT, NoText, parse_specialization


@dataclass(frozen=True)
class _CompileJob:
    """One specialization of a choice, to be compiled in a thread of a pool.

    :param kernel: Triton's ``JITFunction``.
    :param config: the choice.
    :param text: the specialization.
    :param arch: for example ``sm_90``.
    :param cache_folder: Triton's folder for compiled kernels at the beginning of the tests.
    """

    kernel: Any
    config: Any
    text: str
    arch: str
    cache_folder: str

    def run(self) -> bool:
        """Compile the specialization. Return False if it lies on disk, or a test or another process compiles it."""
        leave_to_others()
        try:
            # A test may have given Triton another folder, or listen to compilations.
            if environment.find_cache_folder() != self.cache_folder or not environment.uses_disk_cache():
                return False
            return self._compile()
        except (CompiledElsewhere, apart.ChangedMeanwhile):
            return False

    def _compile(self) -> bool:
        """Compile the specialization; returns whether it was not on disk.

        :raises Exception: if the text is damaged or does not fit the kernel, or the kernel does not compile.
        """
        parameters, launch_options = parse_specialization(self.text)
        if len(self.kernel.params) != len(parameters):
            raise NoText("another number of parameters")
        specialization = apart.Specialization()
        for number, (kernel_parameter, parameter) in enumerate(zip(self.kernel.params, parameters, strict=True)):
            name = kernel_parameter.name
            specialization.signature[name] = parameter.kind
            if parameter.kind == CONSTANT:
                constant = parameter.constant
                if parameter.is_in_choice:
                    constant = self.config.kwargs[name]
                specialization.constants[number,] = constant
                words = apart.find_assumptions_of_constant(constant)
            else:
                words = apart.find_assumptions(parameter.kind, kernel_parameter, divisible=parameter.divisible)
            if words is not None:
                specialization.assumptions[number,] = words
        options = {**self.config.all_kwargs(), **launch_options}
        return apart.compile_apart(self.kernel, specialization, options, self.arch)


@dataclass(frozen=True)
class _FailedJob:
    """A kernel for which no jobs can be listed. The job reports the error."""

    error: Exception

    def run(self) -> bool:
        raise self.error


class AheadCompiler:
    """Lists the choices that threads of a process can compile beside its tests.

    :param autotuner_class: Triton's ``Autotuner``.
    :param compilations: makes tests wait for a kernel that is compiled now.
    """

    def __init__(
        self, session: Session, autotuner_class: Any, heuristics: OuterHeuristics, compilations: CompileWatcher
    ) -> None:
        self._session = session
        self._autotuner_class = autotuner_class
        self._heuristics = heuristics
        self._compilations = compilations

    def list_jobs(self, suite: Suite) -> list[Job]:
        """Return the jobs of a suite, in the order in which its tests use the kernels.

        :raises HookError: if this Triton is not known to compile in this way.
        """
        index = self._session.index
        if index is None or not any(entry.compiled for entry in index if entry.problem.tuner == NAME):
            return []
        device = _find_device(index)
        # An AMD backend assumes the sizes of buffers, and no text has them.
        if device is None or not device.arch.startswith("sm_") or not environment.uses_disk_cache():
            return []
        apart.check_version()
        self._compilations.watch()
        jobs: list[Job] = []
        for autotuner in self._list_autotuners(suite):
            try:
                compile_jobs = self._list_jobs_of(autotuner, index, device)
            except Exception as error:  # nothing of this kernel is compiled ahead
                jobs.append(_FailedJob(error).run)
            else:
                jobs += [job.run for job in compile_jobs]
        return jobs

    def _list_autotuners(self, suite: Suite) -> list[Any]:
        """Return the autotuners that the tests reach, in their order, then all others unless files were left out."""
        live = {id(autotuner): autotuner for autotuner in autotuners.list_live_objects(self._autotuner_class)}
        ordered = [value for value in list_reached(suite.tests) if id(value) in live]
        if suite.is_part:
            return ordered
        reached_ids = {id(autotuner) for autotuner in ordered}
        ordered += [autotuner for autotuner in live.values() if id(autotuner) not in reached_ids]
        return ordered

    def _list_jobs_of(self, autotuner: Any, index: EntryIndex, device: Device) -> list[_CompileJob]:
        """Return a job for each specialization of the autotuner's choices."""
        entries = self._list_entries(autotuner, index, device)
        if not entries:
            return []
        kernel = autotuners.find_jit_function(autotuner)
        if CompileTime.of(kernel).needs_launch:
            return []
        cache_folder = environment.find_cache_folder()
        heuristics = list_heuristics(autotuner, self._heuristics.list_around(autotuner))
        config_by_params = dict(zip(distinct_params(autotuner.configs), autotuner.configs, strict=True))
        fingerprint = tuple(sorted(compute_fingerprint(autotuner, heuristics), key=attrgetter("name")))
        # Entries that differ only in their key have the same jobs. A job is known by the number of its config: asking
        # Triton's functions for their hash makes Triton hash their source.
        jobs: dict[tuple[int, str], _CompileJob] = {}
        for entry in entries:
            config = None
            if entry.choice is not None:
                config = config_by_params.get(entry.choice.params)
            if config is None or entry.fingerprint.without_pruning() != fingerprint:
                continue
            for text in entry.compiled[:MAX_SPECIALIZATIONS]:
                jobs[id(config), text] = _CompileJob(kernel, config, text, device.arch, cache_folder)
        return list(jobs.values())

    def _list_entries(self, autotuner: Any, index: EntryIndex, device: Device) -> list[Entry]:
        """Return the entries of an autotuner's kernel that say for which specializations their choice was compiled."""
        function = python_function(autotuner)
        if function is None or autotuners.is_interpreted(autotuner):
            return []
        module = sys.modules.get(function.__module__, sys)
        if function.__globals__ is not vars(module):  # the module was loaded again
            return []
        kernel_name = qualified_name(function)
        if self._session.ignores(NAME, kernel_name):
            return []
        entries = []
        for entry in index.list_kernel_entries(NAME, kernel_name):
            entry_device = entry.problem.device
            may_use_entry = self._session.policy.may_use_entries_of(device, entry_device)
            if entry.compiled and may_use_entry and entry_device.arch == device.arch:
                entries.append(entry)
        return entries


def _find_device(index: EntryIndex) -> Device | None:
    """Return the device of the tests; None if it can only be found by initialising it."""
    if devices.cuda_is_initialised():
        return devices.current_gpu()
    return devices.find_only_type(index.list_devices(NAME))
