"""The Triton adapter with kernels that are really compiled, for a GPU that is not there.

Triton's own compiler makes machine code for the architecture; only loading and
launching it are stood in for.
"""

from __future__ import annotations

import gc
import shutil
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError
from triton.runtime import autotuner as autotuner_module
from triton.runtime import driver

from pytest_autotune.cache.model import Device, Entry, Value
from pytest_autotune.production.answering import can_compile
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.triton.adapter import Adapter
from pytest_autotune.tuners.triton.compiling import compile_and_load, compile_candidates, help_to_compile, load_ahead
from pytest_autotune.tuners.triton.identity import Call
from pytest_autotune.tuners.triton.internals.compiler import compiles_in_pools
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Log
from pytest_autotune.workers.locks import Locks
from tests.sessions import CountingHelper, a_session, sweeping, verifying

pytestmark = pytest.mark.usefixtures("forget_choices")
SHARED_MEMORY = 100_000


class AbsentGpu:
    """Stands in for Triton's driver of a GPU of compute capability 9.0."""

    def __init__(self) -> None:
        self.launches = 0
        self.loads = 0
        #: What a launch takes by the block size that its kernel was compiled with, in microseconds.
        self.times_us: dict[int, float] = {}
        #: Errors that a launch raises, by block size, and at which launch of it.
        self.fails: dict[int, tuple[int, BaseException]] = {}
        #: The error that the device raises after it has failed.
        self.device_error: Exception | None = None
        self.launched: list[int] = []
        #: What happened on the device, in order.
        self.seen: list[str] = []
        self.now_us = 0.0
        self.shared_memory = SHARED_MEMORY
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {
                "max_shared_mem": self.shared_memory,
                "multiprocessor_count": 132,
                "max_num_regs": 65536,
                "warpSize": 32,
                "sm_clock_rate": 1,
                "mem_clock_rate": 1,
                "mem_bus_width": 1,
            },
            load_binary=self._load,
            unload_module=lambda module: None,
        )

    def _load(self, *args: Any) -> tuple[Any, ...]:
        self.loads += 1
        return object(), 0, 32, 0, 1024

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        block = next((value for value in src.constants.values() if isinstance(value, int)), 0)

        def launch(*args: Any, **kwargs: Any) -> None:
            self.launches += 1
            self.launched.append(block)
            self.seen.append("launch")
            at, error = self.fails.get(block, (0, None))
            if error is not None and self.launched.count(block) == at:
                try:
                    raise LookupError(block)
                except LookupError as cause:
                    raise error from cause
            self.now_us += self.times_us.get(block, 1000.0)

        return launch

    def get_benchmarker(self) -> Any:
        return triton.testing.do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        return "buffer"

    def clear_cache(self, cache: Any) -> None:
        assert cache == "buffer"
        self.seen.append("flush")
        self.now_us += 60

    def get_device_interface(self) -> Any:
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                gpu.seen.append("event")
                self.at_us = gpu.now_us

            def elapsed_time(self, end: Any) -> float:
                return float(end.at_us - self.at_us) / 1000

        def sleep(cycles: int) -> None:
            gpu.seen.append("busy")
            gpu.now_us += cycles / 1980

        def synchronize() -> None:
            gpu.seen.append("wait")
            if gpu.device_error is not None:
                raise gpu.device_error

        return SimpleNamespace(Event=Event, _sleep=sleep, synchronize=synchronize)


@pytest.fixture
def absent_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[AbsentGpu]:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    # A test before this one may have made torch hold a real GPU.
    monkeypatch.setattr("pytest_autotune.devices.current_gpu", lambda: None)
    gpu = AbsentGpu()
    # reset_active would look for a GPU, and there is none.
    state = dict(vars(driver))
    driver.set_active(gpu)
    monkeypatch.setattr(triton.compiler.compiler, "max_shared_mem", lambda device: gpu.shared_memory)
    yield gpu
    gc.collect()  # kernels unload themselves through the driver
    vars(driver).update(state)


@pytest.fixture
def run(absent_gpu: AbsentGpu) -> Iterator[Any]:
    """Begins a run that loads the given entries; returns its lookups."""
    adapters: list[Adapter] = []

    def begin(
        entries: tuple[Entry, ...] | None = None, coordination: Coordinator | None = None, **policy: Any
    ) -> list[Lookup]:
        for adapter in adapters:
            adapter.unhook()
        session, lookups = a_session(entries, coordination, **policy)
        adapters.append(Adapter())
        adapters[-1].hook(autotuner_module, session)
        return lookups

    yield begin
    for adapter in adapters:
        adapter.unhook()


def product_kernel(configs: list[Any]) -> Any:
    @triton.autotune(configs=configs, key=["n"])
    @triton.jit
    def product(a, b, c, n, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        at = offsets[:, None] * BLOCK + offsets[None, :]
        total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        for _ in range(n):
            total += tl.dot(tl.load(a + at), tl.load(b + at))
        tl.store(c + at, total)

    return product


def config(block: int, stages: int = 2) -> Any:
    return triton.Config({"BLOCK": block}, num_warps=4, num_stages=stages)


def call(kernel: Any) -> None:
    a, b, c = (torch.zeros(128 * 128, dtype=torch.float16) for _ in range(3))
    kernel[(1,)](a, b, c, 64)


def test_a_hit_compiles_and_launches_only_the_choice(run, absent_gpu) -> None:
    recorded = run(is_dumping=True)
    call(product_kernel([config(16), config(32)]))
    assert recorded[0].problem.device == Device("cuda", "sm_90")
    lookups = run((recorded[0].entry,))
    absent_gpu.launches = absent_gpu.loads = 0
    kernel = product_kernel([config(16), config(32)])

    call(kernel)

    assert lookups[0].outcome == "hit"
    assert absent_gpu.launches == 1
    assert absent_gpu.loads == 1


class Refused:
    """A constant that Triton cannot compute the hash of a kernel with."""

    def __repr__(self) -> str:
        raise LookupError("no text")


def test_a_kernel_triton_cannot_compile_fails_at_every_launch(run) -> None:
    run()
    constant = tl.constexpr(Refused())

    @triton.jit
    def refused(x, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x + at, tl.load(x + at) + constant)

    with pytest.raises((LookupError, CompilationError)):  # the latter with Triton 3.4
        refused[(1,)](torch.zeros(16), BLOCK=16)


def own_refused_kernel() -> Any:
    def not_jitted(value):
        return value

    @triton.jit
    def helper(value):
        return not_jitted(value)

    @triton.autotune(configs=[config(16), config(32)], key=["n"])
    @triton.jit
    def kernel(x, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x + at, helper(tl.load(x + at)))

    return kernel, [kernel.fn, helper], {}


def refused_argument() -> Any:
    def not_jitted(value):
        return value

    @triton.jit
    def function(value):
        return not_jitted(value)

    @triton.autotune(configs=[config(16), config(32)], key=["n"])
    @triton.jit
    def kernel(x, n, BLOCK: tl.constexpr, FUNCTION: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x + at, FUNCTION(tl.load(x + at)))

    return kernel, [kernel.fn, function], {"FUNCTION": function}


def try_to_load(call: Call, session: Session) -> None:
    with suppress(Exception):
        compile_and_load(call, call.autotuner.configs[0])


ATTEMPTS = {
    "a search": lambda call, session: compile_candidates(call, call.autotuner.configs, session),
    "help": lambda call, session: help_to_compile(call, call.autotuner.configs, session),
    "a race": lambda call, session: load_ahead(call, call.autotuner.configs),
    "a choice": try_to_load,
    "a choice in production": lambda call, session: can_compile(call, call.autotuner.configs[0]),
}


@pytest.mark.skipif(not hasattr(triton, "constexpr_function"), reason="this Triton refuses no kernel for a function")
@pytest.mark.usefixtures("absent_gpu")
@pytest.mark.parametrize("make", [own_refused_kernel, refused_argument])
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_a_failed_compilation_in_advance_leaves_no_partial_hash(threads: int, make: Any, attempt: str) -> None:
    kernel, functions, arguments = make()
    kwargs = {"grid": (1,), "warmup": False, **arguments}
    call = Call(kernel, ("key",), (torch.zeros(64), 64), kwargs, [])

    ATTEMPTS[attempt](call, a_session(compile_threads=threads)[0])

    assert not [function.hash for function in functions if str(function.hash).startswith("recursion:")]
    with pytest.raises(RuntimeError, match="Unsupported function referenced"):
        kernel[(1,)](torch.zeros(64), 64, **arguments)


def test_a_kernel_that_triton_refuses_is_recorded_as_failed(run) -> None:
    """The second launch of a refused kernel passes, as it does without the plugin."""
    if not hasattr(triton, "constexpr_function"):
        pytest.skip("this Triton refuses no kernel for a function")
    recorded = run(is_dumping=True)
    kernel, [function, _], _ = own_refused_kernel()

    with pytest.raises(RuntimeError, match="Unsupported function referenced"):
        kernel[(1,)](torch.zeros(64), 64)

    assert function.hash.startswith("recursion:")
    [candidate] = recorded[0].entry.candidates
    name = "own_refused_kernel.<locals>.not_jitted"
    assert candidate.failed == f"RuntimeError: Unsupported function referenced: function {name}"


SETTINGS = {"scale": 3}


@pytest.mark.usefixtures("absent_gpu")
def test_a_waiting_worker_compiles_no_kernel_that_reads_a_global(compiled: Compiled, threads: int) -> None:
    def scale():
        return SETTINGS["scale"]

    constexpr_function: Any = getattr(triton, "constexpr_function", None) or tl.constexpr_function

    def made(factor: Any) -> Any:
        @triton.autotune(configs=[config(16), config(32)], key=["n"])
        @triton.jit
        def kernel(x, y, z, n, BLOCK: tl.constexpr):
            at = tl.arange(0, BLOCK)
            tl.store(x + at, tl.load(x + at) * factor())

        return kernel

    kernel = made(constexpr_function(scale))
    x = torch.zeros(64)
    call = Call(kernel, ("key",), (x, x, x, 64), {"grid": (1,), "warmup": False}, [])

    help_to_compile(call, kernel.configs, a_session(compile_threads=threads)[0])

    assert compiled.blocks == []


def test_an_entry_is_stale_if_its_choice_exceeds_shared_memory(run, absent_gpu) -> None:
    """The device has less shared memory than at tuning time.

    The choice no longer compiles, and the kernel is tuned again.
    """
    recorded = run(is_dumping=True)
    call(product_kernel([config(64), config(16)]))
    assert str(recorded[0].entry.choice).startswith("BLOCK=64")
    lookups = run((recorded[0].entry,))
    absent_gpu.shared_memory = 4096
    kernel = product_kernel([config(64), config(16)])

    call(kernel)

    assert kernel.best_config.kwargs["BLOCK"] == 16
    assert lookups[0].outcome == "stale"
    assert lookups[0].is_tuned
    assert lookups[0].reason.startswith("the choice does not compile: OutOfResources: out of resource: shared memory")


@pytest.fixture(params=["one after the other", "in threads"])
def threads(request: pytest.FixtureRequest) -> int:
    """How many threads compile candidates, in each of the ways that there are."""
    return 1 if request.param == "one after the other" else 2


@pytest.mark.parametrize("uses_disk_cache", [False, True], ids=["dump", "load with cache_results"])
def test_all_candidates_are_compiled_before_the_gpu_is_locked(
    run, monkeypatch, threads, tmp_path, uses_disk_cache: bool
) -> None:
    locks: list[bool] = []
    compiled = tmp_path / "compiled"
    measuring = Locks.measuring

    @contextmanager
    def held_while_measuring(self: Locks, on: str = "") -> Iterator[bool]:
        locks.append(True)
        with measuring(self, on) as undisturbed:
            yield undisturbed
        locks.clear()

    monkeypatch.setattr(Locks, "measuring", held_while_measuring)
    compile_once = triton.compiler.compiler.ASTSource.make_ir

    def make_ir(self: Any, *args: Any, **kwargs: Any) -> Any:
        with compiled.open("a") as file:  # it may be a thread that compiles
            file.write(f"{bool(locks)}\n")
        return compile_once(self, *args, **kwargs)

    monkeypatch.setattr(triton.compiler.compiler.ASTSource, "make_ir", make_ir)
    lookups = run((), is_dumping=not uses_disk_cache, compile_threads=threads)
    kernel = product_kernel([config(16), config(32), config(16, 3), config(32, 3)])
    kernel.cache_results = uses_disk_cache

    call(kernel)

    assert lookups[0].is_tuned
    assert compiled.read_text() == "False\n" * 4


class Compiled:
    """The candidates that were compiled and not found in Triton's cache, by their block size."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.clear()

    def clear(self) -> None:
        self._path.write_text("")

    def add(self, block: int) -> None:
        with self._path.open("a") as file:  # it may be a thread that compiles
            file.write(f"{block}\n")

    @property
    def blocks(self) -> list[int]:
        return sorted(map(int, self._path.read_text().split()))


@pytest.fixture
def compiled(monkeypatch, tmp_path) -> Compiled:
    """Record the blocks of the candidates that this process compiles."""
    compiled = Compiled(tmp_path / "blocks")
    compile_once = triton.compiler.compiler.ASTSource.make_ir

    def make_ir(self: Any, *args: Any, **kwargs: Any) -> Any:
        compiled.add(self.constants[(4,)])
        return compile_once(self, *args, **kwargs)

    monkeypatch.setattr(triton.compiler.compiler.ASTSource, "make_ir", make_ir)
    return compiled


CONFIGS = [16, 32, 64]


class Holder(threading.Thread):
    """Another worker of the run, which has claimed whatever the tests tune first and holds it for a while."""

    def __init__(self, folder: Path, lookup: Lookup) -> None:
        super().__init__(daemon=True)
        self.worker = Coordinator(Locks(20, lambda: ""), folder)
        self.folder = folder
        self.lookup = lookup
        self.claimed = threading.Event()
        self.may_end = threading.Event()

    def hold(self) -> None:
        self.start()
        assert self.claimed.wait(10)

    def run(self) -> None:
        with self.worker.claim(self.lookup.identity.digest, CountingHelper()):
            self.claimed.set()
            self.may_end.wait(30)
            Log(self.folder, "another").append(self.lookup.to_event())


@pytest.mark.skipif(not compiles_in_pools(), reason="this Triton compiles in no threads")
def test_a_worker_waiting_for_a_choice_compiles_its_candidates(run, compiled, tmp_path, threads) -> None:
    """A worker waits for another worker's tuning and compiles its candidates meanwhile. It then shares the choice."""
    tuned = run(is_dumping=True)
    call(product_kernel([config(block) for block in CONFIGS]))
    other = Holder(tmp_path / "claims", tuned[0])
    other.hold()
    shutil.rmtree(tmp_path / "triton")
    compiled.clear()
    worker = Coordinator(Locks(20), tmp_path / "claims")
    lookups = run(is_dumping=True, coordination=worker, compile_threads=threads)
    kernel = product_kernel([config(block) for block in CONFIGS])

    def end_when_all_are_compiled() -> None:
        until = time.monotonic() + 10
        while len(compiled.blocks) < len(CONFIGS) and time.monotonic() < until:
            time.sleep(0.01)
        other.may_end.set()

    threading.Thread(target=end_when_all_are_compiled).start()

    call(kernel)

    assert compiled.blocks == CONFIGS
    assert lookups[0].is_shared
    assert not lookups[0].is_tuned


def hooked_kernel(blocks: list[int], **options: Any) -> Any:
    """Adds in place, so that a launch too many or a hook too few shows."""

    @triton.autotune(configs=[config(block) for block in blocks], key=["n"], **options)
    @triton.jit
    def add(x, y, n, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(y + offsets, tl.load(y + offsets) + tl.load(x + offsets))

    return add


def test_a_tuning_chooses_the_fastest_and_records_all_times(run, absent_gpu) -> None:
    """The entry has all times and the spread. Triton's own fields get the times of the race, too."""
    absent_gpu.times_us = {16: 5.2, 32: 4.1, 64: 9.0, 128: 900.0}
    lookups = run(is_dumping=True)
    kernel = hooked_kernel([16, 32, 64, 128])

    kernel[(1,)](torch.zeros(128), torch.zeros(128), 3)

    entry = lookups[0].entry
    assert kernel.best_config.kwargs["BLOCK"] == 32
    assert [candidate.time_us for candidate in entry.candidates] == pytest.approx([5.2, 4.1, 9.0, 900.0], rel=1e-3)
    assert entry.choice.label.startswith("+-")
    assert absent_gpu.launched.count(128) == 2
    assert absent_gpu.launched.count(32) < 60
    assert kernel.configs_timings[kernel.best_config] == pytest.approx([0.0041] * 3, rel=1e-3)
    assert kernel.bench_time > 0


def test_each_timed_launch_follows_an_l2_flush_and_a_busy_wait(run, absent_gpu) -> None:
    """The L2 cache is flushed before each timed launch. The GPU is busy while the host prepares the launch."""
    absent_gpu.times_us = {16: 5.0, 32: 4.0}
    run(is_dumping=True)

    hooked_kernel([16, 32])[(1,)](torch.zeros(128), torch.zeros(128), 3)

    raced = absent_gpu.seen[:-1]  # the launch of the test's own comes last
    assert "".join(f"{step} " for step in raced).count("flush busy event launch event") > 4
    assert raced.count("wait") < raced.count("launch") / 3


def test_measured_times_exclude_hooks_and_the_reset_of_tensors(run, absent_gpu) -> None:
    """Hooks, reset_to_zero and restore_value take effect before each launch of a race. Their time is not measured."""
    absent_gpu.times_us = {16: 5.0, 32: 4.0}
    seen = absent_gpu.seen
    zeroed, restored = torch.full((128,), 5.0), torch.full((128,), 7.0)
    kernel = hooked_kernel([16, 32], reset_to_zero=["x"], restore_value=["y"])
    before, after = kernel.pre_hook, kernel.post_hook

    def pre_hook(arguments: Any, reset_only: bool = False) -> None:
        seen.append("before" if not reset_only else "reset only")
        before(arguments, reset_only)
        absent_gpu.now_us += 10_000

    def post_hook(arguments: Any, exception: Any) -> None:
        seen.append("after")
        after(arguments, exception)
        absent_gpu.now_us += 10_000

    kernel.pre_hook, kernel.post_hook = pre_hook, post_hook
    for candidate in kernel.configs:
        candidate.pre_hook = lambda arguments: seen.append(f"pre_hook {arguments['BLOCK']}")
    run(is_dumping=True)

    kernel[(1,)](zeroed, restored, 3)

    assert seen.count("before") == seen.count("after") == absent_gpu.launches - 1
    assert seen.count("reset only") == 1
    timed = next(place for place, step in enumerate(seen) if step == "busy")
    assert [step.split()[0] for step in seen[timed - 3 : timed]] == ["flush", "pre_hook", "before"]
    assert torch.equal(zeroed, torch.zeros(128))
    assert torch.equal(restored, torch.full((128,), 7.0))
    assert kernel.configs_timings[kernel.best_config][0] < 0.01


@pytest.mark.parametrize("at", [1, 6])
def test_if_a_candidate_lacks_resources_the_others_are_measured(run, absent_gpu, at) -> None:
    """The candidate is recorded as failed, and the post_hook gets the error. The race goes on with the others."""
    absent_gpu.times_us = {16: 4.0, 32: 4.1}
    absent_gpu.fails = {16: (at, triton.runtime.errors.OutOfResources(9, 1, "registers"))}
    errors: list[Any] = []
    kernel = hooked_kernel([16, 32])
    kernel.post_hook = lambda arguments, exception: errors.append(exception)
    lookups = run(is_dumping=True)

    kernel[(1,)](torch.zeros(128), torch.zeros(128), 3)

    failed, fastest = lookups[0].entry.candidates
    assert failed.failed
    assert fastest.time_us == pytest.approx(4.1, rel=1e-3)
    assert [type(error).__name__ for error in errors if error is not None] == ["OutOfResources"]
    assert absent_gpu.launched.count(16) == at


@pytest.mark.parametrize("error", [RuntimeError("Triton Error [CUDA]: an illegal memory access"), KeyboardInterrupt()])
def test_a_device_error_or_ctrl_c_stops_a_tuning_and_is_raised(run, absent_gpu, error) -> None:
    """An illegal memory access or Ctrl-C ends the tuning, and nothing is recorded."""
    absent_gpu.fails = {32: (2, error)}
    lookups = run(is_dumping=True)

    with pytest.raises(type(error)):
        hooked_kernel([16, 32])[(1,)](torch.zeros(128), torch.zeros(128), 3)

    assert not [lookup for lookup in lookups if lookup.is_tuned]


def test_a_gpu_that_breaks_while_tuning_raises_its_error(run, absent_gpu) -> None:
    """A candidate fails, and the device no longer works afterwards. The test gets the device's error."""
    absent_gpu.fails = {32: (2, triton.runtime.errors.OutOfResources(9, 1, "registers"))}
    kernel = hooked_kernel([16, 32])
    device_error = RuntimeError("CUDA error: an illegal memory access was encountered")

    def break_device(arguments: Any, exception: Any) -> None:
        if exception is not None:
            absent_gpu.device_error = device_error

    kernel.post_hook = break_device
    lookups = run(is_dumping=True)

    with pytest.raises(RuntimeError, match="an illegal memory access") as caught:
        kernel[(1,)](torch.zeros(128), torch.zeros(128), 3)

    assert caught.value is device_error
    assert not [lookup for lookup in lookups if lookup.is_tuned]


@pytest.mark.parametrize("origin", ["argument", "attribute", "package"])
def test_a_user_defined_benchmark_replaces_that_of_the_plugin(run, absent_gpu, monkeypatch, origin) -> None:
    """A benchmark from the kernel's argument, its attribute or its backend replaces the race.

    Its times are recorded unchanged.
    """
    times = iter([1.00, 1.02, 0.995])
    measured: list[float] = []

    def do_bench(kernel_call: Any, quantiles: Any) -> list[float]:
        measured.append(next(times))
        return [measured[-1]] * 3

    if origin == "package":
        monkeypatch.setattr(absent_gpu, "get_benchmarker", lambda: do_bench)
    kernel = hooked_kernel([16, 32, 64], **({"do_bench": do_bench} if origin == "argument" else {}))
    if origin == "attribute":
        kernel.do_bench = do_bench
    lookups = run(is_dumping=True)

    kernel[(1,)](torch.zeros(128), torch.zeros(128), 3)

    assert [candidate.time_us for candidate in lookups[0].entry.candidates] == [1000.0, 1020.0, 995.0]
    assert kernel.best_config.kwargs["BLOCK"] == 64
    assert absent_gpu.launches == 1


def test_a_candidate_that_does_not_compile_is_recorded_as_failed(run) -> None:
    """The candidate is recorded as failed, and the other candidate is chosen."""
    lookups = run(is_dumping=True, compile_threads=4)

    @triton.autotune(configs=[config(16), config(32)], key=["n"])
    @triton.jit
    def picky(x, n, BLOCK: tl.constexpr):
        tl.static_assert(BLOCK == 32)
        tl.store(x + tl.arange(0, BLOCK), 1.0)

    picky[(1,)](torch.zeros(128), 3)

    failed, compiled = lookups[0].entry.candidates
    assert failed.failed
    assert compiled.time_us == 1000.0
    assert picky.best_config.kwargs["BLOCK"] == 32


@pytest.mark.skipif(not compiles_in_pools(), reason="this Triton compiles in no threads")
@pytest.mark.usefixtures("absent_gpu")
def test_a_candidate_that_fails_in_a_compile_thread_is_retried(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate fails in a compile thread only.

    The main thread compiles it again, and no candidate is recorded as failed.
    """
    lookups = run(is_dumping=True, compile_threads=2)
    source_class = triton.compiler.compiler.ASTSource
    make_ir, failed = source_class.make_ir, []

    def fails_once_in_a_thread(self: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread() and not failed:
            failed.append(self)
            raise SystemError("AST constructor recursion depth mismatch (before=36, after=31)")
        return make_ir(self, *args, **kwargs)

    monkeypatch.setattr(source_class, "make_ir", fails_once_in_a_thread)

    call(product_kernel([config(16), config(32)]))

    assert failed
    assert [lookup.is_tuned for lookup in lookups] == [True]
    assert all(candidate.time_us is not None for candidate in lookups[0].entry.candidates)


def test_a_sweep_skips_a_candidate_that_exceeds_shared_memory(run, absent_gpu) -> None:
    """The candidate needs too much shared memory and is recorded as failed. The sweep runs the next candidate."""
    blocks = set()
    for part in (1, 2):
        lookups = run(modes=(sweeping(part, 2),))
        absent_gpu.shared_memory = 4096
        call(product_kernel([config(16), config(64)]))
        [lookup] = lookups
        assert lookup.entry.choice.params[0] == Value("BLOCK", 16)
        blocks.update(candidate.params[0].value for candidate in lookup.entry.candidates if candidate.failed)

    assert blocks == {64}
    assert set(absent_gpu.launched) == {16}


def hit(run: Any, kernel: Any, entry: Entry) -> tuple[Any, torch.Tensor]:
    """Race the loaded choice of a call, and return the verdict and the tensor that the kernel writes."""
    mode = verifying()
    lookups = run((entry,), modes=(mode,))
    y = torch.full((128,), 7.0)
    kernel[(1,)](torch.zeros(128), y, 3)
    [lookup] = lookups
    assert (lookup.outcome, lookup.is_tuned) == ("hit", False)
    [verdict] = mode.verdicts
    return verdict, y


def test_verify_measures_a_loaded_choice_again_and_still_uses_it(run, absent_gpu) -> None:
    """The verdict says whether another candidate is faster. The call uses the loaded choice in every case."""
    absent_gpu.times_us = {16: 10.0, 32: 20.0, 64: 40.0}
    lookups = run(is_dumping=True)
    hooked_kernel([16, 32, 64])[(1,)](torch.zeros(128), torch.zeros(128), 3)
    entry = lookups[0].entry
    assert entry.choice.params[0] == Value("BLOCK", 16)

    kernel = hooked_kernel([16, 32, 64], restore_value=["y"])
    unchanged, y = hit(run, kernel, entry)
    assert unchanged.raced == 3
    assert not unchanged.is_slower
    assert torch.equal(y, torch.full((128,), 7.0))

    absent_gpu.times_us = {16: 10.0, 32: 9.0, 64: 40.0}
    kernel = hooked_kernel([16, 32, 64])
    slower, _ = hit(run, kernel, entry)
    assert "1.11 times as long as BLOCK=32" in str(slower)
    assert next(iter(kernel.cache.values())).kwargs["BLOCK"] == 16
    assert absent_gpu.launched[-1] == 16

    at = absent_gpu.launched.count(32) + 3
    absent_gpu.fails = {32: (at, triton.runtime.errors.OutOfResources(9, 1, "registers"))}
    without, _ = hit(run, hooked_kernel([16, 32, 64]), entry)
    assert not without.is_slower


@pytest.mark.timeout(60)  # it waited for ever
@pytest.mark.parametrize("is_tuned", [False, True])
def test_a_pre_hook_may_launch_another_kernel_while_tuning(run, absent_gpu, threads, is_tuned: bool) -> None:
    inner = hooked_kernel([16, 32])
    kernel = hooked_kernel([16, 32, 64, 128])
    for candidate in kernel.configs:
        candidate.pre_hook = lambda named: (
            inner[(1,)](named["x"], named["y"], named["BLOCK"])
            if is_tuned
            else inner.fn[(1,)](named["x"], named["y"], 1, BLOCK=named["BLOCK"])
        )
    lookups = run(is_dumping=True, compile_threads=threads)

    kernel[(1,)](torch.zeros(128), torch.zeros(128), 3)

    assert [lookup.is_tuned for lookup in lookups] == [True] * (5 if is_tuned else 1)


class Runnable:
    """A Python function that an autotuner is made around, and that launches what it likes."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


def test_a_tuned_python_function_is_called_only_to_measure_it(run, absent_gpu, threads) -> None:
    """A tuned plain Python function is called only to measure it. A hit calls the function once."""
    calls: list[Any] = []
    add = hooked_kernel([16]).fn

    def both(x: Any, y: Any, n: Any, BLOCK: int, **options: Any) -> Any:
        calls.append((BLOCK, options.get("warmup")))
        add[(1,)](x, y, n, BLOCK=BLOCK)
        return x

    def made() -> Any:
        bench = lambda kernel_call, quantiles: [float(kernel_call() is None)] * 3  # noqa: E731
        configs = [config(block) for block in (16, 32, 64, 128)]
        names = ["x", "y", "n", "BLOCK"]
        return autotuner_module.Autotuner(Runnable(both), names, configs, ["n"], None, None, do_bench=bench)

    lookups = run(is_dumping=True, compile_threads=threads)
    made().run(torch.zeros(128), torch.zeros(128), 3)
    assert calls == [(block, None) for block in (16, 32, 64, 128, 16)]

    calls.clear()
    made_again, entry = made(), lookups[0].entry
    loaded = run((entry,), compile_threads=threads)
    made_again.run(torch.zeros(128), torch.zeros(128), 3)
    assert calls == [(16, None)]
    assert loaded[0].outcome == "hit"


def test_a_lambda_as_kernel_is_uncacheable_as_it_has_no_name(run, absent_gpu) -> None:
    lookups = run(is_dumping=True)
    configs = [config(16), config(32)]

    autotuner_module.Autotuner(Runnable(lambda **given: None), [], configs, [], None, None).run()

    assert [lookup.reason for lookup in lookups] == ["a lambda has no name"]


def test_verify_does_not_measure_a_kernel_with_its_own_benchmark(run, absent_gpu) -> None:
    absent_gpu.times_us = {16: 10.0, 32: 20.0}
    lookups = run(is_dumping=True)
    hooked_kernel([16, 32])[(1,)](torch.zeros(128), torch.zeros(128), 3)

    verdict, _ = hit(run, hooked_kernel([16, 32], do_bench=lambda call, quantiles: [1.0, 1.0, 1.0]), lookups[0].entry)

    assert verdict.not_raced == "the kernel has its own benchmark"


def test_if_triton_lacks_autotuner_bench_a_hit_works_with_a_note(run, absent_gpu, monkeypatch) -> None:
    absent_gpu.times_us = {16: 10.0, 32: 20.0}
    lookups = run(is_dumping=True)
    hooked_kernel([16, 32])[(1,)](torch.zeros(128), torch.zeros(128), 3)
    entry = lookups[0].entry
    version = triton.__version__.partition("+")[0]
    reason = f"triton {version} has no Autotuner._bench; pytest-autotune may have to be upgraded"

    monkeypatch.delattr(autotuner_module.Autotuner, "_bench")
    verdict, _ = hit(run, hooked_kernel([16, 32]), entry)
    session, _ = a_session((entry,))
    adapter = Adapter()
    adapter.hook(autotuner_module, session)
    adapter.unhook()

    assert verdict.not_raced == reason
    assert session.notes == [
        f"triton: candidates are timed one after the other, so new choices are less exact: "
        f"{reason} (upgrade the plugin)"
    ]
    assert session.unhooked_tuners == {}, "hits need no race, so no gate fails"


def test_a_kernel_is_uncacheable_if_a_listener_sees_its_tuning(run, absent_gpu, monkeypatch) -> None:
    """A listener in Triton's knobs.autotuning makes the lookup uncacheable."""
    seen: list[Any] = []
    lookups = run(is_dumping=True)
    hooked_kernel([16, 32])[(1,)](torch.zeros(128), torch.zeros(128), 3)
    monkeypatch.setattr(triton.knobs.autotuning, "listener", lambda **arguments: seen.append(arguments), raising=False)

    loaded = run((lookups[0].entry,))
    hooked_kernel([16, 32])[(1,)](torch.zeros(128), torch.zeros(128), 3)

    assert [lookup.outcome.value for lookup in loaded] == ["uncacheable"]
    assert loaded[0].reason == "knobs.autotuning.listener observes each search, so the search cannot be skipped"


def copy_kernel(configs: list[Any]) -> Any:
    @triton.autotune(configs=configs, key=["n"])
    @triton.jit
    def copy(a, b, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(b + offsets, tl.load(a + offsets, mask=offsets < n), mask=offsets < n)

    return copy


def test_of_candidates_with_equal_code_only_one_is_measured(run, absent_gpu) -> None:
    """A kernel without a loop has no stages. Chance would decide which of two equal candidates is faster."""
    configs = [config(32), config(64), config(64, 3), config(64, 4)]
    configs.append(triton.Config({"BLOCK": 64}, num_warps=4, num_stages=3, pre_hook=lambda named: None))
    given_twice = configs[1]
    absent_gpu.times_us = {32: 9.0, 64: 8.0}
    lookups = run(is_dumping=True)
    a, b = torch.zeros(256), torch.zeros(256)

    copy_kernel([*configs, given_twice])[(4,)](a, b, 256)

    _, chosen, *same, other_hook = lookups[0].entry.candidates
    assert str(lookups[0].entry.choice) == "BLOCK=64, num_warps=4, num_ctas=1, num_stages=2"
    assert [candidate.label for candidate in same] == [f"the same code as with {configs[1]}"] * 2
    assert {candidate.time_us for candidate in same} == {chosen.time_us}
    assert chosen.label.endswith("runs")
    assert other_hook.label.endswith("runs")
    assert sorted(absent_gpu.launched[:3]) == [32, 64, 64], "the first round"


def test_candidates_with_equal_code_but_other_grids_are_launched(run, absent_gpu) -> None:
    """A heuristic value depends on the candidate and sets the grid.

    Both candidates are launched, although their code is equal.
    """

    @triton.autotune(configs=[config(64, 2), config(64, 3)], key=["n"])
    @triton.heuristics({"PROGRAMS": lambda named: 2 * named["num_stages"]})
    @triton.jit
    def fill(a, n, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
        tl.store(a + tl.arange(0, BLOCK), 0.0)

    grids = set()
    run(is_dumping=True)
    fill[lambda named: (grids.add(named["PROGRAMS"]) or named["PROGRAMS"],)](torch.zeros(64), 64)

    assert grids == {4, 6}


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("way", ["all run", "loaded", "launched", "compiled", "own benchmark", "hit", "verified"])
def test_after_a_launch_the_plugin_keeps_none_of_its_tensors(run, absent_gpu, threads, without_collector, way) -> None:
    @triton.autotune(configs=[config(16), config(32), config(64)], key=["n"])
    @triton.jit
    def kernel(a, b, c, n, BLOCK: tl.constexpr, REFUSED: tl.constexpr):
        tl.static_assert(BLOCK != REFUSED)
        at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))

    def outlive() -> list[Any]:
        tensors = [torch.zeros(64 * 64, dtype=torch.float16) for _ in range(3)]
        alive = [weakref.ref(tensor) for tensor in tensors]
        kernel[(1,)](*tensors, 64, REFUSED=32 if way == "compiled" else 0)
        tensors.clear()
        return [tensor for reference in alive if (tensor := reference()) is not None]

    recorded = run(is_dumping=True, compile_threads=threads)
    if way in ("launched", "own benchmark"):
        absent_gpu.fails[32] = (1, triton.runtime.errors.OutOfResources(2, 1, "registers"))
    if way == "loaded":
        absent_gpu.shared_memory = 9000
    if way == "own benchmark":
        kernel.do_bench = lambda call, quantiles: [call() or 1.0] * 3

    assert not outlive()

    if way in ("hit", "verified"):
        kernel.cache.clear()
        run((recorded[0].entry,), modes=(verifying(),) if way == "verified" else ())
        assert not outlive()
    assert sum(candidate.failed != "" for candidate in recorded[0].entry.candidates) == (
        way not in ("all run", "hit", "verified")
    )


def test_after_a_launch_that_fails_for_a_miss_no_tensor_is_kept(run, absent_gpu, without_collector) -> None:
    run((), on_miss="error")
    kernel = copy_kernel([config(16), config(32)])

    def refused() -> Any:
        tensor = torch.zeros(64)
        with pytest.raises(pytest.fail.Exception, match="autotune: MISS"):
            kernel[(1,)](tensor, tensor, 64)
        return weakref.ref(tensor)

    assert refused()() is None
