"""Parsing in threads, on the Pythons where that fails."""

from __future__ import annotations

import ast
import threading
import time

import pytest

from pytest_autotune.tuners.shared.compile_pool import parse_one_at_a_time


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
def test_one_thread_parses_at_a_time_on_pythons_where_more_fail(
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
