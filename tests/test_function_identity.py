"""The fingerprint and the key of a hand-written tuner's problem: functions, closures, classes and the source."""

from __future__ import annotations

import cmath
import collections
import contextlib
import enum
import functools
import math
import operator
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache, partial, update_wrapper, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import pytest_autotune
from pytest_autotune.cache import stores
from pytest_autotune.cache.model import UncacheableError, Value
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.tuners import function
from pytest_autotune.tuners.function.identity import (
    _sources,
    list_sources,
    power_of_two,
    read_source_argument,
    source_text,
    stable_part,
)
from pytest_autotune.tuners.measuring.options import Measuring
from pytest_autotune.tuners.source.source_digest import combine_parts, stable_value
from tests.sessions import a_session
from tests.test_function_tuner import AS_TOLD, no_gpu

__all__ = ["no_gpu"]


@pytest.fixture
def looked_up() -> Any:
    """The lookups of a run that sees what the process's tuner does."""
    run, lookups = a_session()
    adapter = function.Adapter()
    adapter.hook(function, run)
    yield lookups
    adapter.unhook()


def tune_once(run: Any, key: Any = None, **options: Any) -> Any:
    return pytest_autotune.tune("k", key=key, **{"space": [1, 2, 4], "run": run, "measuring": AS_TOLD, **options})


def sources(lookups: list[Lookup]) -> list[Any]:
    return [next((value.value for value in lookup.fingerprint if value.name == "source"), None) for lookup in lookups]


# Values of one call: only the key distinguishes them.


def distance(best: int, config: int) -> int:
    return abs(config - best)


def add_into(first: Any, second: Any, result: Any) -> None:
    for index in range(len(first)):
        result[index] = first[index] + second[index]


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


def fastest_at(best: int) -> Any:
    return lambda config: abs(config - best)


def closure(best: int) -> Any:
    def run(config: int) -> int:
        return abs(config - best)

    return run


def default(best: int) -> Any:
    return lambda config, best=best: abs(config - best)


def nested(best: int) -> Any:
    run = closure(best)
    return lambda config: run(config)


@pytest.mark.parametrize(
    "make",
    [fastest_at, closure, default, nested, lambda best: partial(distance, best), lambda best: Runner(best).run, Runner],
    ids=["lambda", "closure", "default", "nested", "partial", "method", "callable"],
)
def test_a_new_closure_value_in_argument_run_is_no_source_change(looked_up: list[Lookup], make: Any) -> None:
    """A pointer, a path or a port differs in every run and would make a choice stale forever.

    Only the key separates problems.
    """
    assert (tune_once(make(1)), tune_once(make(4))) == (1, 1)
    assert (tune_once(make(1), {"best": 1}), tune_once(make(4), {"best": 4})) == (1, 4)
    assert len(looked_up) == 3
    assert len(set(sources(looked_up))) == 1
    assert None not in sources(looked_up)


# Values in the closures of functions in a key or a space. Two functions of one factory differ in nothing else.


def scaled_by(factor: Any) -> Any:
    def act(x: Any) -> Any:
        return x * factor

    return act


def scaled_by_default(factor: Any) -> Any:
    def act(x: Any, factor: Any = factor) -> Any:
        return x * factor

    return act


def scaled_by_keyword(factor: Any) -> Any:
    return lambda x, *, factor=factor: x * factor


def scaled_inside(factor: Any) -> Any:
    act = scaled_by(factor)
    return lambda x: [act(value) for value in x]


def scaled_by_partial(factor: Any) -> Any:
    act = partial(operator.mul, factor)
    return lambda x: act(x)


def scaled_by_functions(factor: Any) -> Any:
    acts = (scaled_by(factor), len)
    return lambda x: acts[0](x)


def scaled_by_itself(factor: Any) -> Any:
    def act(n: int) -> Any:
        return act(n - 1) if n else factor

    return act


def scaled_by_a_class(factor: Any) -> Any:
    class Scale:
        def of(self, x: Any) -> Any:
            return x * factor

    return lambda x: Scale().of(x)


def scaled_by_a_decorator(factor: Any) -> Any:
    @wraps(other)
    def act(x: Any) -> Any:
        return other(x) * factor

    return act


def scaled_by_a_remembered_function(factor: Any) -> Any:
    return lru_cache(scaled_by(factor))


def scaled_by_a_wrapped_partial(factor: Any) -> Any:
    return update_wrapper(partial(distance, factor), distance)


class Scaling:
    """A decorator of the suite's own."""

    def __init__(self, fn: Any, factor: Any) -> None:
        self.fn = fn
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return self.fn(x) * self.factor


class SlottedScaling:
    __slots__ = ("factor", "fn")

    def __init__(self, fn: Any, factor: Any) -> None:
        self.fn = fn
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return self.fn(x) * self.factor


def scaled_by_an_object(factor: Any) -> Any:
    return Scaling(distance, factor)


def scaled_by_a_slot(factor: Any) -> Any:
    return SlottedScaling(distance, factor)


FACTORIES = [
    scaled_by,
    scaled_by_default,
    scaled_by_keyword,
    scaled_inside,
    scaled_by_partial,
    scaled_by_functions,
    scaled_by_itself,
    scaled_by_a_class,
    scaled_by_a_decorator,
    scaled_by_a_remembered_function,
    scaled_by_a_wrapped_partial,
    scaled_by_an_object,
    scaled_by_a_slot,
]


class Mode(enum.Enum):
    FAST = 1
    GOOD = 2


CARRIED = (1, True, 1.0, 2, "1", None, (1,), (1.0,), 1j, b"1", range(3), frozenset({1}), 2**70, 0.0, -0.0)
CARRIED += (Mode.FAST, Mode.GOOD, Mode, int, float, len, math, operator, math.exp, math.log, distance)


def fastest_is(best: Any, **options: Any) -> Any:
    """Return the choice of a tuning in which one configuration is the fastest."""
    now: list[Any] = []

    def clock(call: Any) -> float:
        call()
        return 1.0 if now[0] is best else 9.0

    return tune_once(lambda config: now.__setitem__(slice(None), [config]), measuring=Measuring(clock=clock), **options)


def test_functions_of_one_factory_are_different_key_values() -> None:
    assert fastest_is(2, key={"act": scaled_by(1)}, source="") == 2
    assert fastest_is(4, key={"act": scaled_by(2)}, source="") == 4
    assert fastest_is(1, key={"act": scaled_by(2)}, source="") == 4, "the same function, made again"


def test_functions_of_one_factory_can_be_different_candidates() -> None:
    slow, fast = scaled_by(1), scaled_by(2)

    assert fastest_is(fast, space=[slow, fast, other], source="") is fast
    space = [{"act": slow}, {"act": fast}, {"act": other}]
    assert fastest_is(space[1], space=space, key={"in": "mappings"}, source="") is space[1]
    lambdas = [lambda x: x, lambda x: x + 1]
    assert fastest_is(lambdas[1], space=lambdas, key={"two": "lambdas"}, source="") is lambdas[1]


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda factory: factory.__name__)
def test_functions_with_different_closures_differ_as_key_values(factory: Any) -> None:
    values = [stable_part("act", factory(factor)) for factor in (1, 2, 1.0)]

    assert len(set(values)) == 3
    assert values == [stable_part("act", factory(factor)) for factor in (1, 2, 1.0)]


def test_functions_may_close_over_any_value_with_a_stable_form() -> None:
    values = [stable_part("act", scaled_by(factor)) for factor in CARRIED]

    assert len(set(values)) == len(CARRIED)
    assert {value.type for value in values} == {"function"}


def test_a_closure_is_the_same_key_value_in_two_processes() -> None:
    script = "import tests.test_function_identity as t; print([t.stable_part('', t.scaled_by(v)) for v in t.CARRIED])"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parent.parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]


def counting() -> Any:
    calls = 0

    def act(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return x

    return act


@pytest.mark.parametrize(
    ("function", "carries"),
    [
        (scaled_by([1]), "scaled_by.<locals>.act carries factor, a list, which has no stable form"),
        (scaled_by(math.nan), "carries factor, a float, which has no stable form"),
        (scaled_by("a".upper), "carries factor, a builtin_function_or_method, which has no stable form"),
        (scaled_by(Runner(1).run), "carries factor.__self__, a Runner, which has no stable form"),
        (scaled_inside(object()), "scaled_inside.<locals>.<lambda> carries act.factor, a object, which has"),
        (scaled_by_default({}), "carries factor, a dict, which has no stable form"),
        (Scaling(distance, [1]), "distance carries factor, a list, which has no stable form"),
        (counting(), "counting.<locals>.act carries calls, which the function sets itself"),
    ],
    ids=["list", "nan", "builtin", "method", "object", "default", "callable object", "counter"],
)
def test_a_function_closing_over_a_list_or_nan_is_a_type_error(function: Any, carries: str) -> None:
    """The function could get another function's choice, or never run."""
    message = rf"\Athe function tests\.test_function_identity\..*{re.escape(carries)}.*\Z"
    for options in ({"key": {"act": function}}, {"key": {"act": (function, 1)}}, {"space": [function, other]}):
        with pytest.raises(TypeError, match=message):
            tune_once(other, **options)
    with pytest.raises(TypeError, match=message):
        pytest_autotune.product(act=[function])


SCALE = 3


def remembering(function: Any) -> Any:
    memo: dict[Any, Any] = {}

    @wraps(function)
    def remembered(x: Any) -> Any:
        return memo.setdefault(x, function(x))

    return remembered


@remembering
def squared(x: Any, scale: Any = 2 * SCALE) -> Any:
    return x * x * scale


def local() -> list[Any]:
    def act(x: Any, scale: Any = 2, bias: Any = -1.5, mode: Any = Mode.FAST, more: Any = SCALE, seen: Any = []) -> Any:  # noqa: B006
        return x

    return [act, lambda x, scale=(1, "a"): x]


@pytest.mark.parametrize(
    "function",
    [distance, Runner.run, squared, *local(), lambda x: x, lambda x, scale=SCALE: x],
    ids=["function", "method", "squared", "defaults", "lambda with a tuple", "lambda", "lambda with a constant"],
)
def test_a_function_without_closure_is_keyed_as_in_old_caches(function: Any) -> None:
    """Committed entries have it."""
    assert stable_part("act", function) == stable_value("act", function, carried=False)


# Values that may change while tests run are left out by their type.

SEEN: list[int] = []
MEMO: dict[int, int] = {}
CALLS = 0
FASTEST = 2


def counted(config: int) -> int:
    global CALLS
    CALLS += 1
    SEEN.append(config)
    return MEMO.setdefault(config, abs(config - FASTEST))


def other(config: int) -> int:
    return config


@pytest.mark.parametrize(
    "options",
    [{"run": counted}, {"run": Runner(2).run}, {"run": lambda f: f(2), "space": [counted, other]}],
    ids=["function", "method", "functions in the space"],
)
def test_a_function_that_fills_a_global_memo_dict_is_still_a_hit(looked_up: list[Lookup], options: Any) -> None:
    for _ in range(2):
        _sources.clear()
        tune_once(**options)
        MEMO[len(MEMO)] = 0

    assert len(looked_up) == 1
    assert looked_up[0].label == ""


# Code, and immutable values that it names.


@dataclass(frozen=True)
class Tile:
    m: int


class Bounds:
    low = 1


TILE = Tile(4)
TABLE = (other, lambda config: TABLE[0](config))
WORDS = ("a", 1, 2.5, frozenset({True}), None, b"x", range(3))


def follows(config: int) -> int:
    return calls(config) + TILE.m + Bounds.low + len(WORDS) + TABLE[0](config) * 0


def calls(config: int) -> int:
    return abs(config - FASTEST)


@pytest.mark.parametrize(
    ("name", "value"),
    [("FASTEST", 4), ("TILE", Tile(8)), ("WORDS", ("b",)), ("calls", other), ("Bounds", Tile), ("TABLE", (other,))],
    ids=["number", "dataclass", "tuple", "function", "class", "tuple of functions"],
)
def test_changing_a_global_used_by_a_function_is_a_source_change(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    before = source_text(follows)
    assert before == source_text(follows) is not None
    monkeypatch.setattr(sys.modules[__name__], name, value)
    assert source_text(follows) != before

    monkeypatch.undo()
    assert source_text(follows) == before


class Launcher:
    def run(self, config: int) -> int:
        return self.launch(config)

    def launch(self, config: int) -> int:
        return config


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [(Launcher, "launch", Runner.run), (Tile, "m", 2), (calls, "__code__", other.__code__)],
    ids=["method", "class attribute", "code of a function"],
)
def test_monkeypatching_a_method_or_its_code_is_a_source_change(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any
) -> None:
    subjects = (Launcher().run, follows)
    before = [source_text(subject) for subject in subjects]
    monkeypatch.setattr(owner, name, value, raising=False)

    assert [source_text(subject) for subject in subjects] != before


def test_the_source_of_an_unchanged_function_is_read_only_once() -> None:
    assert read_source_argument(follows) is read_source_argument(follows)
    assert read_source_argument(Launcher().run) is read_source_argument(Launcher().run)


def test_after_its_helper_is_monkeypatched_a_function_is_retuned(
    monkeypatch: pytest.MonkeyPatch, looked_up: list[Lookup]
) -> None:
    assert tune_once(follows_calls) == 2
    monkeypatch.setattr(sys.modules[__name__], "calls", other)

    assert tune_once(follows_calls) == 1
    assert len(set(sources(looked_up))) == 2


def follows_calls(config: int) -> int:
    return calls(config)


def test_two_lambdas_that_call_one_function_share_an_entry(looked_up: list[Lookup]) -> None:
    """The source of a lambda is the source of the functions that it calls."""
    scale = 2

    def test_one() -> None:
        tune_once(lambda config: calls(config) * scale)

    def test_two() -> None:
        tune_once(lambda c: calls(c))

    def test_of_another() -> None:
        tune_once(lambda config: other(calls(config)))

    test_one()
    test_two()
    assert sources(looked_up) == [source_text(calls)]
    test_of_another()
    assert len(looked_up) == 2


@functools.singledispatch
def dispatched(config: int) -> int:
    return config


@dispatched.register
def dispatched_bool(config: bool) -> int:
    return other(config)


@contextlib.contextmanager
def managed(config: int) -> Any:
    yield other(config)


class Launches:
    def method(self, config: int) -> int:
        return other(config)

    @classmethod
    def class_method(cls, config: int) -> int:
        return other(config)

    lambda_method = lambda self, config: calls(self.method(config))  # noqa: E731
    lambda_class_method = classmethod(lambda cls, config: calls(cls.class_method(config)))


bound_method = Launches().method
bound_class_method = Launches.class_method
partial_function = partial(distance, 2)


@pytest.mark.parametrize(
    "run",
    [
        lambda config: dispatched(calls(config)),
        lambda config: managed(calls(config)),
        lambda config: bound_method(calls(config)),
        lambda config: bound_class_method(calls(config)),
        lambda config: partial_function(calls(config)),
        partial(lambda function, config: calls(function(config)), other),
        partial(lambda config, function: calls(function(config)), function=bound_method),
        partial(lambda launches, config: calls(launches.method(config)), Launches()),
        Launches().lambda_method,
        Launches.lambda_class_method,
    ],
    ids=[
        "singledispatch",
        "contextmanager",
        "method",
        "classmethod",
        "partial",
        "function as argument",
        "method as argument",
        "object as argument",
        "lambda as method",
        "lambda as classmethod",
    ],
)
def test_editing_any_callable_in_a_lambda_is_a_source_change(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """A lambda that calls a plain function, too, does not drop the other callable."""

    def read_digests() -> list[str | None]:
        return [source_text(source) for source in list_sources(None, run)]

    before = read_digests()
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "calls", distance)
        assert read_digests() != before
    assert read_digests() == before
    for edited in (other, distance):
        with monkeypatch.context() as patch:
            patch.setattr(edited, "__code__", power_of_two.__code__)
            digests = read_digests()
        if digests != before:
            return
    pytest.fail("no edit changes the digest")


def test_a_lambda_that_calls_no_function_is_identified_by_source(looked_up: list[Lookup]) -> None:
    """A lambda that also calls a class has its own source, too."""
    tune_once(lambda config: config)
    tune_once(lambda config: config + 1)
    tune_once(lambda config: calls(config) + Tile(config).m)
    tune_once(lambda config: calls(config) - Tile(config).m)

    assert len(set(sources(looked_up))) == 4


def test_a_numba_option_that_changes_the_code_is_a_source_change(looked_up: list[Lookup]) -> None:
    """The option nogil does not change the compiled code."""
    numba = pytest.importorskip("numba")
    for options in ({}, {"fastmath": True}, {"fastmath": {"nnan", "nsz"}}, {"parallel": True}, {"nogil": True}):
        tune_once(lambda config: config, source=numba.njit(distance, **options))

    sources = [next(value for value in lookup.fingerprint if value.name == "source") for lookup in looked_up]
    assert len(set(sources)) == len(looked_up) == 4


def test_options_of_all_numba_decorators_are_a_source_change(looked_up: list[Lookup]) -> None:
    numba = pytest.importorskip("numba")
    cuda = pytest.importorskip("numba.cuda")
    int8, int64 = numba.int8, numba.int64
    variants = [
        [numba.njit(distance, locals={"x": int8}), numba.njit(distance, locals={"x": int64})],
        [numba.cfunc("int64(int64, int64)", locals={"x": kind})(distance) for kind in (int8, int64)],
        [numba.vectorize(distance), numba.vectorize(fastmath=True)(distance)],
        [numba.guvectorize("(n),(n)->(n)", fastmath=is_fast)(add_into) for is_fast in (False, True)],
        [cuda.jit(distance, launch_bounds=(128, 2)), cuda.jit(distance, launch_bounds=(2, 128))],
        [cuda.jit(distance, link=["a.cu"]), cuda.jit(distance, link=["b.cu"])],
    ]
    for index, kernels in enumerate(variants):
        for kernel in kernels:
            tune_once(lambda config: config, {"variant": index}, source=kernel)

    # A second lookup with the same source would not be reported.
    assert len(looked_up) == 12


def test_a_torch_module_passed_as_source_is_a_type_error(looked_up: list[Lookup]) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"source= takes functions, classes, texts, .* not a Identity"):
        tune_once(lambda config: config, source=torch.nn.Identity())

    tune_once(torch.nn.Identity())
    assert "source" not in [value.name for value in looked_up[0].fingerprint]
    assert "without a source" in looked_up[0].label


def test_c_functions_are_candidates_and_values_of_keys(looked_up: list[Lookup]) -> None:
    """Each is encoded as its public name. A method of an object is refused: its name does not tell the object."""
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    functions = [math.exp, cmath.exp, torch.relu, torch.matmul, torch.nn.functional.linear, np.add, np.exp, str.upper]
    for operation in functions:
        tune_once(lambda config: 1, {"operation": operation}, space=functions)

    assert len({lookup.problem for lookup in looked_up}) == len(functions)
    assert all(lookup.entry is not None for lookup in looked_up)
    with pytest.raises(TypeError, match="no stable form"):
        tune_once(lambda config: 1, space=[torch.zeros(1).add])


def make_classes(fast: int, width: str) -> tuple[Any, Any]:
    """Return an enum and a named tuple, as two versions of a module have them."""
    level = enum.Enum("Level", {"FAST": fast, "SAFE": 20}, module=__name__)
    return level, collections.namedtuple("Shape", ["height", width], module=__name__)


@pytest.mark.parametrize("edited", [(99, "width"), (10, "depth")], ids=["enum", "named tuple"])
@pytest.mark.parametrize(
    "request_with",
    [
        lambda value: {"key": {"value": value}},
        lambda value: {"key": {"value": [1, (value,)]}},
        lambda value: {"space": {"a": [value, 2]}},
        lambda value: {"space": [{"a": (value, 1)}, {"a": [2]}]},
    ],
    ids=["key", "nested in a key", "axis", "listed"],
)
def test_an_entry_is_stale_if_a_class_in_key_or_space_is_edited(
    looked_up: list[Lookup], request_with: Any, edited: tuple[int, str]
) -> None:
    """The encoded values are the same: Level.FAST, and a tuple of two numbers."""
    for level, shape in (make_classes(10, "width"), make_classes(*edited)):
        tune_once(lambda config: 1, source="text", **request_with((level.FAST, shape(1, 2))))
    old, new = looked_up

    assert old.problem == new.problem
    changed = {name for name in ("classes", "space", "source") if find_part(old, name) != find_part(new, name)}
    assert changed == {"classes"}


def find_part(lookup: Lookup, name: str) -> Value | None:
    return next((value for value in lookup.fingerprint if value.name == name), None)


def test_an_entry_has_no_class_of_plain_values_or_library_enums(looked_up: list[Lookup]) -> None:
    tune_once(lambda config: 1, {"flag": re.IGNORECASE, "sizes": (1, 2)}, space=[re.DOTALL, re.ASCII])
    tune_once(lambda config: 1, {"n": 1}, space=[{"a": (1, 2), "b": [3]}, {"a": 1}], source="text")

    assert [find_part(lookup, "classes") for lookup in looked_up] == [None, None]


def passing_on(function: Any) -> Any:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class Unbound:
    def helper(self, config: int) -> int:
        return config

    def launch(self, config: int) -> int:
        return self.helper(config)

    @passing_on
    def decorated(self, config: int) -> int:
        return self.helper(config)

    def __private(self, config: int) -> int:
        return self.helper(config)

    private = __private

    def listed(config: Any) -> Any:  # type: ignore[misc]
        return config.helper(1)

    @staticmethod
    def static(value: Any) -> Any:
        return value.helper(1)

    class Inner:
        def helper(self, config: int) -> int:
            return config

        def launch(self, config: int) -> int:
            return self.helper(config)


@pytest.mark.parametrize(
    ("method", "cls"),
    [
        (Unbound.launch, Unbound),
        (Unbound.decorated, Unbound),
        (Unbound.private, Unbound),
        (Unbound.Inner.launch, Unbound.Inner),
        (partial(Unbound.launch, config=1), Unbound),
    ],
    ids=["method", "decorated", "private", "inner class", "partial"],
)
def test_editing_helpers_of_an_unbound_method_is_a_source_change(
    monkeypatch: pytest.MonkeyPatch, method: Any, cls: type
) -> None:
    before = source_text(method)
    assert before == source_text(method) is not None
    monkeypatch.setattr(cls, "helper", Runner.run)
    assert source_text(method) != before


@pytest.mark.parametrize("function", [Unbound.static, Unbound.listed], ids=["static", "without self"])
def test_editing_a_static_methods_class_is_no_source_change(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    before = source_text(function)
    monkeypatch.setattr(Unbound, "helper", Runner.run)
    assert source_text(function) == before is not None


class Compiled:
    """A kernel that is compiled in the constructor. Its method has the name of the function inside Triton's kernels."""

    def __init__(self, config: int) -> None:
        self.time = other(config)

    def launch(self) -> int:
        return self.time

    def fn(self) -> int:
        return 0


@pytest.mark.parametrize(
    "callback",
    [Compiled, partial(Compiled), partial(Compiled, 2)],
    ids=["class", "partial of the class", "partial with an argument"],
)
@pytest.mark.parametrize("owner", [other, Compiled.launch], ids=["helper", "method"])
def test_editing_a_class_used_as_a_callback_is_a_source_change(
    monkeypatch: pytest.MonkeyPatch, callback: Any, owner: Any
) -> None:
    def read_digests() -> list[str | None]:
        return [source_text(source) for source in list_sources(None, lambda config, kernel: kernel.launch(), callback)]

    before = read_digests()
    assert None not in before
    with monkeypatch.context() as patch:
        patch.setattr(owner, "__code__", calls.__code__)
        assert read_digests() != before
    assert read_digests() == before


def test_editing_a_class_in_argument_compile_is_a_source_change(
    looked_up: list[Lookup], monkeypatch: pytest.MonkeyPatch
) -> None:
    @pytest_autotune.tuned(space=[1, 2, 4], compile=Compiled, measuring=AS_TOLD)
    def run(*, config: int) -> int:
        return config

    run()
    monkeypatch.setattr(Compiled, "launch", Runner.run)
    run()

    assert len(set(sources(looked_up))) == len(looked_up) == 2


def unnamed(function: Any) -> Any:
    """Decorate a function without functools.wraps()."""

    def call(*args: Any) -> Any:
        return function(*args)

    return call


WORK: dict[str, Any] = {"space": [1, 2, 4], "kernel": "work", "measuring": AS_TOLD}


class Worker:
    def helper(self, config: int) -> int:
        return config

    @pytest_autotune.tuned(**WORK)
    def work(self, *, config: int) -> int:
        return self.helper(config)

    @passing_on
    @passing_on
    @pytest_autotune.tuned(**WORK)
    def decorated(self, *, config: int) -> int:
        return self.helper(config)

    @unnamed
    @pytest_autotune.tuned(**WORK)
    def decorated_without_wraps(self, *, config: int) -> int:
        return self.helper(config)

    @pytest_autotune.tuned(**WORK)
    def __private(self, *, config: int) -> int:
        return self.helper(config)

    def private(self) -> int:
        return int(self.__private())

    @classmethod
    def class_helper(cls, config: int) -> int:
        return config

    @classmethod
    @passing_on
    @pytest_autotune.tuned(**WORK)
    def class_method(cls, *, config: int) -> int:
        return cls.class_helper(config)


class OverridingWorker(Worker):
    def work(self) -> Any:  # type: ignore[override]
        return super().work()


@pytest.mark.parametrize(
    "call",
    [
        lambda: OverridingWorker().work(),
        lambda: Worker().decorated(),
        lambda: Worker().decorated_without_wraps(),
        lambda: Worker().private(),
        lambda: Worker.class_method(),
        lambda: Worker.work(self=Worker()),  # type: ignore[call-arg]
    ],
    ids=["overridden", "decorated", "decorated without wraps", "private", "class method", "keyword"],
)
def test_editing_a_helper_of_a_tuned_method_is_a_source_change(
    looked_up: list[Lookup], monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    """Neither an override, a further decorator, a private name nor a keyword hides the method's object."""
    call()
    monkeypatch.setattr(Worker, "helper", lambda self, config: config + 1)
    monkeypatch.setattr(Worker, "class_helper", classmethod(lambda cls, config: config + 1))
    call()

    assert len(set(sources(looked_up))) == len(looked_up) == 2


def return_time(call: Any) -> float:
    return float(call())


def another(call: Any) -> float:
    return float(call()) * 2


QUICK: dict[str, Any] = {"measure_ms": 0, "min_runs": 1, "max_runs": 1}


def measured(**how: Any) -> dict[str, Any]:
    return {"measuring": Measuring(**{**QUICK, **how})}


def drawn(trials: int, seed: int) -> dict[str, Any]:
    return {"strategy": pytest_autotune.Random(trials=trials, seed=seed)}


@pytest.mark.parametrize(
    "options_of_calls",
    [[measured(), measured(clock=return_time), measured(clock=another)], [{}, drawn(1, 0), drawn(2, 0), drawn(2, 1)]],
    ids=["clock", "strategy"],
)
def test_changing_the_clock_or_strategy_tunes_a_function_again(
    looked_up: list[Lookup], options_of_calls: list[dict[str, Any]]
) -> None:
    for options in [*options_of_calls, *options_of_calls]:
        tune_once(other, **options)

    assert len({lookup.fingerprint for lookup in looked_up}) == len(looked_up) == len(options_of_calls)


def test_the_cache_of_the_example_suite_matches_its_numba_kernel(
    looked_up: list[Lookup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries of multiply_tiles have the fingerprint that the current code gives."""
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

    cache = stores.read_cache(example / "autotune.textproto")
    committed = {entry.fingerprint for entry in cache.entries if entry.problem.kernel.endswith(".multiply_tiles")}
    assert committed == {lookup.fingerprint for lookup in looked_up}


class UserType:
    """A class of the suite: what it does is its digest."""

    size = 4


def test_a_library_class_in_a_key_is_written_as_its_public_name() -> None:
    value = stable_value("dtype", collections.OrderedDict)

    assert value == Value("dtype", "collections.OrderedDict", "class")
    assert stable_part("types", (int, 4)).display_text == "(builtins.int, 4)"


def test_a_library_class_without_a_public_name_is_uncacheable() -> None:
    hidden = type("Hidden", (), {"__module__": "collections"})

    with pytest.raises(UncacheableError, match="Hidden"):
        stable_value("dtype", hidden)


def test_editing_a_class_used_as_key_value_changes_the_key_value() -> None:
    before = stable_value("type", UserType)
    UserType.size = 8
    try:
        after = stable_value("type", UserType)
    finally:
        UserType.size = 4

    assert before.type == "class"
    assert str(before.value).startswith(f"{__name__}.UserType@")
    assert before != after
    assert stable_value("type", UserType) == before


def test_a_part_changes_if_one_of_two_functions_of_a_name_changes() -> None:
    """A stale row names the parts that changed. The two functions may belong to ``run=`` and ``compile=``."""

    def read_part(*digests_of_helper: str) -> str:
        return combine_parts([{"helper": part} for part in digests_of_helper])["helper"]

    assert read_part("old", "same") != read_part("new", "same")
    assert read_part("same", "old") != read_part("same", "new")
    # Two sources that use the same function have its part.
    assert read_part("same", "same") == "same"
