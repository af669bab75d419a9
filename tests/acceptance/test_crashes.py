"""Nothing that was tuned is lost, whatever ends a worker, the run or the controller."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import DISTRIBUTIONS, Suite
from tests.crashes import CRASHING, FAULTS, PLACES, strike
from tests.forked_workers import ForkedPytest


def finished(suite: Suite) -> set[str]:
    """The kernels whose tuning had finished, over all runs."""
    path = suite.folder / "finished"
    return set(path.read_text().split()) if path.exists() else set()


def written(suite: Suite) -> set[str]:
    """Return the kernels in the cache, without the kernel whose tuning is broken off."""
    text = suite.cache.read_text() if suite.cache.exists() else ""
    return set(re.findall(r'kernel: "([^"]*)"', text)) - {"lib.unfinished"}


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytest.importorskip("xdist")
    return Suite(pytester, ["-pxdist", "-n2"])


NO_RESTART = ["--max-worker-restart=0"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("fault", "restart"),
    [
        pytest.param("kill", [], id="kill-restart"),
        pytest.param("exit", NO_RESTART, id="exit-no restart"),
        # xdist sees no difference between a killed worker and a worker that exits.
        pytest.param("kill", NO_RESTART, id="kill-no restart", marks=pytest.mark.nightly),
        pytest.param("exit", [], id="exit-restart", marks=pytest.mark.nightly),
    ],
)
def test_finished_tunings_of_a_crashed_worker_are_dumped(
    suite: Suite, section, fault: str, place: str, restart: list[str]
) -> None:
    """The worker is killed or exits at several places, with and without a replacement. The summary names it."""
    suite.write(test_crashing=CRASHING)

    result = suite.dump(*restart, FAULT=fault, PLACE=place)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert finished(suite)
    assert written(suite) == finished(suite)
    assert any(re.match(r"worker gw\d crashed", line) for line in section(result))


@pytest.mark.parametrize(("place", "ending"), list(zip(PLACES, [["-x"], [], ["-x"], []], strict=True)))
@pytest.mark.parametrize("distribution", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_tunings_finished_before_a_test_error_are_dumped(
    suite: Suite, place: str, ending: list[str], distribution: list[str]
) -> None:
    suite.write(test_crashing=CRASHING)
    suite.distribution = distribution

    suite.dump(*ending, FAULT="error", PLACE=place)

    assert finished(suite)
    assert written(suite) == finished(suite)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
@pytest.mark.parametrize("place", ["call", "tuning"])
def test_tunings_finished_before_a_ctrl_c_are_dumped(suite: Suite, place: str, distribution) -> None:
    suite.write(test_crashing=CRASHING)
    suite.distribution = distribution

    process = start(suite, FAULT="interrupt", PLACE=place)

    assert process.wait(60) == pytest.ExitCode.INTERRUPTED
    assert finished(suite)
    assert written(suite) == finished(suite)


def start(suite: Suite, *args: str, **environment: str) -> ForkedPytest:
    """Start a dump run as a process that can be killed."""
    return start_run(suite, "--autotune-dump=cache.textproto", *args, **environment)


def start_run(suite: Suite, *args: str, **environment: str) -> ForkedPytest:
    """Start a run as a process that can be killed."""
    options = ["-ppytest_autotune.plugin", *suite.distribution, *args]
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TOY_LOG": str(suite.log), **environment}
    with (suite.folder / "output").open("wb") as output:
        return ForkedPytest(options, suite.folder, variables, output.fileno())


def wait_for(path: Path, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not appear"
        time.sleep(0.02)


def killed(suite: Suite) -> set[str]:
    """Kill all processes of a dump run, and return the kernels that it had tuned."""
    process = start(suite, FAULT="hang", PLACE="call")
    wait_for(suite.folder / "failed-once")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    return finished(suite)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_the_next_dump_recovers_the_tunings_of_a_killed_run(suite: Suite, section, distribution: list[str]) -> None:
    suite.write(test_crashing=CRASHING)
    suite.distribution = distribution
    before = killed(suite)
    assert before
    assert written(suite) == set()

    (suite.folder / "test_crashing.py").unlink()
    suite.pytester.makepyfile(test_other="def test_other(tune): tune('lib.other')")
    for option in ("--collect-only", "--setup-plan"):
        suite.dump(option)
    result = suite.dump()

    recovered = written(suite) - {"lib.other"}
    assert before <= recovered  # a worker may have been killed after a tuning, and before it could say so here
    assert "lib.other" in written(suite)
    assert any(line.startswith(f"recovered {len(recovered)} tunings") for line in section(result))
    assert not list((suite.folder / ".pytest_cache").rglob("*.jsonl"))


def test_an_update_retunes_no_problem_that_a_killed_run_tuned(suite: Suite) -> None:
    """The update tunes only the problems that the killed run did not finish."""
    suite.write(test_crashing=CRASHING)
    before = killed(suite)

    suite.run("--autotune-load=cache.textproto", "--autotune-dump=cache.textproto")

    assert not {line.split()[0] for line in suite.tunings} & before
    assert written(suite) == finished(suite)


UPDATE = ["--autotune-load=cache.textproto", "--autotune-update"]
FACTORY = """
import os, signal
def test_first(tune): tune("lib.made", source=os.environ["SOURCE"])
def test_second(tune): tune("lib.made", source="second")
def test_end():
    if "KILL" in os.environ: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("selected", "source", "sources"),
    [
        ("end", "edited", ["edited", "first", "second"]),
        ("second", "edited", ["edited", "first", "second"]),
        ("first", "edited again", ["edited again"]),
    ],
    ids=["asks nothing", "hits the other kernel", "tunes anew"],
)
def test_a_killed_runs_tuning_removes_no_entry_of_its_problem(
    serial_suite: Suite, section, selected: str, source: str, sources: list[str]
) -> None:
    """A factory makes two kernels with one name, so a problem has two entries.

    The killed run tuned one kernel after an edit and hit the entry of the other. The next run adds the tuning. Only a
    tuning of its own removes other entries of the problem, as in any run.
    """
    suite = serial_suite.write(test_made=FACTORY)
    suite.dump(SOURCE="first")
    process = start_run(suite, *UPDATE, SOURCE="edited", KILL="1")
    assert process.wait(60) == -signal.SIGKILL

    result = suite.run(*UPDATE, "-k", selected, SOURCE=source)

    assert "autotune: load cache.textproto (3 entries), dump cache.textproto" in result.outlines
    assert sorted(re.findall(r'name: "source" text: "([^"]*)"', suite.cache.read_text())) == sources
    if source == "edited":
        assert suite.tunings == []
        assert any(line.startswith("recovered 1 tuning of") for line in section(result))


@pytest.mark.parametrize("killed_update", ["--autotune-update", "--autotune-update=new"])
def test_option_update_new_adds_the_tuning_of_a_killed_run(serial_suite: Suite, section, killed_update: str) -> None:
    """The cache has an older entry of the same problem, which stays. An entry of the same code stays as it is."""
    suite = serial_suite.write(test_made=FACTORY)
    suite.dump("-k", "first", SOURCE="first")
    before = suite.cache.read_text()
    process = start_run(suite, UPDATE[0], killed_update, SOURCE="edited", KILL="1")
    assert process.wait(60) == -signal.SIGKILL
    assert suite.cache.read_text() == before
    update = [UPDATE[0], "--autotune-update=new"]

    result = suite.run(*update, "-k", "first", SOURCE="edited")

    assert suite.tunings == []
    text = suite.cache.read_text()
    assert [line for line in before.splitlines() if line not in text.splitlines()] == []
    assert sorted(re.findall(r'name: "source" text: "([^"]*)"', text)) == ["edited", "first", "second"]
    assert any(line.startswith("recovered 1 tuning of") for line in section(result))
    assert "stale not changed" not in result.stdout.str()


OWN_CACHE = """
import os, signal, pytest
@pytest.mark.autotune_cache(load="own.textproto")
def test_own(tune): tune("lib.own")
def test_end(tune):
    tune("lib.end")
    if "KILL" in os.environ: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("folder", "load", "status"),
    [
        (".", ["--autotune-load={root}/main.textproto"], pytest.ExitCode.OK),
        ("tests", ["--autotune-load={root}/main.textproto"], pytest.ExitCode.OK),
        (".", [], pytest.ExitCode.USAGE_ERROR),
    ],
    ids=["same folder", "another folder", "without a load"],
)
def test_a_killed_runs_tuning_is_saved_in_the_cache_of_a_marker(
    serial_suite: Suite, monkeypatch: pytest.MonkeyPatch, folder: str, load: list[str], status: pytest.ExitCode
) -> None:
    """The next run writes the tuning into the test's cache. It runs another test, and may begin in another folder."""
    suite = serial_suite.write()
    (suite.folder / "test_lib.py").unlink()
    suite.pytester.makeini("[pytest]")
    suite.pytester.mkdir("tests")
    (suite.folder / "tests" / "test_own.py").write_text(OWN_CACHE)
    update = [option.format(root=suite.folder) for option in load] + ["--autotune-update"]
    process = start_run(suite, *update, KILL="1")
    assert process.wait(60) == -signal.SIGKILL
    monkeypatch.chdir(suite.folder / folder)

    result = suite.run(*update, "-k", "end")

    assert result.ret == status
    assert list(suite.folder.rglob("own.textproto")) == [suite.folder / "tests" / "own.textproto"]
    assert not list((suite.folder / ".pytest_cache").rglob("*.jsonl"))
    suite.run(*update)
    assert "lib.own []" not in suite.tunings


def test_an_internal_error_in_a_worker_loses_no_finished_tuning(suite: Suite) -> None:
    """Another plugin raises an error in a worker's hook. This run or the next run writes all finished tunings."""
    suite.write(test_crashing=CRASHING)
    broken = """
import os
def pytest_runtest_teardown(item):
    if "[4]" in item.nodeid:
        os.environ["BROKEN"] = "1"
def pytest_runtest_logreport(report):
    if os.environ.get("BROKEN"):
        raise RuntimeError("an error of some plugin")
"""
    (suite.folder / "conftest.py").write_text((suite.folder / "conftest.py").read_text() + broken)

    suite.dump()
    for _ in range(3):
        if written(suite) >= finished(suite):
            break
        # The run may be over before it can write, and before its other worker is: the next one takes over.
        time.sleep(0.2)
        suite.dump("--deselect=test_crashing.py")

    assert written(suite) >= finished(suite)


def test_a_crash_during_a_dump_keeps_old_entries_of_the_cache(suite: Suite) -> None:
    suite.write(test_before="def test_before(tune): tune('lib.before')").serial.prepare_dump()
    before = suite.cache.read_text()
    (suite.folder / "test_before.py").unlink()
    suite.pytester.makepyfile(test_crashing=CRASHING)

    suite.dump(FAULT="kill", PLACE="call")

    assert set(before.splitlines()) <= set(suite.cache.read_text().splitlines())


def test_concurrent_runs_that_dump_to_one_path_lose_no_entry(suite: Suite) -> None:
    suite.distribution = []
    names = ["a", "b", "c"]
    suite.write(**{f"test_{name}": f"def test_it(tune): tune('lib.{name}')" for name in names})

    processes = [start(suite, f"test_{name}.py") for name in names]

    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert written(suite) == {f"lib.{name}" for name in names}
    assert [path.name for path in suite.folder.iterdir() if "cache.textproto" in path.name] == ["cache.textproto"]


#: The rows of the matrix that no other test strikes: fault -> how many workers.
_SHORT = {
    "kill -9 of a process that tests": 0,
    "os._exit of a process that tests": 0,
    "SIGTERM of a process that tests": 2,
    "SIGTERM of pytest": 2,
    "kill -9 of pytest": 2,
    "kill -9 of everything": 2,
    "pytest-timeout, by signal": 0,
    "pytest-timeout, by thread": 0,
    "Ctrl-C of everything": 2,
    "Ctrl-C twice": 2,
    "SIGSTOP of a process that tests, kill -9 3 s later": 2,
    "a stopped process holds the GPU; kill -9": 2,
    "another run two days later; kill -9": 0,
    "another user's link and journal; kill -9 of pytest": 0,
    "the dump's disk is full; kill -9": 2,
    "the disk of both is full; error": 0,
}


def test_no_kind_of_crash_loses_a_finished_tuning() -> None:
    """The short form of tests/benchmarks/crash_matrix.py, some at a time: most of it is waiting."""
    pytest.importorskip("xdist")
    pytest.importorskip("pytest_timeout")
    places = {label: PLACES[number % len(PLACES)] for number, label in enumerate(_SHORT)}
    faults = [fault for fault in FAULTS if fault.label in _SHORT and not fault.missing_right]
    if pytest.version_tuple < (
        9,
        2,
    ):  # ends with an error of its own, and says nothing, where its cache is on a full disk
        faults = [fault for fault in faults if fault.disk != "."]

    with ThreadPoolExecutor(8) as pool:
        futures = [
            pool.submit(strike, fault, places[fault.label], _SHORT[fault.label], is_forked=True) for fault in faults
        ]

    assert len(faults) > 10
    bad_results = {}
    for fault, future in zip(faults, futures, strict=True):
        result = future.result()
        if not result.finished or result.lost or not result.is_foreign_unchanged:
            bad_results[fault.label] = result
    assert bad_results == {}


TUNING_FOR_LONG = """
import os, signal, time
def test_long(tune):
    tune("lib.kept")
    tune("lib.long", during=lambda: (os.kill(int(os.environ["PARENT"]), signal.SIGINT), time.sleep(30)))
"""


def test_ctrl_c_stops_a_tuning_worker_and_dumps_its_tunings(serial_suite: Suite) -> None:
    """The run ends within five seconds after the interrupt and writes the finished tuning."""
    pytest.importorskip("xdist")
    serial_suite.write(test_long=TUNING_FOR_LONG)
    script = (
        "import os, sys; os.environ['PARENT'] = str(os.getpid()); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "-ppytest_autotune.plugin", "-pxdist", "-n1"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TOY_LOG": str(serial_suite.log)}
    process = subprocess.Popen([*command, "--autotune-dump=cache.textproto"], cwd=serial_suite.folder, env=environment)
    while "lib.long" not in "".join(serial_suite.tunings):
        time.sleep(0.05)
    interrupted = time.monotonic()

    assert process.wait(60) == 2

    assert time.monotonic() - interrupted < 5  # of which 2 wait; execnet alone interrupts its worker after 5
    assert serial_suite.cache.read_text().count("entries {") == 1


READ_ONLY = """
import os, subprocess
def test_it(tune):
    tune("lib.kept")
    if not os.path.exists("mended"):
        subprocess.run(["mount", "-o", "remount,ro", "disk"], check=True)
"""


def test_the_next_run_dumps_entries_a_read_only_disk_refused(suite: Suite) -> None:
    """The file system becomes read-only during the run. The run fails, and the next run writes its tunings."""
    suite.distribution = []
    disk = suite.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    try:
        suite.write(test_fill=READ_ONLY)
        failed = suite.run("--autotune-dump=disk/cache.textproto")
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        (suite.folder / "mended").touch()
        (suite.folder / "test_fill.py").write_text("def test_nothing(): pass")
        mended = suite.run("--autotune-dump=disk/cache.textproto")
        text = (disk / "cache.textproto").read_text()
    finally:
        subprocess.run(["umount", str(disk)], check=True)

    assert failed.ret == pytest.ExitCode.TESTS_FAILED
    failed.stdout.fnmatch_lines(["ERROR --autotune-dump: disk/cache.textproto: *Read-only file system*next run*"])
    assert mended.ret == 0
    assert 'kernel: "lib.kept"' in text
