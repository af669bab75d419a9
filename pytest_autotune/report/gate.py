"""The gate: whether a run is within the limits that its user set on misses and unused entries.

A problem is a kernel with its key, such as the sizes of a matrix product. A row of the result is a problem that a test
asked for. Its outcome is a hit if a loaded cache has an entry for it, else mostly a miss. A row has no outcome if the
run loaded nothing for it. An entry is unused if a complete run did not ask for it.

The functions only read the result of a run. A mode that judges more, such as ``verify``, has a gate of its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from pytest_autotune.cache.model import Device
from pytest_autotune.cache.wording import describe_count, join_nonempty
from pytest_autotune.run.collected import TEST_OUTCOMES
from pytest_autotune.run.lookup import Lookup, Outcome, Policy
from pytest_autotune.run.result import Gate, RunResult


@dataclass(frozen=True)
class Limit:
    """The largest number of misses, or of other things, that a run may have.

    :param text: the limit as the user wrote it: ``5`` or ``2.5%``.
    :param allowed: a count, or a percentage of all problems.
    :param is_percentage: whether ``allowed`` is a percentage.
    """

    text: str
    allowed: Decimal
    is_percentage: bool

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Parse ``"5"`` or ``"2.5%"``.

        :raises ValueError: for any other text, a negative number or more than 100 %.
        """
        text = text.strip()
        if re.fullmatch(r"\d+", text, re.ASCII):
            return cls(text, Decimal(text), is_percentage=False)
        # The group is the number in front of the percent sign: "2.5" in "2.5 %".
        match = re.fullmatch(r"(\d+(?:\.\d+)?) *%", text, re.ASCII)
        if match is None or Decimal(match[1]) > 100:
            raise ValueError(f"expected a count such as 0, or a percentage such as 5%, not {text!r}")
        return cls(text, Decimal(match[1]), is_percentage=True)

    def describe_excess(self, count: int, total: int) -> str:
        """Return how a count exceeds the limit: ``"3, at most 2 allowed"``; empty if it does not.

        A percentage gives ``"3 of 40, at most 5% allowed"``. It is compared without rounding: 5.01 % exceeds 5 %.

        :param total: the number of all problems, of which a percentage is taken.
        """
        if self.is_percentage:
            if count * 100 > self.allowed * total:
                return f"{count} of {total}, at most {self.text} allowed"
        elif count > self.allowed:
            return f"{count}, at most {self.text} allowed"
        return ""


def judge(result: RunResult, limit: Limit | None, fail_on_unused: bool = False, no_load_error: str = "") -> Gate:
    """Judge the misses and the unused entries of a run. Return the verdict on both.

    :param limit: the limit on misses; None if the user set none.
    :param fail_on_unused: whether unused entries fail the run.
    :param no_load_error: the error if the options set a gate but load no cache; else empty. It does not count if a
        test has loaded a cache for itself.
    """
    gate = Gate(fail_on_unused=fail_on_unused)
    if limit is not None:
        gate = replace(gate, limit=limit.text)
    if no_load_error and not result.is_judged:
        return replace(gate, failure=no_load_error, is_usage_error=True)
    # A gate on unused entries alone does not judge misses.
    judges_misses = limit is not None or _fails_tests_for_misses(result)
    subjects = []
    if judges_misses:
        subjects.append("misses")
    if fail_on_unused:
        subjects.append("unused entries")
    if not subjects:
        # The user wants no gate.
        return gate
    unjudged_reason = _explain_unjudged_run(result)
    if unjudged_reason:
        return replace(gate, skip_reason=f"autotune cache {' and '.join(subjects)} were not checked: {unjudged_reason}")
    if judges_misses:
        lookups = _judge_misses(result, limit)
    else:
        lookups = _Verdict(_explain_useless_lookups(result))
    unused = _Verdict()
    if fail_on_unused:
        unused = _judge_unused(result)
    return replace(
        gate,
        failure=join_nonempty("; ", lookups.failure, unused.failure),
        skip_reason=join_nonempty("; ", lookups.skip_reason, unused.skip_reason),
    )


def _fails_tests_for_misses(result: RunResult) -> bool:
    """Whether ``--autotune-on-miss=error`` or ``--autotune-on-stale=error`` fails each test that has a stale problem.

    The gate then judges the misses even without a limit. Otherwise a run without any lookup would pass.
    """
    return result.request.policy.is_error(Outcome.STALE) and not result.request.plan.is_update


def _explain_unjudged_run(result: RunResult) -> str:
    """Return why neither misses nor unused entries of a run can be judged; empty if they can."""
    if result.no_part_reason:
        # The caches are optional, and this machine cannot use them.
        return f"{result.no_part_reason}, which ?optional in the load path allows"
    if not result.is_judged:
        return "no cache was loaded"
    if result.request.plan.is_update:
        return "this run updates the cache that it loads (check in a run without --autotune-update)"
    if result.collected.is_interrupted:
        return "the run was interrupted"
    return ""


@dataclass(frozen=True)
class _Verdict:
    """The verdict on misses or on unused entries.

    :param failure: why the run fails; empty if it passes.
    :param skip_reason: why nothing was judged; empty if something was.
    """

    failure: str = ""
    skip_reason: str = ""


def _judge_misses(result: RunResult, limit: Limit | None) -> _Verdict:
    """Return the verdict on misses: the first of these rules that applies.

    1. The run fails for loaded entries that no lookup could reach.
    2. The run fails if it has more misses than the limit.
    3. The run fails if its lookups say nothing about the loaded caches; see :func:`_explain_useless_lookups`.
    4. A run with judged problems passes.
    5. A run without judged problems is not judged.

    :param limit: the limit on misses; None if the user set none.
    """
    unreachable = explain_unreachable_entries(result)
    if unreachable:
        return _Verdict(unreachable)
    judged_count = _count_judged_problems(result)
    if limit is not None:
        excess = describe_excess_misses(limit, result.miss_count, judged_count)
        if excess:
            return _Verdict(f"{excess} (see the summary)")
    failure = _explain_useless_lookups(result)
    if failure:
        return _Verdict(failure)
    if judged_count:
        # The misses are within the limit.
        return _Verdict()
    return _Verdict(skip_reason=f"autotune cache misses were not checked: {_explain_no_outcomes(result)}")


def describe_excess_misses(limit: Limit, miss_count: int, judged_count: int) -> str:
    """Return how the misses exceed the limit; empty if they do not.

    Example: ``3 problems are not covered by the cache, at most 2 allowed``.
    """
    excess = limit.describe_excess(miss_count, judged_count)
    if not excess:
        return ""
    # The count is "3", or "3 of 40" with a limit in percent.
    count, _, allowed = excess.partition(", ")
    noun = "problems"
    if count.split()[-1] == "1":
        noun = "problem"
    verb = "are"
    if miss_count == 1:
        verb = "is"
    return f"{count} {noun} {verb} not covered by the cache, {allowed}"


def _explain_useless_lookups(result: RunResult) -> str:
    """Return why the lookups of a run say nothing about the loaded caches; empty if they do.

    Every gate fails for such a run, a gate on unused entries alone, too. Otherwise the gate would pass because no
    lookup took place. The reason is the first of these:

    1. No lookup could reach some of the loaded entries.
    2. A hook or ``pytest.exit`` kept tests from running.
    3. The run is of the whole suite, and no lookup used the loaded caches.
    4. The user chose no single tests or files, and the machine has probably lost its GPU.
    5. There were errors that no test saw.
    6. No problem was judged, and the tests were skipped.
    """
    failure = (
        explain_unreachable_entries(result)
        or explain_early_end(result)
        or explain_empty_run(result)
        or explain_lost_gpus(result)
        or _explain_unseen_errors(result)
    )
    if failure or _count_judged_problems(result):
        return failure
    return explain_skipped_run(result)


def _count_judged_problems(result: RunResult) -> int:
    """Return the number of problems that have an outcome.

    An untracked kernel, which was tuned without asking the session, counts as a problem that is a miss.
    """
    count = len(result.collected.untracked)
    for row in result.rows:
        if row.outcome is not None:
            count += 1
    return count


def explain_skipped_run(result: RunResult) -> str:
    """Return why a run without lookups fails: tests were skipped or xfailed, and none passed. Empty for any other run.

    A machine that has lost its GPU skips all tests of its shard. Without this rule the shard would pass, although no
    test ran. Xfailed tests count as skipped tests, because a test with ``xfail(run=False)`` does not run, either.
    """
    counts = result.collected.test_counts
    if counts.get("passed") or counts.get("xpassed"):
        return ""
    if not counts.get("skipped") and not counts.get("xfailed"):
        return ""
    return f"no test called an autotuned kernel, and no test passed ({describe_test_counts(counts)}; -rsx shows why)"


def explain_early_end(result: RunResult) -> str:
    """Return how many tests did not run although no failure ended the run; empty if all ran.

    ``pytest.exit("…", returncode=0)`` ends a run in this way, and a hook of a conftest.py may run no test at all.
    """
    early_end = result.collected.early_end
    if not early_end:
        return ""
    return f"{early_end}, although no test failed (did pytest.exit or a hook end the run, or a hook remove tests?)"


def explain_lost_gpus(result: RunResult) -> str:
    """Return why a run fails: its machine has probably lost its GPU. Empty for any other run.

    The loaded entries are for GPUs, and no test asked for a kernel on one of them. That is no proof if the user chose
    single tests or files, because these may be the tests of the CPU. If all caches are optional, a machine needs no
    GPU, and the gate does not fail.
    """
    if result.has_only_optional_caches or result.collected.chosen_tests:
        return ""
    if has_lookup_on(result.collected.lookups, result.gpus, result.request.policy):
        return ""
    reason = ""
    if is_whole_suite(result):
        reason = _describe_left_out_tests(result)
    if not reason and not result.collected.has_visible_gpu:
        reason = "no GPU is visible"
    return describe_lost_gpus(reason, result.gpus, result.collected.lookups)


def _describe_left_out_tests(result: RunResult) -> str:
    """Return how tests were left out that may be the tests of a GPU; empty if all tests ran."""
    skipped_count = result.collected.test_counts.get("skipped", 0)
    if skipped_count:
        return describe_skipped_tests(skipped_count)
    xfailed_count = result.collected.test_counts.get("xfailed", 0)
    if xfailed_count:
        # A test with ``xfail(run=False)`` does not run.
        return f"{describe_count(xfailed_count, 'test')} failed as expected"
    ignored = result.collected.ignored_test_files
    if ignored:
        return f"{ignored[0]} was not collected"
    return ""


def has_lookup_on(lookups: Iterable[Lookup], gpus: Collection[Device], policy: Policy) -> bool:
    """Whether a test asked for a kernel on one of the GPUs, or on a device that may use its entries."""
    for lookup in lookups:
        for gpu in gpus:
            if policy.may_use_entries_of(lookup.problem.device, gpu):
                return True
    return False


def describe_skipped_tests(count: int) -> str:
    """Return the number of skipped tests with its verb: ``1 test or file was skipped``.

    Pytest counts a whole file that skips itself, as by ``pytest.importorskip``, like a test.
    """
    return f"{describe_count(count, 'test or file was', 'tests or files were')} skipped"


def describe_lost_gpus(reason: str, gpus: Collection[Device], lookups: Iterable[Lookup]) -> str:
    """Return the failure of a run in which no test asked for a kernel on a GPU of the loaded entries.

    The tests of the CPU alone may have passed. The text is empty without a reason, or if the caches have no entries for
    a GPU.

    :param reason: why the GPU is probably lost, such as ``3 tests or files were skipped``.
    :param gpus: the GPUs for which the caches have entries.
    :param lookups: the lookups of the run. If they are for another GPU, the text says so in place of the reason.
    """
    if not reason or not gpus:
        return ""
    asked_devices = [lookup.problem.device for lookup in lookups]
    asked_gpus = [device for device in asked_devices if device.is_gpu]
    if asked_gpus:
        return _describe_gpus_without_entries(gpus, asked_gpus)
    names = _join_names(device.name for device in gpus)
    return (
        f"the cache has entries for {names}, but no test ran a kernel on such a GPU: {reason} (run "
        f"the suite on a machine with this GPU)"
    )


def _describe_gpus_without_entries(gpus: Collection[Device], asked_gpus: Collection[Device]) -> str:
    """Return the failure of a run that asked for kernels only on GPUs for which the caches have no entries.

    :param gpus: the GPUs for which the caches have entries.
    :param asked_gpus: the GPUs on which tests asked for kernels.
    """
    names = _join_names(device.name for device in gpus)
    asked_names = _join_names(device.name for device in asked_gpus)
    if {device.name for device in gpus} & {device.name for device in asked_gpus}:
        # Slices of one GPU, for example, have one name and differ in their number of multiprocessors.
        names = _join_names(device.id for device in gpus)
        asked_names = _join_names(device.id for device in asked_gpus)
    return (
        f"the cache has entries for {names}, but the tests ran kernels on {asked_names} (add entries for "
        f"{asked_names} with --autotune-update, or run the suite on a machine with {names})"
    )


def _join_names(names: Iterable[str]) -> str:
    """Return some names, each once: ``NVIDIA A100 and NVIDIA H100``."""
    return " and ".join(sorted(set(names)))


def _explain_unseen_errors(result: RunResult) -> str:
    """Return how many problems were errors, such as misses with ``--autotune-on-miss=error``, if no test failed.

    An error mostly fails the test that asked for the problem. If a forked child of the test asked, the error ends the
    child and does not reach pytest. The text is empty if a test failed or no problem was an error.
    """
    counts = result.collected.test_counts
    if counts.get("failed") or counts.get("error"):
        return ""
    error_rows = [row for row in result.rows if result.request.policy.is_error(row.outcome)]
    if not error_rows:
        return ""
    problems = describe_count(
        len(error_rows),
        "problem is missing or stale, which is an error,",
        "problems are missing or stale, which is an error,",
    )
    return f"{problems} but no test failed (did a test call the kernel in a child process?)"


def _judge_unused(result: RunResult) -> _Verdict:
    """Return the verdict on unused entries. A run in which tests may not have asked for all entries is not judged."""
    reason = result.collected.unasked_reason
    if reason:
        return _Verdict(skip_reason=f"unused autotune cache entries were not checked: {reason}")
    if result.unused_entries:
        entries = describe_count(len(result.unused_entries), "loaded entry is", "loaded entries are")
        return _Verdict(f"{entries} unused, and --autotune-fail-on-unused allows none (see the UNUSED lines)")
    return _Verdict()


def _explain_no_outcomes(result: RunResult) -> str:
    """Return why no problem of a run is a hit or a miss."""
    if result.rows:
        return "no kernel of the tests was compared with the loaded cache"
    return f"no test called an autotuned kernel ({describe_test_counts(result.collected.test_counts)})"


def describe_test_counts(counts: Mapping[str, int]) -> str:
    """Return the number of tests by outcome, in pytest's form: ``"1 failed, 3 passed, 9 skipped"``."""
    words = []
    for outcome in TEST_OUTCOMES:
        count = counts.get(outcome)
        if count and outcome == "error":
            words.append(describe_count(count, "error"))
        elif count:
            words.append(f"{count} {outcome}")
    return ", ".join(words) or "no test ran"


def explain_empty_run(result: RunResult) -> str:
    """Return why a run of the whole suite fails: no lookup used the loaded caches. Empty for any other run.

    A run with skipped tests counts as a run of the whole suite here. Otherwise a machine that has lost its GPU would
    skip all tests of kernels and pass the gate in every run.
    """
    if not result.loaded or _has_used_caches(result):
        return ""
    if result.no_part_reason:
        # The caches are optional, and this machine cannot use them.
        return ""
    if not is_whole_suite(result):
        # The tests of the kernels may be in the part of the suite that did not run.
        return ""
    failure = f"{_describe_entries_were(result.loaded_entry_count)} loaded, but no test used any"
    bypass_reason = ""
    if result.bypasses:
        bypass_reason = f"{' or '.join(result.bypasses)} may exclude them"
    reasons = join_nonempty("; ", bypass_reason, result.collected.incomplete_reason)
    if reasons:
        failure += f" ({reasons})"
    return failure


def is_whole_suite(result: RunResult) -> bool:
    """Whether a run selected the whole suite, and nothing but skips or ignored files kept its tests from passing.

    A run without any test counts as a run of the whole suite, too, if neither the user nor a plugin selected tests: a
    hook of a conftest.py may have kept pytest from collecting.
    """
    collected = result.collected
    if not collected.incomplete_reason or collected.is_only_skipped:
        return True
    has_no_test = not any(collected.test_counts.values())
    return has_no_test and not collected.chosen_tests and not collected.deselected_count


def explain_no_part(result: RunResult) -> str:
    """Return the library or GPU that this machine lacks, so that no lookup used the optional caches of a run.

    An optional cache is loaded by ``--autotune-load=PATH?optional``. The text is empty if a lookup used the caches, if
    a cache is not optional, or if the machine has everything that the entries need.
    """
    if not result.has_only_optional_caches or _has_used_caches(result):
        return ""
    reasons = list(result.collected.unavailable)
    for tuner, reason in result.collected.unhooked:
        if tuner in result.unhooked_tuners:
            reasons.append(f"the plugin cannot hook {tuner}: {reason}")
    if result.tuners_without_adapter:
        reasons.append(f"no adapter is installed for {' and '.join(result.tuners_without_adapter)}")
    return "; ".join(reasons)


def _has_used_caches(result: RunResult) -> bool:
    """Whether a lookup asked the caches that the options load for all tests, and had a result.

    A test can also load a cache for itself, by its marker or fixture.
    """
    for row in result.rows:
        has_result = row.outcome is not None or row.entry is not None
        # The other lookups asked the cache that a single test loads for itself.
        if has_result and row.problem not in result.test_cache_problems:
            return True
    return False


def explain_unreachable_entries(result: RunResult) -> str:
    """Return which tuners' loaded entries no lookup could reach; empty if lookups can reach the entries of all tuners.

    A gate fails for such entries. Without this rule it would pass, because the problems of these tuners have no outcome
    and so are no misses.
    """
    if result.has_only_optional_caches:
        # The library of an optional cache may be absent.
        return ""
    if result.unhooked_tuners:
        names = ", ".join(result.unhooked_tuners)
        return f"loaded entries were not used: the plugin could not hook {names} (a line above has the reason)"
    if result.tuners_without_adapter:
        names = ", ".join(result.tuners_without_adapter)
        return f"loaded entries were not used: no adapter is installed for {names} (install its package)"
    if result.unnamed_tuners:
        return describe_unnamed_tuners(result.unnamed_tuners, result.request.tuners_named_by)
    if result.missing_packages and not result.collected.chosen_tests:
        # As with a lost GPU, tests or files that the user chose may need none of these entries.
        return _describe_missing_packages(result.missing_packages)
    return ""


def _describe_missing_packages(packages: Mapping[str, str]) -> str:
    """Return the failure for loaded entries of a tuner whose library is not installed: of the first such tuner.

    :param packages: tuner -> the package of its library; not empty.
    """
    tuner, package = next(iter(packages.items()))
    return (
        f"loaded entries were not used: {package} is not installed (install it, load PATH?optional, or add "
        f"{tuner}:* to autotune_ignore)"
    )


def describe_unnamed_tuners(tuners: Iterable[str], named_by: str) -> str:
    """Return the failure for tuners whose entries are loaded although the user names only other tuners.

    :param named_by: the option that names the other tuners: ``--autotune-tuners=triton``.
    """
    names = ", ".join(tuners)
    return f"loaded entries were not used: {named_by} leaves out {names} (name it there, or add it to autotune_ignore)"


def _describe_entries_were(count: int) -> str:
    """Return the subject and the verb of a sentence about entries: ``1 entry was``, ``3 entries were``."""
    return describe_count(count, "entry was", "entries were")
