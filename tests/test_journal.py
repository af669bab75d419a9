"""Journals: what a process has tuned, on disk at once; and what crosses between processes."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_autotune.cache.model import Candidate, Device, Entry, Problem, Value, Versions
from pytest_autotune.run.encoding import ProcessFacts, decode_facts, decode_lookup, encode_facts, encode_lookup
from pytest_autotune.run.journal import Journal, RunFolder, lookups_in
from pytest_autotune.run.lookup import Lookup, Outcome


def lookup(kernel: str = "k") -> Lookup:
    key = (Value("M", 2**62), Value("flag", None), Value("scale", float("inf")), Value("dtype", "fp16", "dtype"))
    problem = Problem("toy", kernel, key, Device("GPU", "arch", 1))
    failed = Candidate(params=(Value("BLOCK", 32),), failed="out of\nmemory")
    best = Candidate("id", (Value("BLOCK", 16),), 1.5, label="a label")
    entry = Entry(
        problem, (Value("source", "s", "digest"),), best, (best, failed), b"\x00\xff", "", 0.5, Versions.of("toy 1.0")
    )
    return Lookup(problem, entry.fingerprint, Outcome.MISS, "no entry", "test_é.py::test", "", entry, tuned=True)


def test_a_lookup_comes_back_as_it_was_sent() -> None:
    text = encode_lookup(lookup())

    assert decode_lookup(text) == lookup()
    assert "\n" not in text


def test_a_lookup_is_the_same_line_wherever_it_goes_and_its_own_although_another_says_the_same() -> None:
    one, other = lookup().named(), lookup().named()

    assert encode_lookup(one) is encode_lookup(one)
    assert decode_lookup(encode_lookup(one)).id == one.id == one.named().id
    assert one == other
    assert one.id != other.id
    assert encode_lookup(replace(one, test="another")) != encode_lookup(one)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"problem": 1}', encode_lookup(lookup())[:-9], "[" * 10**5],
    ids=["empty", "open", "list", "null", "nothing", "problem", "torn", "deep"],  # a lookup's own id differs by process
)
def test_a_broken_line_is_an_error_of_its_value(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode_lookup(text)


def test_facts_come_back_as_they_were_sent() -> None:
    versions = (("triton", Versions.of("triton 3.6")),)
    facts = ProcessFacts("gw1", 3, ("note",), ("triton:k",), (("triton", "why"),), versions, ("t:k",), 1.5)

    assert decode_facts(encode_facts(facts)) == facts


def test_what_crosses_to_xdist_is_what_execnet_can_send() -> None:
    execnet = pytest.importorskip("execnet")
    from pytest_autotune.session.traffic import Task, receive_task, send_task

    workerinput: dict[str, object] = {}
    task = Task([("toy", "k", b"\x00")], ["toy:k"], "/folder", "host", "run", "/shared", 4)
    send_task(workerinput, task)

    assert receive_task(execnet.loads(execnet.dumps(workerinput))) == task
    execnet.dumps([encode_lookup(lookup()), encode_facts(ProcessFacts())])


def test_a_line_that_was_cut_off_loses_only_itself(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "gw0")
    journal.append(lookup("one"))
    journal.append(lookup("two"))
    (path,) = tmp_path.glob("gw0-*.jsonl")
    path.write_bytes(path.read_bytes()[:-20])

    assert [found.problem.kernel for found in lookups_in(path.read_bytes())] == ["one"]


def test_a_journal_appears_with_its_first_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "/cache.textproto")
    journal = folder.journal("gw0")
    assert folder.lookups() == []

    journal.append(lookup())

    assert folder.lookups() == [("gw0", lookup())]
    folder.close(written=True)


def test_a_run_that_lives_is_not_taken_over(tmp_path: Path) -> None:
    alive = RunFolder(tmp_path, "/cache.textproto")
    alive.journal("gw0").append(lookup())

    other = RunFolder(tmp_path, "/cache.textproto")

    assert other.taken_over() == []
    other.close(written=True)
    assert [found for _, found in alive.lookups()] == [lookup()]


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
    assert len(ending.lookups()) == 1
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


def kernels(lookups: list[Lookup]) -> list[str]:
    return sorted(found.problem.kernel for found in lookups)


def test_a_torn_record_does_not_swallow_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up within a record takes a part of it, and says so at the next byte."""
    folder = RunFolder(tmp_path, "/cache.textproto")
    journal = folder.journal("gw0")
    journal.append(lookup("before"))
    write, room = os.write, [20]

    def until_full(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, data[: room[0]])
        room[0] -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", until_full)
        with pytest.raises(OSError, match="No space left"):
            journal.append(lookup("torn"))
    journal.append(lookup("after"))

    assert [found.problem.kernel for _, found in folder.lookups()] == ["before", "after"]
    folder.close(written=True)


def test_a_record_that_the_system_takes_in_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path, "/cache.textproto")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:100]))

    folder.journal("gw0").append(lookup())

    assert [found for _, found in folder.lookups()] == [lookup()]
    folder.close(written=True)


def test_a_link_among_the_folders_of_runs_is_neither_taken_over_nor_removed(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for name in ("module.py", "gw0-1.jsonl", "lock", "gw0-1.jsonl.read"):
        (source / name).write_text(encode_lookup(lookup("foreign")) + "\n")
    killed = RunFolder(tmp_path / "autotune", "/cache.textproto")
    killed.journal("gw0").append(lookup("ours"))
    killed.close(written=False)
    (killed.path.parent / "1-deadbeef").symlink_to(source)

    following = RunFolder(tmp_path / "autotune", "/cache.textproto")
    assert kernels(following.taken_over()) == ["ours"]
    following.close(written=True)

    assert sorted(os.listdir(source)) == ["gw0-1.jsonl", "gw0-1.jsonl.read", "lock", "module.py"]


def test_a_link_in_place_of_the_folder_of_all_runs_is_not_followed(tmp_path: Path) -> None:
    runs = RunFolder(tmp_path, "/cache.textproto")
    runs.close(written=True)
    (tmp_path / "elsewhere").mkdir()
    runs.path.parent.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OSError, match=runs.path.parent.name):
        RunFolder(tmp_path, "/cache.textproto")

    assert os.listdir(tmp_path / "elsewhere") == []


def test_what_is_no_journal_of_ours_is_neither_read_nor_removed(tmp_path: Path) -> None:
    killed = RunFolder(tmp_path / "autotune", "/cache.textproto")
    killed.close(written=False)
    killed.path.mkdir(parents=True)
    (tmp_path / "journal").write_text(encode_lookup(lookup("linked")) + "\n")
    (killed.path / "gw0-1.jsonl").symlink_to(tmp_path / "journal")
    (killed.path / "notes.txt").write_text("precious")
    os.mkfifo(killed.path / "gw0-2.jsonl")

    following = RunFolder(tmp_path / "autotune", "/cache.textproto")
    assert following.taken_over() == []
    following.close(written=True)

    assert sorted(os.listdir(killed.path))[0] == "gw0-1.jsonl"
    assert (killed.path / "notes.txt").read_text() == "precious"
    assert (tmp_path / "journal").exists()


def test_a_folder_that_another_user_has_put_there_is_not_taken_over(tmp_path: Path, monkeypatch) -> None:
    planted = RunFolder(tmp_path, "/cache.textproto")
    planted.journal("gw0").append(lookup("planted"))
    planted.close(written=False)
    owner = planted.path.stat().st_ino
    fstat = os.fstat

    def of_another_user(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        return found if found.st_ino != owner else os.stat_result([*found[:4], found.st_uid + 1, *found[5:]])

    monkeypatch.setattr(os, "fstat", of_another_user)
    following = RunFolder(tmp_path, "/cache.textproto")

    assert following.taken_over() == []
    following.close(written=True)
    assert planted.path.exists()


def test_a_journal_that_a_link_stands_for_is_not_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "autotune", "/cache.textproto")
    (tmp_path / "precious").write_text("precious")
    (folder.path / f"gw0-{os.getpid()}.jsonl").symlink_to(tmp_path / "precious")

    with pytest.raises(OSError, match="gw0"):
        folder.journal("gw0").append(lookup())

    assert (tmp_path / "precious").read_text() == "precious"
    folder.close(written=True)


def test_projects_with_one_dump_path_do_not_take_each_other_over(tmp_path: Path) -> None:
    one = RunFolder(tmp_path, "/cache.textproto", "one")
    one.journal("gw0").append(lookup())
    one.close(written=False)

    other = RunFolder(tmp_path, "/cache.textproto", "other")
    assert other.taken_over() == []
    other.close(written=True)

    again = RunFolder(tmp_path, "/cache.textproto", "one")
    assert again.taken_over() == [lookup()]
    again.close(written=True)


def test_a_forked_child_writes_a_journal_of_its_own_and_keeps_no_lock(tmp_path: Path) -> None:
    killed = RunFolder(tmp_path, "/cache.textproto")
    journal = killed.journal("gw0")
    journal.append(lookup("parent"))
    told, tell = os.pipe()
    ends, end = os.pipe()
    child = os.fork()
    if child == 0:
        journal.append(lookup("child"))
        os.write(tell, b"1")
        os.close(end)
        os.read(ends, 1)  # it lives on when its parent is gone
        os._exit(0)
    assert os.read(told, 1) == b"1"
    killed.close(written=False)

    following = RunFolder(tmp_path, "/cache.textproto")
    assert kernels(following.taken_over()) == ["child", "parent"]
    following.close(written=True)
    for descriptor in (end, ends, told, tell):
        os.close(descriptor)
    os.waitpid(child, 0)


def test_nothing_is_left_behind_when_everything_was_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "/cache.textproto")
    folder.journal("main").append(lookup())
    assert len(folder.lookups()) == 1
    folder.close(written=True)

    assert os.listdir(tmp_path) == []
