"""A digest has the members of objects that a function reaches, and nothing of their data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

import pytest

from pytest_autotune.tuners.function.identity import (
    list_class_lines,
    list_sources,
    read_source_argument,
    source_text,
)
from pytest_autotune.tuners.source.source_digest import read_source
from tests.test_source_digest import load

__all__ = ["load"]
Load = Callable[..., ModuleType]

OBJECTS = """
import dataclasses, enum, functools, typing, unittest.mock
class Sub:
    def launch(self, n):
        return n + 1
    def unrelated(self):
        return 2
class Base:
    def inherited(self, n):
        return self.below(n) + 3
class Suite(Base):
    sub_of_class = Sub()
    launches = 4
    def __init__(self):
        self.sub = self.__sub = Sub()
        self.size = 5
    def kernel(self, n):
        return n + 6
    def below(self, n):
        return super().inherited(n) if n else 7
    @property
    def area(self):
        return 8
    @staticmethod
    def static(n):
        return n + 9
    @classmethod
    def of_class(cls, n):
        return cls.static(n) + 10
    def through(self, n):
        return self.sub.launch(n) + 11
    def privately(self, n):
        return self.__sub.launch(n)
    def made(self, n):
        return type(self)().kernel(n)
    def test_other(self):
        return 12
    def __len__(self):
        return 13
    def __enter__(self):
        return 14
    def __exit__(self, *error):
        pass
class Called:
    def __call__(self, n):
        return self.inner(n)
    def inner(self, n):
        return 15
class Delegating:
    def __init__(self, inner):
        self.inner = inner
    def __getattr__(self, name):
        return getattr(self.inner, name)
class Slotted:
    __slots__ = ("function", "sub")
    def __init__(self):
        self.function, self.sub = plain, Sub()
@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int = 1
    def area(self):
        return 16
class Named(typing.NamedTuple):
    n: int = 1
    def area(self):
        return 17
class Mode(enum.Enum):
    FAST = 1
    def area(self):
        return 18
def plain(n):
    return n + 19
def passed(obj, n):
    return obj.kernel(n)
GLOBAL = Suite()
def make():
    obj = Suite()
    called, delegating, slotted = Called(), Delegating(obj), Slotted()
    frozen, named, mode = Frozen(), Named(), Mode.FAST
    method, partial = obj.kernel, functools.partial(passed, obj)
    obj.stored = plain
    def with_object(n):
        with obj:
            return n
    return RUN
"""
#: The expression for ``run=``, and the numbers of the returns whose edit changes its digest.
RUNS = [
    ("lambda n: obj.kernel(n)", [6]),
    ("lambda n: GLOBAL.kernel(n)", [6]),
    ("lambda n, me=obj: me.kernel(n)", [6]),
    ("lambda n: obj.__class__.kernel(obj, n)", [6, 12]),
    ("lambda n: obj.sub.launch(n)", [1]),
    ("lambda n: obj.sub_of_class.launch(n)", [1]),
    ("lambda n: obj.through(n)", [1, 11]),
    ("obj.through", [1, 11]),
    ("lambda n: obj.privately(n)", [1]),
    ("lambda n: obj.inherited(n)", [3, 7]),
    ("lambda n: obj.area", [8]),
    ("lambda n: obj.of_class(n)", [9, 10]),
    ("lambda n: obj.stored(n)", [19]),
    ("lambda n: obj.made(n)", [6, 12]),
    ("lambda n: method(n)", [6]),
    ("lambda n: partial(n)", [6, 12]),
    ("lambda n: passed(obj, n)", [1, 6, 12]),
    ("functools.partial(passed, obj)", [1, 6, 12]),
    ("functools.partial(plain)", [19]),
    ("lambda n: functools.partial(map, plain)", [19]),
    ("functools.partial(passed, n=plain)", [19]),
    ("lambda n: len(obj)", [6, 12, 13]),
    ("with_object", [6, 12, 14]),
    ("lambda n: plain(obj.kernel(n))", [6, 19]),
    ("lambda n: called(n)", [15]),
    ("lambda n: delegating.kernel(n)", [6, 12]),
    ("lambda n: slotted.function(n) + slotted.sub.launch(n)", [1, 19]),
    ("lambda n: frozen.area() + named.area() + mode.area()", [16, 17, 18]),
    ("lambda n: (obj, n)[0].kernel(n)", [6, 12]),
    ("lambda n: unittest.mock.Mock(spec=obj)", [6, 12]),
]
ALL_RETURNS = [1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]


def digests_of_run(module: ModuleType) -> list[str | None]:
    sources = [read_source_argument(source) for source in list_sources(None, module.make())]
    return [source and source.digest for source in sources]


def digest_of(function: Callable[..., object]) -> str:
    """Return the digest of the source of a function."""
    return read_source(function, carried=False).digest


def kernel_digest(load: Load, source: str) -> str:
    """Return the digest of the function ``kernel`` of a module that has this text."""
    return digest_of(load(source, "suite").kernel)


@pytest.mark.parametrize("options", ["", "(frozen=True)"])
def test_a_dataclass_as_class_attribute_has_a_digest(load: Load, options: str) -> None:
    """``dataclass`` makes ``__init__`` with ``exec``, so it has no source."""
    source = f"""
import dataclasses
@dataclasses.dataclass{options}
class Settings:
    size: int = 1
    def scale(self, n): return n * self.size
class Owner:
    settings = Settings()
    def run(self, n): return self.settings.scale(n)
owner = Owner()
def kernel(n): return owner.run(n)
"""
    assert kernel_digest(load, source) != kernel_digest(load, source.replace("size: int = 1", "size: int = 2"))


@pytest.mark.parametrize(("run", "reached"), RUNS, ids=[run for run, _ in RUNS])
def test_editing_a_member_counts_only_if_the_kernel_uses_it(load: Load, run: str, reached: list[int]) -> None:
    """A class whose object is used as a whole counts with all members, so only the others must not count."""
    source = OBJECTS.replace("RUN", run)
    digests = digests_of_run(load(source, "suite"))
    uses_whole_class = 12 in reached
    for number in ALL_RETURNS:
        edited = source.replace(f" {number}\n", f" {number}00\n")
        assert edited != source
        if number in reached:
            assert digests_of_run(load(edited, "suite")) != digests, number
        elif not uses_whole_class or number in (15, 16, 17, 18):
            assert digests_of_run(load(edited, "suite")) == digests, number


@pytest.mark.parametrize("run", [run for run, _ in RUNS if "stored" not in run])
def test_another_value_in_an_attribute_is_no_source_change(load: Load, run: str) -> None:
    source = OBJECTS.replace("RUN", run)
    other_data = source.replace("obj = Suite()\n", "obj = Suite()\n    obj.size, obj.log = 70, [1]\n")
    assert digests_of_run(load(source, "suite")) == digests_of_run(load(other_data, "suite"))


LAZY = """
class Plan:
    def run(self, n):
        return n
class Runner:
    plan = None
    def __init__(self):
        self.runs = 0
    def run(self, n):
        if self.plan is None:
            self.plan = Plan()
        self.runs += 1
        return self.plan.run(n)
runner = Runner()
def kernel(n):
    return runner.run(n)
def whole(n):
    return len(runner)
"""


#: The object in the attribute can be called.
LAZY_CALLED = LAZY.replace("def run(self, n):\n        return n\n", "def __call__(self, n):\n        return n\n")
LAZY_CALLED = LAZY_CALLED.replace("self.plan.run(n)", "self.plan(n)")
LAZY_CALLED = LAZY_CALLED.replace("    plan = None\n", "").replace("self.plan is None", "not hasattr(self, 'plan')")


@pytest.mark.parametrize("name", ["kernel", "whole"])
@pytest.mark.parametrize("source", [LAZY, LAZY_CALLED], ids=["object", "callable"])
def test_an_attribute_the_kernel_assigns_is_no_source_change(load: Load, source: str, name: str) -> None:
    module = load(source, "suite")
    digest = digest_of(getattr(module, name))
    module.kernel(1)
    assert digest_of(getattr(module, name)) == digest
    edited = load(source.replace("return n\n", "return n + 1\n"), "suite")
    assert digest_of(getattr(edited, name)) != digest


def test_after_patching_a_member_the_source_is_hashed_again(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(OBJECTS.replace("RUN", "lambda n: GLOBAL.kernel(n) + GLOBAL.sub.launch(n)"), "suite")
    run = module.make()
    source = read_source(run, carried=False, is_kept=True)
    assert source.used_values is not None
    module.GLOBAL.size = 50
    assert source.used_values.still_hold()
    for owner, name in [(module.Suite, "kernel"), (module.Sub, "launch")]:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, module.plain)
            assert not source.used_values.still_hold()
        assert source.used_values.still_hold()
    with monkeypatch.context() as patch:
        # Before pytest 9.2, the undo of setattr() leaves the method in the object's own attributes.
        patch.setitem(vars(module.GLOBAL), "kernel", module.plain)
        assert not source.used_values.still_hold()
    assert source.used_values.still_hold()
    monkeypatch.setattr(module.GLOBAL, "sub", module.Suite())
    assert not source.used_values.still_hold()


COMPUTED = """
class Trap:
    def __getattribute__(self, name):
        raise SystemExit
    def __getattr__(self, name):
        raise SystemExit
    def __eq__(self, other):
        raise SystemExit
    __hash__ = None
    def __bool__(self):
        raise SystemExit
    __len__ = __iter__ = __call__ = __bool__
    @property
    def area(self):
        raise SystemExit
    def kernel(self, n):
        return n
class Computed:
    @property
    def __class__(self):
        raise SystemExit
    @property
    def __dict__(self):
        raise SystemExit
    @property
    def area(self):
        raise SystemExit
trap, computed = Trap(), Computed()
def kernel(n):
    return trap.kernel(n), trap.area.x, computed.area.x, len(trap), bool(computed), trap.missing, (trap, computed)
"""


def test_hashing_the_members_of_an_object_runs_none_of_its_code(load: Load) -> None:
    module = load(COMPUTED, "suite")
    for carried in (False, True):
        source = read_source(module.kernel, carried=carried, is_kept=True)
        assert source.used_values is not None
        source.used_values.still_hold()
    for run in (lambda n: module.kernel(module.trap), functools.partial(module.kernel, module.trap, n=module.computed)):
        for subject in list_sources(None, run):
            assert read_source_argument(subject)


LONG_CHAIN = """
class Node:
    pass
first = None
for _ in range(5000):
    node = Node()
    node.next = first
    first = node
def kernel(n):
    return len(first)
"""


def test_a_source_with_a_long_chain_of_objects_is_hashed(load: Load) -> None:
    module = load(LONG_CHAIN, "suite")
    assert digest_of(module.kernel)


def test_a_mock_or_library_object_adds_nothing_to_the_source(load: Load) -> None:
    text = "import unittest.mock\nobj = NONE\ndef kernel(n):\n    return obj.kernel(n) + len(obj)\n"
    digest = read_source(load(text.replace("NONE", "None"), "suite").kernel, carried=False).parts["kernel"]
    for value in ("unittest.mock.MagicMock()", "unittest.mock.MagicMock(spec=list)", "object()"):
        source = read_source(load(text.replace("NONE", value), "suite").kernel, carried=False)
        assert source.parts == {"kernel": digest}


BYSTANDER = """
def fast(x):
    return x + 1
class Sub:
    def go(self, x):
        return x + 2
class Made:
    def go(self, x):
        return x + 3
class Layer:
    def __init__(self):
        self.op = fast
        self.sub = Sub()
    made = Made()
class Record:
    op = sub = made = None
class Function:
    @staticmethod
    def forward(ctx, x):
        ctx.op = ctx.sub = "fast"
        return x
    def note(self, rec):
        self.op = rec.op = rec.sub = 3
def note(rec):
    rec.op = rec.sub = 3
layer, function, record = Layer(), Function(), Record()
def kernel(x):
    ASSIGNS
    return layer.op(x) + PLACE.go(x)
"""
#: Statements that assign attributes of another object than ``layer``.
BYSTANDERS = ["Function.forward(record, x)", "function.note(record)", "note(record)", "record.op = record.sub = 3"]


@pytest.mark.parametrize("statement", BYSTANDERS)
@pytest.mark.parametrize("edit", ["x + 1", "x + 2"])
def test_setting_an_attribute_hides_no_edit_in_another_object(load: Load, statement: str, edit: str) -> None:
    source = BYSTANDER.replace("ASSIGNS", statement).replace("PLACE", "layer.sub")
    digest = kernel_digest(load, source)
    edited = source.replace(edit, f"{edit}00")
    assert kernel_digest(load, edited) != digest


PLANNED = """
import functools
def logged(method):
    @functools.wraps(method)
    def call(*args):
        return method(*args)
    return call
def fast(n):
    return n
class Plan:
    def run(self, n):
        return n
class Base:
    plan = step = None
    @logged
    def run(self, n):
        if self.plan is None:
            self.plan, self.step = Plan(), fast
        return self.plan.run(n) + self.step(n)
class Runner(Base):
    pass
def make():
    runner = RUNNER
    runner.last = None
    def kernel(n):
        runner.last = Plan()
        return runner.run(n) + runner.last.run(n)
    return kernel
"""


def test_attributes_a_decorated_method_sets_are_no_source_change(load: Load) -> None:
    kernel = load(PLANNED.replace("RUNNER", "Runner()"), "suite").make()
    digest = digest_of(kernel)
    kernel(1)
    assert digest_of(kernel) == digest


MEMBERS = """
import functools
STEP = 1
def helper(n):
    return n + 2
class Tool:
    def base(self, step, n, hook=None):
        return n + step
    work = functools.partialmethod(base, 3)
    stepped = functools.partialmethod(base, STEP)
    hooked = functools.partialmethod(base, 4, hook=helper)
    logged = functools.partial(helper, [])
tool = Tool()
def kernel(n):
    return USED
"""


@pytest.mark.parametrize(
    ("used", "old", "new"),
    [
        ("tool.work(n)", "base, 3", "base, 30"),
        ("tool.stepped(n)", "STEP = 1", "STEP = 10"),
        ("len(tool)", "STEP = 1", "STEP = 10"),
        ("tool.hooked(n)", "n + 2", "n + 20"),
        ("tool.logged()", "n + 2", "n + 20"),
        ("tool.hooked(n)", "hook=helper", "help=helper"),
    ],
)
def test_another_partial_argument_in_a_class_is_a_source_change(load: Load, used: str, old: str, new: str) -> None:
    source = MEMBERS.replace("USED", used)
    assert old in source
    digest = kernel_digest(load, source)
    assert kernel_digest(load, source.replace(old, new)) != digest


ENUMS = """
import enum, functools
N = 1
def impl(n, m=0):
    return n + 2
class Impl:
    def go(self, n):
        return n + 3
class E(enum.Enum):
    PARTIAL = functools.partial(impl, m=N)
    OBJECT = Impl()
    PAIR = (functools.partial(impl), 1)
    def __call__(self, n):
        return self.value(n)
    def run(self, n):
        return self.value.go(n)
def make():
    member, other = E.PARTIAL, E.OBJECT
    def kernel(n):
        return USED
    return kernel
"""


@pytest.mark.parametrize(
    ("used", "old"),
    [
        ("E.PARTIAL.value(n)", "n + 2"),
        ("E.PARTIAL.value(n)", "N = 1"),
        ("E.PARTIAL(n)", "n + 2"),
        ("E.OBJECT.value.go(n)", "n + 3"),
        ("E.OBJECT.run(n)", "n + 3"),
        ("E.PAIR.value[0](n)", "n + 2"),
        ("member(n)", "n + 2"),
        ("member.value(n)", "n + 2"),
        ("other.value.go(n)", "n + 3"),
        ("other.run(n)", "n + 3"),
    ],
)
def test_editing_code_in_an_enum_member_is_a_source_change(load: Load, used: str, old: str) -> None:
    source = ENUMS.replace("USED", used)
    digest = digest_of(load(source, "suite").make())
    assert digest_of(load(source.replace(old, f"{old}0"), "suite").make()) != digest


DESCRIPTORS = """
class lazy:
    def __init__(self, function):
        self.f = function
    def __get__(self, owner, cls):
        return self.f(owner) * 1
def helper():
    return 2
class C:
    @lazy
    def x(self):
        return helper() + self.more()
    def more(self):
        return 3
    def unrelated(self):
        return 4
obj = C()
def kernel(n):
    return USED
"""


@pytest.mark.parametrize("used", ["obj.x", "C().x", "len(obj)"])
@pytest.mark.parametrize(
    ("old", "new"),
    [("* 1", "* 10"), ("return 2", "return 20"), ("helper() +", "helper() -"), ("return 3", "return 30")],
)
def test_editing_a_function_in_a_descriptor_is_a_source_change(load: Load, used: str, old: str, new: str) -> None:
    source = DESCRIPTORS.replace("USED", used)
    digest = kernel_digest(load, source)
    edited = source.replace(old, new)
    assert kernel_digest(load, edited) != digest
    if used == "obj.x":
        unrelated_edit = source.replace("return 4", "return 40")
        assert kernel_digest(load, unrelated_edit) == digest


@pytest.mark.parametrize("place", ["layer.made", "Layer.made", "vars(layer) and layer.made"])
def test_setting_class_attributes_hides_no_edit_in_another_class(load: Load, place: str) -> None:
    source = BYSTANDER.replace("ASSIGNS", "type(record).made = 3").replace("PLACE", place)
    digest = kernel_digest(load, source)
    assert kernel_digest(load, source.replace("x + 3", "x + 30")) != digest


SINGLETON = """
class Runner:
    shared = None
    @classmethod
    def get(cls):
        if cls.shared is None:
            cls.shared = cls()
        return cls.shared
    def run(self, n):
        type(self).last = self
        return n
def kernel(n):
    return Runner.get().run(n)
"""


def test_a_singleton_the_first_call_creates_is_no_source_change(load: Load) -> None:
    module = load(SINGLETON, "suite")
    digest = digest_of(module.kernel)
    module.kernel(1)
    assert digest_of(module.kernel) == digest


CALLED_BY_PYTHON = """
class Sub:
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value * 2)
    def __delattr__(self, name):
        object.__delattr__(self, name * 3)
class Owner:
    def __init__(self):
        self.sub = Sub()
    def set(self, value):
        self.sub.x = value
    def read(self):
        return self.sub.x
owner = Owner()
def kernel(n):
    USED
"""


@pytest.mark.parametrize(
    ("used", "edit", "counts"),
    [
        ("owner.sub.x = n", "* 2", True),
        ("owner.sub.x += n", "* 2", True),
        ("owner.set(n)", "* 2", True),
        ("del owner.sub.x", "* 3", True),
        ("return owner.sub.x", "* 2", False),
        ("return owner.read()", "* 3", False),
    ],
)
def test_editing_a_setter_an_assignment_calls_is_a_source_change(
    load: Load, used: str, edit: str, counts: bool
) -> None:
    source = CALLED_BY_PYTHON.replace("USED", used)
    digest = kernel_digest(load, source)
    edited = kernel_digest(load, source.replace(edit, f"{edit}0"))
    assert (edited != digest) == counts


CHANGED = """
import dataclasses, functools
class One:
    def run(self, n):
        return n
class Two:
    def run(self, n):
        return n + 1
@dataclasses.dataclass(frozen=True)
class Frozen:
    size: int = 1
def helper(n, step):
    return n
obj, frozen, added = One(), Frozen(), functools.partial(helper, step=1)
nested = (Frozen(), 1)
def kernel(n):
    return USED
"""


@pytest.mark.parametrize(
    ("used", "change"),
    [
        ("obj.run(n)", lambda module: setattr(module.obj, "__class__", module.Two)),
        ("len(obj)", lambda module: setattr(module.obj, "__class__", module.Two)),
        ("frozen.size", lambda module: object.__setattr__(module.frozen, "size", 2)),
        ("nested", lambda module: object.__setattr__(module.nested[0], "size", 2)),
        ("added(n)", lambda module: module.added.__setstate__((module.helper, (), {"step": 2}, {}))),
        ("added(n)", lambda module: module.added.keywords.update(step=2)),
    ],
    ids=["class", "class and len", "frozen field", "nested field", "state of a partial", "keywords of a partial"],
)
def test_after_a_change_of_an_object_its_source_is_hashed_again(
    load: Load, used: str, change: Callable[[ModuleType], None]
) -> None:
    module = load(CHANGED.replace("USED", used), "suite")
    source = read_source(module.kernel, carried=False, is_kept=True)
    assert source.used_values is not None
    assert source.used_values.still_hold()
    change(module)
    assert not source.used_values.still_hold()
    assert digest_of(module.kernel) != source.digest


PRIVATE = """
class Plan:
    def run(self, n):
        return n + 1
class Other(Plan):
    def run(self, n):
        return n + 2
class Base:
    __made = 0
    __plan = None
    def base(self, n):
        if self.__plan is None:
            self.__plan = Plan()
        type(self).__made += 1
        Base.__made += 1
        return self.__plan.run(n) + self.__made
class Derived(Base):
    def __init__(self):
        self.__plan = Other()
    def derived(self, n):
        return self.__plan.run(n)
runner = Derived()
def kernel(n):
    return USED
"""


@pytest.mark.parametrize("used", ["runner.base(n) + runner.derived(n)", "len(runner)", "Derived"])
def test_the_source_includes_private_attributes_of_a_subclass(load: Load, used: str) -> None:
    """A method of the base assigns ``_Base__plan``. The subclass assigns its own only in the constructor."""
    source = PRIVATE.replace("USED", used)
    module = load(source, "suite")
    digest = digest_of(module.kernel)
    module.runner.base(1)
    assert digest_of(module.kernel) == digest
    edited = load(source.replace("n + 2", "n + 3"), "suite")
    assert digest_of(edited.kernel) != digest


@pytest.mark.parametrize("used", ["tool.make().run(n)", "Tool.make().run(n)"])
def test_the_source_includes_methods_of_an_object_from_a_factory(load: Load, used: str) -> None:
    source = f"""
class Tool:
    @classmethod
    def make(cls):
        return cls()
    def run(self, n):
        return n + 1
tool = Tool()
def kernel(n):
    return {used}
"""
    digest = kernel_digest(load, source)
    assert kernel_digest(load, source.replace("n + 1", "n + 2")) != digest


#: Code that stores an object in its first call.
LAZY_OBJECTS = {
    "cached property": """
class Tool:
    @functools.cached_property
    def plan(self):
        return Plan()
    def __len__(self):
        return self.plan.run(1)
tool = Tool()
def kernel(n):
    return len(tool)
""",
    "one object, made by __new__": """
class Tool:
    made = None
    def __new__(cls):
        if cls.made is None:
            cls.made = super().__new__(cls)
        return cls.made
    def run(self, n):
        return Plan().run(n)
def kernel(n):
    return Tool().run(n)
""",
    "last object, kept by the constructor": """
class Tool:
    last = None
    def __init__(self):
        type(self).last = self
    def run(self, n):
        return Plan().run(n)
def kernel(n):
    return Tool().run(n)
""",
    "module, imported later": """
_json = None
def kernel(n):
    global _json
    if _json is None:
        import json as _json
    return _json.dumps(Plan().run(n))
""",
}


@pytest.mark.parametrize("code", LAZY_OBJECTS.values(), ids=list(LAZY_OBJECTS))
def test_an_object_the_first_call_creates_is_no_source_change(load: Load, code: str) -> None:
    source = f"import functools\nclass Plan:\n    def run(self, n):\n        return n + 1\n{code}"
    module = load(source, "suite")
    digest = digest_of(module.kernel)
    module.kernel(1)
    assert digest_of(module.kernel) == digest
    edited = load(source.replace("n + 1", "n + 2"), "suite")
    assert digest_of(edited.kernel) != digest


LAZY_MODULE = """
class Backend:
    module = None
    @classmethod
    def get(cls):
        if OWNER.module is None:
            import lazy_ops
            OWNER.module = lazy_ops
        return OWNER.module
    def load(self):
        if not hasattr(self, "own_module"):
            import lazy_ops
            self.own_module = lazy_ops
        return self.own_module
class Other:
    import lazy_ops as module
backend = Backend()
def kernel(n):
    return USE
"""


@pytest.mark.parametrize("owner", ["cls", "Backend"])
@pytest.mark.parametrize("use", ["Backend.get().go(n)", "backend.get().go(n)", "backend.load().go(n)"])
def test_a_module_the_first_call_stores_is_no_source_change(load: Load, use: str, owner: str) -> None:
    def digest(number: int, calls: int) -> str:
        load(f"def go(n):\n    return n + {number}\n", "lazy_ops")
        module = load(LAZY_MODULE.replace("USE", use).replace("OWNER", owner), "suite")
        for _ in range(calls):
            module.kernel(1)
        return digest_of(module.kernel)

    assert digest(1, calls=1) == digest(1, calls=0)
    assert digest(2, calls=1) == digest(2, calls=0) != digest(1, calls=0)


def test_editing_a_module_in_a_class_is_a_source_change_beside_a_lazy_one(load: Load) -> None:
    """``cls.module = lazy_ops`` assigns the attribute of its own class. Another class has one of the same name."""
    source = (
        LAZY_MODULE.replace("USE", "Other, Backend.get()")
        .replace("OWNER", "cls")
        .replace("import lazy_ops\n", "pass\n")
    )
    source = source.replace("= lazy_ops\n", "= None\n")
    digests = []
    for number in (1, 2):
        load(f"def go(n):\n    return n + {number}\n", "lazy_ops")
        digests.append(kernel_digest(load, source))
    assert digests[0] != digests[1]


STORED_FUNCTION = """
import torch, torch.nn.functional as F
def half(x):
    return x + 1
def back(x):
    return x + 2
class Act:
    def __init__(self, fn, back):
        self.ATTRIBUTE, self.back = fn, back
    def forward(self, x):
        return self.back(x) + 3
class Called(Act):
    def __call__(self, x):
        return self.ATTRIBUTE(x) + 4
class Module(torch.nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.ATTRIBUTE = fn
    def forward(self, x):
        return self.ATTRIBUTE(x) + 5
class Methods:
    ATTRIBUTE = F.relu
    @staticmethod
    def fn(x):
        return x + 6
    def forward(self, x):
        return x + 7
act, plain, called, module = Act(F.relu, back), Act(half, back), Called(F.relu, back), Module(F.relu)
def kernel(x):
    return USE
"""


@pytest.mark.parametrize("attribute", ["fn", "py_func", "_pyfunc", "__wrapped__"])
@pytest.mark.parametrize(
    ("use", "reached"),
    [
        ("act.forward(x)", [2, 3]),
        ("plain.forward(x)", [2, 3]),
        ("len(plain)", [1, 2, 3]),
        ("called(x)", [2, 4]),
        ("module(x)", [5]),
        ("Methods().forward(x)", [6, 7]),
    ],
)
def test_editing_an_object_with_attribute_fn_is_a_source_change(
    load: Load, attribute: str, use: str, reached: list[int]
) -> None:
    """An attribute with the name of Triton's or Numba's makes no decorated kernel of an object or a class."""
    source = STORED_FUNCTION.replace("ATTRIBUTE", attribute).replace("USE", use)
    digest = kernel_digest(load, source)
    for number in reached:
        edited = source.replace(f" + {number}\n", f" + {number}00\n")
        assert kernel_digest(load, edited) != digest, number


FACTORY = """
import dataclasses, functools
def build(n):
    return n + 1
class Sub:
    def go(self, x):
        return x + 2
    @classmethod
    def make(cls):
        return cls() if 3 else None
class Maker:
    def __call__(self):
        return [4]
@dataclasses.dataclass
class Op:
    sub: object = dataclasses.field(default_factory=MADE)
    sizes: list = dataclasses.field(default_factory=list)
def kernel(x):
    return Op().sub.go(x)
"""


@pytest.mark.parametrize(
    ("factory", "old", "new"),
    [
        ("lambda: build(1)", "n + 1", "n + 100"),
        ("Sub", "x + 2", "x + 200"),
        ("Sub.make", "if 3", "if 300"),
        ("Sub.make", "x + 2", "x + 200"),
        ("Maker()", "[4]", "[400]"),
        ("functools.partial(build, 5)", "n + 1", "n + 100"),
        ("functools.partial(build, 5)", "build, 5", "build, 500"),
        ("functools.partial(map, Sub)", "x + 2", "x + 200"),
    ],
)
def test_editing_a_dataclass_default_factory_is_a_source_change(load: Load, factory: str, old: str, new: str) -> None:
    source = FACTORY.replace("MADE", factory)
    digest = kernel_digest(load, source)
    edited = source.replace(old, new)
    assert edited != source
    assert kernel_digest(load, edited) != digest


LIBRARY_CLASS = """
import collections
import numpy as np
class Op:
    dtype = CLASS
    other = np.int8
    def launch(self, x):
        return self.dtype(x) + 1
op = Op()
def kernel(x):
    return USE
"""


@pytest.mark.parametrize("use", ["op.launch(x)", "op.dtype", "len(op)"])
def test_another_library_class_as_attribute_is_a_source_change(load: Load, use: str) -> None:
    def digest(text: str) -> str:
        return kernel_digest(load, source.replace("CLASS", text))

    source = LIBRARY_CLASS.replace("USE", use)
    assert len({digest(text) for text in ("np.float32", "np.float16", "dict", "collections.OrderedDict")}) == 4
    other = digest("np.float32")
    source = source.replace("np.int8", "np.int16")
    assert (digest("np.float32") != other) == (use == "len(op)")


def test_monkeypatching_a_class_attribute_is_a_source_change(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(LIBRARY_CLASS.replace("CLASS", "np.float32").replace("USE", "op.launch(x)"), "suite")
    source = read_source(module.kernel, carried=False, is_kept=True)
    assert source.used_values is not None
    assert source.used_values.still_hold()
    monkeypatch.setattr(module.Op, "dtype", module.np.float16)
    assert not source.used_values.still_hold()
    assert digest_of(module.kernel) != source.digest


STORED_MODULE = """
import functools
import math
import ops
class Runner:
    library = math
    def __init__(self, backend):
        self.backend = backend
    def run(self, n):
        return self.backend.launch(n) + self.library.floor(n)
class Fixed:
    backend = ops
    def run(self, n):
        return self.backend.launch(n)
def go(backend, n):
    return backend.launch(n)
def default(n, backend=ops):
    return backend.launch(n)
runner, fixed = Runner(ops), Fixed()
partial = functools.partial(go, ops)
def kernel(n):
    return USE
"""
MODULE = """
def launch(n):
    return n + 1
def other(n):
    return n + 2
"""


@pytest.mark.parametrize(
    ("use", "is_whole"),
    [
        ("runner.run(n)", False),
        ("runner.backend.launch(n)", False),
        ("fixed.run(n)", False),
        ("default(n)", False),
        ("Fixed().run(n)", True),
        ("go(runner, n)", True),
        ("partial(n)", True),
    ],
)
def test_editing_a_module_in_an_attribute_is_a_source_change(load: Load, use: str, is_whole: bool) -> None:
    def digest(module_text: str) -> str:
        load(module_text, "ops")
        return kernel_digest(load, STORED_MODULE.replace("USE", use))

    first_digest = digest(MODULE)
    assert digest(MODULE) == first_digest
    assert digest(MODULE.replace("n + 1", "n + 100")) != first_digest
    assert (digest(MODULE.replace("n + 2", "n + 200")) != first_digest) == is_whole


NAMED_TUPLE = """
import typing
class Plan:
    def launch(self, n):
        return n + 1
class Config(typing.NamedTuple):
    plan: object = Plan()
    plans: object = (Plan(), [])
def kernel(n):
    return USE
"""


@pytest.mark.parametrize("use", ["Config().plan.launch(n)", "config(n)"])
def test_the_source_includes_objects_in_named_tuple_defaults(load: Load, use: str) -> None:
    source = NAMED_TUPLE.replace("USE", use) + "def config(n):\n    return Config().plans[0].launch(n)\n"
    digest = read_source(load(source, "suite").kernel).digest
    assert read_source(load(source, "suite").kernel).digest == digest
    assert read_source(load(source.replace("n + 1", "n + 100"), "suite").kernel).digest != digest


DEFAULTS = """
import dataclasses, typing
LIMIT = 64
def gelu(x):
    return x + 1
def build(n):
    return [n + 2]
class Config(typing.NamedTuple):
    small: int = 64
    large: int = 128
    block: int = LIMIT
    table: list = build(5)
@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    small: int = 64
    act: object = gelu
    block: int = dataclasses.field(default=LIMIT)
def tuple_kernel(n):
    return Config().block + Config().table[0]
def slots_kernel(n):
    return Slotted().act(n) + Slotted().block
"""


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("tuple_kernel", "LIMIT = 64", "LIMIT = 128"),
        ("tuple_kernel", "n + 2", "n + 200"),
        ("slots_kernel", "LIMIT = 64", "LIMIT = 128"),
        ("slots_kernel", "x + 1", "x + 100"),
    ],
)
def test_editing_what_a_field_default_names_is_a_source_change(load: Load, name: str, old: str, new: str) -> None:
    """Python stores such a default outside the attributes of the class. Other defaults have the same numbers."""
    source = read_source(getattr(load(DEFAULTS, "suite"), name), is_kept=True)
    assert source.used_values is not None
    assert source.used_values.still_hold()
    assert read_source(getattr(load(DEFAULTS, "suite"), name)).digest == source.digest
    assert read_source(getattr(load(DEFAULTS.replace(old, new), "suite"), name)).digest != source.digest


FIELDS_OF_SELF = """
import dataclasses, typing
class Config(typing.NamedTuple):
    tile: int = 64
    def launch(self, n):
        return n * self.tile
@dataclasses.dataclass
class Plain:
    tile: int = 64
    def launch(self, n):
        return n * self.tile
@dataclasses.dataclass(slots=True)
class Slotted:
    tile: int = 64
    def launch(self, n):
        return n * self.tile
@dataclasses.dataclass(slots=True)
class Base:
    tile: int = 8
    def launch(self, n):
        return n * self.tile
LIMIT = 64
@dataclasses.dataclass
class PlainBase:
    tile: int = LIMIT
@dataclasses.dataclass(slots=True)
class AddingSlots(PlainBase):
    def launch(self, n):
        return n * self.tile
@dataclasses.dataclass(slots=True)
class Overriding(Base):
    tile: int = LIMIT
class Replaced(typing.NamedTuple):
    tile: int = 8
    def launch(self, n):
        return n * self.tile
Replaced.tile = property(lambda self: 64)
"""


@pytest.mark.parametrize("name", ["Config", "Plain", "Slotted", "AddingSlots", "Overriding", "Replaced"])
def test_the_digest_of_a_method_has_the_default_of_a_field_of_self(load: Load, name: str) -> None:
    """A field with slots=True, and a field of a named tuple, has no default among the attributes of the class."""

    def digest_launch(text: str) -> str | None:
        return source_text(getattr(load(text, "suite"), name)().launch)

    assert digest_launch(FIELDS_OF_SELF) == digest_launch(FIELDS_OF_SELF) is not None
    assert digest_launch(FIELDS_OF_SELF) != digest_launch(FIELDS_OF_SELF.replace("64", "128"))


FUNCTION_IN_FIELD = """
import dataclasses, typing
def double(x):
    return x * 2
class Tuple(typing.NamedTuple):
    act: object = double
    def launch(self, n):
        return self.act(n)
    def describe(self):
        return "a"
@dataclasses.dataclass(slots=True)
class Slotted:
    act: object = double
    def launch(self, n):
        return self.act(n)
    def describe(self):
        return "a"
"""


@pytest.mark.parametrize("name", ["Tuple", "Slotted"])
def test_a_function_that_is_the_default_of_a_field_is_no_method(load: Load, name: str) -> None:
    """Python calls it without the object. So ``describe`` does not count."""

    def digest_launch(text: str) -> str | None:
        return source_text(getattr(load(text, "suite"), name)().launch)

    digest = digest_launch(FUNCTION_IN_FIELD)

    assert digest == digest_launch(FUNCTION_IN_FIELD.replace('"a"', '"b"')) is not None
    assert digest != digest_launch(FUNCTION_IN_FIELD.replace("x * 2", "x * 3"))


OBJECT_IN_CLASS = """
class Plan:
    def __init__(self, size):
        self.size = size + 1
    def unrelated(self):
        return 2
def make_plan(n):
    return Plan(n + 3)
class Kernel:
    plan = Plan(5)
    made = make_plan(5)
    def launch(self, x):
        return x + self.plan.size
    def launch_made(self, x):
        return x + self.made.size
obj = Kernel()
def kernel(n):
    return USE
"""


@pytest.mark.parametrize(
    ("use", "edit", "counts"),
    [
        ("obj.launch(n)", "5)\n    made", True),
        ("obj.launch(n)", "size + 1", True),
        ("obj.launch(n)", "2", False),
        ("obj.launch(n)", "n + 3", False),
        ("obj.launch_made(n)", "n + 3", True),
        ("Kernel().launch_made(n)", "n + 3", True),
    ],
)
def test_editing_the_maker_of_an_object_is_a_source_change(load: Load, use: str, edit: str, counts: bool) -> None:
    text = OBJECT_IN_CLASS.replace("USE", use)
    source = read_source(load(text, "suite").kernel, carried=False, is_kept=True)
    assert source.used_values is not None
    assert source.used_values.still_hold()
    assert kernel_digest(load, text) == source.digest
    assert (kernel_digest(load, text.replace(edit, f"0 + {edit}")) != source.digest) == counts


FIXED_PARTS = """
import functools
def build(n):
    return [n]
def step_of(table, x):
    return table[0] + x
class Kernel:
    stages = (10, [11])
    step = functools.partial(step_of, build(16))
    def launch(self, x):
        return self.step(x)
    def launch_stages(self, x):
        return self.stages[1][0] + x
obj = Kernel()
def kernel(n):
    return obj.USED(n)
"""


@pytest.mark.parametrize(("used", "edit"), [("launch_stages", "11"), ("launch", "16")])
def test_editing_a_part_that_may_change_is_a_source_change(load: Load, used: str, edit: str) -> None:
    """The other parts of the class attribute cannot change, and have a text of their own."""
    source = FIXED_PARTS.replace("USED", used)
    digest = kernel_digest(load, source)
    assert kernel_digest(load, source) == digest
    assert kernel_digest(load, source.replace(edit, f"{edit}0")) != digest


KERNEL_WITH_GRID = """
import functools, triton, triton.language as tl
@triton.jit
def kernel(x, BLOCK: tl.constexpr):
    tl.store(x, 2)
launch = kernel[(1,)]
tuned = triton.autotune([triton.Config({"BLOCK": 1})], key=[])(kernel)[(1,)]
filled = functools.partial(kernel[(1,)], 1)
direct = kernel.run
class Launcher:
    def __init__(self, launch):
        self.launch = launch
    def go(self, x):
        return self.launch(x)
launcher = Launcher(kernel[(1,)])
class Direct:
    launch = kernel.run
    def go(self, x):
        return self.launch(x, grid=(1,))
class OwnKernel(triton.runtime.jit.KernelInterface):
    def __init__(self, function):
        self.function = function
    def run(self, *args, **options):
        return self.function(*args)
own = OwnKernel(kernel)[(1,)]
class Timed:
    def __init__(self, limit):
        self.limit = limit
    def __call__(self, function):
        @functools.wraps(function)
        def wrapper(*args):
            print(self.limit)
            return function(*args)
        return wrapper
wrapped = Timed(5)(kernel[(1,)])
def by_closure():
    bound = kernel[(1,)]
    return lambda x: bound(x)
"""


@pytest.mark.parametrize(
    "run",
    [
        "lambda x: launch(x)",
        "lambda x: tuned(x)",
        "lambda x: filled(x)",
        "lambda x: direct(x, grid=(1,))",
        "lambda x: launcher.go(x)",
        "launcher.go",
        "Direct().go",
        "own",
        "wrapped",
        "by_closure()",
        "launch",
        "filled",
        "functools.partial(direct, grid=(1,))",
    ],
)
@pytest.mark.parametrize("is_interpreted", [False, True])
def test_editing_a_kernel_with_a_grid_is_a_source_change(
    load, monkeypatch: pytest.MonkeyPatch, run: str, is_interpreted: bool
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", str(int(is_interpreted)))
    source = f"{KERNEL_WITH_GRID}run = {run}\n"
    digests = []
    for text in (source, source, source.replace("tl.store(x, 2)", "tl.store(x, 3)")):
        sources = list_sources(None, load(text, "kernels").run)
        assert sources
        digests.append([source_text(subject) for subject in sources])
    assert digests[0] == digests[1] != digests[2]


def test_editing_a_numba_kernel_with_a_grid_is_a_source_change(load) -> None:
    pytest.importorskip("numba")
    source = "from numba import cuda\n@cuda.jit\ndef kernel(x):\n    x[0] = 2\n"
    source += "launch = kernel[1024, 128]\ndef run(x):\n    return launch(x)\n"
    before, after = load(source).run, load(source.replace("= 2", "= 3")).run
    assert source_text(before) != source_text(after)


def test_editing_a_numba_reduction_is_a_source_change(load) -> None:
    pytest.importorskip("numba")
    source = "from numba import cuda\n@cuda.reduce\ndef total(a, b):\n    return a + b\n"
    source += "def run(x):\n    return total(x)\n"
    before, after = load(source).run, load(source.replace("a + b", "a * b")).run
    assert source_text(before) != source_text(after)


IMPLEMENTATIONS = """
import enum, functools
def tiled(n):
    return n + 1
class Kernel:
    def go(self, n):
        return tiled(n)
class Stored:
    def __init__(self):
        self.function = tiled
class Implementation(enum.Enum):
    PARTIAL = functools.partial(tiled)
    ARGUMENT = functools.partial(pow, exp=1)
    LAMBDA = functools.partial(lambda n: tiled(n))
    TUPLE = (functools.partial(tiled), 1)
    OBJECT = Stored()
    METHOD = (Kernel().go,)
    PLAIN = [1, 2]
"""


@pytest.mark.parametrize("member", ["PARTIAL", "ARGUMENT", "LAMBDA", "TUPLE", "OBJECT", "METHOD"])
def test_editing_code_in_an_enum_member_changes_the_class_lines(load: Load, member: str) -> None:
    """An encoded candidate, or value of a key, is only ``Implementation.PARTIAL``."""

    def describe(source: str, name: str) -> list[str]:
        return list_class_lines("space.config", load(source, "implementations").Implementation[name])

    edited = IMPLEMENTATIONS.replace("n + 1", "n + 2").replace("exp=1", "exp=2")
    assert describe(IMPLEMENTATIONS, member) == describe(IMPLEMENTATIONS, member) != describe(edited, member)
    assert describe(IMPLEMENTATIONS, "PLAIN") == describe(edited, "PLAIN")


POLICIES = """
class constexpr:
    def __init__(self, value):
        self.value = value
class Policy:
    rows = 1
    def scale(self, n):
        return n + 1
    def unrelated(self):
        return 2
POLICY = constexpr(Policy())
def kernel(n):
    return POLICY.value.scale(n)
def rows(n):
    return POLICY.value.rows
"""


@pytest.mark.parametrize(("kernel", "edit"), [("kernel", ("n + 1", "n + 3")), ("rows", ("rows = 1", "rows = 3"))])
def test_a_digest_has_the_used_members_of_an_object_in_a_constexpr(
    load: Load, kernel: str, edit: tuple[str, str]
) -> None:
    digests = []
    for old, new in (("", ""), ("return 2", "return 3"), edit):
        digests.append(read_source(getattr(load(POLICIES.replace(old, new)), kernel)).digest)
    assert digests[0] == digests[1] != digests[2]
