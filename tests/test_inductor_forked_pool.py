"""Inductor's compile workers, forked from the process that compiles."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("forks", allow_module_level=True)

from pytest_autotune.tuners.inductor import compiling
from pytest_autotune.tuners.inductor.compiling import CompileWorkers, ForkedPool
from pytest_autotune.tuners.shared.patches import Patches
from tests.test_inductor import USER_KERNEL


class Failed(Exception):
    """The error that Inductor expects."""


class InductorsPool:
    """Stands in for Inductor's own pool."""

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(("own", function(*args)))
        return future

    def shutdown(self) -> None: ...


def prepare_nothing() -> None:
    pass


class FakeLibrary:
    """Stands in for Inductor, whose kernels the children compile.

    :param prepare: called in the leader of the children.
    """

    def __init__(self, prepare: Callable[[], object] = prepare_nothing) -> None:
        self._prepare = prepare

    def start_pool(self) -> InductorsPool:
        return InductorsPool()

    def build_error(self, text: str) -> Exception:
        return Failed(text)

    def before_compiling(self) -> None: ...

    def prepare_child(self) -> None:
        self._prepare()


def _worker_compile_triton(action: str, *args: Any) -> Any:
    if action == "process":
        return os.getpid()
    if action == "die here":
        if os.getpid() != args[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return "alive"
    if action == "hang here":
        if os.getpid() != args[0]:
            signal.pause()
        return "alive"
    raise ValueError(action)


def _get_ready() -> str:
    return "ready"


def _another_job() -> str:
    return "done"


MakePool = Callable[..., ForkedPool]


@pytest.fixture
def make_pool() -> Iterator[MakePool]:
    pools: list[ForkedPool] = []

    def make(prepare: Callable[[], object] = prepare_nothing, worker_count: int = 2) -> ForkedPool:
        pools.append(ForkedPool(worker_count, FakeLibrary(prepare)))
        return pools[-1]

    yield make
    for pool in pools:
        pool.shutdown()


def result(future: Future[Any]) -> Any:
    return future.result(timeout=60)


def test_a_child_compiles_a_kernel_and_its_errors_are_passed_on(
    make_pool: MakePool,
) -> None:
    pool = make_pool()

    assert result(pool.submit(_worker_compile_triton, "process")) != os.getpid()
    with pytest.raises(Failed, match="ValueError: wrong"):
        result(pool.submit(_worker_compile_triton, "wrong"))


def test_jobs_that_compile_nothing_go_to_inductors_own_pool(make_pool: MakePool) -> None:
    pool = make_pool()

    assert pool.submit(_get_ready).done()
    assert result(pool.submit(_another_job)) == ("own", "done")


def test_a_job_that_kills_its_child_goes_to_inductors_own_pool(make_pool: MakePool) -> None:
    pool = make_pool()

    jobs = [pool.submit(_worker_compile_triton, "die here", os.getpid()) for _ in range(4)]

    assert [result(job) for job in jobs] == [("own", "alive")] * 4


def test_a_compile_job_that_hangs_goes_to_inductors_own_pool(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "HANGS_S", 0.5)
    pool = make_pool()

    hanging = pool.submit(_worker_compile_triton, "hang here", os.getpid())
    assert result(pool.submit(_worker_compile_triton, "process")) != os.getpid()

    assert result(hanging) == ("own", "alive")


@pytest.mark.parametrize("reason", ["import error", "hanging import", "after the shutdown", "no fork", "one core"])
def test_if_no_child_can_be_forked_inductors_own_pool_compiles(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def prepare() -> None:
        if reason == "import error":
            raise ImportError
        if reason == "hanging import":
            signal.pause()

    def refuse() -> int:
        raise BlockingIOError

    monkeypatch.setattr(compiling, "HANGS_S", 0.5)
    with monkeypatch.context() as changed:
        if reason == "no fork":
            changed.setattr(os, "fork", refuse)
        worker_count = 2
        if reason == "one core":
            worker_count = 1
        pool = make_pool(prepare, worker_count)
    if reason == "after the shutdown":
        pool.shutdown()

    assert result(pool.submit(_worker_compile_triton, "process")) == ("own", os.getpid())


def test_shutting_down_the_pool_leaves_no_open_file_and_no_child(make_pool: MakePool) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    pool = make_pool()
    child = result(pool.submit(_worker_compile_triton, "process"))

    pool.shutdown()

    assert sorted(os.listdir("/proc/self/fd")) == before
    give_up_at = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and " Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < give_up_at, "the child lives"
        time.sleep(0.01)


def test_forked_children_compile_into_the_cache_of_triton(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async_compile: Any = pytest.importorskip("torch._inductor.async_compile")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    pool = make_pool(compiling.prepare_inductor)
    load = partial(async_compile._load_triton_kernel_from_source, "double_kernel_3", USER_KERNEL % (3, 0, 3))

    kernel, _ = result(pool.submit(async_compile._worker_compile_triton, load, {}, {}))

    assert [compiled.config.kwargs for compiled in kernel.compile_results] == [{"BLOCK": 128}, {"BLOCK": 256}]
    assert len(list((tmp_path / "triton").rglob("*.cubin"))) == 2


class SubprocPool(InductorsPool):
    def __init__(self, nprocs: int, pickler: Any = None, kind: Any = None, quiesce: bool = False) -> None: ...


class UnknownPool(InductorsPool):
    def __init__(self, workers: int) -> None: ...


def hooked(pool: type, dumping: bool = True, loaded: Sequence[str] = ()) -> tuple[CompileWorkers, Any, Patches]:
    module: Any = ModuleType("async_compile")
    module.SubprocPool, module.SubprocException = pool, Failed
    index = SimpleNamespace(list_tuners=lambda: loaded)
    run: Any = SimpleNamespace(policy=SimpleNamespace(is_dumping=dumping), indexes=[index] if loaded else [])
    part, patches = CompileWorkers(), Patches(run, "inductor")
    part.hook(module, run, patches)
    return part, module, patches


@pytest.mark.parametrize(
    ("dumping", "loaded", "start", "pool", "forks"),
    [
        (True, [], "", SubprocPool, True),
        (True, ["triton", "inductor.template"], "", SubprocPool, True),
        (True, ["inductor.config"], "", SubprocPool, False),  # workers would compile all candidates of a loaded choice
        (True, [], "spawn", SubprocPool, False),
        (False, [], "", SubprocPool, False),
        (True, [], "", UnknownPool, False),
    ],
)
def test_inductors_pool_is_replaced_only_if_kernels_are_tuned(
    monkeypatch: pytest.MonkeyPatch, dumping: bool, loaded: list[str], start: str, pool: type, forks: bool
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_WORKER_START", raising=False)
    if start:
        monkeypatch.setenv("TORCHINDUCTOR_WORKER_START", start)

    _, module, patches = hooked(pool, dumping, loaded)

    assert issubclass(module.SubprocPool, ForkedPool) is forks
    patches.undo()
    assert module.SubprocPool is pool


def test_after_the_run_inductor_uses_its_own_compile_pool_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = pytest.importorskip("torch._inductor.async_compile")
    monkeypatch.delenv("TORCHINDUCTOR_WORKER_START", raising=False)
    monkeypatch.setattr(compiling, "prepare_inductor", prepare_nothing)
    monkeypatch.setattr(module, "get_compile_threads", lambda: 2)
    run: Any = SimpleNamespace(policy=SimpleNamespace(is_dumping=True), indexes=[])
    part, patches = CompileWorkers(), Patches(run, "inductor")
    part.hook(module, run, patches)
    module.AsyncCompile.process_pool.cache_clear()

    pool = module.AsyncCompile.process_pool()
    was_alive = pool.is_alive
    patches.undo()
    part.end()
    part.end()

    assert was_alive
    assert not pool.is_alive
    assert pool not in module._pool_set
    assert module.AsyncCompile.process_pool.cache_info().currsize == 0
