"""Notes what the choices of autotuners are compiled for, so that a dump keeps it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pytest_autotune.cache.model import Entry
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.triton.call import Call
from pytest_autotune.tuners.triton.internals import compiler, kernel_layers
from pytest_autotune.tuners.triton.specialisation_text import NoText, text_of, words_of

_OF_TRITON = ("grid", "warmup")


@dataclass(frozen=True)
class _Chosen:
    """What was chosen for one key of an autotuner.

    :param options: arguments of its first call that are none of the kernel's.
    :param words: of what that was compiled for.
    """

    autotuner: weakref.ref[Any]
    entry: Entry
    config: Any
    options: Mapping[str, Any]
    words: Mapping[str, str]


class CompiledChoices:
    """What the choices of one process are compiled for.

    The first call of a key comes by the door. A later one that differs in what no key has, such as an alignment, has
    Triton compile again, and is seen there: by the autotuner that launches then, and what that is known to run with.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._chosen: dict[tuple[int, Any], _Chosen] = {}
        #: The autotuners that look for a choice: what is compiled for them meanwhile may be any candidate.
        self._choosing: set[int] = set()

    def forget(self, autotuner: Any, tuning_key: Any) -> None:
        """A choice is looked for."""
        self._chosen.pop((id(autotuner), tuning_key), None)
        self._choosing.add(id(autotuner))

    def chosen(self, call: Call, entry: Entry, config: Any, kernel: Any) -> None:
        """A choice was found, and compiled for this call.

        :param kernel: Triton's compiled kernel; None where it was not compiled, such as under the interpreter.
        """
        autotuner = call.autotuner
        self._choosing.discard(id(autotuner))
        if kernel is None:
            return
        try:
            source = compiler.source_of(kernel)
            names = {*compiler.kinds_of(source), *_OF_TRITON}
            options = {name: value for name, value in call.kwargs.items() if name not in names}
            known = _Chosen(weakref.ref(autotuner), entry, config, options, words_of(source, ()))
            self._chosen[id(autotuner), call.tuning_key] = known
            self._note(known, autotuner, source, kernel)
        except NoText:
            pass
        except Exception as error:  # the choice is there all the same
            self._session.error("triton", "what a choice was compiled for", error)

    def compiled(self, source: Any, kernel: Any) -> None:
        """Something was compiled in this process."""
        launched = [known for known in list(self._chosen.values()) if self._may_launch(known, source)]
        if launched:
            with suppress(NoText):
                words = words_of(source, ()).items()
                nearest = max(launched, key=lambda known: len(words & known.words.items()))
                self._note(nearest, nearest.autotuner(), source, kernel)

    def _may_launch(self, known: _Chosen, source: Any) -> bool:
        """Whether a choice is launched now, as far as its autotuner shows: the key of the call is not among that."""
        autotuner = known.autotuner()
        if autotuner is None or id(autotuner) in self._choosing or autotuner.nargs is None:
            return False
        return autotuner.best_config is known.config and kernel_layers.jit_function(autotuner) is source.fn

    def _note(self, known: _Chosen, autotuner: Any, source: Any, kernel: Any) -> None:
        entry, config = known.entry, known.config
        names = list(compiler.kinds_of(source))
        options = dict(known.options)
        for layer in kernel_layers.heuristics_under(autotuner):  # they may set options, too
            for name in layer.values:
                if name not in names:
                    options[name] = compiler.option_of(kernel, name)
        held = [name for name in config.kwargs if name in names]
        with suppress(NoText):
            self._session.was_compiled_for(entry, text_of(source, held, options))
