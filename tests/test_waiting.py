"""How long a process waits for others."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from pathlib import Path

import pytest

from pytest_autotune.cache.model import Candidate, Device, Entry, Identity, Problem, Value
from pytest_autotune.run.lookup import Lookup, TunedEntry
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Log
from pytest_autotune.workers.locks import Locks, SharedFolder
from tests.sessions import CountingHelper


def problem(number: int = 0) -> Problem:
    return Problem("toy", "k", (Value("M", number),), Device("GPU", "arch", 1))


def worker(folder: Path, timeout_s: float) -> Coordinator:
    return Coordinator(Locks(timeout_s, lambda: "gpu", SharedFolder(folder)), folder / "run")


def lookup(number: int = 0) -> Lookup:
    entry = Entry(problem(number), choice=Candidate("a"))
    return Lookup(entry.identity, result=TunedEntry(entry))


@pytest.fixture
def elapsed():
    started = time.monotonic()
    return lambda: time.monotonic() - started


def test_a_hanging_worker_costs_a_tuning_only_one_timeout(tmp_path: Path, elapsed) -> None:
    other = worker(tmp_path, 1)
    with other.claim(Identity(problem(), ()).digest, CountingHelper()), ExitStack() as locks:
        locks.enter_context(other.measuring())
        for piece in range(20):
            locks.enter_context(other.compiling(str(piece), wait=True))
        waiting = worker(tmp_path, 0.4)

        with waiting.claim(Identity(problem(), ()).digest, CountingHelper()) as claim:
            assert claim.has_timed_out
            for piece in range(20):
                with waiting.compiling(str(piece), wait=True) as is_mine:
                    assert not is_mine
            for _ in range(20):
                with waiting.measuring() as undisturbed:
                    assert not undisturbed

    assert 0.35 < elapsed() < 2


def test_all_compile_threads_of_a_tuning_share_one_timeout(tmp_path: Path, elapsed) -> None:
    other, waiting = worker(tmp_path, 9), worker(tmp_path, 0.4)
    compile_one_after_the_other = ThreadPoolExecutor(1)

    def compile_piece(piece: int) -> bool:
        with waiting.compiling(str(piece), wait=True) as is_mine:
            return is_mine

    with other.claim(Identity(problem(1), ()).digest, CountingHelper()), ExitStack() as locks:
        for piece in range(20):
            locks.enter_context(other.compiling(str(piece), wait=True))
        with waiting.claim(Identity(problem(2), ()).digest, CountingHelper()), compile_one_after_the_other as pool:
            pieces = [pool.submit(copy_context().run, compile_piece, piece) for piece in range(20)]

    assert not any(piece.result() for piece in pieces)
    assert 0.35 < elapsed() < 2


def test_four_workers_stop_waiting_when_the_result_is_logged(tmp_path: Path) -> None:
    end_times: list[float] = []
    ready = threading.Barrier(5)

    class ReadyHelper:
        def help(self) -> None:
            ready.wait(10)

    def wait() -> None:
        with worker(tmp_path, 20).claim(Identity(problem(), ()).digest, ReadyHelper()) as claim:
            assert claim.result is not None
            end_times.append(time.monotonic())
            time.sleep(0.3)

    with worker(tmp_path, 20).claim(Identity(problem(), ()).digest, CountingHelper()):
        waiters = [threading.Thread(target=wait) for _ in range(4)]
        for thread in waiters:
            thread.start()
        ready.wait(10)
        Log(tmp_path / "run", "another").append(lookup().to_event())
        published = time.monotonic()
        for thread in waiters:
            thread.join(10)

    assert len(end_times) == 4
    assert max(end_times) - published < 0.25


def test_a_child_forked_in_a_tuning_does_not_wait_for_its_parent(tmp_path: Path, elapsed) -> None:
    parent = worker(tmp_path, 20)

    with parent.claim(Identity(problem(), ()).digest, CountingHelper()), parent.compiling("k", wait=True):
        child = os.fork()
        if child == 0:
            with (
                parent.claim(Identity(problem(), ()).digest, CountingHelper()) as claim,
                parent.measuring(),
                parent.compiling("k", wait=True),
            ):
                os._exit(int(claim.has_timed_out))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1

    assert elapsed() < 10


def test_a_child_forked_after_a_tuning_gets_results_of_workers(tmp_path: Path) -> None:
    parent, other = worker(tmp_path, 20), worker(tmp_path, 20)
    with parent.claim(Identity(problem(1), ()).digest, CountingHelper()):
        pass

    with other.claim(Identity(problem(), ()).digest, CountingHelper()):
        child = os.fork()
        if child == 0:
            with parent.claim(Identity(problem(), ()).digest, CountingHelper()) as taken:
                os._exit(int(taken.result is not None))
        time.sleep(0.1)
        Log(tmp_path / "run", "another").append(lookup().to_event())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.mark.parametrize("place", ["a plain file", "nothing that could be made"])
def test_a_worker_without_a_shared_folder_tunes_without_waiting(tmp_path: Path, place: str) -> None:
    (tmp_path / "place").write_text("")
    folder = tmp_path / "place" if place == "a plain file" else tmp_path / "place" / "run"
    alone = Coordinator(Locks(1, lambda: ""), folder)

    for number in range(2):
        with (
            alone.claim(Identity(problem(number), ()).digest, CountingHelper()) as claim,
            alone.compiling("k", True) as is_mine,
        ):
            assert claim.is_claimed
            assert is_mine
            assert claim.result is None
            assert not claim.has_timed_out

    assert len(alone.notes) == 1
