"""Files and folders of caches: what is read, what is refused, and that nothing is ever lost or half written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from pytest_autotune.cache import stores
from pytest_autotune.cache.codec import Format, encode
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import MARKER
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value
from pytest_autotune.cache.stores import open_store, read_cache
from pytest_autotune.cache.stores.writing import TEMPORARY, create_unused_path, locked
from tests.stores import update_store

H200 = Device("NVIDIA H200", "sm_90", 132)


def entry(kernel: str, time_us: float = 1.0) -> Entry:
    return Entry(Problem("triton", kernel, (Value("M", 1),), H200), choice=Candidate(time_us=time_us))


def check_writable(path) -> Cache:
    return open_store(path).check_writable()


def update(path, change):
    return update_store(open_store(path), change)


def adding(*entries: Entry):
    """A change that puts the entries in the place of those with the same problem."""

    def change(cache: Cache) -> Cache:
        problems = {entry.problem: entry for entry in (*cache.entries, *entries)}
        return Cache(tuple(problems.values()), cache.lossy)

    return change


def refusal(action, *args) -> str:
    with pytest.raises(CacheError) as caught:
        action(*args)
    return str(caught.value)


def litter(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith((".lock", TEMPORARY))]


every_store = pytest.mark.parametrize("name", [*(f"c{form.value.suffixes[0]}" for form in Format), "c/"])


# Reading


@pytest.mark.parametrize(("name", "comment_lines"), [("c.textproto", 2), ("c.yaml", 2), ("c/", 2), ("c.json", 0)])
def test_a_write_counts_the_comment_lines_that_it_removes(tmp_path, name, comment_lines):
    path = f"{tmp_path}/{name}"
    update(path, adding(entry("add")))
    (file,) = tmp_path.rglob("c.*" if "." in name else "*.textproto")
    if comment_lines:
        file.write_text(f"# Mine.\n{file.read_text()}  # The last line.\n")
    assert update(path, adding(entry("add", time_us=2.0))).lost_comment_lines == comment_lines
    assert update(path, adding(entry("add", time_us=3.0))).lost_comment_lines == 0


@every_store
def test_a_cache_written_in_any_file_format_is_read_back_equal(tmp_path, name):
    path = f"{tmp_path}/new/{name}"
    updated = update(path, adding(entry("add"), entry("mul")))
    assert updated.changed
    assert (updated.written_to, updated.beside) == (path, "")
    assert set(read_cache(path).entries) == {entry("add"), entry("mul")}
    assert litter(tmp_path / "new") == []


@every_store
def test_the_error_for_a_missing_cache_names_the_dump_option(tmp_path, name):
    path = f"{tmp_path}/{name}"
    event = "no such file"
    if name == "c/":
        event = "no such folder"
    assert refusal(read_cache, path).endswith(f"{path}: {event} (correct the path, or {_create(name)}={path})")
    assert read_cache(path, missing_ok=True) == Cache()


def _create(name: str) -> str:
    return f"create {'one' if name == 'c/' else 'it'} with --autotune-dump"


@pytest.mark.parametrize("name", ["c.textproto", "c.pb"])
def test_an_empty_file_is_an_error_unless_it_may_be_missing(tmp_path, name):
    path = tmp_path / name
    path.touch()
    assert "is empty" in refusal(read_cache, path)
    assert read_cache(path, missing_ok=True) == Cache()
    check_writable(path)
    assert update(path, adding(entry("add"))).written_to == str(path)


def test_reading_a_folder_a_pipe_or_a_huge_file_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "a.pb").mkdir()
    os.mkfifo(tmp_path / "b.pb")
    (tmp_path / "c.pb").write_bytes(b"12345")
    monkeypatch.setattr(stores.disk, "MAX_BYTES", 4)
    assert "is a folder, not a cache" in refusal(read_cache, tmp_path / "a.pb")
    assert "is not a regular file" in refusal(read_cache, tmp_path / "b.pb")
    assert "is larger than" in refusal(read_cache, tmp_path / "c.pb")


# Folders


def test_a_cache_in_a_folder_has_one_file_for_each_problem(tmp_path):
    folder = tmp_path / "kept"
    update(f"{folder}/", adding(entry("add"), entry("mul")))
    names = {MARKER, *(f"{entry(kernel).problem.digest}.textproto" for kernel in ("add", "mul"))}
    assert set(os.listdir(folder)) == names
    assert set(read_cache(folder).entries) == {entry("add"), entry("mul")}


def test_updating_a_folder_writes_only_the_changed_files(tmp_path):
    folder = tmp_path / "kept"
    update(f"{folder}/", adding(entry("add"), entry("mul"), entry("sub")))
    (folder / "README").write_text("ours")
    before = {path.name: path.stat().st_ino for path in folder.iterdir()}
    updated = update(folder, lambda _: Cache((entry("add"), entry("mul", 2.0))))
    after = {path.name: path.stat().st_ino for path in folder.iterdir()}
    assert updated.changed
    changed, dropped = (f"{entry(kernel).problem.digest}.textproto" for kernel in ("mul", "sub"))
    assert {name for name in before if before[name] != after.get(name)} == {changed, dropped}
    assert dropped not in after
    assert not update(folder, lambda cache: cache).changed


def test_using_a_folder_with_other_files_as_a_cache_is_an_error(tmp_path):
    (tmp_path / "test_a.py").write_text("def test(): pass")
    path = f"{tmp_path}/"
    for action in (read_cache, check_writable, lambda path: update(path, adding(entry("add")))):
        assert "is a folder with other files in it" in refusal(action, path)
    assert os.listdir(tmp_path) == ["test_a.py"]


def test_if_a_folder_cannot_be_listed_an_update_loses_no_entry(tmp_path, monkeypatch):
    path = f"{tmp_path}/kept"
    update(f"{path}/", adding(entry("add"), entry("mul")))

    def stale(*args: object) -> None:
        raise OSError(116, "Stale file handle")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(os, "listdir", stale)
        assert refusal(update, f"{path}/", adding(entry("sub"))) == f"{path}/: cannot be read: Stale file handle"
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(os.path, "isfile", lambda path: False)
        assert refusal(update, path, adding(entry("sub"))).startswith(f"{path}: has no suffix")
    assert set(read_cache(path).entries) == {entry("add"), entry("mul")}


def test_a_dump_removes_temporary_files_of_a_killed_dump(tmp_path):
    path = f"{tmp_path}/kept/"
    update(path, adding(entry("add")))
    temporary = tmp_path / "kept" / f".{entry('mul').problem.digest}.textproto{TEMPORARY}"
    temporary.write_text("half")

    update(path, adding(entry("sub")))

    assert not temporary.exists()


# Updating


@every_store
def test_an_update_that_changes_no_bytes_writes_no_cache_file(tmp_path, name):
    path = f"{tmp_path}/{name}"
    update(path, adding(entry("add")))
    files = {file: file.stat() for file in tmp_path.rglob("*") if file.is_file()}
    assert not update(path, adding(entry("add"))).changed
    assert {file: file.stat().st_mtime_ns for file in files} == {file: old.st_mtime_ns for file, old in files.items()}


def test_updating_through_a_link_writes_the_target_of_the_link(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "c.textproto"
    link.symlink_to("real/kept.txt")
    check_writable(link)
    assert update(link, adding(entry("add"))).written_to == str(link)
    assert link.is_symlink()
    assert read_cache(tmp_path / "real/kept.txt").entries == (entry("add"),)


@every_store
def test_a_cache_path_through_a_missing_folder_is_an_error(tmp_path, name):
    """``open("build/../c.pb")`` fails without a folder ``build``: nothing else may be found there, or replaced."""
    update(f"{tmp_path}/{name}", adding(entry("add")))
    path = f"{tmp_path}/build/../{name}"

    for action in (read_cache, check_writable, lambda path: update(path, adding(entry("mul")))):
        assert refusal(action, path) == f"{path}: cannot be read: there is no folder build"

    assert read_cache(f"{tmp_path}/{name}").entries == (entry("add"),)
    (tmp_path / "build").mkdir()
    update(path, adding(entry("mul")))
    assert set(read_cache(f"{tmp_path}/{name}").entries) == {entry("add"), entry("mul")}


@every_store
def test_if_its_link_moves_an_open_cache_keeps_its_first_target(tmp_path, name):
    """The store resolves the path once, and writes the same file that it read at the start."""
    kernels = {"first": "add", "second": "sub"}
    for folder, kernel in kernels.items():
        update(f"{tmp_path}/{folder}/{name}", adding(entry(kernel)))
    link = tmp_path / "link"
    link.symlink_to("first")
    store = open_store(f"{link}/{name}")
    store.check_writable()

    link.unlink()
    link.symlink_to("second")
    update_store(store, adding(entry("mul")))

    assert set(read_cache(f"{tmp_path}/first/{name}").entries) == {entry("add"), entry("mul")}
    assert read_cache(f"{tmp_path}/second/{name}").entries == (entry("sub"),)


def test_an_absolute_path_works_in_a_deleted_current_folder(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    update(tmp_path / "c.pb", adding(entry("add")))
    assert read_cache(tmp_path / "c.pb").entries == (entry("add"),)
    assert "No such file or directory" in refusal(read_cache, "c.pb")


def test_updating_through_a_dangling_link_creates_the_target(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "c.textproto").symlink_to("real/link")
    (tmp_path / "real/link").symlink_to("../kept/new/c.textproto")
    update(tmp_path / "c.textproto", adding(entry("add")))
    assert read_cache(tmp_path / "kept/new/c.textproto").entries == (entry("add"),)


def test_the_old_file_is_kept_if_computing_its_change_raises(tmp_path):
    path = tmp_path / "c.pb"
    update(path, adding(entry("add")))

    def fail(cache: Cache) -> Cache:
        raise KeyError("change")

    with pytest.raises(KeyError):
        update(path, fail)
    assert os.listdir(tmp_path) == ["c.pb"]


@pytest.mark.parametrize(
    "content",
    [
        b"damaged",
        encode(Cache((entry("add"),)), Format.TEXT).replace(b"version: 1", b"version: 2"),
        encode(Cache((entry("add"),)), Format.TEXT).replace(b"  tuner", b"  future: 1\n  tuner"),
    ],
    ids=["damaged", "newer", "lossy"],
)
def test_a_dump_keeps_an_unreadable_cache_and_writes_a_new_file(tmp_path, content):
    path = tmp_path / "c.txt"
    path.write_bytes(content)
    assert refusal(check_writable, path).startswith(str(path))
    assert update(path, adding(entry("mul"))).written_to == str(tmp_path / "c.txt.new")
    second = update(path, adding(entry("sub"))).written_to
    assert second == str(tmp_path / "c.txt.new2")
    assert path.read_bytes() == content
    assert b'"sub"' in Path(second).read_bytes()


def test_a_new_folder_gets_the_first_unused_name(tmp_path):
    for name in ("store.new", "store.new2"):
        assert create_unused_path(tmp_path / "store", as_folder=True) == tmp_path / name
        assert (tmp_path / name).is_dir()


def test_a_dump_that_cannot_lock_the_cache_writes_a_new_file(tmp_path, monkeypatch):
    monkeypatch.setattr(stores.disk, "locked", partial(locked, timeout_s=0.1))
    path = tmp_path / "c.textproto"
    update(path, adding(entry("add")))
    with locked(tmp_path / ".c.textproto.lock", 0) as is_locked:
        assert is_locked
        updated = update(path, adding(entry("mul")))
    assert updated.written_to == str(tmp_path / "c.textproto.new")
    assert read_cache(path).entries == (entry("add"),)
    assert b'"mul"' in Path(updated.written_to).read_bytes()
    assert litter(tmp_path) == []


@pytest.mark.parametrize("name", ["c.pb", "c/"])
def test_writing_a_too_large_cache_fails_and_keeps_the_old_cache(tmp_path, monkeypatch, name):
    path = f"{tmp_path}/{name}"
    update(path, adding(entry("add")))
    monkeypatch.setattr(stores.disk, "MAX_BYTES", 2**20)
    large = Entry(entry("mul").problem, native=bytes(2**20))

    assert "was not written, because a file would have more than 1 MiB" in refusal(update, path, adding(large))

    assert read_cache(path).entries == (entry("add"),)
    assert litter(tmp_path) == []


# Being writable


def test_checking_if_a_cache_path_is_writable_leaves_no_files(tmp_path):
    for name in ("a.pb", "deep/er/a.pb", "folder/", "deep/folder/"):
        check_writable(f"{tmp_path}/{name}")
    assert os.listdir(tmp_path) == []


def test_a_path_with_an_unknown_suffix_is_refused_before_a_dump(tmp_path):
    (tmp_path / "a.pb").mkdir()
    (tmp_path / "file").touch()
    assert "is a folder, not a cache" in refusal(check_writable, tmp_path / "a.pb")
    assert "Not a directory" in refusal(check_writable, tmp_path / "file" / "sub" / "a.pb")
    assert "Not a directory" in refusal(check_writable, f"{tmp_path}/file/")
    assert "the suffix" in refusal(check_writable, tmp_path / "a.docx")


@contextmanager
def small_disk(folder: Path):
    folder.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a small disk: {error}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@every_store
def test_a_full_disk_is_an_error_and_the_old_cache_is_kept(tmp_path, name):
    with small_disk(tmp_path / "disk") as disk:
        path = f"{disk}/{name}"
        update(path, adding(entry("add")))
        with open(disk / "filler", "wb", buffering=0) as filler, suppress(OSError):
            while filler.write(bytes(1024)):
                pass
        message = refusal(update, path, adding(*(entry(f"kernel_{i}") for i in range(500))))
        assert message == f"{path}: cannot be written: No space left on device"
        assert read_cache(path).entries == (entry("add"),)
        assert litter(disk) == []


def test_writing_a_cache_to_a_read_only_folder_is_an_error(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        update(disk / "c.pb", adding(entry("add")))
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        for path in (disk / "c.pb", disk / "new.pb", disk / "sub/new.pb", f"{disk}/sub/"):
            assert "read-only" in refusal(check_writable, path).lower()
            assert "Read-only file system" in refusal(update, path, adding(entry("mul")))
        assert read_cache(disk / "c.pb").entries == (entry("add"),)


# Other processes

WRITER = """if True:
    import os, sys, time
    from pytest_autotune.cache import stores
    from pytest_autotune.cache.model import Cache, Device, Entry, Problem

    def entries(kernel, count):
        return tuple(Entry(Problem("t", f"{kernel}_{i}", (), Device("d", "a"))) for i in range(count))
    """


def writer(program: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER + program, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("name", ["c.textproto", "c.pb"])
def test_killing_a_process_while_it_writes_keeps_the_old_file(tmp_path, name):
    path = tmp_path / name
    update(path, adding(entry("add")))
    old = path.read_bytes()
    process = writer(
        """
    def stuck(descriptor):
        print("half", flush=True)
        time.sleep(60)
    os.fsync = stuck
    with stores.open_store(sys.argv[1]).open_for_update() as opened:
        opened.write(Cache((*opened.cache.entries, *entries("new", 100))))
    """,
        path,
    )
    assert process.stdout.readline() == "half\n"
    assert litter(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert path.read_bytes() == old
    update(path, adding(entry("mul")))
    assert os.listdir(tmp_path) == [name]
    assert len(read_cache(path).entries) == 2


@pytest.mark.parametrize("name", ["c.textproto", "c/"])
def test_three_processes_that_update_one_cache_lose_no_entry(tmp_path, name):
    path = f"{tmp_path}/{name}"
    program = """
    for i in range(15):
        new = entries(f"{sys.argv[2]}_{i}", 1)
        with stores.open_store(sys.argv[1]).open_for_update() as opened:
            updated = opened.write(Cache(opened.cache.entries + new))
        assert not updated.beside
    """
    processes = [writer(program, path, number) for number in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len(read_cache(path).entries) == 45
    assert litter(tmp_path) == []


def test_a_folder_locked_by_another_process_cannot_be_read(tmp_path, monkeypatch):
    """Another process may have replaced only a part of the folder's files."""
    path = f"{tmp_path}/c/"
    update(path, adding(entry("add")))
    monkeypatch.setattr(stores.disk, "locked", partial(locked, timeout_s=0.1))

    with locked(tmp_path / "c" / f"{MARKER}.lock", 0) as is_locked:
        assert is_locked
        assert "another process has held the lock" in refusal(read_cache, path)

    assert read_cache(path).entries == (entry("add"),)


@contextmanager
def no_lock(*args):
    """Stands for the lock in a folder that this user may only read."""
    raise PermissionError(13, "Permission denied")
    yield


@pytest.mark.parametrize("is_lock_for_all", [True, False], ids=["with its lock", "in a folder of another user"])
def test_a_folder_read_during_an_update_is_all_old_or_all_new(tmp_path, monkeypatch, is_lock_for_all):
    path, few, many = f"{tmp_path}/c/", [entry("0")], [entry(str(number)) for number in range(20)]
    update(path, lambda now: Cache(tuple(many)))
    program = f"""
from pytest_autotune.cache.model import Cache
from pytest_autotune.cache.stores import open_store, read_cache as read
many = read({path!r})
for number in range(40):
    with open_store({path!r}).open_for_update() as opened:
        opened.write(Cache(many.entries[: 1 if number % 2 else 20]))
"""
    writer = subprocess.Popen([sys.executable, "-c", program])
    if not is_lock_for_all:
        monkeypatch.setattr(stores.disk, "locked", no_lock)
    seen = set()
    while writer.poll() is None:
        seen.add(len(read_cache(path).entries))

    assert writer.returncode == 0
    assert seen <= {len(few), len(many)}


def test_a_dump_keeps_a_user_file_named_like_the_lock_file(tmp_path):
    lock = tmp_path / ".c.textproto.lock"
    lock.write_text("mine")
    assert update(tmp_path / "c.textproto", adding(entry("add"))).beside
    assert lock.read_text() == "mine"
    assert (tmp_path / "c.textproto.new").read_text().count("entries {") == 1


def test_a_dump_keeps_a_user_link_named_like_the_lock_file(tmp_path):
    (tmp_path / "mine").write_text("")
    lock = tmp_path / ".c.textproto.lock"
    lock.symlink_to("mine")
    assert update(tmp_path / "c.textproto", adding(entry("add"))).beside
    assert lock.is_symlink()
    assert (tmp_path / "c.textproto.new").exists()


def test_the_lock_file_is_readable_and_writable_by_every_user(tmp_path):
    with locked(tmp_path / ".c.textproto.lock", 0):
        assert (tmp_path / ".c.textproto.lock").stat().st_mode & 0o777 == 0o666
