"""The tuner of hand-written kernels, without pytest around it."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import gc
import os
import random
import re
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial, wraps
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Value
from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.tuners import function
from pytest_autotune.tuners.function.identity import multiple_of, power_of_two, source_text
from pytest_autotune.tuners.function.plan import Optuna, Random, find_processor
from pytest_autotune.tuners.function.space import InvalidConfiguration, SpaceError, TuningError, as_space, product
from pytest_autotune.tuners.function.tuner import loss, tune, tuned
from pytest_autotune.tuners.measuring.clocks import HostClock
from pytest_autotune.tuners.measuring.options import Measuring, make_clock
from pytest_autotune.tuners.source.values import DtypeName
from tests.sessions import TIMEOUT_S, a_session, verifying

#: A clock for kernels that return their own time in microseconds.
AS_TOLD = Measuring(clock=lambda call: float(call()))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on every machine, and after tests that used a GPU."""
    monkeypatch.setattr("pytest_autotune.devices.current_gpu", lambda: None)


@pytest.fixture(autouse=True)
def memory() -> Iterator[function.Memory]:
    """The tuner has a memory of the test's own."""
    function.MEMORIES.append(function.Memory())
    yield function.MEMORIES[-1]
    del function.MEMORIES[-1]


#: A measurement by the usual clock, as short as can be.
QUICK = Measuring(measure_ms=0, min_runs=1, max_runs=1)


def identity(config: Any) -> Any:
    return config


# Spaces


def test_tune_returns_the_object_from_the_space_and_not_a_copy() -> None:
    configs = [{"BLOCK": 16}, {"BLOCK": 8}]

    choice = tune("k", space=configs, run=lambda config: config["BLOCK"], measuring=AS_TOLD)

    assert choice is configs[1]


def test_product_omits_combinations_for_which_where_is_false() -> None:
    """The argument `where` of product() rejects combinations."""
    space = product(m=[1, 2], n=[10, 20], where=lambda config: config["m"] * config["n"] < 40)

    assert [candidate.config for candidate in space] == [{"m": 1, "n": 10}, {"m": 1, "n": 20}, {"m": 2, "n": 10}]
    assert space.find((Value("m", 2), Value("n", 20))) is None
    assert space.find((Value("n", 20), Value("m", 1))) == list(space)[1]


@dataclasses.dataclass(frozen=True)
class Tile:
    m: int
    layout: str = "row"


Split = namedtuple("Split", "k")


class Layout(enum.Enum):
    ROW = 1


@pytest.mark.parametrize(
    ("config", "params"),
    [
        ({"b": 1, "a": "x"}, "a=x, b=1"),
        (Tile(4), "layout=row, m=4"),
        (Split(3), "k=3"),
        (5, "config=5"),
        ((1, 2), "config=[1, 2]"),
        ([1, "2"], 'config=[1, "2"]'),
        ({"cluster": ((1, 2), [Layout.ROW])}, 'cluster=[[1, 2], {"list": [{"enum": "Layout.ROW"}]}]'),
        ({"layout": Layout.ROW}, "layout=Layout.ROW"),
    ],
)
def test_candidates_of_every_type_are_shown_as_names_and_values(config: Any, params: str) -> None:
    assert str(next(iter(as_space([config])))) == params


def test_different_candidates_have_different_cache_parameters() -> None:
    """The type of a tuple or list, and of each item, counts. A dtype, an enum member and their texts differ."""
    items: list[Any] = [1, "1", 1.0, True, "True", None, "None", 2**70, str(2**70), Layout.ROW, "Layout.ROW"]
    items += ["fp16", DtypeName("float16"), '{"enum": "Layout.ROW"}', "[1]"]
    items += [(), [], (1,), [1], ([1],), [(1,)], ((1,),), [[1]], (1, 1), (11,), ("1, 1",), ('1", "1',), ("1", "1")]
    configs = [*items, *((item,) for item in items), *([item] for item in items), *((0, [item]) for item in items)]
    distinct = {repr(config): config for config in configs}

    params = [as_space([]).params_of(config) for config in distinct.values()]

    assert len(set(params)) == len(params)


def test_a_tuple_in_a_candidate_is_saved_as_json_and_loaded() -> None:
    """The cache file has `[2, 1]`, as a person writes it. A list of the same numbers is another candidate."""
    space = product(cluster=[(1, 1), (2, 1), [2, 1]], tile=[(64, 128)])
    request = {"space": space, "run": lambda config: 1.0 if config["cluster"] == (2, 1) else 2.0}
    entry = recorded(**request).entry
    assert entry is not None

    text = encode(Cache((entry,)), Format.TEXT).decode()
    [loaded] = decode(text.encode(), Format.TEXT, "c.textproto").entries
    with a_session_of(loaded) as lookups:
        chosen = tune("k", **{**request, "measuring": AS_TOLD, "device": "cpu"})

    assert 'text: "[2, 1]" type: "json.tuple"' in text
    assert str(entry.choice) == "cluster=[2, 1], tile=[64, 128]"
    assert [lookup.outcome for lookup in lookups] == [Outcome.HIT]
    assert chosen == {"cluster": (2, 1), "tile": (64, 128)}


def test_a_space_ignores_order_and_container_of_its_candidates() -> None:
    """A list, an iterator, a mapping and a product of the same configurations have one digest.

    Types of values count.
    """
    listed = as_space([{"m": 2, "n": 1}, {"n": 1, "m": 1}])

    assert listed.digest == as_space(iter([{"m": 1, "n": 1}, {"m": 2, "n": 1}, {"m": 1, "n": 1}])).digest
    assert listed.digest == product(m=range(1, 3), n=[1]).digest == as_space({"n": [1], "m": [1, 2]}).digest
    assert listed.digest != product(m=[1, 2], n=[True]).digest


@pytest.mark.parametrize("space", ["ab", 5, [object()], [{1: 2}]])
def test_an_invalid_candidate_space_is_a_type_error(space: Any) -> None:
    with pytest.raises(TypeError, match="space="):
        tune("k", space=space, run=identity)


@pytest.mark.parametrize(
    ("space", "cause"),
    [
        ([], "the space of configurations is empty"),
        (product(a=[1, 2], where=lambda config: False), "the space of configurations is empty"),
        (
            product(a=[1, 2], where=lambda config: config["a"] < 2 or config["B"]),
            "where= of product() failed for a=2: KeyError: 'B'",
        ),
    ],
    ids=["no candidate", "where rejects all candidates", "where fails"],
)
def test_errors_of_empty_or_contradictory_spaces_name_the_kernel(space: Any, cause: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"function:lib.gemm: {cause}")):
        tune("lib.gemm", space=space, run=identity)


# Keys


def test_helpers_power_of_two_and_multiple_of_round_a_number_up() -> None:
    assert [power_of_two(n) for n in (0, 1, 2, 3, 1000, 1024, 1025)] == [1, 1, 2, 4, 1024, 1024, 2048]
    assert [multiple_of(n, 64) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]
    for call in (lambda: power_of_two(-1), lambda: multiple_of(-1, 8), lambda: multiple_of(1, 0)):
        with pytest.raises(ValueError, match=r"-1|step"):
            call()


@pytest.mark.parametrize("value", [{1}, {"a": [1]}, object()], ids=["set", "dict", "object"])
def test_a_key_value_without_a_stable_form_still_gets_a_choice(value: object) -> None:
    assert tune("lib.gemm", space=[1, 2], run=lambda config: None, key={"m": value}, device="cpu") in (1, 2)


def test_a_key_name_that_is_not_in_utf8_is_uncacheable() -> None:
    """A kernel or a candidate of such a name is an error. No dump could be written with the name."""
    with a_session_of(is_dumping=True) as lookups:
        for value in (1, (1,)):
            tune("lib.gemm", space=[1, 2], run=identity, key={"\ud800": value}, device="cpu")
    assert [lookup.outcome for lookup in lookups] == [Outcome.UNCACHEABLE] * len(lookups)
    for kernel, space in (("lib.\ud800", [1, 2]), ("lib.gemm", [{"\ud800": 1}, {"\ud800": 2}])):
        with pytest.raises(TypeError, match="UTF-8"):
            tune(kernel, space=space, run=identity, device="cpu")


def test_loss_says_how_much_slower_a_candidate_is_than_the_best() -> None:
    arguments: dict[str, Any] = {
        "space": [{"BLOCK": 1}, {"BLOCK": 2}, {"BLOCK": 3}],
        "run": lambda config: {1: 10.0, 2: 8.0, 3: 20.0}[config["BLOCK"]],
        "measuring": AS_TOLD,
    }

    measured_loss = loss({"BLOCK": 1}, **arguments)

    assert measured_loss.share == 0.25
    assert str(measured_loss.best) == "BLOCK=2"
    assert loss({"BLOCK": 2}, **arguments).share == 0.0
    with pytest.raises(ValueError, match="not in the space"):
        loss({"BLOCK": 4}, **arguments)
    with pytest.raises(TuningError, match="BLOCK=1 cannot be used here: wrong result"):
        loss({"BLOCK": 1}, verify=lambda config, result: config["BLOCK"] != 1, **arguments)


# Failures


def test_an_expected_error_or_wrong_result_rejects_a_candidate() -> None:
    """Any other error ends the search, unless strict=False."""

    def run(config: int) -> float:
        if config == 1:
            raise MemoryError("too much shared memory")
        if config == 2:
            raise InvalidConfiguration("not on this device")
        return float(config)

    def verify(config: int, result: float) -> Any:
        return config != 3

    space = [1, 2, 3, 4, 5]
    assert tune("k", space=space, run=run, verify=verify, invalid=MemoryError, measuring=AS_TOLD) == 4
    with pytest.raises(MemoryError):
        tune("strict", space=space, run=run, verify=verify, measuring=AS_TOLD)
    assert tune("lax", space=space, run=run, strict=False, measuring=AS_TOLD) == 3


def test_an_error_text_with_invalid_unicode_is_recorded_escaped() -> None:
    def run(config: int) -> float:
        if config == 1:
            raise InvalidConfiguration("cannot open '/tmp/\udcff'")
        return float(config)

    lookup = recorded(space=[1, 2, 3], run=run)

    assert lookup.entry is not None
    assert lookup.entry.candidates[0].failed == r"cannot open '/tmp/\udcff'"


def test_uncacheable_calls_with_equal_stable_keys_count_once() -> None:
    """Two calls with equal stable values are one problem."""
    with a_session_of(is_dumping=True) as lookups:
        for n in (1, 2, 1):
            tune("k", space=[1, 2], run=identity, key={"n": n, "what": object()}, measuring=AS_TOLD, device="cpu")

    assert {str(lookup.problem) for lookup in lookups} == {"function:k (n=1)", "function:k (n=2)"}


def test_a_candidate_with_a_measured_time_of_nan_is_not_chosen() -> None:
    clock = Measuring(clock=lambda call: [float("nan")] if call() == 1 else 5.0)

    assert tune("k", space=[1, 2], run=identity, measuring=clock) == 2


def test_device_that_breaks_during_tuning_raises_a_tuning_error(monkeypatch: Any) -> None:
    def broken(self: Any) -> None:
        raise RuntimeError("an illegal memory access was encountered\nmore")

    def run(config: int) -> None:
        monkeypatch.setattr(HostClock, "synchronise", broken)
        raise InvalidConfiguration("the launch failed")

    message = r"function:k: the device no longer works after config=1 \(the launch failed\): an illegal memory access"
    with pytest.raises(TuningError, match=message):
        tune("k", space=[1, 2], run=run)


# Measuring


def test_setup_reset_and_verify_are_called_in_order_around_runs() -> None:
    """A candidate has a reset before each run and a setup before each measurement. Its result is verified once."""
    seen: list[str] = []

    def note(step: str, config: Any, *result: Any) -> None:
        seen.append(step)

    tune(
        "k",
        space=[1, 2],
        run=lambda config: time.sleep(0.01 * config**3) or seen.append("run"),
        setup=partial(note, "setup"),
        reset=partial(note, "reset"),
        verify=partial(note, "verify"),
        measuring=Measuring(measure_ms=0, min_runs=2),
    )

    assert seen[:8] == ["setup", "reset", "run", "verify"] * 2
    assert seen.count("verify") == 2
    assert seen.count("reset") == seen.count("run")
    # Whoever runs after another candidate has been set up for it.
    assert seen[8:11] == ["setup", "reset", "run"]


def test_a_user_defined_clock_measures_each_candidate_only_once() -> None:
    """A difference of 0.4 % between the clock's times is enough."""
    times = {1: iter([100.4]), 2: iter([100.0]), 3: iter([200.0])}

    choice = tune("k", space=[1, 2, 3], run=lambda config: next(times[config]), measuring=AS_TOLD)

    assert choice == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_runs": 0},
        {"min_runs": 5, "max_runs": 4},
        {"flush_l2": True, "clock": lambda call: 1.0},
    ],
    ids=["no run", "more least runs than most runs", "flush_l2 with a clock of the user"],
)
def test_invalid_arguments_of_class_measuring_are_a_value_error(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|flush_l2"):
        Measuring(**wrong)


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("name", ["", "cuda"])
def test_an_unknown_clock_name_is_a_value_error(name: str, on_gpu: bool) -> None:
    """The name may come from a variable that is not set."""
    with pytest.raises(ValueError, match=f"clock='{name}': expected"):
        make_clock(name, on_gpu, flush_l2=False)


# Compiling


def test_on_a_cpu_measuring_waits_for_the_compile_threads() -> None:
    compiling: list[int] = []
    beside: list[int] = []

    def compile(config: int) -> None:
        compiling.append(config)
        time.sleep(0.05 * config)
        compiling.remove(config)

    def run(config: int, compiled: None) -> float:
        beside.extend(compiling)
        return float(config)

    tune("k", space=[1, 2, 3], run=run, compile=compile, measuring=AS_TOLD)

    assert beside == []


@pytest.mark.parametrize("options", [{}, {"strategy": Random(trials=2)}], ids=["all", "random"])
def test_with_one_compile_thread_the_calling_thread_compiles(options: dict[str, Any]) -> None:
    """CuTe DSL aborts the process where another thread compiles."""
    seen: list[tuple[str, int]] = []

    def compile(config: int) -> int:
        seen.append((threading.current_thread().name, config))
        return config

    def run(config: int, compiled: int) -> float:
        seen.append(("run", compiled))
        return float(compiled)

    tune("k", space=[1, 2], run=run, compile=compile, compile_threads=1, measuring=AS_TOLD, **options)

    compiled = [name for name, _ in seen if name != "run"]
    assert compiled == [threading.current_thread().name] * 2


def test_an_expected_compile_error_rejects_only_its_candidate() -> None:
    """An expected error rejects the candidate. Any other error ends the search, and nothing more is compiled."""
    compiled: list[int] = []

    def compile(config: int) -> int:
        compiled.append(config)
        if config == 2:
            raise InvalidConfiguration("too large")
        if config == 4:
            raise LookupError("no compiler")
        return config

    def ask(kernel: str, *space: int) -> Any:
        how = {"compile": compile, "compile_threads": 1, "measuring": AS_TOLD}
        return tune(kernel, space=space, run=lambda config, compiled: float(compiled), **how)

    assert ask("k", 3, 2, 1) == 1
    with pytest.raises(LookupError, match="no compiler"):
        ask("other", 4, 5, 6)
    assert compiled == [3, 2, 1, 4], "nothing is compiled after an error that ends the search"


def test_argument_compile_threads_limits_parallel_compilations() -> None:
    now: list[int] = []
    most: list[int] = []

    def compile(config: int) -> None:
        now.append(config)
        time.sleep(0.02)
        most.append(len(now))
        now.remove(config)

    tune("k", space=range(9), run=lambda config, _: 1.0, compile=compile, compile_threads=3, measuring=AS_TOLD)

    assert max(most) == 3


@pytest.mark.parametrize("threads", [0, -1, True, 1.0, "2"])
def test_an_invalid_number_of_compile_threads_is_an_error(threads: Any) -> None:
    for call in (partial(tune, "k"), partial(loss, 1)):
        with pytest.raises((TypeError, ValueError), match=r"\Acompile_threads=.*\Z"):
            call(space=[1, 2], run=identity, compile_threads=threads)


# Strategies


def test_two_optuna_searches_try_the_same_candidates(memory: function.Memory) -> None:
    """The search has at most 60 trials and respects the constraint of the space."""
    pytest.importorskip("optuna")

    def search() -> tuple[Any, list[int]]:
        memory.chosen.clear()
        tried: list[int] = []

        def run(config: dict[str, int]) -> float:
            tried.append(config["a"] * 100 + config["b"])
            if config["b"] == 7:
                raise InvalidConfiguration("odd")
            return 1.0 + abs(config["a"] - 12) + abs(config["b"] - 3)

        choice = tune(
            "k",
            space=product(a=range(64), b=range(64), where=lambda config: config["a"] != 5),
            run=run,
            strategy=Optuna(trials=60),
            measuring=AS_TOLD,
        )
        return choice, list(dict.fromkeys(tried))

    choice, tried = search()

    assert search() == (choice, tried)
    assert len(tried) <= 60
    assert not [number for number in tried if number // 100 == 5]
    assert abs(choice["a"] - 12) + abs(choice["b"] - 3) < 40


def test_two_random_searches_try_the_same_candidates(memory: function.Memory) -> None:
    def search() -> list[int]:
        memory.chosen.clear()
        tried: list[int] = []

        def run(config: int) -> float:
            tried.append(config)
            return float(config)

        tune("k", space=range(100), run=run, strategy=Random(trials=7), measuring=AS_TOLD)
        return tried

    assert search() == search()
    assert len(set(search())) == 7


def test_optuna_strategy_without_optuna_names_the_pip_command(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)

    with pytest.raises(TuningError, match=r"pip install 'pytest-autotune\[search\]'"):
        tune("k", space=[1, 2], run=identity, strategy=Optuna(trials=1), measuring=AS_TOLD)


@pytest.mark.parametrize("trials", [0, -1])
@pytest.mark.parametrize("strategy", [Random, Optuna])
def test_a_search_strategy_with_zero_trials_is_a_value_error(strategy: Any, trials: int) -> None:
    with pytest.raises(ValueError, match=rf"{strategy.__name__}\(trials={trials}\): expected one or more"):
        strategy(trials=trials)


def test_an_unknown_search_strategy_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="strategy="):
        tune("k", space=[1, 2], run=identity, strategy="guess")


# Fingerprints


@contextmanager
def a_session_of(*entries: Entry, **policy: Any) -> Iterator[list[Lookup]]:
    """Yield the lookups of this tuner in a run."""
    run, lookups = a_session(entries or None, **policy)
    adapter = function.Adapter()
    adapter.hook(function, run)
    yield lookups
    adapter.unhook()


def recorded(**request: Any) -> Lookup:
    """Return the lookup of one call."""
    with a_session_of() as lookups:
        tune("k", **{"space": [1, 2], "run": identity, "measuring": AS_TOLD, "device": "cpu", **request})
    return lookups[-1]


def names(lookup: Lookup) -> list[str]:
    return [value.name for value in lookup.fingerprint]


def test_an_entry_records_the_space_the_source_and_the_version() -> None:
    assert names(recorded(version=3, measuring=QUICK)) == ["source", "space", "version"]
    assert recorded(version=(1, "a")).label == ""
    assert recorded(source="__global__ void k() {}").fingerprint != recorded(source="").fingerprint


class OutOfMemoryError(Exception):
    """The error of torch and CuPy has this name."""


@pytest.mark.parametrize(
    ("error", "is_recorded"),
    [
        (MemoryError(), False),
        (OutOfMemoryError("Out of memory allocating 2,000 bytes"), False),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"), False),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("CUDA error: out of memory at ops.cu:21"), False),
        (RuntimeError("OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)"), False),
        (RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("level_zero backend failed with error: 38 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)"), False),
        (RuntimeError("XPU out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1.00 GB)"), False),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
            False,
        ),
        (RuntimeError("Triton Error [CUDA]: out of memory"), False),
        (RuntimeError("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"), False),
        (RuntimeError("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"), False),
        (RuntimeError("cudaErrorMemoryAllocation (error code: 2)"), False),
        (RuntimeError("hipError_t.hipErrorOutOfMemory"), False),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."), False),
        (RuntimeError("RESOURCE_EXHAUSTED: Failed to allocate request for 16.00GiB on device ordinal 0"), False),
        (RuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 40M of 16M vmem."), True),
        (RuntimeError("the tile needs more slots than are left out of memory slots"), True),
        (RuntimeError("no such mode"), True),
    ],
)
def test_a_lack_of_memory_in_every_candidate_is_not_recorded(error: Exception, is_recorded: bool) -> None:
    def run(config: int) -> None:
        raise error

    with a_session_of() as lookups, pytest.raises(TuningError):
        tune("k", space=[1, 2], run=run, strict=False, measuring=AS_TOLD, device="cpu")

    assert (lookups[-1].entry is not None) == is_recorded


def test_an_entry_of_a_function_from_eval_says_it_has_no_source() -> None:
    """The label of the entry says so."""
    unread = eval("lambda config: config")
    of_lambda = recorded(run=unread, measuring=QUICK)

    assert names(of_lambda) == ["space"]
    assert of_lambda.label == "fingerprint: without a source that cannot be read"
    assert recorded(source=[identity, unread]).label == of_lambda.label


def test_other_line_ends_are_no_source_change_but_other_text_is(tmp_path: Path) -> None:
    """The kind of line ends does not matter."""
    file = tmp_path / "kernel.cu"
    file.write_bytes(b"a\nb")
    first = source_text(file)
    file.write_bytes(b"a\r\nb")
    assert source_text(file) == first
    file.write_bytes(b"a\r\nbc")
    assert source_text(file) != first
    with pytest.raises(FileNotFoundError):
        source_text(tmp_path / "none")


def test_processes_record_equal_source_and_space_for_a_function() -> None:
    script = (
        "from tests.test_function_tuner import recorded; print(recorded(version=1, space={'2', '10', '1'}).fingerprint)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parent.parent,
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(outputs) == 1
    assert "source" in outputs.pop()


# Devices


def test_without_a_gpu_in_use_tune_uses_the_cpu_by_default() -> None:
    """Without a GPU in use, the device is the CPU. An unknown device is an error."""
    opencl = Device("pthread-AMD EPYC", "pocl", 2)

    assert find_processor("cpu").lock == "cpu"
    assert find_processor(opencl) == type(find_processor(opencl))(opencl, opencl.id)
    with pytest.raises(TypeError, match="device="):
        find_processor("tpu")
    assert find_processor(None) == find_processor("cpu")
    with pytest.raises(TuningError, match="allocate the inputs first"):
        find_processor("cuda")


# Memory


def test_without_a_plugin_run_each_key_is_tuned_once_per_process() -> None:
    runs: list[int] = []

    def run(config: int) -> float:
        runs.append(config)
        return float(config)

    for m in (1, 2, 1, 2):
        assert tune("k", key={"m": m}, space=[1, 2], run=run, measuring=AS_TOLD) == 1
    assert len(runs) == 4


def test_threads_that_request_one_problem_at_once_tune_it_once() -> None:
    runs: list[int] = []
    barrier = threading.Barrier(4)

    def run(config: int) -> float:
        runs.append(config)
        time.sleep(0.02)
        return float(config)

    def ask() -> None:
        barrier.wait()
        tune("k", space=[1, 2], run=run, measuring=AS_TOLD)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

    assert sorted(runs) == [1, 2]


@pytest.mark.timeout(30)  # they waited for two minutes
def test_two_tunings_that_wait_for_each_other_do_not_deadlock() -> None:
    """Each tuning runs the other tuning in a new thread. The tunings give up waiting and go on alone."""
    both = threading.Barrier(2)
    waits = {"a": "b", "b": "a"}

    def ask(kernel: str) -> None:
        def run(config: int) -> float:
            if other := waits.pop(kernel, ""):
                both.wait()
                in_a_thread(other).join()
            return float(config)

        tune(kernel, space=[1, 2], run=run, measuring=AS_TOLD)

    def in_a_thread(kernel: str) -> threading.Thread:
        thread = threading.Thread(target=ask, args=(kernel,), daemon=True)
        thread.start()
        return thread

    with a_session_of() as lookups:
        for thread in [in_a_thread(kernel) for kernel in "ab"]:
            thread.join()
    assert {lookup.problem.kernel for lookup in lookups} == {"a", "b"}


@pytest.mark.timeout(60)
def test_a_tuning_that_waited_in_vain_does_not_wait_again() -> None:
    """Each candidate tunes the other thread's problem, which fails."""
    both = threading.Barrier(2)
    begun: list[str] = []

    def ask(kernel: str, is_inner: bool = False) -> None:
        def run(config: int) -> float:
            if is_inner:
                raise LookupError(kernel)
            if kernel not in begun:
                begun.append(kernel)
                both.wait()
            with suppress(LookupError):
                ask({"a": "b", "b": "a"}[kernel], is_inner=True)
            return float(config)

        tune(kernel, space=range(8), run=run, measuring=AS_TOLD, source="", device="cpu")

    threads = [threading.Thread(target=ask, args=(kernel,), daemon=True) for kernel in "ab"]
    with a_session_of() as lookups:
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert time.monotonic() - began < 3 * TIMEOUT_S
    assert sorted(lookup.problem.kernel for lookup in lookups if lookup.is_tuned) == ["a", "b"]


def test_a_tuning_inside_a_tuning_records_both_problems() -> None:
    def outer(config: int) -> float:
        return config + tune("inner", space=[1, 2], run=identity, measuring=AS_TOLD)

    with a_session_of() as lookups:
        assert tune("outer", space=[5, 4], run=outer, measuring=AS_TOLD) == 4
    assert sorted(lookup.problem.kernel for lookup in lookups) == ["inner", "outer"]


class StubWithVersion(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__version__ = "2.0"

    def __getattr__(self, name: str) -> StubWithVersion:
        if name.startswith("__"):
            raise AttributeError(name)
        return StubWithVersion(name)


@pytest.mark.parametrize(
    "stub", [ModuleType("stub"), StubWithVersion("stub"), Mock()], ids=["module", "version", "mock"]
)
@pytest.mark.parametrize("library", ["torch", "numpy", "numpy.random"])
def test_a_tuning_does_not_use_a_stub_of_a_library(monkeypatch: pytest.MonkeyPatch, library: str, stub: object) -> None:
    """Suites that run without torch put such a stub in its place."""
    monkeypatch.setitem(sys.modules, library, stub)
    assert tune("k", space=[3, 1, 2], run=identity, measuring=AS_TOLD) == 1


def test_optuna_measures_candidates_with_different_fields() -> None:
    """No combination of all fields is a candidate, so Optuna cannot propose any."""
    pytest.importorskip("optuna")
    space = [{"A": 4}, {"B": 3}, {"C": 2}, {"D": 1}]

    chosen = tune("k", space=space, run=lambda config: sum(config.values()), measuring=AS_TOLD, strategy=Optuna(2))

    assert chosen in space


def large_product(limit: int) -> Any:
    axes = {"A": range(60), "B": range(60), "C": range(60)}
    return product(where=lambda config: sum(config.values()) <= limit, **axes)


def test_large_products_with_different_limits_in_where_are_two_problems() -> None:
    """The digest of a product that is too large to be listed has the constraint with the values that it carries."""
    assert large_product(100).digest == large_product(100).digest != large_product(20).digest


def test_a_large_space_with_one_allowed_combination_has_one_configuration() -> None:
    axes = {name: range(4) for name in "ABCDEFGHI"}
    only = product(where=lambda config: sum(config.values()) == 27, **axes).only

    assert only is not None
    assert set(only.config.values()) == {3}


def test_a_where_that_no_longer_allows_the_choice_is_an_error() -> None:
    limits = [3]
    space = product(where=lambda config: config["A"] <= limits[0], A=[1, 2, 3])
    assert tune("k", space=space, run=lambda config: 9 - config["A"], measuring=AS_TOLD) == {"A": 3}

    limits[0] = 2

    with pytest.raises(
        SpaceError, match=r"\Afunction:k: where= of product\(\) refuses a choice that it allowed before"
    ):
        tune("k", space=space, run=lambda config: 9 - config["A"], measuring=AS_TOLD)


@pytest.mark.parametrize("callback", ["run", "setup", "reset"])
def test_a_stop_iteration_of_a_callback_reaches_the_caller(callback: str) -> None:
    """An iterator of inputs runs out."""
    inputs = iter(range(5 if callback != "setup" else 2))
    callbacks: dict[str, Any] = {"run": identity, callback: lambda config: next(inputs)}

    with pytest.raises(StopIteration):
        tune("k", space=[1, 2, 3], measuring=QUICK, device="cpu", **callbacks)


def test_a_failed_tuning_inside_a_tuning_is_no_failure_of_the_outer_one() -> None:
    """The outer tuning ends with the inner error and records nothing, because it did not try its other candidates."""

    def refuse(config: int) -> None:
        raise InvalidConfiguration("not here")

    def outer(config: int) -> None:
        if config == 2:
            tune("inner", space=[1, 2], run=refuse)

    with a_session_of() as lookups, pytest.raises(TuningError, match="not here"):
        tune("outer", space=[1, 2, 3], run=outer)
    outcomes = {lookup.problem.kernel: (lookup.entry is not None, lookup.unrecorded_reason) for lookup in lookups}
    assert outcomes["inner"] == (True, "")
    assert outcomes["outer"][0] is False
    assert "TuningError" in outcomes["outer"][1]


def test_a_tuning_leaves_the_random_number_generators_unchanged() -> None:
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")

    def run(config: int) -> float:
        random.random(), numpy.random.rand(), torch.rand(1)
        return float(config)

    def draw() -> tuple[float, ...]:
        return random.random(), float(numpy.random.rand()), float(torch.rand(1))

    def seeded() -> None:
        random.seed(1), numpy.random.seed(1), torch.manual_seed(1)

    seeded()
    without = draw()
    seeded()
    tune("k", space=[1, 2], run=run, measuring=AS_TOLD)
    assert draw() == without
    seeded()
    with pytest.raises(TuningError):
        tune("f", space=[1, 2], run=run, verify=lambda config, result: False, measuring=AS_TOLD)
    assert draw() == without


# The package


def test_callbacks_of_decorator_tuned_get_arguments_of_the_call() -> None:
    """The decorated function keeps its docstring and tunes each key once."""
    script = """
from pytest_autotune import Measuring, tuned
seen = []

def clock(call):
    return float(call())

def verify(config, result, n, *, scale):
    seen.append((config["a"], result, n, scale))
    return config["a"] != 1

def compile(config, n, *, scale):
    seen.append(("compiled", config["a"]))

@tuned(space={"a": [1, 2, 3]}, key=lambda n, scale: {"n": n}, verify=verify, compile=compile,
       measuring=Measuring(clock=clock))
def kernel(n, *, scale, config):
    '''Doc.'''
    return n * scale * config["a"]

assert kernel(5, scale=2) == 20, seen
assert kernel.__doc__ == "Doc."
assert sorted(seen[:3]) == [("compiled", 1), ("compiled", 2), ("compiled", 3)]
assert (3, 30, 5, 2) in seen
before = len(seen)
assert kernel(5, scale=3) == 30 and len(seen) == before
"""
    subprocess.run([sys.executable, "-c", script], check=True)


# Races of loaded choices


def hit(choice: Any, **request: Any) -> tuple[Any, Any]:
    """Race the loaded choice of a call, and return the choice that the call got and the verdict."""
    with a_session_of(is_dumping=True) as lookups:
        tune("k", **request)
    entry = lookups[0].entry
    assert entry is not None
    entry = dataclasses.replace(entry, choice=Candidate(params=(Value("config", choice),)))
    mode = verifying()
    with a_session_of(entry, modes=(mode,)) as lookups:
        chosen = tune("k", **request)
    [lookup] = lookups
    assert (lookup.outcome, lookup.is_tuned) == (Outcome.HIT, False)
    [verdict] = mode.verdicts
    return chosen, verdict


def test_a_verify_run_reports_a_slower_choice_and_still_uses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call uses the loaded choice, even if the verdict calls it slower."""
    now_ns = [0]

    def run(milliseconds: float) -> None:
        now_ns[0] += int(milliseconds * 1e6)

    monkeypatch.setattr(
        "pytest_autotune.tuners.measuring.clocks.HostTime", SimpleNamespace(perf_counter_ns=lambda: now_ns[0])
    )
    request = {"space": [0.5, 1.0], "run": run, "measuring": Measuring(measure_ms=5)}

    slow, slower = hit(1.0, **request)
    fast, good = hit(0.5, **request)

    assert (slow, fast) == (1.0, 0.5)
    assert slower.slower == 1.0
    assert slower.faster == "config=0.5"
    assert (good.not_raced, good.is_slower) == ("", False)


# References that a tuning keeps


class Tensor:
    """The argument of a kernel."""


@pytest.mark.parametrize("fails", ["compiling", "at its first run", "in the race", "in the caller's benchmark"])
def test_a_tuning_keeps_no_reference_to_a_tensor_of_the_caller(fails: str) -> None:
    runs: list[int] = []

    def fail(config: int, tensor: Tensor) -> None:
        try:
            raise LookupError(tensor)
        except LookupError as cause:
            raise InvalidConfiguration("too large") from cause

    def tuned(tensor: Tensor) -> weakref.ref[Tensor]:
        def compile(config: int) -> Tensor:
            return fail(2, tensor) or tensor if config == 2 and fails == "compiling" else tensor

        def run(config: int, compiled: Tensor) -> None:
            runs.append(config)
            if config == 2 and runs.count(2) == (2 if fails == "in the race" else 1):
                fail(config, tensor)

        measuring = Measuring(clock=lambda call: (call(), 1.0)[1]) if "benchmark" in fails else QUICK
        tune(fails, space=[1, 2, 3], compile=compile, run=run, measuring=measuring)
        return weakref.ref(tensor)

    gc.disable()
    try:
        tensor = tuned(Tensor())
        assert tensor() is None
    finally:
        gc.enable()


def test_compile_threads_see_the_callers_context_variables() -> None:
    mode: ContextVar[str] = ContextVar("mode", default="of nobody")
    seen = []
    mode.set("of the test")

    tune("kernel", space=[1, 2, 3], run=lambda config, compiled: None, compile=lambda config: seen.append(mode.get()))

    assert seen == ["of the test"] * 3


def test_candidates_as_numbers_and_as_mappings_are_two_spaces() -> None:
    """The configurations 1 and {"config": 1} have the same params."""
    plain, named = as_space([1, 2]), as_space([{"config": 1}, {"config": 2}])
    assert plain.digest != named.digest
    assert named.digest == product(config=[2, 1]).digest


@dataclasses.dataclass(frozen=True)
class OtherTile:
    m: int
    layout: str = "row"


OtherSplit = namedtuple("OtherSplit", "k")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, {"config": 1}),
        (Tile(4), OtherTile(4)),
        (Split(3), OtherSplit(3)),
        (Tile(4), {"m": 4, "layout": "row"}),
        ({"split": (Split(3), 1)}, {"split": (OtherSplit(3), 1)}),
        (Layout.ROW, enum.Enum("Layout", "ROW").ROW),
    ],
    ids=["value and mapping", "dataclasses", "named tuples", "dataclass and mapping", "inner tuples", "enums"],
)
def test_candidates_that_a_cache_cannot_tell_apart_raise(first: object, second: object) -> None:
    """Both would have the same params, so the second candidate would never be tried."""
    message = (
        f"space=: a cache cannot tell {first!r} and {second!r} apart: list only one of them, or add a field that "
        "differs"
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        tune("k", space=[first, second], run=identity)


def test_axis_values_that_a_cache_cannot_tell_apart_raise() -> None:
    with pytest.raises(TypeError, match="a cache cannot tell Split"):
        product(split=[Split(3), OtherSplit(3)])


def test_candidates_without_a_stable_form_are_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"\Aproduct\(\): axis is a object, which has no stable form\Z"):
        product(axis=[1, object()])
    with pytest.raises(TypeError, match=r"\Aspace=: inner is a object, which has no stable form\Z"):
        as_space([{"inner": (1, object())}])


def test_a_candidate_that_is_listed_twice_is_tried_once() -> None:
    """Mappings of two classes with the same items are one candidate, too."""
    assert len(list(as_space([Tile(4), Tile(4)]))) == 1
    assert len(list(as_space([{"m": 4}, OrderedDict(m=4)]))) == 1


def build_functions_without_source() -> list[Any]:
    namespace: dict[str, Any] = {"__name__": "made"}
    exec("def double(x): return 2 * x\ndef triple(x): return 3 * x", namespace)
    return [namespace["double"], namespace["triple"]]


@pytest.mark.parametrize("form", ["listed", "named", "product"])
def test_a_space_with_a_function_without_source_is_uncacheable(form: str) -> None:
    functions = build_functions_without_source()
    named = [{"function": function} for function in functions]
    spaces: dict[str, Any] = {"listed": functions, "named": named, "product": product(function=functions)}

    def run(config: Any) -> int:
        if form == "listed":
            return int(config(1))
        return int(config["function"](1))

    with a_session_of(is_dumping=True) as lookups:
        chosen = tune("k", space=spaces[form], run=run, measuring=AS_TOLD, device="cpu")

    assert run(chosen) == 2
    assert [lookup.outcome for lookup in lookups] == [Outcome.UNCACHEABLE]
    assert lookups[0].reason == "space=: the source of made.double cannot be read"


def test_overriding_a_called_method_is_a_source_change() -> None:
    sources = []

    class Base:
        @tuned(space=[1, 2])
        def work(self, x: int, config: int) -> int:
            return self.scale(x)

        def scale(self, x: int) -> int:
            return x * 2

    class Derived(Base):
        def scale(self, x: int) -> int:
            return x * 3

    for cls in (Base, Derived):
        tuned_function = cls.work.__closure__[0].cell_contents  # type: ignore[attr-defined]
        (source,) = tuned_function._list_sources((cls(), 1), {})
        sources.append(source_text(source))
    assert sources[0] != sources[1]


def test_overriding_a_called_classmethod_is_a_source_change() -> None:
    """Python makes a bound method of the class, so the class is the first argument."""
    sources = []

    class Base:
        @classmethod
        @tuned(space=[1, 2])
        def work(cls, x: int, config: int) -> int:
            return cls.scale(x)

        @classmethod
        def scale(cls, x: int) -> int:
            return x * 2

    class Derived(Base):
        @classmethod
        def scale(cls, x: int) -> int:
            return x * 3

    for cls in (Base, Derived):
        tuned_function = cls.work.__func__.__closure__[0].cell_contents  # type: ignore[attr-defined]
        (source,) = tuned_function._list_sources((cls, 1), {})
        sources.append(source_text(source))
    assert sources[0] != sources[1]


async def coroutine(*values: Any) -> None:
    raise AssertionError("was run")


def generator(*values: Any) -> Iterator[None]:
    yield
    raise AssertionError("was run")


async def asynchronous_generator(*values: Any) -> AsyncIterator[None]:
    yield
    raise AssertionError("was run")


class Deferred:
    async def method(self, *values: Any) -> None:
        raise AssertionError("was run")

    async def __call__(self, *values: Any) -> None:
        raise AssertionError("was run")


DEFERRED = {
    "coroutine": coroutine,
    "generator": generator,
    "asynchronous generator": asynchronous_generator,
    "partial": partial(generator, 1),
    "method": Deferred().method,
    "partial of a method": partial(Deferred().method),
    "object": Deferred(),
    "lambda": lambda *values: coroutine(*values),
    "lambda of a generator": lambda *values: generator(*values),
    "lambda of an asynchronous generator": lambda *values: asynchronous_generator(*values),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", ["run", "compile", "setup", "reset", "verify"])
@pytest.mark.parametrize("callback", DEFERRED.values(), ids=DEFERRED)
def test_a_coroutine_or_generator_as_callback_is_a_type_error(callback: Any, name: str, strict: bool) -> None:
    """A candidate would be timed and accepted although its body never ran."""
    options: dict[str, Any] = {"run": lambda *values: 1, "measuring": QUICK, "device": "cpu", name: callback}
    with pytest.raises(TypeError, match=rf"\A{name}= returns an? [a-z ]+, which has not run yet: pass a .*\Z") as error:
        tune("deferred", space=[1, 2], strict=strict, **options)
    assert "\n" not in str(error.value)
    assert ("asyncio.run" in str(error.value)) == ("coroutine" in str(error.value))


def test_a_generator_under_the_tuned_decorator_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"\Athe function under @tuned returns a generator"):
        tuned(space=[1, 2])(generator)
    with pytest.raises(TypeError, match="reset= returns a coroutine"):
        tuned(space=[1, 2], reset=coroutine)
    with pytest.raises(TypeError, match="where= returns a coroutine"):
        product(where=coroutine, n=[1, 2])


def test_a_function_that_runs_a_coroutine_to_its_end_is_tuned() -> None:
    async def launch(config: int) -> int:
        return config

    @wraps(launch)
    def run(config: int) -> int:
        return asyncio.run(launch(config))

    assert tune("plain", space=[1, 2], run=run, measuring=AS_TOLD, device="cpu") == 1
