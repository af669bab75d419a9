"""Random histories of runs: between two runs, kernels are renamed, copied and edited.

No run loses an entry that a later run of the suite needs. A history has two caches, and a third that a test may load
for itself. Each run uses the plugin's session and ``finish_run``. The caches are in memory.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Cache, Candidate, Device, Problem, Value
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.finish import finish_run
from pytest_autotune.run.lookup import Lookup, Outcome, Question
from pytest_autotune.run.request import UPDATE_ALL, UPDATE_NEW, UPDATE_PRUNE, FileDump, RunRequest
from pytest_autotune.run.settle import EndedRun, InitialCaches, settle_run
from tests.sessions import AnyChoice, a_session

GPU = Device("GPU", "arch", 4)
#: The cache that a test may load for itself.
TEST_CACHE = "own.textproto"


@dataclass(frozen=True)
class KernelTest:
    """A test that calls a kernel.

    :param source: the source of the kernel.
    :param loads_own_cache: the test loads a cache for itself.
    """

    kernel: str
    source: str
    loads_own_cache: bool = False

    @property
    def question(self) -> Question:
        return AnyChoice(Problem("toy", self.kernel, (), GPU), [Value("source", self.source, "digest")])


@dataclass
class History:
    """The caches, and the runs that wrote them.

    :param caches: name -> content.
    :param steps: the runs, for the message of a failed test.
    """

    generator: random.Random
    caches: dict[str, Cache] = field(default_factory=lambda: {"first": Cache(), "second": Cache(), TEST_CACHE: Cache()})
    steps: list[str] = field(default_factory=list)

    def run(
        self, tests: Sequence[KernelTest], loaded: Sequence[str], dump: str, plan: FileDump, is_complete: bool
    ) -> None:
        """Run some tests, and check which entries the dump path loses: see :meth:`_check_kept`."""
        self.steps.append(f"load {loaded}, dump {dump}, {plan}, complete: {is_complete}, {tests}")
        lookups = self._look_up(tests, loaded)
        before = self.caches[dump]
        initial = InitialCaches(tuple((name, self.caches[name]) for name in loaded), before, self._build_index(loaded))
        collected = Collected(lookups, incomplete_reason="" if is_complete else "-k")
        run = EndedRun.of_one_process(initial, collected, RunRequest(plan))
        after = finish_run(settle_run(run), before).merged.cache
        self.caches[dump] = after
        # A prune may drop entries, so nothing is checked.
        if not plan.prunes:
            self._check_kept(lookups, before, after)

    def list_outcomes(self, tests: Sequence[KernelTest], loaded: Sequence[str]) -> list[Outcome | None]:
        """Return the outcome of each test in a run that loads some caches and writes none."""
        return [lookup.outcome for lookup in self._look_up(tests, loaded)]

    def _build_index(self, names: Sequence[str]) -> EntryIndex | None:
        if not names:
            return None
        return EntryIndex.from_caches([self.caches[name] for name in names])

    def _look_up(self, tests: Sequence[KernelTest], loaded: Sequence[str]) -> tuple[Lookup, ...]:
        """Run the lookups of a run, and tune on a miss. Return the lookups."""
        index = self._build_index(loaded)
        session, lookups = a_session(None if index is None else tuple(index))
        for test in tests:
            with ExitStack() as test_context:
                if test.loads_own_cache:
                    test_context.enter_context(session.isolated())
                    session.add_cache(
                        EntryIndex.from_caches([self.caches[TEST_CACHE]]), Location.parse(TEST_CACHE, Path("/"))
                    )
                tuning = test_context.enter_context(session.tuning(test.question))
                if tuning.entry is None:
                    tuning.record(Candidate(params=(Value("config", self.generator.choice("ab")),), time_us=1.0))
        return tuple(lookups)

    def _check_kept(self, lookups: Sequence[Lookup], before: Cache, after: Cache) -> None:
        """Check that an entry disappears only if this run tuned its problem and no test asked for it."""
        asked_identities = {lookup.identity for lookup in lookups}
        tuned_problems = {lookup.problem for lookup in lookups if lookup.is_searched}
        kept_identities = {entry.identity for entry in after.entries}
        for entry in before.entries:
            if entry.identity in kept_identities:
                continue
            is_replaced = entry.problem in tuned_problems and entry.identity not in asked_identities
            assert is_replaced, f"{entry.identity} is lost\n" + "\n".join(self.steps)


def change_suite(tests: list[KernelTest], generator: random.Random) -> list[KernelTest]:
    """Return a suite after a commit: a kernel is renamed, copied, edited or added, or a test is removed."""
    position = generator.randrange(len(tests))
    test = tests[position]
    match generator.choice(["rename", "copy", "edit", "add", "remove", "nothing"]):
        case "rename":
            name = generator.choice("klm")
            return [replace(other, kernel=name) if other.kernel == test.kernel else other for other in tests]
        case "copy":
            return [*tests, replace(test, kernel=generator.choice("klm"))]
        case "edit":
            return [*tests[:position], replace(test, source=generator.choice("ABC")), *tests[position + 1 :]]
        case "add":
            return [*tests, random_test(generator)]
        case "remove" if len(tests) > 1:
            return [*tests[:position], *tests[position + 1 :]]
    return tests


def random_test(generator: random.Random) -> KernelTest:
    return KernelTest(generator.choice("klm"), generator.choice("AAB"), generator.random() < 0.25)


@pytest.mark.parametrize("seed", range(20))
def test_no_history_of_renamed_and_copied_kernels_loses_an_entry(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(25):
        history = History(generator)
        history.run([random_test(generator)], (), TEST_CACHE, FileDump(), is_complete=True)
        tests = [random_test(generator), random_test(generator)]
        for _ in range(5):
            loaded = generator.choice([(), ("first",), ("second", "first"), ("first", "second")])
            dump = generator.choice(["first", "second"])
            plan = FileDump()
            if loaded and generator.random() < 0.6:
                dump = loaded[-1]  # an update writes the last loaded cache
                plan = FileDump(generator.choice([UPDATE_ALL, UPDATE_NEW, UPDATE_PRUNE]), is_update=True)
            is_complete = generator.random() < 0.8
            history.run(tests, loaded, dump, plan, is_complete)
            tests_with_run_caches = [test for test in tests if not test.loads_own_cache]
            # With =new, stale entries stay, and their tests miss.
            if not plan.only_adds:
                assert set(history.list_outcomes(tests_with_run_caches, [dump])) <= {Outcome.HIT}, "\n".join(
                    history.steps
                )
            tests = change_suite(tests, generator)
