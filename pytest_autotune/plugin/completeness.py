"""Whether a run can be judged: complete, or no entry can be called unused, and with something loaded to judge it by."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

import pytest

from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.plugin.values import Options

_SELECTING = {
    "keyword": "-k",
    "markexpr": "-m",
    "lf": "--lf",
    "stepwise": "--sw",
    "ignore": "--ignore",
    "ignore_glob": "--ignore-glob",
    "deselect": "--deselect",
    "setuponly": "--setup-only",
}


class Completeness:
    """Watches a run for the first reason why not every test can be said to have run whole."""

    def __init__(self) -> None:
        self._ran: set[str] = set()
        self._first: dict[str, str] = {}
        #: Node ids with what became of them, in pytest's words: a test can pass, and fail in its teardown.
        self._outcomes: set[tuple[str, str]] = set()
        self.skipped = ""

    def saw(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Note the report of a phase of a test, or of a collector."""
        is_test = isinstance(report, pytest.TestReport)
        if is_test and (report.when != "setup" or not report.passed):
            self._ran.add(report.nodeid)
        if report.failed:
            kind, what = ("failed", "failed") if is_test else ("collection", "could not be collected")
            self._first.setdefault(kind, f"{report.nodeid} {what}")
        elif report.skipped:
            what = "failed as expected" if hasattr(report, "wasxfail") else "was skipped"
            self.skipped = self.skipped or f"{report.nodeid} {what}"
        if outcome := _outcome_of(report):
            self._outcomes.add((report.nodeid, outcome))

    @property
    def test_counts(self) -> Counter[str]:
        """The number of tests by outcome, as pytest counts them."""
        return Counter(outcome for _, outcome in self._outcomes)

    def reason(self, session: pytest.Session, exitstatus: int, crashed: Sequence[str], deselected: int) -> str:
        """The first reason why the run was not complete; empty when it was.

        :param deselected: how many of the collected tests were not to run.
        """
        # What ends a run with a status of its own, such as pytest.exit(returncode=0), is no interruption to pytest.
        items: Sequence[pytest.Item] = getattr(session, "items", ())
        collected = len({item.nodeid for item in items}) or session.testscollected
        left = collected - len(self._ran)
        is_interrupted = exitstatus == pytest.ExitCode.INTERRUPTED or session.shouldstop
        reasons = (
            "the run was interrupted" if is_interrupted else "",
            "an internal error ended the run" if exitstatus == pytest.ExitCode.INTERNAL_ERROR else "",
            f"worker {crashed[0]} crashed" if crashed else "",
            self._first.get("collection", ""),
            selection(session.config),
            describe_count(deselected, "test deselected", "tests deselected") if deselected else "",
            self._first.get("failed", ""),
            "the run stopped early" if session.shouldfail else "",
            f"{left} of {collected} tests did not run" if left > 0 else "",
            self.skipped,
        )
        return next(filter(None, reasons), "")


def _outcome_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return what pytest counts a report as; empty for a phase of a test that says nothing of it."""
    phase = report.when if isinstance(report, pytest.TestReport) else "collect"
    was_expected_to_fail = hasattr(report, "wasxfail")
    if report.failed:
        return "error" if phase in ("collect", "setup", "teardown") else "failed"
    if report.skipped:
        return "xfailed" if was_expected_to_fail else "skipped"
    if report.passed and phase == "call":
        return "xpassed" if was_expected_to_fail else "passed"
    return ""


def was_interrupted(session: pytest.Session, exitstatus: int) -> bool:
    """Whether something else than the tests, or ``-x``, ended the run; xdist reports an end by ``-x`` as one."""
    if exitstatus == pytest.ExitCode.INTERRUPTED:
        return not 0 < (session.config.getoption("maxfail") or 0) <= session.testsfailed
    return exitstatus == pytest.ExitCode.INTERNAL_ERROR


def selection(config: pytest.Config) -> str:
    """How the user asked for a part of the suite; empty where all of it is to run."""
    here, root = config.invocation_params.dir, config.rootpath
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        whole = config.getini("testpaths") or ["."]  # what pytest takes without arguments, which it does in its root
        named, suite = ({os.path.abspath(at / path) for path in of} for at, of in ((here, config.args), (root, whole)))
        if named != suite or (here != root and config.inipath is None):
            return f"only {' '.join(config.args)} was asked for"
    if config.args_source is pytest.Config.ArgsSource.INVOCATION_DIR and here != root:
        return f"only {os.path.relpath(here, root)} was asked for"
    flag = next((flag for option, flag in _SELECTING.items() if config.getoption(option, None)), "")
    return f"{flag} selects tests" if flag else ""


def unloaded_gate(config: pytest.Config, options: Options) -> str:
    """What is wrong with judging this run, in one line; empty where nothing is: a gate would be green for nothing.

    Markers may still load some for single tests, which only the tests know. Who runs a part of a suite is not kept from
    it by what the ini file asks of the whole.
    """
    if options.update and not options.load:
        return f"{options.update_flag}: nothing is loaded, so there is nothing to update (add --autotune-load=PATH)"
    if options.load or config.getoption("autotune_load") is not None:
        return ""
    on_purpose = "add --autotune-load=PATH; an empty --autotune-load= loads nothing on purpose"
    for mode in options.modes:
        if mode.without_loaded:
            return f"--autotune-{mode.name}: nothing is loaded, so {mode.without_loaded} ({on_purpose})"
    asks = {
        "max_misses": options.max_misses is not None,
        "fail_on_unused": options.fail_on_unused,
        "on_miss": options.on_miss in ("error", "nearest"),  # without entries, none could be the nearest
        "on_stale": options.on_stale == "error",
    }
    for name in (name for name, is_asked in asks.items() if is_asked and options.dump is None):
        is_typed = config.getoption(f"autotune_{name}") is not None
        if is_typed or not selection(config):
            gate = f"--autotune-{name.replace('_', '-')}" if is_typed else f"autotune_{name} (ini)"
            return f"{gate}: nothing is loaded, so there is nothing to judge ({on_purpose})"
    return ""
