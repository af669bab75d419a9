"""What compiles Inductor's kernels in a run that dumps: forked children.

Inductor starts a process for its workers, which imports torch first: until that is done, 3 to 5 s after the first call
of a compiled function, it compiles in threads of the test process, most of whose time goes by waiting for Python's
lock. A child that is forked has imported everything.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from types import ModuleType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.inductor.parts import Part
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.library import FunctionPatches

#: Jobs of Inductor that children can do.
_COMPILES = "_worker_compile_triton"
_READY = "_get_ready"
#: A child that takes so long for one kernel hangs, in seconds; the operating system ends it.
HANGS_S = 300.0


class CompileWorkers(Part):
    """The part of the adapter for Inductor's pool of compile workers."""

    tuner = "inductor"
    module = "torch._inductor.async_compile"

    def __init__(self) -> None:
        self._pools: list[ForkedPool] = []

    def hook(self, module: ModuleType, session: Session, patches: FunctionPatches) -> None:
        failed: Any = getattr(module, "SubprocException", None)
        if failed is None or not _may_fork(session):
            return
        pools = self._pools
        try:
            original = patches.known(module, "SubprocPool", ["nprocs", "pickler", "kind", "quiesce"])
        except HookError:  # another version's own pool does everything: no choice depends on it
            return
        # Inductor does so wherever it compiles a kernel, and not before: what it generates tells of ptxas.
        before = getattr(module, "_set_triton_ptxas_path", lambda: None)

        class Pool(ForkedPool):  # a class, since Inductor asks whether its pool is one
            def __init__(self, nprocs: int, *args: Any, **kwargs: Any) -> None:
                _know_keys()
                super().__init__(nprocs, lambda: original(nprocs, *args, **kwargs), failed, before)
                pools.append(self)

        module.SubprocPool = Pool  # type: ignore[attr-defined]

    def end(self) -> None:
        """End all children; what Inductor compiles from now on, its own workers do."""
        if self._pools:
            self._pools.clear()
            sys.modules[self.module].shutdown_compile_workers()


def _may_fork(session: Session) -> bool:
    # Workers compile all candidates of a kernel, which is a waste where its choice is loaded.
    is_loaded = any("inductor.config" in index.list_tuners() for index in session.indexes)
    is_possible = sys.platform.startswith("linux") and "TORCHINDUCTOR_WORKER_START" not in os.environ
    return session.policy.is_dumping and not is_loaded and is_possible


class ForkedPool:
    """Takes the place of Inductor's ``SubprocPool``: children of this process, each with a thread here that asks it.

    :param workers: how many.
    :param make_own: makes Inductor's own pool, which does what no child can, and what one has died of.
    :param failed: makes the error that Inductor expects of the text of one.
    :param before: called here before each kernel is handed to a child.
    :param prepare: called in the child that the others are forked from.
    """

    def __init__(
        self,
        workers: int,
        make_own: Callable[[], Any],
        failed: Callable[[str], Exception],
        before: Callable[[], object] = lambda: None,
        prepare: Callable[[], object] | None = None,
    ) -> None:
        self._make_own = make_own
        self._failed = failed
        self._before = before
        self._own: Any = None
        self._lock = threading.Lock()
        self._process = os.getpid()
        #: Of the children, who are a group of processes; 0 where there are none.
        self._group = 0
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        self._threads = ThreadPoolExecutor(workers, "pytest-autotune-inductor")
        if workers > 1:
            with suppress(OSError):  # no memory, descriptor or process is left
                self._fork(workers, prepare or _prepare)

    def _fork(self, workers: int, prepare: Callable[[], object]) -> None:
        pairs = [Pipe() for _ in range(workers)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns where there are threads: theirs are not needed here
            child = os.fork()
        if child == 0:
            try:
                gc.freeze()  # garbage of the tests may be tensors, and what frees these calls CUDA
                os.setsid()  # Ctrl-C is for the tests
                if os.fork() == 0:  # none of them is a child of the tests, whose os.wait() is their own
                    _lead([theirs for _, theirs in pairs], prepare)
            finally:
                os._exit(0)
        for mine, theirs in pairs:
            theirs.close()
            self._idle.put(mine)
        with suppress(ChildProcessError):  # a handler of the tests has done it
            os.waitpid(child, 0)
        self._group = child

    @property
    def is_alive(self) -> bool:
        """Whether there are children that compile."""
        return bool(self._group) and self._process == os.getpid()

    def submit(self, job: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """As Inductor asks its own pool."""
        name = getattr(job, "__name__", "")
        whole = partial(job, *args, **kwargs)
        if self.is_alive and name == _READY:
            ready: Future[Any] = Future()
            ready.set_result(whole())
            return ready
        if self.is_alive and name == _COMPILES:
            self._before()
            return self._threads.submit(self._in_child, pickle.dumps(whole), whole)
        return self._by_own(whole)

    def _in_child(self, data: bytes, job: Callable[[], Any]) -> Any:
        """Have a child do a job; where the child dies, Inductor's own pool does it."""
        connection = self._idle.get()  # there are as many as threads
        try:
            connection.send(data)
            is_done, what = connection.recv()
        except (EOFError, ConnectionError):  # the child has died
            if not self._group:  # it was ended
                raise
            return self._by_own(job).result()
        finally:
            self._idle.put(connection)
        if not is_done:
            raise self._failed(pickle.loads(what))
        return pickle.loads(what)

    def _by_own(self, job: Callable[[], Any]) -> Future[Any]:
        with self._lock:
            if self._own is None:
                self._own = self._make_own()
        found: Future[Any] = self._own.submit(job)
        return found

    def wakeup(self) -> None:
        """As Inductor asks its own pool; these are awake."""

    quiesce = wakeup

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        """End the children, and what they compile."""
        if self._process != os.getpid():
            return
        group, self._group = self._group, 0
        if group:
            with suppress(ProcessLookupError):  # they have died
                os.killpg(group, signal.SIGKILL)
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            self._idle.get().close()
        own, self._own = self._own, None
        if own is not None:
            own.shutdown()


def _end_unless_done(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _lead(ends: Sequence[Connection], prepare: Callable[[], object]) -> None:
    """Fork the workers, one for each connection, and wait for them."""
    _disconnect([end.fileno() for end in ends])
    sys.settrace(None)
    warnings.simplefilter("ignore")  # some libraries warn of forks
    for own in (signal.SIGALRM, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(own, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    _end_unless_done(HANGS_S / 5)  # else it waits for a lock that a thread held when this was forked
    prepare()
    _end_unless_done(0)
    gc.freeze()  # it would copy the memory that they share
    for number, end in enumerate(ends):
        if os.fork() == 0:
            for other in ends[number + 1 :]:
                other.close()
            while True:  # until nobody asks any more, by an EOFError
                data = end.recv()
                _end_unless_done(HANGS_S)
                end.send(_result(data))
                _end_unless_done(0)
        end.close()
    for _ in ends:
        os.wait()


def _disconnect(keep: Collection[int]) -> None:
    """Let all that is open lead nowhere. It stays open, so that nothing else gets a number that something writes to."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in keep and descriptor != nowhere:
            with suppress(OSError):
                os.dup2(nowhere, descriptor, inheritable=descriptor < 3)
    sys.stdin = sys.stdout = sys.stderr = open(os.devnull, "r+", encoding="utf-8")  # noqa: SIM115


def _result(data: bytes) -> tuple[bool, bytes]:
    """Do a job; whether it is done, and what came of it."""
    try:
        return True, pickle.dumps(pickle.loads(data)())
    except Exception:
        return False, pickle.dumps(traceback.format_exc())


def _know_keys() -> None:
    """Have Triton find out what its keys are made of, for this process and those that are forked from it.

    The version of ptxas is asked for once in a process, and Inductor names another ptxas as soon as it compiles: a
    child that asked later than this process would compile for keys that nobody looks for here.
    """
    with suppress(Exception):
        import_module("torch._inductor.runtime.triton_compat").triton_key()
        gpu = devices.current_gpu() if devices.cuda_is_initialised() else None
        if gpu is not None and gpu.arch.startswith("sm_"):
            arch = int("".join(filter(str.isdigit, gpu.arch)))
            target = import_module("triton.backends.compiler").GPUTarget("cuda", arch, 32)
            import_module("triton.compiler.compiler").make_backend(target).hash()


def _prepare() -> None:
    """Import what each worker would, and have no GPU."""
    heuristics: Any = import_module("torch._inductor.runtime.triton_heuristics")
    codecache = import_module("torch._inductor.codecache")
    utils: Any = import_module("torch._inductor.compile_worker.utils")
    utils._IN_TOPLEVEL_PROCESS = False
    codecache.PyCodeCache.cache_clear()  # what the parent has loaded is in use there
    heuristics.triton_helpers.set_driver_to_gpu = lambda: None  # it asks CUDA, which is not to be asked after a fork
    codecache.torch_key()  # it takes a while, and is the same for all of them
