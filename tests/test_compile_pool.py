"""The one pool in which every tuner compiles."""

from __future__ import annotations

import threading

import pytest

from pytest_autotune.tuners.shared.compile_pool import THREAD_NAME, CompilePool

WAIT_S = 30.0


def test_what_a_submission_holds_is_let_go_once_it_is_compiled() -> None:
    let_go = threading.Event()
    go_on = threading.Event()
    with CompilePool(1) as pool:
        pool.held_for_next.callback(let_go.set)
        future = pool.submit(go_on.wait, WAIT_S)
        other = pool.submit(threading.current_thread)
        assert not let_go.is_set()
        go_on.set()
        assert future.result(WAIT_S)
        assert let_go.wait(WAIT_S)
        assert other.result(WAIT_S).name.startswith(THREAD_NAME)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_leaving_by_an_error_drops_what_has_not_begun_and_lets_go_what_it_holds(error: type[BaseException]) -> None:
    compiled: list[int] = []
    let_go = threading.Event()
    begun, go_on = threading.Event(), threading.Event()
    pool = CompilePool(1)

    def compile_first() -> None:
        begun.set()
        go_on.wait(WAIT_S)

    def search() -> None:
        with pool:
            pool.submit(compile_first)
            assert begun.wait(WAIT_S)
            pool.held_for_next.callback(let_go.set)
            pool.submit(compiled.append, 2)
            raise error

    try:
        with pytest.raises(error):
            search()
        assert let_go.is_set()
    finally:
        go_on.set()
    pool.shutdown()
    assert compiled == []


def test_leaving_without_an_error_waits_for_everything() -> None:
    compiled: list[int] = []
    with CompilePool(2) as pool:
        for number in range(5):
            pool.submit(compiled.append, number)
    assert sorted(compiled) == [0, 1, 2, 3, 4]
