"""One measurement at a time on a processor: what a process has of the lock at each moment."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from pytest_autotune.workers.locks import Locks, SharedFolder, make_lock

SOON_S = 10.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The lock file of the GPU."""
    return tmp_path / f"gpu-{hashlib.sha256(b'gpu').hexdigest()[:16]}.lock"


@pytest.fixture
def in_thread() -> Iterator[Callable[[Callable[[], object]], threading.Thread]]:
    started: list[threading.Thread] = []

    def start(target: Callable[[], object]) -> threading.Thread:
        started.append(threading.Thread(target=target, daemon=True))
        started[-1].start()
        return started[-1]

    yield start
    for thread in started:
        thread.join(SOON_S)
        assert not thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def is_free(path: Path) -> bool:
    try:
        FileLock(path, timeout=0).acquire().lock.release()
    except Timeout:
        return False
    return True


def test_a_tests_caplog_has_no_records_of_the_plugins_locks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    with make_lock(tmp_path / "own.lock"):
        pass
    assert caplog.records == []

    with FileLock(tmp_path / "of_the_test.lock"):
        pass
    assert caplog.records != []


@pytest.fixture
def lock(tmp_path: Path) -> Locks:
    return Locks(SOON_S, lambda: "gpu", SharedFolder(tmp_path))


def test_two_threads_wait_until_another_process_frees_the_lock(lock: Locks, path: Path, in_thread) -> None:
    other_process = FileLock(path)
    other_process.acquire()
    entered: list[bool] = []

    def measure() -> None:
        with lock.measuring() as is_undisturbed:
            entered.append(is_undisturbed)

    in_thread(measure)
    until(lambda: lock.is_holding_gpu)
    in_thread(measure)
    time.sleep(0.1)

    assert entered == []
    other_process.release()
    until(lambda: entered == [True, True])
    until(lambda: not lock.is_holding_gpu)
    assert is_free(path)


@pytest.mark.parametrize("leaves_first", ["the first", "the second"])
def test_the_gpu_lock_is_released_by_the_last_measuring_thread(
    lock: Locks, path: Path, in_thread, leaves_first: str
) -> None:
    may_leave = {name: threading.Event() for name in ("the first", "the second")}
    inside: list[str] = []

    def measure(name: str) -> None:
        with lock.measuring() as is_undisturbed:
            assert is_undisturbed
            inside.append(name)
            may_leave[name].wait(SOON_S)
        inside.remove(name)

    for number, name in enumerate(may_leave, 1):
        in_thread(lambda name=name: measure(name))
        until(lambda number=number: len(inside) == number)

    may_leave.pop(leaves_first).set()
    until(lambda: len(inside) == 1)

    assert not is_free(path)
    may_leave.popitem()[1].set()
    until(lambda: not inside)
    assert is_free(path)


def test_measuring_after_a_lock_timeout_is_marked_unreliable(tmp_path: Path, path: Path) -> None:
    other_process = FileLock(path)
    other_process.acquire()
    lock = Locks(0.05, lambda: "gpu", SharedFolder(tmp_path))

    with lock.measuring() as is_undisturbed:
        other_process.release()
        with lock.measuring() as nested:
            assert not is_undisturbed
            assert not nested, "what is outside of it has begun without the lock"
    with lock.measuring() as is_undisturbed:
        assert is_undisturbed


def test_a_child_forked_while_measuring_inherits_no_gpu_lock(tmp_path: Path) -> None:
    lock = Locks(SOON_S, lambda: "gpu", SharedFolder(tmp_path))
    started = time.monotonic()

    with ExitStack() as measurement:
        assert measurement.enter_context(lock.measuring())
        child = os.fork()
        if child == 0:
            with lock.measuring() as undisturbed:
                measurement.close()
                os._exit(int(undisturbed))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not is_free(next(tmp_path.glob("gpu-*.lock"))), "the child has let go of its parent's lock"

    assert time.monotonic() - started < SOON_S / 2


def test_a_child_forked_after_measuring_locks_the_gpu_itself(tmp_path: Path) -> None:
    lock = Locks(SOON_S, lambda: "gpu", SharedFolder(tmp_path))
    with lock.measuring():
        pass

    child = os.fork()
    if child == 0:
        with lock.measuring() as undisturbed:
            os._exit(int(undisturbed and not is_free(next(tmp_path.glob("gpu-*.lock")))))

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_measuring_without_a_lock_folder_is_marked_unreliable(tmp_path: Path) -> None:
    lock = Locks(1, lambda: "gpu", SharedFolder(tmp_path / "not there"))

    for _ in range(2):
        with lock.measuring() as undisturbed:
            assert not undisturbed

    assert len(lock.notes) == 1
    assert str(tmp_path / "not there") in lock.notes[0]
