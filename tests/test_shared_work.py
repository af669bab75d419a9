"""Pieces of one tuning's work that several workers do."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path

from pytest_autotune.run.together.shared_work import SharedWork, UndividedWork
from pytest_autotune.run.together.waiting import Waits


def work(folder: Path, timeout_s: float = 10) -> SharedWork:
    return SharedWork(folder, "tuning", Waits(timeout_s))


def test_each_piece_is_done_by_one_worker(tmp_path: Path) -> None:
    with work(tmp_path).take(0) as first, work(tmp_path).take(0) as second, work(tmp_path).take(1) as other_piece:
        assert (first, second, other_piece) == (True, False, True)

    with work(tmp_path).take(0) as again:
        assert not again


def test_pieces_of_another_tuning_are_others(tmp_path: Path) -> None:
    with work(tmp_path).take(0), SharedWork(tmp_path, "another", Waits(1)).take(0) as mine:
        assert mine


def test_a_piece_that_another_worker_does_is_waited_for(tmp_path: Path) -> None:
    held = ExitStack()
    held.enter_context(work(tmp_path).take(0))
    threading.Timer(0.3, held.close).start()
    started = time.monotonic()

    work(tmp_path).wait_for(0)

    assert 0.2 < time.monotonic() - started < 5


def test_a_worker_that_hangs_is_waited_for_once_and_not_for_each_of_its_pieces(tmp_path: Path) -> None:
    mine = work(tmp_path, timeout_s=0.5)
    with ExitStack() as held:
        for piece in range(5):
            held.enter_context(work(tmp_path).take(piece))
        started = time.monotonic()

        for piece in range(5):
            mine.wait_for(piece)

        assert time.monotonic() - started < 1.5


def test_work_that_nobody_shares_is_all_ones_own() -> None:
    alone = UndividedWork()

    with alone.take(0) as first, alone.take(0) as again:
        assert first
        assert again
