"""Note facts about compiling with Inductor, inside the process that compiles, for ``torch_compile.py``.

The import wraps functions of Inductor, Triton and this plugin. ``first_result`` then calls the compiled function, and
writes the facts as JSON to the file that the environment variable RESULT names. If a fact cannot be noted, the script
leaves the fact out and adds the error to the "notes" of the file.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import random
import re
import signal
import statistics
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import torch
import torch._inductor.select_algorithm as select_algorithm
from torch._inductor import graph
from torch._inductor.runtime import benchmarking, triton_heuristics

#: The seconds between two samples of the stacks.
EVERY_S = 0.02
#: The phases of the main thread: part of a path, name of a function (empty: any), phase. The innermost function on the
#: stack that fits a row names the phase.
PHASES = (
    ("pytest_autotune/workers/", "", "waiting for other processes"),
    ("pytest_autotune/tuners/measuring/", "", "race and clock"),
    ("concurrent/futures/", "", "waiting for what compiles"),
    ("triton/compiler/compiler.py", "compile", "compiling in this thread"),
    ("triton_heuristics.py", "make_launcher", "loading kernels"),
    ("triton_heuristics.py", "bench", "measuring configurations"),
    ("runtime/benchmarking.py", "", "measuring by Inductor"),
    ("select_algorithm.py", "benchmark_choices", "measuring templates"),
    ("select_algorithm.py", "wait_on_futures", "waiting for templates to compile"),
    ("select_algorithm.py", "precompile_fn", "waiting for templates to compile"),
    ("async_compile.py", "wait", "waiting for what compiles"),
    ("async_compile.py", "", "handing out compilations"),
    ("compile_worker/", "", "starting compile workers"),
    ("codecache.py", "", "loading generated code"),
    ("pytest_autotune/", "", "the plugin, else"),
    ("torch/_inductor/scheduler.py", "", "scheduling and fusing"),
    ("torch/_inductor/select_algorithm.py", "", "making templates"),
    ("torch/_inductor/codegen/", "", "generating code"),
    ("torch/_inductor/", "", "Inductor, else"),
    ("torch/_functorch/", "", "tracing"),
    ("torch/_dynamo/", "", "tracing"),
    ("importlib", "", "importing"),
)

facts: dict[str, Any] = {"notes": []}
seconds: defaultdict[str, float] = defaultdict(float)
calls: Counter[str] = Counter()
measured: list[int] = []
codes: list[str] = []
#: Inductor's autotuners that were run, with the arguments of their last call.
autotuners: dict[int, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}
templates: dict[str, dict[str, float]] = {}
#: The begin of an event, its seconds, whether it ran in the main thread, and its text.
events: list[tuple[float, float, bool, str]] = []
#: The wall seconds of a compilation, the processor seconds of its thread, and whether this is the main thread.
compilations: list[tuple[float, float, bool]] = []
#: The seconds of the stages of Triton's compiler in this process.
stages: defaultdict[str, float] = defaultdict(float)
_inside: list[int] = []
_main = threading.get_ident()


def _tries(where: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that notes an error instead of raising it."""

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                facts["notes"].append(f"{where}: {type(error).__name__}: {str(error)[:200]}")
                traceback.print_exc()
                return None

        return call

    return make


def _counted(original: Any) -> Any:
    @functools.wraps(original)
    def benchmark(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _inside:
            measured.append(1)
        _inside.append(1)
        try:
            return original(self, *args, **kwargs)
        finally:
            _inside.pop()

    return benchmark


def _timed(owner: Any, name: str, label: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        where = label if threading.get_ident() == _main else f"{label}, in other threads"
        began = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            seconds[where] += time.perf_counter() - began
            calls[where] += 1

    setattr(owner, name, call)


@_tries("counting")
def _count() -> None:
    for cls in type(benchmarking.benchmarker).__mro__:
        for name in ("benchmark", "benchmark_gpu", "benchmark_cpu"):
            if name in vars(cls):
                setattr(cls, name, _counted(vars(cls)[name]))
    compile_to_module = graph.GraphLowering.compile_to_module

    def keep_code(self: Any) -> Any:
        module = compile_to_module(self)
        with open(str(module.__file__)) as file:
            codes.append(re.sub(r"#.*", "", re.sub(r"/\S+\.py", "", file.read())))
        return module

    graph.GraphLowering.compile_to_module = keep_code  # type: ignore[method-assign]


@_tries("timing")
def _time() -> None:
    triton = import_module("triton")
    _timed(triton, "compile", "compiling, or taking from the cache")
    for name in ("StaticTritonCompileResult", "TritonCompileResult"):
        if hasattr(triton_heuristics, name):
            _timed(getattr(triton_heuristics, name), "make_launcher", "loading kernels")
    if "pytest_autotune.run.session" not in sys.modules:
        return
    from pytest_autotune.run.tuning import Tuning
    from pytest_autotune.tuners.measuring.race import Race

    for name in ("probe", "finish", "alone"):
        _timed(Race, name, f"race: {name}")
    with suppress(ImportError, AttributeError):
        from pytest_autotune.tuners.inductor.benchmarks import Benchmarks

        _timed(Benchmarks, "race_launchers", "kernels: race of a list")
        _noted(Benchmarks, "race_launchers", "racing a list")
    measuring: Any = Tuning.measuring

    @contextmanager
    def held(*args: Any, **kwargs: Any) -> Iterator[None]:
        asked = time.perf_counter()
        with measuring(*args, **kwargs):
            had = time.perf_counter()
            seconds["waiting for the GPU"] += had - asked
            try:
                yield
            finally:
                seconds["GPU held"] += time.perf_counter() - had
                calls["GPU held"] += 1

    Tuning.measuring = held  # type: ignore[method-assign]


def _noted(
    owner: Any, name: str, label: str, about: Callable[[Any], str] = lambda args: "", least_s: float = 0.05
) -> None:
    """Note the begin and the duration of each call of a function."""
    inside = vars(owner).get(name)
    original = getattr(owner, name)
    is_bound = isinstance(inside, staticmethod | classmethod)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            _note_event(began, label, lambda: about(args), least_s)

    setattr(owner, name, staticmethod(call) if is_bound else call)


def _note_event(began: float, label: str, about: Callable[[], str] = str, least_s: float = 0.05) -> None:
    seconds = time.perf_counter() - began
    if seconds >= least_s:
        said = ""
        with suppress(Exception):
            said = about()
        is_main = threading.get_ident() == _main
        events.append((began, seconds, is_main, f"{label} {said}".strip()))


@_tries("noting when")
def _when() -> None:
    """Note when the steps of compiling begin, and how long they take."""
    async_compile = import_module("torch._inductor.async_compile")
    compiler: Any = async_compile.AsyncCompile
    owner: Any = triton_heuristics.CachingAutotuner
    selector: Any = select_algorithm.AlgorithmSelectorCache

    def kernel(args: Any) -> str:
        name = str(args[0].inductor_meta.get("kernel_name", ""))
        return "" if name.startswith("Placeholder") else name

    _noted(compiler, "warm_pool", "starting compile workers", least_s=0.0)
    _noted(compiler, "triton", "handing out a kernel, or compiling it", lambda args: str(args[1]))
    _noted(compiler, "wait", "waiting for kernels to compile")
    _noted(graph.GraphLowering, "run", "lowering")
    _noted(graph.GraphLowering, "codegen", "scheduling and generating code")
    _noted(graph.GraphLowering, "compile_to_module", "the whole of making a module")
    _noted(owner, "precompile", "precompile()", kernel, least_s=0.1)
    _noted(owner, "run", "first launch of a kernel", kernel)
    _noted(owner, "benchmark_all_configs", "measuring a list", kernel, least_s=0.01)
    _noted(owner, "coordinate_descent_tuning", "descent", kernel, least_s=0.01)
    _noted(selector, "do_autotuning", "choosing a template")
    make = selector.make_precompile_fn

    @functools.wraps(make)
    def make_precompile_fn(self: Any, choices: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        wait = make(self, choices, *args, **kwargs)
        is_ready = compiler._ready_future is not None and compiler._ready_future.done()
        how = "by compile workers" if is_ready else "in threads"
        _note_event(began, "handing out templates", lambda: f"{len(choices)}, {how}", 0.0)

        @functools.wraps(wait)
        def waited() -> Any:
            began = time.perf_counter()
            times = wait()
            if times:
                own = sorted(times.values())
                _note_event(
                    began,
                    "waiting for templates",
                    lambda: f"{len(own)}; each {own[0]:.1f} to {own[-1]:.1f} s, {sum(own):.1f} s in all",
                )
            return times

        return waited

    selector.make_precompile_fn = make_precompile_fn


@_tries("compilations")
def _note_compilations() -> None:
    """Note the wall time and the thread time of each compilation in this process."""
    triton = import_module("triton")
    compile = triton.compile

    @functools.wraps(compile)
    def timed(*args: Any, **kwargs: Any) -> Any:
        began, own = time.perf_counter(), time.thread_time()
        try:
            return compile(*args, **kwargs)
        finally:
            compilations.append((time.perf_counter() - began, time.thread_time() - own, threading.get_ident() == _main))

    triton.compile = timed

    def compiled(*, times: Any, cache_hit: bool, **rest: Any) -> None:
        if not cache_hit:
            stages["Python, to Triton's code"] += times.ir_initialization / 1e6
            for name, took_us in times.lowering_stages:
                stages[name] += took_us / 1e6

    before = triton.knobs.compilation.listener

    def both(**said: Any) -> None:
        if before is not None:
            before(**said)
        with suppress(Exception):
            compiled(**said)

    triton.knobs.compilation.listener = both


@_tries("watching kernels")
def _watch() -> None:
    owner: Any = triton_heuristics.CachingAutotuner
    run = owner.run

    @functools.wraps(run)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = {name: value for name, value in kwargs.items() if name not in ("stream", "benchmark_run")}
        if not str(self.inductor_meta.get("kernel_name", "Placeholder")).startswith("Placeholder"):
            autotuners[id(self)] = self, args, given
        return run(self, *args, **kwargs)

    owner.run = watched
    selector: Any = select_algorithm.AlgorithmSelectorCache
    lookup = selector.lookup

    @functools.wraps(lookup)
    def kept(self: Any, choices: Any, op: str, inputs: str, benchmark: Any, *args: Any, **kwargs: Any) -> Any:
        if benchmark is not None and "KNOWN" in os.environ:
            _compare_templates(choices, f"{op} {inputs}", benchmark)
        times_ms = lookup(self, choices, op, inputs, benchmark, *args, **kwargs)
        if times_ms:
            templates[f"{op} {inputs}"] = {str(choice.hash_key()): float(ms) for choice, ms in times_ms.items()}
        return times_ms

    selector.lookup = kept


def _busy_s() -> float:
    """Return the seconds for which the cores of this machine have worked, all together."""
    try:
        with open("/proc/stat") as file:
            ticks = list(map(int, file.readline().split()[1:9]))
    except (OSError, ValueError):
        return 0.0
    return (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")


class _Sampler(threading.Thread):
    """Samples the stacks of all threads."""

    def __init__(self) -> None:
        super().__init__(name="sampler", daemon=True)
        self.ended = threading.Event()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.places: Counter[str] = Counter()
        #: The number of busy cores of this machine, second by second.
        self.busy: list[float] = []
        self._known: dict[Any, str] = {}

    def run(self) -> None:
        before = time.perf_counter()
        busy_at, busy_s = before, _busy_s()
        is_ready = False
        while not self.ended.wait(EVERY_S):
            now = time.perf_counter()
            passed, before = now - before, now
            if now - busy_at >= 1.0:
                now_s = _busy_s()
                self.busy.append(round((now_s - busy_s) / (now - busy_at), 1))
                busy_at, busy_s = now, now_s
            workers = sys.modules.get("torch._inductor.async_compile")
            ready = getattr(getattr(workers, "AsyncCompile", None), "_ready_future", None)
            if not is_ready and ready is not None and ready.done():
                is_ready = True
                events.append((now, 0.0, False, "compile workers are ready"))
            for thread, frame in sys._current_frames().items():
                self._look(thread, frame, passed)

    def _look(self, thread: int, frame: Any, passed: float) -> None:
        innermost, at = frame, frame
        while at is not None:
            phase = self._phase(at.f_code)
            if phase and (thread == _main or phase == "compiling in this thread"):
                break
            at = at.f_back
        if thread != _main:
            if at is not None:
                self.seconds["(threads that compile)"] += passed
            return
        phase = self._phase(at.f_code) if at is not None else "else"
        self.seconds[phase] += passed
        code = innermost.f_code
        self.places[f"{phase}: {'/'.join(code.co_filename.split('/')[-2:])} {code.co_name}"] += passed

    def _phase(self, code: Any) -> str:
        found = self._known.get(code)
        if found is None:
            fits = (phase for path, name, phase in PHASES if path in code.co_filename and name in ("", code.co_name))
            found = self._known[code] = next(fits, "")
        return found


def first_result(compiled: Callable[..., Any], *args: Any) -> None:
    """Call the compiled function for the first time, and write the facts about this call."""
    sampler = _Sampler()
    sampler.start()
    started = time.perf_counter()
    result = compiled(*args)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    facts["seconds"] = time.perf_counter() - started
    sampler.ended.set()
    began = time.perf_counter()
    torch.save(result, os.environ["RESULT"] + ".pt")
    kernels = sum(code.count("async_compile.triton(") for code in codes)
    products = sum(len(re.findall(r"^triton_tem_\w+ = ", code, re.M)) for code in codes)
    libraries = sum(code.count("extern_kernels.") for code in codes)
    facts.update(
        measured=len(measured),
        codes=codes,
        kernels=f"{kernels} kernels, {products} of them matrix products, and {libraries} library calls",
        phases=dict(sampler.seconds),
        places=dict(sorted(sampler.places.items(), key=lambda item: -item[1])[:15]),
        timers=dict(seconds),
        calls=dict(calls),
        templates=templates,
        chosen={},
        events=[
            (round(began - started, 2), round(took, 2), is_main, text)
            for began, took, is_main, text in sorted(events, key=lambda event: (event[0], -event[1]))
        ],
        busy=sampler.busy,
        compilations={
            "in the main thread" if main else "in other threads": [
                len(own := [one for one in compilations if one[2] is main]),
                round(sum(one[0] for one in own), 2),
                round(sum(one[1] for one in own), 2),
            ]
            for main in (True, False)
        },
        stages=dict(stages),
        in_workers=[
            round(took / 1e6, 2)
            for autotuner, _, _ in autotuners.values()
            if (took := (autotuner.autotune_cache_info or {}).get("compile_time_us")) is not None
        ],
    )
    _write()
    _note_choices()
    _note_inductors_times()
    if "KNOWN" in os.environ:
        _compare()
    else:
        _time_calls(compiled, args)
    if "CHILDREN" in os.environ:
        _try_children()
    facts["after"] = time.perf_counter() - began
    _write()


def _write() -> None:
    with open(os.environ["RESULT"] + ".json", "w") as file:
        json.dump(facts, file)


@_tries("Inductor's own times")
def _note_inductors_times() -> None:
    metrics = sys.modules["torch._dynamo.utils"].compilation_time_metrics
    facts["own"] = {name: sum(times) for name, times in metrics.items() if sum(times) > 0.2}


@_tries("timing calls")
def _time_calls(compiled: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Note the time of a later call: the median of 50, by CUDA events."""
    if not torch.cuda.is_available():
        return
    times_ms = []
    for _ in range(60):
        make: Any = torch.cuda.Event
        start, end = make(enable_timing=True), make(enable_timing=True)
        start.record()
        compiled(*args)
        end.record()
        torch.cuda.synchronize()
        times_ms.append(start.elapsed_time(end))
    facts["call_us"] = statistics.median(times_ms[10:]) * 1000
    # A call takes the larger of two times: that of the GPU, measured while the GPU was busy, and that of the host.
    device_ms, host_us = [], []
    for _ in range(20):
        make = torch.cuda.Event
        start, end = make(enable_timing=True), make(enable_timing=True)
        torch.cuda._sleep(10_000_000)
        start.record()
        began = time.perf_counter()
        compiled(*args)
        host_us.append((time.perf_counter() - began) * 1e6)
        end.record()
        torch.cuda.synchronize()
        device_ms.append(start.elapsed_time(end))
    facts["device_us"], facts["host_us"] = statistics.median(device_ms) * 1000, statistics.median(host_us)


@_tries("compiling in children")
def _try_children() -> None:
    """Note the time to fork this process, and to compile in its threads and in its children, with empty caches."""
    began = time.perf_counter()
    for _ in range(5):
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
    forked_s = (time.perf_counter() - began) / 5
    kernels: list[tuple[Any, Any]] = []
    for autotuner, _, _ in autotuners.values():
        name = getattr(autotuner.heuristic_type, "name", "")
        if name in ("TEMPLATE", "FIXED") or not autotuner.launchers:
            continue
        if autotuner.fn.fn is None:
            autotuner.fn = autotuner._reload_kernel().fn
        params = _params(autotuner.launchers[0].config)
        kernels += [(autotuner, _made(autotuner, {**params, "num_warps": warps})) for warps in (1, 2, 4, 8)]
    kernels = sorted(kernels, key=lambda one: one[1].num_warps)[:16]
    folder = os.environ["TRITON_CACHE_DIR"]
    found: dict[str, Any] = {"fork_ms": round(forked_s * 1000, 1), "kernels": len(kernels)}
    facts["children"] = found
    try:
        for arm, compile in {
            "one after the other, 4 of them": lambda: [_compile_one(*one) for one in kernels[:4]],
            "threads": lambda: _in_threads(kernels),
            "children": lambda: _in_children(kernels, found),
            "from the children's cache": lambda: [_compile_one(*one) for one in kernels],
        }.items():
            if arm != "from the children's cache":
                os.environ["TRITON_CACHE_DIR"] = f"{folder} {arm}"
            began, began_cpu = time.perf_counter(), time.process_time()
            compile()
            found[arm] = [round(time.perf_counter() - began, 2), round(time.process_time() - began_cpu, 2)]
            _write()
    finally:
        os.environ["TRITON_CACHE_DIR"] = folder


def _compile_one(autotuner: Any, config: Any) -> None:
    autotuner._precompile_config(config)


def _in_threads(kernels: Sequence[tuple[Any, Any]]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(kernels)) as pool:
        for future in [pool.submit(_compile_one, *one) for one in kernels]:
            future.result()


def _in_children(kernels: Sequence[tuple[Any, Any]], found: dict[str, Any]) -> None:
    """Compile each kernel in a child process. A child uses no GPU, because CUDA cannot be used after a fork."""
    children = {}
    for number, one in enumerate(kernels):
        if (child := os.fork()) == 0:
            status = 1
            try:
                triton_heuristics.triton_helpers.set_driver_to_gpu = lambda: None
                _compile_one(*one)
                status = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(status)
        children[child] = number
    until = time.monotonic() + 30
    failed = []
    while children and time.monotonic() < until:
        child, status = os.waitpid(-1, os.WNOHANG)
        number = children.pop(child, None) if child else None
        if number is not None and status:
            failed.append(f"{number} ended with {os.waitstatus_to_exitcode(status)}")
        time.sleep(0.005)
    for child, number in children.items():
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        failed.append(f"{number} hung")
    found["failed"] = failed


def _params(config: Any) -> dict[str, Any]:
    return {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}


def _kernel(autotuner: Any) -> str:
    """Return a name that a kernel has in every run: its name without numbers, and the digest of its code."""
    from pytest_autotune.tuners.inductor.identity import kernel_key, kernel_name

    return f"{kernel_name(autotuner)} {kernel_key(autotuner, '')[0].value}"


@_tries("choices")
def _note_choices() -> None:
    for autotuner, _, _ in autotuners.values():
        name = getattr(autotuner.heuristic_type, "name", "")
        if len(autotuner.launchers) != 1 or name in ("TEMPLATE", "FIXED"):
            continue
        known = autotuner.coordesc_tuner.cached_benchmark_results
        facts["chosen"][_kernel(autotuner)] = {
            "choice": _params(autotuner.launchers[0].config),
            "known": [[dict(params), ms] for params, ms in known.items() if ms < float("inf")],
        }


# The functions below compare the choices of two runs in a third run, which has loaded the choices of the second.


def _compare() -> None:
    until = float(os.environ["UNTIL"])
    with open(os.environ["KNOWN"]) as file:
        known = json.load(file)
    facts.setdefault("compared", {})
    for number, (autotuner, args, kwargs) in enumerate(autotuners.values()):
        if time.time() > until:
            facts["notes"].append(f"no time was left for {len(autotuners) - number} kernels")
            break
        _compare_kernel(autotuner, args, kwargs, known)
        _write()


@_tries("a kernel's choices")
def _compare_kernel(autotuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: Mapping[str, Any]) -> None:
    from pytest_autotune.tuners.inductor.benchmarks import build_runners
    from pytest_autotune.tuners.measuring.clocks import torch_clock
    from pytest_autotune.tuners.shared.compile_pool import CompilePool

    name = _kernel(autotuner)
    arms = {arm: run["chosen"][name] for arm, run in known.items() if name in run["chosen"]}
    if len(arms) < 2:
        return
    candidates = [chosen["choice"] for chosen in arms.values()]
    # The three fastest configs of each run may be better than its choice.
    for chosen in arms.values():
        candidates += [params for params, _ in sorted(chosen["known"], key=lambda entry: entry[1])[:3]]
    wanted = [params for number, params in enumerate(candidates) if params not in candidates[:number]]
    if autotuner.fn.fn is None:
        autotuner.fn = autotuner._reload_kernel().fn
    with CompilePool(8) as pool:
        futures = [pool.submit(autotuner._precompile_config, _made(autotuner, params)) for params in wanted]
    launchers, numbers = [], {}
    for number, future in enumerate(futures):
        try:
            launchers.append(future.result().make_launcher())
            numbers[len(launchers) - 1] = number
        except Exception as error:
            facts["notes"].append(f"{name} {wanted[number]}: {type(error).__name__}")
    clock = torch_clock(flush_l2=True)
    measured_times = _truth(clock, build_runners(autotuner, launchers, args, kwargs))
    times = {numbers[index]: time_and_noise for index, time_and_noise in measured_times.items()}
    facts["compared"][name] = {
        "chose": {arm: wanted.index(chosen["choice"]) for arm, chosen in arms.items()},
        "params": wanted,
        "times_us": {number: time_us for number, (time_us, _) in times.items()},
        "halves": max(noise for _, noise in times.values()),
    }


def _made(autotuner: Any, params: Mapping[str, Any]) -> Any:
    config = copy.deepcopy(autotuner.launchers[0].config)
    rest = dict(params)
    config.num_warps, config.num_stages = rest.pop("num_warps"), rest.pop("num_stages")
    config.kwargs = rest
    return config


def _truth(clock: Any, runners: Sequence[Any], rounds: int = 400) -> dict[int, tuple[float, float]]:
    """Launch candidates in turn. Return their times and their noise.

    The time is the mean of the middle half, in microseconds. The noise is the share by which two halves differ.
    """
    from pytest_autotune.tuners.measuring.times import interquartile_mean

    shuffle = random.Random(1).shuffle
    times: dict[int, list[float]] = {number: [] for number in range(len(runners))}
    prepared: list[float] = []

    def turns(count: int, busy_us: float, keep: bool) -> None:
        order = list(times)
        for _ in range(count):
            shuffle(order)
            launched = [(number, clock.launch(runners[number], busy_us)) for number in order]
            clock.synchronise()
            prepared.extend(launch.prepared_us for _, launch in launched)
            for number, launch in launched:
                if keep and launch.prepared_us <= busy_us:
                    times[number].append(launch.time_us())

    turns(3, 0.0, False)
    prepared.clear()
    turns(5, 0.0, False)
    busy_us = min(2 * sorted(prepared)[int(len(prepared) * 0.9)], 2000.0)
    began = time.perf_counter()
    while min(map(len, times.values())) < rounds and time.perf_counter() - began < 3.0:
        turns(20, busy_us, True)
    results = {}
    for number, samples in times.items():
        if len(samples) >= 8:
            (first, _), (second, _) = interquartile_mean(samples[::2]), interquartile_mean(samples[1::2])
            results[number] = interquartile_mean(samples)[0], abs(first / second - 1)
    return results


@_tries("a decision among templates")
def _compare_templates(choices: Sequence[Any], problem: str, benchmark: Callable[..., Any]) -> None:
    """Measure the fastest templates of two runs again, in turn, by Inductor's own benchmark."""
    with open(os.environ["KNOWN"]) as file:
        known = json.load(file)
    by_id = {str(choice.hash_key()): choice for choice in choices}
    best = {}
    for arm, run in known.items():
        times = {id: ms for id, ms in run["templates"].get(problem, {}).items() if id in by_id and ms > 0}
        if times:
            best[arm] = min(times, key=lambda id: times[id])
    if len(best) < 2:
        return
    ids = list(dict.fromkeys(best.values()))
    times_us: dict[str, list[float]] = {id: [] for id in ids}
    if len(ids) > 1:
        for _ in range(7):
            for id in ids:
                times_us[id] += [ms * 1000 for ms in benchmark([by_id[id]]).values()]
    medians = {id: statistics.median(samples) if samples else 1.0 for id, samples in times_us.items()}
    facts.setdefault("compared_templates", {})[problem] = {"chose": best, "times_us": medians}


_count()
_time()
_watch()
_when()
_note_compilations()
