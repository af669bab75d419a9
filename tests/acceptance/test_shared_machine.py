"""A machine that others use as well: their folders, their projects, full disks; and children of a test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_autotune.workers import events
from tests.conftest import Suite

#: Nobody has it: what is at the place of this user's folder is the tests' own, in each process of theirs.
USER = 3_000_000_000 + os.getpid()
PLACE = Path("/dev/shm") / f"pytest-autotune-{USER}"
AS_USER = f"\nimport os\nos.getuid = lambda: {USER}\n"
MANY = """
import pytest, time

@pytest.mark.parametrize("i", range(4))
def test_many(tune, i):
    for m in (1, 2):
        assert tune("lib.many", M=m) == "a"
"""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The shared folder of a user that only these tests use."""
    if not os.access(PLACE.parent, os.W_OK):
        pytest.skip(f"needs {PLACE.parent}")
    monkeypatch.setattr(os, "getuid", lambda: USER)
    yield PLACE
    if PLACE.is_dir() and not PLACE.is_symlink():
        shutil.rmtree(PLACE)
    else:
        PLACE.unlink(missing_ok=True)


def as_user(suite: Suite, **files: str) -> None:
    suite.write(**files)
    with (suite.folder / "conftest.py").open("a") as conftest:
        conftest.write(AS_USER)


@pytest.mark.parametrize(
    ("obstacle", "message"),
    [
        ("another user's folder", "belongs to another user (number"),
        ("a plain file", "is not a folder"),
        ("a dangling link", "is not a folder"),
    ],
)
def test_a_run_with_an_unusable_lock_folder_prints_one_message(
    suite: Suite, section, place: Path, obstacle: str, message: str
) -> None:
    """The folder belongs to another user, or is a file or a dangling link. Both runs pass and dump as usual."""
    as_user(suite, test_many=MANY)
    if obstacle == "another user's folder":
        place.mkdir(mode=0o700)
        (place / "journals").mkdir()
    elif obstacle == "a plain file":
        place.write_text("")
    else:
        place.symlink_to("nowhere")

    for run in (suite.dump, suite.load):
        result = run(TOY_GPU="gpu")

        assert result.ret == 0
        result.assert_outcomes(passed=4)
        assert [message in line for line in section(result)].count(True) == 1
        assert "INTERNALERROR" not in result.stdout.str()
    assert suite.tunings == []
    if place.is_dir():
        assert [path.name for path in place.iterdir()] == ["journals"]


KILLED = """
import os, pathlib, signal
def test_it(tune):
    tune("{kernel}")
    if not os.path.exists("was-killed"):
        open("was-killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_tunings_of_a_killed_run_get_into_no_other_project(serial_suite: Suite, place: Path) -> None:
    """Both projects had the same path, one after the other, and both runs were killed."""
    suite = serial_suite
    options = ["-p", "no:cacheprovider", "--autotune-dump=cache.textproto"]
    project = suite.folder / "project"

    def make(kernel: str) -> None:
        as_user(suite, test_it=KILLED.format(kernel=kernel))
        project.mkdir()
        for name in ("conftest.py", "test_it.py"):
            shutil.move(suite.folder / name, project / name)

    def run() -> int:
        environment = {**os.environ, "TOY_LOG": str(suite.log), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command = [sys.executable, "-m", "pytest", "--rootdir=.", "-ppytest_autotune.plugin", *options]
        # The user's folder is this process's user's: what makes it another's is only the number.
        return subprocess.run(command, cwd=project, env=environment, capture_output=True).returncode

    place.mkdir(mode=0o700)
    os.chown(place, USER, -1) if os.geteuid() == 0 else pytest.skip("needs the right to give a folder away")
    make("lib.one")
    assert run() == -signal.SIGKILL
    shutil.rmtree(project)
    make("lib.other")
    assert run() == -signal.SIGKILL

    assert run() == 0

    text = (project / "cache.textproto").read_text()
    assert 'kernel: "lib.other"' in text
    assert "lib.one" not in text


FULL = """
import errno, os
from pytest_autotune.workers import events

room = [int(os.environ.get("ROOM", 10**9))]

class Full(events.FileIO):
    def write(self, data):
        taken = super().write(data[:room[0]])
        room[0] -= taken
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return taken

events.FileIO = Full
"""


@pytest.mark.parametrize("room", [0, 2000, 10**6])
def test_a_failed_dump_says_how_many_tunings_the_next_run_writes(
    serial_suite: Suite, section, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """The dump cannot be written, and the log has room for none, some or all tunings."""
    monkeypatch.setattr(events, "FileIO", events.FileIO)
    suite = serial_suite.write(
        test_it="""
        import os
        def test_it(tune):
            for number in range(8):
                tune(f"lib.k{number}")
            os.rename("sub", "gone")
            open("sub", "w").close()
        """
    )
    with (suite.folder / "conftest.py").open("a") as conftest:
        conftest.write(FULL)

    cache = suite.folder / "sub" / "cache.textproto"
    cache.parent.mkdir()

    failed = suite.run("--autotune-dump=sub/cache.textproto", ROOM=str(room))
    cache.parent.unlink()
    cache.parent.mkdir()
    (suite.folder / "test_it.py").write_text("def test_nothing(): pass")
    (suite.folder / "conftest.py").write_text("")
    suite.run("--autotune-dump=sub/cache.textproto")

    (message,) = [line for line in section(failed) if line.startswith("ERROR --autotune-dump")]
    text = cache.read_text() if cache.exists() else ""
    recovered = text.count('kernel: "lib.k')
    if room == 10**6:
        assert recovered == 8
        assert message.endswith("; the tunings are kept, and the next run with this dump path writes them")
    else:
        assert (
            f"; {8 - recovered} of 8 tunings are lost (the log cannot be written: No space left on device)" in message
        )
        assert message.endswith("the next run with this dump path writes the others") == (recovered > 0)
    assert (recovered == 0) == (room == 0)


FORKING = """
import os

def in_child(function):
    child = os.fork()
    if child == 0:
        try:
            function()
        finally:
            os._exit(0)
    os.waitpid(child, 0)

def test_forking(tune):
    in_child(lambda: tune("lib.child"))
    tune("lib.parent")
"""


def test_hits_and_tunings_of_a_forked_child_are_recorded(suite: Suite, section) -> None:
    """The child's tunings are in the dump. An update with prune does not drop them."""
    suite.write(test_forking=FORKING)

    dumped = suite.dump()
    text = suite.cache.read_text()
    report = suite.report("--autotune-load=cache.textproto")
    pruned = suite.run("--autotune-load=cache.textproto", "--autotune-update=prune")

    assert dumped.ret == pruned.ret == 0
    assert 'kernel: "lib.child"' in text
    assert report["counts"]["hit"] == 2
    assert report["counts"]["unused"] == 0
    assert suite.cache.read_text() == text


def test_a_miss_in_a_forked_child_fails_the_gate(suite: Suite) -> None:
    suite.write(test_forking="def test_it(tune): tune('lib.parent')").serial.prepare_dump()
    suite.write(test_forking=FORKING)

    assert suite.load("--autotune-max-misses=0").ret == pytest.ExitCode.TESTS_FAILED


def test_a_test_that_deletes_the_pytest_cache_loses_no_tuning(suite: Suite) -> None:
    """The test removes pytest's cache folder and puts a file in its place."""
    tests = """
    import pathlib, shutil, time

    def test_first(tune):
        tune("lib.first")

    def test_last(tune, pytestconfig):
        tune("lib.last")
        time.sleep(1)  # the worker of the first one ends
        cache = pathlib.Path(pytestconfig.cache.mkdir("x")).parents[1]
        shutil.rmtree(cache)
        cache.touch()
    """

    result = suite.write(test_it=tests).dump()

    assert result.parseoutcomes()["passed"] == 2
    assert suite.cache.read_text().count("entries {") == 2
