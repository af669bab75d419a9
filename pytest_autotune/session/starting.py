"""Which hooks a process of a run needs, by what it is: the only one, xdist's controller, or a worker."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.run.notes import Progress
from pytest_autotune.session.controller import Controller
from pytest_autotune.session.progress import file_of_worker, progress_line, progress_of_process, stages_in
from pytest_autotune.session.values import Options
from pytest_autotune.session.worker import TestProcess, WorkerContext
from pytest_autotune.session.xdist import receive_task
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Log, Others
from pytest_autotune.workers.locks import Locks, SharedFolder, shared_folder


def start(config: pytest.Config, options: Options) -> tuple[Controller | None, TestProcess | None]:
    """Register the hooks that this process needs.

    :returns: the part where the run comes together, None in a worker; and the part
        that runs tests, None on a controller.
    :raises pytest.UsageError: when a cache cannot be read, or the dump not be written.
    """
    workerinput: dict[str, Any] | None = getattr(config, "workerinput", None)
    if workerinput is not None:
        return None, _register(config, _worker_process(config, options, workerinput))
    controller = Controller(config, options)
    config.pluginmanager.register(controller, "autotune-controller")
    if config.getoption("dist", "no") != "no":
        if controller.shared.path is not None:
            line = progress_line(config, partial(stages_in, controller.shared.run(controller.run_id)))
            if line is not None:
                config.pluginmanager.register(line, "autotune-progress")
        return controller, None
    context = WorkerContext(
        controller.index,
        Coordinator(Locks(options.wait_timeout, folder=controller.shared.locks)),
        controller.folder.log("main") if controller.folder is not None else Log(None, "main"),
        known_kernels=controller.known_kernels,
        progress=progress_of_process(config),
        folder=controller.shared.run(controller.run_id) if controller.shared.path is not None else None,
    )
    process = TestProcess(config, options, context)
    controller.serve(process)
    return controller, _register(config, process)


def _register(config: pytest.Config, process: TestProcess) -> TestProcess:
    process.begin()
    config.pluginmanager.register(process, "autotune-process")
    return process


def _worker_process(config: pytest.Config, options: Options, workerinput: dict[str, Any]) -> TestProcess:
    """What runs tests in a worker, by what its controller sent."""
    task, worker = receive_task(workerinput), workerinput["workerid"]
    shared = SharedFolder(Path(task.shared_folder) if task.shared_folder else None)
    if not task.is_local:
        shared = shared_folder()
    locks = Locks(options.wait_timeout, folder=shared.locks)
    if shared.note:
        locks.note(shared.note)
    coordination = Coordinator(locks)
    progress = folder = None
    log = Log(Path(task.run_folder), worker) if task.is_local and task.run_folder else Log(None, worker)
    if task.run_id and shared.path is not None:
        folder = shared.run(task.run_id)
        if log.folder is None:  # the workers on this machine still read what the others tune
            log = Log(folder, worker, sends=True)
        others = Others(log.folder or folder, worker)
        coordination = Coordinator(locks, folder, others)
        if task.is_local:
            progress = Progress(file_of_worker(folder, worker))
    context = WorkerContext(
        EntryIndex.from_groups(task.groups) if task.groups is not None else None,
        coordination,
        log,
        known_kernels=task.known_kernels or (),
        workers=task.workers,
        progress=progress,
        folder=folder,
    )
    return TestProcess(config, options, context)
