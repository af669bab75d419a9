"""An append-as-you-go record of what each process has tuned, so that a killed run loses nothing.

Every process of a dump run writes a file of its own in the run's folder; the
controller holds that folder's lock while the run lives. A folder that nobody
holds belongs to a run that was killed: the next run with the same dump path
takes its records over.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.wire import decode_lookup, encode_lookup

_BEING_MADE = "new-"


class Journal:
    """The record of one process; its file appears with the first line.

    :param path: a file of this process alone.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.Lock()

    def append(self, lookup: Lookup) -> None:
        """Write one line and hand it to the operating system at once.

        :raises OSError: when it cannot be written; what was written before stays.
        """
        line = (encode_lookup(lookup) + "\n").encode()
        with self._mutex:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)


def whole_lines(journal: bytes) -> Iterator[str]:
    """The lines of a journal, each an encoded lookup; one that a kill has cut off is left out."""
    for line in journal.decode("utf-8", errors="replace").splitlines():
        try:
            decode_lookup(line)
        except ValueError:
            continue
        yield line


class RunFolder:
    """Where the processes of one dump run keep their journals.

    :param base: the folder for the runs of this project.
    :param location: the absolute dump path; runs with one path belong together.
    """

    def __init__(self, base: Path, location: str) -> None:
        self._runs = base / hashlib.sha256(location.encode()).hexdigest()[:16]
        self._runs.mkdir(parents=True, exist_ok=True)
        #: Folders of runs with this dump path that were killed.
        self.abandoned: list[Path] = []
        self._locks: list[FileLock] = []
        #: Journal -> the bytes of the whole lines that have been read of it.
        self._read: dict[Path, int] = {}
        for folder in sorted(self._runs.iterdir()):
            if not folder.name.startswith(_BEING_MADE) and self._hold(folder):
                self.abandoned.append(folder)
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        #: This run's own folder.
        self.path = self._runs / name
        # It gets its name when its lock is held: no other run may take it for an abandoned one.
        being_made = self._runs / f"{_BEING_MADE}{name}"
        being_made.mkdir(parents=True)
        self._hold(being_made)
        being_made.rename(self.path)

    def _hold(self, folder: Path) -> bool:
        lock = FileLock(folder / "lock", timeout=0, thread_local=False)
        try:
            lock.acquire()
        except (Timeout, OSError):
            return False
        self._locks.append(lock)
        return True

    def journal(self, worker: str) -> Journal:
        """The journal of one process of this run."""
        return journal_of(self.path, worker)

    def lines(self) -> list[tuple[str, str]]:
        """What the processes of this run have written so far: (process, encoded lookup)."""
        return self._lines([self.path])

    def taken_over(self) -> list[Lookup]:
        """What killed runs with this dump path had tuned."""
        return [lookup for _, line in self._lines(self.abandoned) if (lookup := decode_lookup(line)).tuned]

    def close(self, *, written: bool) -> None:
        """Let go of the folders; remove them when everything in them has been written to the cache."""
        for folder in [*self.abandoned, self.path]:
            if written:
                self._remove_what_was_read(folder)
            if not any(folder.glob("*.jsonl")):
                _remove(folder)
        for lock in self._locks:
            lock.release()
        self._locks.clear()
        with suppress(OSError):
            self._runs.rmdir()

    def _lines(self, folders: list[Path]) -> list[tuple[str, str]]:
        lines = []
        for folder in folders:
            for file in sorted(folder.glob("*.jsonl")):
                with suppress(OSError):
                    journal = file.read_bytes()
                    self._read[file] = journal.rfind(b"\n") + 1
                    lines += [(file.name.partition("-")[0], line) for line in whole_lines(journal)]
        return lines

    def _remove_what_was_read(self, folder: Path) -> None:
        """Remove the journals of a folder, but for those that have grown since they were read.

        A worker may outlive its controller, or the end of its session.
        """
        for file in sorted(folder.glob("*.jsonl")):
            aside = file.with_suffix(".read")
            with suppress(OSError):
                file.rename(aside)  # what is written from now on is a file of its own
                if b"\n" in aside.read_bytes()[self._read.get(file, 0) :]:
                    # As a whole: nothing can go wrong then, and the next run knows what it has.
                    aside.rename(file.with_name(f"{file.stem}-{os.urandom(4).hex()}.jsonl"))
                else:
                    aside.unlink()


def journal_of(folder: Path, worker: str) -> Journal:
    """The journal of one process in a run's folder."""
    return Journal(folder / f"{worker}-{os.getpid()}.jsonl")


def _remove(folder: Path) -> None:
    """Remove a folder without journals, unless one appears meanwhile."""
    with suppress(OSError):
        for file in folder.iterdir():
            if file.suffix != ".jsonl":
                file.unlink()
        folder.rmdir()
