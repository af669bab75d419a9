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
from pytest_autotune.tuners.shared.library import FunctionPatches
from tests.test_inductor import USER_KERNEL


class Failed(Exception):
    """The error that Inductor expects."""


class OwnPool:
    """Stands in for Inductor's own."""

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(("own", job()))
        return future

    def shutdown(self) -> None: ...


def _worker_compile_triton(what: str, *args: Any) -> Any:
    if what == "process":
        return os.getpid()
    if what == "die here":
        if os.getpid() != args[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return "alive"
    if what == "hang here":
        return "alive" if os.getpid() == args[0] else signal.pause()
    if what == "large":
        return bytes(args[0])
    raise ValueError(what)


def _get_ready() -> str:
    return "ready"


def _another_job() -> str:
    return "done"


def nothing() -> None:
    pass


@pytest.fixture
def make() -> Iterator[Callable[..., ForkedPool]]:
    pools: list[ForkedPool] = []

    def make(prepare: Callable[[], object] | None = nothing, workers: int = 2) -> ForkedPool:
        pools.append(ForkedPool(workers, OwnPool, Failed, prepare=prepare))
        return pools[-1]

    yield make
    for pool in pools:
        pool.shutdown()


def result(future: Future[Any]) -> Any:
    return future.result(timeout=60)


def test_kernels_are_compiled_in_children_and_errors_are_those_that_inductor_expects(
    make: Callable[..., ForkedPool],
) -> None:
    pool = make()

    assert result(pool.submit(_worker_compile_triton, "process")) != os.getpid()
    with pytest.raises(Failed, match="ValueError: wrong"):
        result(pool.submit(_worker_compile_triton, "wrong"))


def test_the_pool_is_ready_at_once_and_leaves_other_jobs_to_inductors_own(make: Callable[..., ForkedPool]) -> None:
    pool = make()

    assert pool.submit(_get_ready).done()
    assert result(pool.submit(_another_job)) == ("own", "done")


def test_what_children_die_of_inductors_own_pool_does(make: Callable[..., ForkedPool]) -> None:
    pool = make()

    asked = [pool.submit(_worker_compile_triton, "die here", os.getpid()) for _ in range(4)]

    assert [result(one) for one in asked] == [("own", "alive")] * 4


def test_a_child_that_hangs_is_ended_while_others_work_and_inductors_own_pool_does_its_job(
    make: Callable[..., ForkedPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "HANGS_S", 0.5)
    pool = make()

    hanging = pool.submit(_worker_compile_triton, "hang here", os.getpid())
    assert result(pool.submit(_worker_compile_triton, "process")) != os.getpid()

    assert result(hanging) == ("own", "alive")


@pytest.mark.parametrize("why", ["they cannot begin", "they hang", "they have ended", "none can be forked", "one core"])
def test_without_children_inductors_own_pool_does_everything(
    make: Callable[..., ForkedPool], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    def prepare() -> None:
        if why == "they cannot begin":
            raise ImportError
        if why == "they hang":
            signal.pause()

    def refuse() -> int:
        raise BlockingIOError

    monkeypatch.setattr(compiling, "HANGS_S", 0.5)
    with monkeypatch.context() as changed:
        if why == "none can be forked":
            changed.setattr(os, "fork", refuse)
        pool = make(prepare, workers=1 if why == "one core" else 2)
    if why == "they have ended":
        pool.shutdown()

    assert result(pool.submit(_worker_compile_triton, "process")) == ("own", os.getpid())


def test_a_pool_that_has_ended_leaves_nothing_open_and_no_child(make: Callable[..., ForkedPool]) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    pool = make()
    child = result(pool.submit(_worker_compile_triton, "process"))

    pool.shutdown()

    assert sorted(os.listdir("/proc/self/fd")) == before
    give_up_at = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and " Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < give_up_at, "it is still there"
        time.sleep(0.01)


def test_children_compile_inductors_kernels_for_a_gpu_into_tritons_cache(
    make: Callable[..., ForkedPool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async_compile: Any = pytest.importorskip("torch._inductor.async_compile")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    pool = make(None)
    load = partial(async_compile._load_triton_kernel_from_source, "double_kernel_3", USER_KERNEL % (3, 0, 3))

    found, _ = result(pool.submit(async_compile._worker_compile_triton, load, {}, {}))

    assert [one.config.kwargs for one in found.compile_results] == [{"BLOCK": 128}, {"BLOCK": 256}]
    assert len(list((tmp_path / "triton").rglob("*.cubin"))) == 2


class SubprocPool(OwnPool):
    def __init__(self, nprocs: int, pickler: Any = None, kind: Any = None, quiesce: bool = False) -> None: ...


class OtherPool(OwnPool):
    def __init__(self, workers: int) -> None: ...


def hooked(pool: type, dumping: bool = True, loaded: Sequence[str] = ()) -> tuple[CompileWorkers, Any, FunctionPatches]:
    module: Any = ModuleType("async_compile")
    module.SubprocPool, module.SubprocException, module.taken = pool, Failed, []
    module._set_triton_ptxas_path = lambda: module.taken.append(1)
    index = SimpleNamespace(list_tuners=lambda: loaded)
    run: Any = SimpleNamespace(policy=SimpleNamespace(is_dumping=dumping), indexes=[index] if loaded else [])
    part, patches = CompileWorkers(), FunctionPatches(run, "inductor")
    part.hook(module, run, patches)
    return part, module, patches


@pytest.mark.parametrize(
    ("dumping", "loaded", "start", "pool", "forks"),
    [
        (True, [], "", SubprocPool, True),
        (True, ["triton", "inductor.template"], "", SubprocPool, True),
        (True, ["inductor.config"], "", SubprocPool, False),  # they would compile what nobody needs
        (True, [], "spawn", SubprocPool, False),
        (False, [], "", SubprocPool, False),
        (True, [], "", OtherPool, False),  # of a version that is not known
    ],
)
def test_workers_are_forked_where_kernels_are_tuned(
    monkeypatch: pytest.MonkeyPatch, dumping: bool, loaded: list[str], start: str, pool: type, forks: bool
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_WORKER_START", raising=False)
    if start:
        monkeypatch.setenv("TORCHINDUCTOR_WORKER_START", start)

    _, module, patches = hooked(pool, dumping, loaded)

    assert issubclass(module.SubprocPool, ForkedPool) is forks
    patches.undo()
    assert module.SubprocPool is pool


def test_when_the_run_ends_inductor_makes_a_pool_of_its_own_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = pytest.importorskip("torch._inductor.async_compile")
    monkeypatch.delenv("TORCHINDUCTOR_WORKER_START", raising=False)
    monkeypatch.setattr(compiling, "_prepare", nothing)
    monkeypatch.setattr(module, "get_compile_threads", lambda: 2)
    run: Any = SimpleNamespace(policy=SimpleNamespace(is_dumping=True), indexes=[])
    part, patches = CompileWorkers(), FunctionPatches(run, "inductor")
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
