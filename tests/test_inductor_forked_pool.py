"""Inductor's compile workers, forked from the process that compiles."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("forks", allow_module_level=True)

from pytest_autotune.tuners.inductor import forked_worker
from pytest_autotune.tuners.inductor.compile_children import CompileChildren
from pytest_autotune.tuners.inductor.forked_pool import ForkedPool
from pytest_autotune.tuners.inductor.forked_worker import Worker
from pytest_autotune.tuners.inductor.patches import Patches
from tests.test_inductor import USER_KERNEL


class Failed(Exception):
    """The error that Inductor expects."""


class OwnPool:
    """Stands in for Inductor's own."""

    def __init__(self) -> None:
        self.is_shut = False

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(("own", job()))
        return future

    def shutdown(self) -> None:
        self.is_shut = True


def _worker_compile_triton(what: str, *args: Any) -> Any:
    if what == "process":
        return os.getpid()
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "die here":
        if os.getpid() != args[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return "alive"
    if what == "hang here":
        return "alive" if os.getpid() == args[0] else signal.pause()
    if what == "raise here" and os.getpid() == args[0]:
        return "done"
    if what == "raise here":
        raise args[1]
    if what == "slow":
        time.sleep(0.05)
        return "done"
    if what == "large":
        return bytes(args[0])
    raise ValueError(what)


def _get_ready() -> str:
    return "ready"


def _another_job() -> str:
    return "done"


@pytest.fixture
def make() -> Iterator[Callable[..., ForkedPool]]:
    pools: list[ForkedPool] = []

    def make(prepare: Callable[[Worker], object] = lambda worker: None, workers: int = 2) -> ForkedPool:
        pools.append(ForkedPool(workers, OwnPool, Failed, prepare))
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


def test_what_a_child_dies_of_inductors_own_pool_does_and_others_go_on(make: Callable[..., ForkedPool]) -> None:
    pool = make()

    assert result(pool.submit(_worker_compile_triton, "die here", os.getpid())) == ("own", "alive")
    assert result(pool.submit(_worker_compile_triton, "process")) != os.getpid()


def test_a_child_that_dies_with_nothing_to_do_costs_no_job(make: Callable[..., ForkedPool]) -> None:
    pool = make()

    for _ in range(10):
        process = result(pool.submit(_worker_compile_triton, "process"))
        if process != ("own", os.getpid()):
            os.kill(process, signal.SIGKILL)

    assert pool.is_alive


@pytest.mark.parametrize("why", ["they cannot begin", "they are ended"])
def test_without_children_inductors_own_pool_does_everything(make: Callable[..., ForkedPool], why: str) -> None:
    def prepare(worker: Worker) -> None:
        if why == "they cannot begin":
            raise ImportError

    pool = make(prepare)
    if why == "they are ended":
        pool.shutdown()

    assert result(pool.submit(_worker_compile_triton, "process")) == ("own", os.getpid())
    assert pool.compile(SimpleNamespace(filename="kernel.py", fn=len), "config") is None or why != "they are ended"


def test_children_that_hang_are_given_up(make: Callable[..., ForkedPool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_autotune.tuners.inductor.forked_pool.READY_S", 0.1)
    pool = make(lambda worker: signal.pause())

    assert result(pool.submit(_worker_compile_triton, "process")) == ("own", os.getpid())


@pytest.mark.parametrize("refused", ["os.fork", "threading.Thread.start", "socket.socketpair"])
def test_where_nothing_more_can_be_started_inductors_own_pool_does_everything(
    make: Callable[..., ForkedPool], monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def refuse(*args: Any) -> Any:
        raise RuntimeError("can't start new thread") if refused.startswith("threading") else BlockingIOError

    before = sorted(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as changed:
        changed.setattr(refused, refuse)
        pool = make()

    assert not pool.is_alive
    assert result(pool.submit(_worker_compile_triton, "process")) == ("own", os.getpid())
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("missing", [MemoryError(), OSError(errno.ENOSPC, "No space left on device")])
def test_what_a_child_has_no_memory_or_disk_for_inductors_own_pool_does_and_the_child_goes_on(
    make: Callable[..., ForkedPool], missing: Exception
) -> None:
    pool = make()

    asked = [pool.submit(_worker_compile_triton, "raise here", os.getpid(), missing) for _ in range(8)]

    assert [result(one) for one in asked] == [("own", "done")] * 8
    assert result(pool.submit(_worker_compile_triton, "process")) != os.getpid()


def test_a_child_that_hangs_is_ended_while_others_work_and_inductors_own_pool_does_its_job(
    make: Callable[..., ForkedPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked_worker, "HANGS_S", 0.5)
    pool = make()

    hanging = pool.submit(_worker_compile_triton, "hang here", os.getpid())
    while not hanging.done():
        assert result(pool.submit(_worker_compile_triton, "process")) != os.getpid()

    assert result(hanging) == ("own", "alive")


def test_jobs_and_results_may_be_larger_than_what_fits_into_a_socket(make: Callable[..., ForkedPool]) -> None:
    pool = make()

    asked = [pool.submit(_worker_compile_triton, "large", 3 << 20, bytes(3 << 20)) for _ in range(6)]

    assert [len(result(one)) for one in asked] == [3 << 20] * 6


def idle(pool: ForkedPool) -> list[int]:
    """The descriptors of a pool's connections, once all its children wait for a job."""
    give_up_at = time.monotonic() + 60
    while len(pool._children) < 2:
        assert time.monotonic() < give_up_at, "nobody came"
        time.sleep(0.001)
    time.sleep(0.02)  # the listener waits, too
    return [child.fileno() for child in pool._children]


@pytest.mark.parametrize("busy", [True, False])
def test_connections_that_a_test_closes_cost_no_job(make: Callable[..., ForkedPool], busy: bool) -> None:
    pool = make()
    connections = idle(pool)

    before = [pool.submit(_worker_compile_triton, "slow") for _ in range(4 if busy else 0)]
    for connection in connections:
        os.close(connection)
    after = [pool.submit(_worker_compile_triton, "process") for _ in range(4)]

    assert all(result(one) for one in (*before, *after))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_job_that_is_handed_over_by_half_stops_no_others(
    make: Callable[..., ForkedPool], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def send(child: Any, job: Any) -> None:
        os.write(child.fileno(), b"..")
        raise error

    pool = make()
    idle(pool)
    asked: list[Future[Any]] = []
    with monkeypatch.context() as changed:
        changed.setattr("pytest_autotune.tuners.inductor.forked_pool._Child.send", send)
        for _ in range(2):
            with suppress(KeyboardInterrupt):
                asked.append(pool.submit(_worker_compile_triton, "process"))
    asked.append(pool.submit(_worker_compile_triton, "process"))

    assert result(asked[-1]) == ("own", os.getpid())
    assert all(result(one) for one in asked)


def test_a_pool_that_has_ended_leaves_nothing_open(make: Callable[..., ForkedPool]) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    pool = make()
    assert result(pool.submit(_worker_compile_triton, "process")) != os.getpid()

    pool.shutdown()

    assert sorted(os.listdir("/proc/self/fd")) == before
    assert "pytest-autotune-inductor" not in [thread.name for thread in threading.enumerate()]


def test_a_machine_without_cores_to_spare_has_no_children(make: Callable[..., ForkedPool]) -> None:
    assert not make(workers=1).is_alive


class Kernel:
    """Stands in for Inductor's autotuner; each compilation is a line of a file."""

    def __init__(self, path: Path, configs: Sequence[str] = ()) -> None:
        self.path = path
        self.filename: str | None = str(path)
        self.fn = SimpleNamespace(src=f"def {path.name}(): pass")
        self.triton_meta: dict[str, Any] = {}
        self.configs = list(configs)
        self.compile_results: list[str] = []

    def _precompile_worker(self) -> None:
        for config in self.configs:
            self.compile_results.append(self._precompile_config(config))

    def _precompile_config(self, config: str) -> str:
        done = Path(f"{self.path}.{config}")
        if not done.exists():  # in Triton's cache
            meet(self.path.parent, config if config != "alone" else self.path.name)
            with open(f"{self.path}.log", "a") as log:
                log.write(f"{config} {os.getpid()}\n")
            done.touch()
        return config


def meet(folder: Path, config: str) -> None:
    """Two others begin only when both have begun: in two children at a time."""
    other = {"b": "c", "c": "b"}.get(config)
    if other is not None:
        (folder / config).touch()
        give_up_at = time.monotonic() + 20
        while not (folder / other).exists():
            assert time.monotonic() < give_up_at, "nobody came"
            time.sleep(0.001)


def compile_all(path: Path, configs: Sequence[str]) -> list[str]:
    kernel = Kernel(path, configs)
    kernel._precompile_worker()
    return kernel.compile_results


compile_all.__name__ = "_worker_compile_triton"
compile_all.__qualname__ = "compile_all"


def compile_template(path: Path) -> list[str]:
    kernel = Kernel(path, ["alone"])
    kernel.filename = None
    kernel._precompile_worker()
    return kernel.compile_results


compile_template.__name__ = "_worker_compile_triton"
compile_template.__qualname__ = "compile_template"


def compilations(path: Path) -> list[tuple[str, str]]:
    lines = Path(f"{path}.log").read_text().splitlines()
    return [(config, process) for config, process in (line.split() for line in lines)]


def test_one_kernels_configurations_are_compiled_by_several_children_each_once(
    make: Callable[..., ForkedPool], tmp_path: Path
) -> None:
    pool = make(partial(forked_worker.share_and_take_turns, Kernel))

    assert result(pool.submit(compile_all, tmp_path / "kernel", ["a", "b", "c"])) == ["a", "b", "c"]

    assert sorted(config for config, _ in compilations(tmp_path / "kernel")) == ["a", "b", "c"]
    assert len({process for _, process in compilations(tmp_path / "kernel")}) == 2


def test_templates_which_have_no_files_are_compiled_at_a_time(make: Callable[..., ForkedPool], tmp_path: Path) -> None:
    pool = make(partial(forked_worker.share_and_take_turns, Kernel))

    asked = [pool.submit(compile_template, tmp_path / name) for name in "bc"]

    assert [result(one) for one in asked] == [["alone"], ["alone"]]


SOURCE = """
from pathlib import Path
from tests.test_inductor_forked_pool import Kernel
kernel = Kernel(Path(__file__).parent / "kernel")
"""


def test_what_is_tried_is_compiled_once_however_often_it_is_asked_for(
    make: Callable[..., ForkedPool], tmp_path: Path
) -> None:
    pytest.importorskip("torch._inductor.async_compile")
    (tmp_path / "source.py").write_text(SOURCE)
    kernel = SimpleNamespace(filename=tmp_path / "source.py", fn=SimpleNamespace(__name__="kernel"))
    pool = make(partial(forked_worker.share_and_take_turns, Kernel), workers=6)

    asked = [pool.compile(kernel, config) for config in "ddeeff"]
    wait([one for one in asked if one is not None], timeout=60)

    assert sorted(config for config, _ in compilations(tmp_path / "kernel")) == ["d", "e", "f"]
    assert None not in asked


def test_children_compile_inductors_kernels_for_a_gpu_into_tritons_cache(
    make: Callable[..., ForkedPool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async_compile: Any = pytest.importorskip("torch._inductor.async_compile")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    pool = make(partial(forked_worker.prepare, ("cuda", 90, 32)))
    load = partial(async_compile._load_triton_kernel_from_source, "double_kernel_3", USER_KERNEL % (3, 0, 3))

    found, _ = result(pool.submit(async_compile._worker_compile_triton, load, {}, {}))
    config = import_module("triton").Config({"BLOCK": 512}, num_warps=2, num_stages=1)
    asked = pool.compile(found, config)
    assert asked is not None
    result(asked)

    assert [one.config.kwargs for one in found.compile_results] == [{"BLOCK": 128}, {"BLOCK": 256}]
    assert len(list((tmp_path / "triton").rglob("*.cubin"))) == 3


@pytest.mark.parametrize(
    ("dumping", "loaded", "start", "forks"),
    [
        (True, set(), "", True),
        (True, {"triton", "inductor.template"}, "", True),
        (True, {"inductor.config"}, "", False),  # they would compile what nobody needs
        (True, set(), "spawn", False),
        (False, set(), "", False),
    ],
)
def test_workers_are_forked_where_kernels_are_tuned(
    monkeypatch: pytest.MonkeyPatch, dumping: bool, loaded: set[str], start: str, forks: bool
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_WORKER_START", raising=False)
    if start:
        monkeypatch.setenv("TORCHINDUCTOR_WORKER_START", start)

    class SubprocPool:
        def __init__(self, nprocs: int, pickler: Any = None, kind: Any = None, quiesce: bool = False) -> None:
            pass

    module: Any = ModuleType("async_compile")
    module.SubprocPool, module.SubprocException = SubprocPool, Failed
    index = SimpleNamespace(tuners=lambda: loaded)
    run: Any = SimpleNamespace(policy=SimpleNamespace(dumping=dumping), indexes=[index] if loaded else [])
    patches = Patches(run, "inductor")

    CompileChildren().hook(module, run, patches)

    assert issubclass(module.SubprocPool, ForkedPool) is forks
    patches.undo()
    assert module.SubprocPool is SubprocPool


@pytest.mark.parametrize("missing", ["the same parameters", "SubprocException"])
def test_a_version_whose_pool_is_another_one_keeps_it_and_is_tuned_as_before(missing: str) -> None:
    class SubprocPool:
        def __init__(self, workers: int) -> None:
            pass

    module: Any = ModuleType("async_compile")
    module.SubprocPool = SubprocPool
    if missing != "SubprocException":
        module.SubprocException = Failed
    run: Any = SimpleNamespace(policy=SimpleNamespace(dumping=True), indexes=[])

    CompileChildren().hook(module, run, Patches(run, "inductor"))

    assert module.SubprocPool is SubprocPool


def test_inductors_ptxas_is_taken_with_the_first_kernel_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that is generated before tells which ptxas there was, and is to be the same in a load."""
    monkeypatch.setattr("pytest_autotune.tuners.inductor.compile_children.prepare", lambda target, worker: None)
    monkeypatch.setattr("pytest_autotune.tuners.inductor.compile_children.warm_up", lambda target: None)
    monkeypatch.delenv("TORCHINDUCTOR_WORKER_START", raising=False)

    class SubprocPool(OwnPool):
        def __init__(self, nprocs: int, pickler: Any = None, kind: Any = None, quiesce: bool = False) -> None:
            super().__init__()

    taken: list[int] = []
    module: Any = ModuleType("async_compile")
    module.SubprocPool, module.SubprocException = SubprocPool, Failed
    module._set_triton_ptxas_path = lambda: taken.append(1)
    run: Any = SimpleNamespace(policy=SimpleNamespace(dumping=True), indexes=[])
    part = CompileChildren()
    part.hook(module, run, Patches(run, "inductor"))

    pool = module.SubprocPool(2)
    pool.submit(_get_ready)
    before = list(taken)
    result(pool.submit(_worker_compile_triton, "process"))
    part.end()

    assert (before, taken) == ([], [1])
    assert not pool.is_alive
