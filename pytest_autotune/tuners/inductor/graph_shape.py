"""``inductor.fusion`` and ``inductor.pad_mm``: what Inductor measures to decide on the shape of a graph.

To decide whether to fuse, it measures what fused and unfused kernels take, by
``TritonScheduling.benchmark_codegened_module``, which is replaced. Inductor keeps what that returns in files beside the
generated modules; these are neither read nor written. Whether to pad a matrix product it looks up in a cache of its
own: those functions of ``torch._inductor.fx_passes.pad_mm`` are replaced, which it calls before and after it measures.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from pytest_autotune.cache.model import Candidate, Entry, Problem, Value
from pytest_autotune.run.question import Question
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks
from pytest_autotune.tuners.inductor.identity import device_of, measured_module_digest, versions
from pytest_autotune.tuners.inductor.parts import Part
from pytest_autotune.tuners.inductor.template_key import product_settings
from pytest_autotune.tuners.inductor.templates import DIGITS
from pytest_autotune.tuners.shared.candidates import rounded_us
from pytest_autotune.tuners.shared.library import FunctionPatches
from pytest_autotune.tuners.shared.source_digest import digest


class FusionQuestion(Question):
    """Asks for the time of a fused, or unfused, kernel."""

    def offers(self, entry: Entry) -> bool:
        """Whether the entry holds a time."""
        return len(entry.candidates) == 1


class PaddingQuestion(Question):
    """Asks whether to pad a matrix product."""

    def offers(self, entry: Entry) -> bool:
        """Whether the entry holds a decision."""
        return _is_padded(entry) is not None


class Fusions(Part):
    """The part of the adapter for measurements that decide about fusion."""

    tuner = "inductor.fusion"
    module = "torch._inductor.codegen.triton"

    def __init__(self, timed: Benchmarks) -> None:
        self._timed = timed
        #: Digest of a generated module's text -> the name that the kernel would have in a graph.
        self._names: dict[str, str] = {}

    def hook(self, module: ModuleType, session: Session, patches: FunctionPatches) -> None:
        self._session, self._module = session, module
        owner = module.TritonScheduling
        measured = ["self", "mod", "n_spills_threshold", "node_names"]
        patches.replace(owner, "benchmark_codegened_module", measured, self._benchmark, and_others=True)
        base = next(cls for cls in owner.__mro__ if "generate_kernel_code_from_nodes" in vars(cls))
        generated = ["self", "nodes", "benchmark_kernel", "hint_override"]
        patches.replace(base, "generate_kernel_code_from_nodes", generated, self._generate, and_others=True)

    def _generate(self, original: Any, scheduling: Any, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        source = original(scheduling, nodes, *args, **kwargs)
        with suppress(Exception):  # it is named like all others then
            self._names[digest(source.strip())] = _name(self._module, nodes)
        return source

    def _benchmark(
        self, original: Any, scheduling: Any, mod: Any, n_spills_threshold: int = 8, *args: Any, **kwargs: Any
    ) -> Any:
        def measure(mod: Any) -> Any:
            return original(scheduling, mod, n_spills_threshold, *args, **kwargs)

        session = self._session
        source = Path(mod.__file__).read_text(encoding="utf-8")
        name = self._names.get(digest(source.strip()), "triton_fused")
        on = self._module.V.graph.get_current_device_or_throw()
        # A kernel that spills more registers counts as infinitely slow.
        key = (Value("code", measured_module_digest(f"{source}\n{n_spills_threshold = }\n"), "digest"),)
        problem = Problem(self.tuner, name, key, device_of(on.type, on.index))
        if session.is_paused or session.ignores(self.tuner, name):
            return measure(mod)
        with session.tuning(FusionQuestion(problem, label="whether to fuse", versions=versions())) as tuning:
            entry = tuning.entry or self._measure(measure, mod, tuning)
            time_us = entry.candidates[0].time_us
            return math.inf if time_us is None else time_us / 1000, mod.__file__

    def _measure(self, measure: Callable[[Any], Any], mod: Any, tuning: Tuning) -> Entry:
        with suppress(Exception):  # fails again where Inductor knows what to do about it
            if not mod.triton_.launchers:
                mod.triton_.precompile()
        # Inductor looks for an earlier measurement beside the module's file, and leaves its own there.
        with tempfile.TemporaryDirectory() as folder, self._timed.measuring(tuning):
            beside = SimpleNamespace(
                __file__=str(Path(folder) / "module.py"),
                get_args=mod.get_args,
                call=mod.call,
                triton_=mod.triton_,
            )
            time_ms = float(measure(beside)[0])
        if not math.isfinite(time_ms):
            return tuning.record(None, [Candidate(failed="did not compile, or spills registers")])
        return tuning.record(None, [Candidate(time_us=rounded_us(time_ms * 1000, DIGITS))])


def _name(module: Any, nodes: Any) -> str:
    """What the kernel would be called in a graph, without its number."""
    fused: str = module.get_fused_kernel_name(nodes, module.config.triton.descriptive_names)
    if any(node.is_template() for node in nodes):
        return f"triton_tem_{fused}"
    reduces = any(node.is_reduction() for node in nodes)
    return f"triton_red_{fused}" if reduces else f"triton_poi_{fused}"


@dataclass
class _Decision:
    """One decision that is being made, innermost last."""

    op: str
    device: Any
    sizes: str
    held: ExitStack
    tuning: Tuning | None = None


class Paddings(Part):
    """The part of the adapter for the padding of matrix products."""

    tuner = "inductor.pad_mm"
    module = "torch._inductor.fx_passes.pad_mm"

    def __init__(self, timed: Benchmarks) -> None:
        self._timed = timed
        self._open: list[_Decision] = []
        #: Times of products without padding, which Inductor measures once for several decisions.
        self._base_times_ms: dict[str, float] = {}

    def hook(self, module: ModuleType, session: Session, patches: FunctionPatches) -> None:
        self._session, self._module = session, module
        patches.replace(module, "should_pad", ["match", "mat1", "mat2", "op", "input"], self._should_pad)
        patches.replace(module, "get_cached_should_pad", ["key"], self._get)
        patches.replace(module, "set_cached_should_pad", ["key", "value"], self._set)
        patches.replace(module, "get_cached_base_mm_benchmark_time", ["key"], self._get_base)
        patches.replace(module, "set_cached_base_mm_benchmark_time", ["key", "value"], self._set_base)

    def _should_pad(self, original: Any, match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None) -> Any:
        session = self._session
        if session.is_paused or session.ignores(self.tuner, str(op)):
            return original(match, mat1, mat2, op, input)
        with ExitStack() as held:
            self._open.append(_Decision(str(op), mat1.device, _measured_sizes(mat1, mat2, input), held))
            held.callback(self._open.pop)
            return original(match, mat1, mat2, op, input)

    def _get_base(self, original: Any, key: str) -> Any:
        return self._base_times_ms.get(key) if self._open else original(key)

    def _set_base(self, original: Any, key: str, value: float) -> Any:
        return self._base_times_ms.update({key: value}) if self._open else original(key, value)

    def _get(self, original: Any, key: str) -> Any:
        """Stand in for Inductor's cache of decisions."""
        if not self._open:
            return original(key)
        session, decision, torch = self._session, self._open[-1], self._module.torch
        if torch._inductor.config.deterministic:  # Inductor does not measure then
            return None
        on = device_of(decision.device.type, decision.device.index)
        beside = {"sizes": decision.sizes, "settings": ", ".join(product_settings(torch))}
        others = [Value(name, text, "settings" if name == "settings" else "") for name, text in beside.items() if text]
        problem = Problem(self.tuner, decision.op, (Value("inputs", key), *others), on)
        asked = session.tuning(PaddingQuestion(problem, label="whether to pad", versions=versions()))
        tuning = decision.held.enter_context(asked)
        if tuning.entry is not None:
            return _is_padded(tuning.entry)
        decision.tuning = tuning
        decision.held.enter_context(self._timed.measuring(tuning))
        return None

    def _set(self, original: Any, key: str, value: bool) -> Any:
        if not self._open:
            return original(key, value)
        if (tuning := self._open[-1].tuning) is not None:
            # It shapes the rest of the graph, so it is kept like the times: always as measured last.
            tuning.record(None, [Candidate(params=(Value("pad", bool(value)),))])
        return None


def _measured_sizes(*operands: Any) -> str:
    """The sizes that are measured where Inductor's own key has symbols for some; else nothing."""
    shapes = [list(getattr(operand, "shape", ())) for operand in operands if operand is not None]
    if all(isinstance(size, int) for shape in shapes for size in shape):
        return ""
    hints = [
        [size if isinstance(size, int) else getattr(size.node, "hint", None) for size in shape] for shape in shapes
    ]
    return ", ".join(map(str, hints))


def _is_padded(entry: Entry) -> bool | None:
    values = [value.value for candidate in entry.candidates for value in candidate.params if value.name == "pad"]
    return values[0] if len(values) == 1 and isinstance(values[0], bool) else None
