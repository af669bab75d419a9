"""A moved or renamed kernel: its old entries are hits. An update adds the new name, and `=prune` drops the old one."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from pytest_autotune.cache.stores import read_cache
from tests.conftest import Suite

LIBRARY = """
import torch, triton, triton.language as tl

@triton.autotune([triton.Config({"BLOCK": b}) for b in (32, 64)], key=["n"])
@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o, mask=o < n), mask=o < n)

def launch(n):
    copy[(1,)](torch.zeros(n), torch.zeros(n), n)
"""
SUITE = """
import old as lib
def test_ten(): lib.launch(10)
def test_twenty(): lib.launch(20)
"""
MOVED_FILE = {"new": LIBRARY, "test_op": SUITE.replace("import old", "import new")}
#: A plain function has the name that the kernel had before.
LAUNCHER_WITH_OLD_NAME = {
    "old": re.sub(r"\bcopy\b", "duplicate", LIBRARY) + "def copy(n): launch(n)\n",
    "test_op": SUITE,
}
#: The kernel reads an object of a class in its own file.
LIBRARY_WITH_CLASS = """
import dataclasses, torch, triton, triton.language as tl

@dataclasses.dataclass(frozen=True)
class Shift:
    by: int = 1

    @property
    def doubled(self):
        return 2 * self.by

@triton.autotune([triton.Config({"BLOCK": b}) for b in (32, 64)], key=["n"])
@triton.jit
def copy(x, y, n, shift: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o, mask=o < n) + shift.doubled, mask=o < n)

def launch(n):
    copy[(1,)](torch.zeros(n), torch.zeros(n), n, Shift())
"""
RENAMED_FUNCTION = {"old": re.sub(r"\bcopy\b", "duplicate", LIBRARY), "test_op": SUITE}


@pytest.fixture
def a_suite(serial_suite: Suite, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    serial_suite.write(old=LIBRARY, test_op=SUITE).dump().assert_outcomes(passed=2)
    return serial_suite


def rewritten(suite: Suite, files: dict[str, str], remove: str = "") -> Suite:
    if remove:
        (suite.folder / remove).unlink()
    suite.pytester.makepyfile(**files)
    return suite


def kernels(suite: Suite) -> list[str]:
    return [entry.problem.kernel for entry in read_cache(str(suite.cache)).entries]


@pytest.mark.parametrize(
    ("files", "remove", "now"),
    [
        pytest.param(MOVED_FILE, "old.py", "new.copy", id="file"),
        pytest.param(RENAMED_FUNCTION, "", "old.duplicate", id="function"),
        pytest.param(LAUNCHER_WITH_OLD_NAME, "", "old.duplicate", id="launcher with the old name"),
        pytest.param({**MOVED_FILE, "old": "from new import copy"}, "", "new.copy", id="kept for importers"),
    ],
)
def test_a_moved_kernel_is_a_hit_and_a_prune_renames_its_entry(
    a_suite: Suite, files: dict[str, str], remove: str, now: str
) -> None:
    """The lookups are hits and name the kernel's old name. A prune renames the entries and changes nothing else."""
    before = a_suite.cache.read_text()
    rewritten(a_suite, files, remove)

    report = a_suite.report("--autotune-load=cache.textproto", "--autotune-on-miss=error")
    loaded = a_suite.load()

    assert [(row["outcome"], row["moved_from"]) for row in report["lookups"]] == [("hit", "old.copy")] * 2
    loaded.assert_outcomes(passed=2)
    loaded.stdout.fnmatch_lines(
        [
            f"2 hits of {now} used the entries of triton:old.copy, which has the same source",
            "2 hits*",
            "*--autotune-update=prune*",
        ]
    )
    a_suite.load("--autotune-update=prune").assert_outcomes(passed=2)
    renamed = before.replace('"old.copy"', f'"{now}"').replace("# copy ", f"# {now.rpartition('.')[2]} ")
    assert a_suite.cache.read_text() == renamed
    a_suite.load().stdout.no_fnmatch_line("*same source*")


@pytest.mark.parametrize(
    ("arguments", "new_count"),
    [
        (["--autotune-update"], 2),
        (["--autotune-update=new"], 2),
        (["--autotune-update", "-k", "ten"], 1),
        (["--autotune-update=prune", "-k", "ten"], 1),
    ],
    ids=["complete", "new", "incomplete", "incomplete prune"],
)
def test_an_update_adds_the_new_name_and_keeps_the_old_one(
    a_suite: Suite, arguments: list[str], new_count: int
) -> None:
    """A kernel of the old name may still exist, although no test of this run calls it."""
    rewritten(a_suite, MOVED_FILE, "old.py")

    a_suite.load(*arguments)

    assert kernels(a_suite) == [*["new.copy"] * new_count, "old.copy", "old.copy"]


def test_a_prune_after_an_update_drops_the_old_name(a_suite: Suite) -> None:
    rewritten(a_suite, MOVED_FILE, "old.py")
    a_suite.load("--autotune-update")

    a_suite.load("--autotune-update=prune")

    assert kernels(a_suite) == ["new.copy", "new.copy"]


def test_a_dump_into_another_file_has_new_names_only(a_suite: Suite) -> None:
    rewritten(a_suite, MOVED_FILE, "old.py")

    a_suite.load("--autotune-dump=other.textproto")
    report = a_suite.report("--autotune-load=cache.textproto", "--autotune-dump=other.textproto")

    entries = read_cache(str(a_suite.folder / "other.textproto")).entries
    assert [entry.problem.kernel for entry in entries] == ["new.copy", "new.copy"]
    assert report["left_out"] == []


@pytest.mark.parametrize(
    ("update", "kernels_after"),
    [
        ("--autotune-update", ["new.copy", "old.copy", "old.copy"]),
        ("--autotune-update=prune", ["new.copy"]),
    ],
    ids=["all", "prune"],
)
def test_only_a_prune_drops_the_entries_that_a_copied_kernel_used(
    a_suite: Suite, update: str, kernels_after: list[str]
) -> None:
    """No test launches the original kernel in this run, but its module is imported and still defines it."""
    suite = "import new, old, os\ndef test_new(): new.launch(10)\nif 'SLOW' in os.environ:\n"
    suite += "    def test_old(): old.launch(10)\n"
    rewritten(a_suite, {"new": LIBRARY, "test_op": suite})

    a_suite.load(update).assert_outcomes(passed=1)

    assert sorted(kernels(a_suite)) == kernels_after


@pytest.mark.parametrize("first", ["new", "old"])
@pytest.mark.parametrize("old_sizes", [(10, 20), (20,)])
def test_a_copy_of_a_kernel_is_a_hit_in_any_order_of_tests(
    a_suite: Suite, old_sizes: tuple[int, ...], first: str
) -> None:
    """An update adds the entry of the copy, and keeps those of the original, also those for other sizes."""
    launches = "".join(f" old.launch({size})\n" for size in old_sizes)
    tests = ["def test_new(): new.launch(10)\n", f"def test_old():\n{launches}"]
    if first == "old":
        tests.reverse()
    rewritten(a_suite, {"new": LIBRARY, "test_op": "import new\nimport old\n" + "".join(tests)})

    a_suite.load("--autotune-on-miss=error").assert_outcomes(passed=2)
    report = a_suite.report("--autotune-load=cache.textproto", "--autotune-dump=cache.textproto")

    outcomes = {(row["kernel"], row["outcome"]) for row in report["lookups"]}
    assert outcomes == {("new.copy", "hit"), ("old.copy", "hit")}
    assert kernels(a_suite) == ["new.copy", "old.copy", "old.copy"]


MARKED = """
import new as lib, pytest
@pytest.mark.autotune_cache(load="own.textproto")
def test_ten(): lib.launch(10)
"""


@pytest.mark.parametrize("update", ["--autotune-update", "--autotune-update=prune"])
def test_an_update_adds_the_new_name_for_tests_with_an_own_cache(a_suite: Suite, update: str) -> None:
    """The old entry is in the cache of all tests, so that cache receives the new entry."""
    other_entries = a_suite.cache.read_text().replace("old.copy", "other.copy").replace("int: 10", "int: 77")
    (a_suite.folder / "own.textproto").write_text(other_entries.replace("int: 20", "int: 78"))
    rewritten(a_suite, {"new": LIBRARY, "test_op": MARKED}, "old.py")

    a_suite.load(update).assert_outcomes(passed=1)

    report = a_suite.report("--autotune-load=cache.textproto", "--autotune-on-miss=error")
    assert [(row["outcome"], row["moved_from"]) for row in report["lookups"]] == [("hit", "")]


def test_a_moved_kernel_with_a_class_in_the_key_is_a_hit(serial_suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class moves with the kernel, and the key does not have the name of its module."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    serial_suite.write(old=LIBRARY_WITH_CLASS, test_op=SUITE).dump().assert_outcomes(passed=2)
    rewritten(serial_suite, {**MOVED_FILE, "new": LIBRARY_WITH_CLASS}, "old.py")

    report = serial_suite.report("--autotune-load=cache.textproto", "--autotune-on-miss=error")

    assert [(row["outcome"], row["moved_from"]) for row in report["lookups"]] == [("hit", "old.copy")] * 2
    assert {row["key"]["shift.class"] for row in report["lookups"]} == {"Shift"}


def test_an_update_keeps_the_entries_of_a_class_of_the_same_name(
    serial_suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two modules have a class ``Shift``. A test with the class of one module leaves the entry for the other."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    classes = LIBRARY_WITH_CLASS.partition("@triton")[0]
    library = LIBRARY_WITH_CLASS.replace("launch(n)", "launch(n, shift)").replace("Shift())", "shift)")
    suite = "import old, a, b\ndef test_a(): old.launch(10, a.Shift())\ndef test_b(): old.launch(10, b.Shift())\n"
    files = {"old": library, "a": classes, "b": classes.replace("2 *", "3 *"), "test_op": suite}
    serial_suite.write(**files).dump().assert_outcomes(passed=2)
    rewritten(serial_suite, {"a": classes.replace("2 *", "4 *")})

    serial_suite.load("--autotune-update", "-k", "test_a").assert_outcomes(passed=1, deselected=1)

    assert serial_suite.load_stale() == []
    assert len(kernels(serial_suite)) == 2
