"""Jobs that forked children do for what they leave on disk."""

from __future__ import annotations

import _thread
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("forks", allow_module_level=True)

from pytest_autotune.run.together import children, forked_jobs, machine
from pytest_autotune.run.together.forked_jobs import Ended, ForkedJobs, thread_may_fork

WAIT_S = 20.0


def always(number: int) -> AbstractContextManager[bool]:
    return nullcontext(True)


def no_more_cores(most: int) -> list[ExitStack]:
    return []


@contextmanager
def forked(
    jobs: Mapping[int, Callable[[], object]],
    number: int = 2,
    take: Callable[[int], AbstractContextManager[bool]] = always,
    cores: Callable[[int], list[ExitStack]] = no_more_cores,
) -> Iterator[ForkedJobs]:
    with ForkedJobs(jobs, take, cores, most=3) as begun:
        begun.fork([ExitStack() for _ in range(number)])
        yield begun


def write(path: Path) -> None:
    new = path.with_suffix(".new")
    new.write_text(str(os.getpid()))
    new.rename(path)


def fail() -> None:
    raise ValueError


def is_there(path: Path) -> bool:
    until = time.monotonic() + WAIT_S
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.005)
    return path.exists()


def test_each_job_is_done_once_in_another_process_and_its_end_is_told(tmp_path: Path) -> None:
    jobs = {number: partial(write, tmp_path / str(number)) for number in range(20)}
    begun: list[int] = []
    with forked(jobs) as running:
        ended = dict(running.ended(begun.append))

    assert ended == dict.fromkeys(range(20), Ended.DONE)
    assert sorted(begun) == list(range(20))
    assert str(os.getpid()) not in {path.read_text() for path in tmp_path.iterdir()}


@pytest.mark.parametrize("error", [ValueError(), SystemExit(3), pytest.skip.Exception()])
def test_a_job_that_raises_has_failed_whatever_it_raises(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with forked(dict.fromkeys(range(4), fail)) as running:
        assert dict(running.ended()) == dict.fromkeys(range(4), Ended.FAILED)
    assert not running.died


def test_jobs_are_begun_in_their_order() -> None:
    begun: list[int] = []
    with forked(dict.fromkeys([7, 3, 5], fail), number=1) as running:
        assert dict(running.ended(begun.append)) == dict.fromkeys([3, 5, 7], Ended.FAILED)

    assert begun == [7, 3, 5]


def test_what_another_process_has_taken_is_not_done(tmp_path: Path) -> None:
    jobs = {number: partial(write, tmp_path / str(number)) for number in range(3)}
    with forked(jobs, take=lambda number: nullcontext(number != 1)) as running:
        ended = dict(running.ended())

    assert ended == {0: Ended.DONE, 1: Ended.ELSEWHERE, 2: Ended.DONE}
    assert not (tmp_path / "1").exists()


def test_a_job_that_ends_its_child_is_told_with_how_and_the_others_are_done(tmp_path: Path) -> None:
    jobs: dict[int, Callable[[], object]] = {n: partial(write, tmp_path / str(n)) for n in range(6)}
    jobs[0] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    jobs[1] = os.abort
    jobs[2] = lambda: os._exit(3)
    jobs[3] = lambda: os._exit(0)
    with forked(jobs) as running:
        ended = dict(running.ended())

    assert ended == {number: Ended.DIED if number < 4 else Ended.DONE for number in range(6)}
    assert running.died == {0: -signal.SIGKILL, 1: -signal.SIGABRT, 2: 3, 3: 0}
    assert not running.hung


@pytest.mark.parametrize("end", [os.abort, partial(os._exit, 0)])
def test_however_many_jobs_end_their_child_each_is_begun(end: Callable[[], object]) -> None:
    with forked(dict.fromkeys(range(10), end)) as running:
        ended = dict(running.ended())

    assert ended == dict.fromkeys(range(10), Ended.DIED)


def test_where_whoever_forks_the_children_has_died_what_is_left_is_lost_at_once() -> None:
    started = time.monotonic()
    with forked(dict.fromkeys(range(20), lambda: os.kill(os.getppid(), signal.SIGKILL) or time.sleep(60))) as running:
        ended = dict(running.ended())

    assert ended == dict.fromkeys(range(20), Ended.LOST)
    assert time.monotonic() - started < WAIT_S


@pytest.fixture
def hangs_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_jobs, "QUIET_S", 0.2)
    monkeypatch.setattr(forked_jobs, "LOOK_S", 0.05)
    monkeypatch.setattr(children, "END_S", 0.5)


def busy(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@pytest.mark.usefixtures("hangs_soon")
def test_a_job_that_waits_for_a_lock_that_a_thread_held_at_the_fork_is_lost_with_those_behind_it() -> None:
    lock = threading.Lock()
    with lock, forked({0: lock.acquire, 1: fail, 2: lock.acquire, 3: fail}) as running:
        ended = dict(running.ended())

    assert ended == {0: Ended.LOST, 1: Ended.FAILED, 2: Ended.LOST, 3: Ended.LOST}
    assert running.hung


@pytest.mark.usefixtures("hangs_soon")
def test_a_job_that_takes_long_hangs_only_where_nothing_works_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = [sys.executable, "-c", "import time\nwhile time.monotonic() < {}: pass"]
    compiler[-1] = compiler[-1].format(time.monotonic() + 0.7)
    with forked({0: partial(busy, 0.7), 1: partial(subprocess.run, compiler, check=True)}) as running:
        assert dict(running.ended()) == {0: Ended.DONE, 1: Ended.DONE}

    monkeypatch.setattr(forked_jobs, "JOB_S", 0.3)
    with forked({0: partial(busy, 60.0)}) as running:
        assert dict(running.ended()) == {0: Ended.LOST}
    assert running.hung


@pytest.mark.usefixtures("hangs_soon")
def test_children_that_hang_before_their_first_job_are_lost_and_do_not_live_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, begun = threading.Lock(), tmp_path / "begun"

    def leave_alone(keep: object) -> None:
        with begun.open("a") as file:
            file.write(f"{os.getpid()}\n")
        lock.acquire()

    monkeypatch.setattr(children, "_leave_alone_what_is_open", leave_alone)
    with lock, forked({0: fail}) as running:
        ended = dict(running.ended())

    assert ended == {0: Ended.LOST}
    assert running.hung
    processes = list(map(int, begun.read_text().split()))
    assert len(processes) == 2
    until = time.monotonic() + WAIT_S
    while any(map(machine.is_alive, processes)) and time.monotonic() < until:
        time.sleep(0.005)
    assert not any(map(machine.is_alive, processes))


def test_children_may_end_later_than_what_they_were_forked_for(tmp_path: Path) -> None:
    lives_on, own = tmp_path / "lives on", own_children()
    with ExitStack() as ending:
        with ForkedJobs({0: fail, 1: partial(time.sleep, 60)}, always, no_more_cores, 2, ending=ending) as running:
            running.fork([ExitStack(), ExitStack()])
            next(running.ended())
            stop = running._families[0].stop
            running._families[0].stop = lambda: (lives_on.touch(), stop())[1]  # type: ignore[method-assign]
        assert not lives_on.exists()
    assert lives_on.exists()
    assert own_children() == own


def test_cores_are_let_go_as_soon_as_nothing_is_left_to_do_on_them(tmp_path: Path) -> None:
    let_go: list[int] = []
    cores = [ExitStack() for _ in range(3)]
    for number, core in enumerate(cores):
        core.callback(let_go.append, number)
    jobs = {0: partial(is_there, tmp_path / "go"), 1: fail, 2: fail}
    with ForkedJobs(jobs, always, no_more_cores, most=3) as running:
        running.fork(cores)
        ended = running.ended()
        assert {next(ended)[0], next(ended)[0]} == {1, 2}
        write(tmp_path / "go")
        assert list(ended) == [(0, Ended.DONE)]
        assert len(let_go) >= 2

    assert sorted(let_go) == [0, 1, 2]


def test_more_children_come_on_cores_that_become_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_jobs, "LOOK_S", 0.05)
    asked: list[int] = []

    def two_more(most: int) -> list[ExitStack]:
        asked.append(most)
        return [ExitStack(), ExitStack()]

    jobs: dict[int, Callable[[], object]] = {0: partial(is_there, tmp_path / "go")}
    jobs |= {number: partial(write, tmp_path / f"{number}") for number in range(1, 6)}
    jobs[6] = partial(write, tmp_path / "go")
    with forked(jobs, number=1, cores=two_more) as running:
        assert set(dict(running.ended()).values()) == {Ended.DONE}

    assert asked == [2]  # of three at a time


def test_children_end_with_whatever_leaves_them_and_so_do_their_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def hang(number: int) -> None:
        tempfile.mkstemp()
        write(tmp_path / f"{number}")
        time.sleep(60)

    def interrupted() -> None:
        with forked({number: partial(hang, number) for number in range(2)}):
            assert is_there(tmp_path / "0")
            assert is_there(tmp_path / "1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    left = {int(path.read_text()) for path in tmp_path.iterdir() if path != temporary}
    until = time.monotonic() + WAIT_S
    while any(map(machine.is_alive, left)) and time.monotonic() < until:
        time.sleep(0.005)
    assert len(left) == 2
    assert not any(map(machine.is_alive, left))
    assert not list(temporary.iterdir())


def test_descriptors_are_closed_when_it_is_left() -> None:
    before = os.listdir("/proc/self/fd")
    with forked(dict.fromkeys(range(3), fail)) as running:
        list(running.ended())

    assert os.listdir("/proc/self/fd") == before


def test_where_nothing_can_be_forked_the_caller_learns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object, **kwargs: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr(children, "start", none)
    core, freed = ExitStack(), []
    core.callback(freed.append, True)
    with ForkedJobs({0: fail}, always, no_more_cores, most=1) as running:
        with pytest.raises(BlockingIOError):
            running.fork([core])
        assert freed


def test_jobs_for_which_a_pipe_has_no_room_are_lost_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = os.pipe

    def small_pipe() -> tuple[int, int]:
        ends = pipe()
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 4096)
        return ends

    monkeypatch.setattr(os, "pipe", small_pipe)
    with forked(dict.fromkeys(range(2000), fail)) as running:
        ended = dict(running.ended())

    assert list(map(ended.get, (0, 500, 1999))) == [Ended.FAILED, Ended.FAILED, Ended.LOST]


def test_no_child_is_left_to_whoever_takes_orphans() -> None:
    prctl = ctypes.CDLL(None).prctl
    before = own_children()
    prctl(children._PR_SET_CHILD_SUBREAPER, 1)
    try:
        with forked(dict.fromkeys(range(4), fail)) as running:
            list(running.ended())
        assert own_children() == before
    finally:
        prctl(children._PR_SET_CHILD_SUBREAPER, 0)


def own_children() -> set[str]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(stat.parent.name)
    return found


def test_a_thread_of_a_test_does_not_fork_and_one_of_autograd_does() -> None:
    found: dict[str, bool] = {}

    def ask(name: str) -> None:
        found[name] = thread_may_fork()

    ask("main")
    thread = threading.Thread(target=ask, args=("of a test",))
    thread.start()
    thread.join()
    _thread.start_new_thread(ask, ("foreign",))
    until = time.monotonic() + WAIT_S
    while "foreign" not in found and time.monotonic() < until:
        time.sleep(0.005)

    assert found == {"main": True, "of a test": False, "foreign": True}
