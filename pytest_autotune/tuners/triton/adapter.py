"""The adapter for ``triton.autotune``: Triton 3.4 and later.

It touches two members of ``triton.runtime.autotuner.Autotuner``:
``check_disk_cache``, which Triton calls when it has no choice in memory, with the
candidates that are left after pruning and a function that benchmarks them; and
``cache_results``, the switch that makes Triton call it. The launch of a kernel
that has its choice is not touched. Under the interpreter without a GPU it also
supplies the benchmarker that Triton lacks there (``do_bench``).
"""

from __future__ import annotations

import enum
import gc
import inspect
import math
import numbers
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from pytest_autotune import devices as device
from pytest_autotune.cache.model import PRUNED, Candidate, Device, Entry, Problem, UnportableError, Value, plain_value
from pytest_autotune.cache.ties import NOISE_OF_INTERPRETER, settle
from pytest_autotune.run.door import Tuning, TuningRun
from pytest_autotune.run.together.shared_work import UndividedWork, Work
from pytest_autotune.tuners.measuring.clocks import host_time_us
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.digest import digest
from pytest_autotune.tuners.shared.guard import guarded
from pytest_autotune.tuners.shared.parsing import parsed_one_at_a_time
from pytest_autotune.tuners.shared.source.definitions import may_be_defined
from pytest_autotune.tuners.shared.source.functions import closure_cells, layers, python_function, qualified_name
from pytest_autotune.tuners.shared.source.older_source_digest import OLDER_FORM, older_source_digest
from pytest_autotune.tuners.shared.source.source_digest import FORM, source_digest
from pytest_autotune.tuners.shared.values import (
    DtypeName,
    callable_text,
    constant_text,
    encoded_text,
    is_code,
    stable_value,
    unwrapped,
)
from pytest_autotune.tuners.shared.versions import version_of, versions_of
from pytest_autotune.tuners.triton.race import Raced, clock_for, race

NAME = "triton"
_HOOKED_PARAMETERS = ["self", "tuning_key", "configs", "bench_fn"]
#: Those of ``triton.knobs`` that change what a kernel is compiled to.
_SETTINGS = {
    "language": ("fp32_default", "default_fp_fusion"),
    "runtime": ("debug", "sanitize_overflow"),
    "compilation": ("instrumentation_mode", "enable_asan", "override"),
    "nvidia": ("disable_ptxas_opt", "ptxas_options"),
    "amd": (
        "use_buffer_ops",
        "use_block_pingpong",
        "use_in_thread_transpose",
        "use_async_copy",
        "scalarize_packed_fops",
    ),
}


@dataclass(frozen=True)
class _Call:
    """One call that found no choice in Triton's memory."""

    autotuner: Any
    tuning_key: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def named(self) -> dict[str, Any]:
        """Every argument by its name, with Triton's own ``grid`` and ``warmup`` among them."""
        return {**dict(zip(self.autotuner.arg_names, self.args, strict=False)), **self.kwargs}

    def arguments(self, config: Any) -> dict[str, Any]:
        """What Triton's hooks get to see when ``config`` is used."""
        return {**self.named, **config.all_kwargs()}


class _AlwaysAsk:
    """A data descriptor for ``cache_results``: it covers autotuners made before the hook, too.

    The user's own setting stays where it was, in the instance.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else True

    def __set__(self, instance: Any, value: object) -> None:
        instance.__dict__["cache_results"] = value


class Adapter:
    """Hooks ``triton.autotune``."""

    module = "triton.runtime.autotuner"
    acts_without_entries = True

    def __init__(self) -> None:
        self._run: TuningRun | None = None
        self._autotuner_class: Any = None
        self._original_check: Any = None
        self._seen: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._devices: set[Device] = set()

    def hook(self, module: ModuleType, run: TuningRun) -> None:
        """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""
        autotuner_class = module.Autotuner
        original = autotuner_class.__dict__.get("check_disk_cache")
        if original is None:
            raise HookError(f"triton {version_of('triton')} has no Autotuner.check_disk_cache; triton >= 3.4 is needed")
        if list(inspect.signature(original).parameters) != _HOOKED_PARAMETERS:
            raise HookError(f"Autotuner.check_disk_cache of triton {version_of('triton')} has another signature")
        adapter = self

        def check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> bool:
            return adapter._choose(self, tuning_key, configs, bench_fn)

        def leave_alone(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> bool:
            return adapter._leave_alone(self, tuning_key, configs, bench_fn)

        self._run = run
        self._autotuner_class = autotuner_class
        self._original_check = original
        autotuner_class.check_disk_cache = guarded(check_disk_cache, leave_alone, run, NAME, library=NAME)
        autotuner_class.cache_results = _AlwaysAsk()

    def unhook(self) -> None:
        """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""
        if self._autotuner_class is not None:
            self._autotuner_class.check_disk_cache = self._original_check
            if isinstance(vars(self._autotuner_class).get("cache_results"), _AlwaysAsk):
                del self._autotuner_class.cache_results
            self._autotuner_class = None

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Give every autotuner an empty memory, and its own back afterwards."""
        swapped = []
        for autotuner in self._autotuners():
            if type(autotuner.__dict__.get("cache")) is dict:
                swapped.append((autotuner, autotuner.cache))
                autotuner.cache = {}
        try:
            yield
        finally:
            for autotuner, cache in swapped:
                autotuner.cache = cache

    def unseen(self) -> list[str]:
        """Kernels of autotuners that hold choices and never came through the hook."""
        names = set()
        for autotuner in self._autotuners():
            if id(autotuner) not in self._seen and len(autotuner.configs) > 1 and self._was_tuned(autotuner):
                function = python_function(autotuner)
                kernel = qualified_name(function) if function else repr(autotuner)
                if self._run is not None and not self._run.ignores(NAME, kernel):
                    names.add(f"{kernel} ({type(autotuner).__module__}.{type(autotuner).__qualname__})")
        return sorted(names)

    def _autotuners(self) -> list[Any]:
        if self._autotuner_class is None:
            return []
        # isinstance would ask proxies for their class, which may run code of theirs.
        return [found for found in gc.get_objects() if issubclass(type(found), self._autotuner_class)]

    def _was_tuned(self, autotuner: Any) -> bool:
        try:
            holds_choices = len(autotuner.cache) > 0
        except TypeError:
            holds_choices = True
        if type(autotuner).run is self._autotuner_class.run:
            # Triton >= 3.8 takes the only candidate left after pruning without asking: nothing was tuned.
            return holds_choices and hasattr(autotuner, "bench_time")
        return holds_choices

    def _choose(self, autotuner: Any, tuning_key: Any, configs: Sequence[Any], bench_fn: Callable[[], None]) -> bool:
        """Stand in for ``check_disk_cache``: put a choice into ``autotuner.cache``.

        :returns: True when the choice was not benchmarked in this call.
        """
        run = self._run
        assert run is not None
        self._seen[id(autotuner)] = autotuner
        function = python_function(autotuner)
        if run.paused or function is None or run.ignores(NAME, qualified_name(function)):
            return self._leave_alone(autotuner, tuning_key, configs, bench_fn)
        try:
            call = _Call(autotuner, tuning_key, *_arguments_of(bench_fn))
        except LookupError:
            run.note(f"triton: {qualified_name(function)} is tuned in a way that is not known here; it was left alone")
            return self._leave_alone(autotuner, tuning_key, configs, bench_fn)
        if len(configs) == 1:
            _adopt(call, configs[0], 0.0)
            return True
        if any(call.kwargs.keys() & config.kwargs.keys() for config in configs):
            # Triton refuses a call that sets what is tuned, before it measures anything.
            return self._leave_alone(autotuner, tuning_key, configs, bench_fn)
        try:
            problem, fingerprint, offered = self._problem(call, function, configs)
            fingerprint = (*fingerprint, *_pruned(autotuner, configs))
        except _Unportable as unportable:
            run.unportable(unportable.problem, unportable.reason)
            return self._leave_alone(autotuner, tuning_key, configs, bench_fn)
        except Exception as error:  # an error of ours must not fail a test
            run.note(f"triton: {qualified_name(function)} was left alone: {type(error).__name__}: {error}")
            return self._leave_alone(autotuner, tuning_key, configs, bench_fn)

        def on_offer(entry: Entry) -> bool:
            return entry.choice is not None and entry.choice.params in offered

        def help_to_compile(work: Work) -> None:
            if not _interpreted(autotuner):
                _compile_ahead(call, configs, run, work)

        label = "measured in a CUDA graph" if getattr(autotuner, "use_cuda_graph", False) else ""
        with run.tuning(
            problem, fingerprint, on_offer, environment(), label, help_to_compile, may_be_defined
        ) as tuning:
            while tuning.entry is not None and tuning.entry.choice is not None:
                config = offered[tuning.entry.choice.params]
                try:
                    if not _interpreted(autotuner) and not _stream_is_capturing():
                        _compile_and_load(call, config)
                except (TypeError, ValueError, KeyError):
                    pass  # the call is wrong, whatever is chosen: the launch raises it
                except Exception as error:
                    tuning.reject(f"the choice no longer compiles: {failure_text(error)}")
                    continue
                _adopt(call, config, (tuning.entry.choice.time_us or 0.0) / 1000)
                return True
            if not run.policy.dumping and _owner_uses_disk_cache(autotuner):
                return self._from_disk_cache(autotuner, tuning_key, configs, bench_fn)
            self._tune(call, configs, bench_fn, tuning)
            return False

    def _leave_alone(self, autotuner: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], None]) -> bool:
        """Do what Triton does without us."""
        if _owner_uses_disk_cache(autotuner):
            return self._from_disk_cache(autotuner, tuning_key, configs, bench_fn)
        bench_fn()
        return False

    def _from_disk_cache(self, autotuner: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], None]) -> bool:
        try:
            return bool(self._original_check(autotuner, tuning_key, configs, bench_fn))
        except TypeError:
            # Triton writes the key as JSON after it has tuned, and fails for a dtype in it: the choice is there.
            if tuning_key in autotuner.cache:
                return False
            raise

    def _tune(self, call: _Call, configs: Sequence[Any], bench_fn: Callable[[], None], tuning: Tuning) -> None:
        assert self._run is not None
        autotuner = call.autotuner
        if not _interpreted(autotuner) and not tuning.known_to_fail:
            taken = _compile_ahead(call, configs, self._run, tuning.work)
            _fetch_compiled(call, configs, self._run, tuning.work, taken)
            _load_ahead(call, configs)
        failed: dict[Any, BaseException] = {}
        with tuning.measuring():
            try:
                raced = _race(call, configs)
                if raced is None:
                    with _noted_failures(autotuner, failed):
                        bench_fn()
            except Exception as error:
                if fails_again(error):
                    tuning.record_failure([failure_text(error)])
                raise
            if raced is not None:
                failed = {config: result.failed for config, result in raced.results.items() if result.failed}
            timings: Mapping[Any, object] = autotuner.configs_timings
            times_ms = {config: _median_ms(timings.get(config)) for config in configs}
            best = autotuner.cache[call.tuning_key]
            if not math.isfinite(times_ms.get(best, math.inf)):
                if len(failed) == len(configs) and all(map(fails_again, failed.values())):
                    tuning.record_failure(map(failure_text, failed.values()))
                elif not tuning.known_to_fail:
                    # The benchmark of the kernel has kept the reason to itself, and it may have been a passing one.
                    self._run.note(f"{tuning.lookup.problem}: every candidate failed; nothing was recorded")
                return
            if autotuner.do_bench is interpreter_benchmark:
                best = autotuner.cache[call.tuning_key] = _settled(times_ms, NOISE_OF_INTERPRETER)
        labels = {config: str(result.measured) for config, result in raced.results.items()} if raced else {}
        candidates = {
            config: _candidate(params, times_ms[config], failed.get(config), labels.get(config, ""))
            for config, params in zip(configs, _params_of(configs), strict=True)
        }
        tuning.record(candidates[best], list(candidates.values()))

    def _problem(
        self, call: _Call, function: FunctionType, configs: Sequence[Any]
    ) -> tuple[Problem, tuple[Value, ...], dict[tuple[Value, ...], Any]]:
        """The problem of a call, what its choice rests on, and the candidates by their params.

        :raises _Unportable: when a part of it has no stable form.
        """
        autotuner = call.autotuner
        on = self._device(autotuner)
        key: list[Value] = []
        try:
            heuristics = _heuristics(autotuner)
            arguments = list(_key_values(call, function, heuristics))
            for name, value in arguments:
                key.append(_key_value(name, value))
            offered: dict[tuple[Value, ...], Any] = {}
            for config, params in zip(configs, _params_of(configs), strict=True):
                offered.setdefault(params, config)
            fingerprint = (
                Value("source", _source(autotuner.fn, heuristics, arguments), FORM),
                Value("search", digest("\n".join(sorted(_search_text(c) for c in autotuner.configs))), "digest"),
                *_settings(autotuner),
            )
        except UnportableError as error:
            raise _Unportable(Problem(NAME, qualified_name(function), tuple(key), on), str(error)) from None
        problem = Problem(NAME, qualified_name(function), tuple(key), on)
        return problem, self._in_the_form_of_the_file(problem, fingerprint, function, heuristics), offered

    def _in_the_form_of_the_file(
        self, problem: Problem, fingerprint: tuple[Value, ...], function: FunctionType, heuristics: _Heuristics
    ) -> tuple[Value, ...]:
        """The fingerprint, with a source digest by the older rule where a loaded entry has that one and it holds.

        Such an entry stays as it is until the problem is tuned again. What the older
        rule does not see is never trusted to it.
        """
        assert self._run is not None
        loaded = [entry.fingerprint for index in self._run.indexes for entry in index.same_key(problem)]
        has_older = any(value.name == "source" and value.type == OLDER_FORM for one in loaded for value in one)
        if not has_older or heuristics:
            return fingerprint
        try:
            older = Value("source", older_source_digest(function, encoded_text), OLDER_FORM)
        except UnportableError:
            return fingerprint
        by_older_rule = tuple(sorted((older, *fingerprint[1:]), key=lambda value: value.name))
        by_this_rule = tuple(sorted(fingerprint, key=lambda value: value.name))
        return by_older_rule if by_older_rule in loaded and by_this_rule not in loaded else fingerprint

    def _device(self, autotuner: Any) -> Device:
        if _interpreted(autotuner):
            return device.INTERPRETER
        on = device.current_gpu() or _target_device()
        self._devices.add(on)
        if len(self._devices) == 2:
            assert self._run is not None
            self._run.note(
                "triton: two types of GPU in one process, but Triton's memory of a choice ignores the device"
            )
        return on


class _Unportable(Exception):
    """A problem cannot be written; carries what can be told of it."""

    def __init__(self, problem: Problem, reason: str) -> None:
        super().__init__(reason)
        self.problem = problem
        self.reason = reason


def supply_interpreter_benchmark(module: ModuleType) -> Callable[[], None]:
    """Let autotuned kernels run under the interpreter on a machine without a GPU.

    Triton asks its active driver for a benchmarker, and there is none. Where
    there is one, or the kernel brings its own, nothing changes.

    :param module: ``triton.runtime.autotuner``.
    :returns: undoes it.
    """
    autotuner_class: Any = module.Autotuner
    original = autotuner_class.__dict__.get("do_bench")
    if not isinstance(original, cached_property):
        return lambda: None
    benchmarker = original.func

    def do_bench(self: Any) -> Any:
        try:
            return benchmarker(self)
        except RuntimeError:
            if not _interpreted(self):
                raise
            return interpreter_benchmark

    replacement = cached_property(do_bench)
    replacement.__set_name__(autotuner_class, "do_bench")
    autotuner_class.do_bench = replacement

    def undo() -> None:
        autotuner_class.do_bench = original

    return undo


def interpreter_benchmark(kernel_call: Callable[[], object], quantiles: Sequence[float] = ()) -> list[float]:
    """The time of a call in milliseconds, once per quantile: the better of two, since each is slow."""
    return [host_time_us(kernel_call, 2) / 1000] * max(len(quantiles), 1)


def environment() -> str:
    """The versions that a choice of Triton may depend on."""
    return versions_of("triton", "torch")


def _arguments_of(bench_fn: Callable[[], None]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the call, which only the closure of the benchmark function holds.

    :raises LookupError: when it is not the function that Triton is known to pass.
    """
    cells = closure_cells(bench_fn) if inspect.isfunction(bench_fn) else {}
    args, kwargs = cells["args"], cells["kwargs"]
    if not (isinstance(args, tuple) and isinstance(kwargs, dict)):
        raise LookupError("args")
    return args, kwargs


def _owner_uses_disk_cache(autotuner: Any) -> bool:
    # Triton 3.4 and 3.5 fail there when interpreting.
    return bool(autotuner.__dict__.get("cache_results")) and not _interpreted(autotuner)


def _interpreted(autotuner: Any) -> bool:
    inner = autotuner
    while not inspect.isfunction(inner):
        if type(inner).__name__ == "InterpretedFunction":
            return True
        inner = inner.fn
    return False


def _target_device() -> Device:
    """The device where torch has no GPU in use: what Triton's driver compiles for."""
    driver: Any = sys.modules["triton.runtime.driver"].driver
    target = driver.active.get_current_target()
    arch = f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch).split(":")[0]
    return device.cpu() if target.backend == "cpu" else Device(str(target.backend), arch)


def _compile(call: _Call, config: Any) -> Any:
    """Compile the kernel for one candidate, without a launch."""
    if config.pre_hook is not None:
        config.pre_hook(call.arguments(config))  # may change what is compiled, such as a descriptor's block shape
    kwargs = {**call.kwargs, "warmup": True}
    return call.autotuner.fn.run(*call.args, **kwargs, **config.all_kwargs())


class _CompilePool(ThreadPoolExecutor):
    """Threads that compile; what comes with a candidate is held until it is compiled."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads, "pytest-autotune-compile")
        self.held_for_next = ExitStack()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        held = self.held_for_next.pop_all()

        def compile_and_release() -> Any:
            with held:
                return function(*args, **kwargs)

        return super().submit(compile_and_release)


def _compile_ahead(call: _Call, configs: Sequence[Any], run: TuningRun, work: Work) -> list[int]:
    """Compile candidates before the GPU is held, in parallel where this Triton can.

    What fails here fails again in the benchmark, which knows what to do about it: it is compiled again there, since it
    may have failed only because it was compiled in a thread.

    :param work: whose pieces are the candidates, by their position.
    :returns: the candidates that other workers have taken, by their position.
    """
    others = []
    with ExitStack() as stack:
        pool = None
        mode = _async_compile_mode()
        if mode is not None and run.policy.cores > 1:
            stack.callback(_forget_failures, call.autotuner)
            stack.enter_context(parsed_one_at_a_time())
            pool = stack.enter_context(_CompilePool(run.policy.cores))
            stack.enter_context(mode(pool, ignore_errors=True))
        for number, config in enumerate(configs):
            with ExitStack() as held:
                held.enter_context(run.core())
                if not held.enter_context(work.take(number)):
                    others.append(number)
                    continue
                if pool is not None:
                    pool.held_for_next = held.pop_all()
                    held.push(pool.held_for_next)
                with suppress(Exception):
                    _compile(call, config)
    return others


def _forget_failures(autotuner: Any) -> None:
    """Remove from Triton's memory of compiled kernels what failed in the pool: it would raise that error again."""
    inner = autotuner.fn
    while inner is not None and not hasattr(inner, "device_caches"):
        inner = getattr(inner, "fn", None)
    for caches in getattr(inner, "device_caches", {}).values():
        compiled = caches[0]
        for key, kernel in list(compiled.items()):
            if type(kernel).__name__ == "FutureKernel" and kernel.kernel is None:
                del compiled[key]


def _fetch_compiled(call: _Call, configs: Sequence[Any], run: TuningRun, work: Work, numbers: Sequence[int]) -> None:
    """Take from Triton's cache what other workers have compiled; what is not there is compiled here."""
    for number in numbers:
        work.wait_for(number)
    _compile_ahead(call, [configs[number] for number in numbers], run, UndividedWork())


def _async_compile_mode() -> Any:
    """Triton's mode for compiling in a pool: since 3.6 without leaving itself active after an error."""
    module: Any = sys.modules.get("triton.runtime._async_compile")
    mode = getattr(module, "AsyncCompileMode", None)
    if mode is None or "ignore_errors" not in inspect.signature(mode).parameters:
        return None
    return mode if module.active_mode.get() is None else None


def _compile_and_load(call: _Call, config: Any) -> None:
    """Compile and load the kernel for one candidate, which the launch needs anyway."""
    load = getattr(_compile(call, config), "_init_handles", None)
    if load is not None:
        load()


def _adopt(call: _Call, config: Any, time_ms: float) -> None:
    """Leave the autotuner as a benchmark would have left it that chose this candidate."""
    autotuner = call.autotuner
    autotuner.cache[call.tuning_key] = config
    autotuner.configs_timings = {config: [time_ms] * 3}
    autotuner.bench_time = 0.0
    if not _stream_is_capturing():
        autotuner.pre_hook(call.arguments(config), reset_only=True)


def _stream_is_capturing() -> bool:
    torch: Any = sys.modules.get("torch")
    return bool(torch and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _load_ahead(call: _Call, configs: Sequence[Any]) -> None:
    """Load the kernels of all candidates before the GPU is held; what fails here fails again in the race."""
    if not _stream_is_capturing():
        for config in configs:
            with suppress(Exception):
                _compile_and_load(call, config)


def _pruned(autotuner: Any, configs: Sequence[Any]) -> list[Value]:
    """What pruning left, where that is less than all: it may depend on arguments that are in no key.

    Not where a performance model chooses: what it measures may be another list each time.
    """
    if autotuner.perf_model is not None or len(configs) >= len(autotuner.configs):
        return []
    return [Value(PRUNED, digest("\n".join(sorted(_search_text(config) for config in configs))), "digest")]


@contextmanager
def _noted_failures(autotuner: Any, failed: dict[Any, BaseException]) -> Iterator[None]:
    """Note why a candidate failed, which Triton itself forgets.

    :param failed: gets the error of each candidate whose benchmark raised one.
    """
    benchmark = autotuner.do_bench

    def noting(kernel_call: Callable[[], object], *args: Any, **kwargs: Any) -> object:
        try:
            return benchmark(kernel_call, *args, **kwargs)
        except Exception as error:
            cells = closure_cells(kernel_call) if inspect.isfunction(kernel_call) else {}
            failed[cells.get("config")] = error
            raise

    autotuner.do_bench = noting
    try:
        yield
    finally:
        autotuner.do_bench = benchmark


def fails_again(error: BaseException) -> bool:
    """Whether a candidate that failed so will fail so in the next run, too, as far as the error can tell.

    What Triton's compiler refuses, what needs more than the device has, and a call that is wrong will.
    Not an error of the device or of its driver, and not a lack of memory, whoever has taken it.
    """
    causes = (error, error.__cause__)
    if any(isinstance(one, (MemoryError, OSError)) or type(one).__module__.startswith("torch") for one in causes):
        return False
    names = {cls.__name__ for cls in type(error).__mro__ if cls.__module__.startswith("triton.")}
    if names & {"CompilationError", "OutOfResources", "PTXASError", "AutotunerError", "InterpreterError"}:
        return True
    return isinstance(error, (TypeError, ValueError, KeyError)) or str(error).startswith("PassManager::run failed")


def failure_text(error: BaseException) -> str:
    """An error in one line: Triton's messages begin with the source and end with what is wrong."""
    message = getattr(error, "error_message", None) or str(error)
    lines = [line.strip() for line in str(message).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _race(call: _Call, configs: Sequence[Any]) -> Raced | None:
    """Race the candidates, and leave the autotuner as its own benchmark would.

    :returns: the outcome; None where the kernel's benchmark is not Triton's own and is to be used as it is.
    """
    autotuner = call.autotuner
    make_clock = None if _interpreted(autotuner) or _stream_is_capturing() else clock_for(autotuner)
    if make_clock is None:
        return None
    started = time.time()
    raced = race(make_clock(), autotuner, call.args, call.kwargs, configs)
    best = raced.best if raced.best is not None else configs[0]
    autotuner.configs_timings = {config: [result.time_us / 1000] * 3 for config, result in raced.results.items()}
    autotuner.bench_time = time.time() - started
    autotuner.cache[call.tuning_key] = best
    # The last launch may have been another candidate's: what it left in the tensors must not differ.
    autotuner.pre_hook(call.arguments(best), reset_only=True)
    return raced


def _settled(times_ms: Mapping[Any, float], noise: float) -> Any:
    configs = list(times_ms)
    finite = {place: times_ms[config] for place, config in enumerate(configs) if math.isfinite(times_ms[config])}
    return configs[settle(finite, noise, tie=noise)]


def _median_ms(timing: object) -> float:
    """The median of what a benchmarker returned: [median, p20, p80], or a number, in milliseconds."""
    median = timing[0] if isinstance(timing, (list, tuple)) and timing else timing
    try:
        time_ms = float(median)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.inf
    return math.inf if math.isnan(time_ms) else time_ms


def _candidate(
    params: tuple[Value, ...], time_ms: float, error: BaseException | None = None, label: str = ""
) -> Candidate:
    if not math.isfinite(time_ms):
        reason = failure_text(error) if error else "did not compile, or needs more than the device has"
        return Candidate(params=params, failed=reason)
    return Candidate(params=params, time_us=float(f"{time_ms * 1000:.4g}"), label=label)


def _params(config: Any) -> tuple[Value, ...]:
    return tuple(stable_value(name, value, dtype_apart=True) for name, value in config.all_kwargs().items())


def _params_of(configs: Sequence[Any]) -> list[tuple[Value, ...]]:
    """The params of each candidate; where those of two are equal, what else they differ in is added.

    :raises UnportableError: when that has no stable form, so that nothing tells the two apart.
    """
    found = [_params(config) for config in configs]
    often = Counter(found)
    return [
        params if often[params] == 1 else (*params, *(_stable_extra(*extra) for extra in _extras(config)))
        for params, config in zip(found, configs, strict=True)
    ]


def _extras(config: Any) -> Iterator[tuple[str, object]]:
    """What a candidate holds that Triton does not pass to the kernel: its ``pre_hook``, and what a backend added."""
    passed = config.all_kwargs()
    for name, value in sorted(vars(config).items()):
        if name != "kwargs" and name not in passed and value is not None:
            yield name, value


def _stable_extra(name: str, value: object) -> Value:
    return Value(name, callable_text(value), "function") if callable(value) else stable_value(name, value)


def _search_text(config: Any) -> str:
    words = [value.encoded for value in _params(config)]
    words += [
        (name, "", str(constant_text(value)), "") for name, value in config.all_kwargs().items() if _has_enum(value)
    ]
    for name, value in _extras(config):
        try:
            words.append(_stable_extra(name, value).encoded)
        except UnportableError:  # enough to see that there is one
            words.append((name, type(value).__qualname__, "", ""))
    override = getattr(config, "ir_override", None)
    if override is not None:
        with suppress(OSError):
            words.append(("ir_override", "text", digest(Path(override).read_text("utf-8", "replace")), ""))
    return repr(words)


_Heuristics = list[tuple[str, Callable[..., object]]]


def _heuristics(autotuner: Any) -> _Heuristics:
    """The functions of ``triton.heuristics`` under and over an autotuner, by the name of the value they make."""
    found: list[Any] = [layer for layer in layers(autotuner.fn) if _is_heuristics(layer)]
    # Who stands over the autotuner only the calls that are under way know: heuristics, then what they call.
    frame = sys._getframe()
    while frame.f_back is not None and not _runs(frame, autotuner):
        frame = frame.f_back
    while frame.f_back is not None and frame.f_back.f_code.co_name == "run":
        frame = frame.f_back
        caller = frame.f_locals.get("self")
        if _is_heuristics(caller) and any(layer is autotuner for layer in layers(caller)):
            found.append(caller)
    return [pair for heuristics in found for pair in heuristics.values.items()]


def _runs(frame: FrameType, autotuner: Any) -> bool:
    return frame.f_code.co_name == "run" and frame.f_locals.get("self") is autotuner


def _is_heuristics(layer: Any) -> bool:
    return type(layer).__name__ == "Heuristics" and isinstance(getattr(layer, "values", None), dict)


def _source(kernel: Any, heuristics: _Heuristics, arguments: Sequence[tuple[str, object]]) -> str:
    """The digest of a kernel with all that is compiled into it and is not in the key."""
    parts = [source_digest(kernel, constant_text, named=False)]
    for name, function in heuristics:
        is_plain = python_function(function) is not None
        parts.append(f"{name}: {source_digest(function, constant_text) if is_plain else callable_text(function)}")
    # The key has the name of an enum's member; its value may be edited.
    parts += [f"{name}: {constant_text(value)}" for name, value in arguments if _has_enum(value)]
    return parts[0] if len(parts) == 1 else digest("\n".join(parts))


def _has_enum(value: object) -> bool:
    value = unwrapped(value)
    return isinstance(value, enum.Enum) or (isinstance(value, (tuple, list)) and any(map(_has_enum, value)))


def _settings(autotuner: Any) -> Iterator[Value]:
    """The settings of Triton that change what is compiled, where they are not what they are by themselves."""
    knobs = sys.modules.get("triton.knobs")
    if knobs is None or _interpreted(autotuner):
        return
    changed = []
    for group_name, names in _SETTINGS.items():
        group = getattr(knobs, group_name, None)
        for name in names:
            value = getattr(group, name, None)
            default = getattr(vars(type(group)).get(name), "default", None)
            default = default() if callable(default) else default  # as in Triton 3.4
            if (value or None) != (default or None):
                changed.append(f"{group_name}.{name}={value}")
    if changed:
        yield Value("settings", ", ".join(changed), "settings")


def _key_values(call: _Call, function: FunctionType, heuristics: _Heuristics) -> Iterator[tuple[str, object]]:
    """What a tuning depends on, by name: positions shift with defaults and keyword arguments."""
    autotuner = call.autotuner
    named = {name: value for name, value in call.named.items() if name in autotuner.arg_names}
    for name in dict.fromkeys(autotuner.keys):
        if name in named:
            yield name, named[name]
    for name, value in named.items():
        yield from _compiled_in(name, value, is_key=name in autotuner.keys)
    yield from _cells("closure", function)
    for name, heuristic in heuristics:
        if (inner := python_function(heuristic)) is not None:
            yield from _cells(f"heuristics.{name}", inner)


def _compiled_in(name: str, value: Any, is_key: bool) -> Iterator[tuple[str, object]]:
    """The dtypes of an argument, in tuples and descriptors too, and functions that the key does not name."""
    if hasattr(value, "dtype"):
        yield f"{name}.dtype", DtypeName(str(value.dtype))
    elif isinstance(value, tuple):
        for position, part in enumerate(value):
            yield from _compiled_in(f"{name}.{position}", part, is_key)
    elif hasattr(getattr(value, "base", None), "dtype"):
        yield f"{name}.base.dtype", DtypeName(str(value.base.dtype))
    elif not is_key and python_function(unwrapped(value)) is not None:
        yield name, value


def _cells(prefix: str, function: FunctionType) -> Iterator[tuple[str, object]]:
    for name, value in closure_cells(function).items():
        if not is_code(value):
            yield f"{prefix}.{name}", value


def _key_value(name: str, value: object) -> Value:
    """Encode a part of a key as Triton compares it: True, 1 and 1.0 are one key there."""
    value = unwrapped(value)
    if isinstance(value, numbers.Integral) and not isinstance(value, enum.Enum):
        return plain_value(name, int(value))
    if isinstance(value, numbers.Real):
        number = float(value)
        return plain_value(name, int(number) if number.is_integer() else number)
    return stable_value(name, value, dtype_apart=not isinstance(value, DtypeName))
