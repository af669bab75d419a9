"""An append-as-you-go record of what each process has tuned, so that a killed run loses nothing.

Every process of a dump run writes a file of its own in the run's folder; the
controller holds that folder's lock while the run lives. A folder that nobody
holds belongs to a run that was killed: the next run with the same dump path
takes its records over.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.wire import decode_lookup, encode_lookup


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


def read_journal(path: Path) -> Iterator[Lookup]:
    """The whole lines of a journal; a line that was cut off by a kill is left out."""
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            yield decode_lookup(line)
        except ValueError:
            continue


class RunFolder:
    """Where the processes of one dump run keep their journals.

    :param base: the folder for all runs of this project.
    :param location: the absolute dump path; runs with one path belong together.
    """

    def __init__(self, base: Path, location: str) -> None:
        self._runs = base / hashlib.sha256(location.encode()).hexdigest()[:16]
        self.path = self._runs / f"run-{os.getpid()}-{os.urandom(4).hex()}"
        self._lock = self._lock_of(self.path)

    @staticmethod
    def _lock_of(folder: Path) -> object:
        from filelock import FileLock

        return FileLock(folder / "lock", timeout=0, thread_local=False)
