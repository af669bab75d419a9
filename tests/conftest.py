"""What the tests share: a suite with a toy tuner, run by a real pytest, with and without xdist."""

from __future__ import annotations

import compileall
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pytest_autotune
from tests import forked_workers

# Each run in this process forgets what it was the first to import.
forked_workers.import_all()
forked_workers.read_entry_points_once()
# Each run collects garbage, and these modules are none.
gc.freeze()

# The processes that tests start read bytecode of this package where there is some, and many an environment has
# PYTHONDONTWRITEBYTECODE set: they would compile all of it each.
TOY_FOLDER = Path(__file__).parent / "toy_tuner"
if "PYTEST_XDIST_WORKER" not in os.environ:
    for _folder in (pytest_autotune.__path__[0], TOY_FOLDER):
        compileall.compile_dir(_folder, quiet=2)

# A run that a script starts in the background ignores Ctrl-C, and so would every run that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TOY_TUNER = f"""
import os
import sys
import pytest

sys.path.insert(0, {str(TOY_FOLDER)!r})
import toytuner

pytest_plugins = os.environ.get("TOY_PLUGINS", "").split()


@pytest.fixture
def tune():
    return toytuner.tune


@pytest.fixture
def session():
    from toytuner_autotune import Adapter
    return Adapter.session
"""

SUITE = """
import pytest

@pytest.mark.parametrize("m", [16, 32, 64])
def test_matmul(tune, m):
    assert tune("lib.matmul", M=m, N=8) == "a"

def test_softmax(tune):
    assert tune("lib.softmax", N=8, times={"x": 3.0, "y": 2.0}) == "y"
"""


class Suite:
    """A small suite in a folder of its own, and what its runs leave behind."""

    def __init__(self, pytester: pytest.Pytester, distribution: list[str]) -> None:
        self.pytester = pytester
        self.distribution = distribution
        self.folder = pytester.path
        self.log = pytester.path / "tunings.log"
        self.cache = pytester.path / "cache.textproto"

    @property
    def serial(self) -> Suite:
        """The same suite, without xdist: faster, for what comes before the run that a test is about."""
        return Suite(self.pytester, [])

    def write(self, **files: str) -> Suite:
        """Write test modules, ``name=text``, and a conftest.py with the toy tuner beside them."""
        self.pytester.makeconftest(TOY_TUNER)
        self.pytester.makepyfile(**(files or {"test_lib": SUITE}))
        return self

    def run(self, *args: str, **environment: str) -> pytest.RunResult:
        """Run pytest on the suite, and count its tunings afresh."""
        self.log.unlink(missing_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TOY_LOG", str(self.log))
            # What else is installed for the tests would make every process of theirs start slowly.
            patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            # A process inside another one's test writes no report into a folder.
            patch.delenv("PYTEST_CURRENT_TEST", raising=False)
            for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE", "GITLAB_CI", "CI_PROJECT_DIR"):
                patch.delenv(name, raising=False)
            for name, value in environment.items():
                patch.setenv(name, value)
            # Import hooks of a run end with it.
            patch.setattr("wrapt.importer._post_import_hooks", {})
            patch.setattr("wrapt.importer._post_import_hooks_init", False)
            if _has_xdist():  # which gives its workers the path that there was when it was imported
                patch.setattr("xdist.workermanage._sys_path", list(sys.path))
            # An editable install is imported by the outer run before this one could rewrite it.
            quiet = "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning"
            return self.pytester.runpytest(quiet, "-ppytest_autotune.plugin", *self.distribution, *args)

    def dump(self, *args: str, **environment: str) -> pytest.RunResult:
        return self.run("--autotune-dump=cache.textproto", *args, **environment)

    def load(self, *args: str, **environment: str) -> pytest.RunResult:
        return self.run("--autotune-load=cache.textproto", *args, **environment)

    def report(self, *args: str, **environment: str) -> dict[str, Any]:
        """Run with a JSON report and return it."""
        self.run("--autotune-report=report.json", *args, **environment)
        return json.loads((self.folder / "report.json").read_text())  # type: ignore[no-any-return]

    def load_stale(self, *args: str, **environment: str) -> list[dict[str, Any]]:
        """Load the cache with a JSON report, and return its stale problems."""
        report = self.report("--autotune-load=cache.textproto", *args, **environment)
        return [row for row in report["lookups"] if row["outcome"] == "stale"]

    @property
    def tunings(self) -> list[str]:
        """What the last run really tuned, one line per search."""
        return sorted(self.log.read_text().splitlines()) if self.log.exists() else []


def _has_xdist() -> bool:
    try:
        import xdist  # noqa: F401
    except ImportError:
        return False
    return True


DISTRIBUTIONS = {"serial": [], "n2": ["-pxdist", "-n2"]} if _has_xdist() else {"serial": []}
#: With xdist and without its workers, which is as good as serial; what every user does is tried with that, too.
ALL_DISTRIBUTIONS = {**DISTRIBUTIONS, "n0": ["-pxdist", "-n0"]} if _has_xdist() else DISTRIBUTIONS


@pytest.fixture(params=list(DISTRIBUTIONS))
def suite(request: pytest.FixtureRequest, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """A suite that a test runs without xdist's workers and with two; :data:`everywhere` asks for more."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return Suite(pytester, ALL_DISTRIBUTIONS[request.param])


everywhere = pytest.mark.parametrize("suite", list(ALL_DISTRIBUTIONS), indirect=True)


@pytest.fixture(scope="session", autouse=True)
def workers_are_forked() -> Iterator[None]:
    """Let the workers of suites begin with what they would import."""
    with pytest.MonkeyPatch.context() as patch:
        if _has_xdist():
            forked_workers.install(patch)
        yield


#: The files that take longest, in the order in which workers begin them: a worker that began one last would end alone.
LONG_FILES = [
    "test_inductor",
    "test_ci_recipes",
    "test_crashes",
    "test_export",
    "test_segments",
    "test_process_gate",
    "test_own_errors",
    "test_gate_without_load",
    "test_gate",
    "test_unused",
    "test_readme",
    "test_ranks",
    "test_action",
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of :data:`LONG_FILES` first."""
    places = {name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONG_FILES)))


def autotuners() -> list[Any]:
    """Triton's autotuners, of whatever class, that are in memory."""
    module: Any = sys.modules.get("triton.runtime.autotuner")
    if module is None:
        return []
    kinds = [module.Autotuner]
    for kind in kinds:
        kinds += kind.__subclasses__()
    # Each object refers to its class; a search for these is four times as fast as a look at every object there is.
    return [found for found in gc.get_referrers(*kinds) if type(found) in kinds]


@pytest.fixture(scope="module", autouse=True)
def nothing_tuned_is_left() -> Iterator[None]:
    """Kernels of suites that were run in this process stay in memory; a run of the next file would report them."""
    yield
    for found in autotuners():
        if isinstance(vars(found).get("cache"), dict):
            found.cache.clear()


@pytest.fixture
def serial_suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """A suite for what does not depend on how tests are distributed."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return Suite(pytester, [])


@pytest.fixture
def section() -> Callable[[pytest.RunResult], list[str]]:
    """The lines of the section ``autotune cache`` of a run's output."""

    def lines(result: pytest.RunResult) -> list[str]:
        found: list[str] = []
        inside = False
        for line in result.outlines:
            if line.startswith("====") or line.startswith("!!!!"):
                inside = " autotune cache " in line
            elif inside:
                found.append(line)
        return found

    return lines


@pytest.fixture
def forget_choices() -> Iterator[None]:
    """Leave no autotuner with choices behind, which a later run in this process would be told of."""
    yield
    for found in autotuners():
        found.cache = {}


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skip where there is no GPU to tune on."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU that torch can use")


REPOSITORY = Path(__file__).parent.parent
collect_ignore = ["data"]
os.environ.setdefault("COLUMNS", "100")
