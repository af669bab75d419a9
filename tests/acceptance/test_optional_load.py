"""``--autotune-load=PATH?optional``: a process whose cache, tuner or GPU is absent takes no part."""

from __future__ import annotations

import json

import pytest

from pytest_autotune import devices
from pytest_autotune.cli.main import main
from tests.conftest import Suite

OPTIONAL = "--autotune-load=cache.textproto?optional"
GATES = ["--autotune-max-misses=0", "--autotune-on-miss=error", "--autotune-fail-on-unused"]
SKIPPED = "import pytest\ndef test_gpu(): pytest.skip('no GPU')\n"


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_visible_gpu", bool)


@pytest.mark.parametrize("gate", GATES)
def test_a_missing_optional_cache_passes_the_gate_with_a_line(suite: Suite, section, gate: str) -> None:
    result = suite.write().run(OPTIONAL, gate)

    assert result.ret == 0
    lines = [
        line
        for line in section(result)
        if "cache.textproto does not exist, which ?optional in the load path allows" in line
    ]
    assert len(lines) == 1
    assert "not checked" in lines[0]


def test_without_a_gate_a_missing_optional_cache_prints_a_line(suite: Suite, section) -> None:
    result = suite.write().run(OPTIONAL)

    assert result.ret == 0
    assert "the cache was not used: cache.textproto does not exist (?optional in the load path allows this)" in section(
        result
    )


def test_optional_caches_work_in_the_ini_file_and_in_addopts(
    serial_suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial_suite.write().pytester.makeini("[pytest]\nautotune_load = cache.textproto?optional\n")
    assert serial_suite.run("--autotune-max-misses=0").ret == 0
    serial_suite.pytester.makeini("[pytest]\n")

    monkeypatch.setenv("PYTEST_ADDOPTS", f"'{OPTIONAL}' --autotune-max-misses=0")

    assert serial_suite.run().ret == 0
    serial_suite.dump("-oaddopts=")
    (serial_suite.folder / "test_new.py").write_text("def test_new(tune): tune('lib.new')\n")
    assert serial_suite.run().ret == pytest.ExitCode.TESTS_FAILED, "the cache is there, and a problem is missing"


@pytest.mark.parametrize("gate", GATES)
def test_without_a_gpu_the_gate_passes_if_the_cache_is_optional(
    without_gpu: None, serial_suite: Suite, section, gate: str
) -> None:
    serial_suite.write().prepare_dump()
    (serial_suite.folder / "test_lib.py").write_text(SKIPPED)

    result = serial_suite.run(OPTIONAL, gate)

    assert result.ret == 0
    assert [
        line
        for line in section(result)
        if line.endswith("were not checked: no GPU is visible, which ?optional in the load path allows")
    ]
    assert serial_suite.load(gate).ret == pytest.ExitCode.TESTS_FAILED, "the same cache, not optional"


def test_a_line_counts_the_gpu_entries_that_were_not_checked(without_gpu: None, serial_suite: Suite, section) -> None:
    """The gate checks the entries of the CPU. The line says that it did not check the others."""
    serial_suite.write().prepare_dump()
    serial_suite.load("--autotune-update", TOY_DEVICE="CPU")
    line = "4 entries for Toy GPU were not checked: no GPU is visible (?optional)"

    result = serial_suite.run(OPTIONAL, "--autotune-max-misses=0", TOY_DEVICE="CPU")

    assert result.ret == 0
    assert line in section(result)
    assert line not in section(serial_suite.run(OPTIONAL, "--autotune-max-misses=0"))


def test_an_update_without_a_gpu_says_that_its_entries_stay(without_gpu: None, serial_suite: Suite, section) -> None:
    serial_suite.write().prepare_dump()

    updated = section(serial_suite.load("--autotune-update", TOY_DEVICE="CPU"))
    again = section(serial_suite.load("--autotune-update", TOY_DEVICE="CPU"))

    line = "The 4 entries for Toy GPU are unchanged: update them on that GPU."
    assert line in updated
    assert line not in again


def test_with_a_gpu_the_gate_fails_if_all_tests_skip(serial_suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is optional, but only what is absent is an excuse."""
    monkeypatch.setattr(devices, "has_visible_gpu", lambda: True)
    serial_suite.write().prepare_dump()
    (serial_suite.folder / "test_lib.py").write_text(SKIPPED)

    assert serial_suite.run(OPTIONAL, "--autotune-max-misses=0").ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("gate", GATES)
def test_gate_passes_an_optional_cache_of_an_unpatchable_tuner(suite: Suite, section, gate: str) -> None:
    suite.write().serial.prepare_dump()

    result = suite.run(OPTIONAL, gate, TOY_UNKNOWN="1")

    assert result.ret == 0
    reason = "the plugin cannot hook toy: its tune() takes other arguments, which ?optional in the load path allows"
    assert [line for line in section(result) if line.endswith(reason)]


def test_the_gate_passes_if_an_optional_cache_lacks_its_adapter(serial_suite: Suite, section) -> None:
    serial_suite.write().prepare_dump()
    text = serial_suite.cache.read_text().replace('tuner: "toy"', 'tuner: "gone"')
    serial_suite.cache.write_text(text)

    result = serial_suite.run(OPTIONAL, "--autotune-max-misses=0", "test_lib.py", "-k", "nothing or softmax")

    assert result.ret == 1, "a problem of the toy tuner is a miss"
    (serial_suite.folder / "test_lib.py").write_text(SKIPPED)
    result = serial_suite.run(OPTIONAL, "--autotune-max-misses=0")
    assert result.ret == 0
    assert [line for line in section(result) if "no adapter is installed for gone" in line]


def test_a_miss_in_an_existing_optional_cache_fails_the_gate(suite: Suite) -> None:
    suite.write().serial.prepare_dump()
    suite.write(test_lib="def test_new(tune): tune('lib.new')\n")

    assert suite.run(OPTIONAL, "--autotune-max-misses=0").ret == pytest.ExitCode.TESTS_FAILED


def test_a_missing_optional_cache_hides_no_misses_from_the_gate(serial_suite: Suite, section) -> None:
    serial_suite.write().prepare_dump()

    result = serial_suite.load("--autotune-load=other.textproto?optional", "--autotune-max-misses=0")

    assert result.ret == 0
    assert "other.textproto does not exist, so it was not loaded (?optional in the load path allows this)" in section(
        result
    )
    serial_suite.write(test_lib="def test_new(tune): tune('lib.new')\n")
    result = serial_suite.load("--autotune-load=other.textproto?optional", "--autotune-max-misses=0")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_an_update_creates_an_absent_optional_cache(serial_suite: Suite) -> None:
    serial_suite.write()

    assert serial_suite.run(OPTIONAL, "--autotune-update").ret == 0
    assert serial_suite.run(OPTIONAL, "--autotune-max-misses=0").ret == 0
    assert not serial_suite.tunings


def test_a_damaged_optional_cache_is_a_usage_error(serial_suite: Suite) -> None:
    serial_suite.write().cache.write_text("entries {")

    assert serial_suite.run(OPTIONAL).ret == pytest.ExitCode.USAGE_ERROR


def test_gate_command_passes_if_any_process_used_the_cache(
    without_gpu: None, serial_suite: Suite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AUTOTUNE_RUN_ID", raising=False)
    serial_suite.write().prepare_dump()
    (serial_suite.folder / "test_gpu.py").write_text(SKIPPED)
    serial_suite.run(OPTIONAL, "--autotune-report=reports/", "test_gpu.py")
    gate = ["gate", "cache.textproto", "--reports=reports/"]
    (report,) = (serial_suite.folder / "reports").glob("*.json")
    assert json.loads(report.read_text())["took_no_part"] == "no GPU is visible"

    assert main([*gate, "--expect=1"]) == 1
    output = capsys.readouterr().out
    assert "\n1 report: no process used the cache\n" in output
    assert "FAILED: no process used the cache: no GPU is visible" in output
    serial_suite.run(OPTIONAL, "--autotune-report=reports/", "test_lib.py")
    assert main([*gate, "--expect=2"]) == 0
    serial_suite.run("--autotune-load=gone.textproto?optional", "--autotune-report=reports/", "test_lib.py")
    assert main([*gate, "--expect=3"]) == 0
    assert "did not use the cache: gone.textproto does not exist" in capsys.readouterr().out
