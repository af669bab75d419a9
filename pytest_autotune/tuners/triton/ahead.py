"""Compiles the choices of a loaded cache ahead of the tests, in children, into Triton's own cache on disk.

The children are forked when collection is done: they have imported what the tests have, and nothing else. Each entry
says what its choice was compiled for; a child makes arguments of that and has Triton compile, for the tests' own type
of GPU, behind a driver that has none. A test that needs what is being compiled waits for it. What a child cannot make
anything of, it leaves to the test.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.model import Device
from pytest_autotune.run.compiled_ahead import CompiledAhead
from pytest_autotune.run.door import TuningRun
from pytest_autotune.run.together import children
from pytest_autotune.run.together.folders import for_temporary_files
from pytest_autotune.run.together.forked_jobs import Ended, ForkedJobs, thread_may_fork
from pytest_autotune.run.together.waiting import Waits
from pytest_autotune.tuners.protocol import Suite
from pytest_autotune.tuners.triton.ahead_plan import Plan, begun_at, lock_of
from pytest_autotune.tuners.triton.compilations import Compilations
from pytest_autotune.tuners.triton.identity import NAME, PLAIN
from pytest_autotune.tuners.triton.internals import crashes, targets, without_gpu

#: Why nothing was done, in words.
NO_CORE, NO_CORE_LEFT = "no core was idle in time", "the tests take all cores, or there is no memory"
#: So many reasons why children could not do something are told of a process.
MOST_FAILED = 100


class CompilingChildren:
    """What one process has compiled ahead of its tests.

    :param compilations: of this process.
    :param autotuner_class: Triton's.
    """

    def __init__(self, run: TuningRun, compilations: Compilations, autotuner_class: Any) -> None:
        self._run = run
        self._compilations = compilations
        self._class = autotuner_class
        self._children: children.Children | None = None
        self._told: Path | None = None
        self._temporary: str | None = None
        self._is_started = False
        self._asked: set[str] = set()
        #: How children ended that compiled what a test asked for, by the name of that.
        self._crashes: dict[str, int] = {}
        self._waited_s = 0.0
        self._notes: Sequence[str] = ()

    def start(self, suite: Suite) -> None:
        """Fork children that compile; the tests go on at once."""
        index = self._run.index
        if index is None or not {NAME, PLAIN} & index.tuners() or not sys.platform.startswith("linux"):
            return
        if not (suite.children or suite.others):
            self._run.ahead = CompiledAhead(skipped=NO_CORE_LEFT)
            return
        waits = Waits(suite.wait_s)
        if suite.children and not self._fork(suite):
            return
        self._notes = waits.notes
        self._compilations.turns = partial(self._turn, waits, suite.folder)
        self._is_started = True

    def _fork(self, suite: Suite) -> bool:
        told = suite.folder / f"{uuid.uuid4().hex}.ahead"
        descriptor = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            tell = partial(_tell, descriptor)
            self._temporary = tempfile.mkdtemp(prefix="pytest-autotune-ahead-", dir=for_temporary_files())
            plan = Plan(self._run, self._class, suite, self._compilations, _known_device(), tell, self._temporary)
            self._children = children.start(
                plan.jobs,
                suite.children,
                [descriptor],
                bounds=children.Bounds(temporary=self._temporary),
                wait=not suite.at_once,
                ended=plan.ended,
            )
        except OSError as error:
            self._run.note(f"triton: nothing was compiled ahead: {error.strerror or error}")
            self._remove_temporary()
            return False
        finally:
            os.close(descriptor)
        self._told = told
        return True

    @contextmanager
    def _turn(self, waits: Waits, folder: Path, name: str, compile: Callable[[], object]) -> Iterator[None]:
        """Compile in this process what no other one compiles now; what one does is there afterwards.

        :raises Exception: where that would end this process.
        """
        self._asked.add(name)
        with suppress(Exception):
            without_gpu.read_triton()  # which the compiler does anyway: nobody is to wait for that
        started = time.monotonic()
        lock = waits.acquire(lock_of(folder, name))
        self._waited_s += time.monotonic() - started
        try:
            if (begun := begun_at(folder, name)).exists():
                self._try_in_child(name, compile)
                begun.unlink(missing_ok=True)
            yield
        finally:
            if lock is not None:
                lock.release()

    def _try_in_child(self, name: str, compile: Callable[[], object]) -> None:
        """Have a child compile what has ended another one ahead of the tests.

        :raises Exception: where it ends that one, too.
        """
        if name not in self._crashes and thread_may_fork():
            with suppress(OSError), ForkedJobs({0: compile}, lambda _: nullcontext(True), lambda _: [], 1) as forked:
                forked.fork([ExitStack()])
                if (0, Ended.DIED) in forked.ended():
                    self._crashes[name] = forked.died[0]
        if name in self._crashes:
            raise crashes.crash(self._crashes[name])

    def _remove_temporary(self) -> None:
        """Remove what children that were ended have left there."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def stop(self) -> None:
        """End the children, and say what they have done."""
        if not self._is_started:
            return
        self._is_started = False
        self._compilations.turns = None
        if self._children is not None:
            self._children.stop()
        self._remove_temporary()
        for note in self._notes:
            self._run.note(note)
        told: defaultdict[str, list[str]] = defaultdict(list)
        for kind, words in _read(self._told):
            told[kind].append(words)
        for words in told["note"]:
            self._run.note(f"triton: nothing was compiled ahead: {words}")
        compiled = {name: float(seconds) for name, seconds in map(str.split, told["compiled"])}
        known, begun_s = sum(map(int, told["known"])), min(map(float, told["begun"]), default=None)
        self._run.ahead = CompiledAhead(
            known=known,
            left_out=tuple(
                sorted((why, int(number)) for number, _, why in (one.partition(" ") for one in told["left"]))
            ),
            compiled=tuple(sorted(compiled.items())),
            found=tuple(sorted({*told["found"]} - compiled.keys())),
            failed=tuple(told["failed"][:MOST_FAILED]),
            begun_s=begun_s,
            asked=tuple(sorted(self._asked)),
            waited_s=round(self._waited_s, 3),
            skipped=NO_CORE if known and begun_s is None else "",
        )


def _tell(descriptor: int, kind: str, words: str) -> None:
    with suppress(OSError):
        os.write(descriptor, f"{kind} {' '.join(words.split())[:300]}\n".encode(errors="replace"))


def _read(told: Path | None) -> Iterator[tuple[str, str]]:
    with suppress(OSError, ValueError):
        for line in told.read_text(encoding="utf-8").splitlines() if told else ():
            kind, _, words = line.partition(" ")
            yield kind, words


def _known_device() -> Device | None:
    """What the tests run on, where that can be seen without initialising anything."""
    if devices.cuda_is_initialised():
        return devices.current_gpu()
    arch = targets.foreign_target()
    if not arch:
        return None
    return devices.current_gpu() or Device("cuda" if arch.startswith("sm_") else "hip", arch)
