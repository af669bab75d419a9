"""Locks and claims between the processes of a machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pytest_autotune.cache.model import Candidate, Device, Entry, Problem, Value
from pytest_autotune.run.lookup import Lookup, TunedEntry
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Log
from pytest_autotune.workers.locks import Locks, in_distributed_run
from tests.sessions import CountingHelper

PROBLEM = Problem("toy", "k", (Value("M", 1),), Device("GPU", "arch", 1))
TUNED_ENTRY = Entry(PROBLEM, choice=Candidate(params=(Value("BLOCK", 16),)))
LOOKUP = Lookup(TUNED_ENTRY.identity, result=TunedEntry(TUNED_ENTRY))
HOLD = """
import sys, time
from pathlib import Path
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.locks import Locks
from tests.sessions import CountingHelper
from tests.test_coordination import LOOKUP
kind, folder = sys.argv[1:]
gpu = Locks(5.0, lambda: folder)
claiming = Coordinator(gpu, Path(folder)).claim(LOOKUP.identity.digest, CountingHelper())
held = gpu.measuring() if kind == "gpu" else claiming
with held:
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Another process that holds the GPU, or a claim, until it is killed."""
    started: list[subprocess.Popen[str]] = []

    def hold(kind: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        command = [sys.executable, "-c", HOLD, kind, str(tmp_path)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "held\n"
        return started[-1]

    yield hold
    for process in started:
        process.kill()
        process.wait()


def workers(folder: Path, timeout_s: float, uuid: str = "") -> Coordinator:
    return Coordinator(Locks(timeout_s, lambda: uuid), folder)


def test_killing_a_measuring_process_frees_the_gpu_lock(holder, tmp_path: Path) -> None:
    process = holder("gpu")
    threading.Timer(0.3, process.kill).start()

    with Locks(30, lambda: str(tmp_path)).measuring() as undisturbed:
        assert undisturbed


def test_killing_a_worker_lets_another_worker_tune_its_problem(holder, tmp_path: Path) -> None:
    process = holder("claim")
    threading.Timer(0.3, process.kill).start()

    with workers(tmp_path, 30).claim(LOOKUP.identity.digest, CountingHelper()) as claim:
        assert claim.result is None
        assert not claim.has_timed_out


def test_an_alarm_of_the_test_ends_its_wait_for_another_worker(holder, tmp_path: Path) -> None:
    """A TimeoutError is also the error of a lock that cannot be had. This one is not the lock's."""
    holder("claim")

    def end_test(number: int, frame: object) -> None:
        raise TimeoutError("the test took too long")

    handler_before = signal.signal(signal.SIGALRM, end_test)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(TimeoutError, match="the test took too long"):
            workers(tmp_path, 30).claim(LOOKUP.identity.digest, CountingHelper()).__enter__()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler_before)


def test_a_worker_that_waits_for_a_tuning_compiles_candidates(holder, tmp_path: Path) -> None:
    holder("claim")
    helper = CountingHelper()

    with workers(tmp_path, 0.1).claim(LOOKUP.identity.digest, helper):
        assert helper.help_count == 1


def test_two_workers_do_not_compile_the_same_kernel_at_once(tmp_path: Path) -> None:
    first, second = workers(tmp_path, 0.3), workers(tmp_path, 0.3)

    with first.compiling("a", wait=True) as is_mine, first.compiling("b", wait=False) as mine_too:
        assert is_mine
        assert mine_too
        with second.compiling("a", wait=False) as also:
            assert not also
        started = time.monotonic()
        with second.compiling("b", wait=True) as also:
            assert not also, "it goes on alone"
        assert time.monotonic() - started >= 0.25
    with second.compiling("a", wait=False) as is_mine:
        assert is_mine


def test_a_worker_compiles_no_kernel_that_another_worker_tuned(tmp_path: Path) -> None:
    helper = CountingHelper()

    with workers(tmp_path, 1).claim(LOOKUP.identity.digest, helper):
        Log(tmp_path, "another").append(LOOKUP.to_event())
    with workers(tmp_path, 1).claim(LOOKUP.identity.digest, helper):
        pass

    assert helper.help_count == 0


def test_measuring_locks_the_named_gpu_and_not_the_current_one(tmp_path: Path) -> None:
    worker = Locks(0.2, lambda: f"{tmp_path} current")
    other = Locks(0.2, lambda: f"{tmp_path} named")

    with worker.measuring(f"{tmp_path} named") as is_measuring, other.measuring() as is_measuring_too:
        assert is_measuring
        assert not is_measuring_too


@pytest.mark.parametrize("place", ["inside a tuning", "while holding the GPU"])
def test_a_worker_that_tunes_or_locks_the_gpu_waits_for_no_other(holder, tmp_path: Path, place: str) -> None:
    holder("claim")
    worker = workers(tmp_path, 30, uuid="mine")
    started = time.monotonic()

    if place == "inside a tuning":
        with worker.claim(LOOKUP.identity.digest, None) as claim:
            assert not claim.has_timed_out
    else:
        with worker.measuring(), worker.claim(LOOKUP.identity.digest, CountingHelper()) as claim:
            assert not claim.has_timed_out

    assert time.monotonic() - started < 5


def test_a_worker_gets_the_result_that_another_worker_logged(tmp_path: Path) -> None:
    with workers(tmp_path, 1).claim(LOOKUP.identity.digest, CountingHelper()):
        Log(tmp_path, "another").append(LOOKUP.to_event())

    with workers(tmp_path, 1).claim(LOOKUP.identity.digest, CountingHelper()) as other:
        assert other.result == LOOKUP.to_event()
    with workers(tmp_path, 1).claim("another", CountingHelper()) as other:
        assert other.result is None


@pytest.mark.parametrize(("world_size", "expected"), [("", False), ("1", False), ("8", True)])
def test_a_run_is_distributed_if_env_world_size_is_above_1(monkeypatch, world_size: str, expected: bool) -> None:
    monkeypatch.setenv("WORLD_SIZE", world_size)

    assert in_distributed_run() is expected


def test_distributed_processes_wait_for_no_tuning_or_gpu_lock(holder, tmp_path: Path, monkeypatch) -> None:
    holder("claim")
    holder("gpu")
    monkeypatch.setenv("WORLD_SIZE", "2")
    rank = workers(tmp_path, 30, uuid=str(tmp_path))

    with rank.claim(LOOKUP.identity.digest, CountingHelper()) as claim, rank.measuring() as undisturbed:
        assert claim.result is None
        assert undisturbed
