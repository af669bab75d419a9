"""The digest of a kernel's source changes when the kernel does, and only then."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import itertools
import linecache
import os
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
from _pytest.assertion.rewrite import rewrite_asserts

from pytest_autotune.cache.model import UncacheableError
from pytest_autotune.tuners.function.carried import carried_text
from pytest_autotune.tuners.function.identity import list_sources, read_source_argument, source_text, stable_part
from pytest_autotune.tuners.source.functions import closure_cells
from pytest_autotune.tuners.source.source_digest import (
    callable_text,
    class_digest,
    immutable_text,
    source_digest,
    source_parts,
)
from tests.conftest import REPOSITORY

KERNEL = '''
SCALE = 3
UNUSED = 1

def helper(x):
    return x + SCALE

def kernel(x, n, BLOCK):
    """Multiplies."""
    y = helper(x)  # the helper adds
    for i in range(n):
        y = y * 2

    return y
'''

_names = itertools.count()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The module of some source text, in a file of its own."""

    def load(source: str, name: str = "") -> ModuleType:
        folder = tmp_path / str(next(_names))
        folder.mkdir()
        path = folder / f"{name or f'kernels_{folder.name}'}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def digest_of(load):
    def digest_of(source: str) -> str:
        return source_digest(load(source).kernel)

    return digest_of


@pytest.mark.parametrize(
    "replacement",
    [
        ("  # the helper adds", ""),
        ("    y = helper", "\n\n    # a comment of its own\n    y = helper"),
        ('    """Multiplies."""\n', ""),
        ('"""Multiplies."""', '"""Multiplies, twice."""'),
        ("UNUSED = 1", "UNUSED = 2"),
        ("def helper", "\n\n\n\ndef helper"),
        ("def kernel", "@(lambda function: function)\ndef kernel"),
        ("y = y * 2\n", "y = (y *\n             2)\n"),
        ("y = y * 2\n", "y = ((y) * (2))\n"),
        ("helper(x)  #", "helper(\n        x,\n    )  #"),
        ("(x, n, BLOCK)", "(\n    x,\n    n,\n    BLOCK,\n)"),
        ("SCALE = 3", "SCALE = 0x3"),
        ("x + SCALE", "x \\\n        + SCALE"),
    ],
)
def test_other_formatting_or_comments_are_no_source_change(digest_of, replacement) -> None:
    """Docstrings, unused names, decorators and the spelling of numbers do not matter either."""
    assert digest_of(KERNEL.replace(*replacement)) == digest_of(KERNEL)


@pytest.mark.parametrize(
    "replacement",
    [
        ("y * 2", "y * 4"),
        ("x + SCALE", "x - SCALE"),
        ("SCALE = 3", "SCALE = 4"),
        ("range(n)", "range(n + 1)"),
        ("(x, n, BLOCK)", "(x, n, BLOCK=2)"),
        ("        y = y * 2\n\n    return y", "        y = y * 2\n        return y"),
    ],
)
def test_editing_the_code_of_a_kernel_is_a_source_change(digest_of, replacement) -> None:
    assert digest_of(KERNEL.replace(*replacement)) != digest_of(KERNEL)


def test_a_number_in_a_closure_changes_the_key_not_the_source(load) -> None:
    module = load("def make(a):\n    def kernel(x):\n        return x * a\n    return kernel\n")
    two, three = module.make(2), module.make(3)

    assert source_digest(two) == source_digest(three)
    assert [closure_cells(made) for made in (two, three)] == [{"a": 2}, {"a": 3}]


def test_another_function_in_a_closure_is_a_source_change(load) -> None:
    module = load(
        "def one(x):\n    return x\n\ndef two(x):\n    return -x\n\n"
        "def make(act):\n    def kernel(x):\n        return act(x)\n    return kernel\n"
    )

    assert source_digest(module.make(module.one)) != source_digest(module.make(module.two))


def test_a_kernel_without_readable_source_is_uncacheable() -> None:
    namespace: dict[str, object] = {}
    exec("def kernel(x):\n    return x\n", namespace)

    with pytest.raises(UncacheableError, match="cannot be read"):
        source_digest(namespace["kernel"])  # type: ignore[arg-type]


def test_editing_a_class_whose_module_is_none_is_a_source_change(load) -> None:
    source = (
        "Undefined = type('Undefined', (), {'__module__': None, 'WIDTH': 1})\ndef kernel(x):\n    return Undefined\n"
    )

    assert source_digest(load(source).kernel) != source_digest(load(source.replace("1", "2")).kernel)


def test_a_plain_object_in_place_of_a_kernel_is_uncacheable() -> None:
    with pytest.raises(UncacheableError, match="no Python function is found in a object"):
        source_digest(object())


CLASSES = """
import enum
from dataclasses import dataclass
from collections import namedtuple
from functools import cached_property, lru_cache, partial
from types import SimpleNamespace

VALUE = 1

class Mode(enum.Enum):
    FAST = VALUE

@dataclass(frozen=True)
class Shape:
    block: int
    inner: object = None

class Base:
    WIDTH = VALUE

class Sizes(Base):
    def area(self):
        return VALUE

SHAPE = Shape(VALUE)
NESTED = Shape(0, inner=(Mode.FAST, {"width": VALUE}))
SPACE = SimpleNamespace(block=VALUE, other="x")

class Area:
    @property
    def twice(self):
        return VALUE

class Kept:
    @cached_property
    def once(self):
        return VALUE

class Settings:
    __slots__ = ("width",)

    def wide(self):
        return self.more()

    def more(self):
        return VALUE

SETTINGS = Settings()
SETTINGS.width = VALUE

class Colour(Area, enum.Enum):
    RED = "red"

@dataclass(frozen=True)
class Tile(Area):
    block: int

TILE = Tile(3)
Pair = namedtuple("Pair", ("a", "b") if VALUE == 1 else ("b", "a"))
PAIR = Pair(3, 4)
scaled = partial(lambda x, by: x * by, by=VALUE)

@lru_cache
def remembered():
    return VALUE

class Wrapper:
    def __init__(self, fn, by):
        self.fn, self.by, self.calls = fn, by, 0

    def __call__(self, x):
        self.calls += 1
        return self.fn(x) * self.by

wrapped = Wrapper(lambda x: x, VALUE)

def kernel(x):
    return USED
"""


@pytest.mark.parametrize(
    "used",
    [
        "Mode.FAST",
        "Mode.FAST.value",
        "SHAPE",
        "Sizes.WIDTH",
        "Sizes.area",
        "Colour.RED.twice",
        "TILE.twice",
        "Kept().once",
        "PAIR.a",
        "scaled(x)",
        "remembered()",
    ],
)
def test_changing_an_enum_or_dataclass_value_is_a_source_change(load, used: str) -> None:
    """A kernel may read a value of an enum, a dataclass, an object, a class or a remembered function."""

    def digest(value: str) -> str:
        source = CLASSES.replace("VALUE = 1", f"VALUE = {value}").replace("USED", used)
        return source_digest(load(source).kernel)

    assert digest("1") == digest("1")
    assert digest("1") != digest("2")


HELPED = """
EPS = 1
def helper(x):
    return x + EPS

def kernel(x, BLOCK=4):
    return helper(x)
"""


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [("x + EPS", "x - EPS", "helper"), ("EPS = 1", "EPS = 2", "EPS"), ("BLOCK=4", "BLOCK=8", "kernel")],
)
def test_editing_a_helper_is_recorded_only_for_this_helper(load, old: str, new: str, changed: str) -> None:
    """A changed constant has its own part, too."""
    before, now = (source_parts(load(text).kernel) for text in (HELPED, HELPED.replace(old, new)))

    assert before.keys() == now.keys() == {"kernel", "helper", "EPS"}
    assert {name for name in before if before[name] != now[name]} == {changed}


MANAGED = """
import contextlib
import functools
EPS = 1

@contextlib.contextmanager
def managed():
    yield EPS

@functools.singledispatch
def dispatched(x):
    return x + EPS

def reads_global():
    global EPS
    return EPS

def kernel(x):
    return USED
"""


@pytest.mark.parametrize("used", ["managed()", "dispatched(x)", "reads_global()"])
def test_changing_a_decorated_helpers_global_is_a_source_change(load, used: str) -> None:
    text = MANAGED.replace("USED", used)

    assert source_digest(load(text).kernel) == source_digest(load(text).kernel)
    assert source_digest(load(text).kernel) != source_digest(load(text.replace("EPS = 1", "EPS = 2")).kernel)


def test_assigning_a_global_during_a_call_is_no_source_change(load) -> None:
    """An edit of the global's first value changes the digest, because the results of the function may change."""
    text = "COUNT = 0\ndef kernel(x):\n    global COUNT\n    COUNT += 1\n    return x\n"
    kernel = load(text).kernel
    digest = source_digest(kernel)
    kernel(1)

    assert source_digest(kernel) == digest
    assert source_digest(load(text.replace("COUNT = 0", "COUNT = 5")).kernel) != digest


FIELDS = """
from dataclasses import dataclass, field
@dataclass(frozen=True)
class Node:
    size: int
    itself: object = field(init=False)
node = Node(4)
LINK
def kernel(x):
    return node
"""


@pytest.mark.parametrize("link", ["", "object.__setattr__(node, 'itself', node)"], ids=["unset", "itself"])
def test_editing_a_self_referring_dataclass_is_a_source_change(digest_of, link: str) -> None:
    """The other fields still count, and the digest is the same in each process."""
    source = FIELDS.replace("LINK", link)

    assert digest_of(source) == digest_of(source)
    assert digest_of(source) != digest_of(source.replace("Node(4)", "Node(5)"))


def test_a_new_self_reference_in_a_dataclass_is_a_source_change(digest_of) -> None:
    linked = FIELDS.replace("LINK", "object.__setattr__(node, 'itself', node)")
    assert digest_of(FIELDS.replace("LINK", "")) != digest_of(linked)


def test_a_global_value_changed_by_a_test_is_no_source_change(load) -> None:
    module = load(CLASSES.replace("USED", "(SETTINGS.width, wrapped(x), LOG)") + "LOG = []\n")
    before = source_digest(module.kernel)
    module.SETTINGS.width = 5
    module.wrapped(2)
    module.LOG.append(1)

    assert source_digest(module.kernel) == before


HOOKS = """
from dataclasses import dataclass

def hook(number, args):
    return number

@dataclass(frozen=True)
class Tile:
    block: int
    hook = hook

class Log:
    hook = hook
"""


def test_hooks_with_different_bound_values_have_different_source(load) -> None:
    """The text of a hook has its bound values. A value without a stable form is an error."""
    module = load(HOOKS)
    hook, tile = module.hook, module.Tile
    hooks = [partial(hook, 1), partial(hook, 2), tile(1).hook, tile(2).hook, min, max]

    assert len(set(map(callable_text, hooks))) == len(hooks)
    assert callable_text(partial(hook, 1)) == callable_text(hooks[0])
    with pytest.raises(UncacheableError, match="a Log has no stable form"):
        callable_text(module.Log().hook)


@pytest.mark.parametrize("name", ["queue", "cuda", "numba"])
def test_an_edit_in_a_user_module_named_torch_changes_a_digest(load, name: str) -> None:
    def digest(body: str) -> str:
        helpers = load(f"def act(x):\n    return {body}\n\nclass Act:\n    SIZE = {len(body)}\n", name)
        module = load("def kernel(x):\n    return act(x), Act, helpers.act\n")
        module.act, module.Act, module.helpers = helpers.act, helpers.Act, helpers
        return source_digest(module.kernel)

    assert digest("x") != digest("x + 1")


@pytest.mark.parametrize("name", ["jax", "jaxlib"])
def test_editing_the_jax_wrapper_of_a_kernel_is_no_source_change(load, name: str) -> None:
    """The folder of the library does not matter."""

    def digest(body: str) -> str:
        wrapper = "class Jitted:\n    def __init__(self, fn):\n        self.fn = fn\n    def call(self):\n"
        made = load(f"{wrapper}        {body}\n", name)
        return source_digest(made.Jitted(load("def kernel(x):\n    return x\n").kernel))

    assert digest("pass") == digest("return 1")


LAMBDAS = """
def make(a, b):
    return {"ONE": lambda n: n + a, "TWO": lambda n: n + b, "THREE": (lambda n: n - 1), "FOUR": lambda n: n - 2}

def kernel(x):
    return x
"""


def test_two_lambdas_on_one_line_count_as_different_source(load) -> None:
    made = load(LAMBDAS).make(1, 2)
    changed = load(LAMBDAS.replace("n - 2", "n - 3")).make(1, 2)
    digests = {name: source_digest(function) for name, function in made.items()}
    after = {name: source_digest(function) for name, function in changed.items()}

    assert len(set(digests.values())) == 4
    assert {name for name in digests if digests[name] != after[name]} == {"FOUR"}


def test_a_lambda_beside_one_that_can_never_run_has_a_digest(load) -> None:
    """Python compiles nothing for the second lambda."""
    source = "kernel = (lambda n: n + 1) if __debug__ else (lambda n: n + 2)\n"
    digest = source_digest(load(source).kernel)
    assert source_digest(load(source).kernel) == digest
    assert source_digest(load(source.replace("n + 1", "n + 3")).kernel) != digest


#: Lines that assign a lambda to ``kernel`` and have another lambda.
LINES_OF_LAMBDAS = {
    "constant": "OTHER, kernel = (lambda n: n), (lambda n: 64)\n",
    "constant inside": "OTHER, kernel = (lambda n: n), (lambda n: sorted(n, key=lambda x: 64))\n",
    "inside": "kernel = (lambda n: lambda x: 64)(1)\n",
    "equal lambdas inside": "OTHER, kernel = (lambda n: n), (lambda n: (64, (lambda: 1), (lambda: 1)))\n",
    "in a condition": "OTHER, kernel = (lambda n: n), (lambda n: (lambda m: 64) if 1 else n)\n",
    "behind and": "OTHER, kernel = (lambda n: n), (lambda n: 1 and (lambda m: 64))\n",
    "default": "kernel = lambda n, f=(lambda m: m): 64\n",
    "in a default": "kernel = (lambda n, f=(lambda m: 64): f)(1)\n",
    "several lines": "OTHER, kernel = (lambda n: n), (lambda n:\n    (64,\n    [lambda m: m for m in n]))\n",
    "decorator": "@lambda function: (lambda n: function(n) + 64)\ndef kernel(n): return n\n",
}


@pytest.mark.parametrize("line", LINES_OF_LAMBDAS.values(), ids=LINES_OF_LAMBDAS)
def test_a_lambda_in_a_line_with_another_one_has_a_digest(load, line: str) -> None:
    digest = source_digest(load(line).kernel)

    assert source_digest(load(line.replace("n: n)", "n: -n)")).kernel) == digest
    assert source_digest(load(line.replace("64", "65")).kernel) != digest


@pytest.mark.parametrize("decorator", ["functools.cache", "triton.constexpr_function"])
def test_the_source_includes_wrapper_and_decorated_function(load, decorator: str) -> None:
    if decorator.startswith("triton") and not hasattr(pytest.importorskip("triton"), "constexpr_function"):
        pytest.skip("a later version of Triton has it")

    def digest(wrapper: str, wrapped: str) -> str:
        source = (
            f"import functools, {decorator.partition('.')[0]}\n"
            "def wrap(fn):\n    @functools.wraps(fn)\n    def wrapper(x):\n"
            f"        return {wrapper}\n    return wrapper\n\n"
            f"@{decorator}\n@wrap\ndef kernel(x):\n    return {wrapped}\n"
        )
        return source_digest(load(source).kernel)

    assert len({digest("fn(x)", "x"), digest("fn(-x)", "x"), digest("fn(x)", "-x")}) == 3


EVERYTHING = r"""
from __future__ import annotations

i = 5
WIDTH = 3

class Tile:
    SIZE = 4

    def area(self, *, scale: int = 2) -> int:
        return self.SIZE * scale

def outer(x: int, /, y=1.5, *args, key: str = u"k", **rest) -> object:
    '''Says nothing.'''
    total: int = 0
    (other): int = 0
    text = f"n is {x:>{y}} {x!r} {x=} {{}} {'in' 'ner'}" "and" f"{y}"
    for j, (k, *l) in enumerate([i for i in range(WIDTH) if i], start=1):
        total += -j ** 2 if j not in (1, 2,) else ~k
        del (k), (l, total)
    while (n := len(text)) > 1 and not x or y:
        text = text[1:, ::2][..., None]
        break
    else:
        pass
    try:
        with open("a") as a, (open("b")) as b:
            raise ValueError(a, b) from None
    except (OSError, ValueError) as error:
        print(error, file=None)
    finally:
        assert x, "is"
    match x:
        case [1, Tile(SIZE=2) as tile, *_] if tile:
            return {**rest, "a": {1, 2}, **{k: v for k, v in rest.items()}}
        case {"key": -1 | None}:
            return lambda a, *b, c=1e3: (a, *b, c, 1_000, 0x10, 2j, b"x", ...)
    async def nested(z): return [await q async for q in z]
    return outer(*args, **rest) @ Tile().area(scale=WIDTH) < 3 <= y is not None

@staticmethod
def kernel(x):
    return outer(x)
"""


def other_pythons() -> list[str]:
    return [path for path in os.environ.get("AUTOTUNE_PYTHONS", "").split(os.pathsep) if path]


@pytest.mark.parametrize("python", other_pythons() or [sys.executable])
def test_the_source_hash_is_the_same_on_every_python_version(tmp_path: Path, python: str) -> None:
    (tmp_path / "kernels.py").write_text(EVERYTHING)
    used = (
        "(Mode, Shape, Sizes, SHAPE, NESTED, SPACE, enum, dataclass, "
        "SETTINGS.wide, Colour.RED, TILE, PAIR, scaled, wrapped)"
    )
    (tmp_path / "classes.py").write_text(CLASSES.replace("USED", used))
    program = (
        "import classes, kernels; from pytest_autotune.tuners.source.source_digest import source_digest; "
        "print(*(source_digest(used) for used in (kernels.outer, classes.kernel)))"
    )

    digests = subprocess.run(
        [python, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()

    assert digests == "3ed59b4d4076 3e484c9c08a3"  # by every Python from 3.10 to 3.13


@pytest.mark.parametrize(
    "edit", [("x * 2", "x * 3"), ("x + 1", "x + 2"), ("def kernel", "\n\ndef kernel"), ("x + 1", "(")]
)
def test_a_kernel_edited_after_its_import_is_uncacheable(load, edit: tuple[str, str]) -> None:
    source = "def helper(x): return x + 1\ndef kernel(x): return helper(x * 2)\n"
    module = load(source)
    assert module.__file__ is not None
    Path(module.__file__).write_text(source.replace(*edit) + "# edited\n")
    with pytest.raises(UncacheableError, match=r"edited since it was imported|cannot be read"):
        source_digest(module.kernel)


def test_replacing_a_file_and_keeping_its_time_is_uncacheable(load) -> None:
    """Programs such as ``rsync`` keep the time of modification of the file that they copy."""
    source = "def kernel(x): return x + 1\n"
    module = load(source)
    path = Path(str(module.__file__))
    path.write_text(source.replace("+ 1", "+ 2"))
    os.utime(path, (0, 0))
    with pytest.raises(UncacheableError, match="edited since it was imported"):
        source_digest(module.kernel)


ASSERTING = """
def helper(x):
    def check(y):
        assert y, (x, y)
        assert isinstance(y, int) and (x < 1 or not x)
    return check
def kernel(x):
    assert x > 0, "negative"
    return helper(x + 1)
"""


@pytest.mark.parametrize("edit", ["", "y, (x, y)", "x > 0", "x + 1"])
def test_a_function_with_an_assert_edited_late_is_uncacheable(load, edit: str) -> None:
    """pytest has rewritten the assertions, so the code of the file is compared after the same rewriting."""
    module = load(ASSERTING)
    assert module.__file__ is not None
    tree = ast.parse(ASSERTING)
    rewrite_asserts(tree, ASSERTING.encode(), module.__file__)
    exec(compile(tree, module.__file__, "exec"), vars(module))
    assert "@py_assert1" in module.kernel.__code__.co_varnames
    if not edit:
        assert source_digest(module.kernel)
        return
    Path(module.__file__).write_text(ASSERTING.replace(edit, f"{edit} - 2", 1) + "# edited\n")
    with pytest.raises(UncacheableError, match="edited since it was imported"):
        source_digest(module.kernel)


def test_a_function_with_an_assert_and_a_pass_hook_has_a_digest(load) -> None:
    """The kernel's helper has assertions in its inner function only."""
    module = load(ASSERTING)
    tree = ast.parse(ASSERTING)
    config = mock.Mock()
    config.getini.return_value = True  # enable_assertion_pass_hook
    rewrite_asserts(tree, ASSERTING.encode(), module.__file__, config)
    exec(compile(tree, module.__file__, "exec"), vars(module))

    assert source_digest(module.kernel)


EDITED_EARLY = """
import pathlib, sys
import pytest_autotune.plugin
path = pathlib.Path("early_ops.py")
path.write_text("def work(x): return x + 1\\n")
import early_ops
path.write_text("def work(x): return x + 2\\n")
assert "pytest_autotune.tuners.source" not in sys.modules
from pytest_autotune.tuners.source.source_digest import source_digest
source_digest(early_ops.work)
"""


def test_a_file_edited_before_the_first_lookup_is_uncacheable(tmp_path: Path) -> None:
    """The plugin takes the time when it is loaded. The modules for digests are imported at the first lookup."""
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-B", "-c", EDITED_EARLY]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "the source of early_ops.work was edited since it was imported" in result.stderr


def test_appending_text_to_a_kernels_file_is_no_source_change(load) -> None:
    module = load("import math\ndef kernel(x): return math.floor(x * 2)\n")
    before = source_digest(load(Path(module.__file__).read_text()).kernel)
    with open(module.__file__, "a") as file:
        file.write("\n\ndef other(): pass\n")
    assert source_digest(module.kernel) == before


GIVEN = """
import inspect, types
from triton.runtime.jit import JITFunction

SCALE = {scale}

def _empty(): pass

def define(source):  # as libraries do that make kernels of templates
    function = types.FunctionType(_empty.__code__, globals())
    found = {{}}
    exec(source, globals(), found)
    function.__signature__ = inspect.signature(found["kernel"])
    kernel = JITFunction(function)
    kernel._unsafe_update_src(source)
    return kernel

kernel = define("def kernel(x):\\n    y = SCALE\\n    return x * y + {added}\\n")
"""


def test_other_source_text_passed_to_triton_is_a_source_change(load) -> None:
    pytest.importorskip("triton")
    variants = [load(GIVEN.format(scale=scale, added=added)) for scale, added in ((1, 1), (2, 1), (1, 2), (1, 1))]
    digests = [source_digest(variant.kernel, named=False) for variant in variants]
    assert len(set(digests)) == 3
    assert digests[0] == digests[3]


METHODS = """
import functools
OTHER = 1
class Base:
    def above(self, c):
        return c + OTHER
    def unused(self, c):
        return 7
def logged(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper
class Tile(Base):
    SCALE = 3
    @logged
    def run(self, c):
        return self.inner(c) + self.wide + type(self).made(c) + super().above(c) + self.__hidden(c)
    @functools.lru_cache
    def __hidden(self, c):
        return self.deep(c)
    def deep(self, c):
        return c - 8
    def inner(self, c):
        return c * 2
    @property
    def wide(self):
        return self.SCALE * 4
    @classmethod
    def made(cls, c):
        return c - 5
    def other(self, c):
        return 6
    def __call__(self, c):
        return self.inner(c)
"""


@pytest.mark.parametrize(
    ("old", "new", "changes_digest"),
    [
        ("c * 2", "c * 20", True),
        ("SCALE * 4", "SCALE * 40", True),
        ("SCALE = 3", "SCALE = 30", True),
        ("c - 5", "c - 50", True),
        ("OTHER = 1", "OTHER = 10", True),
        ("c - 8", "c - 80", True),
        ("return 6", "return 60", False),
        ("return 7", "return 70", False),
    ],
)
def test_editing_a_member_that_a_method_uses_is_a_source_change(load, old: str, new: str, changes_digest: bool) -> None:
    before = load(METHODS).Tile()
    after = load(METHODS.replace(old, new)).Tile()
    assert (source_text(before.run) != source_text(after.run)) is changes_digest
    assert (source_text(before) != source_text(after)) is (old == "c * 2")


LOCAL_IMPORTS = [
    "from kernels_space.below.deep import work\n    return work(c)",
    "from kernels_pkg import work\n    return work(c)",
    "import kernels_pkg.deep as deep\n    return deep.work(c)",
    "from kernels_pkg import deep\n    return deep.work(c)",
    "try:\n        import missing\n    except ImportError:\n        from kernels_pkg import work\n    return work(c)",
]


@pytest.mark.parametrize("body", LOCAL_IMPORTS)
def test_a_module_imported_in_a_function_is_part_of_the_source(load, tmp_path, monkeypatch, body: str) -> None:
    """The digest reads the module's file and does not import the module. Its layout does not count."""
    package = tmp_path / "kernels_pkg"
    package.mkdir()
    deep = package / "deep.py"
    (package / "__init__.py").write_text("from .deep import work\n")
    (tmp_path / "kernels_space").mkdir()
    (tmp_path / "kernels_space" / "below").symlink_to(package)
    if "kernels_space" in body:  # folders without __init__.py
        (package / "__init__.py").unlink()
    deep.write_text("import math\ndef work(c):\n    return c * 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = load(f"def run(c):\n    {body}\n").run
    before = source_digest(run)
    assert "kernels_pkg" not in sys.modules
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "kernels_pkg", importlib.import_module("kernels_pkg"))
        assert source_digest(run) == before
    for name in ("kernels_pkg", "kernels_pkg.deep"):
        sys.modules.pop(name, None)
    deep.write_text("import math\n# The layout does not count.\ndef work(c):\n    return (c * 2)\n")
    assert source_digest(run) == before
    deep.write_text("import math\ndef work(c):\n    return c * 3\n")
    assert source_digest(run) != before
    if "kernels_space" not in body:  # Python runs the package above a module, too
        deep.write_text("import math\ndef work(c):\n    return c * 2\n")
        assert source_digest(run) == before
        (package / "__init__.py").write_text("from .deep import work\nLIMIT = 3\n")
        assert source_digest(run) != before


def test_the_source_includes_imports_of_a_module_used_as_source(load, tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    helper = tmp_path / "kernels_helper.py"
    helper.write_text("def work(c):\n    return c * 2\n")
    module_text = "import math\nfrom kernels_helper import work\n"
    digest = source_text(load(module_text))
    helper.write_text("def work(c):\n    return c * 3\n")
    monkeypatch.delitem(sys.modules, "kernels_helper")
    assert source_text(load(module_text)) != digest


OWN_WAYS = """
import dataclasses, functools, threading
from decimal import Decimal
from fractions import Fraction
LIMIT = 1
HALF = Fraction(1, 2)
TENTH = Decimal("0.1")
class Meta(type):
    def __call__(cls, *args):
        return 3
class Made(metaclass=Meta):
    pass
@dataclasses.dataclass(frozen=True)
class Sizes:
    wide: int = dataclasses.field(default_factory=lambda: LIMIT)
class Tool:
    def work(self, x):
        return x * 4
    def double(self, x, by):
        return x * by * 5
    twice = functools.partialmethod(double, by=2)
work = Tool().work
class Library(threading.Thread):
    @classmethod
    def forward(cls):
        return 9
applied = Library().start
upper = str.upper
class Size:
    def __get__(self, owner, cls):
        return 8
class Described:
    size = Size()
@functools.singledispatch
def pick(x):
    return x
@pick.register
def _(x: int):
    return x * 6
class Area:
    factor = 2
    @property
    def size(self):
        return 1
    @size.setter
    def size(self, value):
        self.factor = value * 11
    @size.deleter
    def size(self):
        self.factor = 12
    def set(self, x):
        self.size = x
        del self.size
    @functools.singledispatchmethod
    def pick(self, x):
        return x
    @pick.register
    def _(self, x: int):
        return x * 13
    def first(self, x):
        return self.pick(x)
class Config:
    SIZE = 14
class constexpr:
    def __init__(self, value):
        self.value = value
CONFIG = constexpr(Config)
class Holder:
    _config_ = Config
    __config__ = Config
class Caller:
    def __call__(self, x):
        return x * 15
    def run(self, x):
        return self(x)
class Decorated:
    def __init__(self, function):
        self._function = function
    @property
    def fn(self):
        return self._function
    def __call__(self, x):
        return self._function(x) * 16
@Decorated
def decorated(x):
    return x * 17
setting = Area().set
first = Area().first
calling = Caller().run
def kernel(x):
    return USED
"""


@pytest.mark.parametrize(
    ("used", "old", "new"),
    [
        ("Area()", "* 11", "* 110"),
        ("Area()", "= 12", "= 120"),
        ("Area()", "* 13", "* 130"),
        ("setting(x)", "* 11", "* 110"),
        ("setting(x)", "= 12", "= 120"),
        ("first(x)", "* 13", "* 130"),
        ("CONFIG", "= 14", "= 140"),
        ("Holder._config_", "= 14", "= 140"),
        ("calling(x)", "* 15", "* 150"),
        ("decorated(x)", "* 16", "* 160"),
        ("decorated(x)", "* 17", "* 170"),
        ("HALF", "(1, 2)", "(1, 20)"),
        ("TENTH", "0.1", "0.10"),
        ("Made()", "return 3", "return 30"),
        ("Sizes()", "LIMIT = 1", "LIMIT = 10"),
        ("work(x)", "x * 4", "x * 40"),
        ("Tool()", "by * 5", "by * 50"),
        ("pick(x)", "x * 6", "x * 60"),
        ("Described().size", "return 8", "return 80"),
        ("applied(x)", "return 9", "return 90"),
        ("upper(x)", "str.upper", "str.lower"),
    ],
)
def test_the_source_includes_code_behind_objects_and_aliases(load, used: str, old: str, new: str) -> None:
    source = OWN_WAYS.replace("USED", used)
    digest = source_digest(load(source).kernel)
    assert source_digest(load(source).kernel) == digest
    assert source_digest(load(source.replace(old, new)).kernel) != digest


#: Objects whose code notes each call. A digest that looks at them calls none of it.
OBJECTS_WITH_CODE = """
import dataclasses
import enum
import traceback
calls = []
def note(*args, **kwargs):
    calls.append((args[1:], traceback.format_stack()[-3:-1]))
    raise RuntimeError("not bound yet")
class Proxy:
    __getattr__ = note
class Properties:
    fn = py_func = _pyfunc = __wrapped__ = __name__ = __module__ = __func__ = property(note)
    __class__ = property(note)
    __call__ = note
class Reader:
    __getattribute__ = note
class Meta(type):
    __getattribute__ = __eq__ = __hash__ = __instancecheck__ = note
class Made(metaclass=Meta):
    def work(self):
        return 1
class Items(tuple):
    __iter__ = __len__ = __getitem__ = __eq__ = __hash__ = __repr__ = note
class Listed(list):
    __iter__ = __len__ = __getitem__ = __repr__ = note
class Text(str):
    __str__ = __repr__ = __eq__ = __hash__ = __format__ = encode = note
class Number(int):
    __str__ = __repr__ = __int__ = __index__ = __eq__ = __hash__ = note
class Real(float):
    __str__ = __repr__ = __float__ = __eq__ = __hash__ = note
class Data(bytes):
    __repr__ = note
class Color(enum.Enum):
    RED = 1
    __str__ = __repr__ = __hash__ = __eq__ = note
    name = value = property(note)
@dataclasses.dataclass(frozen=True, eq=False)
class Sizes:
    wide: int = 3
    __getattr__ = __repr__ = note
class Descriptor:
    __get__ = note
class Owner:
    size = Descriptor()
def __getattr__(name):
    note()
used = USED
def kernel(x):
    return used
class Tool:
    used = USED
    def run(self, x):
        return self.used, used
"""


@pytest.mark.parametrize(
    "used",
    [
        "Proxy()",
        "Properties()",
        "Reader()",
        "Made",
        "type.__call__(Made)",
        "Items((1, 2))",
        "(Items((1, 2)), Proxy())",
        "Listed([1])",
        "Text('a')",
        "Number(1)",
        "Real(1.5)",
        "Data(b'a')",
        "Color.RED",
        "Sizes()",
        "Owner",
        "Owner()",
    ],
)
def test_hashing_the_source_runs_no_code_of_user_objects(load, used: str) -> None:
    """The objects' code may raise an error, or count its calls."""
    module = load(OBJECTS_WITH_CODE.replace("USED", used))
    module.calls.clear()
    tool = module.Tool()
    for subject in (module.kernel, tool.run, *list_sources(None, lambda x: module.kernel(x))):
        assert read_source_argument(subject)
    for subject in (module.used, partial(module.kernel, module.used)):
        with suppress(UncacheableError, TypeError):
            stable_part("x", subject)
        with suppress(UncacheableError):
            callable_text(subject)
        with suppress(TypeError):
            read_source_argument(subject)
        list_sources(None, subject)
    assert not module.calls


def test_a_kernel_whose_source_cannot_be_hashed_is_uncacheable(load, monkeypatch) -> None:
    """The error never fails the test."""
    module = load("class Tool:\n    def run(self, x):\n        return x\nlimit = 3\ndef kernel(x):\n    return limit\n")

    def fail(*args: object) -> None:
        raise RecursionError

    monkeypatch.setattr("pytest_autotune.tuners.source.code_digests.unwrapped", fail)
    monkeypatch.setattr("pytest_autotune.tuners.source.code_digests.read_class_text", fail)
    monkeypatch.setattr("pytest_autotune.tuners.source.objects.class_mro", fail)
    monkeypatch.setattr("pytest_autotune.tuners.function.carried.list_layers", fail)
    attempts = [
        lambda: read_source_argument(module.kernel),
        lambda: read_source_argument(module.Tool().run),
        lambda: class_digest(module.Tool),
        lambda: immutable_text(module.limit),
        lambda: stable_part("x", module.kernel),
        lambda: callable_text(module.kernel),
        lambda: carried_text(module.kernel),
    ]
    for attempt in attempts:
        with pytest.raises(UncacheableError, match=r"cannot be read: RecursionError"):
            attempt()


COUNTERS = """
import state
limit = 3
count = 0
class Tool:
    count = 0
    size = 4
    def run(self, x):
        type(self).count += 1
        return self.size + Tool.count
    @classmethod
    def make(cls, x):
        cls.count += 1
        return cls.count
def step():
    global count
    count += 1
    Tool.count += 1
    state.count += 1
def kernel(x):
    step()
    return x + count + Tool.count + state.count + limit
"""


@pytest.mark.parametrize("used", ["kernel", "Tool", "Tool().run", "Tool.make"])
def test_a_counter_the_kernel_increments_is_no_source_change(load, used: str) -> None:
    """The digest has the first value of the counter, and later values of other names."""
    load("count = 0\n", "state")

    def digest_used(source: str, calls: int) -> str | None:
        module = load(source)
        subject = eval(used, vars(module))
        if used == "Tool":
            return class_digest(subject)
        digests = {source_text(subject)}
        for _ in range(calls):
            subject(1)
            digests.add(source_text(subject))
        assert len(digests) == 1
        return digests.pop()

    digest = digest_used(COUNTERS, 0)
    assert digest_used(COUNTERS, 2) == digest
    if used != "kernel":
        assert digest_used(COUNTERS.replace("    count = 0", "    count = 5"), 0) != digest
    if used == "kernel":
        assert digest_used(COUNTERS.replace("\ncount = 0", "\ncount = 5"), 0) != digest
        assert digest_used(COUNTERS.replace("limit = 3", "limit = 5"), 0) != digest


def test_hashing_the_source_calls_no_getattr_of_a_module(load) -> None:
    library = load("def __getattr__(name):\n    raise RuntimeError(name)\n", "lazy_library")
    module = load("import lazy_library\ndef kernel(x):\n    return lazy_library.gpu(x)\n")
    assert module.lazy_library is library
    assert source_digest(module.kernel)


@pytest.mark.parametrize("edit", [("x + 1", "x + 2"), ("LIMIT = 3", "LIMIT = 4")])
@pytest.mark.parametrize("source", ["kernel", "module"])
@pytest.mark.parametrize("time_s", [0, 2**32], ids=["old time", "new time"])
def test_a_called_module_edited_after_its_import_is_uncacheable(
    load, time_s: int, source: str, edit: tuple[str, str]
) -> None:
    """The file has new text, and the process runs the old code."""
    lines = "import functools\nLIMIT = 3\n@functools.lru_cache\ndef work(x):\n    return x + 1\n"
    edited = load(lines, "edited_work")
    module = load("def kernel(x):\n    from edited_work import work\n    return work(x)\n")
    subject = module.kernel if source == "kernel" else edited
    assert read_source_argument(subject)

    path = Path(str(edited.__file__))
    path.write_text(lines.replace(*edit))
    os.utime(path, (time_s, time_s))
    with pytest.raises(UncacheableError, match="edited since it was imported"):
        read_source_argument(subject)


BACKSLASH = r'''
def leaf(n):
    """Computes \sum_i x_i."""
    return n + 1
class Op:
    """Computes \prod_i x_i."""
    def launch(self, n): return leaf(n)
op = Op()
def kernel(n): return op.launch(n) + len(op) + (lambda m: leaf(m))(n)
work = lambda n: leaf(n)
'''


#: Lines of which Python's parser or compiler warns.
WARNED_LINES = [
    "",
    r'X = b"\u1234"',
    r'X = "\400"',
    "X = 1if 2else 3",
    "X = [0xfor x in ()]",
    "X = 1.if 2 else 3.5jand 4",
    'X = (lambda x: x is "a"), (lambda x: x is "b")',
    "assert (X, 1)",
]


@pytest.mark.parametrize("line", WARNED_LINES)
@pytest.mark.parametrize("name", ["kernel", "work", "Op"])
def test_a_test_sees_no_warnings_of_the_parser(load, recwarn: pytest.WarningsRecorder, name: str, line: str) -> None:
    """Python has warned of the source at the import. A filter of a test may make errors of such warnings."""
    source = BACKSLASH
    if line:
        source = f"X = 1\n{line}\n" + BACKSLASH.replace("\\", "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, edited = load(source), load(source.replace("n + 1", "n + 2"))
    warnings.simplefilter("always")

    before = source_text(getattr(first, name))

    assert list(recwarn) == []
    warnings.simplefilter("error")
    assert source_text(getattr(edited, name)) not in (before, None)


@pytest.mark.parametrize("decorator", ["", "@(lambda function: function)\n"])
def test_a_form_feed_before_a_function_is_no_source_change(digest_of, decorator: str) -> None:
    source = KERNEL.replace("def helper", f"{decorator}def helper").replace("def kernel", f"{decorator}def kernel")
    with_form_feeds = source
    for line in ("def helper", "def kernel"):
        with_form_feeds = with_form_feeds.replace(decorator + line, f"\f{decorator}{line}")

    assert with_form_feeds.count("\f") == 2
    assert digest_of(with_form_feeds) == digest_of(source)


TEMPLATE = """
SCALE = 3
def fill(path):
    text = open(path).read().replace("SCALE", str(SCALE))
    names = {}
    exec(compile(text, path, "exec"), names)
    return names
"""


@pytest.mark.parametrize("definition", ["def kernel(n):\n    return n * SCALE\n", "kernel = lambda n: n * SCALE\n"])
def test_code_that_exec_makes_of_a_template_has_no_digest(load, tmp_path: Path, definition: str) -> None:
    """The file that the code names has another text than the code."""
    template = tmp_path / "kernel.py.template"
    template.write_text(definition)
    os.utime(template, (1e9, 1e9))
    kernel = load(TEMPLATE).fill(str(template))["kernel"]

    with pytest.raises(UncacheableError, match="cannot be read"):
        source_digest(kernel)


SET_OF_TEXTS = "def kernel(n):\n    return n in {'sum', 'prod', 'max', 'min', 'mean', 'any', 'all'}\n"


@pytest.mark.parametrize("seed", range(4))
def test_code_under_another_path_has_a_digest_for_each_hash_seed(tmp_path: Path, seed: int) -> None:
    """The order of a set in compiled code depends on the hash seed of the process that compiled it."""
    (tmp_path / "suite.py").write_text(f"{SET_OF_TEXTS}__file__ = '/elsewhere/suite.py'\n")
    script = "from pytest_autotune.tuners.source.source_digest import source_digest; import suite; "
    script += "print(source_digest(suite.kernel))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    # The first process writes the bytecode that the second process runs.
    first, second = (
        subprocess.run(
            [sys.executable, "-c", script],
            env={**environment, "PYTHONHASHSEED": str(hash_seed), "PYTHONDONTWRITEBYTECODE": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in (7, seed)
    )
    assert first == second


def test_a_thread_that_reads_sources_takes_no_warning_from_another_thread(load) -> None:
    """All threads share the warning filters."""
    modules = [load(f"def kernel(n):\n    return n + {number}\n") for number in range(100)]
    seen = []

    def read_all() -> None:
        for module in modules:
            source_digest(module.kernel)
            seen.append(warnings.filters is filters)

    with warnings.catch_warnings():
        filters = warnings.filters
        thread = threading.Thread(target=read_all)
        thread.start()
        thread.join()
    assert seen == [True] * 100


@pytest.mark.parametrize(
    ("definition", "edited"),
    [
        ("def kernel(x, n): return n", "def kernel(x, *n): return n"),
        ("def kernel(x): return [y + 1 for y in x]", "def kernel(x): return [y - 1 for y in x]"),
        ("def kernel(x): return lambda y: abs(y)", "def kernel(x): return lambda y: min(y)"),
    ],
    ids=["parameters", "comprehension", "inner name"],
)
def test_exec_with_a_small_difference_to_its_file_has_no_digest(
    load, tmp_path: Path, definition: str, edited: str
) -> None:
    path = tmp_path / "generated.py"
    path.write_text(definition)
    kernel = load(TEMPLATE).fill(str(path))["kernel"]
    path.write_text(edited)
    linecache.checkcache(str(path))

    with pytest.raises(UncacheableError, match="cannot be read"):
        source_digest(kernel)


def test_code_that_exec_makes_of_a_whole_file_has_a_digest(load, tmp_path: Path) -> None:
    path = tmp_path / "generated.py"
    path.write_text("def kernel(n):\n    return n * 3\n")
    generated = load(TEMPLATE).fill(str(path))["kernel"]

    assert source_digest(generated) == source_digest(load("def kernel(n):\n    return n * 3\n").kernel)
