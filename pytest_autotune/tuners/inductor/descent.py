"""Coordinate descent: the neighbours of a configuration are compiled side by side, and race against it.

From the best of a kernel's list Inductor goes on by changing one field at a time: it compiles a neighbour, measures
it, and goes on to the next. Which ones it tries, in which order and what counts as better stays Inductor's own: a copy
of its tuner for which nothing is better says what it would try from here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_autotune.tuners.inductor.configurations import Params, params_of
from pytest_autotune.tuners.shared.candidates import clear_tracebacks

_IN_ALL_DIRECTIONS = "coordinate_descent_check_all_directions"


class Descent:
    """The descent of one kernel.

    :param launcher: where it begins.
    :param compile: compiles several configurations; what fails, or is better compiled at its turn, is None.
    :param race: the times of launchers in milliseconds, of those that were raced against the first one, whose time
        is given.
    """

    def __init__(
        self,
        autotuner: Any,
        launcher: Any,
        compile: Callable[[Sequence[Any]], Sequence[Any]],
        race: Callable[[Sequence[Any], float], Mapping[Any, float]],
    ) -> None:
        self._tuner = autotuner.coordesc_tuner
        self._compile = compile
        self._race = race
        self._launchers: dict[Params, Any] = {params_of(launcher.config): launcher}
        self._failed: dict[Params, Exception] = {}
        self._best: Params = ()
        self._looked_everywhere = False
        #: What a race has found, in milliseconds.
        self.raced_ms: dict[Any, float] = {}

    def looks_at(self, candidate: Any, best: Any, best_ms: float) -> None:
        """Inductor is about to compare a candidate with the best so far: make those ready that it tries from there."""
        if params_of(best) != self._best:
            self._best, self._looked_everywhere = params_of(best), False
            self._make_ready(would_try(self._tuner, best, best_ms), best_ms)
        elif not self._looked_everywhere and not self._is_known(candidate):
            self._looked_everywhere = True
            self._make_ready(would_try(self._tuner, best, best_ms, in_all_directions=True), best_ms)

    def compiled(self, config: Any) -> Any:
        """What stands for the compiled configuration; None where it is not ready."""
        params = params_of(config)
        launcher, failed = self._launchers.get(params), self._failed.get(params)
        return None if launcher is None and failed is None else _Compiled(config, launcher, failed)

    def forget_frames(self) -> None:
        """Let go of where errors were raised, once Inductor has passed over them: frames there hold the call's tensors.

        Inductor asks for what failed again, so the frames lead back to the error.
        """
        for error in self._failed.values():
            clear_tracebacks(error)

    def _is_known(self, config: Any) -> bool:
        params = params_of(config)
        measured = self._tuner.lookup_in_cache(config) is not None
        return measured or params in self._launchers or params in self._failed

    def _make_ready(self, configs: Sequence[Any], best_ms: float) -> None:
        wanted = {params_of(one): one for one in configs if self._tuner.lookup_in_cache(one) is None}
        new = {params: one for params, one in wanted.items() if not self._is_known(one)}
        for params, result in zip(new, self._compile(list(new.values())), strict=True):
            if result is not None:
                try:
                    self._launchers[params] = result.make_launcher()
                except Exception as error:  # it needs more than the device has
                    self._failed[params] = error
        best = self._launchers.get(self._best)
        others = [self._launchers[params] for params in wanted if params in self._launchers]
        if best is not None and others and math.isfinite(best_ms):
            self.raced_ms.update(self._race([best, *others], best_ms))


class _Compiled:
    """Stands for a compiled configuration whose launcher is there."""

    def __init__(self, config: Any, launcher: Any, failed: Exception | None) -> None:
        self._config, self._launcher, self._failed = config, launcher, failed

    def make_launcher(self) -> Any:
        if self._failed is not None:
            raise self._failed
        self._launcher.config = self._config  # Inductor marks its own object as found by descent
        return self._launcher


def would_try(tuner: Any, best: Any, best_ms: float, *, in_all_directions: bool = False) -> list[Any]:
    """The configurations that Inductor's tuner would compare with the best, in order, if none were better."""
    tried: list[Any] = []

    def compare(func: Any, candidate: Any, best: Any, best_ms: float) -> tuple[bool, float]:
        tried.append(candidate)
        return False, math.inf

    asked = copy.copy(tuner)
    asked.compare_config = compare
    if in_all_directions:
        asked.check_all_tuning_directions(None, best, best_ms)
    else:
        asked.inductor_meta = {**tuner.inductor_meta, _IN_ALL_DIRECTIONS: False}
        asked.autotune(None, best, best_ms)
    return tried
