"""What compiles Inductor's kernels in a run that dumps: forked children.

Inductor starts a process for its workers, which imports torch first: until that is done, 3 to 5 s after the first call
of a compiled function, it compiles in threads of the test process, most of whose time goes by waiting for Python's
lock. A child that is forked has imported everything. Children that have nothing else to do compile the last
configurations of a list that another one has begun with, and what a descent is about to try.
"""

from __future__ import annotations

import copy
import gc
import math
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.inductor.candidates import Params, config_with, descends, params_of
from pytest_autotune.tuners.inductor.hooking import Part, Patches
from pytest_autotune.tuners.protocol import HookError

#: Jobs of Inductor that children can do.
_COMPILES = "_worker_compile_triton"
_READY = "_get_ready"
#: In the code of a kernel that has one configuration.
_TEMPLATE = "@triton_heuristics.template("
#: So many configurations of one list are compiled beside it at most.
_SHARED = 6
#: A descent goes on in all directions, which are many, only where nothing else helps.
_ALL_DIRECTIONS = "coordinate_descent_check_all_directions"
#: A child that takes so long for one kernel hangs, in seconds; the operating system ends it.
HANGS_S = 300.0
#: So often a child looks whether its parent is still there, in seconds.
_LOOK_S = 5.0


class CompileWorkers(Part):
    """The part of the adapter for Inductor's pool of compile workers."""

    tuner = "inductor"
    module = "torch._inductor.async_compile"

    def __init__(self) -> None:
        self._module: Any = None
        self._pools: list[ForkedPool] = []

    def hook(self, module: ModuleType, session: Session, patches: Patches) -> None:
        """See :class:`~pytest_autotune.tuners.inductor.hooking.Part`."""
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

        self._module = module
        self._module.SubprocPool = Pool

    def neighbours(self, autotuner: Any, times_ms: Mapping[Params, float]) -> Neighbours | None:
        """What children compile for the descent of a kernel; None where it has none, or there are no children."""
        pool = next((pool for pool in self._pools if pool.is_alive and pool.asked is not None), None)
        if pool is not None and descends(autotuner):
            with suppress(OSError, TypeError):  # its code is kept no more
                return Neighbours(autotuner, times_ms, pool)
        return None

    def end(self) -> None:
        """End all children; what Inductor compiles from now on, its own workers do."""
        for pool in self._pools:
            pool.shutdown()
            with suppress(AttributeError):  # in a version that keeps its pools otherwise
                self._module._pool_set.discard(pool)
                self._module.AsyncCompile.process_pool.cache_clear()
                self._module.AsyncCompile._ready_future = None
        self._pools.clear()


def _may_fork(session: Session) -> bool:
    # Workers compile all candidates of a kernel, which is a waste where its choice is loaded.
    is_loaded = any("inductor.config" in index.tuners() for index in session.indexes)
    is_possible = sys.platform.startswith("linux") and "TORCHINDUCTOR_WORKER_START" not in os.environ
    return session.policy.dumping and not is_loaded and is_possible


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
        #: What Inductor has asked for last, of another kernel.
        self.asked: Callable[[Callable[[], Any]], Callable[[], Any]] | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._is_shut = False
        self._ends: list[socket.socket] = []
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        self.workers = workers
        self._threads = ThreadPoolExecutor(workers, "pytest-autotune-inductor")
        with suppress(OSError):  # no memory, descriptor or process is left
            self._fork(workers if workers > 1 else 0, prepare or _prepare)

    def _fork(self, workers: int, prepare: Callable[[], object]) -> None:
        if not workers:
            return
        pairs = [socket.socketpair() for _ in range(workers)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns where there are threads: theirs are not needed here
            child = os.fork()
        if child == 0:
            try:
                gc.freeze()  # garbage of the tests may be tensors, and what frees these calls CUDA
                os.setsid()  # Ctrl-C is for the tests
                if os.fork() == 0:  # none of them is a child of the tests, whose os.wait() is their own
                    _lead([theirs for _, theirs in pairs], self._process, prepare)
            finally:
                os._exit(0)
        for mine, theirs in pairs:
            theirs.close()
            self._ends.append(mine)
            self._idle.put(Connection(mine.dup().detach()))
        with suppress(ChildProcessError):  # a handler of the tests has done it
            os.waitpid(child, 0)

    @property
    def is_alive(self) -> bool:
        """Whether there are children that compile."""
        return bool(self._ends) and not self._is_shut and self._process == os.getpid()

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
            with suppress(pickle.PicklingError, AttributeError, TypeError):
                asked = self._threads.submit(self._in_child, pickle.dumps(whole), whole)
                self.asked = lambda load: partial(job, load, *args[1:], **kwargs)
                self._share(*getattr(args[0], "args", ()))
                return asked
        return self._by_own(whole)

    def _share(self, name: str = "", source: str = _TEMPLATE) -> None:
        """Have other children compile the last of a list; who compiles all of it finds these in Triton's cache."""
        for number in () if _TEMPLATE in source else range(_SHARED):
            self.compile(name, source, number)

    def compile(self, name: str, source: str, which: Any) -> Future[Any]:
        """Have a child compile one configuration of a kernel that it was asked for as a whole.

        :param which: the configuration, or the place in the list, from its end, of one that is not the first.
        """
        assert self.asked is not None
        return self._threads.submit(self._in_child, pickle.dumps(self.asked(partial(_narrowed, name, source, which))))

    def _in_child(self, data: bytes, whole: Callable[[], Any] | None = None) -> Any:
        """Have a child do a job.

        :param whole: what Inductor's own pool does instead where the child dies.
        """
        connection = self._idle.get()  # there are as many as threads
        try:
            connection.send(data)
            is_done, what = connection.recv()
        except (EOFError, ConnectionError):  # the child has died
            if self._is_shut or whole is None:
                raise
            return self._by_own(whole).result()
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
        """End the children; one that is compiling ends when that is done."""
        if self._process != os.getpid() or self._is_shut:
            return
        self._is_shut = True
        for end in self._ends:
            with suppress(OSError):  # it has died
                end.shutdown(socket.SHUT_RDWR)
        self._threads.shutdown(cancel_futures=True)
        for end in self._ends:
            end.close()
            self._idle.get().close()
        if self._own is not None:
            self._own.shutdown()


class Neighbours:
    """The configurations that the descent of one kernel is about to try, which children compile.

    These are all that Inductor's tuner would try from the best so far; while children are idle, from each of these.

    :param times_ms: what was measured so far.
    """

    def __init__(self, autotuner: Any, times_ms: Mapping[Params, float], pool: ForkedPool) -> None:
        self._times_ms = times_ms
        self._compile = partial(pool.compile, autotuner.fn.__name__, Path(autotuner.filename).read_text("utf-8"))
        self._workers = pool.workers
        self._tuner = copy.copy(autotuner.coordesc_tuner)
        self._tuner.inductor_meta = {**autotuner.inductor_meta, _ALL_DIRECTIONS: False}
        self._futures: dict[Params, Future[Any]] = {}

    def compiled(self, config: Any) -> Any:
        """A configuration, as compiled by a child; None where this process is to compile it."""
        params = params_of(config)
        best = min(self._times_ms, key=self._times_ms.__getitem__, default=params)
        nearest = self._tried_from(config_with(config, best))
        next_but_one = chain.from_iterable(map(self._tried_from, nearest))
        for number, one in enumerate(chain(nearest, next_but_one)):
            is_idle = sum(not future.done() for future in self._futures.values()) < self._workers
            if number >= len(nearest) and not is_idle:
                break
            wanted = params_of(one)
            if wanted not in self._futures and self._tuner.lookup_in_cache(one) is None:
                self._futures[wanted] = self._compile(one)
        future = self._futures.get(params)
        if future is None or future.exception() is not None:
            return None
        result = future.result()[0].compile_results[0]
        result.config = config  # Inductor marks its own object as found by descent
        return result

    def _tried_from(self, best: Any) -> list[Any]:
        """What Inductor's tuner would compare with the best, in order, if nothing were better."""
        tried: list[Any] = []

        def compare(func: Any, candidate: Any, best: Any, best_ms: float) -> tuple[bool, float]:
            tried.append(candidate)
            return False, math.inf

        self._tuner.compare_config = compare
        self._tuner.autotune(None, best, 1.0)
        return tried

    def end(self) -> None:
        """Compile no more of them."""
        for future in self._futures.values():
            future.cancel()


def _narrowed(name: str, source: str, which: Any) -> Any:
    """A kernel with one of its configurations, in the child that compiles it."""
    codecache: Any = import_module("torch._inductor.codecache")
    tasks: Any = import_module("torch._inductor.runtime.compile_tasks")
    # Not the module that was loaded for the whole list: what was compiled of it is left out there.
    module = tasks._reload_python_module(*codecache.PyCodeCache.write(source), set_sys_modules=False)
    kernel = getattr(module, name)
    kernel.configs = kernel.configs[:0:-1][which : which + 1] if isinstance(which, int) else [which]
    return kernel


def _serve(connection: Connection, process: int) -> None:
    """Compile one kernel after the other, as Inductor's own workers do, until the process that asks has gone."""
    while _is_asked(connection, process):
        data = connection.recv()
        _end_unless_done(HANGS_S)
        connection.send(_result(data))
        _end_unless_done(0)


def _is_asked(connection: Connection, process: int) -> bool:
    while not connection.poll(_LOOK_S):
        try:
            os.kill(process, 0)
        except ProcessLookupError:  # another child of it may keep the connection open
            return False
    return True


def _end_unless_done(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _lead(ends: Sequence[socket.socket], process: int, prepare: Callable[[], object]) -> None:
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
            _serve(Connection(end.detach()), process)
            return
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
