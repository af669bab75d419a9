"""What the children that compile ahead of the tests do: which kernels, for what, in which order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Device
from pytest_autotune.devices import visible
from pytest_autotune.run.door import TuningRun
from pytest_autotune.run.together.locks import HeldLock
from pytest_autotune.tuners.protocol import Suite
from pytest_autotune.tuners.shared.source.functions import python_function, qualified_name
from pytest_autotune.tuners.triton import internals, interpreter
from pytest_autotune.tuners.triton.compilations import Compilations
from pytest_autotune.tuners.triton.constants import NoText, jit_function_of
from pytest_autotune.tuners.triton.dummies import dummy_of
from pytest_autotune.tuners.triton.identity import NAME, holds
from pytest_autotune.tuners.triton.live_kernels import LiveKernels, is_current
from pytest_autotune.tuners.triton.params import distinct_params
from pytest_autotune.tuners.triton.specialisation_text import Held, parsed

#: So many texts of one entry are compiled for.
MOST_OF_ENTRY = 64


def lock_of(folder: Path, name: str) -> Path:
    """The lock that whoever compiles this holds.

    :param name: of what is compiled; see :func:`~pytest_autotune.tuners.triton.compilations.name_of`.
    """
    return folder / f"{name}.compiling"


class _Taken(Exception):
    """Another process compiles this now."""


class Plan:
    """What the children do; only they call anything of it.

    :param autotuner_class: Triton's.
    :param device: what the tests run on; None where it has to be found out.
    :param tell: called with what became of a job: ``"compiled"``, ``"failed"`` or ``"note"``, and words.
    """

    def __init__(
        self,
        run: TuningRun,
        autotuner_class: Any,
        suite: Suite,
        compilations: Compilations,
        device: Device | None,
        tell: Callable[[str, str], None],
    ) -> None:
        self._run = run
        self._class = autotuner_class
        self._suite = suite
        self._compilations = compilations
        self._device = device
        self._tell = tell
        self._name = ""
        self._started = 0.0

    def jobs(self) -> Sequence[Callable[[], object]]:
        """What is to be compiled, what the tests need first in front."""
        try:
            index = self._run.index
            if index is None:
                return []
            device = self._device or visible.only_type(index.devices(NAME)) or visible.first_gpu()
            if device is None:
                return []
            jobs = list(self._jobs(index, device))
            if jobs:
                internals.compile_only(device.arch, self._was_compiled)
                self._compilations.turns = self._turn
            return jobs
        except Exception as error:
            self._tell("note", f"{type(error).__name__}: {error}")
            return []

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        try:
            lock = HeldLock(lock_of(self._suite.folder, name))
        except OSError:
            raise _Taken(name) from None
        try:
            self._name, self._started = name, time.perf_counter()
            yield
        finally:
            lock.release()

    def _compile(self, autotuner: Any, config: Any, text: str) -> None:
        try:
            _compile(autotuner, config, text)
        except _Taken:
            pass
        except Exception as error:  # the test that launches it, if any does, gets the error
            self._tell("failed", f"{type(error).__name__}: {error}")

    def _was_compiled(self, *, cache_hit: bool = True, **_: object) -> None:
        if not cache_hit:
            self._tell("compiled", f"{self._name} {time.perf_counter() - self._started:.3f}")

    def _jobs(self, index: EntryIndex, device: Device) -> Iterator[Callable[[], object]]:
        found = LiveKernels(self._class)
        seen: set[tuple[object, ...]] = set()
        for autotuner in found.in_order(self._suite):
            with suppress(Exception):  # of this kernel nothing is compiled ahead
                for config, text in self._wanted(autotuner, found, index, device):
                    job = id(autotuner), id(config), text
                    if job not in seen:
                        seen.add(job)
                        yield partial(self._compile, autotuner, config, text)

    def _wanted(
        self, autotuner: Any, found: LiveKernels, index: EntryIndex, device: Device
    ) -> Iterator[tuple[Any, str]]:
        """The choices of one autotuner that hold here, with what to compile them for."""
        function = python_function(autotuner)
        kernel = qualified_name(function) if function else ""
        if function is None or self._run.ignores(NAME, kernel) or interpreter.interprets(autotuner):
            return
        if not is_current(autotuner, function):
            return
        names = {device.name, self._run.policy.aliases.get(device.name, device.name)}
        entries = [
            entry
            for entry in index.of_kernel(NAME, kernel)
            if entry.compiled and entry.problem.device.name in names and entry.problem.device.arch == device.arch
        ]
        if not entries:
            return
        heuristics = found.heuristics(autotuner)
        offered = dict(zip(distinct_params(autotuner.configs), autotuner.configs, strict=True))
        distinct = {entry.fingerprint: entry for entry in entries}
        trusted = {mark for mark, entry in distinct.items() if holds(entry, autotuner, function, heuristics)}
        for entry in entries:
            config = offered.get(entry.choice.params) if entry.choice is not None else None
            if config is not None and entry.fingerprint in trusted:
                for text in entry.compiled[:MOST_OF_ENTRY]:
                    yield config, text


def _compile(autotuner: Any, config: Any, text: str) -> None:
    """Compile one specialisation of a choice.

    :raises Exception: where the text is none, or does not fit the kernel; or it does not compile.
    """
    function = jit_function_of(autotuner)
    told = parsed(text)
    names = list(function.arg_names)
    if len(names) != len(told.parts):
        raise NoText("another number of parameters")
    given: Mapping[str, Any] = {
        name: dummy_of(part) for name, part in zip(names, told.parts, strict=True) if not isinstance(part, Held)
    }
    if config.kwargs.keys() & given.keys():
        raise NoText("the choice holds a parameter")
    internals.compile_kernel(function, {**given, **config.all_kwargs(), **told.options})
