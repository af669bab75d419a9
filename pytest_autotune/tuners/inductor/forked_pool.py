"""Inductor's pool of compile workers, forked from this process.

Inductor starts a process for its workers, which imports torch first: until that is done, 3 to 5 s after the first call
of a compiled function, it compiles in threads of the test process, most of whose time goes by waiting for Python's
lock. A child that is forked has imported everything.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from pytest_autotune.run.together import children
from pytest_autotune.tuners.inductor.forked_worker import (
    BEGUN,
    DIED,
    DONE,
    JOB,
    LEFT,
    MARKS,
    TOLD,
    Pipes,
    compile_config,
    in_environment,
    plan,
)

#: Jobs of Inductor that children can do.
_COMPILES = "_worker_compile_triton"
_READY = "_get_ready"
#: So many workers a step of a descent keeps busy; half of those beyond may have others beside them that compile ahead.
_NEEDED = 4
#: Children that say nothing for so long while something is waited for hang, in seconds.
SILENT_S = 90.0
#: Results take up to 1 MB each, and go when nothing is under way: with so many bytes nothing is compiled ahead.
MOST_BYTES = 256 << 20
#: What is waited for, other children's parts of it, and what may be wanted.
URGENT, PARTS, AHEAD = range(3)
#: Where it is compiled to, and by what. By another ptxas a kernel is another one for Triton's cache.
_PASSED_ON = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_LIBDEVICE_PATH", "TRITON_PTXAS_PATH")


class ForkedPool:
    """Takes the place of Inductor's ``SubprocPool``.

    :param workers: how many.
    :param make_own: makes Inductor's own pool, which does what is left where children cannot.
    :param failed: makes the error that Inductor expects of the text of one.
    :param prepare: called in the child that the others are forked from.
    :param before: called here before each kernel is handed to a child.
    """

    def __init__(
        self,
        workers: int,
        make_own: Callable[[], Any],
        failed: Callable[[str], Exception],
        prepare: Callable[[], object],
        before: Callable[[], object] = lambda: None,
    ) -> None:
        self._before = before
        self._make_own = make_own
        self._failed = failed
        self._own: Any = None
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._number = 0
        self._waiting: dict[int, tuple[Future[Any], Callable[[], Future[Any]] | None]] = {}
        self._begun: dict[int, int] = {}
        self._configs: dict[tuple[str, str, str], Future[Any]] = {}
        self._asked_at = 0.0
        self._ahead = max(workers - _NEEDED, 0) // 2
        self._is_open = self._is_shut = False
        self._queues: tuple[int, ...] = ()
        if workers > 1:
            with suppress(OSError, RuntimeError):  # no memory, descriptor, process or thread is left
                self._start(workers, prepare)

    def _start(self, workers: int, prepare: Callable[[], object]) -> None:
        with ExitStack() as undo:
            self._jobs, self._results = (undo.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            reads, writes = zip(*(_pipe(undo) for _ in range(3)), strict=True)
            told, tell = _pipe(undo)
            for queue in (*reads, writes[PARTS], writes[AHEAD]):
                os.set_blocking(queue, False)
            self._done = mmap.mmap(-1, MARKS)
            pipes = Pipes(self._jobs.fileno(), self._results.fileno(), reads, writes[PARTS], tell, self._done)
            self._children = children.start(
                partial(plan, pipes, prepare, workers, self._ahead),
                workers + self._ahead,
                pipes.kept,
                died=lambda why: os.write(tell, TOLD.pack(DIED, 0, 0, 0)),
                job_s=float("inf"),
                all_s=float("inf"),
                nice=0,  # the test waits for them
            )
            undo.callback(self._children.stop)
            self._told = told
            self._listener = threading.Thread(target=self._listen, name="pytest-autotune-inductor", daemon=True)
            undo.callback(setattr, self, "_is_open", False)
            self._is_open = True
            self._listener.start()
            undo.pop_all()
        self._queues = writes
        for descriptor in (*reads, tell):
            os.close(descriptor)

    @property
    def is_alive(self) -> bool:
        """Whether there are children that compile."""
        return self._is_open and self._process == os.getpid()

    def submit(self, job: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """As Inductor asks its own pool."""
        name = getattr(job, "__name__", "")
        if self.is_alive and name == _READY:
            ready: Future[Any] = Future()
            ready.set_result(job())
            return ready
        whole = partial(job, *args, **kwargs)
        if self.is_alive and name == _COMPILES:
            with suppress(Exception):  # it cannot be pickled, the disk is full, or nobody reads any more
                self._before()
                return self._ask(whole, URGENT, lambda: self._by_own(whole))
        return self._by_own(whole)

    def compile(self, autotuner: Any, config: Any, queue: int = URGENT) -> Future[Any] | None:
        """Have a configuration of a kernel compiled into Triton's cache on disk; None where no child can."""
        path = str(autotuner.filename)
        known = path, str(config), os.environ.get("TRITON_CACHE_DIR", "")
        before = self._configs.get(known)
        if before is not None and (queue == AHEAD or before.done()):
            return before
        if not self.is_alive or autotuner.filename is None or (queue == AHEAD and not self._ahead):
            return None
        key = os.path.splitext(os.path.basename(path))[0]
        job = partial(compile_config, key, path, autotuner.fn.__name__, config)
        with suppress(Exception):
            self._configs[known] = self._ask(job, queue, None)
            return self._configs[known]
        return None

    def _ask(self, job: Callable[[], Any], queue: int, otherwise: Callable[[], Future[Any]] | None) -> Future[Any]:
        environment = {name: os.environ.get(name) for name in _PASSED_ON}
        data = pickle.dumps(partial(in_environment, environment, job), pickle.HIGHEST_PROTOCOL)
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if not self._is_open:
                raise OSError
            number = self._number = (self._number + 1) % (1 << 30)
            if not self._waiting:
                os.ftruncate(self._jobs.fileno(), 0)
                os.ftruncate(self._results.fileno(), 0)
            elif queue == AHEAD and os.fstat(self._results.fileno()).st_size > MOST_BYTES:
                raise OSError
            at = self._jobs.seek(0, os.SEEK_END)
            if os.pwrite(self._jobs.fileno(), data, at) < len(data):
                raise OSError
            self._done[number % MARKS] = 0
            self._asked_at = time.monotonic()
            self._waiting[number] = future, otherwise
            try:
                os.write(self._queues[queue], JOB.pack(at, len(data), number, -1))
            except OSError:  # nobody reads any more, or more is to be compiled ahead than is read
                self._waiting.pop(number, None)
                raise
        return future

    def _by_own(self, job: Callable[[], Any]) -> Future[Any]:
        with self._lock:
            if self._own is None:
                self._own = self._make_own()
        found: Future[Any] = self._own.submit(job)
        return found

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._told, select.POLLIN)
        while True:
            if not poll.poll(1000 * SILENT_S):
                if not self._waiting or time.monotonic() - self._asked_at < SILENT_S:
                    continue
                self._children.stop()  # a child may hang by a lock that another thread held when it was forked
                break
            if not (records := self._read()):
                break
            for kind, number, at, length in TOLD.iter_unpack(records):
                if kind == BEGUN:
                    self._begun[number] = at
                elif kind == DIED:
                    self._give_up([number for number, process in self._begun.items() if not _is_there(process)])
                elif kind == LEFT:
                    self._give_up([number])
                else:
                    self._ended(kind, number, os.pread(self._results.fileno(), length, at))
        with self._lock:
            self._is_open = False
            left = list(self._waiting)
            self._jobs.close()
            self._results.close()
        os.close(self._told)
        self._give_up(left)

    def _read(self) -> bytes:
        try:
            return os.read(self._told, 64 * TOLD.size)
        except OSError:
            return b""

    def _ended(self, kind: int, number: int, data: bytes) -> None:
        future, _ = self._waiting.pop(number, (None, None))
        self._begun.pop(number, None)
        if future is None:
            return
        try:
            result = pickle.loads(data)
        except Exception as error:
            future.set_exception(error)
            return
        if kind == DONE:
            future.set_result(result)
        else:
            future.set_exception(self._failed(result))

    def _give_up(self, numbers: list[int]) -> None:
        """Have others do what children have died of, or could not do."""
        for number in numbers:
            future, otherwise = self._waiting.pop(number, (None, None))
            self._begun.pop(number, None)
            if future is None:
                continue
            if otherwise is None or self._is_shut:
                future.set_exception(RuntimeError("the children that compile have ended"))
            else:
                threading.Thread(target=_pass_on, args=(otherwise, future), daemon=True).start()

    def wakeup(self) -> None:
        """As Inductor asks its own pool; these are awake."""

    def quiesce(self) -> None:
        """As Inductor asks its own pool."""

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        """End the children."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._is_open, self._is_shut = False, True
            queues, self._queues = self._queues, ()
            for queue in queues:
                os.close(queue)
        if queues:
            self._children.stop()
            self._listener.join(children.END_S)
        if self._own is not None:
            self._own.shutdown()


def _pass_on(otherwise: Callable[[], Future[Any]], future: Future[Any]) -> None:
    try:
        future.set_result(otherwise().result())
    except Exception as error:
        future.set_exception(error)


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def _pipe(undo: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        undo.callback(os.close, end)
    return ends
