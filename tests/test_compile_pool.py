"""The one pool in which every tuner compiles."""

from __future__ import annotations

import ast
import threading
import time
from contextvars import ContextVar

import pytest

from pytest_autotune.tuners.shared.compile_pool import CompilePool, parse_one_at_a_time

WAIT_S = 30.0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_with_block_of_a_pool_drops_waiting_jobs(error: type[BaseException]) -> None:
    compiled: list[int] = []
    begun, go_on = threading.Event(), threading.Event()
    pool = CompilePool(1)

    def compile_first() -> None:
        begun.set()
        go_on.wait(WAIT_S)

    def search() -> None:
        with pool:
            pool.submit(compile_first)
            assert begun.wait(WAIT_S)
            pool.submit(compiled.append, 2)
            raise error

    try:
        with pytest.raises(error):
            search()
    finally:
        go_on.set()
    pool.shutdown()
    assert compiled == []


def test_at_the_end_of_its_with_block_a_pool_waits_for_all_jobs() -> None:
    compiled: list[int] = []
    with CompilePool(2) as pool:
        for number in range(5):
            pool.submit(compiled.append, number)
    assert sorted(compiled) == [0, 1, 2, 3, 4]


VALUE = ContextVar("VALUE", default="default")


def test_a_job_sees_the_context_variables_of_its_submitter() -> None:
    with CompilePool(1) as pool:
        default = pool.submit(VALUE.get)
        token = VALUE.set("set")
        changed = pool.submit(VALUE.get)
        VALUE.reset(token)

    assert [default.result(), changed.result()] == ["default", "set"]


@pytest.mark.parametrize(
    ("version", "fails"),
    [
        ((3, 10, 13), False),
        ((3, 11, 7), True),
        ((3, 11, 8), False),
        ((3, 12, 1), True),
        ((3, 12, 2), False),
    ],
)
def test_if_ast_parse_is_not_thread_safe_threads_take_turns(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], fails: bool
) -> None:
    busy, most = [], []

    def parse(source: str) -> None:
        busy.append(source)
        most.append(len(busy))
        time.sleep(0.05)
        busy.pop()

    monkeypatch.setattr(ast, "parse", parse)
    parse_one_at_a_time(version)
    threads = [threading.Thread(target=lambda: ast.parse("x")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(most), max(most) == 1) == (4, fails)
