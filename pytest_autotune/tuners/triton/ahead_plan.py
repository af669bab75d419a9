"""What the children that compile ahead of the tests do, one job after the other."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Device
from pytest_autotune.devices import visible
from pytest_autotune.run.door import TuningRun
from pytest_autotune.run.together.locks import HeldLock
from pytest_autotune.tuners.protocol import Suite
from pytest_autotune.tuners.triton.ahead_wanted import WantedAhead
from pytest_autotune.tuners.triton.compilations import Compilations
from pytest_autotune.tuners.triton.constants import NoText, jit_function_of
from pytest_autotune.tuners.triton.dummies import dummy_of
from pytest_autotune.tuners.triton.identity import NAME, PLAIN
from pytest_autotune.tuners.triton.internals import without_gpu
from pytest_autotune.tuners.triton.specialisation_text import Held, parsed

#: So long is waited for the compiler's own files, in seconds.
MOST_READING_S = 10.0


def lock_of(folder: Path, name: str) -> Path:
    """The lock that whoever compiles this holds.

    :param name: of what is compiled; see :func:`~pytest_autotune.tuners.triton.compilations.name_of`.
    """
    return folder / f"{name}.compiling"


def begun_at(folder: Path, name: str) -> Path:
    """What is there while a child compiles this, and stays where that ended the child.

    :param name: see :func:`lock_of`.
    """
    return folder / f"{name}.begun"


class _Taken(Exception):
    """Another process makes this now."""


class Plan:
    """What the children do; only they call anything of it.

    :param autotuner_class: Triton's.
    :param device: what the tests run on; None where it has to be found out.
    :param tell: called with a word and what belongs to it: ``"known"`` and how many jobs there are; ``"left"``, how
        many specialisations are none, and why; ``"begun"`` and the seconds after which a worker began; of a job
        ``"compiled"``, ``"found"`` or ``"failed"``; ``"note"``.
    :param temporary: a folder for temporary files of compilers, which a child that is ended leaves there.
    """

    def __init__(
        self,
        run: TuningRun,
        autotuner_class: Any,
        suite: Suite,
        compilations: Compilations,
        device: Device | None,
        tell: Callable[[str, str], None],
        temporary: str,
    ) -> None:
        self._run = run
        self._class = autotuner_class
        self._suite = suite
        self._compilations = compilations
        self._device = device
        self._tell = tell
        self._temporary = temporary
        self._name = ""
        self._made_at = time.monotonic()
        self._started = 0.0
        self._has_begun = False
        self._held = ExitStack()
        self._left: Counter[str] = Counter()

    def jobs(self) -> Sequence[Callable[[], object]]:
        """What is to be compiled, what the tests need first in front."""
        try:
            index = self._run.index
            if index is None:
                return []
            loaded = index.devices(NAME) | index.devices(PLAIN)
            device = self._device or visible.only_type(loaded) or visible.first_gpu()
            if device is None:
                return []
            with self._reading(device):
                jobs = list(self._jobs(index, device))
            self._tell("known", str(len(jobs)))
            for why, number in self._left.items():
                self._tell("left", f"{number} {why}")
            if jobs:
                tempfile.tempdir = os.environ["TMPDIR"] = self._temporary
                without_gpu.compile_only(device.arch, self._was_compiled)
                self._compilations.turns = self._turn
            # A single child would have no time for it: the first launch wants it at once, and builds it as well.
            return [self._build_driver, *jobs] if jobs and self._are_many else jobs
        except Exception as error:
            self._tell("note", f"{type(error).__name__}: {error}")
            return []

    @property
    def _are_many(self) -> bool:
        return self._suite.children > 1

    @contextmanager
    def _reading(self, device: Device) -> Iterator[None]:
        """Do meanwhile what each of several workers would have to do before its first job.

        :raises TimeoutError: when it is not done in time: what is imported meanwhile would stay locked in all workers.
        """
        thread = threading.Thread(target=partial(_read_compiler, device.arch), daemon=True)
        if self._are_many:
            thread.start()
        yield
        if self._are_many:
            thread.join(MOST_READING_S)
            if thread.is_alive():
                raise TimeoutError(f"Triton has not read its own files in {MOST_READING_S:g} s")

    def ended(self, process: int, code: int) -> None:
        """A child has ended: in a job, unless its exit status is 0."""
        if code:
            how = f"ended with {code}" if code > 0 else f"was killed by signal {-code}"
            self._tell("failed", f"a child {how}")

    @contextmanager
    def _turn(self, name: str, compile: Callable[[], object]) -> Iterator[None]:
        try:
            self._take(name)
        except _Taken:
            self._tell("found", name)
            raise
        begun = begun_at(self._suite.folder, name)
        with suppress(OSError):
            begun.touch()
        self._held.callback(begun.unlink, missing_ok=True)
        self._name, self._started = name, time.perf_counter()
        yield

    def _take(self, name: str) -> None:
        """Keep others from making this until the job is done: what launches a kernel goes with it.

        :raises _Taken: when another process makes it now.
        """
        try:
            self._held.callback(HeldLock(lock_of(self._suite.folder, name)).release)
        except OSError:
            raise _Taken(name) from None

    def _compile(self, kernel: Any, config: Any, text: str) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._tell("begun", f"{time.monotonic() - self._made_at:.3f}")
        try:
            with self._held:
                compiled = _compile(kernel, config, text)
                with suppress(Exception):  # without a C compiler, say
                    self._build_launcher(compiled)
        except _Taken:
            pass
        except Exception as error:  # the test that launches it, if any does, gets the error
            self._failed(error)

    def _build_launcher(self, compiled: Any) -> None:
        if launcher := without_gpu.launcher_of(compiled):
            self._take(hashlib.sha256(launcher.encode()).hexdigest()[:32])
            without_gpu.build_launcher(compiled)

    def _build_driver(self) -> None:
        with suppress(Exception), self._held:
            self._take(hashlib.sha256(b"driver").hexdigest()[:32])
            without_gpu.build_driver()

    def _was_compiled(self, *, cache_hit: bool = True, **_: object) -> None:
        if cache_hit:
            self._tell("found", self._name)
        else:
            self._tell("compiled", f"{self._name} {time.perf_counter() - self._started:.3f}")

    def _jobs(self, index: EntryIndex, device: Device) -> Iterator[Callable[[], object]]:
        wanted = WantedAhead(self._run, self._class, self._suite, index, device)
        for kernel, config, text in wanted.each(self._failed):
            yield partial(self._compile, kernel, config, text)
        self._left = wanted.left

    def _failed(self, error: Exception) -> None:
        self._tell("failed", f"{type(error).__name__}: {error}")


def _read_compiler(arch: str) -> None:
    with suppress(Exception):  # then each worker does
        without_gpu.read_compiler(arch)


def _compile(kernel: Any, config: Any, text: str) -> Any:
    """Compile one specialisation of a kernel.

    :param config: the choice; None for a kernel without an autotuner.
    :returns: Triton's compiled kernel.
    :raises Exception: where the text is none, or does not fit the kernel; or it does not compile.
    """
    function = jit_function_of(kernel)
    told = parsed(text)
    names = list(function.arg_names)
    if len(names) != len(told.parts):
        raise NoText("another number of parameters")
    given: Mapping[str, Any] = {
        name: dummy_of(part) for name, part in zip(names, told.parts, strict=True) if not isinstance(part, Held)
    }
    if config is not None and config.kwargs.keys() & given.keys():
        raise NoText("the choice holds a parameter")
    chosen = config.all_kwargs() if config is not None else {}
    return without_gpu.compile_kernel(function, {**given, **chosen, **told.options})
