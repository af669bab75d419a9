"""Unused entries: only a complete run finds them, and only prune drops them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pytest_autotune import devices
from tests.conftest import DISTRIBUTIONS, Suite, everywhere

PRUNE = ("--autotune-load=cache.textproto", "--autotune-update=prune")
#: A suite with entries for M=1 and M=2, of which a later version asks only for M=1, beside another file.
OPS = "import pytest\n@pytest.mark.parametrize('m', [{ms}])\ndef test_op(tune, m): tune('lib.op', M=m)\n"
OTHER = "def test_other(tune): tune('lib.other')"


def shrunk(suite: Suite) -> Suite:
    suite.write(test_op=OPS.format(ms="1, 2"), test_other=OTHER).serial.prepare_dump()
    return suite.write(test_op=OPS.format(ms="1"))


def entries(suite: Suite) -> int:
    return suite.cache.read_text().count("entries {")


def unused(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("UNUSED")]


def test_a_complete_run_lists_unused_entries_and_how_to_prune(suite: Suite, section) -> None:
    lines = section(shrunk(suite).load())

    assert unused(lines) == ["UNUSED toy:lib.op (M=2): no test used this entry"]
    assert lines[1] == "2 hits, 1 unused"
    assert lines[2] == (
        "Run with --autotune-load=cache.textproto --autotune-update=prune "
        "to drop the unused entries, unless another suite uses them."
    )
    assert entries(suite) == 3


ODD_GLOBALS = """
import typing

class Unbound:
    def __getattr__(self, name):
        raise RuntimeError("no object is bound")
    @property
    def __class__(self):
        raise RuntimeError("no object is bound")

proxy = Unbound()

class TestCase(typing.NamedTuple):
    size: int
    def test_name(self): return str(self.size)

def test_op(tune): tune("lib.op", M=1)
"""


def test_unused_entries_are_found_despite_a_proxy_in_a_module(serial_suite: Suite, section) -> None:
    """The globals are a proxy without an object, and a class that pytest does not collect."""
    suite = serial_suite.write(test_op=ODD_GLOBALS)
    suite.prepare_dump()

    result = suite.load("-v")

    assert result.ret == 0
    assert not any("not checked" in line for line in section(result))


@everywhere
def test_the_suggested_prune_command_removes_the_unused_entry(suite: Suite) -> None:
    result = shrunk(suite).run(*PRUNE)

    assert entries(suite) == 2
    assert suite.tunings == []
    result.stdout.fnmatch_lines(
        [
            "removed from cache.textproto: toy:lib.op (M=2) on Toy GPU",
            "2 hits; 2 entries written to cache.textproto: 2 unchanged, 1 removed",
        ]
    )


def test_a_dump_keeps_unused_entries_and_lists_them(serial_suite: Suite, section) -> None:
    lines = section(shrunk(serial_suite).dump())

    assert unused(lines) == ["UNUSED toy:lib.op (M=2): no test used this entry"]
    assert entries(serial_suite) == 3


KEPT = {
    "another device": {"TOY_DEVICE": "Far GPU"},
    "another minor version": {"TOY_VERSION": "toy 0.9"},
    "another tuner": {"TOY_TUNER": "elder"},
    "a module that was not imported": {"TOY_KERNEL": "elsewhere.op"},
}


@pytest.mark.parametrize("case", KEPT)
def test_an_entry_of_a_gpu_or_tuner_the_run_lacks_is_not_unused(serial_suite: Suite, section, case: str) -> None:
    """The entry is of another device, version or tuner, or of a module that was not imported. Prune keeps the entry."""
    test = """
        import os
        def test_op(tune):
            tune(os.environ.get("TOY_KERNEL", "lib.op"), tuner=os.environ.get("TOY_TUNER", "toy"),
                 environment=os.environ.get("TOY_VERSION", "toy 1.0"), M=int(os.environ.get("M", "2")))
    """
    serial_suite.write(test_op=test).prepare_dump(**KEPT[case])
    serial_suite.dump(M="1")

    assert unused(section(serial_suite.load(M="1"))) == []
    serial_suite.run(*PRUNE, M="1")
    assert entries(serial_suite) == 2


def test_an_entry_of_an_imported_but_uncalled_kernel_is_unused(suite: Suite, section) -> None:
    (suite.folder / "library.py").write_text("")
    suite.write(
        test_op="import library\ndef test_op(tune): tune('library.gone')",
        test_other="def test_other(tune): tune('library.Class.method')",
    ).serial.prepare_dump()
    suite.write(test_op="import library\ndef test_op(tune): pass")

    lines = section(suite.load())

    assert unused(lines) == ["UNUSED toy:library.gone: no test used this entry"]


def test_an_entry_of_a_kernel_in_autotune_ignore_is_not_unused(serial_suite: Suite, section) -> None:
    (serial_suite.folder / "library.py").write_text("")
    tests = "import library\ndef test_op(tune):\n    tune('lib.op')\n    tune('library.op')"
    serial_suite.write(test_op=tests).prepare_dump()
    serial_suite.write(test_op=tests.replace("tune('library.op')", "pass"))

    assert unused(section(serial_suite.load("-o", "autotune_ignore=toy:library.*"))) == []


def test_an_entry_of_a_stale_problem_is_not_listed_as_unused(serial_suite: Suite, section) -> None:
    serial_suite.write(test_op=OPS.format(ms="1")).serial.prepare_dump()
    serial_suite.write(test_op=OPS.format(ms="1").replace("M=m", "M=m, source='two'"))

    lines = section(serial_suite.load())

    assert unused(lines) == []
    assert lines[0].startswith("STALE")


#: Hooks of a conftest.py that keep pytest from collecting the whole suite.
DROPS_COLLECTORS = """
import pytest
@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if report.result:
        report.result = [node for node in report.result if node.name != "{name}"]
    return report
"""
DROPS_IN_LOOP = """
import pytest
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session):
    session.items = session.items[:-1]
    return (yield)
"""
REPLACED_PATHS = {
    "replaced args": "def pytest_configure(config):\n    config.args = ['test_other.py']\n",
    "no args": "def pytest_configure(config):\n    config.args = []\n",
    "edited args": "def pytest_configure(config):\n    config.args[:] = ['test_other.py']\n",
    "args before the configuration": (
        "import pytest\n@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_cmdline_main(config):\n    config.args = ['test_other.py']\n"
    ),
    "args at the collection": "def pytest_collection(session):\n    session.config.args = ['test_other.py']\n",
    "another collection": (
        "def pytest_collection(session):\n    session.perform_collect(['test_other.py'])\n    return True\n"
    ),
}
CONFTEST = "\ndef pytest_collection_modifyitems(config, items):\n    {body}\n"
HOOK = "config.hook.pytest_deselected(items=[items.pop()])"
INCOMPLETE = {
    "file": (["test_op.py"], {}, "the run was limited to test_op.py"),
    "folder": (["below"], {"below/test_z": "def test_z(): pass"}, "the run was limited to below"),
    "-k": (["-k", "op"], {}, "-k selects a part of the tests"),
    "-m": (["-m", "not slow"], {}, "-m selects a part of the tests"),
    "--deselect": (["--deselect=test_other.py"], {}, "--deselect selects a part of the tests"),
    "--ignore": (["--ignore=test_other.py"], {}, "--ignore selects a part of the tests"),
    "--lf": (["--lf"], {}, "--lf selects a part of the tests"),
    "-c": (["-c", "other.ini"], {}, "-c other.ini may select a part of the tests"),
    "collect_ignore": (
        [],
        {"test_z": "def test_z(): pass", "conftest": "\ncollect_ignore = ['test_z.py', 'setup.py']"},
        "test_z.py was not collected (collect_ignore or pytest_ignore_collect)",
    ),
    "-o python_files": (["-o", "python_files=test_op.py"], {}, "-o python_files selects a part of the tests"),
    "-o collect_imported_tests": (
        ["-o", "collect_imported_tests=false"],
        {},
        "-o collect_imported_tests selects a part of the tests",
    ),
    "-o addopts": (["-o", "addopts="], {}, "-o addopts may select a part of the tests"),
    "--override-ini": (["--override-ini=addopts=-q"], {}, "-o addopts may select a part of the tests"),
    "--sw": (["--sw"], {}, "--sw selects a part of the tests"),
    "failed": ([], {"test_z": "def test_z(): assert 0"}, "test_z.py::test_z failed"),
    "skipped": ([], {"test_z": "import pytest\ndef test_z(): pytest.skip()"}, "test_z.py::test_z was skipped"),
    "module skipped": ([], {"test_z": "import pytest\npytest.importorskip('nothing')"}, "test_z.py was skipped"),
    "xfailed": (
        [],
        {"test_z": "import pytest\n@pytest.mark.xfail\ndef test_z(): assert 0"},
        "test_z.py::test_z failed as expected",
    ),
    "-x": (["-x"], {"test_a": "def test_a(): assert 0"}, "*"),
    "collection error": ([], {"test_z": "import nothing"}, "*"),
    "continued after one": (
        ["--continue-on-collection-errors"],
        {"test_z": "import nothing"},
        "test_z.py could not be collected",
    ),
    "exit": ([], {"test_z": "import pytest\ndef test_z(): pytest.exit('enough')"}, "the run was interrupted"),
    "exit with a status": (
        [],
        {"test_oq": "import pytest\ndef test_oq(): pytest.exit('enough', returncode=0)"},
        "2 of 3 tests did not run",
    ),
    "conftest deselects": ([], {"conftest": CONFTEST.format(body=HOOK)}, "1 test was deselected"),
    "conftest drops": ([], {"conftest": CONFTEST.format(body="del items[-1:]")}, "1 test was deselected"),
    "conftest drops at last": (
        [],
        {"conftest": "\ndef pytest_collection_finish(session): del session.items[-1:]\n"},
        "1 test was deselected",
    ),
    "conftest drops in the loop": (
        [],
        {"conftest": DROPS_IN_LOOP},
        "1 of 2 tests did not run",
    ),
    "conftest makes no item": (
        [],
        {
            "conftest": "\ndef pytest_pycollect_makeitem(name): return [] if name == 'test_z' else None\n",
            "test_z": "def test_z(): pass",
        },
        "test_z.py::test_z was not collected (a plugin or conftest.py left it out)",
    ),
    "conftest drops collectors": (
        [],
        {
            "conftest": DROPS_COLLECTORS.format(name="test_z.py"),
            "test_z": "def test_z(): pass",
        },
        "test_z.py was not collected (collect_ignore or pytest_ignore_collect)",
    ),
    "conftest drops items": (
        [],
        {
            "conftest": DROPS_COLLECTORS.format(name="test_y"),
            "test_z": "class TestZ:\n    def test_x(self): pass\n    def test_y(self): pass",
        },
        "test_z.py::TestZ::test_y was not collected (a plugin or conftest.py left it out)",
    ),
    "conftest drops inherited items": (
        [],
        {
            "conftest": DROPS_COLLECTORS.format(name="test_y"),
            "test_z": "class Base:\n    def test_y(self): pass\nclass TestZ(Base):\n    def test_x(self): pass",
        },
        "test_z.py::TestZ::test_y was not collected (a plugin or conftest.py left it out)",
    ),
    "conftest drops a file": (
        [],
        {
            "conftest": "\nimport pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_collect_file(file_path):\n"
            "    collectors = yield\n    return [] if file_path.name == 'test_z.py' else collectors\n",
            "test_z": "def test_z(): pass",
        },
        "test_z.py was not collected (collect_ignore or pytest_ignore_collect)",
    ),
    **{
        name: ([], {"conftest": f"\n{hook}"}, "a plugin or conftest.py changed which paths were collected")
        for name, hook in REPLACED_PATHS.items()
    },
}


def incomplete(suite: Suite, kind: str) -> tuple[list[str], str]:
    """Make a suite whose run is incomplete; the arguments for it, and the reason."""
    args, files, reason = INCOMPLETE[kind]
    shrunk(suite)
    (suite.folder / "other.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (suite.folder / name).parent.mkdir(exist_ok=True)
        with (suite.folder / f"{name}.py").open("a") as file:
            file.write(text)
    return args, reason


@pytest.mark.parametrize("kind", INCOMPLETE)
def test_update_prune_removes_no_entry_in_an_incomplete_run(serial_suite: Suite, section, kind: str) -> None:
    """The summary names no unused entry and says why the run was not complete."""
    args, reason = incomplete(serial_suite, kind)

    pruned = serial_suite.run(*PRUNE, *args)

    assert unused(section(pruned)) == []
    pruned.stdout.fnmatch_lines([f"no unused entry was removed, because the run was not complete: {reason}"])
    assert entries(serial_suite) == 3


def test_prune_keeps_all_entries_if_override_ini_clears_addopts(serial_suite: Suite, section) -> None:
    """The doctest is a test of the suite only by the option in ``addopts``."""
    doctest = "def add():\n    '''\n    >>> 1 + 1\n    2\n    '''"
    shrunk(serial_suite).pytester.makeini("[pytest]\naddopts = --doctest-modules\n")
    (serial_suite.folder / "library.py").write_text(doctest)

    pruned = serial_suite.run(*PRUNE, PYTEST_ADDOPTS="-o addopts=")

    pruned.stdout.fnmatch_lines(
        ["no unused entry was removed, because the run was not complete: -o addopts may select a part of the tests"]
    )
    assert entries(serial_suite) == 3
    assert unused(section(serial_suite.run(*PRUNE))) == []
    assert entries(serial_suite) == 2


@pytest.mark.skipif("n2" not in DISTRIBUTIONS, reason="of workers")
@pytest.mark.parametrize(
    "kind",
    [
        "-k",
        "failed",
        "skipped",
        "module skipped",
        "conftest drops",
        "collect_ignore",
        "replaced args",
        "edited args",
        "args at the collection",
    ],
)
def test_an_incomplete_run_with_workers_prunes_no_entry(serial_suite: Suite, kind: str) -> None:
    args, reason = incomplete(serial_suite, kind)
    serial_suite.distribution = DISTRIBUTIONS["n2"]

    result = serial_suite.run(*PRUNE, *args)

    result.stdout.fnmatch_lines([f"no unused entry was removed, because the run was not complete: {reason}"])
    assert entries(serial_suite) == 3


@pytest.mark.parametrize("kind", ["replaced args", "another collection"])
def test_the_gates_pass_if_a_plugin_limits_the_run_to_some_tests(
    serial_suite: Suite, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a run is a part of the suite: an entry is not unused, and the part may ask for nothing."""
    monkeypatch.setattr(devices, "has_visible_gpu", lambda: True)
    incomplete(serial_suite, kind)
    (serial_suite.folder / "test_other.py").write_text("def test_other(): pass")

    result = serial_suite.load("--autotune-max-misses=0", "--autotune-fail-on-unused")

    assert result.ret == 0
    result.assert_outcomes(passed=1)
    monkeypatch.setattr(devices, "has_visible_gpu", bool)
    assert serial_suite.load("--autotune-max-misses=0").ret == 1, "the user selected no part, and there is no GPU"


@pytest.mark.parametrize(
    "hook",
    [
        "def pytest_configure(config):\n    config.args.append('more')\n",
        "import os\ndef pytest_configure(config):\n    config.args = list(map(os.path.abspath, config.args))\n",
        "def pytest_collection(session):\n    session.perform_collect(['.'])\n    return True\n",
    ],
    ids=["more", "absolute", "root"],
)
@pytest.mark.parametrize("testpaths", ["tests more", "tests more/test_*.py"])
def test_prune_drops_entries_if_a_plugin_keeps_all_test_paths(serial_suite: Suite, testpaths: str, hook: str) -> None:
    """The plugin rewrites the paths, but drops none."""
    below(serial_suite).pytester.makeini(f"[pytest]\ntestpaths = {testpaths}\n")
    with (serial_suite.folder / "conftest.py").open("a") as file:
        file.write(f"\n{hook}")

    serial_suite.run(*PRUNE)

    assert entries(serial_suite) == 2


@pytest.mark.parametrize("typed", [[], ["--pyargs", "below"]])
def test_prune_drops_entries_if_pyargs_names_the_whole_package(serial_suite: Suite, typed: list[str]) -> None:
    package = shrunk(serial_suite).folder / "below"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("test_op.py", "test_other.py"):
        (serial_suite.folder / name).rename(package / name)
    serial_suite.pytester.makeini("[pytest]\ntestpaths = below\naddopts = --pyargs\n")

    serial_suite.run(*PRUNE, *typed)

    assert entries(serial_suite) == 2


def test_only_a_verbose_run_says_why_it_checked_no_unused_entry(serial_suite: Suite, section) -> None:
    args, reason = incomplete(serial_suite, "-k")

    assert section(serial_suite.load(*args)) == ["1 hit"]
    serial_suite.load("-v", *args).stdout.fnmatch_lines([f"unused entries were not checked: {reason}"])


def test_an_incomplete_run_with_prune_still_adds_new_entries(serial_suite: Suite) -> None:
    shrunk(serial_suite).write(test_new="def test_new(tune): tune('lib.new')\ndef test_fails(): assert 0")

    serial_suite.run(*PRUNE)

    assert entries(serial_suite) == 4


def test_prune_with_option_collect_only_changes_no_cache_file(serial_suite: Suite) -> None:
    before = shrunk(serial_suite).cache.read_bytes()

    result = serial_suite.run(*PRUNE, "--collect-only")

    assert result.ret == 0
    assert serial_suite.cache.read_bytes() == before


def test_prune_removes_no_entry_if_pytest_starts_in_a_subfolder(
    serial_suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrunk(serial_suite).pytester.makeini("[pytest]\nautotune_load = cache.textproto\n")
    below = serial_suite.folder / "below"
    below.mkdir()
    (serial_suite.folder / "test_op.py").rename(below / "test_op.py")
    monkeypatch.chdir(below)

    result = serial_suite.run("--autotune-update=prune", "-o", "autotune_load=cache.textproto", PYTEST_ADDOPTS="")

    result.stdout.fnmatch_lines(
        [f"no unused entry was removed, because the run was not complete: the run was limited to {Path('below')}"]
    )
    assert entries(serial_suite) == 3


@pytest.mark.parametrize(
    ("testpaths", "typed"),
    [
        ("tests more", []),
        ("tests", ["tests/"]),
        ("tests", ["{here}/tests"]),
        ("tests more", ["more", "tests"]),
        ("", ["."]),
    ],
)
def test_prune_drops_entries_if_the_command_names_all_testpaths(
    serial_suite: Suite, testpaths: str, typed: list[str]
) -> None:
    """A run without paths is complete, too."""
    below(serial_suite).pytester.makeini(f"[pytest]\ntestpaths = {testpaths}\n")

    serial_suite.run(*PRUNE, *(path.format(here=serial_suite.folder) for path in typed))

    assert entries(serial_suite) == 2


@pytest.mark.parametrize("has_ini_file", [True, False])
def test_with_option_rootdir_prune_works_only_with_an_ini_file(
    serial_suite: Suite, monkeypatch: pytest.MonkeyPatch, has_ini_file: bool
) -> None:
    """Pytest starts in another folder. Without an ini file the run is not complete."""
    shrunk(serial_suite)
    if has_ini_file:
        serial_suite.pytester.makeini("[pytest]\n")
    monkeypatch.chdir(serial_suite.folder.parent)
    folder = serial_suite.folder.name

    serial_suite.run(
        f"--autotune-load={folder}/cache.textproto", "--autotune-update=prune", f"--rootdir={folder}", folder
    )

    assert entries(serial_suite) == (2 if has_ini_file else 3)


@pytest.mark.parametrize(
    ("testpaths", "typed"),
    [
        ("tests more", ["tests"]),
        ("tests", ["tests/test_op.py"]),
        ("tests", ["tests", "more"]),
        ("tests", ["."]),
        ("", ["tests"]),
    ],
)
def test_prune_removes_no_entry_if_paths_differ_from_testpaths(
    serial_suite: Suite, testpaths: str, typed: list[str]
) -> None:
    below(serial_suite).pytester.makeini(f"[pytest]\ntestpaths = {testpaths}\n")

    result = serial_suite.run(*PRUNE, *typed)

    reason = f"the run was limited to {' '.join(typed)}"
    result.stdout.fnmatch_lines([f"no unused entry was removed, because the run was not complete: {reason}"])
    assert entries(serial_suite) == 3


def below(suite: Suite) -> Suite:
    """The suite that has shrunk, in folders of its own."""
    shrunk(suite)
    for name, folder in {"test_op.py": "tests", "test_other.py": "more"}.items():
        (suite.folder / folder).mkdir()
        (suite.folder / name).rename(suite.folder / folder / name)
    return suite


@pytest.mark.parametrize(
    "args",
    [
        ["-v", "--tb=short", "-rA", "--durations=3", "--ff", "--junitxml=out.xml"],
        ["-pno:cacheprovider"],
        ["-k", "", "-m", ""],
    ],
)
def test_prune_drops_entries_if_the_options_keep_all_tests(serial_suite: Suite, args: list[str]) -> None:
    shrunk(serial_suite).run(*PRUNE, *args)

    assert entries(serial_suite) == 2


@pytest.mark.skipif("n2" not in DISTRIBUTIONS, reason="only a worker can crash and leave its run alive")
@pytest.mark.parametrize("restarts", [[], ["--max-worker-restart=0"]])
def test_prune_removes_no_entry_if_a_worker_crashed(serial_suite: Suite, restarts: list[str]) -> None:
    """Prune drops nothing, even if a replacement finished the tests."""
    shrunk(serial_suite).write(test_z="import os\ndef test_z(): os._exit(1)")
    serial_suite.distribution = DISTRIBUTIONS["n2"]

    result = serial_suite.run(*PRUNE, *restarts)

    assert entries(serial_suite) == 3
    result.stdout.fnmatch_lines(["no unused entry was removed, because the run was not complete: worker gw* crashed"])


def test_prune_drops_entries_if_a_plugin_repeats_each_test(suite: Suite) -> None:
    """A repeated report of what was looked up is no second lookup."""
    again = """
import pytest
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    from _pytest.runner import runtestprotocol
    for _ in range(2):
        for report in runtestprotocol(item, nextitem=nextitem, log=False):
            item.ihook.pytest_runtest_logreport(report=report)
    return True
"""
    shrunk(suite)
    with (suite.folder / "conftest.py").open("a") as file:
        file.write(again)

    suite.run(*PRUNE)

    assert entries(suite) == 2


NESTED = """
def inner(tune):
    for m in (1, 2):
        tune("lib.inner", M=m)

def test_outer(tune):
    tune("lib.outer", source="{source}", during=lambda: inner(tune))

def test_inner(tune):
    tune("lib.inner", M=1)
"""


def test_a_hit_counts_entries_of_its_nested_tunings_as_used(serial_suite: Suite, section) -> None:
    """Only the outer tuning requests the inner problem. A hit of the outer problem does not run it."""
    serial_suite.write(test_lib=NESTED.format(source="one")).prepare_dump()

    result = serial_suite.load("--autotune-fail-on-unused")

    assert result.ret == 0
    assert section(result)[-1].startswith("2 hits")
    serial_suite.load("--autotune-update=prune")
    serial_suite.write(test_lib=NESTED.format(source="two"))
    assert serial_suite.report("--autotune-load=cache.textproto")["counts"]["hit"] == 2  # both of lib.inner


def test_renaming_a_kernel_also_renames_it_in_nested_entries(serial_suite: Suite) -> None:
    """The entry's field asked_by gets the new name of the outer tuning."""
    serial_suite.write(test_lib=NESTED.format(source="one")).prepare_dump()
    serial_suite.write(test_lib=NESTED.format(source="one").replace("lib.outer", "lib.renamed"))

    serial_suite.load("--autotune-update=prune")

    assert 'asked_by: "toy:lib.renamed"' in serial_suite.cache.read_text()
    assert serial_suite.load("--autotune-fail-on-unused").ret == 0


def test_a_nested_entry_is_unused_if_its_outer_kernel_is_gone(serial_suite: Suite) -> None:
    serial_suite.write(test_lib=NESTED.format(source="one")).prepare_dump()
    serial_suite.write(test_lib="def test_inner(tune): tune('lib.inner', M=1)")

    report = serial_suite.report("--autotune-load=cache.textproto")

    assert [entry["key"] for entry in report["unused"]] == [{"M": 2}]


@pytest.mark.parametrize(
    ("has_ini_files", "cache", "reason"),
    [
        (True, "../cache.textproto", "lies outside the rootdir *, so other suites may use it"),
        (True, "../caches/cache.textproto", "lies outside the rootdir *, so other suites may use it"),
        (
            False,
            "../cache.textproto",
            "lies outside *, pytest's rootdir without an ini file, so other suites may use it",
        ),
    ],
)
def test_prune_drops_nothing_from_a_cache_outside_the_rootdir(
    serial_suite: Suite, monkeypatch: pytest.MonkeyPatch, has_ini_files: bool, cache: str, reason: str
) -> None:
    """With ini files, the run is that of a package inside a repository. Without, the rootdir is the current folder."""
    below(serial_suite)
    if has_ini_files:
        serial_suite.pytester.makeini("[pytest]\n")
        (serial_suite.folder / "tests/pytest.ini").write_text("[pytest]\n")
    (serial_suite.folder / "caches").mkdir()
    shutil.copy(serial_suite.cache, serial_suite.folder / "caches/cache.textproto")
    monkeypatch.chdir(serial_suite.folder / "tests")

    result = serial_suite.run(f"--autotune-load={cache}", "--autotune-update=prune", "--confcutdir=..")

    result.stdout.fnmatch_lines([f"no unused entry was removed, because the run was not complete: {cache} {reason}"])
    assert Path(cache).read_text().count("entries {") == 3


def test_prune_works_on_a_cache_outside_rootdir_named_in_the_ini(
    serial_suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    below(serial_suite)
    ini_text = "[pytest]\nautotune_load = ../cache.textproto\n"
    (serial_suite.folder / "tests/pytest.ini").write_text(ini_text)
    monkeypatch.chdir(serial_suite.folder / "tests")

    serial_suite.run("--autotune-update=prune", "--confcutdir=..")

    # The entry for M=2 is gone. The kernel lib.other stays, because no test of this suite imports or launches it.
    assert entries(serial_suite) == 2


@pytest.mark.parametrize("option", ["--noconftest", "--confcutdir=tests"])
def test_prune_removes_no_entry_if_a_conftest_is_left_out(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Without the conftest.py, the test runs with one size instead of two."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\n")
    pytester.makeconftest(
        "def pytest_generate_tests(metafunc):\n"
        "    if 'size' in metafunc.fixturenames: metafunc.parametrize('size', [1, 2])\n"
    )
    pytester.mkdir("tests").joinpath("test_op.py").write_text(
        "import pytest\n@pytest.fixture\ndef size(): return 1\n"
        "def test_op(autotune_cache, size):\n"
        "    autotune_cache.tune('op', key={'size': size}, space=[1, 2], run=print)\n"
    )
    plugin = "-ppytest_autotune.plugin"
    pytester.runpytest_subprocess(plugin, "--autotune-dump=c.textproto")
    result = pytester.runpytest_subprocess(plugin, "--autotune-load=c.textproto", "--autotune-update=prune", option)

    reason = f"{option.partition('=')[0]} may leave out a part of the tests"
    result.stdout.fnmatch_lines([f"no unused entry was removed, because the run was not complete: {reason}"])
    assert pytester.path.joinpath("c.textproto").read_text().count("\nentries {") == 2


@pytest.mark.parametrize(("typed", "environment"), [(["-p", "no:unittest"], ""), ([], "-p no:unittest")])
def test_prune_removes_no_entry_if_the_unittest_plugin_is_off(
    serial_suite: Suite, typed: list[str], environment: str
) -> None:
    shrunk(serial_suite)

    serial_suite.run(*PRUNE, *typed, PYTEST_ADDOPTS=environment)

    assert entries(serial_suite) == 3


#: A conftest.py whose tests get other node ids after the collection. A test may add lines to the last hook.
RENAMES_TESTS = """
import pytest

is_collected = False

class Renamed(pytest.Function):
    @property
    def nodeid(self):
        node_id = super().nodeid
        return {new_node_id} if is_collected else node_id

def pytest_pycollect_makeitem(collector, name, obj):
    if name.startswith("test_"):
        return Renamed.from_parent(collector, name=name, callobj=obj)

def pytest_collection_modifyitems(items):
    global is_collected
    is_collected = True
"""
ENDS_AFTER_FIRST_TEST = """
def pytest_runtest_teardown(nextitem):
    if nextitem is not None:
        pytest.exit("enough", returncode=0)
"""
TWO_TESTS = "def test_1(tune): tune('lib.op', M=1)\ndef test_2(tune): tune('lib.op', M=2)\n"


def test_tests_that_share_a_node_id_make_a_run_incomplete(serial_suite: Suite) -> None:
    """The reports do not tell the tests apart. So a prune keeps the entry of the test that did not run."""
    serial_suite.write(test_op=TWO_TESTS).prepare_dump()
    content = serial_suite.cache.read_text()
    add_to_conftest(serial_suite, RENAMES_TESTS.format(new_node_id="'shared'") + ENDS_AFTER_FIRST_TEST)

    serial_suite.run(*PRUNE)

    assert serial_suite.cache.read_text() == content


@pytest.mark.parametrize(
    ("new_node_id", "statement"),
    [("node_id + '_renamed'", "items += copies"), ("node_id", "items[:] = copies")],
    ids=["beside the renamed tests", "in place of the tests"],
)
def test_a_run_with_copies_of_its_tests_is_complete(serial_suite: Suite, new_node_id: str, statement: str) -> None:
    """The prune of a complete run removes the entry of M=2, which no test asks for any more."""
    serial_suite.write(test_op=TWO_TESTS).prepare_dump()
    serial_suite.write(test_op=TWO_TESTS.replace("M=2", "M=1"))
    copies = "[Renamed.from_parent(item.parent, name=item.name, callobj=item.obj) for item in items]"
    hook_lines = f"    copies = {copies}\n    {statement}\n"
    add_to_conftest(serial_suite, RENAMES_TESTS.format(new_node_id=new_node_id) + hook_lines)

    result = serial_suite.run(*PRUNE)

    result.stdout.fnmatch_lines(["*1 unchanged, 1 removed"])


def add_to_conftest(suite: Suite, text: str) -> None:
    conftest = suite.folder / "conftest.py"
    conftest.write_text(f"{conftest.read_text()}\n{text}")
