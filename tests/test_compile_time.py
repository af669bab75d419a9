"""Which kernels may be compiled in another thread, and which before the tests."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import triton
import triton.language as tl
from triton.language import static_print as prints_it

from pytest_autotune.tuners.triton.internals.compile_time import CompileTime

constexpr_function: Any = getattr(triton, "constexpr_function", None) or tl.constexpr_function
#: Triton 3.4 has no constants in its hash.
HASHES_CONSTANTS = hasattr(triton.runtime.jit, "JITCallable")

ANYWHERE = CompileTime(needs_launching_thread=False, needs_launch=False)
AT_ITS_TIME = CompileTime(needs_launching_thread=False, needs_launch=True)
IN_ITS_THREAD = CompileTime(needs_launching_thread=True, needs_launch=True)

SETTINGS = {"vec": 1}
SCALE = tl.constexpr(3)
SHAPE = tl.constexpr((16, 32))
CHANGES = tl.constexpr([1])
DTYPE = tl.float16
NOTHING = None
exp = tl.exp
cdiv = triton.cdiv
x = object()
settings = sys.modules[__name__]


class Pair(NamedTuple):
    first: int


class Layout:
    @constexpr_function
    def width(self):
        return SETTINGS["vec"]


LAYOUT = tl.constexpr(Layout())
CALLED: Any = None


@constexpr_function
def from_settings():
    return SETTINGS["vec"]


CALLED = tl.constexpr(from_settings)


def plain_function(value):
    return value


@tl.core.builtin
def own_builtin(value, _semantic=None, _builder=None):
    return value


@triton.jit
def ordinary(y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(y + at)  # hides a global
    x += tl.sum(x, axis=0) + triton.cdiv(BLOCK, 3) + len(y.shape)
    tl.static_assert(BLOCK > 1)
    tl.store(y + at, tl.sort(tl.math.exp(x)).to(tl.float32), mask=at < max(BLOCK, 2))


@triton.jit
def with_constants(y, BLOCK: tl.constexpr):
    tl.store(y, SCALE + SHAPE[0] + SCALE.value)


@triton.jit
def calls_constexpr(y):
    tl.store(y, from_settings())


@triton.jit
def calls_helper(y):
    calls_constexpr(y)


@triton.jit
def takes_function(y, FUNCTION: tl.constexpr):
    FUNCTION(y)


@triton.jit
def with_function(y, FUNCTION: tl.constexpr = from_settings):
    tl.store(y, FUNCTION())


@triton.jit
def calls_default(y):
    with_function(y)


@triton.jit
def calls_builtin(y):
    tl.store(y, own_builtin(1))


@triton.jit
def calls_method(y):
    tl.store(y, LAYOUT.width())


@triton.jit
def calls_constant(y):
    tl.store(y, CALLED())


@triton.jit
def reads_object(y):
    tl.store(y, settings.SETTINGS["vec"])


@triton.jit
def hands_on_module(y):
    tl.store(y, getattr(settings, "SCALE"))  # noqa: B009


@triton.jit
def calls_in_module(y):
    tl.store(y, settings.plain_function(1))


@triton.jit
def makes_pair(y):
    tl.store(y, Pair(1)[0])


@triton.jit
def reads_list(y):
    tl.store(y, CHANGES[0])


@triton.jit
def prints(y):
    tl.static_print("compiling")


@triton.jit
def prints_by_another_name(y):
    prints_it("compiling")


@triton.jit
def prints_at_run_time(y):
    tl.device_print("running")
    print("running")


@triton.jit(repr=lambda specialization: "named")
def with_name(y):
    tl.store(y, 1)


@triton.jit
def with_alias(y):
    tl.store(y, exp(tl.load(y)))


@triton.jit
def with_jitted_alias(y):
    tl.store(y, cdiv(4, 3))


@triton.jit
def with_dtype(y):
    tl.store(y, tl.load(y).to(DTYPE))


@triton.jit
def with_nothing(y):
    tl.store(y, 1 if NOTHING is None else 2)


@triton.jit
def constant_of_module(y):
    tl.store(y, settings.SCALE)


@triton.jit
def function_of_module(y):
    settings.ordinary(y, 16)


@triton.jit
def assigns_constant(y):
    SCALE = SCALE * 2  # noqa: F823
    tl.store(y, SCALE)


@triton.jit
def recursive(y, N: tl.constexpr):
    if N > 0:
        recursive(y, N - 1)


def made(value: Any) -> Any:
    @triton.jit
    def kernel(y):
        tl.store(y, value)

    return kernel


def made_to_call(function: Any) -> Any:
    @triton.jit
    def kernel(y):
        function(y)

    return kernel


def helper_with_default(value: Any) -> Any:
    @triton.jit
    def helper(y, VALUE: tl.constexpr = value):
        tl.store(y, VALUE)

    return made_to_call(helper)


def helper_with_literal() -> Any:
    @triton.jit
    def helper(y, VALUE: tl.constexpr = 3, dtype: tl.constexpr = tl.float32):
        tl.store(y, VALUE)

    return made_to_call(helper)


CONSTANTS = ANYWHERE if HASHES_CONSTANTS else AT_ITS_TIME
KERNELS: list[Any] = [
    (ordinary, ANYWHERE),
    (prints_at_run_time, ANYWHERE),
    (function_of_module, ANYWHERE),
    (with_jitted_alias, ANYWHERE),
    (recursive, ANYWHERE),
    pytest.param(made_to_call(ordinary), ANYWHERE, id="calls ordinary"),
    pytest.param(helper_with_literal(), ANYWHERE, id="calls helper with literal defaults"),
    (with_constants, CONSTANTS),
    pytest.param(made(SCALE), CONSTANTS, id="reads constexpr"),
    (with_alias, AT_ITS_TIME),
    (with_dtype, AT_ITS_TIME),
    (with_nothing, AT_ITS_TIME),
    (constant_of_module, AT_ITS_TIME),
    (assigns_constant, AT_ITS_TIME),
    pytest.param(made(DTYPE), AT_ITS_TIME, id="reads dtype"),
    pytest.param(helper_with_default(3), AT_ITS_TIME, id="calls helper with computed default"),
    (calls_constexpr, IN_ITS_THREAD),
    (calls_helper, IN_ITS_THREAD),
    (calls_default, IN_ITS_THREAD),
    (calls_builtin, IN_ITS_THREAD),
    (calls_method, IN_ITS_THREAD),
    (calls_constant, IN_ITS_THREAD),
    (calls_in_module, IN_ITS_THREAD),
    pytest.param(made_to_call(from_settings), IN_ITS_THREAD, id="calls from_settings"),
    pytest.param(made_to_call(calls_constexpr), IN_ITS_THREAD, id="calls calls_constexpr"),
    (reads_object, IN_ITS_THREAD),
    (hands_on_module, IN_ITS_THREAD),
    (makes_pair, IN_ITS_THREAD),
    (reads_list, IN_ITS_THREAD),
    (prints, IN_ITS_THREAD),
    (prints_by_another_name, IN_ITS_THREAD),
    (with_name, IN_ITS_THREAD),
    pytest.param(None, IN_ITS_THREAD, id="no kernel"),
]


#: The words of an id.
PLACES = {
    ANYWHERE: "anywhere",
    AT_ITS_TIME: "needs its launch",
    IN_ITS_THREAD: "needs its thread",
}


def describe_case(value: Any) -> str:
    """Return the name of a kernel, or where it may be compiled."""
    return PLACES[value] if isinstance(value, CompileTime) else str(value.__name__)


@pytest.mark.parametrize(("kernel", "expected"), KERNELS, ids=describe_case)
def test_the_called_functions_decide_where_and_when_to_compile(kernel: Any, expected: CompileTime) -> None:
    assert CompileTime.from_kernel(kernel) == expected


@pytest.mark.parametrize(
    ("constant", "expected"),
    [
        (16, ANYWHERE),
        (None, ANYWHERE),
        (tl.float32, ANYWHERE),
        (tl.constexpr(2), ANYWHERE),
        ((1, "a"), ANYWHERE),
        (ordinary, ANYWHERE),
        (with_dtype, AT_ITS_TIME),
        (from_settings, IN_ITS_THREAD),
        (calls_constexpr, IN_ITS_THREAD),
        (Pair(1), IN_ITS_THREAD),
        ([1], IN_ITS_THREAD),
        (LAYOUT, IN_ITS_THREAD),
    ],
    ids=lambda value: PLACES[value] if isinstance(value, CompileTime) else type(value).__name__,
)
def test_constant_arguments_decide_where_and_when_to_compile(constant: Any, expected: CompileTime) -> None:
    assert CompileTime.from_kernel(takes_function, [constant]) == expected


def test_a_kernel_reading_a_global_compiles_in_the_launch_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton refuses a global that is no constant, unless a setting allows it."""
    reads_global = made_to_call(plain_function)
    assert CompileTime.from_kernel(reads_global) == ANYWHERE

    monkeypatch.setattr(triton.knobs.compilation, "allow_non_constexpr_globals", True)

    assert CompileTime.from_kernel(reads_global) == IN_ITS_THREAD


computed_module: Any = ModuleType("computed_module")


@triton.jit
def reads_computed(y):
    tl.store(y, computed_module.VALUE)


def test_a_module_getattr_forces_compiling_in_the_launch_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reads an attribute of a module that has a ``__getattr__``."""
    assert CompileTime.from_kernel(reads_computed) == ANYWHERE, "it does not compile"

    monkeypatch.setattr(computed_module, "__getattr__", lambda name: SETTINGS["vec"], raising=False)

    assert CompileTime.from_kernel(reads_computed) == IN_ITS_THREAD


def test_choosing_the_compile_thread_reads_no_argument_attribute() -> None:
    class Proxy:
        def __getattribute__(self, name: str) -> Any:
            pytest.fail(f"asked for {name}")

    hidden = made_to_call(Proxy())

    assert CompileTime.from_kernel(hidden) == ANYWHERE
    assert CompileTime.from_kernel(takes_function, [Proxy()]) == IN_ITS_THREAD


def test_a_patched_tl_exp_decides_where_and_when_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tl, "exp", calls_constexpr)

    @triton.jit
    def kernel(y):
        tl.exp(y)

    assert CompileTime.from_kernel(kernel) == IN_ITS_THREAD
    monkeypatch.setattr(tl, "exp", ordinary)
    assert CompileTime.from_kernel(kernel) == AT_ITS_TIME
