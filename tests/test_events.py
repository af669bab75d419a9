"""The log of a run: events as lines, what a kill leaves of them, and what the next run finds."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_autotune.cache.model import Candidate, Device, Entry, Problem, Value, Versions
from pytest_autotune.run.collected import END, Collected, collect
from pytest_autotune.run.lookup import Lookup, Outcome, TunedEntry
from pytest_autotune.workers.events import Event, Log, OtherWorkers, RunFolder


def lookup(kernel: str = "k") -> Lookup:
    key = (Value("M", 2**62), Value("flag", None), Value("scale", float("inf")), Value("dtype", "fp16", "dtype"))
    problem = Problem("toy", kernel, key, Device("GPU", "arch", 1))
    failed = Candidate(params=(Value("BLOCK", 32),), failed="out of\nmemory")
    best = Candidate("id", (Value("BLOCK", 16),), 1.5, label="a label")
    entry = Entry(
        problem,
        (Value("source", "s", "digest"),),
        best,
        (best, failed),
        b"\x00\xff",
        "",
        0.5,
        Versions.parse("toy 1.0"),
    )
    return Lookup(entry.identity, Outcome.MISS, "no entry", "test_é.py::test", result=TunedEntry(entry))


def asked_in(folder: RunFolder) -> list[tuple[str, Lookup]]:
    return [(lookup.process, replace(lookup, process="")) for lookup in collect(folder.collect()[0]).lookups]


def recovered_in(folder: RunFolder) -> list[Lookup]:
    return list(collect((), folder.recovered[0]).recovered_lookups)


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., RunFolder]:
    def make(purpose: str = "/cache.textproto", bases: Sequence[Path] = (tmp_path,)) -> RunFolder:
        folder = RunFolder(bases, purpose)
        request.addfinalizer(lambda: folder.close(written=False))
        return folder

    return make


@pytest.mark.parametrize("kernel", ["renamed", "k"], ids=["another kernel", "another order of the key"])
def test_a_log_line_keeps_a_problem_that_differs_from_its_entry(kernel: str) -> None:
    entry = lookup().result.entry
    problem = replace(entry.problem, kernel=kernel, key=entry.problem.key[::-1])

    decoded = Event.decode(Event("asked", entry.identity._replace(problem=problem), entry).encode())

    assert decoded.identity.problem == problem
    assert decoded.identity.problem.key == problem.key
    assert decoded.entry == entry
    assert decoded.entry.problem.key == entry.problem.key


def test_a_cache_lookup_in_the_tuning_log_is_read_back_unchanged() -> None:
    line = lookup().to_event().encode()

    assert Lookup.from_event(Event.decode(line)) == lookup()
    assert "\n" not in line


def test_a_valid_closing_line_is_read_and_an_invalid_one_skipped() -> None:
    data = {
        "notes": ["note"], "untracked": ["triton:k"], "imported_kernels": ["t:k"], "unavailable": ["no GPU"],
        "hypothesis_tests": ["t::t"], "disabled_tests": [],
        "missing_caches": [],
        "ignored_test_files": [], "unhooked": {"triton": "why"}, "missing_packages": {},
        "versions": {"triton": "triton 3.6"}, "deselected": 3,
        "has_replaced_paths": True,
    }  # fmt: skip
    ends = [("gw1", Event.decode(Event(END, data=end_data).encode())) for end_data in (data, {"notes": 5})]

    collected = collect(ends)

    assert (collected.notes, collected.untracked, collected.imported_kernels) == (("note",), ("triton:k",), ("t:k",))
    assert (collected.unhooked, collected.versions) == ((("triton", "why"),), {"triton": Versions.parse("triton 3.6")})
    assert (collected.hypothesis_tests, collected.deselected_count) == (("t::t",), 3)
    assert collected.has_replaced_paths


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "null", "{}", '{"id": 1}', lookup().to_event().encode()[:-9], "[" * 10**5],
    ids=["empty", "open", "list", "null", "nothing", "no kind", "torn", "deep"],
)
def test_decoding_a_broken_log_line_raises_value_error(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Event.decode(line)


def test_lines_of_a_tuning_log_with_invalid_data_are_skipped() -> None:
    identity = lookup().identity
    wrong = [
        Event("tuned", identity, lookup().entry, data={"outcome": "odd"}),
        Event("asked", identity, lookup().entry, data={"unknown": 1}),
        Event("asked", identity, lookup().entry, data={"verdict": 3}),
        Event("end", data={"versions": 1}),
    ]

    assert collect(("gw0", event) for event in wrong) == Collected()


def test_a_log_with_a_cut_off_last_line_keeps_its_other_lines(run: Callable[..., RunFolder]) -> None:
    folder = run()
    log = folder.log("gw0")
    log.append(lookup("one").to_event())
    log.append(lookup("two").to_event())
    (path,) = folder.path.glob("gw0-*.jsonl")
    path.write_bytes(path.read_bytes()[:-20])

    assert [asked_lookup.problem.kernel for _, asked_lookup in asked_in(folder)] == ["one"]


def test_damaged_log_lines_are_counted_and_the_others_are_read(run: Callable[..., RunFolder]) -> None:
    folder = run()
    folder.log("gw0").append(lookup("one").to_event())
    (path,) = folder.path.glob("*.jsonl")
    path.write_bytes(b'{"kid": 3}\n\xff\n' + path.read_bytes())

    events, damaged = folder.collect()

    assert ([event.test for _, event in events], damaged) == (["test_é.py::test"], 2)


def test_tunings_of_a_run_that_still_lives_are_not_recovered(run: Callable[..., RunFolder]) -> None:
    alive = run()
    alive.log("gw0").append(lookup().to_event())

    other = run()

    assert recovered_in(other) == []
    other.close(written=True)
    assert asked_in(alive) == [("gw0", lookup())]


def test_runs_at_the_same_time_have_a_log_folder_each(run: Callable[..., RunFolder]) -> None:
    first, second = run(), run()

    assert first.path is not None
    assert second.path is not None
    assert first.path != second.path


def test_a_log_line_names_the_problem_of_its_entry_only_once() -> None:
    line = lookup().to_event().encode()

    assert line.count(f'"{lookup().problem.kernel}"') == 1


def test_tunings_of_a_run_that_wrote_no_cache_are_recovered_once(run: Callable[..., RunFolder]) -> None:
    failed = run()
    failed.log("gw0").append(lookup().to_event())
    failed.close(written=False)

    assert recovered_in(run("/other.textproto")) == []
    following = run()
    assert recovered_in(following) == [lookup()]
    following.close(written=True)
    assert recovered_in(run()) == []


def test_the_next_run_finds_a_log_outside_the_usual_folder(tmp_path: Path, run: Callable[..., RunFolder]) -> None:
    bases = (tmp_path / "cache", tmp_path / "elsewhere")
    bases[0].touch()  # no folder can be made there
    failed = run(bases=bases)
    failed.log("gw0").append(lookup().to_event())
    failed.close(written=False)
    bases[0].unlink()

    following = run(bases=bases)

    assert recovered_in(following) == [lookup()]
    assert following.path.is_relative_to(bases[0])
    following.close(written=True)
    assert recovered_in(run(bases=bases)) == []


def test_a_tuning_logged_while_the_run_ends_is_recovered_later(run: Callable[..., RunFolder]) -> None:
    ending = run()
    worker = ending.log("gw0")
    worker.append(lookup("read").to_event())
    assert len(asked_in(ending)) == 1
    worker.append(lookup("late").to_event())
    ending.close(written=True)

    assert "late" in [recovered.problem.kernel for recovered in recovered_in(run())]


def test_the_tuning_logs_of_a_run_are_removed_after_its_dump(tmp_path: Path, run: Callable[..., RunFolder]) -> None:
    folder = run()
    folder.log("gw0").append(lookup().to_event())
    folder.collect()

    folder.close(written=True)

    assert not folder.path.exists()


def test_a_run_ends_normally_if_a_test_closed_its_lock_file(run: Callable[..., RunFolder]) -> None:
    folder = run()
    lock = os.path.realpath(folder.path / "lock")
    (descriptor,) = [
        int(descriptor_link.name)
        for descriptor_link in Path("/proc/self/fd").iterdir()
        if os.path.realpath(descriptor_link) == lock
    ]
    os.close(descriptor)

    folder.close(written=True)

    assert not folder.path.exists()


def test_a_full_disk_loses_only_the_line_being_logged(run: Callable[..., RunFolder]) -> None:
    folder = run()
    log = folder.log("gw0")
    log.append(lookup("before").to_event())
    (file,) = folder.path.glob("*.jsonl")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 20, limits[1]))  # it takes a part of the line
    try:
        log.append(lookup("torn").to_event())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.append(lookup("after").to_event())

    assert [asked_lookup.problem.kernel for _, asked_lookup in asked_in(folder)] == ["before", "after"]
    assert log.error == "File too large"


def test_a_line_in_a_log_and_in_a_workers_message_counts_once(run: Callable[..., RunFolder]) -> None:
    folder = run()
    logs = {name: folder.log(name) for name in ("gw0", "gw1")}
    for name, log in logs.items():
        log.append(lookup(name).to_event())
    (file,) = folder.path.glob("gw0-*.jsonl")
    file.unlink()

    events, _ = folder.collect({log.name: log.lines for log in logs.values()})

    assert len(events) == 2
    assert folder.keep() == ([], "")
    folder.close(written=False)
    assert len(recovered_in(run())) == 2


def test_a_test_that_mocks_os_getpid_loses_no_tuning_log_line(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(None, "main")
    log.append(lookup("before").to_event())
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        log.append(lookup("meanwhile").to_event())
    log.append(lookup("after").to_event())

    assert len(log.lines) == 3


def test_a_tuning_log_without_a_folder_keeps_its_lines_in_memory(tmp_path: Path) -> None:
    log = Log(None, "gw0")

    assert not log.append(lookup().to_event())
    assert log.lines == [lookup().to_event().encode()]


def test_a_worker_finds_only_finished_tunings_of_other_workers(run: Callable[..., RunFolder]) -> None:
    folder = run()
    other_workers = OtherWorkers(folder.path, "gw0")
    folder.log("gw0").append(lookup("own").to_event())
    folder.log("gw1").append(Lookup(lookup("asked").identity, outcome=Outcome.MISS).to_event())
    folder.log("gw1").append(lookup("tuned").to_event())
    assert other_workers.find(lookup("tuned").identity.digest) == lookup("tuned").to_event()
    folder.log("gw2").append(lookup("later").to_event())

    assert other_workers.find(lookup("later").identity.digest) == lookup("later").to_event()
    assert other_workers.find(lookup("asked").identity.digest) is None
    assert other_workers.find(lookup("own").identity.digest) is None


def test_a_worker_does_not_take_a_verify_result_for_a_tuning(run: Callable[..., RunFolder]) -> None:
    folder, raced = run(), Event("raced", lookup().identity, claim="verify-1")
    folder.log("gw1").append(raced)

    other_workers = OtherWorkers(folder.path, "gw0")

    assert other_workers.find(lookup().identity.digest) is None
    assert other_workers.find("verify-1") == raced
    assert asked_in(folder) == []


def test_a_killed_run_is_recovered_while_its_child_lives(run: Callable[..., RunFolder]) -> None:
    killed = run()
    log = killed.log("gw0")
    log.append(lookup("parent").to_event())
    read, write = os.pipe()

    child = os.fork()
    if child == 0:
        log.append(lookup("child").to_event())
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    while sum(file.read_bytes().count(b"}\n") for file in killed.path.glob("*.jsonl")) < 2:
        pass
    killed.close(written=False)  # as the system does it for a parent that was killed

    assert sorted(recovered.problem.kernel for recovered in recovered_in(run())) == ["child", "parent"]
    os.close(write)
    os.waitpid(child, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_logs_of_another_user_are_neither_recovered_nor_removed(run: Callable[..., RunFolder]) -> None:
    other_run = run()
    other_run.log("gw0").append(lookup("theirs").to_event())
    other_run.close(written=False)
    os.chown(other_run.path, 12345, 12345)

    following = run()

    assert recovered_in(following) == []
    following.close(written=True)
    assert list(other_run.path.glob("*.jsonl"))


@pytest.mark.parametrize("place", ["behind a link", "in the folder"])
def test_cleaning_up_logs_keeps_all_files_that_are_no_logs(
    tmp_path: Path, run: Callable[..., RunFolder], place: str
) -> None:
    runs = run().path.parent
    if place == "behind a link":
        runs.rename(tmp_path / "elsewhere")
        runs.symlink_to("elsewhere")
    name = "12-0123abcd" if place == "behind a link" else "data"
    (runs / name).mkdir()
    (runs / name / "precious.jsonl").write_text("{}\n")

    run().close(written=True)

    assert (runs / name / "precious.jsonl").read_text() == "{}\n"
    assert os.listdir(runs / name) == ["precious.jsonl"]
