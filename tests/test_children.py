"""Forked children that work beside the tests, and leave nothing of themselves there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_autotune.run.together import machine
from pytest_autotune.run.together.children import Bounds, Children, start


def until(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    give_up_at = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < give_up_at:
        time.sleep(0.01)
    return bool(found)


def pid_in(path: Path) -> int:
    assert until(lambda: path.exists() and path.read_text().endswith("\n")), f"{path.name} was not written"
    return int(path.read_text())


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def is_gone(process: int) -> bool:
    return not machine.is_alive(process)


def writes_its_number(path: Path) -> Callable[[], None]:
    return lambda: (path.with_suffix(".new").write_text(f"{os.getpid()}\n"), path.with_suffix(".new").rename(path))[0]  # type: ignore[func-returns-value]


def sleeps(path: Path) -> Callable[[], None]:
    def job() -> None:
        writes_its_number(path)()
        time.sleep(60)

    return job


def all_done(started: Children) -> None:
    assert until(lambda: started.is_over)
    started.stop()


def test_jobs_are_done_in_children_several_at_a_time(tmp_path: Path) -> None:
    def meets(mine: str, other: str) -> Callable[[], None]:
        def job() -> None:
            (tmp_path / mine).touch()
            until(lambda: (tmp_path / other).exists())
            (tmp_path / f"{mine}-met").touch()

        return job

    all_done(start(lambda: [meets("a", "b"), meets("b", "a")], 2))

    assert {"a-met", "b-met"} <= {path.name for path in tmp_path.iterdir()}


def test_they_are_no_children_of_the_process_that_waits_for_its_own(tmp_path: Path) -> None:
    started = start(lambda: [sleeps(tmp_path / "job")], 1)
    worker = pid_in(tmp_path / "job")
    leader = parent_of(worker)

    assert os.getpid() not in (leader, parent_of(leader))
    assert os.getsid(worker) == os.getsid(leader) != os.getsid(0)
    started.stop()


def test_told_to_end_they_end_with_what_they_have_started(tmp_path: Path) -> None:
    def job() -> None:
        compiler = subprocess.Popen(["sleep", "60"])
        (tmp_path / "compiler.new").write_text(f"{compiler.pid}\n")
        (tmp_path / "compiler.new").rename(tmp_path / "compiler")
        sleeps(tmp_path / "worker")()

    started = start(lambda: [job], 1)
    processes = [pid_in(tmp_path / name) for name in ("compiler", "worker")]

    began = time.monotonic()
    started.stop()

    assert until(lambda: all(map(is_gone, processes)), 2)
    assert time.monotonic() - began < 2
    started.stop()  # twice is once


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_none_outlives_a_process_that_is_killed(tmp_path: Path, how: signal.Signals) -> None:
    temporary = tmp_path / "temporary"
    (temporary / "of a compiler").mkdir(parents=True)
    script = f"""
import os, sys, time
from pathlib import Path
sys.path[:0] = {[str(Path(__file__).parent.parent)]!r}
from tests.test_children import Bounds, sleeps, start
start(lambda: [sleeps(Path({str(tmp_path)!r}) / name) for name in "ab"], 2, bounds=Bounds(temporary={str(temporary)!r}))
if os.fork() == 0:  # a child of a test, which lives on
    time.sleep(3)
    os._exit(0)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    workers = [pid_in(tmp_path / name) for name in "ab"]

    process.send_signal(how)
    process.wait()

    assert until(lambda: all(map(is_gone, workers)), 2.5)
    assert not temporary.exists()


def test_a_job_that_ends_its_process_costs_nothing_but_itself(tmp_path: Path) -> None:
    jobs = [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(7), lambda: 1 / 0]

    all_done(start(lambda: [*jobs, writes_its_number(tmp_path / "last")], 1))

    assert (tmp_path / "last").exists()


def test_a_job_that_hangs_is_ended_and_the_others_are_done(tmp_path: Path) -> None:
    jobs = [sleeps(tmp_path / "hangs"), writes_its_number(tmp_path / "last")]

    all_done(start(lambda: jobs, 1, bounds=Bounds(job_s=0.3)))

    assert is_gone(pid_in(tmp_path / "hangs"))
    assert (tmp_path / "last").exists()


def test_all_of_them_end_after_a_time(tmp_path: Path) -> None:
    all_done(start(lambda: [sleeps(tmp_path / "hangs")], 1, bounds=Bounds(all_s=0.3)))


def test_a_job_that_takes_all_memory_is_an_error_of_its_own(tmp_path: Path) -> None:
    taken = tmp_path / "taken"

    def job() -> None:
        try:
            bytearray(1 << 30)
        except MemoryError:
            taken.write_text("no")

    all_done(start(lambda: [job], 1, bounds=Bounds(memory=1 << 28)))

    assert taken.read_text() == "no"


def test_what_they_write_goes_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "open").open("w") as file:

        def job() -> None:
            print("to the screen")
            os.write(1, b"to the screen")
            os.write(2, b"to the screen")
            file.write("into the test's file")
            file.flush()
            subprocess.run(["echo", "to the screen"], check=True)
            (tmp_path / "done").touch()

        all_done(start(lambda: [job], 1))

    assert (tmp_path / "done").exists()
    assert capfd.readouterr() == ("", "")
    assert (tmp_path / "open").read_text() == ""


def test_locks_of_the_process_are_not_theirs(tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        started = start(lambda: [sleeps(tmp_path / "job")], 1)
        pid_in(tmp_path / "job")
    with (tmp_path / "lock").open("w") as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    started.stop()


def test_nothing_of_the_process_changes(tmp_path: Path) -> None:
    before = random.getstate(), dict(os.environ), list(warnings.filters), signal.getsignal(signal.SIGTERM), os.nice(0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        all_done(start(lambda: [random.random, lambda: os.environ.clear()], 1))

    assert (
        random.getstate(),
        dict(os.environ),
        list(warnings.filters),
        signal.getsignal(signal.SIGTERM),
        os.nice(0),
    ) == before


def test_descriptors_are_closed_when_they_have_ended() -> None:
    before = set(os.listdir("/proc/self/fd"))

    all_done(start(lambda: [], 1))

    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_plan_that_fails_ends_them() -> None:
    all_done(start(lambda: [][1], 2))


def test_where_nothing_can_be_forked_the_caller_learns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    before = set(os.listdir("/proc/self/fd"))

    with pytest.raises(OSError, match="temporarily"):
        start(lambda: [], 1)
    assert set(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize(
    ("quota", "cores"), [("200000 100000", 2), ("max 100000", 8), ("50000 100000", 1), ("", 8), ("9900000 100000", 8)]
)
def test_a_container_has_the_cores_that_it_has_time_of(tmp_path: Path, quota: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(quota)

    assert machine.cores(8, tmp_path / "cpu.max") == cores
    assert machine.cores(8, tmp_path / "there-is-none") == 8


def stat(path: Path, *cores: tuple[int, int]) -> Path:
    """What the kernel says of cores that have been busy and idle for so many hundredths of a second."""
    path.write_text(
        "".join(f"cpu{number} {busy} 0 0 {idle} 0 0 0 0 0 0\n" for number, (busy, idle) in enumerate(cores))
    )
    return path


@pytest.mark.parametrize(
    ("cores", "idle"),
    [
        ([(0, 100), (100, 0)], 1.0),
        ([(100, 0), (100, 0)], 0.0),
        ([(0, 100), (0, 100)], 2.0),
        ([(0, 100), (0, 100), (0, 100)], 2.0),  # this process may not run on the third
        ([(0, 0), (0, 0)], None),  # a sandbox that counts nothing
    ],
)
def test_idle_cores_are_those_that_nothing_ran_on_lately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: list[tuple[int, int]], idle: float | None
) -> None:
    now = [100.0]
    monkeypatch.setattr(machine.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(os, "times", lambda: os.times_result((0.0, 0.0, 0.0, 0.0, now[0])))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    counted = machine.IdleCores(stat(tmp_path / "stat", *((0, 0) for _ in cores)))

    now[0] += 0.1
    assert counted.now() == 0.0  # too early to know
    now[0] += 0.9
    stat(tmp_path / "stat", *cores)
    assert counted.now() == idle


def test_where_the_kernel_does_not_say_what_is_idle_nothing_is_waited_for(tmp_path: Path) -> None:
    assert machine.IdleCores(tmp_path / "none").now() is None


def test_as_many_work_as_cores_are_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = iter([0.2, 0.2, 1.9, 0.0])
    monkeypatch.setattr(machine.IdleCores, "now", lambda _: next(idle, 0.0))
    jobs = [sleeps(tmp_path / name) for name in "abc"]

    started = start(lambda: jobs, 3, wait=True)

    assert until(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists())
    assert not until(lambda: (tmp_path / "c").exists(), 0.3)
    started.stop()


def test_what_a_job_had_started_that_killed_its_process_ends_with_the_others(tmp_path: Path) -> None:
    def job() -> None:
        compiler = subprocess.Popen(["sleep", "60"])
        (tmp_path / "compiler").write_text(f"{compiler.pid}\n")
        os.kill(os.getpid(), signal.SIGKILL)

    all_done(start(lambda: [job], 1, stays=True))

    assert until(lambda: is_gone(pid_in(tmp_path / "compiler")), 2)


def test_how_each_child_has_ended_is_told(tmp_path: Path) -> None:
    def ended(process: int, code: int) -> None:
        with (tmp_path / "ended").open("a") as file:
            file.write(f"{process} {code}\n")

    jobs = [writes_its_number(tmp_path / "job"), lambda: os.kill(os.getpid(), signal.SIGSEGV)]
    all_done(start(lambda: jobs, 1, ended=ended))

    first, last = (line.split() for line in (tmp_path / "ended").read_text().splitlines())
    assert first == [str(pid_in(tmp_path / "job")), "-11"]
    assert last[1] == "0"
