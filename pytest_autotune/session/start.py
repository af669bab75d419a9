"""Begins a run in one process: as a worker, as the controller, or as both in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.run.events import Log, Others
from pytest_autotune.run.progress import Progress
from pytest_autotune.run.together.coordination import Alone, AmongWorkers, Coordination, GpuLock
from pytest_autotune.run.together.folders import SharedFolder, shared_folder
from pytest_autotune.session.controller import Controller
from pytest_autotune.session.parsed_options import Options
from pytest_autotune.session.preparing import MeetingPlace
from pytest_autotune.session.progress import ProgressFile, ProgressOfWorkers, progress_of_process
from pytest_autotune.session.traffic import receive_task
from pytest_autotune.session.worker import Surroundings, TestProcess


def start(config: pytest.Config, options: Options) -> tuple[Controller | None, TestProcess | None]:
    """Register the hooks that this process needs.

    :returns: the part where the run comes together, None in a worker; and the part
        that runs tests, None on a controller.
    :raises pytest.UsageError: when a cache cannot be read, or the dump not be written.
    """
    workerinput: dict[str, Any] | None = getattr(config, "workerinput", None)
    if workerinput is not None:
        return None, _register(config, _worker(config, options, workerinput))
    controller = Controller(config, options)
    config.pluginmanager.register(controller, "autotune-controller")
    if config.getoption("dist", "no") != "no":
        if controller.shared.path is not None:
            workers = ProgressOfWorkers(config, controller.shared.run(controller.run_id))
            config.pluginmanager.register(workers, "autotune-progress")
        return controller, None
    can_prepare = controller.has_compiled and controller.shared.path is not None
    surroundings = Surroundings(
        controller.index,
        Alone(GpuLock(options.wait_timeout, folder=controller.shared.locks)),
        controller.folder.log("main") if controller.folder is not None else Log(None, "main"),
        known_kernels=controller.known_kernels,
        progress=progress_of_process(config),
        prepares_in=MeetingPlace(controller.shared.run(controller.run_id)) if can_prepare else None,
    )
    process = TestProcess(config, options, surroundings)
    controller.serve(process)
    return controller, _register(config, process)


def _worker(config: pytest.Config, options: Options, workerinput: dict[str, Any]) -> TestProcess:
    task, worker = receive_task(workerinput), workerinput["workerid"]
    shared = SharedFolder(Path(task.shared_folder) if task.shared_folder else None)
    if not task.is_local:
        shared = shared_folder()
    gpu = GpuLock(options.wait_timeout, folder=shared.locks)
    if shared.note:
        gpu.waits.note(shared.note)
    coordination: Coordination = Alone(gpu)
    progress = prepares_in = None
    log = Log(Path(task.run_folder), worker) if task.is_local and task.run_folder else Log(None, worker)
    if task.run_id and shared.path is not None:
        folder = shared.run(task.run_id)
        if log.folder is None:  # the workers on this machine still read what the others tune
            log = Log(folder, worker, sends=True)
        others = Others(log.folder or folder, worker)
        coordination = AmongWorkers(folder, options.wait_timeout, gpu, others)
        if task.is_local:
            progress = Progress(ProgressFile(folder, worker))
        if task.has_compiled:
            prepares_in = MeetingPlace(folder, task.workers)
    surroundings = Surroundings(
        EntryIndex.from_groups(task.groups) if task.groups is not None else None,
        coordination,
        log,
        known_kernels=task.known_kernels or (),
        workers=task.workers,
        progress=progress,
        prepares_in=prepares_in,
    )
    return TestProcess(config, options, surroundings)


def _register(config: pytest.Config, process: TestProcess) -> TestProcess:
    process.hooks.install()
    config.pluginmanager.register(process, "autotune-process")
    return process
