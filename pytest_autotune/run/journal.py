"""An append-as-you-go record of what each process has tuned, so that a killed run loses nothing.

Every process of a dump run writes a file of its own in the run's folder; the
controller holds that folder's lock while the run lives. A folder that nobody
holds belongs to a run that was killed: the next run of the project with the same
dump path takes its records over.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pytest_autotune.cache.model import Entry
from pytest_autotune.run.encoding import decode_lookup, encode_lookup
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.together.folders import is_plain, open_folder, read_plain, remove_files
from pytest_autotune.run.together.forks import in_forked_children

_BEING_MADE = "new-"
_RUN = re.compile(r"\d+-[0-9a-f]{8}")
_JOURNAL = re.compile(r"(?P<process>[^/]+?)-\d+(-[0-9a-f]{8})*\.jsonl")
#: What may be removed when no journal is left: a lock, and journals that have been read.
_REST = re.compile(r"lock|[^/]+\.read")


class Journal:
    """The record of one process; its file appears with the first line. A forked child writes one of its own.

    :param folder: where the processes of a run keep theirs; made when it is needed.
    :param worker: the process's name in the run.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        self._folder = folder
        self._worker = worker
        self._begin_child()
        in_forked_children(self._begin_child)

    def _begin_child(self) -> None:
        self._name = f"{self._worker}-{os.getpid()}.jsonl"
        self._mutex = threading.Lock()

    def append(self, lookup: Lookup) -> None:
        """Write one line and hand it to the operating system at once.

        :raises OSError: when it cannot be written as a whole; what was written before stays.
        """
        line = (encode_lookup(lookup) + "\n").encode()
        with self._mutex:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = open_folder(self._folder)
            try:
                _append(folder, self._name, line)
            finally:
                os.close(folder)


def _append(folder: int, name: str, line: bytes) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        found = os.fstat(file)
        if not is_plain(found, folder):
            raise PermissionError(errno.EPERM, "not a plain file of this user", name)
        if found.st_size and os.pread(file, 1, found.st_size - 1) != b"\n":
            line = b"\n" + line  # the disk was full: what is torn must not take this line with it
        while line:
            line = line[os.write(file, line) :]
    finally:
        os.close(file)


def lookups_in(journal: bytes) -> Iterator[Lookup]:
    """What the lines of a journal say; one that a kill has cut off is left out."""
    for line in journal.decode("utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            yield decode_lookup(line)


def journals_in(folder: Path) -> list[tuple[str, Lookup]]:
    """What processes have written in a folder: (process, lookup)."""
    with suppress(OSError):
        descriptor = open_folder(folder)
        try:
            return [found for name, journal in _journals(descriptor) for found in _of_process(name, journal)]
        finally:
            os.close(descriptor)
    return []


def _journals(folder: int) -> Iterator[tuple[str, bytes]]:
    for name in sorted(filter(_JOURNAL.fullmatch, os.listdir(folder))):
        with suppress(OSError):
            yield name, read_plain(name, folder)


def _of_process(name: str, journal: bytes) -> list[tuple[str, Lookup]]:
    found = _JOURNAL.fullmatch(name)
    process = found["process"] if found is not None else ""
    return [(process, lookup) for lookup in lookups_in(journal)]


class _HeldFolder:
    """A run's folder, opened without following a link, whose lock this process holds.

    :param owner: the number of the user that it must belong to; None for any.
    :raises OSError: when it is no folder, not that user's, or another process holds it.
    """

    def __init__(self, name: str, parent: int, owner: int | None = None) -> None:
        self.descriptor = open_folder(name, parent)
        self._lock = -1
        try:
            if owner is not None and self.owner != owner:
                raise PermissionError(errno.EPERM, "belongs to another user", name)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._lock = os.open("lock", flags, 0o600, dir_fd=self.descriptor)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.close()
            raise
        # A child that lives on must not keep the lock of a parent that was killed.
        in_forked_children(self.close)

    @property
    def owner(self) -> int:
        """The number of the user that the folder belongs to."""
        return os.fstat(self.descriptor).st_uid

    def close(self) -> None:
        """Let go of the folder."""
        for descriptor in (self.descriptor, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self.descriptor = self._lock = -1

    def journals(self) -> list[str]:
        return sorted(name for name in os.listdir(self.descriptor) if _JOURNAL.fullmatch(name))


class RunFolder:
    """Where the processes of one dump run keep their journals.

    :param base: the folder for the runs of this project.
    :param location: the absolute dump path; runs of a project with one path belong together.
    :param project: the project among others with the same base.
    :raises OSError: when the folder cannot be made, or a link stands in its place.
    """

    def __init__(self, base: Path, location: str, project: str = "") -> None:
        runs = base / hashlib.sha256("\0".join(filter(None, [location, project])).encode()).hexdigest()[:16]
        base.mkdir(parents=True, exist_ok=True)
        runs.mkdir(exist_ok=True)
        #: Journal -> the bytes of the whole lines that have been read of it.
        self._read: dict[tuple[_HeldFolder, str], int] = {}
        #: Folders of runs with this dump path that were killed, by name.
        self._abandoned: dict[str, _HeldFolder] = {}
        self._runs = runs
        self._parent = parent = open_folder(runs)
        others = sorted(filter(_RUN.fullmatch, os.listdir(parent)))
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        # It gets its name when its lock is held: no other run may take it for an abandoned one.
        being_made = f"{_BEING_MADE}{name}"
        try:
            os.mkdir(being_made, 0o700, dir_fd=parent)
            self._own = _HeldFolder(being_made, parent)
            os.rename(being_made, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            os.close(parent)
            raise
        for other in others:
            with suppress(OSError):
                self._abandoned[other] = _HeldFolder(other, parent, self._own.owner)
        #: This run's own folder.
        self.path = runs / name

    def journal(self, worker: str) -> Journal:
        """The journal of one process of this run."""
        return Journal(self.path, worker)

    def lookups(self) -> list[tuple[str, Lookup]]:
        """What the processes of this run have written so far: (process, lookup)."""
        return self._read_all([self._own])

    def entries(self) -> set[Entry | None]:
        """What the processes of this run have tuned, as far as it can be read again."""
        return {lookup.entry for _, lookup in self.lookups()}

    def taken_over(self) -> list[Lookup]:
        """What killed runs with this dump path had tuned."""
        return [lookup for _, lookup in self._read_all(list(self._abandoned.values())) if lookup.tuned]

    def close(self, *, written: bool) -> None:
        """Let go of the folders; remove them when everything in them has been written to the cache."""
        for name, folder in {**self._abandoned, self.path.name: self._own}.items():
            with suppress(OSError):
                if written:
                    self._remove_what_was_read(folder)
                if not folder.journals():
                    remove_files(folder.descriptor, _REST)
                    os.rmdir(name, dir_fd=self._parent)
            folder.close()
        os.close(self._parent)
        self._abandoned.clear()
        with suppress(OSError):
            self._runs.rmdir()

    def _read_all(self, folders: list[_HeldFolder]) -> list[tuple[str, Lookup]]:
        found = []
        for folder in folders:
            for name, journal in _journals(folder.descriptor):
                self._read[folder, name] = journal.rfind(b"\n") + 1
                found += _of_process(name, journal)
        return found

    def _remove_what_was_read(self, folder: _HeldFolder) -> None:
        """Remove the journals of a folder, but for those that have grown since they were read.

        A worker may outlive its controller, or the end of its session.
        """
        for name in folder.journals():
            aside, inside = f"{name}.read", folder.descriptor
            with suppress(OSError):
                if not is_plain(os.lstat(name, dir_fd=inside), inside):
                    continue
                # What is written from now on is a file of its own.
                os.rename(name, aside, src_dir_fd=inside, dst_dir_fd=inside)
                if b"\n" in read_plain(aside, inside)[self._read.get((folder, name), 0) :]:
                    # As a whole: nothing can go wrong then, and the next run knows what it has.
                    kept = f"{name.removesuffix('.jsonl')}-{os.urandom(4).hex()}.jsonl"
                    os.rename(aside, kept, src_dir_fd=inside, dst_dir_fd=inside)
                else:
                    os.unlink(aside, dir_fd=inside)
