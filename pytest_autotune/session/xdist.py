"""What passes between the controller and its workers under xdist.

Two messages for each worker, of primitives only, under the key ``autotune``:

1. ``workerinput``, when the worker is configured (``pytest_configure_node``): a :class:`Task`. Where the controller has
   none to send, since no option asks for a run, the worker begins one if a test's marker or fixture does.
2. ``workeroutput``, at the worker's end (``pytest_testnodedown``): the lines of its log that stand in no file which the
   controller can read, often none. That the key is there says that the worker has ended; a worker that crashed sends
   nothing. The first one of a run that only tests have asked for begins that run on the controller.

All else is in the files of the run's folder, :mod:`pytest_autotune.workers.events`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.run.notes import Progress
from pytest_autotune.session import INPUT_KEY
from pytest_autotune.session.progress import file_of_worker
from pytest_autotune.session.values import Options
from pytest_autotune.session.worker import WorkerContext
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Log, Others
from pytest_autotune.workers.locks import Locks, shared_folder


@dataclass(frozen=True)
class Task:
    """What the controller sends a worker when it starts.

    :param groups: the loaded entries in binary form, or None when nothing is loaded.
    :param known_kernels: kernels, as ``tuner:kernel``, of which the worker reports whether
        it imported their module.
    :param run_folder: where the processes of this run write down what they do; empty where there is no place.
    :param host: the controller's host; its paths mean nothing on another one.
    :param run_id: the same for all workers of one run.
    :param workers: how many workers the controller started.
    """

    groups: list[tuple[str, str, bytes]] | None = None
    known_kernels: list[str] | None = None
    run_folder: str = ""
    host: str = ""
    run_id: str = ""
    workers: int = 1


def context_of_worker(workerinput: Mapping[str, Any], options: Options) -> WorkerContext:
    """What a worker finds, by what its controller sent."""
    task, worker = Task(**workerinput.get(INPUT_KEY, {})), workerinput["workerid"]
    shared = shared_folder()
    folder = shared.run(task.run_id) if task.run_id and shared.path is not None else None
    is_local = task.host == socket.gethostname()
    log = Log(Path(task.run_folder) if is_local and task.run_folder else None, worker)
    if log.folder is None and folder is not None:  # the workers on this machine still read what the others tune
        log = Log(folder, worker, sends=True)
    others = Others(log.folder, worker) if folder is not None and log.folder is not None else None
    locks = Locks(options.wait_timeout, folder=shared.locks)
    if shared.note:
        locks.note(shared.note)
    return WorkerContext(
        EntryIndex.from_groups(task.groups) if task.groups is not None else None,
        Coordinator(locks, folder, others),
        log,
        known_kernels=task.known_kernels or (),
        workers=task.workers,
        progress=Progress(file_of_worker(folder, worker)) if is_local and folder is not None else Progress(),
        folder=folder,
    )
