"""Parsing in threads, on the Pythons where that fails."""

from __future__ import annotations

import ast
import threading
import time

import pytest

from pytest_autotune.tuners.shared.compile_pool import fails_in_threads, parsed_one_at_a_time


@pytest.mark.parametrize(
    ("version", "fails"),
    [
        ((3, 10, 13), False),
        ((3, 11, 0), True),
        ((3, 11, 7), True),
        ((3, 11, 8), False),
        ((3, 12, 1), True),
        ((3, 12, 2), False),
        ((3, 13, 0), False),
    ],
)
def test_the_pythons_that_cannot_parse_in_threads(version: tuple[int, ...], fails: bool) -> None:
    assert fails_in_threads(version) is fails


def test_one_thread_parses_at_a_time_where_that_is_needed_and_nothing_stays_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy, most = [], []

    def parse(source: str) -> None:
        busy.append(source)
        most.append(len(busy))
        time.sleep(0.01)
        busy.pop()

    monkeypatch.setattr(ast, "parse", parse)
    with parsed_one_at_a_time((3, 11, 7)):
        threads = [threading.Thread(target=lambda: ast.parse("x")) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert (len(most), max(most)) == (4, 1)
    assert ast.parse is parse
    with parsed_one_at_a_time((3, 13, 0)):
        assert ast.parse is parse
