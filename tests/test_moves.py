"""A moved or renamed kernel: its old entries are hits, and an update renames them."""

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
def test_a_moved_kernel_is_a_hit_and_an_update_renames_its_entry(
    a_suite: Suite, files: dict[str, str], remove: str, now: str
) -> None:
    """The lookups are hits and name the kernel's old name. An update renames the entries and changes nothing else."""
    before = a_suite.cache.read_text()
    rewritten(a_suite, files, remove)

    report = a_suite.report("--autotune-load=cache.textproto", "--autotune-on-miss=error")
    loaded = a_suite.load()

    assert [(row["outcome"], row["moved_from"]) for row in report["lookups"]] == [("hit", "old.copy")] * 2
    loaded.assert_outcomes(passed=2)
    loaded.stdout.fnmatch_lines(
        [
            f"2 hits of {now}: the cache has the entries under the kernel's old name triton:old.copy",
            "2 hits*",
            "*--autotune-update*",
        ]
    )
    a_suite.load("--autotune-dump=cache.textproto").assert_outcomes(passed=2)
    renamed = before.replace('"old.copy"', f'"{now}"').replace("# copy ", f"# {now.rpartition('.')[2]} ")
    assert a_suite.cache.read_text() == renamed
    a_suite.load().stdout.no_fnmatch_line("*renamed from*")


def test_an_incomplete_run_renames_no_entries_of_a_moved_kernel(a_suite: Suite) -> None:
    """A test that did not run may still use the kernel's old name. The summary asks for a complete run."""
    before = a_suite.cache.read_text()
    rewritten(a_suite, MOVED_FILE, "old.py")

    a_suite.load("--autotune-dump=cache.textproto", "-k", "ten").assert_outcomes(passed=1, deselected=1)

    assert a_suite.cache.read_text() == before
    output = a_suite.load("-k", "ten").stdout
    output.fnmatch_lines(
        [
            "1 hit of new.copy: the cache has the entries under the kernel's old name *old.copy; "
            "--autotune-update in a complete run renames them"
        ]
    )
    output.no_fnmatch_line("Re-run with *")


@pytest.mark.parametrize(
    ("update", "kernels_after"),
    [
        ("--autotune-update", ["new.copy", "old.copy", "old.copy"]),
        ("--autotune-update=prune", ["new.copy"]),
    ],
    ids=["all", "prune"],
)
def test_an_update_renames_no_entry_of_a_kernel_that_exists(
    a_suite: Suite, update: str, kernels_after: list[str]
) -> None:
    """No test launches the original kernel in this run, but its module is imported and still defines it.

    ``=prune`` drops the entries that no test asked for, and moves none of them.
    """
    suite = "import new, old, os\ndef test_new(): new.launch(10)\nif 'SLOW' in os.environ:\n"
    suite += "    def test_old(): old.launch(10)\n"
    rewritten(a_suite, {"new": LIBRARY, "test_op": suite})

    a_suite.load(update).assert_outcomes(passed=1)

    assert sorted(kernels(a_suite)) == kernels_after


@pytest.mark.parametrize("old_sizes", [(10, 20), (20,)])
def test_a_copy_of_a_kernel_is_a_miss_while_the_original_exists(a_suite: Suite, old_sizes: tuple[int, ...]) -> None:
    """The original kernel still exists, so its entries keep their name, also those for other sizes."""
    launches = "".join(f" old.launch({size})\n" for size in old_sizes)
    both = f"import new\nimport old\ndef test_new(): new.launch(10)\ndef test_old():\n{launches}"
    rewritten(a_suite, {"new": LIBRARY, "test_op": both})

    report = a_suite.report("--autotune-load=cache.textproto", "--autotune-dump=cache.textproto")

    outcomes = [(row["kernel"], row["outcome"]) for row in report["lookups"]]
    assert outcomes == [("new.copy", "miss"), *[("old.copy", "hit")] * len(old_sizes)]
    assert sorted(kernels(a_suite)) == ["new.copy", "old.copy", "old.copy"]
