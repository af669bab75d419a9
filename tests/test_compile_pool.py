"""The one pool in which every tuner compiles."""

from __future__ import annotations

import threading

import pytest

from pytest_autotune.tuners.shared.compile_pool import CompilePool

WAIT_S = 30.0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_leaving_by_an_error_drops_what_has_not_begun(error: type[BaseException]) -> None:
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


def test_leaving_without_an_error_waits_for_everything() -> None:
    compiled: list[int] = []
    with CompilePool(2) as pool:
        for number in range(5):
            pool.submit(compiled.append, number)
    assert sorted(compiled) == [0, 1, 2, 3, 4]
