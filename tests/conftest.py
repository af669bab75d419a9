"""Fixtures for all tests: a suite with a toy tuner, which a real pytest runs with and without xdist."""

from __future__ import annotations

import compileall
import enum
import fcntl
import gc
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import pytest_autotune
from pytest_autotune.cache.model import Candidate, Device, Value
from tests import forked_workers

# Each run in this process removes the modules that it was the first to import. Imported here, they stay.
forked_workers.import_all()
forked_workers.read_entry_points_once()
forked_workers.read_plugins_once()
forked_workers.parse_tracebacks_once()
forked_workers.rewrite_equal_files_once()
# A worker of the whole suite collects all files, and so it imports these libraries anyway.
if "PYTEST_XDIST_WORKER" in os.environ:
    forked_workers.import_libraries()
# Each run collects garbage and searches all objects for autotuners. These modules are no garbage and have none.
gc.freeze()

# Many environments set PYTHONDONTWRITEBYTECODE. Without bytecode, each process that tests start would compile the
# whole package.
TOY_FOLDER = Path(__file__).parent / "toy_tuner"
if "PYTEST_XDIST_WORKER" not in os.environ:
    for _folder in (pytest_autotune.__path__[0], TOY_FOLDER):
        compileall.compile_dir(_folder, quiet=2)

# A process that a script starts in the background ignores Ctrl-C, and all runs that the tests start would inherit this.
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


#: From the inputs of a run to the files that the run wrote or changed; see :meth:`Suite.prepare`.
_FILES_OF_RUNS: dict[tuple[object, ...], dict[str, bytes]] = {}


class Suite:
    """A small suite in a folder, with the files of its runs."""

    def __init__(self, pytester: pytest.Pytester, distribution: list[str]) -> None:
        self.pytester = pytester
        self.distribution = distribution
        self.folder = pytester.path
        self.log = pytester.path / "tunings.log"
        self.cache = pytester.path / "cache.textproto"

    @property
    def serial(self) -> Suite:
        """The same suite without xdist. It is faster, for the runs that prepare the tested run."""
        return Suite(self.pytester, [])

    def write(self, **files: str) -> Suite:
        """Write test modules, ``name=text``, and a conftest.py with the toy tuner beside them."""
        self.pytester.makeconftest(TOY_TUNER)
        self.pytester.makepyfile(**(files or {"test_lib": SUITE}))
        return self

    def run(self, *args: str, **environment: str) -> pytest.RunResult:
        """Run pytest on the suite. The log of tunings begins anew."""
        self.log.unlink(missing_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TOY_LOG", str(self.log))
            # Other installed plugins would slow down the start of every process.
            patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            # With this variable, the plugin would take the run for a part of a test, and write no report into a folder.
            patch.delenv("PYTEST_CURRENT_TEST", raising=False)
            for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE", "GITLAB_CI", "CI_PROJECT_DIR"):
                patch.delenv(name, raising=False)
            for name, value in environment.items():
                patch.setenv(name, value)
            # Import hooks of a run end with it.
            patch.setattr("wrapt.importer._post_import_hooks", {})
            patch.setattr("wrapt.importer._post_import_hooks_init", False)
            # xdist gives its workers the path of the time when xdist was imported.
            if _has_xdist():
                patch.setattr("xdist.workermanage._sys_path", list(sys.path))
            # An editable install is imported by the outer run before this one could rewrite it.
            quiet = "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning"
            return self.pytester.runpytest(quiet, "-ppytest_autotune.plugin", *self.distribution, *args)

    def dump(self, *args: str, **environment: str) -> pytest.RunResult:
        return self.run("--autotune-dump=cache.textproto", *args, **environment)

    def prepare(self, *args: str, **environment: str) -> Suite:
        """Run pytest on the suite, for a test that needs only the files of the run.

        Many tests begin with the same suite and the same run. Equal inputs give equal files, so a process does such a
        run once, and later tests get its files. The run must not depend on a test's monkeypatch.
        """
        before = self._read_files()
        key = (frozenset(before.items()), args, frozenset(environment.items()), tuple(self.distribution))
        if key not in _FILES_OF_RUNS:
            self.run(*args, **environment)
            _FILES_OF_RUNS[key] = dict(self._read_files().items() - before.items())
        for name, content in _FILES_OF_RUNS[key].items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return self

    def prepare_dump(self, *args: str, **environment: str) -> Suite:
        """Dump, for a test that needs only the files of the dump; see :meth:`prepare`."""
        return self.prepare("--autotune-dump=cache.textproto", *args, **environment)

    def _read_files(self) -> dict[str, bytes]:
        """Return the content of each file of the suite by its path in the folder, without bytecode."""
        contents = {}
        for path in self.folder.rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                contents[str(path.relative_to(self.folder))] = path.read_bytes()
        return contents

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
        """The tunings of the last run, a line for each search."""
        return sorted(self.log.read_text().splitlines()) if self.log.exists() else []


def _has_xdist() -> bool:
    try:
        import xdist  # noqa: F401
    except ImportError:
        return False
    return True


DISTRIBUTIONS = {"serial": [], "n2": ["-pxdist", "-n2"]} if _has_xdist() else {"serial": []}
#: `-n0` loads xdist but starts no workers, so it must behave as a serial run.
ALL_DISTRIBUTIONS = {**DISTRIBUTIONS, "n0": ["-pxdist", "-n0"]} if _has_xdist() else DISTRIBUTIONS


@pytest.fixture(params=list(DISTRIBUTIONS))
def suite(request: pytest.FixtureRequest, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """A suite, once for a serial run and once for two xdist workers; :data:`everywhere` adds `-n0`."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return Suite(pytester, ALL_DISTRIBUTIONS[request.param])


everywhere = pytest.mark.parametrize("suite", list(ALL_DISTRIBUTIONS), indirect=True)


@pytest.fixture(scope="session", autouse=True)
def workers_are_forked() -> Iterator[None]:
    """Fork the xdist workers of suites from a process that has imported their modules."""
    with pytest.MonkeyPatch.context() as patch:
        if _has_xdist():
            forked_workers.install(patch)
        yield


#: The files that take longest, in the order in which workers begin them: a worker that began one last would end alone.
LONG_FILES = [
    "test_inductor",
    "test_crashes",
    "test_segments",
    "test_export",
    "test_ci_recipes",
    "test_use",
    "test_workers",
    "test_compile_ahead",
    "test_triton_compiled",
    "test_own_errors",
    "test_process_gate",
    "test_unused",
    "test_ranks",
    "test_cute",
    "test_modes",
    "test_dump_and_load",
    "test_summary",
    "test_gate_without_load",
]


#: The characters of the longest part of an id.
LONGEST_ID = 70


def describe_parameter(value: object) -> str | None:
    """Return a parameter of a test in words, or None if it has no short words."""
    if value is None or isinstance(value, (str, int, float, Device, Candidate, Value)):
        return str(value)
    if isinstance(value, BaseException):
        return f"{type(value).__name__} {value}"
    if isinstance(value, dict):
        parts = [f"{name}={part}" for name, part in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [describe_parameter(part) or "" for part in value]
    elif isinstance(value, (set, frozenset)):
        parts = sorted(describe_parameter(part) or "" for part in value)
    else:
        return None
    return " ".join(parts)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Return the id of a parameter that pytest would only number, or whose id says nothing without a name.

    For example, the options ``["-q", "-x"]`` are ``-q -x`` and not ``options0``, and the number 2 is ``threads=2``.
    """
    words = describe_parameter(val)
    if words is None or isinstance(val, enum.Enum) or " at 0x" in words:
        return None
    text = " ".join(words.split())[:LONGEST_ID]
    if not text:
        return f"no {argname}"
    if val is None or isinstance(val, (int, float)):
        return f"{argname}={text}"
    return text.encode("ascii", "backslashreplace").decode() if text.isprintable() else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of :data:`LONG_FILES` first."""
    places = {name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONG_FILES)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run a test with the mark ``gpu_alone`` while no test with the mark ``gpu`` runs in another worker.

    The tests with the mark ``gpu`` share a lock, and a test with ``gpu_alone`` holds it alone.
    """
    lock_mode = None
    if item.get_closest_marker("gpu") is not None:
        lock_mode = fcntl.LOCK_SH
    if item.get_closest_marker("gpu_alone") is not None:
        lock_mode = fcntl.LOCK_EX
    if lock_mode is None:
        return (yield)
    with open(Path(tempfile.gettempdir(), f"autotune-gpu-tests-{os.getuid()}.lock"), "w") as lock:
        fcntl.flock(lock, lock_mode)
        try:
            return (yield)
        finally:
            # To close the file is not enough: a child that the test left behind still has it open.
            fcntl.flock(lock, fcntl.LOCK_UN)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep the collected tests and their modules out of the search for garbage and autotuners in each run.

    They are hundreds of thousands of objects. The searches took two thirds of the processor time of a run in a test.
    """
    exclude_from_searches()


def exclude_from_searches() -> None:
    """Keep all objects that exist now out of searches for garbage and autotuners. No test may undo it for others."""
    gc.collect()
    gc.freeze()


def autotuners() -> list[Any]:
    """Return all autotuners of Triton that are in memory, also those of derived classes."""
    module: Any = sys.modules.get("triton.runtime.autotuner")
    if module is None:
        return []
    kinds = [module.Autotuner]
    for kind in kinds:
        kinds += kind.__subclasses__()
    # Each object refers to its class. This search is four times as fast as a loop over all objects.
    return [autotuner for autotuner in gc.get_referrers(*kinds) if type(autotuner) in kinds]


@pytest.fixture(autouse=True)
def environment_is_restored() -> Iterator[None]:
    """Undo changes of the environment that a run in this process left: a conftest.py may set ``TRITON_INTERPRET``."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        # pytest sets and removes this variable itself.
        if name != "PYTEST_CURRENT_TEST":
            del os.environ[name]
    before.pop("PYTEST_CURRENT_TEST", None)
    os.environ.update(before)


@pytest.fixture(scope="module", autouse=True)
def nothing_tuned_is_left() -> Iterator[None]:
    """Clear the choices of kernels after each test file. The next file's runs would report them."""
    yield
    for autotuner in autotuners():
        if isinstance(vars(autotuner).get("cache"), dict):
            autotuner.cache.clear()
    exclude_from_searches()


@pytest.fixture
def serial_suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """A suite for tests that do not depend on xdist."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return Suite(pytester, [])


@pytest.fixture
def section() -> Callable[[pytest.RunResult], list[str]]:
    """A function that returns the lines of the section ``autotune cache`` of a run's output."""

    def lines(result: pytest.RunResult) -> list[str]:
        section_lines: list[str] = []
        inside = False
        for line in result.outlines:
            if line.startswith("====") or line.startswith("!!!!"):
                inside = " autotune cache " in line
            elif inside:
                section_lines.append(line)
        return section_lines

    return lines


@pytest.fixture
def forget_choices() -> Iterator[None]:
    """Clear the choices of all autotuners, and the shipped caches, after the test.

    A later run in this process would report the choices, and calls outside of runs would use the shipped caches.
    """
    yield
    for autotuner in autotuners():
        autotuner.cache = {}
    shipped: Any = sys.modules.get("pytest_autotune.production.shipped")
    if shipped is not None:
        shipped._caches.clear()


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skip the test without a GPU."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU that torch can use")


REPOSITORY = Path(__file__).parent.parent
collect_ignore = ["data"]
os.environ.setdefault("COLUMNS", "100")
