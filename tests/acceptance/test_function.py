"""Hand-written tuners: the same outcomes, rows, limit, sharing and reports as the tuners of libraries."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conftest import Suite

TIMES = """
import os, time
from pytest_autotune import Measuring

TIMES = {16: 30.0, 32: 10.0, 64: 20.0}
SPACE = [{"BLOCK": block} for block in TIMES]

def run(config):
    with open(os.environ["TOY_LOG"], "a") as log:
        log.write(f"{config['BLOCK']}\\n")
    return config["BLOCK"]

def clock(call):
    return TIMES[call()]

HOW = Measuring(clock=clock)
"""

SUITE = """
import pytest
from times import HOW, SPACE, run

@pytest.mark.parametrize("m", [16, 32, 64, 16])
def test_gemm(autotune_cache, m):
    config = autotune_cache.tune(
        "lib.gemm", key={"m": m, "dtype": "fp16"}, space=SPACE, run=run, measuring=HOW, device="cpu"
    )
    assert config is SPACE[1]
"""


def a_suite(suite: Suite, test: str = SUITE, **modules: str) -> Suite:
    suite.pytester.makepyfile(times=TIMES, test_lib=test, **modules)
    suite.pytester.makeini("[pytest]\npythonpath = .\n")
    return suite


def test_a_load_gives_a_tuner_its_choice_without_measuring(suite: Suite, section: Any) -> None:
    """The dump run tunes every problem once."""
    result = a_suite(suite).dump()

    result.assert_outcomes(passed=4)
    assert suite.tunings == sorted(["16", "32", "64"] * 3)
    text = suite.cache.read_text()
    assert text.count("entries {") == 3
    assert 'choice { params { name: "BLOCK" int: 32 } time_us: 10.0 label: "1 run" }' in text
    assert any("3 added" in line for line in section(result))

    result = suite.load("--autotune-max-misses=0")

    result.assert_outcomes(passed=4)
    assert result.ret == 0
    assert suite.tunings == []
    assert section(result)[0].startswith("3 hits")


LOGGED = """
import logging
from times import HOW, SPACE, run

def test_gemm(autotune_cache, caplog):
    caplog.set_level(logging.DEBUG)
    autotune_cache.tune("lib.gemm", space=SPACE, run=run, measuring=HOW, device="cpu")
    assert caplog.messages == []
"""


def test_caplog_captures_no_records_of_the_plugins_file_locks(suite: Suite) -> None:
    a_suite(suite, LOGGED).dump().assert_outcomes(passed=1)
    suite.load().assert_outcomes(passed=1)


FUNCTIONS = """
import pytest
from pytest_autotune import Measuring

def scaled_by(factor):
    return lambda x: x * factor

@pytest.mark.parametrize("factor", [2, 3])
def test_key(autotune_cache, factor):
    def run(config):
        return float(abs(config - factor))
    measuring = Measuring(clock=lambda call: call())
    key = {"act": scaled_by(factor)}
    assert autotune_cache.tune("lib.k", key=key, space=[1, 2, 3], run=run, source="", measuring=measuring) == factor

def test_space(autotune_cache):
    acts = [scaled_by(factor) for factor in (3, 1, 2)]
    measuring = Measuring(clock=lambda call: float(call()))
    found = autotune_cache.tune("lib.act", space=acts, run=lambda act: act(1), source="", measuring=measuring)
    assert found is acts[1]
"""


def test_functions_from_one_factory_work_as_keys_and_candidates(suite: Suite) -> None:
    a_suite(suite, FUNCTIONS)

    suite.dump().assert_outcomes(passed=3)
    result = suite.load("--autotune-max-misses=0")

    result.assert_outcomes(passed=3)
    assert (result.ret, suite.cache.read_text().count("entries {")) == (0, 3)


def test_a_function_that_closes_over_a_list_fails_its_test(serial_suite: Suite) -> None:
    """The error is a single line and names the variable in the function's closure."""
    a_suite(serial_suite, FUNCTIONS.replace("scaled_by(factor) for", "scaled_by([factor]) for"))

    result = serial_suite.dump()

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["E *the function test_lib.scaled_by.<locals>.<lambda> carries factor, a list, *"])


def test_a_new_key_value_fails_the_gate_until_an_update(serial_suite: Suite, section: Any) -> None:
    a_suite(serial_suite).dump()
    a_suite(serial_suite, SUITE.replace("64", "128"))

    result = serial_suite.load("--autotune-max-misses=0")
    updated = serial_suite.load("--autotune-update=prune")
    covered = serial_suite.load("--autotune-max-misses=0")

    assert result.ret == 1
    row = "MISS test_lib.py::test_gemm[128] - function:lib.gemm (m=128, dtype=fp16): no entry; the nearest entry has m"
    assert section(result)[0].startswith(row)
    assert any("1 added" in line and "2 unchanged" in line and "1 removed" in line for line in section(updated))
    assert covered.ret == 0


FRESH_IMPORTS = """
import sys
import pytest

NAMES = set(sys.modules)

@pytest.fixture
def fresh_imports():
    yield
    for name in set(sys.modules) - NAMES:
        del sys.modules[name]
"""

AFTER_FRESH_IMPORTS = """
import sys
from times import HOW, SPACE, run

def test_fresh(fresh_imports):
    pass

def test_gemm(autotune_cache):
    autotune_cache.tune("lib.gemm", key={"m": 64}, space=SPACE, run=run, measuring=HOW, device="cpu")

def test_without_the_plugin(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytest_autotune", None)
"""


@pytest.mark.parametrize("scope", ["teardown", "setup"])
def test_the_gate_counts_misses_after_modules_were_removed(serial_suite: Suite, section: Any, scope: str) -> None:
    a_suite(serial_suite).dump()
    conftest, tests = FRESH_IMPORTS, AFTER_FRESH_IMPORTS
    if scope == "setup":
        conftest = conftest.replace("    yield\n", "")
        tests = tests.replace("test_gemm(autotune_cache)", "test_gemm(autotune_cache, fresh_imports)")
    a_suite(serial_suite, tests, conftest=conftest)
    # In this process, the plugin's modules were imported before the conftest.
    serial_suite.pytester._method = "subprocess"

    result = serial_suite.load("--autotune-max-misses=0")

    assert result.ret == 1
    assert section(result)[0].startswith("MISS test_lib.py::test_gemm")


SKIPPED_FIRST = """
import pytest
from pytest_autotune import InvalidConfiguration

def ask(autotune_cache, has_input):
    def run(config):
        if not has_input:
            pytest.skip("no input")
        if config == 1:
            raise InvalidConfiguration("not here")
    return autotune_cache.tune("lib.op", key={"m": 1}, space=[1, 2, 3], run=run, source="s", device="cpu")

def test_skipped(autotune_cache):
    ask(autotune_cache, has_input=False)

def test_op(autotune_cache):
    assert ask(autotune_cache, has_input=True) == 2
"""


def test_a_first_candidate_whose_try_was_skipped_is_tried_again(serial_suite: Suite) -> None:
    a_suite(serial_suite).dump()
    a_suite(serial_suite, SKIPPED_FIRST)

    serial_suite.load("--autotune-on-miss=first").assert_outcomes(passed=1, skipped=1)


def test_changing_the_candidates_or_source_makes_entries_stale(serial_suite: Suite) -> None:
    a_suite(serial_suite).dump()
    serial_suite.pytester.makepyfile(times=TIMES.replace("64: 20.0", "64: 20.0, 128: 5.0"))

    space, *_ = serial_suite.load_stale()
    serial_suite.pytester.makepyfile(times=TIMES.replace('"a"', '"at"'))
    source, *_ = serial_suite.load_stale()

    assert space["changed"] == ["space"]
    assert "(BLOCK=128 added)" in space["reason"]
    assert source["changed"] == ["source"]
    assert "(run)" in source["reason"]


FIRST = """
import pytest
from pytest_autotune import InvalidConfiguration
from times import HOW, SPACE, run

def first_refused(config):
    if config["BLOCK"] == 16:
        raise InvalidConfiguration("too small")
    return run(config)

def test_gemm(autotune_cache):
    config = autotune_cache.tune(
        "lib.gemm", key={"m": 7}, space=SPACE, run=first_refused, measuring=HOW, device="cpu", source="one"
    )
    assert config == {"BLOCK": 32}
"""


def test_option_on_miss_first_takes_the_first_working_candidate(serial_suite: Suite) -> None:
    """No later configuration runs."""
    a_suite(serial_suite, FIRST)

    report = serial_suite.report("--autotune-on-miss=first")

    (lookup,) = report["lookups"]
    assert (lookup["outcome"], lookup["fallback"], lookup["tuned"]) == ("miss", "first", False)
    assert lookup["choice"] == {"params": {"BLOCK": 32}}
    assert set(serial_suite.tunings) <= {"32"}, "16 was refused, and 64 never tried"


def test_the_json_report_has_time_or_failure_of_each_candidate(serial_suite: Suite) -> None:
    a_suite(
        serial_suite,
        """
        from pytest_autotune import InvalidConfiguration, Measuring, tune

        def run(config):
            if config["BLOCK"] == 64:
                raise InvalidConfiguration("needs 96 KiB of shared memory")
            return config["BLOCK"]

        def verify(config, result):
            assert config["BLOCK"] != 16, "the sum is off by 1"

        def test_lib():
            tune(
                "lib.k", space={"BLOCK": [16, 32, 64, 128]}, run=run, verify=verify,
                measuring=Measuring(clock=lambda call: [float(call()), 1000.0, float(call()), 1.0 * call()]),
            )
        """,
    )

    report = serial_suite.report("--autotune-dump=cache.textproto")

    row = report["lookups"][0]
    assert report["counts"]["tuned"] == 1
    assert row["choice"]["params"] == {"BLOCK": 32}
    outcomes = {
        candidate["params"]["BLOCK"]: candidate.get("failed") or candidate["time_us"] for candidate in row["candidates"]
    }
    assert outcomes == {
        16: "wrong result: the sum is off by 1",
        32: 32.0,
        64: "needs 96 KiB of shared memory",
        128: 128.0,
    }


def test_a_hit_raises_the_saved_error_if_all_candidates_failed(suite: Suite) -> None:
    """The dump records the failures. The next run raises the same error and counts a hit."""
    a_suite(
        suite,
        """
        import pytest, pytest_autotune

        def run(config):
            raise RuntimeError(f"no {config['BLOCK']}")

        def test_lib(autotune_cache):
            autotune_cache.tune("lib.k", key={"n": 1}, space={"BLOCK": [1, 2, 3, 4, 5]}, run=run, strict=False)
        """,
    )

    result = suite.dump()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *TuningError: function:lib.k (n=1): all 5 candidates failed: BLOCK=1: RuntimeError: no 1; "
            "BLOCK=2: RuntimeError: no 2; BLOCK=3: RuntimeError: no 3; and 2 more"
        ]
    )
    assert suite.cache.read_text().count("failed:") == 5
    loaded = suite.load("--autotune-max-misses=0", "--autotune-on-miss=error")
    loaded.assert_outcomes(failed=1)
    loaded.stdout.fnmatch_lines(["E *TuningError: function:lib.k (n=1): all 5 candidates failed: *", "1 hit"])


def test_editing_a_callee_of_a_lambda_makes_its_entries_stale(serial_suite: Suite) -> None:
    a_suite(serial_suite, SUITE.replace("run=run", "run=lambda config: run(config)"))
    report = serial_suite.report("--autotune-dump=cache.textproto")
    assert {row["label"] for row in report["lookups"]} == {""}

    serial_suite.pytester.makepyfile(times=TIMES.replace('return config["BLOCK"]', 'return +config["BLOCK"]'))
    row, *_ = serial_suite.load_stale()

    assert row["changed"] == ["source"]
    assert "(run)" in row["reason"]
    assert serial_suite.load("--autotune-max-misses=0").ret == 1


IN_CLASS = """
from times import HOW, SPACE

class TestGemm:
    def setup_method(self):
        self.scale = 1

    def kernel(self, config):
        return config["BLOCK"] * self.scale

    def test_gemm(self, autotune_cache):
        autotune_cache.tune("lib.gemm", space=SPACE, run=lambda c: self.kernel(c), measuring=HOW, device="cpu")

    def test_other(self):
        assert self.scale == 1
"""


def test_editing_a_method_a_lambda_calls_makes_entries_stale(serial_suite: Suite) -> None:
    """An edit of another test of the same class changes nothing."""
    a_suite(serial_suite, IN_CLASS).dump()
    edited = IN_CLASS.replace("self.scale == 1", "self.scale > 0")
    a_suite(serial_suite, edited)
    assert serial_suite.load("--autotune-max-misses=0").ret == 0

    a_suite(serial_suite, edited.replace('["BLOCK"] * self', '["BLOCK"] // self'))
    row, *_ = serial_suite.load_stale()
    assert row["reason"] == "source changed (TestGemm.kernel)"


def test_a_tuning_while_a_conftest_is_imported_is_not_covered(serial_suite: Suite, section: Any) -> None:
    a_suite(
        serial_suite,
        conftest="""
        from times import HOW, SPACE, run
        import pytest_autotune
        pytest_autotune.tune("lib.early", space=SPACE, run=run, measuring=HOW)
        """,
    )
    serial_suite.pytester.syspathinsert()
    serial_suite.pytester._method = "subprocess"

    result = serial_suite.dump()

    assert any(line.startswith("UNTRACKED function:lib.early") for line in section(result))


def test_a_second_pytest_run_in_the_same_process_still_gets_hits(serial_suite: Suite) -> None:
    """An earlier session of the same process tuned the problems. The load still has no misses."""
    test = SUITE.replace("autotune_cache.tune(", "pytest_autotune.tune(").replace("autotune_cache, ", "")
    a_suite(serial_suite, "import pytest_autotune" + test.replace("(autotune_cache)", "()")).dump()
    serial_suite.run().assert_outcomes(passed=4)

    assert serial_suite.load("--autotune-max-misses=0").ret == 0


def test_workers_do_not_wait_for_a_tuning_that_raised_an_error(suite: Suite) -> None:
    """Another test tunes the problem without waiting for the timeout."""
    a_suite(
        suite,
        """
        import pytest
        from times import HOW, SPACE, run

        @pytest.mark.parametrize("who", range(6))
        def test_gemm(autotune_cache, who):
            def fails(config):
                raise RuntimeError("not me")
            autotune_cache.tune(
                "lib.gemm", space=SPACE, run=fails if who < 3 else run, source=run, measuring=HOW, device="cpu"
            )
        """,
    )
    started = time.monotonic()

    result = suite.dump("--override-ini=autotune_wait_timeout=60")

    outcomes = result.parseoutcomes()
    assert outcomes["passed"] >= 3
    assert time.monotonic() - started < 30
    assert suite.cache.read_text().count("entries {") == 1


def test_a_test_that_mocks_the_clock_does_not_break_measuring(serial_suite: Suite) -> None:
    frozen = """
    import time

    def run(count):
        return sum(range(count))

    def test_sum(autotune_cache, monkeypatch):
        for clock in ("time", "monotonic", "perf_counter", "perf_counter_ns"):
            monkeypatch.setattr(time, clock, lambda: 0)
        assert autotune_cache.tune("lib.sum", space=[100_000, 10], run=run, device="cpu") == 10
    """
    serial_suite.pytester.makepyfile(test_lib=frozen)

    result = serial_suite.dump()

    result.assert_outcomes(passed=1)


def test_a_tuning_is_recorded_even_if_a_test_mocks_open_and_json(serial_suite: Suite, section: Any) -> None:
    mocked = """
    from unittest.mock import mock_open, patch

    def test_sum(autotune_cache):
        with patch("builtins.open", mock_open()), patch("json.dumps", return_value="{}"):
            autotune_cache.tune("lib.sum", space=[10, 20], run=range, source="range", device="cpu")
    """
    serial_suite.pytester.makepyfile(test_lib=mocked)

    dumped = serial_suite.dump()
    loaded = serial_suite.load("--autotune-max-misses=0")

    dumped.assert_outcomes(passed=1)
    assert section(loaded)[0].startswith("1 hit")


def test_a_time_out_while_a_lookup_is_reported_hides_no_miss(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test catches the time-out, which a signal handler raises, and asks for the same problem again."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        test_lib="""
        from pytest_autotune.run.tuning import Tuning

        class TimeUp(BaseException):
            pass

        def run_out_of_time(tuning):
            raise TimeUp

        def choose(autotune_cache):
            return autotune_cache.tune("lib.first", space=[10, 20], run=range, source="range", device="cpu")

        def test_first(autotune_cache, monkeypatch):
            with monkeypatch.context() as context:
                context.setattr(Tuning, "report", run_out_of_time)
                try:
                    choose(autotune_cache)
                except TimeUp:
                    pass
            choose(autotune_cache)
        """
    )
    pytester.runpytest_subprocess("-ppytest_autotune.plugin", "--autotune-dump=c.textproto").assert_outcomes(passed=1)
    assert pytester.path.joinpath("c.textproto").read_text().count("entries {") == 1

    test_file = pytester.path / "test_lib.py"
    test_file.write_text(test_file.read_text().replace("lib.first", "lib.second"))
    result = pytester.runpytest_subprocess(
        "-ppytest_autotune.plugin", "--autotune-load=c.textproto", "--autotune-max-misses=0"
    )
    result.stdout.fnmatch_lines(["MISS *lib.second*"])
    assert result.ret == 1


def test_a_mock_of_open_in_the_first_test_changes_no_device(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin reads the CPU's type from ``/proc/cpuinfo``, before the first test."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        test_lib="""
        from unittest.mock import mock_open, patch

        def test_first(autotune_cache):
            with patch("builtins.open", mock_open()):
                autotune_cache.tune("lib.first", space=[10, 20], run=range, source="range", device="cpu")

        def test_second(autotune_cache):
            autotune_cache.tune("lib.second", space=[10, 20], run=range, source="range", device="cpu")
        """
    )
    pytester.runpytest_subprocess("-ppytest_autotune.plugin", "--autotune-dump=c.textproto").assert_outcomes(passed=2)

    load = ["-ppytest_autotune.plugin", "--autotune-load=c.textproto", "--autotune-max-misses=0"]
    assert pytester.runpytest_subprocess(*load, "-k", "second").ret == 0


def test_two_workers_never_measure_at_the_same_time(serial_suite: Suite) -> None:
    pytest.importorskip("xdist")
    a_suite(
        serial_suite,
        """
        import os, time, pytest
        from pytest_autotune import Measuring

        def clock(call):
            with open(os.environ["TOY_LOG"], "a") as log:
                log.write("begins\\n")
            time.sleep(0.1)
            with open(os.environ["TOY_LOG"], "a") as log:
                log.write("ends\\n")
            return float(call())

        @pytest.mark.parametrize("m", range(6))
        def test_gemm(autotune_cache, m):
            autotune_cache.tune(
                "lib.gemm", key={"m": m}, space=[1, 2], run=lambda config: config, device="cpu",
                measuring=Measuring(clock=clock),
            )
        """,
    )

    result = serial_suite.dump("-pxdist", "-n2")

    result.assert_outcomes(passed=6)
    assert serial_suite.log.read_text().split() == ["begins", "ends"] * 12
