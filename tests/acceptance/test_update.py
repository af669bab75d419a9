"""Bringing a cache up to date by one flag, by new entries alone, and a verdict on entries that are unused."""

from __future__ import annotations

import re

import pytest

from tests.conftest import Suite
from tests.reasons import describe_changed, too_many_misses

OPS = "import pytest\n@pytest.mark.parametrize('m', [{ms}])\ndef test_op(tune, m): tune('lib.op', M=m{more})\n"
STALE = "def test_stale(tune): tune('lib.stale', source='{source}')"


@pytest.fixture
def outdated(serial_suite: Suite) -> Suite:
    """A suite with one hit, one stale problem and one miss, and its cache."""
    serial_suite.write(test_op=OPS.format(ms="1", more=""), test_stale=STALE.format(source="one")).prepare_dump()
    return serial_suite.write(test_op=OPS.format(ms="1, 2", more=""), test_stale=STALE.format(source="two"))


def test_update_tunes_misses_and_adds_them_to_the_loaded_cache(outdated: Suite, section) -> None:
    outdated.pytester.makeini("[pytest]\nautotune_load = cache.textproto\n")
    assert section(outdated.run())[-1] == "Re-run with --autotune-update=all to update the cache."

    outdated.run("--autotune-update").assert_outcomes(passed=3)

    assert len(outdated.tunings) == 2
    assert section(outdated.run()) == ["3 hits"]


def test_an_update_says_how_many_comment_lines_it_removes(outdated: Suite, section) -> None:
    """The plugin's own comments, in the file's header and beside choices, do not count."""
    text = outdated.cache.read_text()
    edited = text.replace("entries {", "# Reviewed: keep.\nentries {\n  # The usual size.", 1)
    outdated.cache.write_text(edited)

    written = section(outdated.load("--autotune-update"))[-1]

    assert "2 comment lines of the old file dropped, because a dump keeps no comments" in written
    assert "#  " not in outdated.cache.read_text()
    outdated.cache.write_text(outdated.cache.read_text().replace("lib.stale", "lib.other"))
    assert "comment" not in section(outdated.load("--autotune-update"))[-1]


def test_update_overrides_the_ini_keys_on_miss_on_stale_and_dump(outdated: Suite, section) -> None:
    outdated.pytester.makeini(
        "[pytest]\nautotune_load = cache.textproto\nautotune_dump = other.textproto\nautotune_on_miss = error\n"
        "autotune_on_stale = use\n"
    )

    result = outdated.run("--autotune-update")

    assert result.ret == 0
    assert len(outdated.tunings) == 2
    assert not (outdated.folder / "other.textproto").exists()
    assert section(outdated.load("--autotune-dump=")) == ["3 hits"]


def test_an_update_writes_into_the_last_of_several_loaded_caches(outdated: Suite) -> None:
    before = outdated.cache.read_bytes()

    outdated.load("--autotune-load=own.textproto", "--autotune-update")

    assert outdated.cache.read_bytes() == before
    assert (outdated.folder / "own.textproto").read_text().count("entries {") == 3


@pytest.mark.parametrize("flag", ["--autotune-update", "--autotune-update=new"])
@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ([], "{flag}: no cache is loaded, so there is nothing to update (add --autotune-load=PATH)"),
        (["--autotune-load=cache.textproto", "--autotune-dump=other.pb"], "--autotune-dump: {beside}"),
        (["--autotune-load=cache.textproto", "--autotune-on-miss=nearest"], "--autotune-on-miss: {beside}"),
    ],
)
def test_an_update_without_load_or_with_dump_is_a_usage_error(
    serial_suite: Suite, flag: str, args: list[str], problem: str
) -> None:
    result = serial_suite.write().run(flag, *args)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    beside = f"{flag} always tunes, and always writes the loaded cache (leave one of the two out)"
    result.stderr.fnmatch_lines([f"ERROR: {problem.format(flag=flag, beside=beside)}"])


def test_option_update_new_adds_misses_and_keeps_stale_entries(outdated: Suite, section) -> None:
    """Stale entries keep every byte. The hint still asks for an update of all entries."""
    before = outdated.cache.read_text()

    lines = section(outdated.load("--autotune-update=new"))

    after = outdated.cache.read_text()
    added = [line for line in after.splitlines() if line not in before.splitlines()]
    assert added[0] == '  key { name: "M" int: 2 }'
    assert [line for line in before.splitlines() if line not in after.splitlines()] == []
    assert after.count("entries {") == 3
    assert lines[-2].endswith(
        "3 entries written to cache.textproto: 1 added, 2 unchanged; 1 stale not changed "
        "(--autotune-update replaces them)"
    )
    assert lines[-1] == "Re-run with --autotune-load=cache.textproto --autotune-update=all to update the cache."
    assert section(outdated.load())[-2].startswith("2 hits, 1 stale")


def test_the_suggested_update_command_works_before_test_paths(outdated: Suite, section) -> None:
    """After ``--autotune-update`` without a value, pytest would take the path for the value."""
    paths = sorted(path.name for path in outdated.folder.glob("test_*.py"))
    hint = section(outdated.load(*paths))[-1]

    assert hint == "Re-run with --autotune-load=cache.textproto --autotune-update=all to update the cache."
    options = hint.removeprefix("Re-run with ").removesuffix(" to update the cache.").split()
    assert outdated.run(*options, *paths).ret == 0


def test_an_update_without_a_gpu_says_gpu_entries_are_unchanged(serial_suite: Suite, section) -> None:
    serial_suite.write(test_a="def test_a(tune): tune('lib.a')").prepare_dump()
    update = ["--autotune-load=cache.textproto", "--autotune-update"]
    serial_suite.run(*update, TOY_DEVICE="CPU")

    assert section(serial_suite.run(*update, TOY_DEVICE="CPU"))[-1].endswith("cache.textproto is unchanged (2 entries)")
    assert section(serial_suite.dump(TOY_DEVICE="CPU"))[-1].endswith("cache.textproto is unchanged (2 entries)")
    assert section(serial_suite.run(*update))[-1].endswith("cache.textproto is up to date (2 entries)")


def test_option_update_new_changes_nothing_without_a_miss(outdated: Suite) -> None:
    """The JSON report has the field new_only."""
    outdated.load("--autotune-update=new")
    before = outdated.cache.read_bytes()

    report = outdated.report("--autotune-load=cache.textproto", "--autotune-update=new")

    assert report["dump"]["new_only"] is True
    assert report["counts"]["stale"] == 1
    assert outdated.cache.read_bytes() == before


@pytest.fixture
def shrunk(serial_suite: Suite) -> Suite:
    """A suite that leaves one of its two entries unused."""
    serial_suite.write(test_op=OPS.format(ms="1, 2", more="")).prepare_dump()
    return serial_suite.write(test_op=OPS.format(ms="1", more=""))


UNUSED = "1 loaded entry is unused, and --autotune-fail-on-unused allows none (see the UNUSED lines)"


@pytest.mark.parametrize("args", [["--autotune-fail-on-unused"], ["--autotune-fail-on-unused", "-qq"]])
def test_the_gate_on_unused_entries_fails_and_names_the_entries(shrunk: Suite, section, args: list[str]) -> None:
    result = shrunk.load(*args)

    assert result.ret == 1
    assert section(result)[0] == "UNUSED toy:lib.op (M=2): no test used this entry"
    result.stdout.fnmatch_lines([f"*!!! {UNUSED} !!!*"])


def test_the_gate_on_unused_entries_can_be_set_in_the_ini_file(shrunk: Suite) -> None:
    """The JSON report has the verdict. A run that loads nothing is a usage error."""
    shrunk.pytester.makeini("[pytest]\nautotune_fail_on_unused = true\n")

    gate = shrunk.report("--autotune-load=cache.textproto")["gate"]

    assert gate == {"limit": "", "fail_on_unused": True, "failed": UNUSED, "skipped": ""}
    assert shrunk.run().ret == pytest.ExitCode.USAGE_ERROR, "a lost ini line must not switch it off"


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["test_op.py"], "unused autotune cache entries were not checked: the run was limited to test_op.py"),
        (["-k", "op"], "unused autotune cache entries were not checked: -k selects a part of the tests"),
        (
            ["--autotune-update"],
            "autotune cache unused entries were not checked: this run updates the cache that it loads "
            "(check in a run without --autotune-update)",
        ),
        (
            ["--autotune-update", "-oautotune_max_misses=0"],
            "autotune cache misses and unused entries were not checked: this run updates the cache that it loads "
            "(check in a run without --autotune-update)",
        ),
    ],
)
def test_the_unused_gate_passes_an_incomplete_run_and_says_why(
    shrunk: Suite, section, args: list[str], why: str
) -> None:
    result = shrunk.load("-oautotune_fail_on_unused=true", *args)

    assert result.ret == 0
    assert why in section(result)


def test_failed_gates_on_misses_and_unused_entries_share_a_line(shrunk: Suite) -> None:
    shrunk.write(test_op=OPS.format(ms="1, 3", more=""))

    result = shrunk.load("--autotune-fail-on-unused", "--autotune-max-misses=0")

    result.stdout.fnmatch_lines([f"*{too_many_misses(1, '0')}; {UNUSED}*"])


MARKED = """
@pytest.mark.autotune_cache(load="own.textproto")
def test_marked(tune): assert tune('lib.op', M=1) == "b"
"""


def test_an_update_copies_no_choice_from_the_cache_of_a_marker(serial_suite: Suite) -> None:
    """The choice of a marker's cache does not replace the entry in the cache of the run."""
    serial_suite.write(test_op=OPS.format(ms="1", more="")).prepare_dump()
    before = serial_suite.cache.read_text()
    (serial_suite.folder / "own.textproto").write_text(before.replace('text: "a"', 'text: "b"'))
    serial_suite.write(test_op=OPS.format(ms="1", more="") + MARKED)

    result = serial_suite.load("--autotune-update")

    result.assert_outcomes(passed=2)
    assert serial_suite.cache.read_text() == before


BEHIND = """
def test_op(tune): tune("lib.op", source="two")
def test_new(tune): tune("lib.new", times={"a": 2.0, "b": 1.0})
"""


@pytest.mark.parametrize(
    ("args", "counts"),
    [
        (["--autotune-on-miss=first"], "2 used a fallback choice; cache.textproto is unchanged (1 entry)"),
        (["--autotune-on-miss=error"], "; cache.textproto is unchanged (1 entry)"),
        (["--autotune-on-stale=use"], "; 2 entries written to cache.textproto: 1 added, 1 unchanged"),
    ],
)
def test_a_dump_with_an_untuned_miss_is_not_called_up_to_date(
    serial_suite: Suite, section, args: list[str], counts: str
) -> None:
    """A miss or a stale entry got a fallback or an error. The hint names the command to update the cache."""
    serial_suite.write(test_lib="def test_op(tune): tune('lib.op')").prepare_dump()
    serial_suite.write(test_lib=BEHIND)

    lines = section(serial_suite.load("--autotune-dump=cache.textproto", *args))

    assert lines[-2].endswith(counts)
    assert lines[-1] == "Re-run with --autotune-load=cache.textproto --autotune-update=all to update the cache."
    if "use" in args[0]:
        reason = describe_changed("source")
        assert f"STALE test_lib.py::test_op - toy:lib.op: {reason}; the stale choice was used" in lines


def test_with_option_on_stale_use_a_stale_entry_counts_as_used(serial_suite: Suite, section) -> None:
    """With --autotune-on-stale=use, a new dump leaves the entry out.

    The summary does not say that no test requested it.
    """
    serial_suite.write(test_lib="def test_op(tune): tune('lib.op')").prepare_dump()
    serial_suite.write(test_lib=BEHIND)

    lines = section(serial_suite.load("--autotune-dump=new.textproto", "--autotune-on-stale=use"))

    assert not [line for line in lines if "no test asked for" in line]
    assert lines[-1].endswith("--autotune-dump=new.textproto --autotune-on-stale=tune to update the cache.")


@pytest.mark.parametrize(
    ("args", "ini", "message"),
    [
        (["--autotune-tuners=triton"], "", "only kernels that --autotune-tuners=triton excludes"),
        ([], "autotune_ignore = toy:*", "only kernels that autotune_ignore (ini) excludes"),
    ],
)
def test_the_summary_names_the_option_that_excludes_all_kernels(
    serial_suite: Suite, section, args: list[str], ini: str, message: str
) -> None:
    """The summary of a run without lookups names the option as a possible reason."""
    serial_suite.write().pytester.makeini(f"[pytest]\n{ini}\n")

    assert section(serial_suite.dump(*args))[0].startswith(f"no test called an autotuned kernel, or {message}")


def test_dump_without_a_load_passes_despite_option_on_miss_error(serial_suite: Suite, section) -> None:
    result = serial_suite.write().dump("--autotune-on-miss=error")

    assert result.ret == 0
    assert section(result)[-1] == "autotune cache misses were not checked: no cache was loaded"


LOST = "\ndef test_loses(tune):\n    tune('lib.other')\n    {loses}\n"


@pytest.mark.parametrize("flags", [["--autotune-update"], ["--autotune-dump=cache.textproto"]], ids=["update", "dump"])
@pytest.mark.parametrize(
    "loses",
    [
        "import os; os.remove('cache.textproto')",
        "open('cache.textproto', 'w').close()",
        "text = open('cache.textproto').read(); open('cache.textproto', 'w').write(text[:text.rindex('entries {')])",
    ],
    ids=["deleted", "emptied", "shortened"],
)
def test_an_update_restores_entries_that_a_test_deleted(
    serial_suite: Suite, section, flags: list[str], loses: str
) -> None:
    serial_suite.write(test_op=OPS.format(ms="1, 2, 3", more="")).prepare_dump()
    # The tests ask for one of the three entries.
    serial_suite.write(test_op=OPS.format(ms="3", more="") + LOST.format(loses=loses))

    result = serial_suite.load(*flags)

    assert result.ret == 0
    text = serial_suite.cache.read_text()
    assert sorted(re.findall(r'name: "M" int: (\d)', text)) == ["1", "2", "3"]
    assert '"lib.other"' in text
    (line,) = [line for line in section(result) if "lost during the run" in line]
    assert "4 entries written to cache.textproto: 1 added, 3 unchanged; " in line
    assert line.endswith(" written again that the file lost during the run")


def test_an_update_keeps_what_another_process_wrote_meanwhile(serial_suite: Suite, section) -> None:
    """The other process replaces a stale entry, renames a kernel and adds an entry."""
    first = "def test_first(tune): tune('lib.{name}', source='one'), tune('lib.stale', source='{source}')\n"
    serial_suite.write(test_op=first.format(name="old", source="one")).prepare_dump()
    changed = serial_suite.folder / "changed.textproto"
    serial_suite.write(test_op=first.format(name="new", source="two") + "def test_more(tune): tune('lib.more')")
    serial_suite.run("--autotune-dump=changed.textproto")
    serial_suite.write(
        test_op="def test_it(tune): import shutil; tune('lib.k'); shutil.copy('changed.textproto', 'cache.textproto')"
    )

    result = serial_suite.load("--autotune-update")

    assert "4 entries written to cache.textproto: 1 added, 3 unchanged" in "\n".join(section(result))
    text = serial_suite.cache.read_text()
    assert set(changed.read_text().splitlines()) < set(text.splitlines())
    assert "lib.old" not in text
    assert "lost during" not in "\n".join(section(result))


def test_an_update_fails_if_a_test_damaged_the_cache(serial_suite: Suite, section) -> None:
    """The next run with this dump path writes the tunings where they belong."""
    serial_suite.write(test_op=OPS.format(ms="1, 2", more="")).prepare_dump()
    good = serial_suite.cache.read_text()
    damages = "\ndef test_damages(tune): tune('lib.other'); open('cache.textproto', 'a').write('}')\n"
    serial_suite.write(test_op=OPS.format(ms="1", more="") + damages)

    result = serial_suite.load("--autotune-update")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (error,) = [line for line in section(result) if line.startswith("ERROR")]
    reason = "cache.textproto was not replaced, because it could not be locked or read"
    written = f"3 entries written to {serial_suite.cache}.new instead: compare both, then rename it"
    assert error == f"ERROR --autotune-load: {reason}; {written}"
    assert (serial_suite.folder / "cache.textproto.new").read_text().count("entries {") == 3
    serial_suite.cache.write_text(good)
    serial_suite.write(test_op="def test_nothing(): pass")
    again = serial_suite.load("--autotune-update")
    assert again.ret == 0
    assert "lib.other" in serial_suite.cache.read_text()


def test_an_update_restores_a_cache_folder_that_a_test_deleted(serial_suite: Suite) -> None:
    folder = serial_suite.folder / "cache"
    serial_suite.write(test_op=OPS.format(ms="1, 2, 3", more="")).run("--autotune-dump=cache/")
    names = sorted(file.name for file in folder.glob("*.textproto"))
    assert len(names) == 3
    loses = "import shutil; shutil.rmtree('cache')"
    serial_suite.write(test_op=OPS.format(ms="3", more="") + LOST.format(loses=loses))

    result = serial_suite.run("--autotune-load=cache/", "--autotune-update")

    assert result.ret == 0
    assert set(names) < {file.name for file in folder.glob("*.textproto")}
