"""Notes what the choices of autotuners are compiled for, so that a dump keeps it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.model import Entry, before_pruning
from pytest_autotune.run.door import TuningRun
from pytest_autotune.run.plain_kernels import PlainKernel
from pytest_autotune.tuners.shared.digest import digest
from pytest_autotune.tuners.shared.source.functions import python_function, qualified_name
from pytest_autotune.tuners.shared.source.libraries import of_library
from pytest_autotune.tuners.triton.call import Call
from pytest_autotune.tuners.triton.constants import NoText
from pytest_autotune.tuners.triton.identity import PLAIN, target_device, versions
from pytest_autotune.tuners.triton.internals import compiled_kernels, frames, kernel_layers
from pytest_autotune.tuners.triton.specialisation_text import group_of, text_of, words_of

_OF_TRITON = ("grid", "warmup")


@dataclass(frozen=True)
class _Chosen:
    """What was chosen for one key of an autotuner."""

    autotuner: weakref.ref[Any]
    entry: Entry
    config: Any


class CompiledChoices:
    """What the choices of one process are compiled for.

    The first call of a key comes by the door. A later one that differs in what no key has, such as an alignment, has
    Triton compile again, and is seen there.

    :param autotuner_class: Triton's.
    """

    def __init__(self, run: TuningRun, autotuner_class: Any) -> None:
        self._run = run
        self._class = autotuner_class
        self._chosen: dict[tuple[int, Any], _Chosen] = {}

    def forget(self, autotuner: Any, tuning_key: Any) -> None:
        """A choice is looked for: what is compiled meanwhile may be any candidate."""
        self._chosen.pop((id(autotuner), tuning_key), None)

    def chosen(self, call: Call, entry: Entry, config: Any, kernel: Any) -> None:
        """A choice was found, and compiled for this call.

        :param kernel: Triton's compiled kernel; None where it was not compiled, such as under the interpreter.
        """
        known = _Chosen(weakref.ref(call.autotuner), entry, config)
        self._chosen[id(call.autotuner), call.tuning_key] = known
        if kernel is not None:
            try:
                self._note(known, call.autotuner, call.kwargs, compiled_kernels.source_of(kernel), kernel)
            except Exception as error:  # the choice is there all the same
                self._run.error("triton", "what a choice was compiled for", error)

    def compiled(self, source: Any, kernel: Any) -> None:
        """Something was compiled in this process."""
        found = frames.launching_autotuner(self._class)
        if found is not None:
            autotuner, key, kwargs = found
            known = self._chosen.get((id(autotuner), key))
            if known is not None and known.autotuner() is autotuner:
                self._note(known, autotuner, kwargs, source, kernel)
        elif self._run.wants_plain_kernels(PLAIN):
            self._note_plain(source)

    def _note_plain(self, source: Any) -> None:
        launched = frames.launched_function()
        function = python_function(launched[0]) if launched is not None else None
        if launched is None or function is None or of_library(function):
            return
        kernel = qualified_name(function)
        if self._run.ignores(PLAIN, kernel):
            return
        names = {*compiled_kernels.kinds_of(source), *_OF_TRITON}
        with suppress(NoText):
            text = text_of(source, (), {name: value for name, value in launched[1].items() if name not in names})
            on = devices.current_gpu() or target_device()
            device = on.name, on.arch, on.multiprocessors
            self._run.plain_kernels[PlainKernel(PLAIN, kernel, device, text, str(versions()))] = None

    def _note(self, known: _Chosen, autotuner: Any, kwargs: Mapping[str, Any], source: Any, kernel: Any) -> None:
        entry, config = known.entry, known.config
        names = list(compiled_kernels.kinds_of(source))
        given = [name for name in kwargs if name not in _OF_TRITON]
        options = {name: kwargs[name] for name in given if name not in names}
        for layer in kernel_layers.heuristics_under(autotuner):  # they may set options, too
            for name in layer.values:
                if name not in names:
                    options[name] = compiled_kernels.option_of(kernel, name)
        held = [name for name in config.kwargs if name in names]
        with suppress(NoText):
            text = text_of(source, held, options)
            key = group_of(words_of(source, ()), entry.problem.key)
            choice = entry.choice.params if entry.choice is not None else ()
            problem = entry.problem
            parts = (problem.kernel, problem.device, before_pruning(entry.fingerprint), choice, key)
            self._run.was_compiled_for(entry, digest(repr(parts)), text)
