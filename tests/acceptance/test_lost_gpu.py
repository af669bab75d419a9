"""A gate on a machine that has lost its GPU is red, in whatever way a ``conftest.py`` leaves the GPU's tests out."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from pytest_autotune import devices
from pytest_autotune.cli.main import main
from tests.conftest import Suite

GATES = ["--autotune-max-misses=0", "--autotune-on-miss=error", "--autotune-fail-on-unused"]
EXIT = "import pytest\ndef {hook}: pytest.exit('no GPU', returncode=0)\n"
#: Hooks of a conftest.py that leave out the tests of test_b.py, or all tests.
HOOKS = {
    "collect_ignore": "collect_ignore = ['test_b.py']\n",
    "ignore_collect": "def pytest_ignore_collect(collection_path): return collection_path.stem == 'test_b' or None\n",
    "modifyitems": "def pytest_collection_modifyitems(items): items[:] = [i for i in items if i.name != 'test_b']\n",
    "finish": "def pytest_collection_finish(session): session.items = session.items[:1]\n",
    "removes before the first test": (
        "import pytest\n@pytest.hookimpl(wrapper=True, tryfirst=True)\ndef pytest_runtestloop(session):\n"
        "    session.items = session.items[:1]\n    return (yield)\n"
    ),
    "makeitem": "def pytest_pycollect_makeitem(name): return [] if name == 'test_b' else None\n",
    "args": "def pytest_configure(config): config.args[:] = ['test_a.py']\n",
    "collection": "def pytest_collection(): return True\n",
    "loop": "def pytest_runtestloop(): return True\n",
    "first loop": "import pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_runtestloop(): return True\n",
    "removes after a test": "def pytest_runtest_teardown(item): del item.session.items[1:]\n",
    "protocol": "def pytest_runtest_protocol(item): return item.name == 'test_b' or None\n",
    "exit at configure": EXIT.format(hook="pytest_configure()"),
    "exit at start": EXIT.format(hook="pytest_sessionstart()"),
    "exit at collection": EXIT.format(hook="pytest_collection_modifyitems()"),
    "exit at loop": EXIT.format(hook="pytest_runtestloop()"),
}
#: The hooks after which no test runs, or not all that were collected. They are red beside a GPU, too.
STOPPING = {name for name in HOOKS if name.startswith("exit")} | {
    "collection",
    "loop",
    "first loop",
    "removes before the first test",
    "removes after a test",
    "protocol",
}
#: Hooks that `make test` has with each gate: one for each place where the plugin decides about a gate.
WITH_EVERY_GATE = ("modifyitems", "collection", "protocol", "exit at configure", "exit at loop")


def list_hooks_and_gates() -> list[Any]:
    """Return each hook with each gate. The same functions judge a stopped run and a lost GPU for all gates."""
    cases = []
    for kind, gate in product(HOOKS, GATES):
        is_repeated = gate != GATES[0] and kind not in WITH_EVERY_GATE
        cases.append(pytest.param(kind, gate, marks=[pytest.mark.nightly] if is_repeated else []))
    return cases


@pytest.fixture
def two_devices(serial_suite: Suite) -> Suite:
    """A suite of a kernel on the CPU and a kernel on the GPU, with the entries of both."""
    serial_suite.write(test_a="def test_a(tune): tune('lib.a')", test_b="def test_b(tune): tune('lib.b')")
    return serial_suite.prepare_dump("test_a.py", TOY_DEVICE="CPU").prepare_dump("test_b.py")


def add_hook(suite: Suite, kind: str) -> None:
    conftest = suite.folder / "conftest.py"
    conftest.write_text(f"{conftest.read_text()}\n{HOOKS[kind]}")


@pytest.mark.parametrize(("kind", "gate"), list_hooks_and_gates())
def test_without_a_gpu_the_gate_fails_if_a_hook_deselects_tests(
    two_devices: Suite, monkeypatch: pytest.MonkeyPatch, kind: str, gate: str
) -> None:
    monkeypatch.setattr(devices, "has_visible_gpu", bool)
    add_hook(two_devices, kind)

    result = two_devices.load(gate, TOY_DEVICE="CPU")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    if kind not in STOPPING:
        result.stdout.fnmatch_lines(
            [
                "!* the cache has entries for Toy GPU, but no test ran a kernel on such a GPU: * (run "
                "the suite on a machine with this GPU)*"
            ]
        )
    optional = two_devices.run("--autotune-load=cache.textproto?optional", gate, TOY_DEVICE="CPU")
    # A hook that runs no test is no missing GPU.
    if kind not in STOPPING - {"exit at configure", "exit at start", "exit at collection", "collection"}:
        assert optional.ret in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


@pytest.mark.parametrize("kind", sorted(STOPPING))
def test_the_gate_fails_if_a_hook_of_a_plugin_prevents_all_tests(
    two_devices: Suite, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(devices, "has_visible_gpu", lambda: True)
    add_hook(two_devices, kind)

    assert two_devices.load("--autotune-max-misses=0").ret == pytest.ExitCode.TESTS_FAILED
    assert two_devices.load().ret in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), "without a gate"


@pytest.mark.parametrize("kind", ["modifyitems", "args"])
def test_with_a_gpu_the_gate_passes_if_a_hook_deselects_tests(
    two_devices: Suite, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A plugin for shards deselects tests in this way."""
    monkeypatch.setattr(devices, "has_visible_gpu", lambda: True)
    add_hook(two_devices, kind)

    assert two_devices.load("--autotune-max-misses=0", TOY_DEVICE="CPU").ret == 0


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ([], 1),
        (["tests/"], 1),
        (["--maxfail=1"], 1),
        (["tests/test_a.py"], 0),
        (["-k", "a"], 0),
        (["-ka"], 0),
        (["-k=not b"], 0),
        (["-qk", "a"], 0),
        (["--deselect=test_b.py::test_b[1]"], 0),
    ],
)
def test_without_a_gpu_the_gate_fails_a_folder_but_passes_a_file(
    two_devices: Suite, monkeypatch: pytest.MonkeyPatch, options: list[str], status: int
) -> None:
    """CI systems run ``pytest tests/`` as the whole suite. A user who names a file may have chosen tests of the CPU."""
    monkeypatch.setattr(devices, "has_visible_gpu", bool)
    (two_devices.folder / "tests").mkdir()
    (two_devices.folder / "test_a.py").rename(two_devices.folder / "tests/test_a.py")
    (two_devices.folder / "test_b.py").unlink()

    result = two_devices.load("--autotune-max-misses=0", *options, TOY_DEVICE="CPU")

    assert result.ret == status
    result.assert_outcomes(passed=1)
    two_devices.pytester.makeini("[pytest]\naddopts = -m 'not slow'\n")
    assert two_devices.load("--autotune-max-misses=0", *options, TOY_DEVICE="CPU").ret == status


@pytest.mark.parametrize("ignore", ["toy:lib.b", "toy:*b"])
def test_without_a_gpu_the_gate_passes_if_kernels_are_ignored(
    two_devices: Suite, monkeypatch: pytest.MonkeyPatch, ignore: str
) -> None:
    monkeypatch.setattr(devices, "has_visible_gpu", bool)
    test = two_devices.folder / "test_b.py"
    test.write_text("import pytest\ndef test_b(): pytest.skip('no GPU')\n")

    assert two_devices.load("--autotune-max-misses=0", TOY_DEVICE="CPU").ret == pytest.ExitCode.TESTS_FAILED
    options = ["--autotune-max-misses=0", f"-oautotune_ignore={ignore}", "--autotune-report=reports/"]
    assert two_devices.load(*options, TOY_DEVICE="CPU").ret == 0
    assert main(["gate", "cache.textproto", "--reports=reports/", "--expect=1"]) == 0


def test_the_gate_command_fails_if_no_process_sees_a_gpu(
    two_devices: Suite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No test was skipped, because a hook deselected the tests of the GPU."""
    monkeypatch.setattr(devices, "has_visible_gpu", bool)
    add_hook(two_devices, "modifyitems")
    two_devices.load("--autotune-report=reports/", ".", TOY_DEVICE="CPU")

    capsys.readouterr()
    assert main(["gate", "cache.textproto", "--reports=reports/", "--expect=1"]) == 1
    lost = (
        "FAILED: the cache has entries for Toy GPU, but no test ran a kernel on such a GPU: no GPU "
        "is visible (run the suite on a machine with this GPU)"
    )
    assert lost in capsys.readouterr().out
    (two_devices.folder / "reports").rename("old")
    two_devices.run("--autotune-load=cache.textproto?optional", "--autotune-report=reports/", TOY_DEVICE="CPU")
    assert main(["gate", "cache.textproto", "--reports=reports/", "--expect=1"]) == 0, "the GPU may be absent"


def test_the_gate_command_fails_if_gpu_tests_are_xfailed(
    two_devices: Suite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A test with ``xfail(run=False)`` does not run. A GPU is visible, and no test was skipped."""
    monkeypatch.setattr(devices, "has_visible_gpu", lambda: True)
    test = two_devices.folder / "test_b.py"
    test.write_text("import pytest\n@pytest.mark.xfail(run=False)\ndef test_b(tune): tune('lib.b')\n")
    two_devices.load("--autotune-report=reports/", TOY_DEVICE="CPU")

    capsys.readouterr()
    assert main(["gate", "cache.textproto", "--reports=reports/", "--expect=1"]) == 1
    assert "no test ran a kernel on such a GPU" in capsys.readouterr().out


def test_the_gate_names_the_gpu_type_that_has_no_entries(
    two_devices: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    """The GPU is not lost, although a test was skipped."""
    test = two_devices.folder / "test_a.py"
    test.write_text("import pytest\ndef test_a(): pytest.skip('slow')\n")

    result = two_devices.load("--autotune-max-misses=100%", "--autotune-report=reports/", TOY_DEVICE="Other GPU")

    message = (
        "the cache has entries for Toy GPU, but the tests ran kernels on Other GPU (add entries for Other GPU "
        "with --autotune-update, or run the suite on a machine with Toy GPU)"
    )
    result.stdout.fnmatch_lines([f"!* {message} !*"])
    capsys.readouterr()
    assert main(["gate", "cache.textproto", "--reports=reports/", "--expect=1", "--max-misses=100%"]) == 1
    assert f"FAILED: {message}" in capsys.readouterr().out


def test_the_gate_tells_gpu_types_with_one_name_apart_by_their_id(two_devices: Suite) -> None:
    (two_devices.folder / "test_a.py").write_text("import pytest\ndef test_a(): pytest.skip('slow')\n")

    result = two_devices.load("--autotune-max-misses=100%", TOY_MULTIPROCESSORS="2")

    message = (
        "the cache has entries for toy-gpu-toy-4, but the tests ran kernels on toy-gpu-toy-2 (add entries for "
        "toy-gpu-toy-2 with --autotune-update, or run the suite on a machine with toy-gpu-toy-4)"
    )
    result.stdout.fnmatch_lines([f"!* {message} !*"])


def test_the_gate_passes_options_like_fixtures_that_run_no_test(two_devices: Suite) -> None:
    for option in ("--fixtures", "--markers", "--collect-only", "--cache-show", "--version"):
        assert two_devices.load("--autotune-max-misses=0", option).ret == 0
