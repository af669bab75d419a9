"""The rule for unused entries: which entries should a complete run have asked for? Pure.

A lookup is one question of a tuner in one process: it asks for an identity, which is a problem (kernel, key and device)
with a fingerprint (digests of the kernel's source and the like). An entry of a cache is the choice for one identity.

A run's own reports, the gate over many processes and ``pytest-autotune prune`` share the rule. The rule judges only
runs without an :attr:`~pytest_autotune.run.collected.Collected.unasked_reason`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_autotune.cache.model import Device, Entry, Identity, Problem, Value, is_tuner_named, library_of
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import Lookup, Outcome, Policy
from pytest_autotune.run.request import RunRequest, without_kernel_name


@dataclass(frozen=True)
class Bypass:
    """The kernels that a process bypasses: it asks for no entry of them, although its tests may call them.

    :param adapters: the tuners that have an adapter; None if nobody has listed them.
    :param unhooked_libraries: the libraries of the tuners that could not be hooked.
    """

    policy: Policy
    adapters: tuple[str, ...] | None
    unhooked_libraries: frozenset[str]

    @classmethod
    def build(cls, request: RunRequest, collected: Collected) -> Bypass:
        """Return the bypass of a process with these options and reports."""
        libraries = frozenset(library_of(tuner) for tuner, _ in collected.unhooked)
        return cls(request.policy, request.adapters, libraries)

    def covers(self, problem: Problem) -> bool:
        """Whether the process bypasses the kernel of a problem."""
        named_tuners = self.policy.tuners
        if named_tuners is not None and not is_tuner_named(problem.tuner, named_tuners):
            # The user named other tuners with --autotune-tuners.
            return True
        if self.adapters is not None and problem.library not in self.adapters:
            # The package with the tuner's adapter is not installed.
            return True
        if problem.library in self.unhooked_libraries:
            # The adapter does not fit the installed version of the library.
            return True
        # The user ignores the kernel with autotune_ignore.
        return self.policy.is_ignored(problem.tuner, problem.kernel)


class _KernelCall(NamedTuple):
    """A problem without its device: the call of a kernel, which a test may make on any device."""

    tuner: str
    kernel: str
    key: tuple[Value, ...]

    @classmethod
    def of_problem(cls, problem: Problem) -> _KernelCall:
        """Return the call of a problem."""
        return cls(problem.tuner, problem.kernel, problem.sorted_key)


@dataclass(frozen=True)
class CacheUsage:
    """The facts of a complete run that decide whether an entry is unused.

    The run is one process with its workers, or all processes of a CI run together.

    :param bypasses: of all processes of the run.
    :param identities: the identities that lookups asked for, and the identities of the entries that they used.
    :param identities_of_other_kernels: the identities of the entries that lookups of another kernel used.
    :param renamable_forms: the identities, without the kernel's name, of the entries that a rename keeps.
    :param problems: the problems that lookups asked for.
    :param unserved_problems: the problems whose lookup had another outcome than a hit.
    :param devices: the devices of all lookups.
    :param asked_kernels: the kernels of all lookups, as ``tuner:kernel``.
    :param devices_by_process: name of a process, or of a worker -> the devices of its lookups.
    :param processes_by_call: call of a kernel -> (process that asked for it, the device of this lookup).
    """

    collected: Collected
    bypasses: tuple[Bypass, ...]
    identities: frozenset[Identity]
    identities_of_other_kernels: frozenset[Identity]
    renamable_forms: frozenset[Identity]
    problems: frozenset[Problem]
    unserved_problems: frozenset[Problem]
    devices: frozenset[Device]
    asked_kernels: frozenset[str]
    devices_by_process: Mapping[str, set[Device]]
    processes_by_call: Mapping[_KernelCall, set[tuple[str, Device]]]

    @classmethod
    def build(cls, collected: Collected, bypasses: Sequence[Bypass], lookups: Iterable[Lookup]) -> CacheUsage:
        """Return the facts of a run with these lookups.

        :param lookups: of all processes, with the facts that only a whole run knows.
        """
        identities = set()
        identities_of_other_kernels = set()
        renamable_forms = set()
        problems = set()
        unserved_problems = set()
        devices_by_process: defaultdict[str, set[Device]] = defaultdict(set)
        processes_by_call: defaultdict[_KernelCall, set[tuple[str, Device]]] = defaultdict(set)
        for lookup in lookups:
            device = lookup.problem.device
            devices_by_process[lookup.process].add(device)
            processes_by_call[_KernelCall.of_problem(lookup.problem)].add((lookup.process, device))
            identities.add(lookup.identity)
            if lookup.entry_of_other_kernel is not None:
                identities_of_other_kernels.add(lookup.entry_of_other_kernel.identity)
            elif lookup.entry is not None:
                identities.add(lookup.entry.identity)
            if lookup.may_be_renamed and lookup.entry is not None:
                renamable_forms.add(without_kernel_name(lookup.identity))
            problems.add(lookup.problem)
            if lookup.outcome is not Outcome.HIT:
                unserved_problems.add(lookup.problem)
        return cls(
            collected,
            tuple(bypasses),
            identities=frozenset(identities),
            identities_of_other_kernels=frozenset(identities_of_other_kernels),
            renamable_forms=frozenset(renamable_forms),
            problems=frozenset(problems),
            unserved_problems=frozenset(unserved_problems),
            devices=frozenset(problem.device for problem in problems),
            asked_kernels=frozenset(problem.name for problem in problems),
            devices_by_process=dict(devices_by_process),
            processes_by_call=dict(processes_by_call),
        )

    def may_need(self, problem: Problem) -> bool:
        """Whether a test of the run asked for a problem, or may have called its kernel without asking."""
        return problem in self.problems or self._is_bypassed(problem)

    def is_unused(self, entry: Entry) -> bool:
        """Whether this run should have asked for an entry and did not.

        An entry is unused unless something explains why the run asked for another entry, or for none.
        """
        if entry.identity in self.identities_of_other_kernels:
            # A kernel with the same source used the entry.
            return False
        if not self._has_loaded_kernel(entry.problem):
            # The kernel belongs to code that this run did not import, for example to code of another suite.
            return False
        return self._is_unasked(entry)

    def is_under_old_name(self, entry: Entry) -> bool:
        """Whether an entry is under an old name of a kernel: the run asked for the same under its present name.

        The entry may belong to a copy of the kernel in another suite, which can use the entry under the present name.
        """
        return without_kernel_name(entry.identity) in self.renamable_forms and self._is_unasked(entry)

    def _is_unasked(self, entry: Entry) -> bool:
        """Whether no test asked for an entry, and nothing explains why none did. Each branch is an explanation."""
        problem = entry.problem
        if entry.identity in self.identities:
            # A test asked for the entry, or a lookup used it.
            return False
        if problem in self.unserved_problems:
            # The entry no longer fits its problem. Reports call the problem stale, and an update replaces the entry.
            return False
        if problem.device not in self.devices:
            # Runs on the entry's device ask for the entry.
            return False
        if self._is_asked_on_other_device(problem):
            # The test ran in a process that has no such device. On a machine with the device it asks for the entry.
            return False
        if self._is_bypassed(problem):
            # A process of the run asks for no entry of this kernel. Its tests may need the entry in another run.
            return False
        if not self._has_same_version(entry):
            # Runs with the entry's version of the library ask for the entry.
            return False
        if entry.asked_by in self.asked_kernels:
            # Only candidates of another tuning launch the kernel. The other tuning was a hit, so its candidates did not
            # run.
            return False
        # Pruning can leave other candidates if the tests run in another order. The fingerprint names the candidates
        # that were left, so a run in another order asks for another entry of the same problem: perhaps for this entry.
        may_be_needed_in_other_order = entry.fingerprint.is_pruned and problem in self.problems
        return not may_be_needed_in_other_order

    def _is_bypassed(self, problem: Problem) -> bool:
        return any(bypass.covers(problem) for bypass in self.bypasses)

    def _is_asked_on_other_device(self, problem: Problem) -> bool:
        """Whether a process without a lookup on a problem's device asked for the same call on another device.

        The devices are two types of GPU, or two types of CPU. A lookup on a CPU does not stand for one on a GPU: many
        suites have a test for each.
        """
        for process, device in self.processes_by_call.get(_KernelCall.of_problem(problem), ()):
            is_same_kind = device.is_gpu == problem.device.is_gpu
            if is_same_kind and problem.device not in self.devices_by_process[process]:
                return True
        return False

    def _has_same_version(self, entry: Entry) -> bool:
        """Whether the run used the minor version of the library that the entry was tuned with."""
        versions = self.collected.versions.get(entry.problem.library)
        return versions is not None and versions.tuner_minor_version == entry.versions.tuner_minor_version

    def _has_loaded_kernel(self, problem: Problem) -> bool:
        """Whether a test launched the kernel with any key, or imported its module."""
        return problem.name in self.asked_kernels or problem.name in self.collected.imported_kernels
