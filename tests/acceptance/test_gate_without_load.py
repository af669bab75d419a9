"""A gate does not pass if no cache is loaded, or if no test looks up a loaded entry."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from pytest_autotune.cli.main import main
from pytest_autotune.tuners import TUNERS, BuiltInTuner
from tests.conftest import Suite
from tests.reasons import too_many_misses

GATES = ["--autotune-max-misses=0", "--autotune-on-miss=error"]


@pytest.mark.parametrize("gate", [*GATES, "--autotune-on-stale=error"])
def test_a_gate_option_without_a_loaded_cache_is_a_usage_error(suite: Suite, gate: str) -> None:
    result = suite.write().run(gate)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = f"{gate.partition('=')[0]}: no cache is loaded, so there is nothing to check (add --autotune-load=PATH)"
    if "-n2" in suite.distribution:  # the workers know the tests, and cannot refuse a run
        result.stdout.fnmatch_lines([f"!* {message}*"])
        result.stdout.no_fnmatch_line("*not judged*")  # one answer, not two
    else:
        result.stderr.fnmatch_lines([f"ERROR: {message}"])


def test_a_gate_in_the_ini_without_a_load_is_a_usage_error(serial_suite: Suite) -> None:
    serial_suite.write().pytester.makeini("[pytest]\nautotune_max_misses = 0\n")

    result = serial_suite.run()

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: autotune_max_misses (ini): no cache is loaded, *"])
    assert serial_suite.run("test_lib.py").ret == 0, "a part of a suite of which other tests may load caches"
    serial_suite.pytester.makeini("[pytest]\nautotune_on_miss = error\n")
    serial_suite.run("test_lib.py").stdout.no_fnmatch_line("*autotune cache*")


@pytest.mark.parametrize("options", [["--autotune-load="], ["--autotune-dump=new.textproto"], ["--collect-only"]])
def test_a_gate_in_the_ini_allows_an_empty_load_option(serial_suite: Suite, options: list[str]) -> None:
    """A dump and a run that only collects tests pass, too."""
    serial_suite.write().pytester.makeini("[pytest]\nautotune_max_misses = 0\nautotune_on_miss = error\n")

    assert serial_suite.run(*options).ret == 0


@pytest.mark.parametrize("gate", [*GATES, "--autotune-on-stale=error", "--autotune-fail-on-unused"])
def test_gate_option_with_an_empty_load_option_is_a_usage_error(serial_suite: Suite, gate: str) -> None:
    serial_suite.write().pytester.makeini("[pytest]\nautotune_load = cache.textproto\n")

    result = serial_suite.run("--autotune-load=", gate)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    flag = gate.partition("=")[0]
    result.stderr.fnmatch_lines([f"ERROR: {flag}: no cache is loaded, *"])


def test_the_gate_counts_misses_if_only_markers_load_a_cache(suite: Suite) -> None:
    suite.write().serial.prepare_dump()
    marker = 'import pytest\npytestmark = pytest.mark.autotune_cache(load="cache.textproto")\n'
    test = suite.folder / "test_lib.py"
    test.write_text(marker + test.read_text())

    assert suite.run("--autotune-max-misses=0").ret == 0
    assert suite.run("--autotune-on-miss=error", "-k", "nothing").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    test.write_text(test.read_text().replace("M=m", "M=2 * m"))
    suite.run("--autotune-max-misses=0").stdout.fnmatch_lines([f"!* {too_many_misses(1, '0')} !*"])


def test_a_gate_option_is_a_usage_error_if_no_cache_is_loaded(serial_suite: Suite) -> None:
    serial_suite.write(test_lib="def test_op(tune, autotune_cache): tune('lib.op')")

    assert serial_suite.run("--autotune-max-misses=0").ret == pytest.ExitCode.USAGE_ERROR


def test_the_gate_fails_if_no_test_used_any_loaded_entry(serial_suite: Suite, section) -> None:
    serial_suite.write().prepare_dump()
    for test in serial_suite.folder.glob("test_*.py"):
        test.write_text("def test_nothing(): pass\n")

    assert serial_suite.load().ret == 0
    result = serial_suite.load("--autotune-max-misses=5")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert section(result)[0].startswith("no test called an autotuned kernel; ")
    result.stdout.fnmatch_lines(["*! * entries were loaded, but no test used any !*"])
    assert serial_suite.load("--autotune-max-misses=5", "-o", "addopts=").ret == pytest.ExitCode.TESTS_FAILED
    skip_all(serial_suite)
    result = serial_suite.load("--autotune-max-misses=5")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    message = "*! * entries were loaded, but no test used any (test_*.py::test_gpu was skipped) !*"
    result.stdout.fnmatch_lines([message])


def skip_all(suite: Suite) -> None:
    """Have the suite's tests be as they are on a CI machine that has lost its GPU."""
    for test in suite.folder.glob("test_*.py"):
        test.write_text("import pytest\n@pytest.mark.skip\ndef test_gpu(): pass\ndef test_cpu(): pass\n")


def test_option_on_miss_error_fails_a_run_of_only_skipped_tests(serial_suite: Suite) -> None:
    """The same holds for --autotune-on-stale=error. A part of the suite passes."""
    serial_suite.write().prepare_dump()
    skip_all(serial_suite)

    assert serial_suite.load("--autotune-on-miss=error").ret == pytest.ExitCode.TESTS_FAILED
    assert serial_suite.load("--autotune-on-stale=error").ret == pytest.ExitCode.TESTS_FAILED
    assert serial_suite.load("--autotune-on-miss=error", "-k", "test_").ret == 0
    assert serial_suite.load().ret == 0, "without a gate"


def test_with_option_setup_only_the_gates_pass_without_any_hit(serial_suite: Suite) -> None:
    serial_suite.write().prepare_dump()

    result = serial_suite.load("--autotune-max-misses=0", "--autotune-fail-on-unused", "--setup-only")

    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["*; unused autotune cache entries were not checked: --setup-only selects a part of the tests"]
    )


NO_KERNEL = """
import pytest

@pytest.mark.parametrize("n", range(9))
def test_cpu_skipped(n): pytest.skip("no GPU")

@pytest.mark.parametrize("n", range(3))
def test_cpu(n): pass
"""


@pytest.mark.parametrize("gate", GATES)
def test_reports_show_a_skipped_gate_if_no_test_called_a_kernel(suite: Suite, section, gate: str) -> None:
    suite.write().serial.prepare_dump()
    (suite.folder / "test_cpu.py").write_text(NO_KERNEL)
    reports = [f"--autotune-report=r.{kind}" for kind in ("json", "html", "md")]
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(suite.folder / "step.md")}

    result = suite.load(gate, "-k", "cpu", *reports, "--junitxml=junit.xml", **github)

    assert result.ret == 0
    not_judged = "autotune cache misses were not checked: no test called an autotuned kernel (3 passed, 9 skipped)"
    assert section(result)[1] == not_judged
    text = {path.name: path.read_text() for path in suite.folder.iterdir() if path.is_file()}
    assert json.loads(text["r.json"])["gate"]["skipped"] == not_judged
    assert f'<p id="verdict" class="unjudged">{not_judged}' in text["r.html"]
    for markdown in (text["r.md"], text["step.md"]):
        assert f"❔ **`{not_judged}`**" in markdown
        assert "✅" not in markdown
    (case,) = (
        element
        for element in ElementTree.fromstring(text["junit.xml"]).iter("testcase")
        if element.get("name") == "gate"
    )
    assert [(element.tag, element.get("message")) for element in case] == [("skipped", not_judged)]


@pytest.mark.parametrize("gate", [*GATES, "--autotune-fail-on-unused"])
def test_the_gate_fails_if_the_cache_is_empty_and_unused(serial_suite: Suite, gate: str) -> None:
    """A part of the suite passes, because other parts may look up kernels."""
    serial_suite.write(test_lib="def test_nothing(): pass").cache.write_text("format_version: 1\n")

    result = serial_suite.load(gate)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    update = "Re-run with --autotune-load=cache.textproto --autotune-update=all to update the cache."
    result.stdout.fnmatch_lines([update, "!* 0 entries were loaded, but no test used any !*"])
    skip_all(serial_suite)
    assert serial_suite.load(gate).ret == pytest.ExitCode.TESTS_FAILED
    if "on-miss" not in gate:
        assert serial_suite.load(gate, "--autotune-update").ret == pytest.ExitCode.USAGE_ERROR
    assert serial_suite.load().ret == 0, "without a gate"
    assert serial_suite.load(gate, "test_lib.py").ret == 0, "a part of a suite, of which a test passed"


ALL_SKIPPED = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_gpu(n): pytest.skip("no GPU")
"""


@pytest.mark.parametrize("args", [["test_gpu.py"], ["-k", "gpu"], ["."], ["-m", "not slow"], ["--deselect=test_no.py"]])
@pytest.mark.parametrize("gate", [*GATES, "--autotune-fail-on-unused"])
def test_the_gate_fails_if_all_selected_tests_were_skipped(serial_suite: Suite, gate: str, args: list[str]) -> None:
    """A shard that lost its GPU skips all its tests."""
    serial_suite.write().prepare_dump()
    (serial_suite.folder / "test_lib.py").unlink()
    (serial_suite.folder / "test_gpu.py").write_text(ALL_SKIPPED)

    assert serial_suite.load(*args).ret == 0, "without a gate"
    result = serial_suite.load(gate, *args)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    if args != ["."]:
        result.stdout.fnmatch_lines(
            ["!* no test called an autotuned kernel, and no test passed (3 skipped; -rsx shows why) !*"]
        )


@pytest.mark.parametrize("gate", [*GATES, "--autotune-fail-on-unused"])
def test_the_gate_fails_if_gpu_tests_skip_and_only_cpu_tests_run(serial_suite: Suite, gate: str) -> None:
    """The kernels of the CPU still ask and hit, so that misses alone tell nothing of the lost GPU."""
    serial_suite.write(test_a="def test_a(tune): tune('lib.a')", test_b="def test_b(tune): tune('lib.b')")
    serial_suite.dump("test_a.py", TOY_DEVICE="CPU")
    serial_suite.run("--autotune-load=cache.textproto", "--autotune-update=all", "test_b.py")
    serial_suite.run("--autotune-load=cache.textproto", "--autotune-update=all", "test_b.py", TOY_DEVICE="Other GPU")
    test = serial_suite.folder / "test_b.py"
    kernel_test = test.read_text()
    test.write_text("import pytest\ndef test_b(): pytest.skip('no GPU')\n")

    result = serial_suite.load(gate, TOY_DEVICE="CPU")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    names = "Other GPU and Toy GPU"
    message = (
        f"the cache has entries for {names}, but no test ran a kernel on such a GPU: 1 test or file was skipped "
        "(run the suite on a machine with this GPU)"
    )
    result.stdout.fnmatch_lines([f"!* {message} !*"])
    optional = serial_suite.run("--autotune-load=cache.textproto?optional", gate, TOY_DEVICE="CPU")
    assert optional.ret == 0
    assert serial_suite.load(gate, "test_a.py", "test_b.py", TOY_DEVICE="CPU").ret == 0, "a part of the suite"
    test.write_text(kernel_test + "\nimport pytest\ndef test_skip(): pytest.skip('slow')\n")
    (serial_suite.folder / "test_a.py").write_text("")
    assert serial_suite.load(gate, TOY_DEVICE="Toy GPU").ret == 0, "one GPU type of two"


@pytest.mark.parametrize("gate", GATES)
def test_the_gate_fails_if_all_tests_are_xfail_with_run_false(serial_suite: Suite, gate: str) -> None:
    serial_suite.write().prepare_dump()
    xfail = 'pytestmark = pytest.mark.xfail(run=False, reason="no GPU")'
    (serial_suite.folder / "test_gpu.py").write_text(f"import pytest\n{xfail}\ndef test_gpu(): pass\n")

    assert serial_suite.load("test_gpu.py").ret == 0, "without a gate"
    result = serial_suite.load(gate, "test_gpu.py")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["!* no test called an autotuned kernel, and no test passed (1 xfailed; -rsx shows why) !*"]
    )


@pytest.mark.parametrize("gate", GATES)
def test_gate_fails_if_the_library_of_loaded_entries_is_absent(
    serial_suite: Suite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gate: str
) -> None:
    """The tests of the library skip, while another tuner has a hit. Its entries alone would let the gate pass."""
    monkeypatch.setitem(TUNERS, "helion", BuiltInTuner("absent_library.adapter", "absent_library.tune"))
    (serial_suite.folder / "test_helion.py").write_text("import pytest\npytest.importorskip('absent_library')\n")
    serial_suite.write().prepare_dump()
    cache = serial_suite.cache
    cache.with_name("helion.textproto").write_text(cache.read_text().replace('tuner: "toy"', 'tuner: "helion"'))
    load = "--autotune-load=helion.textproto"

    result = serial_suite.load(load, gate, "--autotune-report=reports/")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    message = (
        "loaded entries were not used: absent_library is not installed (install it, load PATH?optional, or add "
        "helion:* to autotune_ignore)"
    )
    result.stdout.fnmatch_lines([f"!* {message} !*"])
    assert serial_suite.load(load, gate, "-oautotune_ignore=helion:*").ret == 0
    assert serial_suite.load(load, gate, "test_lib.py").ret == 0, "a file that the user chose"
    capsys.readouterr()
    assert main(["gate", "cache.textproto", "helion.textproto", "--reports=reports/", "--expect=1"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"FAILED: {message}"


def test_the_gate_passes_tests_without_kernels_unless_all_skip(suite: Suite) -> None:
    suite.write().serial.prepare_dump()
    (suite.folder / "test_cpu.py").write_text(NO_KERNEL)

    result = suite.load("--autotune-max-misses=0", "test_cpu.py")

    assert result.ret == 0
    result.stdout.fnmatch_lines(["autotune cache misses were not checked: no test called * (3 passed, 9 skipped)"])
    (suite.folder / "test_cpu.py").write_text(ALL_SKIPPED)
    assert suite.load("--autotune-max-misses=0", "test_cpu.py").ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("spelt", ["--autotune-tuners=xla", "autotune_tuners (ini)"])
def test_gate_fails_if_an_option_turns_off_a_tuner_with_entries(serial_suite: Suite, spelt: str) -> None:
    """Entries of the tuner are loaded, and the command line or the ini file leaves the tuner out."""
    serial_suite.write().prepare_dump()
    serial_suite.pytester.makeini(f"[pytest]\nautotune_tuners = {'xla' if 'ini' in spelt else 'toy'}\n")

    result = serial_suite.load("--autotune-max-misses=0", *([spelt] if "=" in spelt else []))

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    message = f"loaded entries were not used: {spelt} leaves out toy (name it there, or add it to autotune_ignore)"
    result.stdout.fnmatch_lines([f"!* {message} !*"])


@pytest.mark.parametrize("gate", [*GATES, "--autotune-fail-on-unused"])
def test_gate_fails_if_loaded_entries_have_no_installed_adapter(serial_suite: Suite, gate: str) -> None:
    """The gate also fails if --autotune-tuners leaves the tuner out. With autotune_ignore the gate passes."""
    serial_suite.write().prepare_dump()
    for tuner in ("gone", "xla"):
        text = serial_suite.cache.read_text().replace('tuner: "toy"', f'tuner: "{tuner}"')
        (serial_suite.folder / f"{tuner}.textproto").write_text(text)

    result = serial_suite.load("--autotune-load=xla.textproto", "--autotune-tuners=toy", gate)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    message = (
        "!* loaded entries were not used: --autotune-tuners=toy leaves out xla (name it "
        "there, or add it to autotune_ignore) !*"
    )
    result.stdout.fnmatch_lines([message])
    result = serial_suite.load("--autotune-load=gone.textproto", gate)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["!* loaded entries were not used: no adapter is installed for gone (install its package) !*"]
    )

    ignoring = ["-o", "autotune_ignore=gone:*\nxla:*"]
    both = ["--autotune-load=gone.textproto", "--autotune-load=xla.textproto"]
    assert serial_suite.load(*both, *ignoring, "--autotune-tuners=toy", gate).ret == 0


def test_the_gate_names_autotune_ignore_if_it_prevents_all_hits(serial_suite: Suite) -> None:
    serial_suite.write().prepare_dump()
    serial_suite.pytester.makeini("[pytest]\nautotune_ignore = toy:lib.m*\n")
    (serial_suite.folder / "test_lib.py").write_text("def test_matmul(tune): tune('lib.matmul', M=16, N=8)\n")

    result = serial_suite.load("--autotune-max-misses=0")

    message = "4 entries were loaded, but no test used any (autotune_ignore (ini) may exclude them)"
    result.stdout.fnmatch_lines([f"!* {message} !*"])


def test_the_gate_names_enabled_false_if_it_prevents_all_hits(serial_suite: Suite) -> None:
    serial_suite.write().prepare_dump()
    mark = "import pytest\npytestmark = pytest.mark.autotune_cache(enabled=False)\n"
    test = f"{mark}def test_matmul(tune): tune('lib.matmul', M=16, N=8)\n"
    (serial_suite.folder / "test_lib.py").write_text(test)

    result = serial_suite.load("--autotune-max-misses=0")

    message = "4 entries were loaded, but no test used any (autotune_cache(enabled=False) may exclude them)"
    result.stdout.fnmatch_lines([f"!* {message} !*"])


def test_the_gate_fails_if_only_the_cache_of_a_marker_has_hits(serial_suite: Suite, section) -> None:
    serial_suite.write().prepare_dump()
    skip_all(serial_suite)
    of_test = "format_version: 1\n"
    (serial_suite.folder / "own.textproto").write_text(of_test)
    tune_call = "autotune_cache.tune('own', key={'n': 1}, space=[1, 2], run=str, version=1)"
    marker = "import pytest\n@pytest.mark.autotune_cache(load='own.textproto')\n"
    (serial_suite.folder / "test_own.py").write_text(f"{marker}def test_own(autotune_cache): {tune_call}\n")
    serial_suite.run("--autotune-update=all", "test_own.py")

    result = serial_suite.load("--autotune-max-misses=0")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    # On a slow machine, the line also has the time that the hit saved.
    assert section(result)[0].startswith("1 hit")
    result.stdout.fnmatch_lines(["!* entries were loaded, but no test used any (test_*::test_gpu was skipped) !*"])
    skips = tune_call.replace("run=str", "run=lambda n: pytest.skip('no GPU')")
    (serial_suite.folder / "test_own.py").write_text(f"import pytest\ndef test_own(autotune_cache): {skips}\n")
    assert serial_suite.load("--autotune-max-misses=0").ret == pytest.ExitCode.TESTS_FAILED, "nothing came of it"


def test_a_miss_limit_in_percent_ignores_tests_without_a_cache(serial_suite: Suite) -> None:
    tune_call = "autotune_cache.tune('a', key={'n': 1}, space=[1, 2], run=str, version=1)"
    marker = "@pytest.mark.autotune_cache(load='own.textproto')\n"
    lines = (
        f"import pytest\ndef test_a(autotune_cache): {tune_call}\n{marker}def test_own(autotune_cache): {tune_call}\n"
    )
    serial_suite.write(test_lib=lines.replace("'a'", "'b'", 1))
    (serial_suite.folder / "own.textproto").write_text("format_version: 1\n")

    result = serial_suite.run("--autotune-max-misses=50%")

    result.stdout.fnmatch_lines([f"!* {too_many_misses(1, '50%', 1)} !*"])


def test_an_empty_load_option_cancels_earlier_load_options(serial_suite: Suite) -> None:
    serial_suite.write().prepare_dump()
    serial_suite.pytester.makeini("[pytest]\naddopts = --autotune-load=cache.textproto\n")

    result = serial_suite.run("--autotune-load=", "-oautotune_max_misses=0")

    result.stdout.fnmatch_lines(["autotune cache misses were not checked: no cache was loaded"])
    serial_suite.run("--autotune-load=", "--autotune-load=cache.textproto").stdout.no_fnmatch_line("*tuned in*")
