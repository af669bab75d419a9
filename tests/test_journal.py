"""Journals: what a process has tuned, on disk at once; and what crosses between processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_autotune.cache.model import Candidate, Device, Entry, Problem, Value
from pytest_autotune.run.journal import Journal, RunFolder, whole_lines
from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.run.wire import ProcessFacts, decode_facts, decode_lookup, encode_facts, encode_lookup


def lookup(kernel: str = "k") -> Lookup:
    key = (Value("M", 2**62), Value("flag", None), Value("scale", float("inf")), Value("dtype", "fp16", "dtype"))
    problem = Problem("toy", kernel, key, Device("GPU", "arch", 1))
    failed = Candidate(params=(Value("BLOCK", 32),), failed="out of\nmemory")
    best = Candidate("id", (Value("BLOCK", 16),), 1.5, label="a label")
    entry = Entry(problem, (Value("source", "s", "digest"),), best, (best, failed), b"\x00\xff", "", 0.5, "toy 1.0")
    return Lookup(problem, entry.fingerprint, Outcome.MISS, "no entry", "test_é.py::test", "", entry, tuned=True)


def test_a_lookup_comes_back_as_it_was_sent() -> None:
    text = encode_lookup(lookup())

    assert decode_lookup(text) == lookup()
    assert "\n" not in text


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '{"problem": 1}', encode_lookup(lookup())[:-9], "[" * 10**5]
)
def test_a_broken_line_is_an_error_of_its_value(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode_lookup(text)


def test_facts_come_back_as_they_were_sent() -> None:
    facts = ProcessFacts("gw1", 3, ("note",), ("triton:k",), (("triton", "why"),), (("triton", "3.6"),), ("t:k",), 1.5)

    assert decode_facts(encode_facts(facts)) == facts


def test_what_crosses_to_xdist_is_what_execnet_can_send() -> None:
    execnet = pytest.importorskip("execnet")
    from pytest_autotune.run.workers import Task, receive_task, send_task

    workerinput: dict[str, object] = {}
    task = Task([("toy", "k", b"\x00")], ["toy:k"], "/folder", "host", "run", 4)
    send_task(workerinput, task)

    assert receive_task(execnet.loads(execnet.dumps(workerinput))) == task
    execnet.dumps([encode_lookup(lookup()), encode_facts(ProcessFacts())])


def test_a_line_that_was_cut_off_loses_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "gw0-1.jsonl"
    journal = Journal(path)
    journal.append(lookup("one"))
    journal.append(lookup("two"))
    path.write_bytes(path.read_bytes()[:-20])

    assert [decode_lookup(line).problem.kernel for line in whole_lines(path.read_bytes())] == ["one"]


def test_a_journal_appears_with_its_first_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "/cache.textproto")
    journal = folder.journal("gw0")
    assert folder.lines() == []

    journal.append(lookup())

    assert [(process, decode_lookup(line)) for process, line in folder.lines()] == [("gw0", lookup())]
    folder.close(written=True)


def test_a_run_that_lives_is_not_taken_over(tmp_path: Path) -> None:
    alive = RunFolder(tmp_path, "/cache.textproto")
    alive.journal("gw0").append(lookup())

    other = RunFolder(tmp_path, "/cache.textproto")

    assert other.taken_over() == []
    other.close(written=True)
    assert [decode_lookup(line) for _, line in alive.lines()] == [lookup()]


def test_a_run_that_could_not_write_is_taken_over_by_the_next_with_its_dump_path(tmp_path: Path) -> None:
    failed = RunFolder(tmp_path, "/cache.textproto")
    failed.journal("gw0").append(lookup())
    failed.close(written=False)

    assert RunFolder(tmp_path, "/other.textproto").taken_over() == []
    following = RunFolder(tmp_path, "/cache.textproto")
    assert following.taken_over() == [lookup()]
    following.close(written=True)
    assert RunFolder(tmp_path, "/cache.textproto").taken_over() == []


def test_what_a_worker_writes_while_its_run_ends_is_taken_over_by_the_next(tmp_path: Path) -> None:
    ending = RunFolder(tmp_path, "/cache.textproto")
    worker = ending.journal("gw0")
    worker.append(lookup("read"))
    assert len(ending.lines()) == 1
    worker.append(lookup("while the cache is written"))
    ending.close(written=True)
    worker.append(lookup("after the end"))

    following = RunFolder(tmp_path, "/cache.textproto")
    taken_over = {found.problem.kernel for found in following.taken_over()}
    following.close(written=True)

    assert taken_over == {"read", "while the cache is written", "after the end"}
    assert os.listdir(tmp_path) == []


def test_a_line_that_was_cut_off_does_not_stay_for_ever(tmp_path: Path) -> None:
    killed = RunFolder(tmp_path, "/cache.textproto")
    killed.journal("gw0").append(lookup())
    (journal,) = killed.path.glob("*.jsonl")
    journal.write_bytes(journal.read_bytes()[:-20])
    killed.close(written=False)

    following = RunFolder(tmp_path, "/cache.textproto")
    assert following.taken_over() == []
    following.close(written=True)

    assert os.listdir(tmp_path) == []


def test_nothing_is_left_behind_when_everything_was_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "/cache.textproto")
    folder.journal("main").append(lookup())
    assert len(folder.lines()) == 1
    folder.close(written=True)

    assert os.listdir(tmp_path) == []
