"""What passes between the controller and its workers under xdist, and what a worker makes of it.

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
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.run.progress import Progress
from pytest_autotune.session import INPUT_KEY
from pytest_autotune.session.options import Options
from pytest_autotune.session.preparing import MeetingPlace
from pytest_autotune.session.progress import file_of_worker
from pytest_autotune.session.worker import TestProcess, WorkerContext
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Log, Others
from pytest_autotune.workers.folder import SharedFolder, shared_folder
from pytest_autotune.workers.gpu_lock import GpuLock


@dataclass(frozen=True)
class Task:
    """What the controller sends a worker when it starts.

    :param groups: the loaded entries in binary form, or None when nothing is loaded.
    :param known_kernels: kernels, as ``tuner:kernel``, of which the worker reports whether
        it imported their module.
    :param run_folder: where the processes of this run write down what they do; empty where there is no place.
    :param host: the controller's host; its paths mean nothing on another one.
    :param run_id: the same for all workers of one run.
    :param shared_folder: where the processes of this user meet on the controller's machine; empty where there is
        no such place.
    :param workers: how many workers the controller started.
    :param has_compiled: loaded entries say what their choices were compiled for.
    """

    groups: list[tuple[str, str, bytes]] | None = None
    known_kernels: list[str] | None = None
    run_folder: str = ""
    host: str = ""
    run_id: str = ""
    shared_folder: str = ""
    workers: int = 1
    has_compiled: bool = False

    @property
    def is_local(self) -> bool:
        """Whether this process is on the controller's machine."""
        return self.host == socket.gethostname()


def send_task(workerinput: MutableMapping[str, Any], task: Task) -> None:
    """Put a task into what xdist sends to a worker."""
    workerinput[INPUT_KEY] = asdict(task)


def receive_task(workerinput: Mapping[str, Any]) -> Task:
    """The task that the controller sent; an empty one where it sent none."""
    task: dict[str, Any] = dict(workerinput.get(INPUT_KEY, {}))
    if task.get("groups") is not None:
        task["groups"] = [(str(tuner), str(kernel), bytes(data)) for tuner, kernel, data in task["groups"]]
    return Task(**task)


def receive_lines(node: Any) -> list[str] | None:
    """What a worker has sent; None when it died before it could."""
    lines: list[str] | None = getattr(node, "workeroutput", {}).get(INPUT_KEY)
    return lines


def worker_process(config: pytest.Config, options: Options, workerinput: dict[str, Any]) -> TestProcess:
    """What runs tests in a worker, by what its controller sent."""
    task, worker = receive_task(workerinput), workerinput["workerid"]
    shared = SharedFolder(Path(task.shared_folder) if task.shared_folder else None)
    if not task.is_local:
        shared = shared_folder()
    gpu = GpuLock(options.wait_timeout, folder=shared.locks)
    if shared.note:
        gpu.waits.note(shared.note)
    coordination = Coordinator(gpu)
    progress = prepares_in = None
    log = Log(Path(task.run_folder), worker) if task.is_local and task.run_folder else Log(None, worker)
    if task.run_id and shared.path is not None:
        folder = shared.run(task.run_id)
        if log.folder is None:  # the workers on this machine still read what the others tune
            log = Log(folder, worker, sends=True)
        others = Others(log.folder or folder, worker)
        coordination = Coordinator(gpu, folder, others)
        if task.is_local:
            progress = Progress(file_of_worker(folder, worker))
        if task.has_compiled:
            prepares_in = MeetingPlace(folder, task.workers)
    context = WorkerContext(
        EntryIndex.from_groups(task.groups) if task.groups is not None else None,
        coordination,
        log,
        known_kernels=task.known_kernels or (),
        workers=task.workers,
        progress=progress,
        prepares_in=prepares_in,
    )
    return TestProcess(config, options, context)
