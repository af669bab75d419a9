"""What a forked child does that compiles for Inductor: one kernel after the other, as Inductor's own workers do.

The configurations of one kernel are compiled by all children that have nothing else to do. What two of them would
compile, one does: it holds a lock meanwhile, and the other one finds it in Triton's cache on disk.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import mmap
import os
import pickle
import select
import struct
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

#: A job: where it lies in the file, how long it is, its number, and which of its configurations; -1: all of it.
JOB = struct.Struct("=qqii")
#: What is told: kind, number, then where the result lies and how long it is, or the process that has begun.
TOLD = struct.Struct("=iiqq")
BEGUN, DONE, FAILED, LEFT, DIED = range(5)
#: So many jobs are marked as done, or not, at a time.
MARKS = 1 << 16
#: How much everything else comes before what nobody waits for yet.
_NICE = 10
#: So often another child takes the place of each.
_LIVES = 8
#: So many modules of kernels are kept in a child.
_KEPT = 32


class _PartDone(Exception):
    pass


@dataclass(frozen=True)
class Pipes:
    """What the children share with their parent: made before they are forked.

    :param jobs: a file with the pickled jobs, and one with their results.
    :param queues: ends of pipes from which children take what is to be done, what is most urgent first.
    :param parts: the other end of the second of them.
    :param tell: where children say what they have done.
    :param done: a mark for each job that is over.
    """

    jobs: int
    results: int
    queues: tuple[int, ...]
    parts: int
    tell: int
    done: mmap.mmap

    @property
    def kept(self) -> tuple[int, ...]:
        """The descriptors that children keep."""
        return (self.jobs, self.results, *self.queues, self.parts, self.tell)


@dataclass
class Worker:
    """Takes jobs until there are none.

    :param is_ahead: does what nobody waits for yet, and nothing else.
    """

    pipes: Pipes
    is_ahead: bool = False
    _job: tuple[int, int, int, int] = (0, 0, 0, -1)
    _modules: dict[str, Any] = field(default_factory=dict)

    def serve(self) -> None:
        """Take jobs until the parent has closed the queue."""
        gc.enable()
        _WORKERS.append(self)
        if self.is_ahead:
            os.nice(_NICE)
        queues = self.pipes.queues[2:] if self.is_ahead else self.pipes.queues[:2]
        poll = select.poll()
        for queue in queues:
            poll.register(queue, select.POLLIN)
        while True:
            poll.poll()
            for queue in queues:
                try:
                    record = os.read(queue, JOB.size)
                except BlockingIOError:
                    continue
                if len(record) < JOB.size:
                    return
                self._do(*JOB.unpack(record))
                break

    def _do(self, at: int, length: int, number: int, part: int) -> None:
        self._job = at, length, number, part
        if part >= 0:
            if not self.pipes.done[number % MARKS]:
                with suppress(Exception):
                    pickle.loads(os.pread(self.pipes.jobs, length, at))()
            return
        os.write(self.pipes.tell, TOLD.pack(BEGUN, number, os.getpid(), 0))
        kind, end, length = self._result(at, length)
        self.pipes.done[number % MARKS] = 1
        os.write(self.pipes.tell, TOLD.pack(kind, number, end, length))

    def _result(self, at: int, length: int) -> tuple[int, int, int]:
        """Do a job; what came of it, where that lies, and how long it is."""
        try:
            job, kind = pickle.loads(os.pread(self.pipes.jobs, length, at)), DONE
            try:
                result = pickle.dumps(job(), pickle.HIGHEST_PROTOCOL)
            except (OSError, MemoryError):  # perhaps another process has what is missing here
                raise
            except Exception:
                kind, result = FAILED, pickle.dumps(traceback.format_exc())
            with _locked(self.pipes.results, 0):
                end = os.fstat(self.pipes.results).st_size
                if os.pwrite(self.pipes.results, result, end) < len(result):
                    raise OSError
        except BaseException:
            return LEFT, 0, 0
        return kind, end, len(result)

    def share(self, configs: int) -> None:
        """Let others compile the configurations of the kernel that this one begins with; the last ones first."""
        at, length, number, _ = self._job
        with suppress(OSError):
            for part in reversed(range(1, configs)):
                os.write(self.pipes.parts, JOB.pack(at, length, number, part))

    @property
    def part(self) -> int:
        """Which configuration of its kernel this one was asked for; -1: all of them."""
        return self._job[3]

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Have a name to oneself."""
        digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
        with _locked(self.pipes.jobs, digest + 1):
            yield

    def module(self, key: str, path: str) -> Any:
        """The module of a kernel, of its own."""
        if path not in self._modules:
            while len(self._modules) >= _KEPT:
                del self._modules[next(iter(self._modules))]
            tasks = import_module("torch._inductor.runtime.compile_tasks")
            self._modules[path] = tasks._reload_python_module(key, path, set_sys_modules=False)
        return self._modules[path]


#: The last is the one of this process.
_WORKERS: list[Worker] = []


@contextmanager
def _locked(descriptor: int, at: int) -> Iterator[None]:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, at)
    except OSError:  # then some things are done twice
        yield
        return
    try:
        yield
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, at)


def prepare(target: tuple[Any, ...] | None) -> None:
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
    _share_and_take_turns(heuristics.CachingAutotuner)
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


def _share_and_take_turns(autotuner: Any) -> None:
    compile_one = autotuner._precompile_config
    compile_all = autotuner._precompile_worker

    def _precompile_config(self: Any, cfg: Any) -> Any:
        # Templates have no file, and many of them the same configuration.
        with _WORKERS[-1].turn(f"{self.filename} {self.fn.src} {self.triton_meta} {cfg}"):
            return compile_one(self, cfg)

    def _precompile_worker(self: Any) -> None:
        worker, configs = _WORKERS[-1], self.configs
        if worker.part >= 0:
            if worker.part < len(configs or ()):
                self._precompile_config(configs[worker.part])
            raise _PartDone
        if not self.compile_results and configs:
            worker.share(len(configs))
        compile_all(self)

    autotuner._precompile_config, autotuner._precompile_worker = _precompile_config, _precompile_worker


def in_environment(environment: Mapping[str, str | None], job: Callable[[], Any]) -> Any:
    """A job: another one, where these variables are what they are in the parent."""
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return job()


def compile_config(key: str, path: str, name: str, config: Any) -> None:
    """A job: compile one configuration of a kernel into Triton's cache on disk."""
    getattr(_WORKERS[-1].module(key, path), name)._precompile_config(config)


def plan(pipes: Pipes, prepare: Callable[[], object], number: int, ahead: int) -> Sequence[Callable[[], None]]:
    """What the children do: each serves, and so does each that takes the place of one that has died.

    :param prepare: called before they are forked.
    :param number: how many do what is waited for.
    :param ahead: how many do what is not.
    """
    prepare()
    first = [Worker(pipes)] * number + [Worker(pipes, is_ahead=True)] * ahead
    return [worker.serve for worker in first * _LIVES]
