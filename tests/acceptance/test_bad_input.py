"""A wrong option, ini value, marker or file is one line of error, before any test runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_autotune.plugin.options import OPTIONS
from pytest_autotune.report import FILES
from tests.conftest import ALL_DISTRIBUTIONS, Suite

#: Leaves a trace when a test of the suite runs.
RUNS = "def test_runs(): open('ran', 'w')"


@pytest.fixture
def bad(serial_suite: Suite) -> Suite:
    return serial_suite.write(test_runs=RUNS)


def refused(suite: Suite, result: pytest.RunResult) -> str:
    """The one line that a run ended with, before any test ran."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert not (suite.folder / "ran").exists()
    lines = [line for line in [*result.errlines, *result.outlines] if line.strip()]
    assert len(lines) == 1, lines
    assert lines[0].startswith("ERROR: ")
    return lines[0].removeprefix("ERROR: ")


ENTRY = 'entries { tuner: "toy" kernel: "k" device: "toy-gpu-toy-4" choice { params { name: "config" text: "a" } } }\n'
DEVICE = 'devices { id: "toy-gpu-toy-4" name: "Toy GPU" arch: "toy" multiprocessors: 4 }\n'
WHOLE = "format_version: 1\n" + DEVICE + ENTRY


def write(name: str, data: str | bytes) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
        return name

    return make


def make_folder(name: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / name).mkdir()
        (folder / name / "keep.txt").write_text("mine")
        return name

    return make


def endless(folder: Path) -> str:
    (folder / "cache.textproto").symlink_to("cache.textproto")
    return "cache.textproto"


LOADS = [
    pytest.param(
        lambda folder: "none.textproto",
        "none.textproto: no such file in /* (correct the path, or create it with --autotune-dump=none.textproto)",
        id="missing",
    ),
    pytest.param(write("cache.textproto", ""), "cache.textproto: *empty*", id="empty text"),
    pytest.param(write("cache.textproto", WHOLE[:-20]), "cache.textproto:3*restore it*", id="truncated text"),
    pytest.param(
        write("cache.textproto", "format_version: 99\n"), "cache.textproto*99*upgrade pytest-autotune*", id="newer text"
    ),
    pytest.param(make_folder("cache.textproto"), "cache.textproto: is a folder*", id="folder without slash"),
    pytest.param(
        lambda folder: make_folder("cache")(folder) + "/",
        "cache/: is a folder with other files in it, not a cache (name *",
        id="folder",
    ),
    pytest.param(lambda folder: "cache/", "cache/: no such folder (*create one with *=cache/)", id="no such folder"),
    pytest.param(write("cache.docx", WHOLE), "cache.docx: the suffix*", id="unknown suffix"),
    pytest.param(
        lambda folder: "cache.pb?optinal",
        "cache.pb?optinal: the option ?optinal of a file is unknown (a load knows ?optional)",
        id="unknown option",
    ),
    pytest.param(
        lambda folder: "x" * 300 + ".textproto", "xxx*.textproto: cannot be read: File name too long", id="long name"
    ),
    pytest.param(endless, "cache.textproto: cannot be read: Too many levels of symbolic links", id="link to itself"),
]


@pytest.mark.parametrize(("make", "message"), LOADS)
def test_loading_an_unreadable_cache_path_is_a_usage_error(
    bad: Suite, make: Callable[[Path], str], message: str
) -> None:
    name = make(bad.folder)

    line = refused(bad, bad.run(f"--autotune-load={name}"))

    pytest.LineMatcher([line]).fnmatch_lines([f"--autotune-load: {message}"])


def test_an_unknown_field_in_the_second_loaded_cache_is_reported(bad: Suite, section) -> None:
    write("first.textproto", WHOLE)(bad.folder)
    write("second.textproto", WHOLE + "invented: 7\n")(bad.folder)

    result = bad.run("--autotune-load=first.textproto", "--autotune-load=second.textproto")

    assert result.ret == 0
    assert "second.textproto" in "".join(line for line in section(result) if "invented" in line)


@pytest.mark.parametrize("distribution", [name for name in ALL_DISTRIBUTIONS if name != "serial"])
def test_bad_options_stop_an_xdist_run_before_workers_start(bad: Suite, distribution: str) -> None:
    bad.distribution = ALL_DISTRIBUTIONS[distribution]

    assert "no such file" in refused(bad, bad.load())
    assert "write -o autotune_ci=VALUE" in refused(bad, bad.run("--autotune-load=c.pb", "--autotune-ci=off"))
    assert "expected tune or first or nearest or error" in refused(bad, bad.run("--autotune-on-miss=perhaps"))


DUMPS = [
    pytest.param(make_folder("cache.textproto"), "cache.textproto: is a folder*", id="folder without slash"),
    pytest.param(
        lambda folder: make_folder("tests")(folder) + "/", "tests/: is a folder with other files in it*", id="folder"
    ),
    pytest.param(
        lambda folder: write("file", "")(folder) + "/cache.pb", "file/cache.pb: *Not a directory", id="below a file"
    ),
    pytest.param(lambda folder: "cache.docx", "cache.docx: the suffix*", id="unknown suffix"),
    pytest.param(lambda folder: "cache", "cache: has no suffix*", id="no suffix"),
    pytest.param(write("cache.textproto", "what is this"), "cache.textproto:1*", id="corrupt"),
    pytest.param(write("cache.json", '{"format_version": 99}'), "cache.json*99*upgrade*", id="newer"),
    pytest.param(
        write("cache.textproto", WHOLE + "invented: 7\n"),
        "cache.textproto*upgrade pytest-autotune*",
        id="unknown field",
    ),
]


@pytest.mark.parametrize(("make", "message"), DUMPS)
def test_a_dump_to_an_unusable_path_is_a_usage_error(bad: Suite, make: Callable[[Path], str], message: str) -> None:
    """The path is a folder, has an unknown suffix or holds an unreadable file. All existing files stay as they are."""
    name = make(bad.folder)
    before = {path: path.read_bytes() for path in bad.folder.rglob("*") if path.is_file()}

    line = refused(bad, bad.run(f"--autotune-dump={name}"))

    pytest.LineMatcher([line]).fnmatch_lines([f"--autotune-dump: {message}"])
    assert {path: path.read_bytes() for path in before} == before


def test_a_dump_to_an_invalid_file_name_is_a_usage_error(bad: Suite) -> None:
    """The name is too long, in no real folder or not in UTF-8. The run ends before its first test."""
    for name, message in [
        ("x" * 300 + ".textproto", "*cannot be read: File name too long"),
        ("x" * 240 + ".textproto", "*cannot be written in *: File name too long"),
        ("名" * 80 + ".textproto", "*cannot be written in *: File name too long"),
        ("/proc/x.textproto", "*cannot be written in /proc: No such file or directory"),
        (os.fsdecode(b"\xff.textproto"), "*the path is not encoded in UTF-8 (rename the file or folder)"),
    ]:
        line = refused(bad, bad.run(f"--autotune-dump={name}"))
        pytest.LineMatcher([line]).fnmatch_lines([f"--autotune-dump: {message}"])


WAYS_BACK = [
    (["--autotune-dump=build/../cache.textproto"], "--autotune-dump: build/../cache.textproto: "),
    (["--autotune-load=build/../cache.textproto", "--autotune-update"], "--autotune-load: build/../cache.textproto: "),
    (["-oautotune_dump=build/../cache.textproto"], "autotune_dump (ini): build/../cache.textproto: "),
    (["--autotune-report=build/../cache.json"], "--autotune-report: build/../cache.json: "),
]


@pytest.mark.parametrize(("args", "where"), WAYS_BACK, ids=["dump", "update", "ini", "report"])
def test_a_path_through_a_missing_folder_is_a_usage_error(bad: Suite, args: list[str], where: str) -> None:
    (bad.folder / "cache.textproto").write_text(WHOLE)

    assert refused(bad, bad.run(*args)).endswith(f"{where}cannot be read: there is no folder build")

    assert (bad.folder / "cache.textproto").read_text() == WHOLE
    assert not (bad.folder / "build").exists()


@pytest.mark.parametrize("module", ["raise ValueError", "def test_plain(): pass"])
def test_a_dump_that_tuned_nothing_writes_no_file(serial_suite: Suite, section, module: str) -> None:
    result = serial_suite.write(test_bad=module).dump()

    assert section(result)[-1] == "no kernel was tuned, so cache.textproto was not written"
    assert not serial_suite.cache.exists()


def test_exception_whose_str_method_raises_fails_only_its_test(suite: Suite) -> None:
    suite.write(
        test_bad="""
        class Wordless(Exception):
            def __str__(self): raise ValueError
        def test_bad(): raise Wordless
        def test_good(): pass
        """
    )
    suite.dump().assert_outcomes(failed=1, passed=1)


BAD_OPTIONS = [
    (["--autotune-on-miss=perhaps"], "--autotune-on-miss: expected tune or first or nearest or error, not 'perhaps'"),
    (["--autotune-on-stale=keep"], "--autotune-on-stale: expected tune or use or error, not 'keep'"),
    (["--autotune-max-misses=1.5"], "--autotune-max-misses: expected a count such as 0, or *, not '1.5'"),
    (["--autotune-max-misses=nan%"], "--autotune-max-misses: expected *"),
    (["--autotune-report=report.pdf"], "--autotune-report: report.pdf: unknown kind of report (*.json*)"),
    (["--autotune-report=folder.json"], "--autotune-report: folder.json: is not a file (name another file)"),
    (["--autotune-report=file/a.json"], "--autotune-report: file/a.json: cannot be written: File exists"),
    (["--autotune-report=pipe.json"], "--autotune-report: pipe.json: is not a file (name another file)"),
    ([f"--autotune-report={'x' * 300}.json"], "--autotune-report: xxx*.json: cannot be written: File name too long"),
    *(
        ([f"--autotune-report=mine{suffix}"], f"--autotune-report: mine{suffix}: exists and is not a report of *")
        for suffix in FILES
    ),
    (
        ["--autotune-dump=new.json", "--autotune-report=new.json"],
        "--autotune-report: new.json: is a cache *",
    ),
    (
        ["--autotune-dump=s3:///x/"],
        "--autotune-dump: s3:///x/: is a URL of an unknown kind of store (name one of s3://*",
    ),
    (
        ["--autotune-load=https://host/c.pb"],
        "--autotune-load: https://host/c.pb: is a URL of an unknown kind *, or a path)",
    ),
    (["--autotune-load=s3://x/a#b/"], "--autotune-load: s3://x/a#b/: is a URL of an unknown kind *"),
    (["--autotune-load=s3://x/../y/"], "--autotune-load: s3://x/../y/: is a URL of an unknown kind *"),
    (["--autotune-load=s3://id:a/b@x/y/?s=c"], "--autotune-load: s3://x/y/: the URL holds credentials (remove them*"),
    (["--autotune-load=az://x/?sig=secret"], "--autotune-load: az://x/: the option [?]sig is unknown (known are *"),
    (["--autotune-load=s3://x/?fast"], "--autotune-load: s3://x/: the option [?]fast is unknown (known are *"),
    (
        ["--autotune-dump=c.textproto?optional"],
        "--autotune-dump: c.textproto[?]optional: [?]optional works only for --autotune-load and autotune_load (leave*",
    ),
    (["--autotune-report=s3://x/r.json"], "--autotune-report: s3://x/r.json: is a URL, but a report must be a file (*"),
    (
        ["--autotune-update=prun"],
        "--autotune-update: expected all or new or prune, not 'prun' (before a path*",
    ),
    (
        ["--autotune-update=prune", "--autotune-dump=c.pb"],
        "--autotune-dump: --autotune-update=prune always tunes, and always writes the loaded cache "
        "(leave one of the two out)",
    ),
    (
        ["-oautotune_spread_gpus=true"],
        "autotune_spread_gpus: GPUs are spread over xdist's workers, and this run has no workers (add -n=NUM)",
    ),
    (["--autotune-tuners=triton,nothing.else"], "--autotune-tuners: unknown tuner 'nothing.else' (known: triton*)"),
]
INI_ONLY_FLAGS = [
    ("--autotune-ci=off", "write -o autotune_ci=VALUE, or set it in the ini file"),
    ("--autotune-compile-ahead=off", "write -o autotune_compile_ahead=VALUE, or set it in the ini file"),
    ("--autotune-verify-seconds=3", "write -o autotune_verify_seconds=VALUE, or set it in the ini file"),
    ("--autotune-spread-gpus", "write -o autotune_spread_gpus=VALUE, or set it in the ini file"),
]
INI = [
    ("autotune_max_misses = many", "autotune_max_misses (ini): expected a count such as 0, or *, not 'many'"),
    ("autotune_fail_on_unused = perhaps", "autotune_fail_on_unused (ini): *perhaps*"),
    ("autotune_keep_candidates = 7", "autotune_keep_candidates (ini): *7*"),
    ("autotune_tuners = tritn", "autotune_tuners (ini): unknown tuner 'tritn' (known: triton*)"),
    ("autotune_load = 'unclosed", "autotune_load (ini): *"),
    (
        "autotune_load = none.pb",
        "autotune_load (ini): none.pb: no such file in /* (*create it with *=none.pb)",
    ),
    ("autotune_device_alias = H100", "autotune_device_alias (ini): expected 'DEVICE = OTHER DEVICE', not 'H100'"),
    ("autotune_wait_timeout = long", "autotune_wait_timeout (ini): expected a number of seconds, not 'long'"),
    ("autotune_wait_timeout = nan", "autotune_wait_timeout (ini): expected a number of seconds, not 'nan'"),
]


@pytest.fixture
def in_the_way(bad: Suite) -> Suite:
    (bad.folder / "folder.json").mkdir()
    os.mkfifo(bad.folder / "pipe.json")
    (bad.folder / "file").write_text("")
    for suffix in FILES:
        (bad.folder / f"mine{suffix}").write_text('{"mine": 1}')
    return bad


@pytest.mark.parametrize(
    ("args", "message"), BAD_OPTIONS, ids=lambda value: " ".join(value) if type(value) is list else ""
)
def test_an_invalid_option_of_the_plugin_is_a_usage_error(in_the_way: Suite, args: list[str], message: str) -> None:
    pytest.LineMatcher([refused(in_the_way, in_the_way.run(*args))]).fnmatch_lines([message])


@pytest.mark.parametrize(("flag", "instead"), INI_ONLY_FLAGS)
def test_an_ini_only_setting_used_as_an_option_is_a_usage_error(bad: Suite, flag: str, instead: str) -> None:
    message = refused(bad, bad.run("--autotune-load=c.pb", flag))

    assert message == f"{flag.partition('=')[0]}: there is no such option ({instead})"


@pytest.mark.parametrize(("ini", "message"), INI)
def test_an_invalid_ini_value_of_the_plugin_is_a_usage_error(in_the_way: Suite, ini: str, message: str) -> None:
    in_the_way.pytester.makeini(f"[pytest]\n{ini}\n")

    pytest.LineMatcher([refused(in_the_way, in_the_way.run())]).fnmatch_lines([message])


NATIVE = [
    "autotune_max_misses = true",
    'autotune_load = "none.pb"',
    'autotune_fail_on_unused = "yes"',
    "autotune_wait_timeout = false",
    "autotune_on_miss = 1",
]


@pytest.mark.skipif(pytest.version_tuple < (9,), reason="native TOML came with pytest 9")
@pytest.mark.parametrize("line", NATIVE)
def test_an_ini_value_of_a_wrong_toml_type_is_a_usage_error(bad: Suite, line: str) -> None:
    if sys.version_info < (3, 11):
        pytest.importorskip("tomli")
    (bad.folder / "pytest.toml").write_text(f"[pytest]\n{line}\n")

    assert refused(bad, bad.run()).startswith(f"{line.split()[0]} (ini): ")


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_pytest_help_and_version_work_with_invalid_ini_values(bad: Suite, flag: str) -> None:
    bad.pytester.makeini("[pytest]\nautotune_max_misses = many\nautotune_load = none.pb\n")

    assert bad.run(flag).ret == 0


def test_pytest_help_lists_every_option_and_ini_key(serial_suite: Suite) -> None:
    output = " ".join(serial_suite.run("--help").stdout.str().split())

    for name in "load", "dump", "on-miss", "on-stale", "max-misses", "report", "tuners":
        assert f"--autotune-{name}" in output
        assert f"autotune_{name.replace('-', '_')} (" in output
    flags = set(re.findall(r"--autotune-[a-z-]+", output))
    assert flags - {"--autotune-"} == {option.flag for option in OPTIONS if option.is_flag}
    assert "command line: pytest-autotune --help; documentation: docs/" in output
    assert "more than N or P% of the problems" in output
    assert "%%" not in output


def test_pytest_markers_lists_the_autotune_cache_marker(serial_suite: Suite) -> None:
    serial_suite.run("--markers").stdout.fnmatch_lines(["@pytest.mark.autotune_cache(load=PATH, enabled=True): *"])


def test_empty_load_and_dump_options_cancel_the_paths_in_the_ini(serial_suite: Suite) -> None:
    serial_suite.write().pytester.makeini("[pytest]\nautotune_load = none.textproto\nautotune_dump = none/none.docx\n")

    result = serial_suite.run("--autotune-load=", "--autotune-dump=")

    assert result.ret == 0
    result.stdout.no_fnmatch_line("*autotune*")


def test_ini_paths_start_at_the_ini_file_option_paths_at_the_cwd(
    serial_suite: Suite, monkeypatch: pytest.MonkeyPatch, section
) -> None:
    """A path of the ini file starts at the ini file. A path of the command line starts at the invocation folder."""
    serial_suite.write().prepare_dump()
    below = serial_suite.folder / "below"
    below.mkdir()
    (below / "typed.textproto").write_text(serial_suite.cache.read_text())
    serial_suite.pytester.makeini("[pytest]\nautotune_load = cache.textproto\n")
    monkeypatch.chdir(below)

    from_ini = serial_suite.run("..")
    typed = serial_suite.run("..", "--autotune-load=typed.textproto", "--autotune-dump=new.textproto")

    assert section(from_ini) == ["4 hits"]
    from_ini.stdout.fnmatch_lines([f"autotune: load {Path('..', 'cache.textproto')} (4 entries)"])
    assert section(typed)[0].startswith("4 hits; 4 entries written to new.textproto")
    assert (below / "new.textproto").exists()


def test_missing_cache_from_the_ini_is_shown_relative_to_the_cwd(bad: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    bad.pytester.makeini("[pytest]\nautotune_load = caches/none.pb\n")
    below = bad.folder / "below"
    below.mkdir()
    monkeypatch.chdir(below)

    path = Path("..", "caches", "none.pb")
    expected = (
        f"autotune_load (ini): {path}: no such file in {bad.folder / 'caches'} (correct the path, or create it with "
        f"--autotune-dump={path})"
    )
    assert refused(bad, bad.run("..")) == expected


def test_an_ini_list_of_caches_is_split_at_spaces_and_newlines(serial_suite: Suite, section) -> None:
    serial_suite.write().run("--autotune-dump=one.textproto", "-k", "matmul")
    serial_suite.run("--autotune-dump=two.textproto", "-k", "softmax")

    for separator in " ", "\n    ":
        serial_suite.pytester.makeini(f"[pytest]\nautotune_load =\n    one.textproto{separator}two.textproto\n")
        assert section(serial_suite.run()) == ["4 hits"]


def test_report_overwrites_no_cache_and_cannot_be_loaded_as_one(serial_suite: Suite) -> None:
    serial_suite.write().run("--autotune-dump=c.json", "--autotune-report=r.json")
    cache = serial_suite.folder / "c.json"
    before = cache.read_bytes()

    for option in "--autotune-load=c.json", "--autotune-on-miss=tune":
        message = refused(serial_suite, serial_suite.run(option, "--autotune-report=c.json"))
        assert message.startswith("--autotune-report: c.json: ")
    assert cache.read_bytes() == before
    for name in "r.json", "r.yaml", "r.textproto":
        (serial_suite.folder / name).write_bytes((serial_suite.folder / "r.json").read_bytes())
        message = refused(serial_suite, serial_suite.run(f"--autotune-load={name}"))
        assert message.startswith(f"--autotune-load: {name}: is a report of a run, not a cache (name the cache")


@pytest.mark.parametrize("suffix", FILES)
def test_a_report_overwrites_the_report_of_an_earlier_run(serial_suite: Suite, suffix: str) -> None:
    serial_suite.write().run("--autotune-dump=c.json", f"--autotune-report=r{suffix}")
    report = serial_suite.folder / f"r{suffix}"
    before = report.read_text()

    assert serial_suite.run("--autotune-load=c.json", f"--autotune-report=r{suffix}").ret == 0
    assert report.read_text() != before


BROKEN = {
    "none.textproto": None,
    "empty.textproto": "",
    "torn.textproto": WHOLE[:-20],
    "newer.json": '{"format_version": 99}',
    "cache.docx": WHOLE,
}


def test_unreadable_cache_named_in_a_marker_fails_only_its_test(suite: Suite) -> None:
    tests = suite.folder / "tests"
    tests.mkdir()
    text = "import pytest\n"
    for number, (name, data) in enumerate(BROKEN.items()):
        if data is not None:
            (tests / name).write_text(data)
        text += f"@pytest.mark.autotune_cache(load='{name}')\ndef test_marked_{number}(): pass\n"
        text += f"def test_loaded_{number}(autotune_cache): autotune_cache.load('{name}')\n"
    text += "@pytest.fixture\ndef loads(autotune_cache): autotune_cache.load('none.textproto')\n"
    text += "def test_fixture(loads): pass\ndef test_good(): pass\n"
    suite.write()
    (tests / "test_bad.py").write_text(text)

    result = suite.run("tests")

    result.assert_outcomes(passed=1, failed=len(BROKEN), errors=len(BROKEN) + 1)
    missing = str(Path("tests", "none.textproto"))
    event = f"no such file in {suite.folder / 'tests'}"
    line = f"autotune_cache: {missing}: {event} (correct the path, or create it with --autotune-update)"
    assert result.outlines.count(line) == 3
    for name in list(BROKEN)[1:]:
        error_lines = [line for line in result.outlines if line.startswith(f"autotune_cache: {Path('tests', name)}")]
        assert len(error_lines) == 2
        assert error_lines[0] == error_lines[1]
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


@pytest.mark.parametrize(
    "arguments", ["'cache.textproto'", "path='a'", "1, on=True", "load=7", "load=[7]", "enabled='no'"]
)
def test_a_marker_with_invalid_arguments_is_an_error_of_its_test(suite: Suite, arguments: str) -> None:
    suite.write(test_bad=f"import pytest\n@pytest.mark.autotune_cache({arguments})\ndef test_bad(): pass")

    result = suite.run()

    result.assert_outcomes(errors=1)
    message = f"marker autotune_cache: expected load=PATH, load=[PATH, PATH] or enabled=False, not {arguments}"
    assert result.outlines.count(message) == 1


def test_a_quiet_run_still_warns_of_a_misspelt_field_in_a_cache(serial_suite: Suite, section) -> None:
    serial_suite.write().run("--autotune-dump=cache.textproto")
    serial_suite.cache.write_text(serial_suite.cache.read_text().replace("fingerprint {", "fingreprint {"))

    lines = section(serial_suite.load("-q"))

    assert any('the field "fingreprint" is unknown (correct the name: is it "fingerprint"?)' in line for line in lines)
