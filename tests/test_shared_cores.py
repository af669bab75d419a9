"""How the workers of a run share the cores for compiling."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_autotune import devices as device
from pytest_autotune.cache.model import Device
from pytest_autotune.run.together.shared_cores import SharedCores

CORES = 4
WORKERS = 2
HOLD = """
import sys, time
from pathlib import Path
from contextlib import ExitStack
from pytest_autotune.run.together.locks import locked_at_once
with ExitStack() as held:
    for number in range(int(sys.argv[2])):
        assert held.enter_context(locked_at_once(Path(sys.argv[1]) / f"core-{number}.lock"))
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def four_cores(monkeypatch) -> None:
    monkeypatch.setattr(device, "cpu", lambda: Device("CPU", "avx2", CORES))


@pytest.fixture
def hold(tmp_path: Path):
    """Let another process compile on some of the cores, until it is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(cores: int) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        command = [sys.executable, "-c", HOLD, str(tmp_path), str(cores)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "held\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def most_at_a_time(cores: SharedCores, threads: int = 8) -> int:
    """How many threads compile at the same time, when many want to."""
    now, most = 0, 0
    counter = threading.Lock()

    def compile_one() -> None:
        nonlocal now, most
        with cores.core():
            with counter:
                now += 1
                most = max(most, now)
            time.sleep(0.1)
            with counter:
                now -= 1

    started = [threading.Thread(target=compile_one) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(timeout=20)
    assert now == 0
    return most


def test_a_worker_compiles_on_the_cores_that_others_leave_idle(tmp_path: Path) -> None:
    assert most_at_a_time(SharedCores(tmp_path, WORKERS)) == CORES


def test_a_worker_keeps_its_share_when_others_compile_on_every_core(hold, tmp_path: Path) -> None:
    hold(CORES)

    assert most_at_a_time(SharedCores(tmp_path, WORKERS)) == CORES // WORKERS


def test_a_worker_takes_only_what_is_left_beside_another_one(hold, tmp_path: Path) -> None:
    hold(1)

    assert most_at_a_time(SharedCores(tmp_path, WORKERS)) == CORES - 1


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs SIGSTOP")
def test_a_worker_that_is_stopped_takes_nothing_from_the_share_of_others(hold, tmp_path: Path) -> None:
    hold(CORES).send_signal(signal.SIGSTOP)

    assert most_at_a_time(SharedCores(tmp_path, CORES), threads=2) == 1


def test_the_cores_of_a_worker_that_is_killed_are_free(hold, tmp_path: Path) -> None:
    process = hold(CORES)
    process.kill()
    process.wait()

    assert most_at_a_time(SharedCores(tmp_path, WORKERS)) == CORES


def test_more_workers_than_cores_still_compile_one_candidate_each(hold, tmp_path: Path) -> None:
    hold(CORES)

    assert most_at_a_time(SharedCores(tmp_path, 2 * CORES), threads=2) == 1


def test_a_core_is_free_again_when_another_thread_has_left_it(tmp_path: Path) -> None:
    cores = SharedCores(tmp_path, WORKERS)
    held = ExitStack()
    for _ in range(CORES):
        held.enter_context(cores.core())

    thread = threading.Thread(target=held.close)
    thread.start()
    thread.join()

    assert most_at_a_time(cores) == CORES


def test_cores_are_taken_at_once_and_what_helps_takes_only_free_ones(tmp_path: Path) -> None:
    first, second = SharedCores(tmp_path, WORKERS), SharedCores(tmp_path, WORKERS)
    taken = [first.take(CORES - 1), second.take(CORES, helping=True), second.take(CORES, helping=True)]

    assert list(map(len, taken)) == [CORES - 1, 1, 0]


def test_its_share_is_a_workers_own_where_none_is_free(hold, tmp_path: Path) -> None:
    hold(CORES)

    assert len(SharedCores(tmp_path, WORKERS).take(CORES)) == CORES // WORKERS
    assert len(SharedCores(tmp_path, WORKERS).take(1)) == 1


def test_cores_that_were_taken_are_free_again_one_by_one(tmp_path: Path) -> None:
    taken = SharedCores(tmp_path, WORKERS).take(CORES)
    other = SharedCores(tmp_path, WORKERS)
    taken.pop().close()
    taken.pop().close()

    assert len(other.take(CORES, helping=True)) == 2
