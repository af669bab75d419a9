"""What is to be compiled ahead of the tests: of loaded entries, those that hold here, in the order of the tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Device, Entry
from pytest_autotune.run.door import TuningRun
from pytest_autotune.tuners.protocol import Suite
from pytest_autotune.tuners.shared.source.functions import python_function, qualified_name
from pytest_autotune.tuners.triton import interpreter
from pytest_autotune.tuners.triton.identity import NAME, PLAIN, holds
from pytest_autotune.tuners.triton.live_kernels import LiveKernels, is_current
from pytest_autotune.tuners.triton.params import distinct_params

#: So many texts of one entry are compiled for.
MOST_OF_ENTRY = 64


class WantedAhead:
    """Finds what is to be compiled, by the entries of an index and the kernels of this process.

    :param autotuner_class: Triton's.
    :param device: what the tests run on.
    """

    def __init__(self, run: TuningRun, autotuner_class: Any, suite: Suite, index: EntryIndex, device: Device) -> None:
        self._run = run
        self._class = autotuner_class
        self._suite = suite
        self._index = index
        self._device = device
        #: How many specialisations are left out, by the reason.
        self.left: Counter[str] = Counter()

    def each(self, failed: Callable[[Exception], object]) -> Iterator[tuple[Any, Any, str]]:
        """A kernel, its choice (None where it has no autotuner), and what to compile that for.

        :param failed: called with the error of a kernel of which nothing is compiled ahead.
        """
        live = LiveKernels(self._class)
        wanted = live.in_order(self._suite)
        seen: set[tuple[object, ...]] = set()
        for kernel in wanted:
            is_tuned = isinstance(kernel, self._class)
            try:
                for config, text in self._choices(kernel, live) if is_tuned else self._launched(kernel):
                    job = id(kernel), id(config), text
                    if job not in seen:
                        seen.add(job)
                        yield kernel, config, text
            except Exception as error:  # of this kernel nothing is compiled ahead
                failed(error)
        met = set(map(id, wanted))
        for kernel in live.all:
            if id(kernel) not in met:
                tuner = NAME if isinstance(kernel, self._class) else PLAIN
                self._leave(self._index.of_kernel(tuner, _kernel_name(kernel)), "of kernels that no test names")

    def _leave(self, entries: Iterable[Entry], why: str) -> None:
        if number := sum(len(entry.compiled) for entry in entries):
            self.left[why] += number

    def _choices(self, autotuner: Any, live: LiveKernels) -> Iterator[tuple[Any, str]]:
        """The choices of one autotuner that hold here, with what to compile them for."""
        function, kernel = python_function(autotuner), _kernel_name(autotuner)
        if function is None or self._run.ignores(NAME, kernel) or interpreter.interprets(autotuner):
            return
        entries = [entry for entry in self._index.of_kernel(NAME, kernel) if entry.compiled]
        if not entries:
            return
        if not is_current(autotuner, function):
            self._leave(entries, "of kernels that something else stands in the place of")
            return
        here = self._of_device(entries)
        heuristics = live.heuristics(autotuner)
        offered = dict(zip(distinct_params(autotuner.configs), autotuner.configs, strict=True))
        distinct = {entry.fingerprint: entry for entry in here}
        trusted = {mark for mark, entry in distinct.items() if holds(entry, autotuner, function, heuristics)}
        for entry in here:
            config = offered.get(entry.choice.params) if entry.choice is not None else None
            if config is None or entry.fingerprint not in trusted:
                self._leave([entry], "of choices that do not hold now")
                continue
            for text in entry.compiled[:MOST_OF_ENTRY]:
                yield config, text

    def _of_device(self, entries: Sequence[Entry]) -> list[Entry]:
        device = self._device
        names = {device.name, self._run.policy.aliases.get(device.name, device.name)}
        here = [one for one in entries if (of := one.problem.device).name in names and of.arch == device.arch]
        self._leave((one for one in entries if one not in here), "for other devices")
        return here

    def _launched(self, kernel: Any) -> Iterator[tuple[None, str]]:
        """What a function that Triton compiles was launched with without an autotuner, where it was."""
        function, name = python_function(kernel), _kernel_name(kernel)
        entries = self._index.of_kernel(PLAIN, name)
        if function is None or not entries or self._run.ignores(PLAIN, name):
            return
        if not is_current(kernel, function):
            self._leave(entries, "of kernels that something else stands in the place of")
            return
        for entry in self._of_device(entries):
            for text in entry.compiled[:MOST_OF_ENTRY]:
                yield None, text


def _kernel_name(kernel: Any) -> str:
    """The name of a kernel, under its decorators; empty where it has none."""
    function = python_function(kernel)
    return qualified_name(function) if function is not None else ""
