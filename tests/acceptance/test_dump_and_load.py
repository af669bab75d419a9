"""The main job: a run dumps what was chosen, later runs load it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TOY_TUNER, Suite, everywhere

FORMATS = ["cache.textproto", "cache.txtpb", "cache.pb", "cache.yaml", "cache.json", "cache/"]


@everywhere
def test_a_dump_tunes_every_problem_and_writes_an_entry_for_each(suite: Suite, section) -> None:
    result = suite.write().dump()

    result.assert_outcomes(passed=4)
    assert len(suite.tunings) == 4
    assert suite.cache.read_text().count("entries {") == 4
    assert any("4 entries written to cache.textproto" in line and "4 added" in line for line in section(result))


@everywhere
def test_a_load_of_a_complete_cache_tunes_nothing(suite: Suite, section) -> None:
    suite.write().prepare_dump()

    result = suite.load()

    result.assert_outcomes(passed=4)
    assert suite.tunings == []
    assert section(result)[0].startswith("4 hits")


def test_a_loaded_choice_is_used_even_if_it_is_slower(suite: Suite) -> None:
    suite.write().serial.prepare_dump()
    text = suite.cache.read_text()
    suite.cache.write_text(text.replace('text: "a"', 'text: "b"'))

    result = suite.load()

    result.assert_outcomes(passed=1, failed=3)


def test_a_load_with_misses_does_not_change_the_loaded_file(suite: Suite) -> None:
    suite.write().serial.prepare_dump()
    before = suite.cache.read_bytes()
    suite.write(test_lib="def test_other(tune): tune('lib.other')")

    suite.load()

    assert suite.cache.read_bytes() == before


def test_a_dumped_cache_is_readable_even_if_a_test_set_a_umask(serial_suite: Suite) -> None:
    serial_suite.write(test_lib="import os\n\ndef test_op(tune):\n    tune('lib.op')\n    os.umask(0o777)\n")
    before = os.umask(0o022)
    try:
        serial_suite.dump()
    finally:
        os.umask(before)

    assert stat.S_IMODE(serial_suite.cache.stat().st_mode) & 0o600 == 0o600


@pytest.mark.parametrize("name", FORMATS)
def test_a_cache_dumped_in_any_file_format_loads_without_misses(serial_suite: Suite, name: str) -> None:
    serial_suite.write().run(f"--autotune-dump={name}")

    result = serial_suite.run(f"--autotune-load={name}", "--autotune-max-misses=0")

    assert result.ret == 0
    assert serial_suite.tunings == []


def test_a_dump_does_not_depend_on_test_order_or_worker_count(suite: Suite) -> None:
    """Two dumps differ in the seconds of tuning only, if the order of the tests or the number of workers differs."""
    suite.write().serial.prepare_dump()
    first = suite.cache.read_text()
    suite.cache.unlink()
    reversed_order = "\ndef pytest_collection_modifyitems(items): items.reverse()\n"
    suite.pytester.path.joinpath("conftest.py").open("a").write(reversed_order)

    suite.dump()

    def without_times(text: str) -> list[str]:
        return [line for line in text.splitlines() if "tuning_seconds" not in line]

    assert without_times(suite.cache.read_text()) == without_times(first)


def test_load_and_dump_to_one_file_keeps_entries_and_adds_misses(suite: Suite, section) -> None:
    suite.write().serial.prepare_dump()
    before = suite.cache.read_text()
    suite.pytester.makepyfile(test_more="def test_more(tune): tune('lib.more', N=1)")

    result = suite.run("--autotune-load=cache.textproto", "--autotune-dump=cache.textproto")

    assert suite.tunings == ["lib.more [('N', 1)]"]
    assert set(before.splitlines()) <= set(suite.cache.read_text().splitlines())
    assert any("1 added, 4 unchanged" in line for line in section(result))


def test_an_update_of_a_missing_or_empty_file_starts_a_new_cache(serial_suite: Suite) -> None:
    both = ["--autotune-load=cache.textproto", "--autotune-dump=cache.textproto"]

    assert serial_suite.write().run(*both).ret == 0
    assert serial_suite.cache.read_text().count("entries {") == 4

    serial_suite.cache.write_text("")
    assert serial_suite.run(*both).ret == 0
    assert serial_suite.cache.read_text().count("entries {") == 4


def test_a_dump_without_changes_does_not_rewrite_the_file(suite: Suite, section) -> None:
    suite.write().serial.prepare_dump()
    before = suite.cache.stat()

    result = suite.dump()

    assert suite.cache.stat().st_mtime_ns == before.st_mtime_ns
    assert any("cache.textproto is up to date (4 entries" in line for line in section(result))


def test_a_dump_keeps_entries_of_tests_that_did_not_run(suite: Suite) -> None:
    suite.write(
        test_a="def test_a(tune): tune('lib.a')", test_b="def test_b(tune): tune('lib.b')"
    ).serial.prepare_dump()

    suite.dump("test_a.py")

    assert 'kernel: "lib.b"' in suite.cache.read_text()


def test_a_dump_on_a_second_gpu_type_keeps_entries_of_the_first(suite: Suite) -> None:
    suite.write().serial.prepare_dump(TOY_DEVICE="First GPU")
    suite.dump(TOY_DEVICE="Second GPU")

    text = suite.cache.read_text()

    assert text.count("entries {") == 8
    assert suite.load("--autotune-max-misses=0", TOY_DEVICE="First GPU").ret == 0
    assert suite.load("--autotune-max-misses=0", TOY_DEVICE="Second GPU").ret == 0


def test_if_two_loaded_caches_disagree_the_last_one_wins(suite: Suite) -> None:
    suite.write().run("--autotune-dump=one.textproto")
    first = suite.folder / "one.textproto"
    (suite.folder / "two.textproto").write_text(first.read_text().replace('text: "a"', 'text: "b"'))

    assert suite.run("--autotune-load=two.textproto", "--autotune-load=one.textproto").ret == 0
    assert suite.run("--autotune-load=one.textproto", "--autotune-load=two.textproto").ret == 1


def test_without_options_the_plugin_neither_tunes_nor_prints(suite: Suite, section) -> None:
    result = suite.write().run()

    result.assert_outcomes(passed=4)
    assert section(result) == []
    result.stdout.no_fnmatch_line("autotune:*")
    assert suite.tunings == []


@pytest.mark.parametrize("bad", ["times={'\\ud800': 1.0}", "M=2**63"])
@pytest.mark.parametrize("path", ["cache.textproto", "cache.pb"])
def test_a_dump_omits_and_reports_an_entry_it_cannot_encode(serial_suite: Suite, section, path: str, bad: str) -> None:
    """A key has a number beyond 64 bits, or a candidate's name is not valid Unicode.

    The summary has a line about the error.
    """
    serial_suite.write(test_op=f"def test_bad(tune): tune('lib.bad', {bad})\ndef test_good(tune): tune('lib.good')")

    result = serial_suite.run(f"--autotune-dump={path}")

    result.assert_outcomes(passed=2)
    assert result.ret == 0
    assert section(result)[0].startswith("toy: internal error in choose(): UncacheableError: ")
    assert section(result)[-1].endswith(f"1 entry written to {path}: 1 added")
    assert "1 hit" in serial_suite.run(f"--autotune-load={path}", "-k", "good").stdout.str()


LATE = """
import threading, toytuner

def test_thread():
    searches, done = threading.Event(), threading.Event()
    def during(): searches.set(), done.wait()
    threading.Thread(target=toytuner.tune, args=("lib.late",), kwargs={"during": during}, daemon=True).start()
    assert searches.wait(60)
    toytuner.done = done
"""
AT_THE_END = """

def pytest_sessionfinish():
    toytuner.tune("lib.after")

def pytest_unconfigure():
    toytuner.done.set()
    toytuner.tune("lib.last")
"""


def test_tuning_in_a_thread_after_the_last_test_is_not_recorded(suite: Suite, section) -> None:
    """The summary names a problem that a thread still tunes after the tests. A later run recovers nothing."""
    suite.write(test_late=LATE, test_op="def test_op(tune): tune('lib.op')")
    with (suite.folder / "conftest.py").open("a") as conftest:
        conftest.write(AT_THE_END if not suite.distribution else AT_THE_END.replace("toytuner.done.set()", "pass"))

    lines = section(suite.dump())

    assert "not saved, because a thread still tuned after the tests (wait for it in the test): toy:lib.late" in lines
    assert "lib.last" not in suite.cache.read_text()
    again = section(suite.load("--autotune-update"))
    assert not any("recovered" in line for line in again), again


LATE_LOOKUPS = """

def pytest_sessionfinish():
    toytuner.tune("lib.after")
    toytuner.tune("lib.after", N=2)

def pytest_unconfigure():
    toytuner.tune("lib.last")
"""


def test_a_kernel_called_after_the_end_of_the_run_gets_a_warning(serial_suite: Suite, section) -> None:
    """The hooks of a conftest ask for kernels after the gate and the reports. A line names each kernel once."""
    serial_suite.write(test_op="def test_op(tune): tune('lib.op')").prepare_dump()
    with (serial_suite.folder / "conftest.py").open("a") as conftest:
        conftest.write(LATE_LOOKUPS)

    result = serial_suite.load("--autotune-max-misses=0")

    assert result.ret == 0
    assert section(result) == ["1 hit"]
    warnings = [line for line in result.errlines if line.startswith("autotune: ")]
    after_the_end = (
        "was called after the end of the run, so it used no cache and is in no report (call it in a test or fixture)"
    )
    assert warnings == [f"autotune: toy:lib.after {after_the_end}", f"autotune: toy:lib.last {after_the_end}"]


def test_pytester_runs_inside_a_test_can_dump_and_load(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test of a run without a cache runs pytest twice in its own process. The second run has a hit."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("TOY_LOG", str(pytester.path / "tunings.log"))
    pytester.makeconftest(f"from pytest_autotune import Device\npytest_plugins = 'pytester'\nTOY = {TOY_TUNER!r}")
    pytester.makepyfile("""
        from conftest import TOY
        def test_twice(pytester):
            pytester.makeconftest(TOY)
            pytester.makepyfile("def test_op(tune): tune('lib.op')")
            for args in ["--autotune-dump=c.pb"], ["--autotune-load=c.pb", "--autotune-max-misses=0"]:
                result = pytester.runpytest_inprocess("-ppytest_autotune.plugin", *args)
                assert result.ret == 0
            result.stdout.fnmatch_lines(["1 hit*"])
    """)

    pytester.runpytest_subprocess("-ppytest_autotune.plugin").assert_outcomes(passed=1)


def test_a_tuning_after_a_pytester_run_inside_a_test_is_recorded(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest("pytest_plugins = 'pytester'")
    pytester.makepyfile("""
        TUNES = "def test_it(autotune_cache): autotune_cache.tune('lib.k', space=[1, 2], run=str)"
        def test_inside(pytester):
            pytester.makepyfile(TUNES)
            assert pytester.runpytest_inprocess("-ppytest_autotune.plugin").ret == 0
        def test_after(autotune_cache):
            autotune_cache.tune("lib.k", space=[1, 2], run=str)
    """)

    result = pytester.runpytest_subprocess("-ppytest_autotune.plugin", "--autotune-dump=c.pb")

    result.stdout.fnmatch_lines(["1 problem tuned*"])


TWO_RUNS = """
import json, pytest
options = ["-q", "-ppytest_autotune.plugin"]
assert pytest.main([*options, "--autotune-dump=cache.textproto"]) == 0
assert pytest.main([*options, "--autotune-load=cache.textproto", "--autotune-report=report.json"]) == 0
"""
INTERPRETED = """
import torch, triton, triton.language as tl

@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    tl.store(x, n)

def test_kernel():
    kernel[(1,)](torch.zeros(1), 1)
"""


def test_a_second_run_in_a_process_asks_the_cache_again(tmp_path: Path) -> None:
    """Otherwise Triton would still know the choice of the first run, and ask no cache."""
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    (tmp_path / "test_kernel.py").write_text(INTERPRETED)

    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run([sys.executable, "-c", TWO_RUNS], cwd=tmp_path, env=environment, check=True)

    assert json.loads((tmp_path / "report.json").read_text())["counts"]["hit"] == 1
