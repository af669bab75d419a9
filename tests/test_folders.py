"""The shared folder of a user's processes is private and outside the home folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from pytest_autotune.cache.model import Device, Identity, Problem
from pytest_autotune.plugin.progress import ProgressFile
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.reporter import Stage
from pytest_autotune.workers.events import Log
from pytest_autotune.workers.locks import (
    RunMembership,
    SharedFolder,
    find_shared_folder,
    remove_run_folders,
)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder for temporary files, as on a machine without ``/dev/shm``."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "is_dir", lambda path: False if path == Path("/dev/shm") else os.path.isdir(path))
    return tmp_path


def name() -> str:
    return f"pytest-autotune-{os.getuid()}"


def test_the_lock_folder_is_private_and_outside_the_home_folder() -> None:
    folder = find_shared_folder().path

    assert folder.stat().st_mode & 0o077 == 0
    assert folder.stat().st_uid == os.getuid()
    assert Path.home() not in folder.parents


def test_a_tmpdir_in_the_home_folder_is_not_used_for_lock_files(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TMPDIR names a folder in the home folder, and there is no ``/dev/shm``."""
    monkeypatch.setenv("HOME", str(base.parent))

    folder = find_shared_folder().path

    assert folder.parent in (Path("/tmp"), Path("/var/tmp"))
    assert list(base.iterdir()) == []


def test_a_note_warns_if_lock_files_can_only_be_in_home_folder(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(base.parent))
    monkeypatch.setattr(os, "access", lambda place, mode: place == base)

    shared = find_shared_folder()

    assert (shared.path, "home folder" in shared.note, list(base.iterdir())) == (None, True, [])


def test_if_home_is_the_root_folder_the_lock_folder_is_in_tmpdir(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")

    assert find_shared_folder().path == base / name()


@pytest.mark.parametrize("obstacle", ["a plain file", "a dangling link", "a link to a folder", "a folder that is open"])
def test_a_file_or_link_in_place_of_the_lock_folder_is_kept(base: Path, obstacle: str) -> None:
    elsewhere = base / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    place = base / name()
    if obstacle == "a plain file":
        place.write_text("kept")
    elif obstacle == "a folder that is open":
        place.mkdir()
        place.chmod(0o777)
    else:
        place.symlink_to(elsewhere if obstacle == "a link to a folder" else base / "nowhere")
    before = place.lstat()

    shared = find_shared_folder()

    assert shared.path is None
    assert str(place) in shared.note
    assert "\n" not in shared.note
    assert place.lstat() == before
    assert list(elsewhere.iterdir()) == []


def test_a_lock_folder_that_belongs_to_another_user_is_not_used(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / name()).mkdir(mode=0o700)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    (base / name()).mkdir(mode=0o700)

    shared = find_shared_folder()

    assert shared.path != base / name()
    assert f"belongs to another user (number {me})" in shared.note


def test_a_one_line_note_says_that_no_lock_folder_can_be_created(base: Path, monkeypatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device", str(base))

    monkeypatch.setattr(Path, "mkdir", refuse)

    shared = find_shared_folder()

    assert shared.path is None
    assert "No space left on device" in shared.note
    assert "\n" not in shared.note
    assert shared.run_folder("0") is None


@pytest.mark.parametrize("worker", ["gw0", "GPU_B-1"])
def test_removing_a_run_folder_removes_the_files_of_its_workers(tmp_path: Path, worker: str) -> None:
    shared = SharedFolder(tmp_path)
    folder = run_folder(shared)
    member = RunMembership(folder)
    ProgressFile(folder, worker).show(Stage("triton:k", 0.0))
    Log(folder, worker).append(Lookup(Identity(Problem("triton", "k", (), Device("GPU", "arch")), ())).to_event())

    member.end()
    remove_run_folders(shared)

    assert not folder.exists()


def run_folder(shared: SharedFolder) -> Path:
    return shared.run_folder(uuid.uuid4().hex)


def test_a_run_folder_is_kept_while_one_of_its_processes_lives(tmp_path: Path) -> None:
    shared = SharedFolder(tmp_path)
    folder = run_folder(shared)
    controller, worker = RunMembership(folder), RunMembership(folder)
    (folder / f"{'a' * 32}.lock").touch()
    os.utime(folder, (0, 0))

    controller.end()
    remove_run_folders(shared)
    assert folder.exists()

    worker.end()
    remove_run_folders(shared)
    assert not folder.exists()


def test_the_folder_of_a_run_whose_process_was_killed_is_removed(tmp_path: Path) -> None:
    shared = SharedFolder(tmp_path)
    folder = run_folder(shared)
    script = (
        "import os, sys; from pathlib import Path; from pytest_autotune.workers.locks import RunMembership; "
        "member = RunMembership(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    assert subprocess.run([sys.executable, "-c", script, str(folder)], env=environment).returncode == -9
    assert folder.exists()

    remove_run_folders(shared)

    assert not folder.exists()


def test_removing_folders_of_ended_runs_keeps_files_of_the_user(tmp_path: Path) -> None:
    shared = SharedFolder(tmp_path)
    folder = run_folder(shared)
    RunMembership(folder).end()
    (tmp_path / "precious").write_text("precious")
    (folder / f"{'b' * 32}.lock").symlink_to(tmp_path / "precious")
    (tmp_path / "run-by-hand").mkdir()

    remove_run_folders(shared)

    assert not folder.exists()
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "run-by-hand").exists()
