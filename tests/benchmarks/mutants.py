"""Plant random faults in the package, and count those that the tests do not see.

    python tests/benchmarks/mutants.py [--seed=1] [--count=100] [--jobs=2] [--near] [--only=PATH:LINE]

A mutant is the package with one small fault: a comparison or a condition that is turned around, a number that is off by
one, a statement that is left out, a result that is None. The seed decides which mutants are drawn. The tests run in a
copy of the repository: first the test files that are likely to see the fault, each by itself, then all others that need
no GPU (with ``--near`` only the first). The first test that fails kills the mutant, unless it fails without the fault,
too. The mutant survives if all tests pass.

A mutant that behaves as the package does is equivalent. A person has to judge that: :data:`EQUIVALENT` lists the
judgements with their reasons. A mutant that is neither killed nor equivalent is a test that is missing.

The method is mutation analysis: R. A. DeMillo, R. J. Lipton and F. G. Sayward, "Hints on test data selection", 1978.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from common import REPOSITORY, machine, table

ROOMS = ("cache", "run", "workers", "plugin", "report", "production")
#: Code that a generator wrote.
GENERATED = ("autotune_cache_pb2.py",)
#: A test file that hangs for a mutant is ended after this time.
TIMEOUT_S = 300
#: Test files that take long and see nothing of these rooms that no other file sees.
LEFT_OUT = ("test_release.py", "test_package.py", "test_xla_deviceless.py", "test_formats_fuzz.py")

#: Test files that run the whole plugin, so that they are likely to see a fault of any room.
WHOLE_RUNS = (
    "test_dump_and_load.py",
    "test_staleness.py",
    "test_update.py",
    "test_marker_and_fixture.py",
    "test_unused.py",
    "test_summary.py",
    "test_reports.py",
    "test_gate.py",
    "test_workers.py",
    "test_bad_input.py",
)
#: This many of the test files that name a module or a function run first.
MOST_LIKELY = 12

#: (module below the package, the mutated line) -> the reason why it behaves as the original does.
EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "plugin/options.py",
        "_NUMBER: Any = str | int | float if (pytest.version_tuple) > ((9, 2)) else None",
    ): "pytest.version_tuple has three parts or more, so it is never equal to (9, 2)",
    ("cache/codec/reading.py", "if (kind) != ('value'):"): "the values are the same objects or equal ones",
    (
        "cache/codec/text.py",
        'for entry, fields in zip(entries, plain["entries"], strict=False):',
    ): "each entry has its fields, so the lists have one length",
    (
        "plugin/completeness.py",
        "if ((report.passed) or (not self._config.getoption('lf', False))):",
    ): "a run with --lf or with a failed collector is a part of the suite anyway",
    ("plugin/progress.py", "while not self._stop.wait(AFTER_S / 11):"): "the thread looks a little more often",
    (
        "production/answering.py",
        'warnings.warn("pytest_autotune.use(): this version of Triton is not supported, so Triton tunes '
        '(upgrade pytest-autotune)", stacklevel=3)',
    ): "wrapt calls the hook, so the warning names a line of wrapt or of use.py, and never a line of the user",
    (
        "production/choices.py",
        'return [number.zfill(10) for number in re.findall(r"\\d+", version)], version',
    ): "no number in a version of Triton has ten digits: a date or a short commit has eight characters",
    (
        "report/findings.py",
        "tuner, device = rows[0].problem.tuner, rows[1].problem.device",
    ): "the group has two rows or more, and all of them are on one device",
    ("report/findings.py", "columns = zip(*keys, strict=False)"): "keys of one shape have one length",
}

_OPPOSITES: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


@dataclass(frozen=True)
class Mutant:
    """One fault: a span of a module's text and the text in its place.

    :param path: the module, relative to the repository.
    :param start: offset of the span's first character; ``end``: the offset behind its last.
    """

    path: str
    line: int
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        """Return the module's text with the fault."""
        return source[: self.start] + self.text + source[self.end :]

    def describe(self, source: str) -> str:
        """Return the faulty line without its indentation."""
        first = source.rfind("\n", 0, self.start) + 1
        last = source.find("\n", self.end)
        return " ".join((source[first : self.start] + self.text + source[self.end : last]).split())


class _Finder(ast.NodeVisitor):
    """Finds the places of one module where a fault can be planted."""

    def __init__(self, path: str, source: str) -> None:
        self.mutants: list[Mutant] = []
        self._path = path
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def _offset(self, line: int, column: int) -> int:
        # The columns of ast count bytes.
        text = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(text)

    def _plant(self, node: ast.expr | ast.stmt, text: str) -> None:
        end_line, end_column = node.end_lineno, node.end_col_offset
        assert end_line is not None
        assert end_column is not None
        start = self._offset(node.lineno, node.col_offset)
        self.mutants.append(Mutant(self._path, node.lineno, start, self._offset(end_line, end_column), text))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        # Annotations, defaults and decorators stay as they are.
        for statement in node.body:
            self.visit(statement)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        # A decorator's arguments, such as ``frozen=True``, change nothing that a test should see.
        for statement in node.body:
            self.visit(statement)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        # Before Python 3.12 the places of expressions inside a formatted text are not exact.
        return

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            self._plant(node, f"({left}) {_OPPOSITES[type(node.ops[0])]} ({right})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = " or " if isinstance(node.op, ast.And) else " and "
        self._plant(node, f"({word.join(f'({ast.unparse(value)})' for value in node.values)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._plant(node, f"bool({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._plant(node, str(not node.value))
        elif isinstance(node.value, int):
            self._plant(node, str(node.value + 1))

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) != "TYPE_CHECKING":
            self._plant(node.test, f"not ({ast.unparse(node.test)})")
            self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and ast.unparse(node.value) != "None":
            self._plant(node, "return None")
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._plant(node, "pass")
            self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._plant(node, "break")

    def visit_Break(self, node: ast.Break) -> None:
        self._plant(node, "continue")


def list_mutants() -> list[Mutant]:
    """Return all mutants of the rooms, in the order of their files and lines."""
    mutants = []
    for room in ROOMS:
        for path in sorted((REPOSITORY / "pytest_autotune" / room).rglob("*.py")):
            if path.name in GENERATED:
                continue
            source = path.read_text(encoding="utf-8")
            finder = _Finder(str(path.relative_to(REPOSITORY)), source)
            finder.visit(ast.parse(source))
            mutants += finder.mutants
    return mutants


def list_test_files(mutant: Mutant, function: str) -> tuple[list[str], list[str]]:
    """Return the test files that are likely to see a fault, the likeliest first, and all others.

    A test file is likely if its text has the name of the faulty function or of the module, or if its own name shares a
    word with the module's. Among equals the smaller file comes first, because it is usually faster. The tests of whole
    runs follow.
    """
    module = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = module.rpartition(".")
    imports = re.compile(rf"{re.escape(module)}\b|from {re.escape(package)} import .*\b{name}\b")
    words = set(name.split("_"))
    tests = REPOSITORY / "tests"
    likely: list[tuple[int, int, str]] = []
    files = []
    # Not the folders of test data and stand-ins, which have test files for inner runs.
    for file in [*sorted(tests.glob("test_*.py")), *sorted((tests / "acceptance").glob("test_*.py"))]:
        if file.name in LEFT_OUT:
            continue
        text = file.read_text(encoding="utf-8")
        score = 0
        is_special = function.startswith("__")
        if not is_special and re.search(rf"\b{function}\b", text):
            score += 4
        if words & set(file.stem.split("_")):
            score += 2
        if imports.search(text):
            score += 1
        relative = str(file.relative_to(REPOSITORY))
        files.append(relative)
        if score:
            likely.append((-score, len(text), relative))
    first = [relative for _, _, relative in sorted(likely)][:MOST_LIKELY]
    for file_name in WHOLE_RUNS:
        relative = f"tests/acceptance/{file_name}"
        if relative not in first:
            first.append(relative)
    return first, [relative for relative in files if relative not in first]


def find_function(source: str, line: int) -> str:
    """Return the name of the innermost function around a line, or of the class."""
    name = "module"
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        assert node.end_lineno is not None
        # ast.walk visits an outer node before the nodes inside.
        if node.lineno <= line <= node.end_lineno:
            name = node.name
    return name


class Trial:
    """One job's copy of the repository, in which the tests of one mutant after the other run.

    :param failures_without_fault: by test file, the events of a run without a fault on this machine. All jobs share the
        mapping and fill it.
    """

    def __init__(self, folder: Path, failures_without_fault: dict[str, list[str]]) -> None:
        self._folder = folder
        self._failures_without_fault = failures_without_fault

    def find_killer(self, mutant: Mutant, is_near: bool) -> str:
        """Return the id of the test that fails for a mutant, or "time-out"; empty if the mutant survives.

        :param is_near: run only the test files that are likely to see the fault.
        """
        target = self._folder / mutant.path
        source = target.read_text(encoding="utf-8")
        likely, others = list_test_files(mutant, find_function(source, mutant.line))
        files = likely if is_near else [*likely, *others]
        for file in files:
            events = self._run_with_fault(file, target, mutant.apply(source))
            if not events:
                continue
            if file not in self._failures_without_fault:
                self._failures_without_fault[file] = self._run_tests(file)
            if self._failures_without_fault[file]:
                # Tests of this file fail without the fault, too, so run the others.
                events = self._run_with_fault(file, target, mutant.apply(source))
            for event in events:
                if event not in self._failures_without_fault[file]:
                    return event
        return ""

    def _run_with_fault(self, file: str, target: Path, faulty_source: str) -> list[str]:
        """Return the events of :meth:`_run_tests` with the fault, up to the first failed test."""
        source = target.read_text(encoding="utf-8")
        target.write_text(faulty_source, encoding="utf-8")
        deselected = [f"--deselect={test}" for test in self._failures_without_fault.get(file, ()) if "::" in test]
        try:
            return self._run_tests(file, "-x", *deselected)
        finally:
            target.write_text(source, encoding="utf-8")

    def _run_tests(self, file: str, *arguments: str) -> list[str]:
        """Run a test file in the copy. Return the ids of the tests that failed; empty if all passed.

        A run without the id of a failed test has an event in its place: ``time-out`` or ``exit status 4``.
        """
        options = ("-q", "-p", "no:cacheprovider", "--tb=no", "-m", "not gpu")
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self._folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *arguments, file],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # The workers and the inner runs of the tests belong to the same process group.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return ["time-out"]
        # Status 5: each test of the file was left out.
        if process.returncode in (0, 5):
            return []
        return _list_failed(output) or [f"exit status {process.returncode}"]


def _list_failed(output: str) -> list[str]:
    """Return the ids of the failed tests in the output of pytest."""
    return re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)


def copy_repository(place: Path, index: int) -> Path:
    """Return a copy of the repository's files that a job may change."""
    folder = place / str(index)
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", ".hypothesis", ".pytest_cache")
    shutil.copytree(REPOSITORY, folder, ignore=ignored)
    return folder


def main() -> None:
    """Draw the mutants, run the tests of each, and print a row for each that no test killed."""
    parser = argparse.ArgumentParser(usage=__doc__, allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--near", action="store_true", help="run only the test files that are likely to see a fault")
    parser.add_argument("--only", help="PATH:LINE, to try the mutants of one line again")
    options = parser.parse_args()
    print(machine(), flush=True)
    mutants = list_mutants()
    if options.only:
        path, _, line = options.only.rpartition(":")
        drawn = [mutant for mutant in mutants if mutant.path == path and mutant.line == int(line)]
    else:
        drawn = random.Random(options.seed).sample(mutants, options.count)
    counts = {"killed": 0, "survived": 0, "equivalent": 0}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        trials: Queue[Trial] = Queue()
        failures_without_fault: dict[str, list[str]] = {}
        for index in range(options.jobs):
            trials.put(Trial(copy_repository(Path(name), index), failures_without_fault))

        def judge(mutant: Mutant) -> tuple[Mutant, str]:
            trial = trials.get()
            try:
                return mutant, trial.find_killer(mutant, options.near)
            finally:
                trials.put(trial)

        with ThreadPoolExecutor(options.jobs) as pool:
            for future in as_completed([pool.submit(judge, mutant) for mutant in drawn]):
                mutant, killer = future.result()
                text = mutant.describe((REPOSITORY / mutant.path).read_text(encoding="utf-8"))
                reason = EQUIVALENT.get((mutant.path.removeprefix("pytest_autotune/"), text), "")
                fate = "survived"
                if killer:
                    fate = "killed"
                elif reason:
                    fate = "equivalent"
                counts[fate] += 1
                print(f"{fate}: {mutant.path}:{mutant.line}: {text} ({killer or reason})", flush=True)
                if fate != "killed":
                    rows.append((fate, f"{mutant.path}:{mutant.line}", f"`{text}`", reason))
    table(("fate", "place", "faulty line", "reason"), sorted(rows))
    different = counts["killed"] + counts["survived"]
    share = counts["killed"] / different if different else 1.0
    print(
        f"{len(mutants)} possible, {len(drawn)} tried: {counts['killed']} killed, {counts['survived']} survived, "
        f"{counts['equivalent']} equivalent; {share:.0%} of those that differ were killed"
    )


if __name__ == "__main__":
    main()
