"""A digest has the code that callable objects, dispatching functions and generated classes lead to."""

from __future__ import annotations

import enum
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pytest_autotune.cache.model import UncacheableError
from pytest_autotune.tuners.function.identity import list_sources, source_text
from pytest_autotune.tuners.source.source_digest import read_source, source_digest, source_parts, stable_value
from tests.test_source_digest import load

__all__ = ["load"]

STORED = """
import dataclasses, functools, types, typing
import pytest_autotune
def g():
    return 1
class Slot:
    __slots__ = ("f",)
    def __init__(self, f):
        self.f = f
    def __call__(self, *args):
        return self.f()
class Open:
    def __init__(self, f):
        self.f = f
    def __call__(self, *args):
        return self.f()
@dataclasses.dataclass
class Record:
    __slots__ = ("f",)
    f: typing.Any
    def __call__(self):
        return self.f()
class Bound:
    def g(self):
        return 1
@functools.singledispatch
def dispatch(x):
    return 0
@dispatch.register
def _(x: int):
    return 1
@pytest_autotune.tuned(space=[1, 2])
def inner(x, config):
    return 1
slot, record, decorated = Slot(g), Record(g), Slot(g)
in_tuple, nested, in_partial = Open((g, 3)), Open(Slot(g)), Open(functools.partial(g))
bound, of_class = Open(Bound().g), Open(Bound)
def kernel(x):
    return USED
"""


@pytest.mark.parametrize(
    "used",
    [
        "slot()",
        "record()",
        "in_tuple()",
        "nested()",
        "in_partial()",
        "bound()",
        "of_class()",
        "inner(x)",
        "dispatch(x)",
    ],
)
def test_editing_code_in_a_callable_object_is_a_source_change(load, used: str) -> None:
    source = STORED.replace("USED", used)
    digest = source_digest(load(source).kernel)
    assert source_digest(load(source).kernel) == digest
    assert source_digest(load(source.replace("return 1", "return 10")).kernel) != digest


PARTIALS = """
import functools, torch
class Op:
    def __call__(self, x, scale=1):
        return x + 1
class Net(torch.nn.Module):
    def forward(self, x):
        return x + 1
scaled, net = functools.partial(Op(), scale=2), functools.partial(Net())
def kernel(x):
    return USED
"""


@pytest.mark.parametrize("used", ["scaled(x)", "net(x)"])
def test_editing_an_object_a_partial_calls_is_a_source_change(load, used: str) -> None:
    source = PARTIALS.replace("USED", used)
    digest = source_digest(load(source).kernel)
    assert source_digest(load(source).kernel) == digest
    assert source_digest(load(source.replace("x + 1", "x + 10")).kernel) != digest


WRAPPED = """
import contextlib, enum, functools
@functools.singledispatch
def dispatch(x):
    return x + 1
@contextlib.contextmanager
def scope(x):
    yield x + 1
class Op:
    def __init__(self, function):
        self.function = function
    def go(self, x):
        return self.function(x)
class Mode(enum.Enum):
    FAST = functools.partial(STORED)
op, pair = Op(STORED), (STORED, 1)
def kernel(x):
    return USED
"""


@pytest.mark.parametrize("stored", ["dispatch", "scope"])
@pytest.mark.parametrize("used", ["op.go(x)", "pair[0](x)", "Mode.FAST.value(x)"])
def test_editing_a_stored_wrapped_function_is_a_source_change(load, stored: str, used: str) -> None:
    source = WRAPPED.replace("USED", used).replace("STORED", stored)
    digest = source_digest(load(source, "suite").kernel)
    assert source_digest(load(source, "suite").kernel) == digest
    assert source_digest(load(source.replace("x + 1", "x + 10"), "suite").kernel) != digest


DECORATED_METHOD = """
import functools
def doubled(function):
    @functools.wraps(function)
    def wrapper(*args):
        return 2 * function(*args)
    return wrapper
class Op:
    SIZE = 16
    @doubled
    def go(self, x):
        return self.SIZE + self.helper(x)
    def helper(self, x):
        return x + 1
pair = (Op().go, 1)
def kernel(x):
    return pair[0](x)
"""


@pytest.mark.parametrize(("old", "new"), [("2 *", "3 *"), ("= 16", "= 32"), ("x + 1", "x + 2")])
def test_editing_code_a_decorated_method_uses_changes_the_digest(load, old: str, new: str) -> None:
    digest = source_digest(load(DECORATED_METHOD).kernel)
    assert source_digest(load(DECORATED_METHOD).kernel) == digest
    assert source_digest(load(DECORATED_METHOD.replace(old, new)).kernel) != digest


@pytest.mark.parametrize("run", ["slot", "nested", "dispatch", "inner"])
def test_editing_an_object_in_argument_run_is_a_source_change(load, run: str) -> None:
    before = getattr(load(STORED), run)
    after = getattr(load(STORED.replace("return 1", "return 10")), run)
    assert source_text(before) == source_text(getattr(load(STORED), run))
    assert source_text(before) != source_text(after)


CALLED_BY_LIBRARY = """
import functools, torch
def add(x):
    return x + 1
class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return add(x)
class Net(torch.nn.Module):
    def forward(self, x):
        return add(x)
run = RUN
"""


@pytest.mark.parametrize("is_partial", [False, True], ids=["plain", "partial"])
@pytest.mark.parametrize("run", ["Attention.apply", "Net()", "Net().__call__", "functools.partial(map, add)"])
def test_editing_code_that_a_library_calls_is_a_source_change(load, run: str, is_partial: bool) -> None:
    def digest_sources(text: str) -> list[str | None]:
        callback = load(text, "suite").run
        if is_partial:
            callback = functools.partial(callback, 2)
        return [source_text(callback), *map(source_text, list_sources(None, callback))]

    source = CALLED_BY_LIBRARY.replace("RUN", run)
    digests = digest_sources(source)
    assert len(digests) == 2
    assert digest_sources(source) == digests
    after_edit = digest_sources(source.replace("x + 1", "x + 10"))
    assert None not in after_edit
    assert not set(after_edit) & set(digests)


LIBRARY_FUNCTION_AS_VALUE = """
import functools, math, numpy, operator, torch
import torch.nn.functional as F
def make(function):
    def run(x):
        return function(x)
    return run
def apply(function, x):
    return function(x)
class Op:
    def __init__(self, function):
        self.function = function
    def go(self, x):
        return self.function(x)
op = Op(FUNCTION)
def with_object(x):
    return op.go(x)
run = RUN
"""


@pytest.mark.parametrize(
    "run", ["make(FUNCTION)", "functools.partial(apply, FUNCTION)", "op.go", "with_object", "lambda x: op.go(x)"]
)
@pytest.mark.parametrize(
    ("function", "other_function"),
    [
        ("torch.exp", "torch.sigmoid"),
        ("math.sin", "math.cos"),
        ("numpy.sin", "numpy.cos"),
        ("torch.ops.aten.exp", "torch.ops.aten.sin"),
        ("operator.add", "operator.sub"),
        ("F.silu", "F.softsign"),
        ("torch.nn.SiLU", "torch.nn.Softsign"),
    ],
)
def test_another_library_function_as_a_value_is_a_source_change(
    load, run: str, function: str, other_function: str
) -> None:
    def digest_run(name: str) -> str | None:
        return source_text(load(source.replace("FUNCTION", name), "suite").run)

    source = LIBRARY_FUNCTION_AS_VALUE.replace("RUN", run)
    digest = digest_run(function)
    assert digest is not None
    assert digest_run(function) == digest
    assert digest_run(other_function) != digest


def test_a_library_object_without_code_of_the_user_is_no_source(load) -> None:
    library_object = load("import torch\nrun = torch.nn.ReLU()\n").run
    assert list_sources(None, library_object) == ()
    with pytest.raises(TypeError):
        source_text(library_object)


MADE = """
import dataclasses, types, typing
class constexpr:
    def __init__(self, value):
        self.value = value
class Base:
    def m(self):
        return 1
def m(self):
    return 1
Made = dataclasses.make_dataclass("Made", [("first", int, 1), ("second", int, 2)], namespace={"m": m})
New = types.new_class("New", (), {}, lambda attributes: attributes.update(m=m, v=1))
Below = types.new_class("Below", (Base,))
class Generic(typing.Generic[typing.TypeVar("T")]):
    z = 1
Alias = Generic[int]
SIZES = constexpr([2, 1])
TABLE = constexpr({"a": {1: (5, m)}, "b": [{3, 4}]})
class Pair(typing.NamedTuple):
    sizes: list
@dataclasses.dataclass(frozen=True)
class Tiles:
    sizes: list
    def area(self):
        return 6
NESTED = constexpr((0, [11]))
TUPLE = constexpr(Pair([12]))
TILES = constexpr(Tiles([13]))
DEEP = constexpr({"a": (0, [Tiles([14])])})
def g():
    return 1
def helper(x):
    return x + helper.v() + helper.w
helper.v = g
helper.w = 3
def counter(x):
    counter.calls += 1
    return counter.calls
counter.calls = 0
def kernel(x):
    return USED
"""


@pytest.mark.parametrize(
    ("used", "old", "new"),
    [
        ("Made(1).m()", "return 1", "return 10"),
        ("Made().first", "int, 1", "int, 10"),
        ("Made(3, 4)", '("first", int, 1), ("second", int, 2)', '("second", int, 2), ("first", int, 1)'),
        ("New().m()", "return 1", "return 10"),
        ("New.v", "v=1", "v=10"),
        ("Below().m()", "return 1", "return 10"),
        ("Alias.z", "z = 1", "z = 10"),
        ("SIZES", "[2, 1]", "[1, 2]"),
        ("TABLE['a'][1]", "(5, m)", "(6, m)"),
        ("TABLE['a'][1]", "1: (5", "2: (5"),
        ("TABLE['a'][1]", "return 1", "return 10"),
        ("TABLE['b']", "{3, 4}", "{3, 5}"),
        ("NESTED[1]", "[11]", "[21]"),
        ("TUPLE.sizes", "[12]", "[22]"),
        ("TILES.sizes", "[13]", "[23]"),
        ("TILES.area()", "return 6", "return 60"),
        ("DEEP['a'][1]", "[14]", "[24]"),
        ("DEEP['a'][1]", "return 6", "return 60"),
        ("helper(x)", "return 1", "return 10"),
        ("helper(x)", "helper.w = 3", "helper.w = 30"),
    ],
)
def test_editing_generated_classes_or_aliases_is_a_source_change(load, used: str, old: str, new: str) -> None:
    """The values of a list or a table that a kernel uses count, too."""
    source = MADE.replace("USED", used)
    digest = source_digest(load(source, "m").kernel)
    assert source_digest(load(source, "m").kernel) == digest
    assert source_digest(load(source.replace(old, new), "m").kernel) != digest


def test_a_call_counter_on_a_function_is_no_source_change(load) -> None:
    module = load(MADE.replace("USED", "counter(x)"), "m")
    digest = source_digest(module.kernel)
    module.kernel(1)
    assert source_digest(module.kernel) == digest


WRAPPED_PARTIAL = """
import functools
def launch(function, n):
    return function(n) + 1
def launched(function):
    return functools.wraps(function)(functools.partial(launch, function))
@launched
def helper(n):
    return 2 * n
def kernel(n):
    return helper(n)
"""


@pytest.mark.parametrize(("old", "new"), [("+ 1", "+ 2"), ("2 * n", "3 * n")])
def test_editing_a_partial_under_wraps_is_a_source_change(load, old: str, new: str) -> None:
    def digest_kernel(source: str) -> list[str | None]:
        return [source_text(subject) for subject in list_sources(None, load(source).kernel)]

    before = digest_kernel(WRAPPED_PARTIAL)
    assert digest_kernel(WRAPPED_PARTIAL) == before != digest_kernel(WRAPPED_PARTIAL.replace(old, new))


UNDER_WRAPS = """
import contextlib, functools
FUNCTIONS = {}
def from_table(function):
    FUNCTIONS["helper"] = function
    @functools.wraps(function)
    def wrapper(n):
        return FUNCTIONS["helper"](n)
    return wrapper
def from_list(function):
    functions = [function]
    @functools.wraps(function)
    def wrapper(n):
        return functions[0](n)
    return wrapper
def check(n):
    return n
def in_library(function):
    return functools.update_wrapper(contextlib.contextmanager(check), function)
class Op:
    def __init__(self, function):
        self.function = function
        self.__name__ = "op"
    def __call__(self, n):
        return self.function(n)
    def launch(self, n):
        return self.function(n)
@DECORATOR
def helper(n):
    return 2 * n
def kernel(n):
    return helper(n)
"""


@pytest.mark.parametrize(
    "decorator",
    [
        "from_table",
        "from_list",
        "in_library",
        "from_table\n@contextlib.contextmanager",
        "from_table\n@functools.singledispatch",
        "from_table\n@Op",
        "from_table\n@(lambda function: Op(function).launch)",
        "from_table\n@functools.partial(functools.partial)",
    ],
)
def test_editing_a_function_that_only_wraps_knows_is_a_source_change(load, decorator: str) -> None:
    """The wrapper calls the function through a table, a list, or something else that a library made."""
    source = UNDER_WRAPS.replace("DECORATOR", decorator)
    before = source_text(load(source).kernel)

    assert source_text(load(source).kernel) == before
    assert source_text(load(source.replace("2 * n", "3 * n")).kernel) != before


def test_a_wrapper_with_the_signature_of_a_generated_function_has_a_digest(load) -> None:
    source = """
import dataclasses, functools
@dataclasses.dataclass
class Tile:
    size: int
@functools.wraps(Tile.__init__)
def make(*args):
    return args
def kernel(n):
    return make(n) + 1
"""
    before = source_text(load(source).kernel)

    assert before is not None
    assert source_text(load(source.replace("return args", "return args[1:]")).kernel) != before


HEURISTICS = """
import functools
import triton
import triton.language as tl
def rows(args):
    return 1
@triton.heuristics({"COLUMNS": lambda args: 4})
@triton.heuristics({"ROWS": rows})
@triton.jit
def kernel(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    tl.store(x, ROWS + COLUMNS)
def run(x):
    kernel[(1,)](x)
in_lambda = lambda x: kernel[(1,)](x)
KERNELS = (kernel, 1)
class Kernels:
    both = (kernel.run, 1)
dispatched = functools.singledispatch(kernel[(1,)])
def run_of_tuple(x):
    KERNELS[0][(1,)](x)
def run_of_class(x):
    Kernels.both[0](x, grid=(1,))
def run_of_dispatch(x):
    dispatched(x)
"""


@pytest.mark.parametrize("edit", ["return 1", "args: 4"])
@pytest.mark.parametrize("run", ["run", "in_lambda", "kernel", "run_of_tuple", "run_of_class", "run_of_dispatch"])
def test_editing_a_launched_kernels_heuristic_is_a_source_change(load, run: str, edit: str) -> None:
    pytest.importorskip("triton")

    def digest_run(text: str) -> list[str | None]:
        return [source_text(source) for source in list_sources(None, getattr(load(text, "m"), run))]

    before = digest_run(HEURISTICS)
    assert digest_run(HEURISTICS) == before
    assert digest_run(HEURISTICS.replace(edit, f"{edit}0")) != before


SEVERAL_DECORATORS = """
import triton
class Timed:
    def __init__(self, fn):
        self.fn = fn
    def __call__(self, x):
        return self.fn(x) + 2
def helper(x):
    return x
def body(x):
    pass
FUNCTIONS = (helper, Timed(helper))
KERNELS = (triton.jit(body), triton.jit(body, noinline=True))
def run(x):
    return FUNCTIONS[1](x), KERNELS[1][(1,)](x)
"""


@pytest.mark.parametrize(("old", "new"), [("+ 2", "+ 3"), ("noinline=True", "noinline=False")])
def test_a_function_counts_with_each_of_its_decorators(load, old: str, new: str) -> None:
    """The tuple also has the function without the decorator, which is digested first."""
    pytest.importorskip("triton")
    digest = source_digest(load(SEVERAL_DECORATORS, "m").run)
    assert source_digest(load(SEVERAL_DECORATORS, "m").run) == digest
    assert source_digest(load(SEVERAL_DECORATORS.replace(old, new), "m").run) != digest


def test_a_kernel_in_a_key_counts_with_its_heuristics(load) -> None:
    pytest.importorskip("triton")

    before = stable_value("kernel", load(HEURISTICS, "m").kernel)
    assert stable_value("kernel", load(HEURISTICS, "m").kernel) == before
    assert stable_value("kernel", load(HEURISTICS.replace("args: 4", "args: 5"), "m").kernel) != before


VALUES_IN_CONSTANTS = """
import dataclasses, enum, typing
class Mode(enum.Enum):
    FAST = 1
    @property
    def area(self):
        return self.value + 3
@dataclasses.dataclass(frozen=True)
class Tile:
    m: int = 1
    @property
    def area(self):
        return self.m + 3
class Pair(typing.NamedTuple):
    m: int = 1
    @property
    def area(self):
        return self.m + 3
@dataclasses.dataclass(frozen=True)
class Config:
    tile: object
class Preset(enum.Enum):
    BIG = VALUE
config, tiles, sizes, nested = Config(VALUE), (VALUE, 1), frozenset([VALUE]), Config((Config(VALUE),))
def kernel(x):
    return USED
"""


@pytest.mark.parametrize("value", ["Mode.FAST", "Tile()", "Pair()"])
@pytest.mark.parametrize(
    "used",
    [
        "config.tile.area",
        "tiles[0].area",
        "max(tile.area for tile in tiles)",
        "max(tile.area for tile in sizes)",
        "nested.tile[0].tile.area",
        "Preset.BIG.value.area",
    ],
)
def test_editing_a_class_inside_a_constant_is_a_source_change(load, value: str, used: str) -> None:
    source = VALUES_IN_CONSTANTS.replace("VALUE", value).replace("USED", used)
    digest = source_digest(load(source).kernel)
    assert source_digest(load(source).kernel) == digest
    assert source_digest(load(source.replace("+ 3", "+ 30")).kernel) != digest


def test_a_frozen_object_that_contains_itself_has_a_digest(load) -> None:
    source = "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Node:\n    next: object = None\n"
    source += "    def go(self):\n        return 1\nnode = Node()\nother = Node(node)\n"
    source += "object.__setattr__(node, 'next', (other,))\ndef kernel(x):\n    return node.go()\n"
    digest = source_digest(load(source).kernel)
    assert source_digest(load(source.replace("return 1", "return 2")).kernel) != digest


CLASSES_IN_SETS = """
import dataclasses
from triton.language import constexpr
@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    value: object = dataclasses.field(default=(), hash=False, compare=False)
    def other(self):
        return Column("c")
@dataclasses.dataclass(frozen=True)
class Column:
    name: str
    value: object = dataclasses.field(default=(), hash=False, compare=False)
    def other(self):
        return Row("r")
def even(n):
    return odd(n - 1) if n else True
def odd(n):
    return even(n - 1) if n else False
tiles = frozenset([Row("a", even), Column("b", odd)])
constant_set = constexpr({Row("a"), Column("b"), Row("c"), Column("d")})
constant_frozenset = constexpr(frozenset([Row("a", [1]), Column("b", [2]), Row("c", [3]), Column("d", [4])]))
def kernel_of_frozenset():
    return [tile.other() for tile in tiles]
def kernel_of_constant_set():
    return constant_set
def kernel_of_constant_frozenset():
    return constant_frozenset
"""


def test_classes_in_a_set_give_one_digest_in_all_processes(tmp_path: Path) -> None:
    """The order of a set differs between processes, and the text of each class depends on the classes before it."""
    (tmp_path / "kernels.py").write_text(CLASSES_IN_SETS)
    script = "from kernels import *; from pytest_autotune.tuners.source.source_digest import source_digest as digest\n"
    script += "print([digest(k) for k in (kernel_of_frozenset, kernel_of_constant_set, kernel_of_constant_frozenset)])"
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent.parent)])
    digests = set()
    for seed in "01234567":
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        digests.add(subprocess.check_output([sys.executable, "-c", script], env=environment, text=True))
    assert len(digests) == 1


FILLED_BY_METHOD = """
import numpy, torch
class Op:
    def __init__(self):
        self.last_type = None
        self.function = None
    def __call__(self, x):
        self.last_type = type(x)
        if self.function is None:
            self.function = torch.exp
        self.scalar = numpy.float32
        return self.function(x)
class Net(torch.nn.Module):
    def forward(self, x):
        return x
op, net = Op(), Net()
def kernel(x):
    return op(x), net(x)
"""


def test_a_library_function_that_a_method_stores_is_no_change(load) -> None:
    module = load(FILLED_BY_METHOD)
    digest = source_digest(module.kernel)
    module.op(torch.ones(1))
    module.net._compiled_call_impl = torch.exp  # as torch.nn.Module.compile() does
    assert source_digest(module.kernel) == digest


ORDINARY = """
import contextlib, dataclasses, torch
@dataclasses.dataclass
class Sizes:
    sizes: list = dataclasses.field(default_factory=list)
def sized(x):
    return Sizes()
def activated(x, act=torch.exp, size=len):
    return torch.exp(x), len(x)
class Op:
    @contextlib.contextmanager
    def managed(self):
        yield 1
    def other(self):
        return 2
managed = Op().managed
"""


@pytest.mark.parametrize(("run", "digest"), [("sized", "f58238e6c327"), ("activated", "5a0ba2036a5a")])
def test_a_name_that_the_source_has_is_in_no_digest_again(load, run: str, digest: str) -> None:
    assert source_text(getattr(load(ORDINARY, "ordmod"), run)) == digest


def test_a_method_under_contextmanager_counts_without_its_class(load) -> None:
    before = source_text(load(ORDINARY).managed)
    assert source_text(load(ORDINARY.replace("return 2", "return 3")).managed) == before
    assert source_text(load(ORDINARY.replace("yield 1", "yield 3")).managed) != before


BEHIND_LIBRARIES = """
import functools, torch
from torch import exp as act
def add(x):
    return act(x) + 1
class Net(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function
named = functools.partial(add, [1])
named.__name__ = "named"
net = Net(add)
mapped = functools.partial(map, add)
def with_partial(x):
    return named(x)
def with_net(x):
    return net(x)
run = RUN
"""


@pytest.mark.parametrize("run", ["mapped", "with_partial", "with_net"])
@pytest.mark.parametrize(("old", "new"), [("import exp", "import log"), ("+ 1", "+ 10")])
def test_code_behind_partials_and_modules_is_followed(load, run: str, old: str, new: str) -> None:
    source = BEHIND_LIBRARIES.replace("RUN", run)
    before = source_text(load(source, "suite").run)
    assert source_text(load(source, "suite").run) == before
    assert source_text(load(source.replace(old, new), "suite").run) != before


def test_an_object_with_code_of_exec_has_no_source(load) -> None:
    source = "import torch\nspace = {}\nexec('def f(x): return x', space)\n"
    source += "class Net(torch.nn.Module):\n    def forward(self, x):\n        return space['f'](x)\n"
    source += "run = Net()\nrun.function = space['f']\n"
    run = load(source).run
    assert list_sources(None, run) == (run,)
    assert source_text(run) is None


DECORATED_BY_CONTEXT = """
import contextlib
def leaf(x):
    return x + 1
class Scope(contextlib.ContextDecorator):
    def __enter__(self):
        return leaf(1)
    def __exit__(self, *error):
        return False
@contextlib.contextmanager
def scope():
    yield leaf(2)
@Scope()
def by_class(x):
    return x
@scope()
def by_function(x):
    return x
"""


UNDER_LIBRARY_DECORATORS = """
import contextlib, functools, pytest, torch
from pytest_autotune import tuned
COUNT = 4
def leaf(x):
    return x + 1
@contextlib.contextmanager
def threads(count):
    yield count
class Scope(contextlib.ContextDecorator):
    def __init__(self, count):
        self.count = count
    def __enter__(self):
        return self
    def __exit__(self, *error):
        return False
def doubled(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args) * 2
    return wrapper
def plain(function):
    def wrapper(*args):
        return function(*args)
    return wrapper
class Launcher:
    def __init__(self, function):
        self.launched = function
    def __call__(self, *args):
        return self.launched(*args)
    def __get__(self, owner, cls):
        return functools.partial(self, owner)
DECORATORS
def run(x):
    return leaf(x)
class Op:
    DECORATORS
    def launch(self, x):
        return leaf(x)
method = Op().launch
launch = run
def caller(x):
    return launch(x)
"""


def _decorated(decorators: str) -> str:
    """Return the source of a module with a function and a method under the decorators."""
    source = UNDER_LIBRARY_DECORATORS.replace("    DECORATORS", "    " + decorators.replace("\n", "\n    "))
    return source.replace("DECORATORS", decorators)


@pytest.mark.parametrize("run", ["run", "method", "caller"])
@pytest.mark.parametrize(
    ("decorators", "edited"),
    [
        ("@threads(4)", "@threads(5)"),
        ("@threads(count=4)", "@threads(count=5)"),
        ("@Scope(4)", "@Scope(5)"),
        ("@torch.no_grad()", "@torch.enable_grad()"),
        ("@torch.autocast('cpu', dtype=torch.float16)", "@torch.autocast('cpu', dtype=torch.bfloat16)"),
        ("@torch.compile(dynamic=True)", "@torch.compile(dynamic=False)"),
        ("@torch.no_grad()\n@threads(4)", "@torch.no_grad()\n@threads(5)"),
        ("@torch.no_grad()\n@doubled", "@torch.enable_grad()\n@doubled"),
        ("@doubled\n@torch.no_grad()", "@doubled\n@torch.enable_grad()"),
        ("@threads(4)\n@functools.singledispatch", "@threads(5)\n@functools.singledispatch"),
    ],
)
def test_arguments_of_library_decorators_count(load, run: str, decorators: str, edited: str) -> None:
    before = source_text(getattr(load(_decorated(decorators)), run))
    assert before is not None
    assert source_text(getattr(load(_decorated(decorators)), run)) == before
    assert source_text(getattr(load(_decorated(edited)), run)) != before


@pytest.mark.parametrize("run", ["run", "method", "caller"])
@pytest.mark.parametrize("decorator", ["@threads(COUNT)", "@Scope(COUNT)", "@torch.set_grad_enabled(COUNT == 4)"])
def test_globals_in_library_decorators_count(load, run: str, decorator: str) -> None:
    source = _decorated(decorator)
    before = source_text(getattr(load(source), run))
    assert source_text(getattr(load(source.replace("COUNT = 4", "COUNT = 5")), run)) != before


@pytest.mark.parametrize("run", ["run", "method", "caller"])
@pytest.mark.parametrize(
    "decorators",
    [
        "@threads(1)\n@Scope(2)",
        "@torch.no_grad()\n@threads(1)",
        "@Scope(1)\n@functools.lru_cache(None)",
        "@threads(1)\n@Scope(2)\n@contextlib.contextmanager",
        "@threads(1)\n@functools.singledispatch",
        "@threads(1)\n@Launcher",
        "@torch.no_grad()\n@threads(1)\n@Launcher",
    ],
)
def test_functions_under_several_library_decorators_count(load, run: str, decorators: str) -> None:
    source = _decorated(decorators)
    before = source_text(getattr(load(source), run))
    assert source_text(getattr(load(source), run)) == before
    assert source_text(getattr(load(source.replace("x + 1", "x + 10")), run)) != before


@pytest.mark.parametrize("wrapped", ["Op().launch", "functools.partial(run, 1)", "run"])
def test_functions_passed_to_a_library_decorator_count(load, wrapped: str) -> None:
    source = _decorated("@plain") + f"called = torch.no_grad()(threads(4)({wrapped}))\n"
    before = source_text(load(source).called)
    assert source_text(load(source.replace("x + 1", "x + 10")).called) != before


@pytest.mark.parametrize(
    "inner_decorators", ["@torch.no_grad()\n    @functools.wraps(f)", "@functools.wraps(f)\n    @torch.no_grad()"]
)
def test_library_decorators_inside_a_decorator_count(load, inner_decorators: str) -> None:
    source = f"""
import functools, torch
def timed(f):
    {inner_decorators}
    def wrapper(*args):
        return f(*args)
    return wrapper
def launch(x):
    return x
run = timed(launch)
"""
    before = source_text(load(source).run)
    assert source_text(load(source.replace("no_grad", "enable_grad")).run) != before


@pytest.mark.parametrize(
    ("decorators", "old", "new"),
    [
        ("@tuned(key=['x'], space=[1])\n@torch.no_grad()", "space=[1]", "space=[1, 2]"),
        ("@pytest.mark.parametrize('n', [1])\n@torch.no_grad()", "[1]", "[1, 2]"),
        ("@torch.no_grad()  # a comment", "a comment", "another comment"),
    ],
)
def test_an_edit_of_a_mark_or_of_tuned_changes_no_digest(load, decorators: str, old: str, new: str) -> None:
    source = _decorated(decorators)
    before = source_text(load(source).caller)
    assert source_text(load(source.replace(old, new)).caller) == before


KERNEL_IN_WRAPPER = """
import functools, torch, triton
@triton.autotune(configs=[triton.Config({"BLOCK": 16})], key=["n"])
@triton.jit
def kernel(x, n, BLOCK: triton.language.constexpr):
    pass
@torch.no_grad()
@functools.wraps(kernel)
def run(x):
    kernel[(1,)](x, 1)
launch = torch.no_grad()(kernel[(1,)])
def caller(x):
    return launch(x)
"""


@pytest.mark.parametrize("run", ["run", "launch", "caller"])
@pytest.mark.parametrize(("old", "new"), [("16", "32"), ('["n"]', "[]")])
def test_candidates_of_a_decorated_kernel_do_not_count(load, run: str, old: str, new: str) -> None:
    pytest.importorskip("triton")
    before = source_text(getattr(load(KERNEL_IN_WRAPPER), run))
    assert before is not None
    assert source_text(getattr(load(KERNEL_IN_WRAPPER.replace(old, new)), run)) == before


HELPER_BESIDE = """
import torch
def noise(function):
    return function
def make():
    @noise
    def helper(x):
        return x
    @torch.no_grad()
    def inner(x):
        return helper(x)
    return inner
run = make()
"""


def test_decorators_of_a_helper_in_the_closure_do_not_count(load) -> None:
    before = source_text(load(HELPER_BESIDE).run)
    assert source_text(load(HELPER_BESIDE.replace("    @noise\n", "")).run) == before


REGISTRY = """
import torch
class Registry:
    def register(self, function):
        setattr(self, function.__name__, function)
        return function
OPS = Registry()
@OPS.register
@torch.no_grad()
def run(x):
    return x
@OPS.register
def other(x):
    return x + 1
"""


def test_other_functions_of_a_registry_do_not_count(load) -> None:
    before = source_text(load(REGISTRY).run)
    assert source_text(load(REGISTRY.replace("x + 1", "x + 2")).run) == before


DECORATOR_IN_FACTORY = """
import torch
def dtype():
    return 1
def make(dtype):
    @torch.autocast("cpu", enabled=dtype > 5)
    def inner(x):
        return x
    return inner
run = make(6)
"""


def test_a_parameter_in_a_decorator_is_no_global(load) -> None:
    before = source_text(load(DECORATOR_IN_FACTORY).run)
    assert source_text(load(DECORATOR_IN_FACTORY.replace("return 1", "return 2")).run) == before


def test_a_decorator_without_a_source_is_no_error(load) -> None:
    source = _decorated("@made\n@torch.no_grad()")
    source = source.replace("COUNT = 4", "COUNT = 4\nexec('def made(function): return function')")
    assert source_text(load(source).run) is not None


DECORATORS_IN_CYCLE = """
import contextlib
@contextlib.contextmanager
def fallback(get_function):
    yield get_function
@fallback(lambda: slow)
def fast(x):
    return x + 1
@fallback(lambda: fast)
def slow(x):
    return x + 2
"""


@pytest.mark.parametrize("run", ["fast", "slow"])
def test_two_functions_may_name_each_other_in_their_decorators(load, run: str) -> None:
    before = source_text(getattr(load(DECORATORS_IN_CYCLE), run))
    assert before is not None
    for number in (1, 2):
        edited = DECORATORS_IN_CYCLE.replace(f"x + {number}", f"x + {number}0")
        assert source_text(getattr(load(edited), run)) != before


def test_long_chains_of_decorators_are_fast(load) -> None:
    """Without a memo, each step of the chain would double the time."""
    lines = ["import contextlib", "@contextlib.contextmanager", "def after(*functions):", "    yield"]
    lines += ["def f0(x):", "    return x", "def f1(x):", "    return x"]
    for number in range(2, 60):
        lines += [f"@after(f{number - 1}, f{number - 2})", f"def f{number}(x):", f"    return x + {number}"]

    source = "\n".join(lines) + "\n"

    before = source_text(load(source).f59)
    assert before is not None
    assert source_text(load(source.replace("x + 2\n", "x - 2\n")).f59) != before


@pytest.mark.parametrize("run", ["run", "caller"])
@pytest.mark.parametrize(
    ("decorators", "edited"),
    [("@torch.no_grad()", "@torch.enable_grad()"), ("@threads(4)\n@torch.no_grad()", "@threads(5)\n@torch.no_grad()")],
)
def test_a_report_names_the_function_whose_decorator_changed(load, run: str, decorators: str, edited: str) -> None:
    before = source_parts(getattr(load(_decorated(decorators)), run), carried=False)
    after = source_parts(getattr(load(_decorated(edited)), run), carried=False)
    assert after.keys() == before.keys()
    assert [name for name in after if after[name] != before[name]] == ["run"]


AGGREGATE = """
import triton
import triton.language as tl
SHIFT = tl.constexpr(5)
@triton.constexpr_function
def tile_scale(n):
    return n * 2
@tl.core._aggregate
class Tile:
    size: tl.constexpr
    @triton.constexpr_function
    def __init__(self, n):
        self.size = tl.constexpr(n * 4)
@tl.core._aggregate
class Config:
    scale: tl.constexpr
    shift: tl.constexpr
    tile: Tile
    @triton.constexpr_function
    def __init__(self, n):
        self.scale = tl.constexpr(tile_scale(n))
        self.shift = SHIFT
        self.tile = Tile(n)
    @triton.jit
    def apply(self, value):
        return value * self.scale + self.shift + self.tile.size
@triton.jit
def kernel(x, y):
    tl.store(y, Config(4).apply(tl.load(x)))
"""


@pytest.mark.parametrize(("old", "new"), [("n * 2", "n * 3"), ("constexpr(5)", "constexpr(6)"), ("n * 4", "n * 5")])
def test_the_constructor_of_an_aggregate_counts(load, old: str, new: str) -> None:
    if not hasattr(pytest.importorskip("triton.language.core"), "_aggregate"):
        pytest.skip("this Triton has no aggregates")
    before = source_digest(load(AGGREGATE).kernel)
    assert source_digest(load(AGGREGATE).kernel) == before
    assert source_digest(load(AGGREGATE.replace(old, new)).kernel) != before


IN_LIBRARY_OBJECT = """
import numpy, torch
@numpy.vectorize
def vectorized(x):
    return x + 1
@torch.jit.script
def scripted(x: int) -> int:
    return x + 1
def call_vectorized(x):
    return vectorized(x)
def call_scripted(x):
    return scripted(x)
"""


@pytest.mark.parametrize("run", ["vectorized", "scripted", "call_vectorized", "call_scripted"])
def test_the_function_in_an_object_of_numpy_or_torch_counts(load, run: str) -> None:
    def read_digest(source: str) -> str | None:
        (source_of_run,) = list_sources(None, getattr(load(source), run))
        return source_text(source_of_run)

    before = read_digest(IN_LIBRARY_OBJECT)
    assert read_digest(IN_LIBRARY_OBJECT) == before
    assert read_digest(IN_LIBRARY_OBJECT.replace("x + 1", "x + 2")) != before


DECORATED_LAMBDA = """
import contextlib, functools
def leaf(x):
    return x + 1
def sync(function):
    @functools.wraps(function)
    def wrapper(x):
        return function(x) + 2
    return wrapper
wrapped = sync(lambda x: leaf(x))
scope = contextlib.contextmanager(lambda x: iter([leaf(x)]))
def launch(x):
    with scope(x):
        return wrapped(x) + 3
"""


@pytest.mark.parametrize(
    ("source", "run"),
    [
        (DECORATED_BY_CONTEXT, "by_class"),
        (DECORATED_BY_CONTEXT, "by_function"),
        (DECORATED_LAMBDA, "launch"),
        (DECORATED_LAMBDA, "wrapped"),
        (DECORATED_LAMBDA, "scope"),
    ],
)
def test_editing_what_a_decorator_leads_to_is_a_source_change(load, source: str, run: str) -> None:
    before = source_text(getattr(load(source), run))
    assert before is not None
    assert source_text(getattr(load(source), run)) == before
    assert source_text(getattr(load(source.replace("x + 1", "x + 10")), run)) != before


WHOLE_OBJECT = """
import contextlib
def helper(tile):
    return tile.m()
class Tile:
    def m(self):
        return 1
    def __getitem__(self, index):
        return 1
    def __len__(self):
        return 1
    def item(self, c):
        return self[0]
    def length(self, c):
        return len(self)
    def renamed(self, c):
        me = self
        return me.m()
    def passed(self, c):
        return helper(self)
    def deep(self, c):
        return self.passed(c)
    def named(self, c):
        return self.first + type(self).second + self(c)
    first = second = 2
    def __call__(self, c):
        return 2
calls = []
@contextlib.contextmanager
def manager():
    calls.append(1)
    yield
@manager()
def managed(x):
    return x
def run(x):
    return managed(x)
class Imitation:
    __dataclass_fields__ = {}
imitation = Imitation()
def kernel(x):
    return imitation.x
"""


@pytest.mark.parametrize("method", ["item", "length", "renamed", "passed", "deep"])
def test_editing_members_is_a_source_change_if_self_is_passed_on(load, method: str) -> None:
    before = source_text(getattr(load(WHOLE_OBJECT, "m").Tile(), method))
    assert source_text(getattr(load(WHOLE_OBJECT, "m").Tile(), method)) == before
    assert source_text(getattr(load(WHOLE_OBJECT.replace("return 1", "return 10"), "m").Tile(), method)) != before


def test_editing_a_member_no_method_uses_is_no_source_change(load) -> None:
    before = source_text(load(WHOLE_OBJECT, "m").Tile().named)
    assert source_text(load(WHOLE_OBJECT.replace("return 1", "return 10"), "m").Tile().named) == before


def test_a_kernel_decorated_by_a_context_manager_is_uncacheable(load) -> None:
    before = source_text(load(WHOLE_OBJECT, "m").run)
    assert source_text(load(WHOLE_OBJECT.replace("append(1)", "append(2)"), "m").run) != before
    with pytest.raises(UncacheableError, match="decorates a function"):
        source_digest(load(WHOLE_OBJECT, "m").run)


def test_a_class_with_fake_dataclass_fields_has_a_source_digest(load) -> None:
    assert source_digest(load(WHOLE_OBJECT, "m").kernel)


def test_hashing_a_kernels_source_does_not_load_a_lazy_proxy(load) -> None:
    """Reading an attribute of the proxy would call the factory, or ``__getattribute__`` of the object inside."""
    wrapt = pytest.importorskip("wrapt")
    calls = []

    class Reader:
        def __getattribute__(self, name: str) -> object:
            calls.append(name)
            return object.__getattribute__(self, name)

    def make() -> object:
        calls.append("make")
        return Reader()

    module = load("def kernel(x):\n    return lazy.x + proxy.x + lazy() + proxy()\n", "m")
    module.lazy = wrapt.LazyObjectProxy(make)
    module.proxy = wrapt.ObjectProxy(Reader())
    calls.clear()
    assert source_digest(module.kernel)
    assert calls == []


FAILING = """
class Opaque:
    pass
def make(value):
    def f(x):
        return value, x
    return f
f = make(Opaque())
TABLE = (f,)
class C:
    m = f
def kernel(x):
    return USED
"""


@pytest.mark.parametrize("used", ["TABLE, f(x)", "C().m() + f(x)"])
def test_using_a_function_that_cannot_be_hashed_is_uncacheable(load, used: str) -> None:
    """The first use of the function passes over the error. The second use raises it."""
    module = load(FAILING.replace("USED", used), "m")

    with pytest.raises(UncacheableError, match=r"value of m\.make"):
        source_digest(module.kernel)


MEMO = """
def memoized(function):
    memo = {}
    def call(*args):
        if args not in memo:
            memo[args] = function(*args)
        return memo[args]
    return call
def helper(n):
    return n + 1
def scaled(factor):
    def decorate(function):
        return lambda *args: factor * function(*args)
    return decorate
@scaled(2)
def double(n):
    return n
class Tool:
    @memoized
    def run(self, n):
        return helper(n) + double(n)
tool = Tool()
def kernel(n):
    return USED
"""


@pytest.mark.parametrize("used", ["tool.run(n)", "len(tool)", "Tool"])
@pytest.mark.parametrize("edit", ["n + 1", "scaled(2", "not in memo"])
def test_filling_a_memo_dict_of_results_is_no_source_change(load, used: str, edit: str) -> None:
    source = MEMO.replace("USED", used)
    module = load(source)
    digest = source_digest(module.kernel)
    module.tool.run(1)
    assert source_digest(module.kernel) == digest
    edits = {"n + 1": "n + 2", "scaled(2": "scaled(3", "not in memo": "in memo"}
    assert source_digest(load(source.replace(edit, edits[edit])).kernel) != digest


def test_using_a_method_edited_after_its_import_is_uncacheable(load) -> None:
    source = "class Tool:\n    def run(self, n):\n        return n + 1\ndef kernel(n):\n    return Tool().run(n)\n"
    module = load(source)
    path = Path(str(module.__file__))
    path.write_text(source.replace("n + 1", "n + 2"))
    os.utime(path, (2**32, 2**32))
    with pytest.raises(UncacheableError, match="edited since it was imported"):
        source_digest(module.kernel)


#: Where a function may find a memo or static method: the module, a tuple, the class and the object of its method.
PLACES_OF_MEMOS = [
    "STORED = MEMO\ndef kernel(n):\n    return USED\n",
    "ITEMS = (MEMO, 1)\ndef kernel(n):\n    STORED = ITEMS[0]\n    return USED\n",
    "def kernel(n, STORED=MEMO):\n    return USED\n",
    """
class Tool:
    STORED = MEMO
    def run(self, n):
        STORED = self.STORED
        return USED
tool = Tool()
def kernel(n):
    return tool.run(n)
""",
    """
class Tool:
    def __init__(self):
        self.stored = MEMO
    def run(self, n):
        STORED = self.stored
        return USED
tool = Tool()
def kernel(n):
    return tool.run(n)
""",
]
INSIDE_MEMO = """
import functools
def leaf(n): return n + 1
def shifted(m, n): return leaf(n) + m
class Op:
    def launch(self, n): return leaf(n)
    def __call__(self, n): return leaf(n)
"""


@pytest.mark.parametrize("carried", [False, True], ids=["tune", "kernel"])
@pytest.mark.parametrize("place", PLACES_OF_MEMOS, ids=["global", "tuple", "default", "class", "object"])
@pytest.mark.parametrize("memo", ["functools.cache(INNER)", "functools.lru_cache(4)(INNER)", "staticmethod(INNER)"])
@pytest.mark.parametrize(
    ("inner", "used"),
    [
        ("Op", "STORED().launch(n)"),
        ("Op()", "STORED(n)"),
        ("Op().launch", "STORED(n)"),
        ("functools.partial(shifted, 1)", "STORED(n)"),
    ],
    ids=["class", "object", "method", "partial"],
)
def test_code_inside_a_memo_or_static_method_counts(
    load, carried: bool, place: str, memo: str, inner: str, used: str
) -> None:
    source = INSIDE_MEMO + place.replace("MEMO", memo).replace("INNER", inner).replace("USED", used)

    def digest(text: str) -> str:
        return read_source(load(text).kernel, carried=carried).digest

    before = digest(source)
    assert digest(source) == before
    assert digest(source.replace("return n + 1", "return n + 2")) != before


@pytest.mark.parametrize("callback", ["Op", "functools.partial(shifted, 1)", "functools.partial(Op)"])
def test_a_callback_inside_a_memo_counts(load, callback: str) -> None:
    source = f"{INSIDE_MEMO}work = functools.cache({callback})\n"

    def digests(text: str) -> list[str | None]:
        return [source_text(part) for part in list_sources(None, load(text).work)]

    before = digests(source)
    assert before != []
    assert digests(source.replace("return n + 1", "return n + 2")) != before


PROPERTY = """
import enum, types
def leaf(n): return n + 1
class Op:
    DECORATORS
    def impl(self): return leaf
    def launch(self, n): return self.impl(n)
op = Op()
def kernel(n): return USED
"""


@pytest.mark.parametrize("used", ["op.launch(n)", "len(op)"], ids=["member", "object"])
@pytest.mark.parametrize(
    "edit", [("n + 1", "n + 2"), ("return leaf", "return len and leaf")], ids=["helper", "property"]
)
@pytest.mark.parametrize(
    "decorators", ["@classmethod\n    @property", "@types.DynamicClassAttribute", "@enum.property"]
)
def test_properties_of_classes_and_enums_count(load, used: str, edit: tuple[str, str], decorators: str) -> None:
    if "enum" in decorators and not hasattr(enum, "property"):
        pytest.skip("enum.property is new in Python 3.11")
    source = PROPERTY.replace("DECORATORS", decorators).replace("USED", used)
    before = source_digest(load(source).kernel)
    assert source_digest(load(source.replace(*edit)).kernel) != before


@pytest.mark.parametrize("decorator", ["singledispatchmethod", "partialmethod"])
def test_a_descriptor_inside_a_class_method_counts_as_a_whole(load, decorator: str) -> None:
    """The registered function of a ``singledispatchmethod``, and the argument of a ``partialmethod``, count."""
    source = """
import functools
def leaf(n): return n + 1
def shift(n): return n
class Op:
"""
    if decorator == "singledispatchmethod":
        source += """
    @classmethod
    @functools.singledispatchmethod
    def launch(cls, n): return n
    launch.__func__.register(int)(lambda cls, n: leaf(n))
"""
    else:
        source += """
    def apply(self, function, n): return function(n)
    launch = classmethod(functools.partialmethod(apply, leaf))
"""
    source += "op = Op()\ndef kernel(n): return op.launch(n)\n"
    before = source_digest(load(source).kernel)
    assert source_digest(load(source.replace("n + 1", "n + 2")).kernel) != before


def test_a_memo_has_the_code_of_an_object_with_an_attribute_fn(load) -> None:
    """``functools.update_wrapper`` copies the attributes of the object into the memo."""
    source = """
import functools
def leaf(n): return n + 1
class Op:
    def __init__(self): self.fn = abs
    def __call__(self, n): return leaf(n)
memo = functools.cache(Op())
def kernel(n): return memo(n)
"""
    before = source_digest(load(source).kernel)
    assert source_digest(load(source.replace("n + 1", "n + 2")).kernel) != before


DESCRIPTOR_IN_CLASS_METHOD = """
def leaf(n): return n + 1
class Described:
    def __init__(self, function): self.__func__ = function
    def __get__(self, obj, cls): return lambda n: leaf(self.__func__(n))
class Op:
    launch = classmethod(Described(abs))
op = Op()
def kernel(n): return len(op)
"""


@pytest.mark.parametrize("edit", [("n + 1", "n + 2"), ("leaf(self", "-leaf(self")])
def test_a_descriptor_of_the_user_inside_a_class_method_counts(load, edit: tuple[str, str]) -> None:
    before = source_digest(load(DESCRIPTOR_IN_CLASS_METHOD).kernel)
    assert source_digest(load(DESCRIPTOR_IN_CLASS_METHOD.replace(*edit)).kernel) != before
