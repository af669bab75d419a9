"""The dump at the end of a run: when it is written, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_autotune.cache import stores
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value
from pytest_autotune.run import dumping
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.result import Request, Result
from pytest_autotune.run.settle import Beginning
from pytest_autotune.workers.events import Log


def entry(m: int) -> Entry:
    problem = Problem("toy", "k", (Value("M", m),), Device("GPU", "arch", 1))
    return Entry(problem, choice=Candidate(params=(Value("BLOCK", 16),)))


def tuned(*entries: Entry) -> Collected:
    return Collected(tuple(("", Lookup(one.problem, entry=one, tuned=True)) for one in entries))


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> list[Cache]:
    """What the path held, each time that the end of a run was settled."""
    calls: list[Cache] = []

    def settle(beginning: Beginning, collected: Collected, held: Cache, request: Request) -> Result:
        calls.append(held)
        return original(beginning, collected, held, request)

    original = dumping.settle
    monkeypatch.setattr(dumping, "settle", settle)
    return calls


def dump(path: Path, collected: Collected, held: Cache | None = None) -> Result:
    destination = dumping.Destination(Location(path, shown=path.name), "--autotune-dump")
    return dumping.dump(destination, Beginning(held=held or Cache()), collected, Request(dumps=True), Log(None, ""))


def test_a_run_is_settled_once_with_what_the_path_holds(tmp_path: Path, settled: list[Cache]) -> None:
    path = tmp_path / "cache.textproto"
    dump(path, tuned(entry(1)))
    held = stores.read(path)

    result = dump(path, tuned(entry(2)), held)

    assert settled == [Cache(), held]
    assert set(stores.read(path).entries) == set(result.cache.entries) == {entry(1), entry(2)}
    assert result.dump is not None
    assert (result.merged.added, result.dump.written_to) == (1, "cache.textproto")


def test_what_another_run_has_written_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache.textproto"
    original: Any = dumping.settle

    def settle(*arguments: Any) -> Any:
        if not path.exists():  # another run writes
            stores.update(path, lambda now: Cache((entry(1),)))
        return original(*arguments)

    monkeypatch.setattr(dumping, "settle", settle)
    dump(path, tuned(entry(2)))

    assert set(stores.read(path).entries) == {entry(1), entry(2)}


def test_a_run_that_comes_to_nothing_makes_no_file(tmp_path: Path) -> None:
    dumped = dump(tmp_path / "folder" / "cache.textproto", Collected()).dump

    assert not list(tmp_path.iterdir())
    assert dumped is not None
    assert (dumped.written, dumped.error) == (False, "")


def test_what_cannot_be_written_is_settled_all_the_same(tmp_path: Path, settled: list[Cache]) -> None:
    (tmp_path / "file").touch()
    held = Cache((entry(1),))

    result = dump(tmp_path / "file" / "cache.textproto", tuned(entry(2)), held)

    assert settled == [held]
    assert result.dump is not None
    assert result.dump.error.startswith("--autotune-dump: cache.textproto: ")
    assert set(result.cache.entries) == {entry(1), entry(2)}
