"""Which problem a call of a Triton kernel is, and what its choice rests on: no choice reaches another kernel."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from pytest_autotune.cache.model import Value
from pytest_autotune.tuners.source.functions import closure_cells
from pytest_autotune.tuners.source.source_digest import source_digest
from pytest_autotune.tuners.triton.identity import _list_compiled_properties, encode_key_value
from tests.test_source_digest import load  # noqa: F401
from tests.test_triton import CONFIGS, Bench, configs, grid, interpreter, session  # noqa: F401

pytestmark = pytest.mark.usefixtures("forget_choices", "interpreter")
SETTING = 1
Make = Callable[[Any], Any]


def run(kernel: Any, *arguments: Any, **options: Any) -> int:
    """Call a kernel, and tell the block size that was chosen."""
    # Some of these kernels are nothing that the interpreter can run: it fails at the launch, after the choice.
    with contextlib.suppress(triton.runtime.errors.InterpreterError, TypeError, AttributeError):
        kernel[(1,)](*arguments, **options)
    autotuner = kernel
    while not hasattr(autotuner, "configs"):
        autotuner = autotuner.fn
    return next(iter(autotuner.cache.values())).kwargs["BLOCK"]


def bench(best: int = 64) -> Bench:
    return Bench(best, launches=False)


@pytest.fixture
def have_own_choices(session: Any) -> Callable[..., bool]:  # noqa: F811
    """Whether two kernels, tuned with different results, each get their own choice from the cache, as a hit."""

    def have_own_choices(first: Make, second: Make, *arguments: Any, **again: Any) -> bool:
        calls = [(first, arguments), (second, again.get("arguments", arguments))]
        recorded = session(is_dumping=True)
        assert [run(make(bench(best)), *given) for (make, given), best in zip(calls, CONFIGS, strict=True)] == CONFIGS
        loaded = session(recorded.entries)
        loaded_choices = [
            run(make(bench(best)), *given) for (make, given), best in zip(calls, CONFIGS[::-1], strict=True)
        ]
        return loaded_choices == CONFIGS and loaded.outcomes == ["hit", "hit"]

    return have_own_choices


@pytest.fixture
def outcome_after(session: Any) -> Callable[..., str]:  # noqa: F811
    """Tune the first kernel, and return the outcome of a lookup of the second kernel."""

    def outcome_after(before: Any, after: Any, *arguments: Any, **again: Any) -> str:
        recorded = session(is_dumping=True)
        run(before, *arguments)
        loaded = session(recorded.entries)
        run(after, *again.get("arguments", arguments))
        (outcome,) = loaded.outcomes
        return str(outcome)

    return outcome_after


def with_heuristics(functions: dict[str, Any], bench: Any, key: tuple[str, ...] = ("n",), over: bool = False) -> Any:
    @triton.jit
    def scaled(x, y, n, VEC: tl.constexpr, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n) * VEC, mask=offsets < n)

    tuned = triton.autotune(configs(), key=list(key), do_bench=bench)
    heuristics = triton.heuristics(functions)
    return heuristics(tuned(scaled)) if over else tuned(heuristics(scaled))


def empty(bench: Any, candidates: Any = None, **options: Any) -> Any:
    """A kernel for what is not about its body."""

    @triton.autotune(candidates or configs(), key=["n"], do_bench=bench, **options)
    @triton.jit
    def nothing(x, y, n, OTHER: tl.constexpr = None, BLOCK: tl.constexpr = 1):
        pass

    return nothing


def tensors(n: int = 100) -> tuple[Any, Any, int]:
    return torch.ones(128), torch.zeros(128), n


either_way = pytest.mark.parametrize("over", [False, True], ids=["under the autotuner", "over the autotuner"])


@either_way
def test_heuristics_with_different_closures_get_separate_entries(have_own_choices, over: bool) -> None:
    """Two heuristics have the same source and different values in their closures."""

    def make(vec: int) -> Make:
        return lambda bench: with_heuristics({"VEC": lambda arguments: vec}, bench, over=over)

    assert have_own_choices(make(1), make(8), *tensors())


@either_way
def test_kernels_with_different_heuristics_get_separate_entries(have_own_choices, over: bool) -> None:
    first, second = (lambda arguments: 1), (lambda arguments: 8)

    assert have_own_choices(
        lambda bench: with_heuristics({"VEC": first}, bench, over=over),
        lambda bench: with_heuristics({"VEC": second}, bench, over=over),
        *tensors(),
    )


def width(arguments: dict[str, Any]) -> int:
    return SETTING


@either_way
def test_a_changed_global_of_a_heuristic_makes_the_entry_stale(outcome_after, monkeypatch, over: bool) -> None:
    """The entry is stale after the global that a heuristic reads has changed."""

    def make() -> Any:
        return with_heuristics({"VEC": width}, bench(), over=over)

    assert outcome_after(make(), make(), *tensors()) == "hit"
    before = make()
    after = make()

    class Later:
        def __getitem__(self, launch: Any) -> Any:
            monkeypatch.setattr(f"{__name__}.SETTING", 2)
            return after[launch]

        fn = after

    assert outcome_after(before, Later(), *tensors()) == "stale"


# The interpreter of Triton 3.4 leaves other functions in its language.
exp, exp2 = tl.exp, tl.exp2


@triton.jit
def exponential(x):
    return exp(x)


def test_rebinding_a_helper_name_makes_the_entry_stale(session, monkeypatch) -> None:  # noqa: F811
    recorded = session(is_dumping=True)
    run(with_helper(bench(), exponential), *tensors())
    loaded = session(recorded.entries)
    monkeypatch.setattr(f"{__name__}.exp", exp2)
    run(with_helper(bench(), exponential), *tensors())

    (lookup,) = loaded.lookups
    assert (lookup.outcome.value, lookup.changed) == ("stale", ("source",))
    assert "exp added" in lookup.reason


def test_a_kernel_that_uses_very_many_functions_gets_a_note(session, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr("pytest_autotune.tuners.source.source_digest.MOST_PARTS", 1)
    first = session(is_dumping=True)
    run(with_helper(bench(), exponential), *tensors())
    run(empty(bench()), *tensors())

    (note,) = first.run.notes
    assert "through_a_helper: an edit of any of 2 functions and constants" in note


def test_closures_of_subclassed_heuristics_get_separate_entries(have_own_choices) -> None:
    class Derived(triton.runtime.autotuner.Heuristics):
        pass

    def make(vec: int) -> Make:
        def derived(bench: Any) -> Any:
            kernel = with_heuristics({"VEC": lambda arguments: vec}, bench)
            kernel.fn.__class__ = Derived
            return kernel

        return derived

    assert have_own_choices(make(1), make(8), *tensors())


@pytest.mark.parametrize("values", [(1, 1.0), (1, True), (0.0, -0.0)], ids=str)
def test_closures_over_1_and_1_0_and_true_get_separate_entries(have_own_choices, values: tuple[Any, Any]) -> None:
    def make(scale: Any) -> Make:
        def tuned(bench: Any) -> Any:
            @triton.autotune(configs(), key=["n"], do_bench=bench)
            @triton.jit
            def scaled(x, y, n, BLOCK: tl.constexpr):
                offsets = tl.arange(0, BLOCK)
                tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n) / scale, mask=offsets < n)

            return scaled

        return tuned

    assert have_own_choices(*map(make, values), *tensors())


def test_closures_over_two_named_tuples_get_separate_entries(have_own_choices) -> None:
    def make(names: str) -> Make:
        sizes = namedtuple("sizes", names)(2, 3)

        def tuned(bench: Any) -> Any:
            @triton.autotune(configs(), key=["n"], do_bench=bench)
            @triton.jit
            def scaled(x, y, n, BLOCK: tl.constexpr):
                offsets = tl.arange(0, BLOCK)
                tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n) * sizes.a, mask=offsets < n)

            return scaled

        return tuned

    assert have_own_choices(make("a b"), make("b a"), *tensors())


def test_kernels_with_and_without_a_perf_model_get_two_entries(have_own_choices) -> None:
    """A kernel without a performance model gets its own choice, although its source is equal."""

    def make(pruning: dict[str, Any] | None) -> Make:
        def tuned(bench: Any) -> Any:
            def prefer(kernel_call: Any, quantiles: Any = None) -> list[float]:
                is_best = closure_cells(kernel_call)["config"].kwargs["BLOCK"] == bench.best
                return [1.0 if is_best else 2.0] * 3

            return empty(prefer, configs([16, 32, 64]), prune_configs_by=pruning)

        return tuned

    def smaller_first(**arguments: Any) -> float:
        return float(arguments["BLOCK"])

    assert have_own_choices(make({"perf_model": smaller_first, "top_k": 2}), make(None), *tensors())


def test_new_heuristic_values_outside_the_key_are_still_a_hit(outcome_after) -> None:
    """Triton's own memory does the same. The order of calls decides nothing in a run that loads."""

    def make() -> Any:
        return with_heuristics({"VEC": lambda arguments: arguments["n"] % 2 + 1}, bench(), key=())

    assert outcome_after(make(), make(), *tensors(100), arguments=tensors(99)) == "hit"


def test_a_heuristic_that_closes_over_an_object_is_uncacheable(outcome_after) -> None:
    """The closure of the heuristic has an object without a stable form."""
    thing = object()

    def make() -> Any:
        return with_heuristics({"VEC": lambda arguments: 1 if thing else 2}, bench())

    assert outcome_after(make(), make(), *tensors()) == "uncacheable"


def with_function(bench: Any) -> Any:
    @triton.autotune(configs(), key=["n", "ACT"], do_bench=bench)
    @triton.jit
    def activated(x, y, n, ACT: tl.constexpr, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(y + offsets, ACT(tl.load(x + offsets, mask=offsets < n)), mask=offsets < n)

    return activated


def make_act(scale: Any) -> Any:
    @triton.jit
    def act(x):
        return x * scale

    return act


@pytest.mark.parametrize("scales", [(2.0, 3.0), (tl.constexpr(2.0), tl.constexpr(3.0))], ids=["numbers", "constexprs"])
@pytest.mark.parametrize("keys", [["n", "ACT"], ["n"]], ids=["in the key", "only passed"])
def test_function_arguments_of_one_factory_get_separate_entries(have_own_choices, scales, keys) -> None:
    """Two functions of one factory, passed to a kernel, get their own choices. The key may name the argument or not."""

    def make(bench: Any) -> Any:
        kernel = with_function(bench)
        kernel.keys = keys
        return kernel

    first, second = ((*tensors(), make_act(scale)) for scale in scales)

    assert have_own_choices(make, make, *first, arguments=second)


def test_an_argument_that_closes_over_an_object_is_uncacheable(session) -> None:  # noqa: F811
    """The closure of the function has an object without a stable form. The reason names the variable."""
    first = session(is_dumping=True)
    run(with_function(bench()), *tensors(), make_act(object()))

    (lookup,) = first.lookups
    assert lookup.outcome.value == "uncacheable"
    assert "scale of" in lookup.reason


def with_helper(bench: Any, helper: Any) -> Any:
    @triton.autotune(configs(), key=["n"], do_bench=bench)
    @triton.jit
    def through_a_helper(x, y, n, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(y + offsets, helper(tl.load(x + offsets, mask=offsets < n)), mask=offsets < n)

    return through_a_helper


@pytest.mark.parametrize("inner", [False, True], ids=["in the closure", "used by a helper there"])
def test_a_helper_that_closes_over_an_object_is_uncacheable(session, inner: bool) -> None:  # noqa: F811
    """The closure of a kernel's helper, or of a helper of that helper, has an object without a stable form."""
    helper = make_act(object())
    if inner:
        helper = make_act(make_act(object()))
    first = session(is_dumping=True)
    run(with_helper(bench(), helper), *tensors())

    (lookup,) = first.lookups
    assert lookup.outcome.value == "uncacheable"
    assert "scale of" in lookup.reason


def test_kernels_with_different_helpers_get_separate_entries(have_own_choices) -> None:
    assert have_own_choices(*(lambda bench, scale=scale: with_helper(bench, make_act(scale)) for scale in (2.0, 3.0)))


def hook_one(arguments: dict[str, Any]) -> None:
    arguments["seen"] = 1


def hook_two(arguments: dict[str, Any]) -> None:
    arguments["seen"] = 2


def with_hooks(*hooks: Any, best: int = 0) -> Any:
    """A kernel whose candidates differ in their hooks only."""
    calls: list[int] = []

    def prefer(kernel_call: Any, quantiles: Any = None) -> list[float]:
        calls.append(1)
        return [1.0 if len(calls) - 1 == best else 2.0] * 3

    return empty(prefer, [triton.Config({"BLOCK": 16}, pre_hook=hook) for hook in hooks])


@pytest.mark.parametrize("best", [0, 1])
def test_a_hit_tells_candidates_apart_by_their_pre_hook(session, best: int) -> None:  # noqa: F811
    """A hit gives the kernel the candidate with the recorded pre_hook."""
    recorded = session(is_dumping=True)
    run(with_hooks(hook_one, hook_two, best=best), *tensors())
    loaded = session(recorded.entries)
    kernel = with_hooks(hook_one, hook_two, best=1 - best)
    run(kernel, *tensors())

    assert loaded.outcomes == ["hit"]
    assert kernel.best_config is kernel.configs[best]


def test_two_candidates_that_look_equal_are_uncacheable(session) -> None:  # noqa: F811
    def hook(thing: Any) -> Any:
        return lambda arguments: arguments.update(thing=thing)

    first = session(is_dumping=True)
    run(with_hooks(hook(object()), hook(object())), *tensors())

    assert [lookup.outcome.value for lookup in first.lookups] == ["uncacheable"]


def test_replacing_a_candidates_pre_hook_makes_the_entry_stale(outcome_after) -> None:
    first, second = with_hooks(hook_one, None), with_hooks(hook_two, None)

    assert outcome_after(first, second, *tensors()) == "stale"


class Hook:
    def __init__(self, value: int) -> None:
        self.value = value
        self.other = object()

    def __call__(self, arguments: dict[str, Any]) -> None:
        arguments.update(value=self.value, other=self.other)


def test_a_pre_hook_object_with_changed_values_is_still_a_hit(outcome_after) -> None:
    """Two hook objects of one class with different values give the same search fingerprint."""

    def hooked(value: int) -> Any:
        return empty(bench(), configs(pre_hook=Hook(value)))

    assert outcome_after(hooked(1), hooked(2), *tensors()) == "hit"


def descriptor(dtype: Any) -> Any:
    return TensorDescriptor(torch.zeros(16, 16, dtype=dtype), [16, 16], [16, 1], [16, 16])


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        (descriptor, "x.base.dtype"),
        (lambda dtype: (torch.zeros(4, dtype=dtype), 3), "x.0.dtype"),
        (lambda dtype: (1, (descriptor(dtype),)), "x.1.0.base.dtype"),
    ],
    ids=["descriptor", "tuple", "nested"],
)
def test_a_key_has_dtypes_of_tuple_items_and_tensor_descriptors(
    session,  # noqa: F811
    have_own_choices,
    argument: Any,
    name: str,
) -> None:
    first, second = ((argument(dtype), None, 16) for dtype in (torch.float32, torch.float16))

    assert have_own_choices(empty, empty, *first, arguments=second)

    recorded = session(is_dumping=True)
    run(empty(bench()), *first)
    assert [value for value in recorded.lookups[0].problem.key if value.name == name] == [Value(name, "fp32", "dtype")]


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: (value,)], ids=["plain", "in a tuple"])
def test_triton_and_torch_dtypes_are_different_key_values(have_own_choices, wrap) -> None:
    """Triton's own memory separates them, too."""
    first, second = ((*tensors(), wrap(value)) for value in (tl.float16, torch.float16))

    assert have_own_choices(with_function, with_function, *first, arguments=second)


def test_a_changed_enum_value_in_the_key_makes_the_entry_stale(outcome_after) -> None:
    def mode(fast: int) -> Any:
        return enum.Enum("Mode", {"FAST": fast}).FAST  # type: ignore[attr-defined]

    first, second = with_function(bench()), with_function(bench())

    assert outcome_after(first, second, *tensors(), mode(1), arguments=(*tensors(), mode(1))) == "hit"
    assert outcome_after(first, second, *tensors(), mode(1), arguments=(*tensors(), mode(2))) == "stale"
    assert outcome_after(first, second, *tensors(), (mode(1),), arguments=(*tensors(), (mode(2),))) == "stale"


class Speed(enum.IntEnum):
    FAST = 3


def test_an_intenum_member_and_its_number_share_an_entry(outcome_after) -> None:
    """Triton's memory has one key for both, so the order of the calls does not matter."""
    first, second = with_function(bench()), with_function(bench())
    number, member = (*tensors(), 3), (*tensors(), Speed.FAST)

    assert outcome_after(first, second, *number, arguments=member) == "hit"
    assert outcome_after(with_function(bench()), with_function(bench()), *member, arguments=number) == "hit"


def test_a_changed_enum_in_a_candidate_makes_the_entry_stale(outcome_after) -> None:
    def make(fast: int) -> Any:
        mode = enum.Enum("Mode", {"FAST": fast}).FAST  # type: ignore[attr-defined]
        return empty(bench(), [triton.Config({"BLOCK": block, "OTHER": mode}) for block in CONFIGS])

    assert outcome_after(make(1), make(1), *tensors()) == "hit"
    assert outcome_after(make(1), make(2), *tensors()) == "stale"


def test_a_hit_tells_torch_from_triton_float16_candidates(session) -> None:  # noqa: F811
    """One candidate has Triton's float16, the other torch's. A hit gives the candidate that was chosen."""

    def make(bench: Any) -> Any:
        return empty(bench, [triton.Config({"BLOCK": 16, "OTHER": dtype}) for dtype in (tl.float16, torch.float16)])

    recorded = session(is_dumping=True)
    run(make(bench(64)), *tensors())
    session(recorded.entries)
    kernel = make(bench(16))
    run(kernel, *tensors())

    assert kernel.best_config is kernel.configs[1]


@pytest.mark.parametrize("option", ["noinline", "do_not_specialize", "do_not_specialize_on_alignment", "debug"])
def test_changing_an_option_of_triton_jit_makes_the_entry_stale(outcome_after, option: str) -> None:
    """An option of triton.jit that changes the compiled code makes an entry stale."""

    def make(**options: Any) -> Any:
        def nothing(x, y, n, BLOCK: tl.constexpr):
            pass

        return triton.autotune(configs(), key=["n"], do_bench=bench())(triton.jit(**options)(nothing))

    value: Any = ["n"] if option.startswith("do_not") else True

    assert outcome_after(make(), make(**{option: value}), *tensors()) == "stale"


def test_changing_a_parameter_default_makes_the_entry_stale(outcome_after) -> None:
    def make(width: int) -> Any:
        @triton.autotune(configs(), key=["n"], do_bench=bench())
        @triton.jit
        def nothing(x, y, n, WIDTH: tl.constexpr = width, BLOCK: tl.constexpr = 1):
            pass

        return nothing

    assert outcome_after(make(1), make(1), *tensors()) == "hit"
    assert outcome_after(make(1), make(2), *tensors()) == "stale"


def test_an_entry_records_settings_that_change_compiled_code(monkeypatch) -> None:
    """Environment variables and knobs count if they change the compiled code.

    Variables that only print do not count.
    """
    from pytest_autotune.tuners.triton import identity

    monkeypatch.setattr("pytest_autotune.tuners.triton.internals.autotuners.is_interpreted", lambda autotuner: False)
    assert list(identity.list_settings(None)) == []

    monkeypatch.setenv("DISABLE_MMA_V3", "1")  # among what Triton keeps compiled kernels apart by
    monkeypatch.setenv("MLIR_ENABLE_DUMP", "1")  # only tells
    monkeypatch.setenv("LLVM_PASS_PLUGIN_PATH", "/home/somebody/passes.so")
    monkeypatch.setattr(triton.knobs.runtime, "debug", True)

    settings = "DISABLE_MMA_V3=true, LLVM_PASS_PLUGIN_PATH=passes.so, runtime.debug=True"
    assert list(identity.list_settings(None)) == [Value("settings", settings, "settings")]


def test_an_entry_records_the_key_of_a_compiler_stage_hook(monkeypatch) -> None:
    """Triton's add_stages_inspection_hook returns a key, which belongs to the settings."""
    from pytest_autotune.tuners.triton import identity

    if not hasattr(triton.knobs.runtime, "add_stages_inspection_hook"):
        pytest.skip("this Triton has no such hook")
    monkeypatch.setattr("pytest_autotune.tuners.triton.internals.autotuners.is_interpreted", lambda autotuner: False)

    def settings_with(key: str) -> list[Value]:
        monkeypatch.setattr(triton.knobs.runtime, "add_stages_inspection_hook", lambda *_: (key, "hash"))
        return list(identity.list_settings(None))

    assert settings_with("one") == settings_with("one") != settings_with("another")


@triton.jit
def add_one(x):
    return x + 1


@dataclasses.dataclass(frozen=True)
class Functions:
    act: Any

    def method(self, x: Any) -> Any:
        return x


class Act:
    def __call__(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    "argument",
    [
        functools.partial(add_one),
        Functions(1).method,
        Act(),
        Functions(add_one),
        Functions((add_one,)),
        {"act": add_one},
        {"act": (add_one,)},
        tl.math,
    ],
    ids=["partial", "method", "callable", "dataclass", "tuple in a dataclass", "dict", "tuple in a dict", "module"],
)
def test_an_argument_that_no_key_can_hold_is_uncacheable(outcome_after, argument: Any) -> None:
    """Triton compiles the code of such an argument, and the source does not name it."""
    assert outcome_after(empty(bench()), empty(bench()), *tensors(), argument) == "uncacheable"


LAYOUTS = """
from triton.experimental.gluon import language as gl
BARE = gl.BlockedLayout([1], [32], [4], [0])
TUPLE = (BARE, 1)
IN_CONSTEXPR = gl.constexpr(gl.SliceLayout(0, gl.BlockedLayout([1, 1], [4, 8], [2, 2], [1, 0])))
def kernel(x, layout=BARE):
    return USED
"""


@pytest.mark.parametrize(
    ("used", "old", "new"),
    [
        ("BARE", "[1], [32]", "[2], [32]"),
        ("layout", "[1], [32]", "[2], [32]"),
        ("TUPLE", "[1], [32]", "[2], [32]"),
        ("IN_CONSTEXPR", "[4, 8]", "[8, 4]"),
        ("IN_CONSTEXPR", "SliceLayout(0", "SliceLayout(1"),
    ],
)
def test_editing_a_layout_of_gluon_is_a_source_change(load, used: str, old: str, new: str) -> None:  # noqa: F811
    """A layout has lists, and Triton compiles them into the kernel."""
    pytest.importorskip("triton.experimental.gluon.language")
    source = LAYOUTS.replace("USED", used)
    digest = source_digest(load(source, "layouts").kernel)

    assert source_digest(load(source, "layouts").kernel) == digest
    assert source_digest(load(source.replace(old, new), "layouts").kernel) != digest


ARGUMENT_CLASSES = """
import dataclasses, enum, typing
import triton
@triton.jit
def double(x):
    return x * 2
@dataclasses.dataclass(frozen=True)
class Config:
    size: int = 1
    @property
    def half(self):
        return self.size * 2
class Pair(typing.NamedTuple):
    size: int = 1
    dtype: str = "fp16"
    @property
    def half(self):
        return self.size * 2
class Mode(enum.Enum):
    FAST = 1
    @property
    def half(self):
        return self.value * 2
class Act(enum.Enum):
    DOUBLE = ("double", double)
argument = ARGUMENT
"""


#: The argument is in the key of ``with_function``, and not in the key of ``empty``.
ARGUMENTS = [(empty, name) for name in ("Config()", "Pair()", "Mode.FAST", "Act.DOUBLE")]
ARGUMENTS += [(with_function, name) for name in ("Pair()", "Mode.FAST", "Act.DOUBLE")]


@pytest.mark.parametrize(("kernel", "argument"), ARGUMENTS)
def test_editing_code_of_an_argument_makes_the_entry_stale(
    outcome_after,
    load,  # noqa: F811
    kernel: Any,
    argument: str,
) -> None:
    """Triton compiles the methods and functions of a ``tl.constexpr`` into the kernel."""
    source = ARGUMENT_CLASSES.replace("ARGUMENT", argument)
    first, same, edited = (load(text, "suite").argument for text in (source, source, source.replace("* 2", "* 3")))

    for other, expected in ((same, "hit"), (edited, "stale")):
        before, after = kernel(bench()), kernel(bench())
        assert outcome_after(before, after, *tensors(), first, arguments=(*tensors(), other)) == expected


TENSOR_WRAPPER = """
class Wrapper:
    def __init__(self, tensor):
        self.tensor, self.dtype = tensor, tensor.dtype
    def data_ptr(self):
        return self.tensor.data_ptr() + 0
"""


def test_editing_the_class_of_a_tensor_wrapper_is_no_change(outcome_after, load) -> None:  # noqa: F811
    """Triton takes its pointer and compiles none of its methods."""
    x, y, n = tensors()
    first = load(TENSOR_WRAPPER, "suite").Wrapper(x)
    edited = load(TENSOR_WRAPPER.replace("+ 0", "+ 1"), "suite").Wrapper(x)

    before, after = empty(bench()), empty(bench())
    assert outcome_after(before, after, first, y, n, arguments=(edited, y, n)) == "hit"


class LargeSeed(enum.IntEnum):
    EVEN = 2**60
    ODD = 2**60 + 1


def test_two_large_intenum_members_are_different_key_values() -> None:
    """A float holds both numbers as the same."""
    values = [encode_key_value("seed", seed).value for seed in LargeSeed]

    assert values == [2**60, 2**60 + 1]


def test_the_key_has_the_dtypes_of_items_of_a_named_tuple() -> None:
    settings = namedtuple("settings", ["dtype", "bias"])
    keys = []
    for dtype in (torch.float16, torch.float32):
        argument = settings(torch.float32, torch.zeros(4, dtype=dtype))
        keys.append(dict(_list_compiled_properties("x", argument, is_in_key=False, kernel_module=__name__)))

    assert keys == [
        {"x.class": "settings", "x.dtype": "torch.float32", "x.1.dtype": "torch.float16"},
        {"x.class": "settings", "x.dtype": "torch.float32", "x.1.dtype": "torch.float32"},
    ]


@dataclasses.dataclass(frozen=True)
class DtypeAndFunction:
    dtype: Any
    activation: Callable[..., Any]


def test_a_dataclass_argument_is_in_the_key_whole_and_by_dtype() -> None:
    argument = DtypeAndFunction(torch.float16, empty)
    names = [name for name, _ in _list_compiled_properties("x", argument, is_in_key=False, kernel_module=__name__)]

    assert names == ["x.class", "x.dtype", "x"]


class Secretive(type):
    """A metaclass whose classes have no attributes for their readers."""

    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(f"{name} was read")


def test_the_class_in_the_key_is_read_without_its_metaclass() -> None:
    """The key has the name in the class statement, without the module."""
    option = Secretive("Option", (), {"__module__": __name__, "__qualname__": "Options.Option", "size": 2})()

    for name, argument in {"x": option, "x.1": (1, option)}.items():
        assert dict(_list_compiled_properties("x", argument, is_in_key=False, kernel_module=__name__)) == {
            f"{name}.class": "Options.Option"
        }
