"""``inductor.pad_mm``: whether a matrix product gets faster when its operands are padded.

The functions of ``torch._inductor.fx_passes.pad_mm`` that ask Inductor's own cache,
and write to it, are replaced; Inductor calls them before and after it measures.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from pytest_autotune.cache.model import Candidate, Entry, Problem, Value
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks
from pytest_autotune.tuners.inductor.hooking import Part, Patches
from pytest_autotune.tuners.inductor.identity import device_of, versions
from pytest_autotune.tuners.inductor.template_key import product_settings
from pytest_autotune.tuners.shared.candidates import rounded_us


@dataclass
class _Decision:
    """One decision that is being made, innermost last."""

    op: str
    device: Any
    sizes: str
    held: ExitStack
    tuning: Tuning | None = None
    times_ms: dict[bool, float] = field(default_factory=dict)


class Paddings(Part):
    """The part of the adapter for the padding of matrix products."""

    tuner = "inductor.pad_mm"
    module = "torch._inductor.fx_passes.pad_mm"

    def __init__(self, timed: Benchmarks) -> None:
        self._timed = timed
        self._open: list[_Decision] = []
        #: Times of products without padding, which Inductor measures once for several decisions.
        self._base_times_ms: dict[str, float] = {}
        self._torch: Any = None

    def hook(self, module: ModuleType, session: Session, patches: Patches) -> None:
        """See :class:`~pytest_autotune.tuners.inductor.hooking.Part`."""
        self._session = session
        self._torch = module.torch
        times = ["key", "ori_time", "pad_time"]
        patches.replace(module, "should_pad", ["match", "mat1", "mat2", "op", "input"], self._should_pad)
        patches.replace(module, "get_cached_should_pad", ["key"], self._get)
        patches.replace(module, "set_cached_should_pad", ["key", "value"], self._set)
        patches.replace(module, "get_cached_base_mm_benchmark_time", ["key"], self._get_base)
        patches.replace(module, "set_cached_base_mm_benchmark_time", ["key", "value"], self._set_base)
        patches.replace(module, "is_padded_faster", times, self._is_padded_faster)

    def _should_pad(self, original: Any, match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None) -> Any:
        session = self._session
        if session.paused or session.ignores(self.tuner, str(op)):
            return original(match, mat1, mat2, op, input)
        with ExitStack() as held:
            self._open.append(_Decision(str(op), mat1.device, _measured_sizes(mat1, mat2, input), held))
            held.callback(self._open.pop)
            return original(match, mat1, mat2, op, input)

    def _get(self, original: Any, key: str) -> Any:
        return self._look_up(self._open[-1], key) if self._open else original(key)

    def _set(self, original: Any, key: str, value: bool) -> Any:
        return self._record(self._open[-1], value) if self._open else original(key, value)

    def _get_base(self, original: Any, key: str) -> Any:
        return self._base_times_ms.get(key) if self._open else original(key)

    def _set_base(self, original: Any, key: str, value: float) -> Any:
        return self._base_times_ms.update({key: value}) if self._open else original(key, value)

    def _is_padded_faster(self, original: Any, key: str, ori_time: float, pad_time: float) -> Any:
        if self._open:
            self._open[-1].times_ms = {False: ori_time, True: pad_time}
        return original(key, ori_time, pad_time)

    def _look_up(self, decision: _Decision, key: str) -> bool | None:
        session = self._session
        if self._torch._inductor.config.deterministic:  # Inductor does not measure then
            return None
        on = device_of(decision.device.type, decision.device.index)
        beside = {"sizes": decision.sizes, "settings": ", ".join(product_settings(self._torch))}
        others = [Value(name, text, "settings" if name == "settings" else "") for name, text in beside.items() if text]
        problem = Problem(self.tuner, decision.op, (Value("inputs", key), *others), on)
        tuning = decision.held.enter_context(session.tuning(problem, (), _has_result, versions(), "whether to pad"))
        if tuning.entry is not None:
            return _is_padded(tuning.entry)
        decision.tuning = tuning
        decision.held.enter_context(self._timed.during(tuning))
        return None

    def _record(self, decision: _Decision, padded: bool) -> None:
        if decision.tuning is not None:
            time_ms = decision.times_ms.get(padded)
            time_us = None if time_ms is None else rounded_us(time_ms * 1000)
            # It shapes the rest of the graph, so it is kept like the times: always as measured last.
            decision.tuning.record(None, [Candidate(params=(Value("pad", bool(padded)),), time_us=time_us)])


def _measured_sizes(*operands: Any) -> str:
    """The sizes that are measured where Inductor's own key has symbols for some; else nothing."""
    shapes = [list(getattr(operand, "shape", ())) for operand in operands if operand is not None]
    if all(isinstance(size, int) for shape in shapes for size in shape):
        return ""
    hints = [
        [size if isinstance(size, int) else getattr(size.node, "hint", None) for size in shape] for shape in shapes
    ]
    return ", ".join(map(str, hints))


def _has_result(entry: Entry) -> bool:
    return _is_padded(entry) is not None


def _is_padded(entry: Entry) -> bool | None:
    values = [value.value for candidate in entry.candidates for value in candidate.params if value.name == "pad"]
    return values[0] if len(values) == 1 and isinstance(values[0], bool) else None
