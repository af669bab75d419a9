"""The section ``autotune cache``: quiet when all is well, and otherwise what happened where, and what mends it."""

from __future__ import annotations

import pytest

from tests.conftest import Suite
from tests.reasons import describe_changed

MANY = (
    "import pytest\n@pytest.mark.parametrize('m', range(12))\ndef test_op(tune, m): tune(f'lib.op{{m}}', M=m{more})\n"
)

SIZES = "import pytest\n@pytest.mark.parametrize('m', [{ms}])\ndef test_op(tune, m): tune('lib.op', M=m, N=8{more})\n"
UPDATE = "Re-run with --autotune-load=cache.textproto --autotune-update=all"


@pytest.fixture
def outdated(serial_suite: Suite) -> Suite:
    """A suite with one hit, 12 misses and 12 stale problems, the kernels of which are named by their outcome."""
    serial_suite.write(test_stale=MANY.replace("lib.op", "lib.stale").format(more=""), test_hit=hit()).prepare_dump()
    return serial_suite.write(
        test_stale=MANY.replace("lib.op", "lib.stale").format(more=", source='two'"),
        test_miss=MANY.replace("lib.op", "lib.miss").format(more=""),
    )


def hit() -> str:
    return "def test_hit(tune): tune('lib.hit')"


def without_seconds(lines: list[str]) -> list[str]:
    return [line.partition(" in 0.")[0] for line in lines]


def test_the_summary_of_a_run_with_only_hits_is_one_line(suite: Suite, section) -> None:
    suite.write().serial.prepare_dump()

    assert section(suite.load()) == ["4 hits"]


@pytest.mark.parametrize("flag", ["-q", "-qq"])
def test_a_quiet_run_with_only_hits_has_no_summary(suite: Suite, section, flag: str) -> None:
    suite.write().serial.prepare_dump()

    assert section(suite.load(flag)) == []


def test_the_summary_of_a_dump_is_one_line_of_counts(serial_suite: Suite, section) -> None:
    """The line counts the tuned problems and the written entries."""
    for args in ([], ["-v"]):
        (line,) = section(serial_suite.write().dump(*args))

        assert line.startswith("4 problems tuned")
        assert line.endswith("; 4 entries written to cache.textproto: 4 added") == (not args)
        assert line.endswith("; cache.textproto is up to date (4 entries)") == bool(args)


def test_a_quiet_run_shows_the_counts_and_the_update_command(outdated: Suite, section) -> None:
    lines = without_seconds(section(outdated.load("-q")))

    assert lines[:2] == ["1 hit, 12 misses, 12 stale; 24 tuned", f"{UPDATE} to update the cache."]


def test_a_quiet_run_shows_written_entries_and_a_refused_prune(serial_suite: Suite, section) -> None:
    serial_suite.write()

    assert section(serial_suite.dump("-q"))[:-1] == ["4 entries written to cache.textproto: 4 added"]
    refused = section(serial_suite.load("-q", "--autotune-update=prune", "-k", "not 1"))
    assert refused[:-1] == [
        "no unused entry was removed, because the run was not complete: -k selects a part of the tests",
        "cache.textproto is up to date (4 entries)",
    ]


def test_a_very_quiet_run_hides_misses_and_the_update_command(outdated: Suite, section) -> None:
    assert section(outdated.load("-qq")) == []


@pytest.mark.parametrize(
    "args",
    [
        ["--fixtures"], ["--fixtures-per-test"], ["--collect-only"], ["-n2", "--collect-only"], ["--setup-plan"],
        ["--cache-show"], ["--markers"], ["--help"], ["--version"],
    ],
)  # fmt: skip
def test_an_option_that_runs_no_test_writes_no_file_or_summary(serial_suite: Suite, section, args: list[str]) -> None:
    """Options such as --collect-only run no test. Such a run writes no file and has no gate."""
    serial_suite.write().prepare_dump()
    before = serial_suite.cache.read_bytes()
    options = ["--autotune-dump=other.textproto", "--autotune-max-misses=0", "--autotune-report=report.json"]

    result = serial_suite.load(*options, *(["-pxdist"] if "-n2" in args else []), *args)

    assert (result.ret, section(result)) == (0, [])
    assert not (serial_suite.folder / "report.json").exists()
    assert not (serial_suite.folder / "other.textproto").exists()
    assert serial_suite.cache.read_bytes() == before


def test_the_summary_is_the_same_serially_and_with_workers(suite: Suite, section) -> None:
    suite.write(test_op=MANY.format(more="")).serial.prepare_dump()
    suite.write(test_op=MANY.format(more=", source='two'"))

    lines = without_seconds(section(suite.load()))

    shown = (0, 1, 10, 11, *range(2, 8))
    assert lines == [
        *(f"STALE test_op.py::test_op[{m}] - toy:lib.op{m} (M={m}): {describe_changed('source')}" for m in shown),
        "(2 more stale hidden.  Use -v to show all.)",
        "0 hits, 12 stale; 12 tuned",
        f"{UPDATE} to update the cache.",
    ]


def test_misses_of_a_kernel_are_one_row_unless_a_run_is_verbose(serial_suite: Suite, section) -> None:
    serial_suite.write(test_op=SIZES.format(ms="100", more="")).prepare_dump()
    serial_suite.write(test_op=SIZES.format(ms="*range(100, 115)", more=""))

    lines = without_seconds(section(serial_suite.load()))
    each = section(serial_suite.load("-v"))

    assert lines[:2] == [
        "MISS test_op.py::test_op[101] - toy:lib.op (N=8): 14 misses, M = 101 … 114; the nearest entry has M 100",
        "1 hit, 14 misses; 14 tuned",
    ]
    assert len([line for line in each if line.startswith("MISS")]) == 14
    assert each[0].endswith("toy:lib.op (M=101, N=8): no entry; the nearest entry has M 100 instead of 101")


RED, GREEN, YELLOW, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"


def test_the_summary_is_coloured_by_outcome(outdated: Suite) -> None:
    """Misses are yellow, or red if the gate fails. Counts without misses are green."""
    clean = outdated.load("--color=yes", "-k", "hit").stdout.str()
    passing = outdated.load("--color=yes").stdout.str()
    failed = outdated.load("--color=yes", "--autotune-max-misses=0").stdout.str()

    assert f"{GREEN}1 hit{PLAIN}" in clean
    assert f"{YELLOW}MISS{PLAIN} test_miss.py" in passing
    assert f"{YELLOW}1 hit, 12 misses" in passing
    assert f"{RED}MISS{PLAIN} test_miss.py" in failed
    assert f"{RED}1 hit, 12 misses" in failed


@pytest.mark.parametrize(
    ("args", "environment"),
    [(["--color=no"], {}), ([], {}), ([], {"NO_COLOR": "1", "FORCE_COLOR": "1"}), ([], {"PY_COLORS": "0"})],
)
def test_the_summary_has_no_colour_if_colours_are_off(
    outdated: Suite, args: list[str], environment: dict[str, str]
) -> None:
    output = outdated.load("--autotune-max-misses=0", *args, **environment).stdout.str()

    assert "\x1b[" not in output


HINTS = [
    pytest.param("", ["--autotune-load=./cache.textproto"], "--autotune-load=./cache.textproto", id="as typed"),
    pytest.param("autotune_load = cache.textproto", [], "", id="ini"),
    pytest.param(
        "autotune_load = cache.textproto\n autotune_dump = cache.textproto",
        ["--autotune-dump=", "--autotune-load=cache.textproto"],
        "--autotune-load=cache.textproto",
        id="command line before ini",
    ),
    pytest.param(
        "autotune_on_stale = use\nautotune_load = cache.textproto",
        [],
        "--autotune-update",
        id="on stale",
    ),
]


@pytest.mark.parametrize(("ini", "args", "typed"), HINTS)
def test_running_the_suggested_command_updates_the_cache(
    outdated: Suite, section, ini: str, args: list[str], typed: str
) -> None:
    outdated.pytester.makeini(f"[pytest]\n{ini}\n")

    lines = section(outdated.run(*args))

    hint = lines[-1]
    assert hint.startswith("Re-run with ")
    assert typed in hint
    options = hint.removeprefix("Re-run with ").removesuffix(" to update the cache.").split()
    assert outdated.run(*options).ret == 0
    assert len(outdated.tunings) == 24
    assert outdated.load("--autotune-max-misses=0").ret == 0


def test_the_suggested_command_quotes_a_path_with_a_space(outdated: Suite) -> None:
    outdated.cache.rename(outdated.folder / "my cache.textproto")

    result = outdated.run("--autotune-load=my cache.textproto")

    result.stdout.fnmatch_lines(["Re-run with '--autotune-load=my cache.textproto' --autotune-update=all to*"])


def test_suggested_command_keeps_the_slash_at_the_end_of_a_path(
    serial_suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial_suite.write(test_hit=hit()).run("--autotune-dump=cache/")
    serial_suite.write(test_hit="def test_hit(tune): tune('lib.hit', source='two')")
    below = serial_suite.folder / "below"
    below.mkdir()
    monkeypatch.chdir(below)

    result = serial_suite.run("..", "--autotune-load=../cache/")

    result.stdout.fnmatch_lines(["Re-run with --autotune-load=../cache/ --autotune-update=all to update the cache."])


@pytest.mark.parametrize(
    ("args", "header"),
    [
        (["--autotune-load=cache.textproto"], "autotune: load cache.textproto (4 entries)"),
        (["--autotune-dump=new.pb"], "autotune: dump new.pb"),
        (
            ["--autotune-load=one.textproto", "--autotune-load=cache.textproto", "--autotune-dump=cache.textproto"],
            "autotune: load one.textproto (1 entry), load cache.textproto (4 entries), dump cache.textproto",
        ),
    ],
)
def test_the_header_of_pytest_names_the_loaded_and_dumped_files(suite: Suite, args: list[str], header: str) -> None:
    suite.write().serial.run("--autotune-dump=one.textproto", "-k", "softmax")
    suite.serial.dump()

    suite.run(*args).stdout.fnmatch_lines([header])


def test_without_options_only_the_option_table_is_imported(
    serial_suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial_suite.pytester.makepyfile("""
        import sys
        def test_imports():
            ours = {name for name in sys.modules if name.startswith("pytest_autotune")}
            tables = {"plugin.options", "modes", "tuners"}  # of which the help is made
            assert ours <= {"pytest_autotune", *(f"pytest_autotune.{name}" for name in
                            {"plugin", "report", *tables})}
            assert not {"torch", "triton", "jax", "yaml", "google.protobuf", "wrapt"} & sys.modules.keys()
    """)

    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    result = serial_suite.pytester.runpytest_subprocess("-ppytest_autotune.plugin")

    result.assert_outcomes(passed=1)
