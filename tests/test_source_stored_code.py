"""A digest has the code that callable objects, dispatching functions and generated classes lead to."""

from __future__ import annotations

import pytest

from pytest_autotune.tuners.function.identity import source_text
from pytest_autotune.tuners.source.source_digest import source_digest
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
def test_code_that_a_callable_stores_is_read(load, used: str) -> None:
    source = STORED.replace("USED", used)
    digest = source_digest(load(source).kernel)
    assert source_digest(load(source).kernel) == digest
    assert source_digest(load(source.replace("return 1", "return 10")).kernel) != digest


@pytest.mark.parametrize("run", ["slot", "nested", "dispatch", "inner"])
def test_a_callable_as_run_has_the_code_inside(load, run: str) -> None:
    before = getattr(load(STORED), run)
    after = getattr(load(STORED.replace("return 1", "return 10")), run)
    assert source_text(before) == source_text(getattr(load(STORED), run))
    assert source_text(before) != source_text(after)
