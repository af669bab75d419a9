"""One measurement at a time on a processor: what a process has of the lock at each moment."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_autotune.run.together.gpu_lock import GpuLock, ProcessLock, State
from pytest_autotune.run.together.locks import HeldLock
from pytest_autotune.run.together.waiting import Waits

SOON_S = 10.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gpu.lock"


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
        HeldLock(path).release()
    except BlockingIOError:
        return False
    return True


def test_a_lock_is_free_then_held_then_free(path: Path) -> None:
    lock = ProcessLock(path, Waits(1))
    assert (lock.state, is_free(path)) == (State.FREE, True)

    assert lock.enter()

    assert (lock.state, is_free(path)) == (State.HELD, False)
    lock.leave()
    assert (lock.state, is_free(path)) == (State.FREE, True)


def test_a_second_thread_does_not_enter_while_the_first_still_waits(path: Path, in_thread) -> None:
    other_process = HeldLock(path)
    lock, entered = ProcessLock(path, Waits(SOON_S)), []
    in_thread(lambda: entered.append(lock.enter()))
    until(lambda: lock.state is State.WAITING)

    in_thread(lambda: entered.append(lock.enter()))
    time.sleep(0.1)

    assert entered == []
    other_process.release()
    until(lambda: len(entered) == 2)
    assert entered == [True, True]
    assert lock.state is State.HELD
    lock.leave()
    lock.leave()


@pytest.mark.parametrize("leaves_first", ["the first", "the second"])
def test_the_lock_is_held_until_the_last_thread_leaves(path: Path, in_thread, leaves_first: str) -> None:
    lock = ProcessLock(path, Waits(1))
    may_leave = {name: threading.Event() for name in ("the first", "the second")}
    inside: list[str] = []

    def measure(name: str) -> None:
        assert lock.enter()
        inside.append(name)
        may_leave[name].wait(SOON_S)
        lock.leave()
        inside.remove(name)

    for number, name in enumerate(may_leave, 1):
        in_thread(lambda name=name: measure(name))
        until(lambda number=number: len(inside) == number)

    may_leave.pop(leaves_first).set()
    until(lambda: len(inside) == 1)

    assert (lock.state, is_free(path)) == (State.HELD, False)
    may_leave.popitem()[1].set()
    until(lambda: not inside)
    assert (lock.state, is_free(path)) == (State.FREE, True)


def test_after_a_time_out_a_nested_measurement_is_disturbed_too(path: Path) -> None:
    other_process = HeldLock(path)
    lock = ProcessLock(path, Waits(0.05))

    assert not lock.enter()
    assert lock.state is State.GIVEN_UP
    other_process.release()
    assert not lock.enter(), "what is outside of it has begun without the lock"

    lock.leave()
    lock.leave()
    assert lock.state is State.FREE
    assert lock.enter()
    lock.leave()


def test_a_thread_that_waits_for_another_ones_wait_gives_up_in_its_own_time(path: Path, in_thread) -> None:
    other_process = HeldLock(path)
    waits = Waits(SOON_S)
    lock, entered = ProcessLock(path, waits), []
    in_thread(lambda: entered.append(lock.enter()))
    until(lambda: lock.state is State.WAITING)

    with waits.one_tuning(0.05):
        assert not lock.enter()
        assert lock.state is State.WAITING
        lock.leave()

    assert entered == []
    other_process.release()
    until(lambda: entered == [True])
    assert lock.state is State.HELD
    lock.leave()
    assert is_free(path)


def test_who_is_interrupted_while_it_waits_leaves_the_lock_to_the_next_thread(path: Path, in_thread) -> None:
    other_process = HeldLock(path)

    class Interrupted(Waits):
        def acquire(self, *args: object, **kwargs: object) -> HeldLock | None:
            if not entered:
                entered.append(False)
                until(lambda: waiting.is_set())
                raise KeyboardInterrupt
            return super().acquire(*args, **kwargs)  # type: ignore[arg-type]

    entered: list[bool] = []
    waiting = threading.Event()
    lock = ProcessLock(path, Interrupted(SOON_S))

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            lock.enter()

    in_thread(interrupted)
    until(lambda: lock.state is State.WAITING)
    in_thread(lambda: entered.append(lock.enter()))
    waiting.set()
    other_process.release()

    until(lambda: entered == [False, True])
    assert lock.state is State.HELD
    lock.leave()
    assert is_free(path)


def test_a_child_that_is_forked_inside_neither_holds_the_gpu_nor_waits_for_it(tmp_path: Path) -> None:
    lock = GpuLock(SOON_S, lambda: "gpu", lambda: tmp_path)
    started = time.monotonic()

    with ExitStack() as held:
        assert held.enter_context(lock.measuring())
        child = os.fork()
        if child == 0:
            with lock.measuring() as undisturbed:
                held.close()
                os._exit(int(undisturbed))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not is_free(next(tmp_path.glob("gpu-*.lock"))), "the child has let go of its parent's lock"

    assert time.monotonic() - started < SOON_S / 2


def test_a_child_that_is_forked_while_nothing_is_measured_holds_the_gpu_like_any_process(tmp_path: Path) -> None:
    lock = GpuLock(SOON_S, lambda: "gpu", lambda: tmp_path)
    with lock.measuring():
        pass

    child = os.fork()
    if child == 0:
        with lock.measuring() as undisturbed:
            os._exit(int(undisturbed and not is_free(next(tmp_path.glob("gpu-*.lock")))))

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_where_no_lock_can_be_had_a_measurement_is_disturbed_and_the_user_is_told_once(tmp_path: Path) -> None:
    lock = GpuLock(1, lambda: "gpu", lambda: tmp_path / "not there")

    for _ in range(2):
        with lock.measuring() as undisturbed:
            assert not undisturbed

    assert len(lock.waits.notes) == 1
    assert str(tmp_path / "not there") in lock.waits.notes[0]
