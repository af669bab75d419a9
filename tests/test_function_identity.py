"""What a hand-written tuner's choice belongs to: the source, and what its functions carry."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Optional

import pytest

import pytest_autotune
from pytest_autotune.cache import stores
from pytest_autotune.cache.model import UnportableError, Value
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.tuners.function.how_tuned import how_measured, how_searched
from pytest_autotune.tuners.function.source_text import _read, source_text
from pytest_autotune.tuners.function.space import as_space
from pytest_autotune.tuners.function.strategies import as_strategy
from pytest_autotune.tuners.function.tuner import TUNER
from pytest_autotune.tuners.measuring.how import Measuring
from pytest_autotune.tuners.shared.values import stable_value
from tests.test_function_tuner import a_run

#: A clock for kernels that return their own time in microseconds.
AS_TOLD = Measuring(clock=lambda call: float(call()))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on every machine, and after tests that used a GPU."""
    monkeypatch.setattr("pytest_autotune.devices.current_gpu", lambda: None)


@pytest.fixture
def looked_up() -> Any:
    """The lookups of a run that sees what the process's tuner does."""
    run, lookups = a_run()
    layer = TUNER.attach(run)
    yield lookups
    TUNER.detach(layer)


def chosen(run: Any, key: Any = None, **options: Any) -> Any:
    return pytest_autotune.tune("k", key=key, space=[1, 2, 4], run=run, measuring=AS_TOLD, **options)


def fastest_at(best: int) -> Any:
    return lambda config: abs(config - best)


def distance(best: int, config: int, scale: int = 1) -> int:
    return abs(config - best) * scale


class Runner:
    def __init__(self, best: int) -> None:
        self.best = best
        self.runs = 0
        self.seen: list[int] = []

    def run(self, config: int) -> int:
        self.runs += 1
        self.seen.append(config)
        return abs(config - self.best)

    def __call__(self, config: int) -> int:
        return abs(config - self.best)


def closure(best: int) -> Any:
    def run(config: int) -> int:
        return abs(config - best)

    return run


def default(best: int) -> Any:
    return lambda config, best=best: abs(config - best)


@pytest.mark.parametrize(
    "make",
    [
        fastest_at,
        closure,
        default,
        lambda best: partial(distance, best),
        lambda best: partial(scaled, best=best),
        lambda best: Runner(best).run,
        Runner,
        lambda best: lambda config: fastest_at(best)(config),
        lambda best: closure((best,)[0]),
    ],
    ids=["lambda", "closure", "default", "partial", "keyword", "method", "callable", "nested", "tuple"],
)
def test_two_functions_of_one_text_get_the_choice_that_each_carries(looked_up: list[Lookup], make: Any) -> None:
    assert (chosen(make(1)), chosen(make(4)), chosen(make(1))) == (1, 4, 1)
    assert len(looked_up) == 2
    assert len({lookup.fingerprint for lookup in looked_up}) == 2


def scaled(config: int, best: int) -> int:
    return abs(config - best)


def test_functions_under_a_decorator_carry_what_they_close_over_and_not_the_call(looked_up: list[Lookup]) -> None:
    def make(best: int) -> Any:
        @pytest_autotune.tuned(space=[1, 2, 4], measuring=AS_TOLD)
        def kernel(scale: int, *, config: int) -> int:
            return abs(config - best) * scale

        return kernel

    assert (make(1)(1), make(4)(1), make(1)(2)) == (0, 0, 0)
    assert len(looked_up) == 2


SEEN: list[int] = []
CALLS = 0
FASTEST = 2


def counted(config: int) -> int:
    global CALLS
    CALLS += 1
    SEEN.append(config)
    return abs(config - FASTEST)


def test_what_the_kernel_itself_changes_makes_no_choice_stale(looked_up: list[Lookup]) -> None:
    runner, seen = Runner(2), []

    def appending(config: int) -> int:
        seen.append(config)
        return abs(config - 2)

    for run in (counted, runner.run, appending):
        _read.clear()
        chosen(run)
        _read.clear()
        chosen(run)

    assert len(looked_up) == 3
    assert [lookup.label.partition("not in the fingerprint: ")[2] for lookup in looked_up] == [
        "CALLS (changed by the kernel), SEEN (list)",
        "self.runs (changed by the kernel), self.seen (list)",
        "seen (list)",
    ]


def test_an_edited_constant_makes_the_choice_stale(looked_up: list[Lookup], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(counted)
    monkeypatch.setattr(sys.modules[__name__], "FASTEST", 4)
    _read.clear()

    assert chosen(counted) == 4
    assert len({lookup.fingerprint for lookup in looked_up}) == 2


def test_a_size_that_the_key_has_coarser_tells_no_problems_apart(looked_up: list[Lookup]) -> None:
    def asked(m: int) -> None:
        chosen(lambda config: abs(config * m - m), {"m": pytest_autotune.power_of_two(m)})

    asked(1000)
    asked(1020)

    assert len(looked_up) == 1


class Array:
    """As much of an array as tells what it is."""

    def __init__(self, dtype: str, *shape: int) -> None:
        self.dtype, self.shape = dtype, shape


def test_arrays_are_told_apart_by_dtype_and_not_by_their_sizes_or_contents(looked_up: list[Lookup]) -> None:
    for array in (Array("fp16", 8, 8), Array("fp16", 9, 8), Array("fp32", 8, 8)):
        chosen(lambda config, array=array: config * len(array.shape))

    assert len(looked_up) == 2
    assert all("not in the fingerprint" not in lookup.label for lookup in looked_up)


def test_two_functions_under_one_decorator_have_a_source_each(looked_up: list[Lookup]) -> None:
    decorate = pytest_autotune.tuned(space=[1, 2], kernel="k", measuring=AS_TOLD)

    @decorate
    def low(*, config: int) -> int:
        return config

    @decorate
    def high(*, config: int) -> int:
        return 10 - config

    assert (low(), high()) == (1, 8)
    assert len({lookup.fingerprint for lookup in looked_up}) == 2


def make_helper(*cells: Any) -> Any:
    def helper(config: int) -> int:
        return config if cells else 0

    return helper


HELPER = make_helper([1], object())


def test_what_a_helper_carries_and_can_change_is_named(looked_up: list[Lookup]) -> None:
    through = make_helper([2])

    def run(config: int) -> int:
        return through(config) + HELPER(config)

    chosen(run)

    assert [lookup.label for lookup in looked_up] == ["not in the fingerprint: cells (tuple)"]


def typed(config: int) -> int:
    found: Optional[int] = typing_cast(Optional[int], config)  # noqa: UP045
    return found or 0


def typing_cast(kind: Any, value: Any) -> Any:
    return value


MEMO: dict[int, int] = {}


def abs_of(config: int) -> int:
    return abs(config)


def remembering(config: int) -> int:
    return MEMO.setdefault(config, config)


#: As in a table of operators, one of which may look another one up.
OPERATORS = (remembering, lambda config: OPERATORS[0](config))


def test_what_a_function_in_a_tuple_can_change_makes_no_choice_stale(looked_up: list[Lookup]) -> None:
    def uses(index: int) -> Any:
        return lambda config: OPERATORS[index](config)

    for index in (0, 1):
        MEMO.clear()
        chosen(uses(index), key={"index": index})
        _read.clear()
        MEMO[7] = 7
        chosen(uses(index), key={"index": index})

    assert len({(lookup.problem, lookup.fingerprint) for lookup in looked_up}) == 2
    assert {lookup.label for lookup in looked_up} == {"not in the fingerprint: MEMO (dict)"}


@dataclass(frozen=True)
class Operator:
    fn: Any
    scale: int


def test_data_that_names_a_function_is_carried_or_named_as_other_data_is(looked_up: list[Lookup]) -> None:
    def scaled(operator: Any) -> Any:
        return lambda config: operator.fn(config) * operator.scale

    for kind in (Operator, SimpleNamespace):
        for scale in (1, 2):
            chosen(scaled(kind(fn=abs_of, scale=scale)), key={"kind": kind.__name__})

    assert len({lookup.fingerprint for lookup in looked_up if not lookup.label}) == 2
    assert {lookup.label for lookup in looked_up} == {"", "not in the fingerprint: operator (SimpleNamespace)"}


def test_data_that_names_a_function_is_no_kernel_and_has_no_stable_form_as_a_key() -> None:
    with pytest.raises(UnportableError, match="Operator, which has no stable form"):
        stable_value("operator", Operator(abs_of, 1))


def test_functions_that_use_what_they_are_in_have_one_digest_however_deep_the_call_is() -> None:
    def deep(calls: int) -> str | None:
        _read.clear()
        return source_text(OPERATORS[1]) if calls == 0 else deep(calls - 1)

    assert deep(0) is not None
    assert deep(0) == deep(50)


def test_a_table_of_operators_that_all_use_it_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest_of(scale: int) -> str | None:
        names = [f"operator_{number}" for number in range(12)]
        text = "".join(f"def {name}(x):\n    return TABLE[x](x)\n" for name in names)
        text += f"def last(x):\n    return x * {scale}\nTABLE = ({', '.join(names)}, last)\n"
        module = ModuleType(f"operators_{scale}")
        monkeypatch.setitem(linecache.cache, module.__name__, (len(text), None, text.splitlines(True), module.__name__))
        exec(compile(text, module.__name__, "exec"), vars(module))
        return source_text(module.operator_0)

    assert digest_of(1) == digest_of(1) != digest_of(2)


def test_what_a_function_says_of_types_is_no_data_that_the_fingerprint_lacks(looked_up: list[Lookup]) -> None:
    chosen(typed)

    assert looked_up[-1].label == ""


def test_the_text_of_a_lambda_and_what_it_calls_are_in_the_fingerprint(
    looked_up: list[Lookup], monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked() -> None:
        chosen(lambda config: fastest_at(FASTEST)(config))

    asked()
    asked()
    assert len(looked_up) == 1
    chosen(lambda config: fastest_at(FASTEST)(config + 1))
    monkeypatch.setattr(sys.modules[__name__], "FASTEST", 4)
    asked()

    assert len({lookup.fingerprint for lookup in looked_up}) == 3
    assert all("source" in [value.name for value in lookup.fingerprint] for lookup in looked_up)
    assert all("space only" not in lookup.label for lookup in looked_up)


def test_options_of_numba_that_are_compiled_in_belong_to_the_source(looked_up: list[Lookup]) -> None:
    numba = pytest.importorskip("numba")
    for options in ({}, {"fastmath": True}, {"fastmath": {"nnan", "nsz"}}, {"parallel": True}, {"nogil": True}):
        chosen(lambda config: config, source=numba.njit(distance, **options))

    sources = [next(value for value in lookup.fingerprint if value.name == "source") for lookup in looked_up]
    assert len(set(sources)) == len(looked_up) == 4


class Halves:
    """A strategy of one's own."""

    def __init__(self, part: int) -> None:
        self.part = part

    def batches(self, space: Any, at_a_time: int) -> Any:
        yield list(space)[: self.part]


def told(call: Any) -> float:
    return float(call())


def another(call: Any) -> float:
    return float(call()) * 2


QUICK: dict[str, Any] = {"warmup_ms": 0, "measure_ms": 0, "min_runs": 1, "max_runs": 1}


def measured(**how: Any) -> dict[str, Any]:
    return {"measuring": Measuring(**{**QUICK, **how})}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (measured(), measured(clock=told)),
        (measured(clock=told), measured(clock=another)),
        (measured(clock=closure(1)), measured(clock=closure(4))),
        ({"strategy": "exhaustive"}, {"strategy": pytest_autotune.Optuna(trials=2)}),
        ({"strategy": pytest_autotune.Optuna(trials=1)}, {"strategy": pytest_autotune.Optuna(trials=2)}),
        ({"strategy": pytest_autotune.Optuna(trials=2)}, {"strategy": pytest_autotune.Optuna(trials=2, seed=1)}),
        ({"strategy": Halves(1)}, {"strategy": Halves(2)}),
    ],
)
def test_what_is_measured_and_which_part_of_the_space_belongs_to_the_choice(one: Any, other: Any) -> None:
    assert how_tuned(**one) == how_tuned(**one)
    assert how_tuned(**one) != how_tuned(**other)


def test_a_flushed_cache_and_the_hosts_clock_for_a_gpu_belong_to_the_choice() -> None:
    usual, flushed = (list(how_measured(Measuring(flush_l2=flush), True)) for flush in (False, True))

    assert (usual, flushed) == ([], [Value("flush_l2", True)])
    assert list(how_measured(Measuring(clock="host"), True)) == [Value("clock", "host")]
    assert not list(how_measured(Measuring(clock="host"), False))


def test_how_long_is_measured_does_not_belong_to_the_choice() -> None:
    assert how_tuned(**measured(measure_ms=5, max_runs=7)) == how_tuned(**measured())
    assert how_tuned(strategy=pytest_autotune.Optuna(trials=9)) == how_tuned()


def how_tuned(strategy: Any = "exhaustive", measuring: Any = Measuring()) -> list[Value]:  # noqa: B008
    return [*how_measured(measuring, False), *how_searched(as_strategy(strategy), as_space([1, 2, 4]))]


def test_the_examples_cache_has_the_fingerprint_of_its_numba_kernel(
    looked_up: list[Lookup], monkeypatch: pytest.MonkeyPatch
) -> None:
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("numba")
    example = Path(__file__).parents[1] / "example_suite"
    monkeypatch.syspath_prepend(str(example))
    tune = pytest_autotune.tune

    def refused(config: Any) -> None:
        raise pytest_autotune.InvalidConfiguration("nothing is to run here")

    monkeypatch.setattr(pytest_autotune, "tune", lambda *args, **given: tune(*args, **{**given, "reset": refused}))
    matrix = numpy.zeros((64, 64), numpy.float32)
    with pytest.raises(pytest_autotune.TuningError):
        import_module("example_kernels.matmul_cpu").matmul_cpu(matrix, matrix)

    cache = stores.read(example / "autotune.textproto")
    kept = {entry.fingerprint for entry in cache.entries if entry.problem.kernel.endswith(".multiply_tiles")}
    assert kept == {lookup.fingerprint for lookup in looked_up}
