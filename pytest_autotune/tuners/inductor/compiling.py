"""Compiles Inductor's kernels in forked children, in a run that dumps.

Inductor's own compile workers begin with a new process, which imports torch for 3 to 5 s. Meanwhile Inductor compiles
in threads of the test process, which mostly wait for Python's lock. A forked child has imported everything already.

The test process forks a leader, and the leader forks the children. If the test process forked the children itself, an
``os.wait`` of a test could return for a child of the plugin. Each child has a connection, on which it gets jobs until
the test process closes the connection. A job is a call that Inductor wants a worker to make: to compile one kernel.
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
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from types import ModuleType
from typing import Any, Protocol

from pytest_autotune import devices
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.patches import Patches

# The names of Inductor's jobs that children can do.
_COMPILE_JOB = "_worker_compile_triton"
_READY_JOB = "_get_ready"
#: The seconds that a child may take for a kernel. A child that takes longer is taken to hang, and is killed.
HANGS_S = 300.0


class CompileWorkers:
    """The part of the adapter for Inductor's pool of compile workers."""

    tuner = "inductor"
    module = "torch._inductor.async_compile"

    def __init__(self) -> None:
        self._pools: list[ForkedPool] = []

    def hook(self, module: ModuleType, session: Session, patches: Patches) -> None:
        if not _may_fork(session):
            return
        # No choice depends on the pool. If this torch has another pool, or another error of a failed job, the part does
        # nothing and is not bypassed.
        if getattr(module, "SubprocException", None) is None:
            return
        try:
            inductor_pool_class = patches.keep_original(module, "SubprocPool", ["nprocs", "pickler", "kind", "quiesce"])
        except HookError:
            return
        pools = self._pools

        # The replacement must be a class, because Inductor checks that its pool is an instance of `SubprocPool`.
        class HookedPool(ForkedPool):
            def __init__(self, nprocs: int, *args: Any, **kwargs: Any) -> None:
                _compute_triton_keys()  # before the fork, so that the children have the keys
                super().__init__(nprocs, InductorWorkers(module, inductor_pool_class, (nprocs, *args), kwargs))
                pools.append(self)

        module.SubprocPool = HookedPool  # type: ignore[attr-defined]

    def end(self) -> None:
        """End all children. Afterwards Inductor's own workers compile."""
        if self._pools:
            self._pools.clear()
            sys.modules[self.module].shutdown_compile_workers()


def _may_fork(session: Session) -> bool:
    """Whether a run compiles enough candidates for a pool of children, and can fork."""
    # A run that only loads compiles a single candidate of each kernel.
    if not session.policy.is_dumping:
        return False
    for index in session.indexes:
        # The run also loads choices. A child would compile all candidates of a kernel, and a loaded choice needs one.
        if "inductor.config" in index.list_tuners():
            return False
    # The variable is the user's decision how Inductor starts its workers.
    return sys.platform.startswith("linux") and "TORCHINDUCTOR_WORKER_START" not in os.environ


class WorkerLibrary(Protocol):
    """The library whose kernels the children compile."""

    def start_pool(self) -> Any:
        """Return the library's own pool, which does the jobs that no child can do."""

    def build_error(self, text: str) -> Exception:
        """Return the error that the library expects for a failed job.

        :param text: the traceback of the child.
        """

    def before_compiling(self) -> None:
        """Prepare this process before it gives a kernel to a child."""

    def prepare_child(self) -> None:
        """Import the library in the leader of the children."""


@dataclass(frozen=True)
class InductorWorkers:
    """Inductor's own compile workers.

    :param module: Inductor's module ``async_compile``.
    :param pool_class: Inductor's own class of pools.
    :param args: the arguments with which Inductor makes a pool; ``kwargs`` as well.
    """

    module: Any
    pool_class: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def start_pool(self) -> Any:
        return self.pool_class(*self.args, **self.kwargs)

    def build_error(self, text: str) -> Exception:
        error: Exception = self.module.SubprocException(text)
        return error

    def before_compiling(self) -> None:
        """Have Triton use the ptxas that Inductor brings, as Inductor does before each kernel.

        Triton's cache keys contain the version of ptxas, so this process and the children must use the same ptxas.
        """
        set_path = getattr(self.module, "_set_triton_ptxas_path", None)
        if set_path is not None:
            set_path()

    def prepare_child(self) -> None:
        prepare_inductor()


@dataclass(frozen=True)
class JobResult:
    """The result of a job in a child.

    :param is_done: whether the job returned a value.
    :param pickled: the value that the job returned; the traceback as text if it failed.
    """

    is_done: bool
    pickled: bytes


@dataclass(frozen=True)
class PoolJob:
    """A call that Inductor wants a worker to make."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Make the call, and return the value that it returns."""
        return self.function(*self.args, **self.kwargs)


class ForkedPool:
    """A pool of forked children, in place of Inductor's ``SubprocPool``.

    This process has as many threads as children. A thread sends a job to an idle child and waits for the result.

    :param worker_count: the number of children; with one worker the library's own pool does everything.
    """

    def __init__(self, worker_count: int, library: WorkerLibrary) -> None:
        self._library = library
        self._library_pool: Any = None
        self._lock = threading.Lock()
        self._process_id = os.getpid()
        #: The process group of the children; 0 if there are none.
        self._group = 0
        self._idle_connections: SimpleQueue[Connection] = SimpleQueue()
        self._threads = ThreadPoolExecutor(worker_count, "pytest-autotune-inductor")
        if worker_count > 1:
            with suppress(OSError):  # no memory, descriptor or process is free
                self._fork(worker_count)

    def _fork(self, worker_count: int) -> None:
        """Fork an intermediate process, which forks the leader of the children and ends.

        The leader then is no child of the test process. The intermediate process begins a process group, and the number
        of the group is the intermediate process's own. The leader and the children stay in the group, so that
        :meth:`shutdown` can end them.
        """
        # A pair has the test process's end of a connection, and the end of a child.
        pairs = [Pipe() for _ in range(worker_count)]
        with warnings.catch_warnings():
            # Python 3.12 warns that the threads of a process do not exist in a forked process. The children need none.
            warnings.simplefilter("ignore")
            intermediate = os.fork()
        if intermediate == 0:
            try:
                gc.freeze()  # so that Python frees no tensor of the tests here, which would call CUDA
                os.setsid()  # begins the process group: Ctrl-C then reaches only the tests
                if os.fork() == 0:
                    _lead([child_end for _, child_end in pairs], self._library)
            finally:
                os._exit(0)
        for test_end, child_end in pairs:
            child_end.close()
            self._idle_connections.put(test_end)
        # A signal handler of the tests may have waited for the process already.
        with suppress(ChildProcessError):
            os.waitpid(intermediate, 0)
        self._group = intermediate

    @property
    def is_alive(self) -> bool:
        """Whether there are children that compile."""
        return bool(self._group) and self._process_id == os.getpid()

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a worker call a function, as the method of Inductor's own pool does."""
        job = PoolJob(function, args, kwargs)
        if not self.is_alive:
            return self._submit_to_library(job)
        name = getattr(function, "__name__", "")
        if name == _COMPILE_JOB:
            self._library.before_compiling()
            return self._threads.submit(self._run_in_child, job, pickle.dumps(job))
        # With this job, Inductor asks whether the workers have started. Forked children are ready at once.
        if name == _READY_JOB:
            ready: Future[Any] = Future()
            ready.set_result(job.run())
            return ready
        return self._submit_to_library(job)

    def _run_in_child(self, job: PoolJob, pickled_job: bytes) -> Any:
        """Have a child do a job. If the child dies, the library's own pool does the job.

        :param pickled_job: the job as the child gets it. It was pickled in the thread that submits the job, so that an
            error of pickling is raised there.
        :raises Exception: the error that the library expects, if the job fails.
        """
        # This never waits, because the pool has as many connections as threads.
        connection = self._idle_connections.get()
        try:
            connection.send(pickled_job)
            result: JobResult = connection.recv()
        except (EOFError, ConnectionError):
            # The child has died, because the pool was shut down.
            if not self._group:
                raise
            # The child has died for another reason, for example a lack of memory. The other children go on.
            return self._submit_to_library(job).result()
        finally:
            # Also the connection of a dead child: each thread needs one. The next job that takes it goes the same way.
            self._idle_connections.put(connection)
        if not result.is_done:
            raise self._library.build_error(pickle.loads(result.pickled))
        return pickle.loads(result.pickled)

    def _submit_to_library(self, job: PoolJob) -> Future[Any]:
        """Have the library's own pool do a job. The first such job starts the pool."""
        with self._lock:
            if self._library_pool is None:
                self._library_pool = self._library.start_pool()
        # The library's workers do not import this package, so they cannot unpickle our job.
        future: Future[Any] = self._library_pool.submit(job.function, *job.args, **job.kwargs)
        return future

    def wakeup(self) -> None:
        """Do nothing: the children are always awake. Inductor wakes its own pool."""

    def quiesce(self) -> None:
        """Do nothing: the children stay awake. Inductor lets its own pool sleep."""

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        """End the children at once, even while they compile."""
        # This process was forked by a test, and has a copy of the pool. The children belong to the test process.
        if self._process_id != os.getpid():
            return
        group = self._group
        self._group = 0  # tells the threads of the pool why their children die
        if group:
            with suppress(ProcessLookupError):  # all processes of the group have ended
                os.killpg(group, signal.SIGKILL)
        self._threads.shutdown(cancel_futures=True)
        while not self._idle_connections.empty():
            self._idle_connections.get().close()
        if self._library_pool is not None:
            self._library_pool.shutdown()
            self._library_pool = None


# In the leader and in the children.


def _end_after(seconds: float) -> None:
    """Have the operating system end this process after so many seconds; 0 cancels the earlier request."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _lead(connections: Sequence[Connection], library: WorkerLibrary) -> None:
    """Prepare this process, fork a child for each connection, and wait for the end of the children.

    :param connections: the children's ends of the connections.
    """
    _disconnect([connection.fileno() for connection in connections])
    sys.settrace(None)
    warnings.simplefilter("ignore")  # some libraries warn of forks
    # The tests may handle or block these signals. _end_after() needs SIGALRM.
    for signal_number in (signal.SIGALRM, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    # A thread of the test process may have held a lock at the time of the fork. This process has no such thread, so
    # nothing releases the lock. If the preparation waits for the lock, the operating system ends this process.
    _end_after(HANGS_S / 5)
    library.prepare_child()
    _end_after(0)
    gc.freeze()  # A garbage collection would write to the memory that the children share, and so copy it.
    for number, connection in enumerate(connections):
        if os.fork() == 0:
            # The leader has closed the connections of the children before this one.
            for later_connection in connections[number + 1 :]:
                later_connection.close()
            _work(connection)  # never returns: it ends with an error, and the child with it
        connection.close()
    for _ in connections:
        os.wait()


def _work(connection: Connection) -> None:
    """Do the jobs of a connection.

    :raises EOFError: when the pool closes the connection.
    """
    while True:
        pickled_job = connection.recv()
        _end_after(HANGS_S)
        connection.send(_run_job(pickled_job))
        _end_after(0)


def _disconnect(kept: Collection[int]) -> None:
    """Redirect all open files to ``/dev/null``.

    The files are not closed. A new file would get the number of a closed file, and a library that still writes to this
    number would write into the new file.

    :param kept: the numbers of the files that are not redirected.
    """
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in kept and descriptor != nowhere:
            # Programs that the child starts, such as ptxas, inherit the three standard streams and no other file.
            is_standard_stream = descriptor < 3
            with suppress(OSError):
                os.dup2(nowhere, descriptor, inheritable=is_standard_stream)
    sys.stdin = sys.stdout = sys.stderr = open(os.devnull, "r+", encoding="utf-8")  # noqa: SIM115


def _run_job(pickled_job: bytes) -> JobResult:
    """Do a job in a child, and return its value, or the traceback of its error."""
    try:
        job: PoolJob = pickle.loads(pickled_job)
        return JobResult(is_done=True, pickled=pickle.dumps(job.run()))
    except Exception:
        return JobResult(is_done=False, pickled=pickle.dumps(traceback.format_exc()))


def _compute_triton_keys() -> None:
    """Have Triton compute the parts of its cache keys, for this process and for the children.

    A key contains the version of ptxas, for which Triton asks only once in a process. Inductor changes to another ptxas
    before it compiles. A child that asked after this change would compute other keys than this process. This process
    would then not find the compiled kernels.
    """
    with suppress(Exception):
        import_module("torch._inductor.runtime.triton_compat").triton_key()
        # The next lines need the architecture of the GPU, and must not initialise CUDA.
        if not devices.cuda_is_initialised():
            return
        gpu = devices.current_gpu()
        if gpu is not None and gpu.arch.startswith("sm_"):
            capability = int(gpu.arch.removeprefix("sm_"))
            target = import_module("triton.backends.compiler").GPUTarget("cuda", capability, warp_size=32)
            import_module("triton.compiler.compiler").make_backend(target).hash()


def _keep_driver() -> None:
    """Do nothing, in place of a function that asks CUDA whether there is a GPU. CUDA cannot be used after a fork."""


def prepare_inductor() -> None:
    """Make this process a compile worker of Inductor. Its children need no further import and no GPU."""
    heuristics: Any = import_module("torch._inductor.runtime.triton_heuristics")
    codecache = import_module("torch._inductor.codecache")
    utils: Any = import_module("torch._inductor.compile_worker.utils")
    # Inductor's own workers have this mark, too. With it, PyCodeCache keeps no module that it loads.
    utils._IN_TOPLEVEL_PROCESS = False
    # PyCodeCache would return a module that the test process has loaded. The autotuner in such a module may be compiled
    # already, or changed by the plugin.
    codecache.PyCodeCache.cache_clear()
    heuristics.triton_helpers.set_driver_to_gpu = _keep_driver
    codecache.torch_key()  # takes a while, and is the same in all children
