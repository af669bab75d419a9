"""Inductor's pool of compile workers, forked from this process.

Inductor starts a process for its workers, which imports torch first: until that is done, 3 to 5 s after the first call
of a compiled function, it compiles in threads of the test process, most of whose time goes by waiting for Python's
lock. A child that is forked has imported everything.

Each child has a connection of its own. It gets a job when it has none, and reads it at once, so nobody waits for room
in a pipe; and where a connection ends, it is known what the child was at.
"""

from __future__ import annotations

import math
import os
import pickle
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from pytest_autotune.run.together import children
from pytest_autotune.tuners.inductor.forked_worker import DONE, LOST, SHARED, WHOLE, Worker, compile_config, plan

#: Jobs of Inductor that children can do.
_COMPILES = "_worker_compile_triton"
_READY = "_get_ready"
#: Children of which none is ready after so long hang, in seconds: by a lock that a thread held when they were forked.
READY_S = 90.0
#: Where it is compiled to, and by what. By another ptxas a kernel is another one for Triton's cache.
_PASSED_ON = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_LIBDEVICE_PATH", "TRITON_PTXAS_PATH")


@dataclass(eq=False)
class _Job:
    """A job, pickled; what Inductor's own pool does where no child can; and parts that others may do meanwhile."""

    data: bytes
    whole: Callable[[], Any] | None
    parts: list[int] = field(default_factory=list)
    future: Future[Any] = field(default_factory=Future)


class _Child(Connection):
    """The connection to a child, and what the child is at."""

    job: _Job | None = None
    part = WHOLE


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
        prepare: Callable[[Worker], object],
        before: Callable[[], object] = lambda: None,
    ) -> None:
        self._make_own = make_own
        self._failed = failed
        self._before = before
        self._own: Any = None
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._asked: deque[_Job] = deque()
        self._children: list[_Child] = []
        self._leader: children.Children | None = None
        self._is_over = self._is_shut = False
        if workers > 1:
            with suppress(OSError, RuntimeError):  # no memory, descriptor, process or thread is left
                self._start(workers, prepare)

    def _start(self, workers: int, prepare: Callable[[Worker], object]) -> None:
        with ExitStack() as undo:
            self._door, theirs = map(undo.enter_context, socket.socketpair())
            serve = partial(plan, theirs, prepare, workers)
            # The test waits for them.
            bounds = children.Bounds(job_s=math.inf, all_s=math.inf, nice=0)
            leader = children.start(serve, workers, [theirs.fileno()], bounds=bounds)
            undo.callback(leader.stop)
            self._listener = threading.Thread(
                target=self._listen, args=(leader,), name="pytest-autotune-inductor", daemon=True
            )
            self._listener.start()
            undo.pop_all()
        theirs.close()
        self._leader = leader

    @property
    def is_alive(self) -> bool:
        """Whether there are children that compile."""
        return self._leader is not None and not self._is_over and self._process == os.getpid()

    def submit(self, job: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """As Inductor asks its own pool."""
        name = getattr(job, "__name__", "")
        whole = partial(job, *args, **kwargs)
        if self.is_alive and name == _READY:
            ready: Future[Any] = Future()
            ready.set_result(whole())
            return ready
        if self.is_alive and name == _COMPILES:
            with suppress(Exception):  # it cannot be pickled
                self._before()
                return self._ask(whole, whole)
        return self._by_own(whole)

    def compile(self, autotuner: Any, config: Any) -> Future[Any] | None:
        """Have a configuration of a kernel compiled into Triton's cache on disk; None where no child can."""
        with suppress(Exception):
            return self._ask(partial(compile_config, os.fspath(autotuner.filename), autotuner.fn.__name__, config))
        return None

    def _ask(self, job: Callable[[], Any], whole: Callable[[], Any] | None = None) -> Future[Any]:
        environment = {name: os.environ.get(name) for name in _PASSED_ON}
        asked = _Job(pickle.dumps((environment, job), pickle.HIGHEST_PROTOCOL), whole)
        asked.future.set_running_or_notify_cancel()
        with self._lock:
            if not self.is_alive:
                raise RuntimeError("there are no children")
            self._asked.append(asked)
            self._hand_out()
        return asked.future

    def _hand_out(self) -> None:
        """Give each child that has nothing to do a job, or a part of what another one has begun."""
        for child in (one for one in self._children if one.job is None):
            shared = [one.job for one in self._children if one.job is not None and one.job.parts]
            if self._asked:
                child.job, child.part = self._asked.popleft(), WHOLE
            elif shared:
                child.job, child.part = shared[0], shared[0].parts.pop()
            else:
                return
            try:
                with suppress(BrokenPipeError, ConnectionResetError):  # it has died, which will be heard
                    child.send((child.part, child.job.data))
            except BaseException as error:
                # Interrupted, no memory, or a test has closed what is not its own: it would wait for the rest for ever.
                with suppress(OSError):
                    self._door.shutdown(socket.SHUT_RDWR)  # the listener ends everything
                if not isinstance(error, Exception):
                    raise

    def _listen(self, leader: children.Children) -> None:
        with suppress(Exception):  # a test has closed what is not its own
            while ready := wait([self._door, *self._children], None if self._children else READY_S):
                for child in ready:
                    if isinstance(child, _Child):
                        self._hear(child)
                if self._door in ready and not self._welcome():
                    break
            else:
                leader.stop()
        with self._lock:
            self._is_over = True
            working = [child.job for child in self._children if child.job is not None and child.part == WHOLE]
        for end in (self._door.close, *(child.close for child in self._children)):
            with suppress(OSError):
                end()
        for job in (*working, *self._asked):
            self._end(job, LOST)

    def _welcome(self) -> bool:
        """Know another child; False when all have ended."""
        said, passed, _, _ = socket.recv_fds(self._door, 1, 1)
        for descriptor in passed:
            os.set_inheritable(descriptor, False)
            with self._lock:
                self._children.append(_Child(descriptor))
                self._hand_out()
        return bool(said)

    def _hear(self, child: _Child) -> None:
        """Take what a child says of its job, or that it has died."""
        said: int = LOST
        what: Any = None
        with suppress(OSError, EOFError):
            said, what = child.recv()
        with self._lock:  # one that dies with nothing to do may be handed a job meanwhile
            job, is_whole = child.job, child.part == WHOLE
            if job is not None and is_whole:
                job.parts = what if said == SHARED else []
            if said != SHARED:
                child.job = None
            if said == LOST:
                self._children.remove(child)
                with suppress(OSError):  # a test has closed it
                    child.close()
            self._hand_out()
        if job is not None and is_whole and said != SHARED:
            self._end(job, said, what)

    def _end(self, job: _Job, said: int, what: Any = None) -> None:
        try:
            if said != LOST:
                result = pickle.loads(what)
                job.future.set_result(result) if said == DONE else job.future.set_exception(self._failed(result))
            elif job.whole is not None and not self._is_shut:
                self._by_own(job.whole).add_done_callback(partial(_pass_on, job.future))
            else:
                raise RuntimeError("the children that compile have ended")
        except Exception as error:
            job.future.set_exception(error)

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
        """End the children."""
        if self._process != os.getpid():
            return
        self._is_over = self._is_shut = True
        if self._leader is not None:
            self._leader.stop()
            self._listener.join(children.END_S)
        if self._own is not None:
            self._own.shutdown()


def _pass_on(future: Future[Any], found: Future[Any]) -> None:
    try:
        future.set_result(found.result())
    except Exception as error:
        future.set_exception(error)
