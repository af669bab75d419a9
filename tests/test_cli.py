"""The command ``pytest-autotune``: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_autotune import cli
from pytest_autotune.cache import stores
from pytest_autotune.cache.codec import Format
from pytest_autotune.cache.digest_parts import digest_of_parts
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Scalar, Value, Versions
from pytest_autotune.cache.stores.store import Store
from pytest_autotune.cli.output import find_first_difference
from pytest_autotune.report.json_report import build_unfinished_mapping, to_json
from pytest_autotune.run.ci_run import CiRun
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import Lookup, Outcome, UsedEntry
from pytest_autotune.run.result import RunResult
from tests.reasons import describe_changed
from tests.stores import update_store

H200 = Device("NVIDIA H200", "sm_90", 132)
A100 = Device("NVIDIA A100", "sm_80", 108)

Run = Callable[..., tuple[int, list[str], str]]


def entry(
    m: Scalar = 64,
    block: int = 32,
    time_us: float = 10.0,
    source: str = "s",
    device: Device = H200,
    kernel: str = "lib.add",
    tuner: str = "triton",
) -> Entry:
    return Entry(
        Problem(tuner, kernel, (Value("M", m), Value("a.dtype", "fp16", "dtype")), device),
        (Value("source", source, "digest"),),
        Candidate(params=(Value("BLOCK", block),), time_us=time_us),
        tuning_seconds=1.5,
        versions=Versions.parse("triton 3.7.1"),
    )


def template(*labels: str) -> Entry:
    candidates = tuple(Candidate(f"digest{i}", time_us=10.0 - i, label=label) for i, label in enumerate(labels))
    return Entry(Problem("inductor.template", "mm", (), H200), candidates=candidates)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command in a folder; returns exit status, the lines of standard output, and standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, list[str], str]:
        status = cli.main(arguments)
        captured = capsys.readouterr()
        return status, captured.out.splitlines(), captured.err

    return run


def write(path: str, *entries: Entry) -> None:
    update_store(stores.open_store(path), lambda now: Cache(entries))


def entries_of(path: str) -> set[Entry]:
    return set(stores.read_cache(path).entries)


# show


def test_show_prints_a_table_for_each_kernel_and_device(run: Run) -> None:
    """A table begins with the smallest sizes. Key values that are equal in all rows stand in its title."""
    write("a.pb", entry(1024, 128, 12.25), entry(64), entry(64, device=A100), entry(64, kernel="lib.mul"))

    assert run("show", "a.pb") == (
        0,
        [
            "triton:lib.add on NVIDIA A100 (sm_80, 108 multiprocessors)",
            "   M  a.dtype  choice     time  tuned in",
            "  64  fp16     BLOCK=32  10 us     1.5 s",
            "",
            "triton:lib.add on NVIDIA H200 (sm_90, 132 multiprocessors), a.dtype=fp16",
            "     M  choice         time  tuned in",
            "    64  BLOCK=32      10 us     1.5 s",
            "  1024  BLOCK=128  12.25 us     1.5 s",
            "",
            "triton:lib.mul on NVIDIA H200 (sm_90, 132 multiprocessors)",
            "   M  a.dtype  choice     time  tuned in",
            "  64  fp16     BLOCK=32  10 us     1.5 s",
            "",
            "4 entries, 2 kernels, 2 devices, 6 s of tuning",
        ],
        "",
    )


@pytest.mark.parametrize(
    ("options", "kernels"),
    [
        (["--kernel=add"], {"lib.add"}),
        (["--kernel=triton:lib.*"], {"lib.add", "lib.mul"}),
        (["--kernel=lib.m?l"], {"lib.mul"}),
        (["--kernel=m"], {"lib.mul", "mm"}),
        (["--device=a100"], {"lib.mul"}),
        (["--device=NVIDIA H*"], {"lib.add", "mm"}),
    ],
)
def test_show_options_kernel_and_device_list_only_matching_rows(
    run: Run, options: Sequence[str], kernels: set[str]
) -> None:
    write("a.textproto", entry(), entry(kernel="lib.mul", device=A100), template("ExternKernel mm"))

    status, lines, _ = run("show", "a.textproto", *options, "--summary")

    assert status == 0
    assert {re.split("[ :]+", line)[2] for line in lines[2:-2]} == kernels


def test_show_names_an_inductor_template_without_its_hash(run: Run) -> None:
    write("a.textproto", template("ExternKernel mm", "TritonTemplate triton_mm: BLOCK_M=64"))

    lines = run("show", "a.textproto")[1]

    assert lines[2] == "  TritonTemplate triton_mm: BLOCK_M=64  9 us       0 s"
    assert "digest" not in "\n".join(lines)


def test_show_adds_source_hashes_if_a_problem_has_two_entries(run: Run) -> None:
    write("a.textproto", entry(source="1"), entry(source="2", block=64))

    assert [line.split() for line in run("show", "a.textproto")[1][2:4]] == [
        ["BLOCK=32", "10", "us", "1.5", "s", "source=1"],
        ["BLOCK=64", "10", "us", "1.5", "s", "source=2"],
    ]


def test_show_option_summary_has_a_row_per_kernel_and_device(run: Run) -> None:
    write("a.textproto", entry(1), entry(2), entry(device=A100))

    rows = [re.sub(" {2,}", " | ", line) for line in run("show", "--summary", "a.textproto")[1]]

    assert rows[3] == " | triton:lib.add | nvidia-h200-sm90-132 | 2 | 3 s"


def test_show_lists_existing_kernels_or_devices_if_none_matches(run: Run) -> None:
    write("a.textproto", entry(1), entry(2))

    assert run("show", "a.textproto", "--kernel=matmul")[0] == 1
    assert "the cache has: triton:lib.add" in run("show", "a.textproto", "--kernel=matmul")[2]
    assert "the cache has: nvidia-h200-sm90-132" in run("show", "a.textproto", "--device=A100")[2]


@pytest.mark.parametrize("command", [["show"], ["git-textconv"], ["diff", "empty.textproto"]])
def test_commands_escape_control_characters_of_a_cache_file(run: Run, command: list[str]) -> None:
    hostile = "\x1b]0;owned\x07\n::error::\u202e\x7f"
    device = Device(hostile, hostile, 1)
    bad = Entry(
        Problem(hostile, hostile, (Value(hostile, hostile, hostile),), device),
        (Value(hostile, hostile),),
        Candidate(hostile, (Value(hostile, hostile),), 1.0, hostile, hostile),
    )
    write("empty.textproto")
    write("bad.textproto", bad)

    status, lines, _ = run(*command, "bad.textproto")

    assert status == 0
    text = "\n".join(lines)
    assert all(char.isprintable() or char == "\n" for char in text)


# diff


def test_diff_prints_counts_and_a_row_for_each_changed_entry(run: Run) -> None:
    write("old.pb", entry(1), entry(2), entry(3), entry(device=A100))
    write("new.textproto", entry(1, time_us=11.0), entry(2, block=64), entry(3, source="t"), entry(4))

    status, lines, _ = run("diff", "old.pb", "new.textproto")

    assert status == 0
    assert [re.sub(" {2,}", " | ", line) for line in lines] == [
        "1 choice changed; 1 updated, same choice; 1 added; 1 measured again, same choice; 1 on NVIDIA A100",
        "",
        "NVIDIA H200 (sm_90, 132 multiprocessors)",
        " | choice changed | triton:lib.add (M=2, a.dtype=fp16) | BLOCK 32 -> 64 | 10 us",
        f" | updated, same choice | triton:lib.add (M=3, a.dtype=fp16) | {describe_changed('source')} | 10 us",
        " | added | triton:lib.add (M=4, a.dtype=fp16) | BLOCK=32 | 10 us",
        " | measured again, same choice | triton:lib.add (M=1, a.dtype=fp16) | 10 us -> 11 us",
        "",
        "NVIDIA A100 (sm_80, 108 multiprocessors)",
        " | removed | triton:lib.add (M=64, a.dtype=fp16) | BLOCK=32 | 10 us",
    ]


def test_diff_command_names_the_functions_whose_source_changed(run: Run) -> None:
    for file, source, relu in (("old.textproto", "s", "a"), ("new.textproto", "t", "b")):
        write(
            file,
            replace(entry(source=source), digests=(digest_of_parts(source, {"relu": relu * 4, "helper": "c" * 4}),)),
        )

    assert "(relu)" in "\n".join(run("diff", "old.textproto", "new.textproto")[1])


def test_diff_with_option_exit_code_exits_with_1_if_files_differ(run: Run) -> None:
    write("old.textproto", entry())
    write("new.textproto", entry(block=64))

    assert run("diff", "old.textproto", "new.textproto")[0] == 0
    assert run("diff", "--exit-code", "old.textproto", "new.textproto")[0] == 1
    assert run("diff", "--exit-code", "old.textproto", "old.textproto")[0] == 0


def test_diff_gives_one_row_to_entries_changed_only_in_version(run: Run) -> None:
    of = {
        version: [replace(entry(m), versions=Versions.parse(f"triton {version}")) for m in range(58)]
        for version in "34"
    }
    write("old.textproto", *of["3"])
    write("new.textproto", *of["4"])

    lines = run("diff", "old.textproto", "new.textproto")[1]

    assert [re.sub(" {2,}", " | ", line) for line in lines] == [
        "58 other versions only",
        "",
        "NVIDIA H200 (sm_90, 132 multiprocessors)",
        " | other versions only | 58 entries | triton 3 -> triton 4",
    ]


def test_diff_command_in_markdown_shows_only_changed_parameters(run: Run) -> None:
    def wide(m: int, block: int) -> Entry:
        params = (Value("BLOCK", block), *(Value(f"a_param_with_a_long_name_{number}", 1) for number in range(9)))
        return replace(entry(m), choice=Candidate(params=params, time_us=72040.0))

    write("old.textproto", *(wide(m, 32) for m in (1024, 1, 128)), entry(7))
    write("new.textproto", *(wide(m, 64) for m in (1024, 1, 128)), wide(4096, 1), entry(7, source="2"))

    lines = run("diff", "--markdown", "old.textproto", "new.textproto")[1]

    assert lines[:2] == ["**`3 choices changed; 1 updated, same choice; 1 added`**", ""]
    assert "a.dtype=fp16" in lines[2]
    assert lines[2].endswith(" on `NVIDIA H200`")
    rows = [line for line in lines if "BLOCK" in line]
    assert ["BLOCK 32 -> 64" in row for row in rows] == [True, True, True, False]
    assert [re.findall(r"M=(\d+)", row)[0] for row in rows] == ["1", "128", "1024", "4096"]
    assert "72.04 ms" in rows[0]
    row = f"`updated, same choice` | `M=7` | `{describe_changed('source')}`"
    assert any(row in line for line in lines)
    assert max(map(len, lines)) < 120


# merge


def test_merge_writes_the_entries_of_all_inputs_and_devices(run: Run) -> None:
    write("1.pb", entry(1), entry(1, device=A100))
    write("2.textproto", entry(2))
    write("3/", entry(3))

    status, lines, _ = run("merge", "1.pb", "2.textproto", "3/", "-o", "out.yaml")

    assert (status, lines) == (0, ["4 entries of 3 caches written to out.yaml"])
    assert entries_of("out.yaml") == {entry(1), entry(1, device=A100), entry(2), entry(3)}


def test_merge_keeps_both_entries_if_their_kernel_sources_differ(run: Run) -> None:
    write("1.textproto", entry(source="old"), entry(1))
    write("2.textproto.new", entry(source="new"), entry(1))

    lines = run("merge", "1.textproto", "2.textproto.new", "-o", "out.textproto")[1]

    assert lines[1] == "2 entries kept that differ in code or candidates (the fingerprint) but have the same problem:"
    assert [line.rpartition(";")[2] for line in lines[2:4]] == [" source=new", " source=old"]
    assert "--base=FILE" in lines[4]

    write("base.textproto", entry(source="old"), entry(1))
    lines = run("merge", "1.textproto", "2.textproto.new", "-o", "out.textproto", "--base=base.textproto")[1]
    assert lines[2].endswith(": replaced by an entry with another fingerprint")

    write("base.textproto", entry(source="older"))
    lines = run("merge", "1.textproto", "2.textproto.new", "-o", "out.textproto", "--base=base.textproto")[1]
    assert lines[-1] == "  (pytest --autotune-update=prune drops the entries of code that is gone)"


def test_merge_counts_problems_that_only_the_old_output_had(run: Run) -> None:
    write("1.pb", entry(1, source="new"))
    write("out.textproto", entry(1), entry(1, device=A100))

    lines = run("merge", "1.pb", "-o", "out.textproto")[1]

    message = "; 1 problem of the old OUT removed, because no FILE has them (to keep them, name OUT as a FILE, too)"
    assert lines == [f"1 entry of 1 cache written to out.textproto{message}"]


def test_merge_lists_the_kept_and_dropped_entry_of_a_conflict(run: Run) -> None:
    write("1.textproto", entry(block=32, time_us=11.0))
    write("2.textproto", entry(block=64))

    lines = run("merge", "1.textproto", "2.textproto", "--output=out.textproto")[1]

    assert lines == [
        "1 entry of 2 caches written to out.textproto",
        "1 problem was tuned more than once; of each, one entry was kept:",
        "  triton:lib.add (M=64, a.dtype=fp16) on NVIDIA H200",
        "    kept 2.textproto: BLOCK=64, 10 us",
        "    dropped 1.textproto: BLOCK=32, 11 us",
    ]
    assert entries_of("out.textproto") == {entry(block=64)}


def test_merge_with_option_base_drops_entries_one_side_removed(run: Run) -> None:
    write("base.textproto", entry(1), entry(2))
    write("1.textproto", entry(1))
    write("2.textproto", entry(1), entry(2), entry(3))

    lines = run("merge", "1.textproto", "2.textproto", "--base=base.textproto", "-o", "base.textproto")[1]

    assert lines[1:] == [
        "1 entry left out, because one side removed or replaced them:",
        "  triton:lib.add (M=2, a.dtype=fp16) on NVIDIA H200",
    ]
    assert entries_of("base.textproto") == {entry(1), entry(3)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1.textproto", "1.textproto", "-o", "out.textproto"], "1.textproto: is named twice"),
        (["1.textproto", "gone.textproto", "-o", "out.textproto"], "gone.textproto: no such file"),
        (["1.textproto", "newer.textproto", "-o", "out.textproto"], "newer.textproto:6"),
        (["1.textproto", "newer.pb", "-o", "out.textproto"], 'newer.pb: the field "31" is unknown'),
        (["1.textproto", "-o", "other.json"], "other.json: has no format_version"),
        (["1.textproto"], "Missing option '-o'"),
    ],
)
def test_merge_command_refuses_arguments_that_would_lose_entries(run: Run, arguments: list[str], message: str) -> None:
    write("1.textproto", entry())
    Path("newer.textproto").write_text(Path("1.textproto").read_text().replace("  tuner:", '  newer: "x"\n  tuner:'))
    write("newer.pb", entry())
    with open("newer.pb", "ab") as stream:
        stream.write(b"\xfa\x01\x01x")
    Path("other.json").write_text("{}")

    status, lines, errors = run("merge", *arguments)

    assert (status, lines, errors.count("\n")) == (4, [], 1)
    assert message in errors
    assert not Path("out.textproto").exists()


# check


def test_check_command_accepts_dumped_caches_of_every_format(run: Run) -> None:
    for path in ("a.textproto", "a.pb", "a.yaml", "a.json", "a/"):
        write(path, entry(1), entry(2), template("ExternKernel mm"))

    paths = ["a.textproto", "a.pb", "a.yaml", "a.json", "a/"]

    assert run("check", *paths) == (0, ["5 caches, 15 entries: fine"], "")


def blocks(path: str) -> tuple[str, list[str]]:
    head, *entries = re.split(r"^(?=entries)", Path(path).read_text(), flags=re.MULTILINE)
    return head, entries


def test_check_reports_a_wrong_layout_and_check_fix_corrects_it(run: Run) -> None:
    """The message has the line where the file differs from the plugin's own form.

    With --fix the file is written again.
    """
    write("a.textproto", entry(1), entry(2), entry(3))
    before = Path("a.textproto").read_text()
    head, (first, second, third) = blocks("a.textproto")
    line = (head + first).count("\n") + 3
    problem = "is not sorted, not formatted as pytest-autotune does, or has duplicate entries"

    for other in (head + first + third + second, head + first + first.replace("10.0", "19.0") + second + third):
        Path("a.textproto").write_text(other)
        status, lines, _ = run("check", "a.textproto")

        assert status == 1
        assert re.match(rf"a.textproto:({line}|{line + 1}): {problem}", lines[0]), lines
        assert lines[-1] == "1 cache, 3 entries: 1 cache has defects"
        assert run("check", "--fix", "a.textproto")[0] == 0
        assert Path("a.textproto").read_text() == before


def test_check_with_option_fix_keeps_what_a_dump_just_added(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.textproto", entry(1), entry(2))
    head, (first, second) = blocks("a.textproto")
    Path("a.textproto").write_text(head + second + first)
    store_of = stores.open_store

    def after_a_dump(path: str) -> Store:
        update_store(store_of(path), lambda now: replace(now, entries=(*now.entries, entry(3))))
        return store_of(path)

    monkeypatch.setattr(stores, "open_store", after_a_dump)

    assert run("check", "--fix", "a.textproto")[0] == 0
    assert entries_of("a.textproto") == {entry(1), entry(2), entry(3)}


@pytest.mark.parametrize("output", ["a.textproto", "./a.textproto", "link.textproto"])
def test_merge_keeps_an_entry_that_a_dump_writes_meanwhile(
    run: Run, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    """The dump writes into the output after the merge has read its inputs, of which the output is one."""
    write("a.textproto", entry(1))
    write("b.textproto", entry(2))
    Path("link.textproto").symlink_to("a.textproto")
    store_of = stores.open_store

    def after_a_dump(path: str) -> Store:
        if path == output:
            update_store(store_of(path), lambda now: replace(now, entries=(*now.entries, entry(3))))
        return store_of(path)

    monkeypatch.setattr(stores, "open_store", after_a_dump)

    assert run("merge", "a.textproto", "b.textproto", "-o", output)[0] == 0
    assert entries_of("a.textproto") == {entry(1), entry(2), entry(3)}


def test_check_command_names_line_and_column_of_unreadable_text(run: Run) -> None:
    write("a.textproto", entry())
    text = Path("a.textproto").read_text()
    Path("a.textproto").write_text(text.replace("  kernel:", "  kernell:"))
    Path("c.textproto").write_text(text.replace('"lib.add"', '""'))
    Path("b.textproto").write_text(f"<<<<<<< ours\n{text}=======\n>>>>>>> theirs\n")

    status, lines, _ = run("check", "a.textproto", "b.textproto", "c.textproto", "gone.pb")

    assert status == 1
    assert lines[0].startswith('a.textproto:7: the field "kernell" is unknown')
    assert lines[1].startswith("b.textproto:1: the file has an unresolved merge conflict")
    assert "entries[0]: its kernel is empty (correct it, " in lines[2]
    assert lines[3].startswith("gone.pb: no such file")


def test_check_command_fails_for_an_entry_without_a_result(run: Run) -> None:
    write("a.textproto", entry(1), replace(entry(2), choice=None))

    status, lines, _ = run("check", "a.textproto")

    which = "triton:lib.add (M=2, a.dtype=fp16) on NVIDIA H200"
    problem = f"a.textproto: {which} has no result (a run with --autotune-update tunes it)"
    assert (status, lines) == (1, [problem, "1 cache, 2 entries: 1 cache has defects"])


# prune


def report(
    path: str,
    asked: Sequence[Entry],
    unused: Sequence[Entry] = (),
    incomplete: str = "",
    not_passed: str = "",
    disabled: Sequence[str] = (),
    loaded: Sequence[Entry] | None = None,
    loaded_path: str = "",
    test_cache: str = "",
) -> None:
    """Write the report of a run that was a hit on some entries.

    :param test_cache: the cache that the tests load for themselves.
    :param loaded: the entries that the run loaded; None for the entries of ``a.textproto``.
    """
    if loaded is None:
        loaded = list(entries_of("a.textproto"))
    lookups = []
    for entry in asked:
        lookups.append(Lookup(entry.identity, Outcome.HIT, result=UsedEntry(entry), test_cache=test_cache))
    collected = Collected(
        lookups=tuple(lookups),
        incomplete_reason=incomplete,
        not_passed_reason=not_passed,
        has_only_skips=not_passed.endswith("was skipped"),
        versions={"triton": Versions.parse("triton 3.7.1")},
        disabled_tests=tuple(disabled),
    )
    paths = ((loaded_path, len(loaded)),) if loaded_path else ()
    result = RunResult(collected=collected, loaded=paths, unused_entries=tuple(unused), initial_entries=tuple(loaded))
    Path(path).write_text(to_json(result))


def test_prune_drops_entries_that_none_of_the_reports_used(run: Run) -> None:
    write("a.textproto", entry(1), entry(2), entry(3), entry(True))
    report("1.json", [entry(3)], [entry(1), entry(2)])
    report("2.json", [entry(2), entry(3)], [entry(1)])

    both = ["prune", "a.textproto", "--unused-in=1.json", "--unused-in=2.json"]

    assert run(*both, "--dry-run", "--exit-code")[0] == 1
    assert run(*both, "--device=A100", "--exit-code")[:2] == (0, ["0 entries dropped, 4 kept"])
    status, lines, _ = run(*both)
    assert (status, lines) == (0, ["1 entry dropped, 3 kept", "  triton:lib.add (M=1, a.dtype=fp16) on NVIDIA H200"])
    assert entries_of("a.textproto") == {entry(2), entry(3), entry(True)}


def test_prune_keeps_entries_that_at_least_one_report_used(run: Run) -> None:
    """An entry of other code is dropped, unless one of the reports used it."""
    other = replace(entry(1), fingerprint=(Value("source", "of another branch", "digest"),))
    write("a.textproto", entry(1), other, entry(2))
    report("1.json", [entry(1)], [other, entry(2)])
    report("2.json", [other], [entry(1), entry(2)])

    assert run("prune", "a.textproto", "--unused-in=1.json", "--unused-in=2.json")[1][0] == "1 entry dropped, 2 kept"
    assert run("prune", "a.textproto", "--unused-in=1.json")[1][0] == "1 entry dropped, 1 kept"
    assert entries_of("a.textproto") == {entry(1)}


def test_prune_keeps_an_entry_that_only_looks_like_an_unused_one(run: Run) -> None:
    """In the words of a report, the text "fp16" and the dtype are equal, and so are devices with one id."""
    text = entry(1)
    text = replace(text, problem=replace(text.problem, key=(Value("M", 1), Value("a.dtype", "fp16"))))
    other_device = entry(1, device=replace(H200, arch="sm90"))
    assert other_device.problem.device.id == H200.id
    write("a.textproto", entry(1), text, other_device, entry(2))
    report("1.json", [entry(2)], [entry(1)])

    assert run("prune", "a.textproto", "--unused-in=1.json")[1][0] == "1 entry dropped, 3 kept"
    assert entries_of("a.textproto") == {text, other_device, entry(2)}


def test_prune_keeps_all_entries_if_a_marker_disabled_a_test(run: Run) -> None:
    """A test with ``enabled=False`` has no lookups, and may need an entry that another report calls unused."""
    write("a.textproto", entry(1), entry(2))
    report("1.json", [entry(1)], [entry(2)])
    report("2.json", [entry(1)], disabled=["t::b"])

    status, lines, _ = run("prune", "a.textproto", "--unused-in=1.json", "--unused-in=2.json", "--exit-code")

    assert (status, lines[0]) == (0, "0 entries dropped, 2 kept")
    assert (
        lines[1] == "2.json: t::b turns the plugin off by its marker "
        "autotune_cache(enabled=False), so it may need any entry, and no entry was dropped"
    )
    assert entries_of("a.textproto") == {entry(1), entry(2)}


def test_prune_keeps_the_entries_of_gpus_without_a_report(run: Run) -> None:
    """With a report of each device, prune drops the unused entries of all of them."""
    write("a.textproto", entry(1), entry(1, device=A100), entry(2, device=A100))
    report("h200.json", [entry(2)], [entry(1)])
    report("a100.json", [entry(2, device=A100)], [entry(1, device=A100)])

    assert run("prune", "a.textproto", "--unused-in=h200.json")[1][0] == "1 entry dropped, 2 kept"
    assert run("prune", "a.textproto", "--unused-in=h200.json", "--unused-in=a100.json")[1][0].startswith("1 entry d")
    assert entries_of("a.textproto") == {entry(2, device=A100)}


def test_prune_command_refuses_the_report_of_an_incomplete_run(run: Run) -> None:
    write("a.textproto", entry(1))
    report("1.json", [entry(2)], incomplete="2 tests were skipped")

    status, _, errors = run("prune", "a.textproto", "--unused-in=1.json")

    assert status == 4
    assert "1.json: the run was not complete (2 tests were skipped)" in errors
    assert entries_of("a.textproto") == {entry(1)}


def test_prune_with_option_together_drops_entries_no_shard_used(run: Run) -> None:
    """With --together, prune drops an entry that no shard used. It keeps the kernels that no shard looked up."""
    other = entry(kernel="lib.mul")
    write("a.textproto", entry(1), entry(2), entry(3), other, entry(3, device=A100))
    report("1.json", [entry(1)], incomplete="a selection of tests")
    report("2.json", [entry(2)], incomplete="a selection of tests")

    arguments = ["prune", "a.textproto", "--unused-in=1.json", "--unused-in=2.json", "--together"]

    assert run(*arguments, "--dry-run")[1][0] == "1 entry would be dropped, 4 kept"
    assert len(entries_of("a.textproto")) == 5
    assert run(*arguments)[1][0] == "1 entry dropped, 4 kept"
    assert entries_of("a.textproto") == {entry(1), entry(2), other, entry(3, device=A100)}


@pytest.mark.parametrize("not_passed", ["t::a was skipped", "t::a failed"])
def test_prune_keeps_all_entries_if_a_test_did_not_pass(run: Run, not_passed: str) -> None:
    """A shard that lost its GPU skips its tests, which need entries that no other shard asks for."""
    write("a.textproto", entry(1), entry(2))
    report("1.json", [entry(1)], incomplete="-k selects tests")
    report("2.json", [], incomplete="-k selects tests", not_passed=not_passed)
    arguments = ["prune", "a.textproto", "--unused-in=1.json", "--unused-in=2.json", "--together", "--exit-code"]

    status, lines, _ = run(*arguments)

    assert (status, lines[0]) == (0, "0 entries dropped, 2 kept")
    assert lines[1].startswith(f"2.json: {not_passed}, so its tests may need any entry")
    is_allowed = not_passed.endswith("skipped")
    assert run(*arguments, "--allow-skipped")[0] == int(is_allowed)
    assert entries_of("a.textproto") == ({entry(1)} if is_allowed else {entry(1), entry(2)})


def test_prune_keeps_an_entry_that_the_reported_run_did_not_load(run: Run) -> None:
    """Such an entry is newer than the shard's report. A shard that loaded another cache does not count."""
    write("a.textproto", entry(1), entry(2), entry(3))
    report("1.json", [entry(1)], incomplete="-k selects tests", loaded=[entry(1), entry(2)])
    report("2.json", [entry(1)], incomplete="-k selects tests")
    other = entry(9, kernel="lib.mul")
    report("3.json", [other], incomplete="-k selects tests", loaded=[other])
    arguments = ["prune", "a.textproto", *[f"--unused-in={number}.json" for number in (1, 2, 3)], "--together"]

    assert run(*arguments)[1] == [
        "1 entry dropped, 2 kept",
        "  triton:lib.add (M=2, a.dtype=fp16) on NVIDIA H200",
        "1 unused entry stays: the tests of 1.json may use this cache, but did not all load this entry (run them again "
        "with --autotune-load=a.textproto, or leave out a report whose tests need no entry of this cache)",
    ]
    assert entries_of("a.textproto") == {entry(1), entry(3)}
    report("3.json", [entry(1, source="old")], incomplete="-k selects tests", loaded=[entry(1, source="old")])
    report("1.json", [entry(1)], incomplete="-k selects tests")
    assert run(*arguments)[1][0] == "0 entries dropped, 2 kept", "no entry of this report is in the cache any more"
    report("3.json", [other], incomplete="-k selects tests", loaded=[other])
    assert run(*arguments)[1][0] == "1 entry dropped, 1 kept"


@pytest.mark.parametrize(
    ("loaded_path", "asks_for_kernel", "dropped"),
    [
        ("b/c.textproto", False, 1),
        ("b/c.textproto", True, 0),
        ("/ci/a/c.textproto", False, 0),
        ("c.textproto", False, 0),
        ("main.textproto", False, 1),
        ("main.textproto", True, 0),
    ],
)
def test_prune_ignores_only_reports_of_runs_not_using_the_file(
    run: Run, loaded_path: str, asks_for_kernel: bool, dropped: int
) -> None:
    """A shard that asks for a kernel of the file may have loaded the file for a single test."""
    Path("a").mkdir()
    write("a/c.textproto", entry(1), entry(2))
    other = entry(9, kernel="lib.mul")
    asked = [other, entry(1)] if asks_for_kernel else [other]
    report("1.json", [entry(1)], incomplete="-k selects tests", loaded=[entry(1), entry(2)])
    report("2.json", asked, incomplete="-k selects tests", loaded=[other], loaded_path=loaded_path)

    output = run("prune", "a/c.textproto", "--unused-in=1.json", "--unused-in=2.json", "--together")[1]

    assert output[0].startswith(f"{dropped} ")


@pytest.mark.parametrize(("test_cache", "dropped"), [("a/c.textproto", 0), ("b/c.textproto", 1)])
def test_prune_keeps_entries_of_a_file_that_only_a_test_loaded(run: Run, test_cache: str, dropped: int) -> None:
    """The test asked for another kernel of the file, whose entry is not there any more."""
    Path("a").mkdir()
    write("a/c.textproto", entry(1), entry(2))
    other = entry(9, kernel="lib.mul")
    report("1.json", [entry(1)], incomplete="-k selects tests", loaded=[entry(1), entry(2)])
    report("2.json", [other], incomplete="-k selects tests", loaded=[], test_cache=test_cache)

    output = run("prune", "a/c.textproto", "--unused-in=1.json", "--unused-in=2.json", "--together")[1]

    assert output[0].startswith(f"{dropped} ")


@pytest.mark.parametrize(
    "options",
    [[], ["--expect=2", "--unused-in=1.json"], ["--allow-skipped", "--unused-in=1.json"], ["--reports=nowhere/"]],
)
def test_prune_command_refuses_missing_or_contradicting_options(run: Run, options: list[str]) -> None:
    write("a.textproto", entry(1))
    report("1.json", [entry(1)])

    assert run("prune", "a.textproto", *options)[0] == 4


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"lookups": [1]}', "\0", "[" * 100_000])
def test_prune_command_refuses_a_file_that_is_no_json_report(run: Run, text: str) -> None:
    write("a.textproto", entry())
    Path("1.json").write_text(text)

    status, _, errors = run("prune", "a.textproto", "--unused-in=1.json")

    assert status == 4
    assert "1.json: is not a JSON report of --autotune-report, or is damaged (" in errors
    assert "(write one with --autotune-report=REPORT.json)" in errors


def test_prune_command_refuses_the_report_of_a_killed_process(run: Run) -> None:
    write("a.textproto", entry())
    Path("1.json").write_text(json.dumps(build_unfinished_mapping(CiRun())))

    status, _, errors = run("prune", "a.textproto", "--unused-in=1.json")

    assert status == 4
    assert (
        "1.json: the process has not ended: it was killed, pytest refused its arguments, or it is still running ("
        in errors
    )


# The command as a whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shw"], "pytest-autotune: No such command 'shw'"),
        (["show"], "pytest-autotune show: Missing argument 'FILE'"),
        (["show", "a.textproto", "--colour"], "pytest-autotune show: No such option"),
        (["show", "gone.pb"], "pytest-autotune: gone.pb: no such file"),
        (["diff", "gone.pb", "gone.pb"], "pytest-autotune: gone.pb: no such file in "),
        (["show", "a.docx"], 'pytest-autotune: a.docx: the suffix ".docx" is unknown'),
    ],
)
def test_a_wrong_command_line_gives_one_line_and_exit_status_4(run: Run, arguments: list[str], message: str) -> None:
    status, lines, errors = run(*arguments)

    assert (status, lines, errors.count("\n")) == (4, [], 1)
    assert errors.startswith(message)


def test_diff_command_advises_a_reader_if_a_file_is_missing(run: Run) -> None:
    """A dump would not help. Git names a file of a commit as ``REV:PATH``."""
    write("c.textproto", entry())

    error = run("diff", "gone.textproto", "c.textproto")[2]
    git_error = run("diff", "HEAD:c.textproto", "c.textproto")[2]

    assert error.endswith(" (correct the path)\n")
    command = 'git difftool -y --extcmd="pytest-autotune diff" HEAD -- c.textproto'
    assert git_error.endswith(f" (name a file; for a file in git: {command})\n")


def test_show_prints_no_error_if_the_reading_pipe_closes_early(tmp_path: Path) -> None:
    update_store(stores.open_store(tmp_path / "a.textproto"), lambda now: Cache(tuple(entry(m) for m in range(3000))))

    command = [sys.executable, "-m", "pytest_autotune.cli", "show", "a.textproto"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


def test_show_fails_if_stdout_is_full_but_not_if_it_is_closed(tmp_path: Path) -> None:
    """A full device is an error in a single line. A closed standard output is no error."""
    update_store(stores.open_store(tmp_path / "a.textproto"), lambda now: Cache((entry(),)))
    command = f"{sys.executable} -m pytest_autotune.cli show a.textproto"

    full = subprocess.run(f"{command} >/dev/full", shell=True, cwd=tmp_path, capture_output=True, text=True)
    closed = subprocess.run(f"{command} >&-", shell=True, cwd=tmp_path, capture_output=True, text=True)

    assert (full.returncode, full.stderr) == (4, "pytest-autotune: standard output: No space left on device\n")
    assert (closed.returncode, closed.stderr) == (0, "")


def test_show_escapes_characters_that_stdout_cannot_encode(tmp_path: Path) -> None:
    named = replace(entry(), problem=replace(entry().problem, kernel="lib.\u6f22"))
    update_store(stores.open_store(tmp_path / "a.textproto"), lambda now: Cache((named,)))
    command = [sys.executable, "-m", "pytest_autotune.cli", "show", "a.textproto"]

    latin = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, cwd=tmp_path, env=latin, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("triton:lib.\\u6f22 on ")


def test_the_help_of_every_command_imports_no_heavy_library() -> None:
    """The help of every command works without torch, triton, jax, pytest, numpy, yaml and protobuf."""
    code = (
        "import sys\nfrom pytest_autotune.cli import main\nfrom pytest_autotune.cli.main import commands\n"
        "assert not [main([name, '--help']) for name in commands.commands if main([name, '--help'])]\n"
        "names = ('torch', 'triton', 'jax', 'pytest', 'numpy', 'yaml', 'google.protobuf')\n"
        "print([name for name in names if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


def test_the_pre_commit_hook_matches_caches_but_no_reports() -> None:
    import yaml

    (hook,) = yaml.safe_load((Path(__file__).parent.parent / ".pre-commit-hooks.yaml").read_text())

    assert hook["entry"].split() == ["pytest-autotune", "check"]
    assert hook["language"] == "python"
    caches = [f"tests/autotune-h200{suffix}" for form in Format for suffix in form.value.suffixes]
    caches += ["autotune.textproto", f"choices/{'0123abcd' * 4}.textproto"]
    other_files = ["autotune-report.json", "model.textproto"]
    assert [path for path in [*caches, *other_files] if re.search(hook["files"], path)] == caches


def test_convert_refuses_to_overwrite_problems_the_input_lacks(run: Run) -> None:
    write("a.textproto", entry(1))
    write("b.textproto", entry(2))

    status, _, message = run("convert", "a.textproto", "b.textproto")

    assert status != 0
    assert "it holds 1 problem that IN lacks" in message
    assert entries_of("b.textproto") == {entry(2)}


def test_convert_refuses_to_overwrite_entries_of_older_code(run: Run) -> None:
    write("a.textproto", entry(1, source="new"))
    write("b.textproto", entry(1, source="old"), entry(1, source="new", block=64))

    status, _, message = run("convert", "a.textproto", "b.textproto")

    assert status == 4
    assert "it holds 1 entry that IN lacks" in message
    assert entries_of("b.textproto") == {entry(1, source="old"), entry(1, source="new", block=64)}


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["merge", "a.textproto", "-o", "out.textproto"], "1 entry"),
        (["convert", "a.textproto", "out.textproto"], "1 entry"),
        (["prune", "out.textproto", "--unused-in=1.json", "--exit-code"], "0 entries"),
    ],
)
def test_commands_that_cannot_lock_the_cache_exit_with_status_4(run: Run, arguments: list[str], count: str) -> None:
    """A script that goes on would use the old cache."""
    write("a.textproto", entry(1))
    write("out.textproto", entry(1))
    before = Path("out.textproto").read_bytes()
    report("1.json", [], [entry(1)])
    # Another program's file in the place of the lock: the cache cannot be locked.
    Path(".out.textproto.lock").write_text("mine")

    status, _, errors = run(*arguments)

    beside = Path("out.textproto.new").resolve()
    remedy = f"({count} written to {beside} instead: compare both, then rename it)"
    assert status == 4
    assert (
        errors == f"pytest-autotune: out.textproto: was not replaced, because it could not be locked or read {remedy}\n"
    )
    assert Path("out.textproto").read_bytes() == before
    assert stores.read_file(str(beside)).count(b"entries {") == int(count[0])


def test_check_with_option_fix_fails_if_it_cannot_lock_the_cache(run: Run) -> None:
    write("a.textproto", entry(1))
    Path(".a.textproto.lock").write_text("mine")

    status, lines, _ = run("check", "--fix", "a.textproto")

    assert (status, lines[1]) == (1, "1 cache, 0 entries: 1 cache has defects")
    assert lines[0].startswith(
        "a.textproto: was not replaced, because it could not be locked or read (1 entry written to "
    )


@pytest.mark.parametrize(
    ("text", "other", "number"), [("a\nb", "a\nc", 2), ("a", "a\nb", 2), ("a\nb\n", "a\n", 2), ("", "a", 1)]
)
def test_the_first_different_line_may_be_past_the_end_of_a_text(text: str, other: str, number: int) -> None:
    assert find_first_difference(text, other) == find_first_difference(other, text) == number
