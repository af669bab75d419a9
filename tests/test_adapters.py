"""Adapters of other packages: the plugin finds them by their entry points, and the conformance tests apply."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pytest_autotune.modes import MODES
from pytest_autotune.testing import AdapterConformance
from pytest_autotune.tuners import TUNERS, function
from tests.acceptance.test_xla import with_toy_jax
from tests.conftest import REPOSITORY, Suite

PACKAGE = REPOSITORY / "tests/data/third_party_tuner"
SUITE = """
import handrolled, pytest

def add_up(items, chunk):
    return sum(items[i] for i in range(0, len(items), chunk))

TUNED = handrolled.Tuned(add_up, [1, 10, 100])

@pytest.mark.parametrize("n", [100, 1000])
def test_add_up(n):
    TUNED(range(n))
"""
BROKEN = """
import importlib.metadata
class Adapter:
    module = "handrolled"
    acts_without_entries = True
    def hook(self, module, run): self.run = run
    def unhook(self): raise OSError("unhook")
    def isolated(self): raise OSError("isolated")
    def untracked(self): raise OSError("untracked")
"""
#: Mistakes of an author of an adapter.
CARELESS = """
import contextlib
class Adapter:
    module = "handrolled"
    acts_without_entries = True
    def hook(self, module, session):
        self.module, self.original = module, module.Tuned.time_all
        def time_all(tuned, items):
            session.at_next_test(self.forget)
            return self.original(tuned, items)
        module.Tuned.time_all = time_all
    def unhook(self): self.module.Tuned.time_all = self.original
    def forget(self): raise OSError("forget")
    @contextlib.contextmanager
    def isolated(self):
        yield
        raise OSError("afterwards")
    def untracked(self): return None
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed a package with a tuner and its adapter."""
    pytest.importorskip("setuptools", reason="builds the package")
    source = tmp_path_factory.mktemp("source") / "handrolled"
    shutil.copytree(PACKAGE, source)
    target = tmp_path_factory.mktemp("site-packages")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "--target", str(target), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def third_party(serial_suite: Suite, installed: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """A suite that uses that package."""
    monkeypatch.syspath_prepend(installed)
    serial_suite.pytester.makepyfile(test_lib=SUITE)
    return serial_suite


def add_entry_point(folder: Path, name: str, value: str, module: str = "") -> None:
    """Install a package by hand that has nothing but an adapter."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[pytest_autotune.tuners]\n{name} = {value}\n")
    if module:
        (folder / f"{value.partition(':')[0]}.py").write_text(module)


def test_a_dump_of_a_third_party_adapter_loads_with_only_hits(third_party: Suite, section: Any) -> None:
    dumped = third_party.dump()
    loaded = third_party.load("--autotune-max-misses=0")
    pytest.importorskip("xdist")
    shared = third_party.load("-pxdist", "-n2", "--autotune-max-misses=0")

    dumped.assert_outcomes(passed=2)
    text = third_party.cache.read_text()
    assert text.count('tuner: "handrolled"') == 2
    assert 'environment: "handrolled 1.2.0"' in text
    assert loaded.ret == 0
    assert section(loaded)[0].startswith("2 hits")
    assert section(shared)[0].startswith("2 hits")


def test_the_conformance_tests_pass_for_the_documented_adapter(
    installed: Path, pytester: pytest.Pytester, monkeypatch: Any
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{installed}:{REPOSITORY}")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    shutil.copy(PACKAGE / "test_handrolled.py", pytester.path)

    result = pytester.runpytest_subprocess("-ppytest_autotune.plugin")

    modes = len({"sweep", "verify"} & {mode.name for mode in MODES})
    result.assert_outcomes(passed=13 + modes, skipped=2 - modes)


#: Replaces the function without the guard.
BY_HAND = """
        self._patches.keep_original(module.Tuned, "choose", ["self", "items"])
        module.Tuned.choose = lambda tuned, items: session.leaves_alone("handrolled", "k") or tuned.chunks[0]
"""


@pytest.mark.parametrize(
    ("right", "wrong", "failed"),
    [
        ("self._patches.undo()", "pass", "test_unhooking_restores_the_functions_of_the_library"),
        ("tuned.best = {}", "pass", "test_isolated_calls_share_no_choice_with_other_calls"),
        ("tuned.best = memory", "pass", "test_isolated_calls_share_no_choice_with_other_calls"),
        ("import gc", "import gc, handrolled", "test_creating_the_adapter_imports_no_library"),
        (
            "entry.choice.params in self.chunks_by_params",
            "True",
            "test_an_entry_whose_choice_is_no_candidate_is_stale",
        ),
        ("session.leaves_alone(", "session.ignores(", "test_paused_and_ignored_kernels_get_no_lookup"),
        (
            "len(items)),)",
            "__import__('time').perf_counter_ns()),)",
            "test_two_runs_give_a_call_the_same_problem_and_fingerprint",
        ),
        (
            'self._patches.replace(module.Tuned, "choose", ["self", "items"], hook)',
            BY_HAND,
            "test_after_a_plugin_error_the_library_tunes_by_itself",
        ),
    ],
    ids=["unhook", "isolated", "restored", "import", "offered", "paused", "key", "guard"],
)
def test_the_conformance_tests_fail_for_an_adapter_with_a_bug(
    pytester: pytest.Pytester, monkeypatch: Any, right: str, wrong: str, failed: str
) -> None:
    text = (PACKAGE / "handrolled_autotune.py").read_text()
    assert text.count(right) == 1
    for name in ("handrolled.py", "test_handrolled.py"):
        shutil.copy(PACKAGE / name, pytester.path)
    (pytester.path / "handrolled_autotune.py").write_text(text.replace(right, wrong))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    result = pytester.runpytest_inprocess("-ppytest_autotune.plugin")

    result.stdout.fnmatch_lines([f"FAILED *{failed}*"])


def test_each_broken_adapter_prints_one_line_and_fails_no_test(
    third_party: Suite, tmp_path: Path, monkeypatch: Any, section: Any
) -> None:
    add_entry_point(tmp_path, "missing", "no_such_module:Adapter")
    add_entry_point(tmp_path, "broken", "broken_adapter:Adapter", BROKEN)
    add_entry_point(tmp_path, "careless", "careless_adapter:Adapter", CARELESS)
    add_entry_point(tmp_path, "triton", "broken_adapter:Adapter")
    add_entry_point(tmp_path, "raising", "raising_adapter:Adapter", "raise RuntimeError('two\\nlines')")
    add_entry_point(tmp_path, "leaving", "leaving_adapter:Adapter", "raise SystemExit('needs a licence')")
    skip = "import pytest\npytest.skip('needs a GPU', allow_module_level=True)"
    add_entry_point(tmp_path, "skipping", "skipping_adapter:Adapter", skip)
    strange = "class Strange(BaseException): pass\nraise Strange('of another world')"
    add_entry_point(tmp_path, "strange", "strange_adapter:Adapter", strange)
    monkeypatch.syspath_prepend(tmp_path)
    third_party.pytester.makepyfile(
        test_marked="""
        import pytest, handrolled
        @pytest.mark.autotune_cache(enabled=False)
        def test_marked(): pass
        """
    )

    result = third_party.dump()

    result.assert_outcomes(passed=3)
    lines = section(result)
    for message in (
        "missing tunes without the plugin: no_such_module:Adapter: ModuleNotFoundError: No "
        "module named 'no_such_module'",
        "raising tunes without the plugin: raising_adapter:Adapter: RuntimeError: two lines",
        "leaving tunes without the plugin: leaving_adapter:Adapter: SystemExit: needs a licence",
        "skipping tunes without the plugin: skipping_adapter:Adapter: Skipped: needs a GPU",
        "strange tunes without the plugin: strange_adapter:Adapter: Strange: of another world",
        "broken_adapter:Adapter was left out: there is a tuner triton already",
        "broken: internal error in isolated(): OSError: isolated",
        "broken: internal error in untracked(): OSError: untracked",
        "careless: internal error in isolated(): OSError: afterwards",
        "careless: internal error in untracked(): TypeError: 'NoneType' object is not iterable",
        "session: internal error in at_next_test(): OSError: forget",
    ):
        assert sum(message in line for line in lines) == 1, message
    assert any("2 entries written" in line for line in lines)


def test_an_adapter_that_option_tuners_excludes_is_not_loaded(
    third_party: Suite, tmp_path: Path, monkeypatch: Any, section: Any
) -> None:
    add_entry_point(tmp_path, "raising", "raising_adapter:Adapter", "raise RuntimeError('loaded')")
    monkeypatch.syspath_prepend(tmp_path)

    result = third_party.dump("--autotune-tuners=handrolled")
    unknown = third_party.dump("--autotune-tuners=handroled")

    assert "raising" not in "\n".join(section(result))
    assert any("2 entries written" in line for line in section(result))
    assert unknown.ret == pytest.ExitCode.USAGE_ERROR
    unknown.stderr.fnmatch_lines([f"*unknown tuner 'handroled' (known: {', '.join(TUNERS)}, handrolled, raising)"])


def test_a_library_with_a_new_signature_tunes_without_the_plugin(third_party: Suite, section: Any) -> None:
    third_party.dump()
    third_party.pytester.makeconftest("import handrolled\nhandrolled.Tuned.choose = lambda self, these: 1\n")

    result = third_party.load()
    limited = third_party.load("--autotune-max-misses=0")

    result.assert_outcomes(passed=2)
    assert result.ret == 0
    assert (
        "handrolled tunes without the plugin: Tuned.choose of handrolled 1.2.0 has another signature"
        in section(result)[0]
    )
    assert limited.ret == 1
    limited.stdout.fnmatch_lines(["*the plugin could not hook handrolled*"])


@pytest.mark.parametrize("name", ["handrolled.py", "handrolled_autotune.py", "test_handrolled.py"])
def test_adapters_md_shows_the_tested_example_files_verbatim(name: str) -> None:
    page = (REPOSITORY / "docs/adapters.md").read_text()

    assert f"```python\n# {name}\n{(PACKAGE / name).read_text()}```\n" in page


XLA = """
import jax
from jax._src import toy_xla
from pytest_autotune.testing import AdapterConformance
from pytest_autotune.tuners.xla.adapter import Adapter

class TestXla(AdapterConformance):
    tuner = "xla"
    adapter = Adapter
    exempt = {
        "test_an_entry_with_another_fingerprint_is_stale_and_retuned": "XLA itself compares, by its own bytes",
        "test_an_entry_whose_choice_is_no_candidate_is_stale": "XLA itself knows what is on offer",
        "test_on_miss_error_fails_the_call_before_a_search": "XLA tells what it looked up when it is done",
        "test_hooking_a_library_with_unknown_internals_raises": "it looks at jax._src by itself",
        "test_isolated_calls_share_no_choice_with_other_calls": "XLA's memory belongs to the process",
        "test_two_sweeps_run_two_candidates_without_a_search": "XLA chooses inside itself",
        "test_verify_races_a_loaded_choice_and_uses_it": "and measures there",
    }

    def tune(self):
        return jax.compile("tanh")

    def forget(self):
        toy_xla.MEMORY.clear()

    def searches(self):
        with open(os.environ["TOY_LOG"], "a+") as log:
            log.seek(0)
            return len(log.readlines())
"""


def test_the_adapter_conformance_tests_pass_for_the_xla_adapter(serial_suite: Suite) -> None:
    with_toy_jax(serial_suite).write(test_conformance=f"import os\n{XLA}")

    result = serial_suite.run("test_conformance.py")

    result.assert_outcomes(passed=8, skipped=7)


class TestFunctionAdapter(AdapterConformance):
    """The conformance tests for the plugin's own adapter of hand-written tuners."""

    tuner = "function"
    adapter = function.Adapter
    exempt: ClassVar = {
        "test_creating_the_adapter_imports_no_library": "what it remembers stands with its adapter",
        "test_after_a_plugin_error_the_library_tunes_by_itself": "its user calls the plugin, which replaces nothing",
    }
    _searches = 0

    def tune(self) -> object:
        from pytest_autotune import Measuring, tune

        return tune("lib.k", space=[2, 1], run=self._run, measuring=Measuring(clock=_as_told), device="cpu")

    @staticmethod
    def _run(config: int) -> float:
        return float(config)

    def forget(self) -> None:
        function.MEMORIES[-1].chosen.clear()

    def searches(self) -> int:
        return TestFunctionAdapter._searches


def _as_told(call: Any) -> float:
    time_us = float(call())
    TestFunctionAdapter._searches += time_us == 1
    return time_us
