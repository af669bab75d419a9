"""The marker and the fixture: a test may load its own cache, use no cache, and read its lookups."""

from __future__ import annotations

import json
import re
import textwrap

import pytest

from tests.conftest import Suite


def caches(suite: Suite, *names: str) -> Suite:
    """Make a cache for each name, in which ``lib.op`` has chosen just that, though "a" is measured as fastest."""
    suite.write(
        test_op="def test_op(tune): tune('lib.op', M=1, times={'a': 1.0, 'b': 2.0, 'c': 3.0})"
    ).serial.prepare_dump()
    text = suite.cache.read_text()
    suite.cache.unlink()
    for name in names:
        path = suite.folder / f"{name}.textproto"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace('text: "a"', f'text: "{path.stem}"'))
    (suite.folder / "test_op.py").unlink()
    return suite


HEAD = """
import pytest
load = lambda *paths: pytest.mark.autotune_cache(load=paths[0] if len(paths) == 1 else paths)
off = pytest.mark.autotune_cache(enabled=False)
def op(tune, m=1): return tune('lib.op', M=m, times={'a': 1.0, 'b': 2.0, 'c': 3.0})
"""


def write(suite: Suite, body: str, **others: str) -> Suite:
    return suite.write(test_marked=HEAD + body, **others)


def test_a_marker_loads_a_cache_only_for_its_test(suite: Suite, section) -> None:
    """The run has no option of the plugin."""
    write(
        caches(suite, "b", "c"),
        """
def test_before(tune): assert op(tune) == "a"
@load("b.textproto")
def test_b(tune): assert op(tune) == "b"
@load("c.textproto")
def test_c(tune): assert op(tune) == "c"
def test_after(tune): assert op(tune) == "a"
""",
    )

    result = suite.run()

    result.assert_outcomes(passed=4)
    assert section(result)[-1].startswith("1 hit")


def test_no_entry_is_called_unused_if_a_marker_disables_a_test(serial_suite: Suite, section) -> None:
    """The test looks up no entry, so the run cannot know which entries the test needs without the marker."""
    test = "def test_a(tune): op(tune, 1)\n{mark}\ndef test_b(tune): op(tune, 2)\n"
    write(serial_suite, test.format(mark="")).prepare_dump()
    before = serial_suite.cache.read_bytes()
    write(serial_suite, test.format(mark="@off"))

    result = serial_suite.load("-v", "--autotune-fail-on-unused", "--autotune-report=r.json")
    pruned = serial_suite.load("--autotune-update=prune")

    reason = "test_marked.py::test_b turns the plugin off by its marker autotune_cache(enabled=False)"
    assert f"unused entries were not checked: {reason}" in section(result)
    assert json.loads((serial_suite.folder / "r.json").read_text())["unused"] == []
    assert f"no unused entry was removed: {reason}" in section(pruned)
    assert serial_suite.cache.read_bytes() == before


def test_the_suggested_update_writes_the_cache_named_in_a_marker(serial_suite: Suite, section) -> None:
    def with_source(source: str) -> Suite:
        return write(serial_suite, f"@load('own.textproto')\ndef test_own(tune): tune('lib.own', source='{source}')")

    hint = "*own.textproto: no such file in /* (correct the path, or create it with --autotune-update)"
    with_source("one").run().stdout.fnmatch_lines([hint])
    serial_suite.run("--autotune-update").assert_outcomes(passed=1)
    assert section(serial_suite.run()) == ["1 hit"]

    stale = section(with_source("two").run())
    assert stale[-1] == "Re-run with --autotune-update=all to update the cache."
    updated = section(serial_suite.run("--autotune-update"))

    assert "1 entry written to own.textproto: 1 changed" in updated
    assert section(serial_suite.run()) == ["1 hit"]


OWN_AND_OTHERS = """
@load('own.textproto')
def test_own(tune): tune('lib.own', source='one')
@load('below/more.pb')
def test_more(tune): tune('lib.more', source='one'), tune('lib.shared')
def test_shared(tune): tune('lib.shared')
"""


def test_a_dump_creates_the_caches_that_markers_name(suite: Suite, section) -> None:
    lines = section(write(suite, OWN_AND_OTHERS).dump())

    assert "1 entry written to own.textproto: 1 added" in lines
    assert "2 entries written to below/more.pb: 2 added" in lines
    suite.cache.unlink()
    assert section(suite.run())[-1].startswith("3 hits")


def test_an_update_creates_all_caches_of_markers_even_if_empty(suite: Suite, section) -> None:
    """Tunings belong to the last cache of a test. A load needs the other caches, too, so they are written empty."""
    tests = "@load(['first.textproto', 'own.textproto'])\ndef test_own(tune): tune('lib.own')\n"
    write(suite, tests + "@load('idle.textproto')\ndef test_idle(tune): pass\n")

    lines = section(suite.run("--autotune-update"))

    assert {"0 entries written to first.textproto", "1 entry written to own.textproto: 1 added"} < {*lines}
    suite.run("--autotune-max-misses=0").assert_outcomes(passed=2)


def test_update_writes_stale_problems_to_the_cache_of_the_marker(suite: Suite, section) -> None:
    """The cache of the run stays as it is."""
    write(suite, OWN_AND_OTHERS).prepare_dump()
    before = suite.cache.read_bytes()
    write(suite, OWN_AND_OTHERS.replace("one", "two"))
    stale = section(suite.load())
    assert stale[-1] == "Re-run with --autotune-load=cache.textproto --autotune-update=all to update the cache."

    lines = section(suite.load("--autotune-update"))

    assert "1 entry written to own.textproto: 1 changed" in lines
    assert "2 entries written to below/more.pb: 1 changed, 1 unchanged" in lines
    assert suite.cache.read_bytes() == before
    assert any(line.startswith("3 hits") for line in section(suite.load()))


def test_update_fails_if_the_cache_of_a_marker_cannot_be_written(suite: Suite) -> None:
    """The summary has a single line about the error."""
    (suite.folder / "own.textproto").symlink_to("nowhere/own.textproto")
    write(suite, "@load('own.textproto')\ndef test_own(tune): tune('lib.own')")
    (suite.folder / "nowhere").write_text("in the way")

    result = suite.run("--autotune-update")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR autotune_cache: own.textproto: cannot be written: *"])


def test_the_path_in_a_marker_is_relative_to_the_test_file(serial_suite: Suite) -> None:
    write(caches(serial_suite, "b", "below/c"), "")
    test = HEAD + "@load('c.textproto')\ndef test_c(tune): assert op(tune) == 'c'\n"
    test += "@load('../b.textproto')\ndef test_b(tune): assert op(tune) == 'b'\n"
    (serial_suite.folder / "below" / "test_below.py").write_text(test)

    serial_suite.run().assert_outcomes(passed=2)


NEAREST = """
pytestmark = load("b.textproto")
def test_module(tune): assert op(tune) == "b"
@load("c.textproto")
def test_own(tune): assert op(tune) == "c"
@load("c.textproto")
class TestClass:
    def test_class(self, tune): assert op(tune) == "c"
    @load("a.textproto")
    def test_own(self, tune): assert op(tune) == "a"
    @load("c.textproto", "b.textproto")
    def test_last(self, tune): assert op(tune) == "b"
@load("c.textproto")
@load("a.textproto")
def test_decorators(tune): assert op(tune) == "a"
"""


@pytest.mark.parametrize("options", [[], ["--autotune-load=a.textproto"], ["--autotune-load=c.textproto"]])
def test_the_cache_of_the_innermost_marker_wins_over_all_others(serial_suite: Suite, options: list[str]) -> None:
    """The command line names no cache, or the cache of another marker."""
    write(caches(serial_suite, "a", "b", "c"), NEAREST)

    serial_suite.run(*options).assert_outcomes(passed=6)
    assert serial_suite.tunings == []


def test_a_miss_in_the_cache_of_a_marker_hits_the_cache_of_a_run(serial_suite: Suite, section) -> None:
    caches(serial_suite, "b", "c")
    text = (serial_suite.folder / "c.textproto").read_text()
    (serial_suite.folder / "c.textproto").write_text(text.replace("int: 1", "int: 2"))
    write(
        serial_suite,
        '@load("b.textproto")\ndef test_both(tune): assert (op(tune, 1), op(tune, 2)) == ("b", "c")\n',
    )

    result = serial_suite.run("--autotune-load=c.textproto", "--autotune-max-misses=0")

    assert result.ret == 0
    assert section(result) == ["2 hits"]


def test_a_test_marked_enabled_false_gets_no_cached_choice(suite: Suite, section) -> None:
    write(
        caches(suite, "b"),
        """
@off
def test_off(tune): assert op(tune) == "a"
def test_on(tune): assert op(tune) == "b"
@off
class TestOff:
    def test_off(self, tune): assert op(tune, 5) == "a"
""",
    )

    result = suite.run("--autotune-load=b.textproto", "--autotune-max-misses=0")

    assert result.ret == 0
    assert section(result) == ["1 hit"]
    assert suite.tunings == []


def test_enabled_true_on_a_test_overrides_false_on_its_module(serial_suite: Suite) -> None:
    write(
        caches(serial_suite, "b"),
        """
pytestmark = off
@pytest.mark.autotune_cache(enabled=True, load="b.textproto")
def test_on(tune): assert op(tune) == "b"
@load("b.textproto")
def test_off(tune): assert op(tune) == "a"
""",
    )

    serial_suite.run().assert_outcomes(passed=2)


def test_a_test_with_a_cache_marker_shares_no_choice_with_others(suite: Suite) -> None:
    write(
        caches(suite, "b"),
        """
# All in one file and worker, in this order.
@pytest.fixture(autouse=True)
def group(request): pass
class TestAll:
    def test_before(self, tune): assert op(tune, 7) == "a"
    @load("b.textproto")
    def test_marked(self, tune): assert (op(tune, 1), op(tune, 7)) == ("b", "a")
    @load("b.textproto")
    def test_again(self, tune): assert op(tune, 7) == "a"
    def test_after(self, tune): assert (op(tune, 1), op(tune, 7)) == ("a", "a")
""",
    )

    suite.run(*(["--dist=loadscope"] if "-n2" in suite.distribution else [])).assert_outcomes(passed=4)

    # The two marked ones each tuned M=7 anew, and the last one M=1, for which a marked one had a hit.
    assert suite.tunings == ["lib.op [('M', 1)]"] + ["lib.op [('M', 7)]"] * 3


FIXTURE = """
from pytest_autotune.cache.model import Device

def kernels(lookups): return [(lookup.problem.kernel, dict((v.name, v.value) for v in lookup.problem.key))
                              for lookup in lookups]

def test_outcomes(tune, autotune_cache):
    assert not any([autotune_cache.hits, autotune_cache.misses, autotune_cache.stale, autotune_cache.mismatches])
    assert len(autotune_cache.entries) == 1
    op(tune, 1), op(tune, 1), op(tune, 2)
    tune('lib.op', M=1, source='two', times={'a': 1.0, 'b': 2.0, 'c': 3.0})
    assert kernels(autotune_cache.hits) == [("lib.op", {"M": 1})]
    assert kernels(autotune_cache.misses) == [("lib.op", {"M": 2})]
    assert repr(autotune_cache.misses) == "(MISS toy:lib.op (M=2): no entry; the nearest entry has M 1 instead of 2,)"
    assert kernels(autotune_cache.stale) == [("lib.op", {"M": 1})]
    assert autotune_cache.mismatches == ()

@pytest.mark.usefixtures("autotune_cache")
def test_mismatch(tune, autotune_cache, monkeypatch):
    monkeypatch.setenv("TOY_DEVICE", "Far GPU")
    op(tune, 1)
    assert kernels(autotune_cache.mismatches) == [("lib.op", {"M": 1})]
    assert "this run is on Far GPU" in autotune_cache.mismatches[0].reason

@pytest.fixture
def prepared(tune): op(tune, 9)

def test_the_fixture_lists_only_the_problems_of_its_test(prepared, autotune_cache):
    assert kernels(autotune_cache.misses) == [("lib.op", {"M": 9})]
"""


def test_the_fixture_lists_hits_and_misses_of_its_test(suite: Suite) -> None:
    write(caches(suite, "b"), FIXTURE)

    suite.run("--autotune-load=b.textproto").assert_outcomes(passed=3)


def test_the_fixture_lists_a_hit_only_in_the_first_test_with_it(serial_suite: Suite) -> None:
    write(
        caches(serial_suite, "b"),
        """
def test_first(tune, autotune_cache):
    op(tune)
    assert len(autotune_cache.hits) == 1
def test_second(tune, autotune_cache):
    op(tune)
    assert len(autotune_cache.hits) == 0
""",
    )

    serial_suite.run("--autotune-load=b.textproto").assert_outcomes(passed=2)


def test_cache_loaded_by_the_fixture_is_unloaded_after_its_test(suite: Suite, section) -> None:
    """The run has no option of the plugin."""
    write(
        caches(suite, "b", "c"),
        """
class TestAll:
    def test_before(self, tune, autotune_cache):
        assert autotune_cache.entries == ()
        assert op(tune) == "a"
        assert autotune_cache.misses == ()
    def test_load(self, tune, autotune_cache):
        autotune_cache.load("b.textproto")
        assert [entry.choice.params[0].value for entry in autotune_cache.entries] == ["b"]
        assert op(tune) == "b"
        assert len(autotune_cache.hits) == 1
    def test_again(self, tune, autotune_cache, tmp_path):
        from pathlib import Path
        autotune_cache.load("b.textproto")
        autotune_cache.load(Path(__file__).parent / "c.textproto")
        assert [entry.choice.params[0].value for entry in autotune_cache.entries] == ["c", "b"]
        assert op(tune) == "c"
    def test_after(self, tune, autotune_cache):
        assert autotune_cache.entries == ()
        assert op(tune) == "a"
""",
    )

    result = suite.run(*(["--dist=loadscope"] if "-n2" in suite.distribution else []))

    result.assert_outcomes(passed=4)
    assert section(result)[-1].startswith("1 hit")


SHARED_FILE = """
import os
edited = os.environ["SOURCE"]
def test_edited(tune): tune("lib.made", source=edited)
def test_other(tune): tune("lib.made", source="other")
"""


@pytest.mark.parametrize(
    ("loads", "marked", "file"),
    [
        (["own.textproto", "cache.textproto"], "edited", "own.textproto"),
        (["cache.textproto"], "other", "cache.textproto"),
    ],
    ids=["file of a marker and the run", "file of the run"],
)
def test_an_update_keeps_entries_used_by_tests_with_other_caches(
    suite: Suite, loads: list[str], marked: str, file: str
) -> None:
    """A factory makes two kernels with one name, so a problem has two entries.

    One test has a cache of its own, and tunes one kernel after an edit, or hits the entry of the other kernel in the
    cache of the run. The file loses the entry from before the edit, and keeps the other entry.
    """
    suite.serial.write(test_made=SHARED_FILE).run(f"--autotune-dump={file}", SOURCE="first")
    if file != "own.textproto":
        suite.serial.write(test_made="def test_it(tune): tune('lib.own')").run("--autotune-dump=own.textproto")
    tests = SHARED_FILE.replace(f"def test_{marked}", f"@load('own.textproto')\ndef test_{marked}")
    write(suite, tests)
    (suite.folder / "test_made.py").unlink()

    suite.run(*[f"--autotune-load={path}" for path in loads], "--autotune-update", SOURCE="second")

    text = (suite.folder / file).read_text()
    assert sorted(re.findall(r'name: "source" text: "([^"]*)"', text)) == ["other", "second"]


@pytest.mark.parametrize(
    "spelling",
    ["'./own.textproto'", "__file__[:-14] + 'own.textproto'", "'below/../own.textproto'", "'link.textproto'"],
    ids=["dot", "absolute", "dots", "link"],
)
def test_all_spellings_of_a_path_in_markers_mean_one_cache(suite: Suite, section, spelling: str) -> None:
    """One problem has two entries, as for two kernels of a factory. The summary shows the shortest spelling."""
    suite.pytester.mkdir("below")
    (suite.folder / "link.textproto").symlink_to("own.textproto")
    tests = f"""
@load("own.textproto")
def test_first(tune): tune("lib.op", source="one")
@load({spelling})
def test_second(tune): tune("lib.op", source="two")
"""
    write(suite, tests)

    lines = section(suite.run("--autotune-update"))

    assert "2 entries written to own.textproto: 2 added" in lines
    assert not any(" written to " in line for line in lines if "to own.textproto" not in line)
    suite.run("--autotune-max-misses=0").assert_outcomes(passed=2)


def test_dots_after_a_link_in_a_marker_path_follow_the_link(serial_suite: Suite) -> None:
    """A ``..`` behind a link is that of the folder to which the link leads."""
    folder = serial_suite.folder
    (folder / "elsewhere" / "deep").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "tests" / "link").symlink_to("../elsewhere/deep")
    write(serial_suite, "@load('link/../own.textproto')\ndef test_own(tune): tune('lib.own')")
    (folder / "test_marked.py").rename(folder / "tests" / "test_marked.py")

    serial_suite.run("--autotune-update=all", "tests").assert_outcomes(passed=1)

    assert (folder / "elsewhere" / "own.textproto").exists()
    assert not (folder / "tests" / "own.textproto").exists()


def test_the_cache_of_a_marker_is_unloaded_after_a_failed_test(serial_suite: Suite) -> None:
    write(
        caches(serial_suite, "b"),
        """
@load("b.textproto")
def test_fails(tune): assert op(tune) == "x"
@pytest.fixture
def late(tune):
    yield
    assert op(tune) == "b"
@load("b.textproto")
def test_teardown(late): pass
def test_after(tune): assert op(tune) == "a"
""",
    )

    serial_suite.run().assert_outcomes(passed=2, failed=1)


def test_a_dump_includes_the_hits_from_the_cache_of_a_marker(suite: Suite) -> None:
    write(
        caches(suite, "b"),
        """
@load("b.textproto")
def test_hit(tune): assert op(tune) == "b"
def test_new(tune): assert op(tune, 2) == "a"
""",
    )

    suite.dump()

    assert suite.cache.read_text().count("entries {") == 2
    assert 'text: "b"' in suite.cache.read_text()


def test_requesting_the_fixture_in_a_running_test_is_an_error(serial_suite: Suite) -> None:
    """The error names a remedy."""
    serial_suite.write(test_late="def test_late(request): request.getfixturevalue('autotune_cache')")

    result = serial_suite.run()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["autotune_cache: the fixture was requested too late, by a running test (name it as an argument of the test)"]
    )
    serial_suite.run("--autotune-dump=cache.textproto").assert_outcomes(passed=1)


def test_an_update_restores_a_markers_cache_that_a_test_deletes(suite: Suite) -> None:
    cache = suite.folder / "own.textproto"
    write(suite, "@load('own.textproto')\ndef test_own(tune): tune('lib.one'), tune('lib.two')")
    suite.serial.run("--autotune-update")
    assert cache.read_text().count("entries {") == 2
    test = """
    import os
    @load('own.textproto')
    def test_own(tune):
        tune('lib.one')
        tune('lib.new')
        os.remove('own.textproto')
    """
    write(suite, textwrap.dedent(test))

    suite.run("--autotune-update").assert_outcomes(passed=1)

    text = cache.read_text()
    assert [f'"lib.{name}"' in text for name in ("new", "one", "two")] == [True, True, True]
