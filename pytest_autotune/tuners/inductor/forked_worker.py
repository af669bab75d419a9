"""What a forked child does that compiles for Inductor: one kernel after the other, as Inductor's own workers do.

The configurations of one kernel are compiled by all children that have nothing else to do. What two of them would
compile, one does: it holds a lock meanwhile, and the other one finds it in Triton's cache on disk.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import pickle
import signal
import socket
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

#: What a child says of its job: done; failed; others may compile these of its configurations. Or it has died.
DONE, FAILED, SHARED, LOST = range(4)
#: All configurations of a job.
WHOLE = -1
#: A child that takes so long for one configuration hangs, in seconds; the operating system ends it.
HANGS_S = 90.0
#: So often another child takes the place of each.
_LIVES = 8
#: So many modules of kernels are kept in a child.
_KEPT = 32


class Worker:
    """A child; made before they are forked, so that each has its own.

    :param door: where it hands its parent the other end of a connection.
    """

    def __init__(self, door: socket.socket) -> None:
        self._door = door
        self._locks = tempfile.TemporaryFile()  # noqa: SIM115  # it goes with the process
        self._connection: Any = None
        #: Which configuration of its kernel it was asked for.
        self.part = WHOLE

    def serve(self) -> None:
        """Do jobs until the parent has gone, or there is no memory or disk for one: it is known by the connection."""
        gc.enable()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        mine, parents = socket.socketpair()
        with parents:
            socket.send_fds(self._door, [b"."], [parents.fileno()])
        with Connection(mine.detach()) as self._connection:
            while True:
                signal.setitimer(signal.ITIMER_REAL, 0)
                self.part, data = self._connection.recv()
                signal.setitimer(signal.ITIMER_REAL, HANGS_S)
                self._connection.send(_result(data))

    def share(self, configs: int) -> None:
        """Let others compile the configurations of the kernel that this one begins with; the last ones first."""
        self._connection.send((SHARED, list(range(1, configs))))

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Have a name to oneself, and as long as for a job."""
        digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
        with suppress(OSError):  # then some things are done twice
            fcntl.lockf(self._locks, fcntl.LOCK_EX, 1, digest)
        signal.setitimer(signal.ITIMER_REAL, HANGS_S)
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, digest)


def _result(data: bytes) -> tuple[int, bytes]:
    """Do a job; what came of it.

    :raises OSError, MemoryError: where perhaps another process has what is missing here.
    """
    environment, job = pickle.loads(data)
    for name, value in environment.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    try:
        return DONE, pickle.dumps(job(), pickle.HIGHEST_PROTOCOL)
    except (OSError, MemoryError):
        raise
    except Exception:
        return FAILED, pickle.dumps(traceback.format_exc())


def plan(door: socket.socket, prepare: Callable[[Worker], object], workers: int) -> Sequence[Callable[[], None]]:
    """What the children do: each serves, and so does each that takes the place of one that has died.

    :param prepare: called before they are forked.
    """
    worker = Worker(door)
    prepare(worker)
    return [worker.serve] * workers * _LIVES


def prepare(target: tuple[Any, ...] | None, worker: Worker) -> None:
    """Import what each worker would, and have no GPU.

    :param target: of Triton: backend, architecture, threads of a warp; None where it is not known yet.
    """
    heuristics: Any = import_module("torch._inductor.runtime.triton_heuristics")
    codecache = import_module("torch._inductor.codecache")
    tasks: Any = import_module("torch._inductor.runtime.compile_tasks")
    utils: Any = import_module("torch._inductor.compile_worker.utils")
    utils._IN_TOPLEVEL_PROCESS = False
    codecache.PyCodeCache.cache_clear()  # what the parent has loaded is in use there
    heuristics.triton_helpers.set_driver_to_gpu = lambda: None  # it asks CUDA, which is not to be asked after a fork
    share_and_take_turns(heuristics.CachingAutotuner, worker)
    tasks._set_triton_ptxas_path = lambda: None  # the parent says which one it takes
    with suppress(Exception):
        codecache.torch_key()
    warm_up(target)
    gc.freeze()


def warm_up(target: tuple[Any, ...] | None) -> None:
    """Have Triton find out what its keys are made of: digests of its files, the version of ptxas."""
    with suppress(Exception):
        import_module("torch._inductor.runtime.triton_compat").triton_key()
        if target is not None:
            compiler = import_module("triton.compiler.compiler")
            compiler.make_backend(import_module("triton.backends.compiler").GPUTarget(*target)).hash()


def share_and_take_turns(autotuner: Any, worker: Worker) -> None:
    """Have a worker do its part of a kernel alone, let others do theirs, and do nothing that another one does."""
    compile_one = autotuner._precompile_config
    compile_all = autotuner._precompile_worker

    def _precompile_config(self: Any, cfg: Any) -> Any:
        # Templates have no file, and many of them the same configuration.
        with worker.turn(f"{self.filename} {self.fn.src} {self.triton_meta} {cfg}"):
            return compile_one(self, cfg)

    def _precompile_worker(self: Any) -> None:
        configs = self.configs or ()
        if worker.part != WHOLE:
            for config in configs[worker.part : worker.part + 1]:
                self._precompile_config(config)
            raise LookupError  # what is handed back is the whole
        if not self.compile_results and len(configs) > 1:
            worker.share(len(configs))
        compile_all(self)

    autotuner._precompile_config, autotuner._precompile_worker = _precompile_config, _precompile_worker


def compile_config(path: str, name: str, config: Any) -> None:
    """A job: compile one configuration of a kernel into Triton's cache on disk."""
    getattr(_module(path), name)._precompile_config(config)


@lru_cache(_KEPT)
def _module(path: str) -> Any:
    tasks = import_module("torch._inductor.runtime.compile_tasks")
    return tasks._reload_python_module(Path(path).stem, path, set_sys_modules=False)
