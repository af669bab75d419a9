"""``inductor.fusion`` and ``inductor.pad_mm``: measurements that decide on the shape of a graph.

Inductor decides whether to fuse kernels by the times of the fused and the unfused kernels, which
``TritonScheduling.benchmark_codegened_module`` measures. Inductor decides whether to pad the operands of a matrix
product in ``torch._inductor.fx_passes.pad_mm``. The parts replace these functions. Inductor's files with earlier times
are neither read nor written.
"""

from __future__ import annotations

import math
import tempfile
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
from pytest_autotune.tuners.inductor.parts import Part, find_definer
from pytest_autotune.tuners.inductor.template_key import product_settings
from pytest_autotune.tuners.inductor.templates import EXACT_DIGITS
from pytest_autotune.tuners.shared.candidates import rounded_us
from pytest_autotune.tuners.shared.library import FunctionPatches
from pytest_autotune.tuners.shared.source_digest import digest

#: The name of a kernel whose nodes in the graph are unknown.
_UNKNOWN_KERNEL = "triton_fused"


# Fusion.


class FusionQuestion(Question):
    """Asks for the time of a fused, or unfused, kernel."""

    def offers(self, entry: Entry) -> bool:
        """Whether the entry holds a time."""
        return len(entry.candidates) == 1


@dataclass(frozen=True)
class FusionMeasurement:
    """A call of ``benchmark_codegened_module`` by Inductor.

    :param original: Inductor's own method.
    :param module: the generated module, which Inductor made only to measure it.
    :param spill_threshold: a kernel that spills more registers counts as infinitely slow.
    :param args: the arguments after these; ``kwargs`` as well.
    """

    original: Any
    scheduling: Any
    module: Any
    spill_threshold: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Let Inductor measure the module, or read an earlier time from the file beside the module."""
        return self.original(self.scheduling, self.module, self.spill_threshold, *self.args, **self.kwargs)

    def measure_ms(self) -> float:
        """Let Inductor measure the module."""
        with tempfile.TemporaryDirectory() as folder:
            # Inductor looks for a file with the time beside the module, and leaves one there.
            copy = SimpleNamespace(
                __file__=str(Path(folder) / "module.py"),
                get_args=self.module.get_args,
                call=self.module.call,
                triton_=self.module.triton_,
            )
            result = self.original(self.scheduling, copy, self.spill_threshold, *self.args, **self.kwargs)
        time_ms = result[0]  # the path of the module follows
        return float(time_ms)

    def load(self) -> None:
        """Compile and load the module's kernel. Inductor handles errors when it measures."""
        with suppress(Exception):
            if not self.module.triton_.launchers:
                self.module.triton_.precompile()


class Fusions(Part):
    """The part of the adapter for measurements that decide about fusion."""

    tuner = "inductor.fusion"
    module = "torch._inductor.codegen.triton"

    def __init__(self, benchmarks: Benchmarks) -> None:
        self._benchmarks = benchmarks
        #: By the digest of a generated module: the name that its kernel would have in a graph.
        self._kernel_names: dict[str, str] = {}

    def hook(self, module: ModuleType, session: Session, patches: FunctionPatches) -> None:
        self._session, self._module = session, module
        scheduling = module.TritonScheduling
        parameters = ["self", "mod", "n_spills_threshold", "node_names"]
        patches.replace(scheduling, "benchmark_codegened_module", parameters, self._benchmark, and_others=True)
        owner = find_definer(scheduling, "generate_kernel_code_from_nodes")
        parameters = ["self", "nodes", "benchmark_kernel", "hint_override"]
        patches.replace(owner, "generate_kernel_code_from_nodes", parameters, self._generate, and_others=True)

    def _generate(self, original: Any, scheduling: Any, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        """Note the name of a generated kernel, after ``generate_kernel_code_from_nodes``."""
        source = original(scheduling, nodes, *args, **kwargs)
        with suppress(Exception):  # the kernel then has the name of an unknown kernel
            self._kernel_names[digest(source.strip())] = _kernel_name_in_graph(self._module, nodes)
        return source

    def _benchmark(
        self, original: Any, scheduling: Any, mod: Any, n_spills_threshold: int = 8, *args: Any, **kwargs: Any
    ) -> Any:
        """Return the time of a module and the module's path, in place of ``benchmark_codegened_module``."""
        measurement = FusionMeasurement(original, scheduling, mod, n_spills_threshold, args, kwargs)
        source = Path(mod.__file__).read_text(encoding="utf-8")
        kernel_name = self._kernel_names.get(digest(source.strip()), _UNKNOWN_KERNEL)
        if self._session.is_paused or self._session.ignores(self.tuner, kernel_name):
            return measurement.run()
        code = measured_module_digest(f"{source}\n{n_spills_threshold = }\n")
        torch_device = self._module.V.graph.get_current_device_or_throw()
        device = device_of(torch_device.type, torch_device.index)
        problem = Problem(self.tuner, kernel_name, (Value("code", code, "digest"),), device)
        with self._session.tuning(FusionQuestion(problem, label="whether to fuse", versions=versions())) as tuning:
            entry = tuning.entry or self._measure(measurement, tuning)
            time_us = entry.candidates[0].time_us
        if time_us is None:
            return math.inf, mod.__file__
        return time_us / 1000, mod.__file__

    def _measure(self, measurement: FusionMeasurement, tuning: Tuning) -> Entry:
        measurement.load()
        with self._benchmarks.measuring(tuning):
            time_ms = measurement.measure_ms()
        if not math.isfinite(time_ms):
            return tuning.record(None, [Candidate(failed="did not compile, or spills registers")])
        return tuning.record(None, [Candidate(time_us=rounded_us(time_ms * 1000, EXACT_DIGITS))])


def _kernel_name_in_graph(module: Any, nodes: Any) -> str:
    """Return the name that a kernel of these nodes would have in a graph, without its number.

    :param module: Inductor's module that generates Triton code.
    """
    fused: str = module.get_fused_kernel_name(nodes, module.config.triton.descriptive_names)
    if any(node.is_template() for node in nodes):
        return f"triton_tem_{fused}"
    if any(node.is_reduction() for node in nodes):
        return f"triton_red_{fused}"
    return f"triton_poi_{fused}"


# Padding.


class PaddingQuestion(Question):
    """Asks whether to pad a matrix product."""

    def offers(self, entry: Entry) -> bool:
        """Whether the entry holds a decision."""
        return _find_decision(entry) is not None


@dataclass
class PaddingDecision:
    """A decision about a matrix product, which Inductor makes now.

    :param op: for example ``"aten.mm"``.
    :param device: the device of the operands, as torch has it.
    :param sizes: the measured sizes; empty if Inductor's key has them.
    :param contexts: everything that ends with the decision.
    :param tuning: the search, if Inductor measures.
    """

    op: str
    device: Any
    sizes: str
    contexts: ExitStack
    tuning: Tuning | None = None


class Paddings(Part):
    """The part of the adapter for the padding of matrix products.

    Inductor calls ``should_pad``, which asks Inductor's cache for the decision. If there is none, Inductor measures and
    writes the decision to its cache. The part stands in for that cache.
    """

    tuner = "inductor.pad_mm"
    module = "torch._inductor.fx_passes.pad_mm"

    def __init__(self, benchmarks: Benchmarks) -> None:
        self._benchmarks = benchmarks
        #: The decisions that Inductor makes now. Each began inside the decision before it.
        self._decisions: list[PaddingDecision] = []
        #: Times of products without padding. Inductor measures such a time once for several decisions.
        self._unpadded_times_ms: dict[str, float] = {}

    def hook(self, module: ModuleType, session: Session, patches: FunctionPatches) -> None:
        self._session, self._module = session, module
        patches.replace(module, "should_pad", ["match", "mat1", "mat2", "op", "input"], self._should_pad)
        patches.replace(module, "get_cached_should_pad", ["key"], self._find_decision)
        patches.replace(module, "set_cached_should_pad", ["key", "value"], self._record_decision)
        patches.replace(module, "get_cached_base_mm_benchmark_time", ["key"], self._find_unpadded_time)
        patches.replace(module, "set_cached_base_mm_benchmark_time", ["key", "value"], self._note_unpadded_time)

    def _should_pad(self, original: Any, match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None) -> Any:
        """Note the decision that Inductor makes, around ``should_pad``."""
        session = self._session
        if session.is_paused or session.ignores(self.tuner, str(op)):
            return original(match, mat1, mat2, op, input)
        with ExitStack() as contexts:
            sizes = _measured_sizes_text(mat1, mat2, input)
            self._decisions.append(PaddingDecision(str(op), mat1.device, sizes, contexts))
            contexts.callback(self._decisions.pop)
            return original(match, mat1, mat2, op, input)

    def _find_decision(self, original: Any, key: str) -> Any:
        """Return the loaded decision, in place of ``get_cached_should_pad``; None has Inductor measure.

        :param key: Inductor's own key.
        """
        if not self._decisions:
            return original(key)
        if self._module.torch._inductor.config.deterministic:  # Inductor then decides without a measurement
            return None
        decision = self._decisions[-1]
        question = PaddingQuestion(self._build_problem(decision, key), label="whether to pad", versions=versions())
        tuning = decision.contexts.enter_context(self._session.tuning(question))
        if tuning.entry is not None:
            return _find_decision(tuning.entry)
        decision.tuning = tuning
        decision.contexts.enter_context(self._benchmarks.measuring(tuning))
        return None

    def _record_decision(self, original: Any, key: str, value: bool) -> Any:
        """Record a measured decision, in place of ``set_cached_should_pad``."""
        if not self._decisions:
            return original(key, value)
        tuning = self._decisions[-1].tuning
        if tuning is not None:
            # A candidate without a choice, like times: a dump always keeps the last measurement. The decision shapes
            # the rest of the graph.
            tuning.record(None, [Candidate(params=(Value("pad", bool(value)),))])
        return None

    def _find_unpadded_time(self, original: Any, key: str) -> Any:
        """Return a time of this run, in place of ``get_cached_base_mm_benchmark_time``."""
        if not self._decisions:
            return original(key)
        return self._unpadded_times_ms.get(key)

    def _note_unpadded_time(self, original: Any, key: str, value: float) -> Any:
        """Note a time of this run, in place of ``set_cached_base_mm_benchmark_time``."""
        if not self._decisions:
            return original(key, value)
        self._unpadded_times_ms[key] = value
        return None

    def _build_problem(self, decision: PaddingDecision, key: str) -> Problem:
        values = [Value("inputs", key)]
        if decision.sizes:
            values.append(Value("sizes", decision.sizes))
        settings = ", ".join(product_settings(self._module.torch))
        if settings:
            values.append(Value("settings", settings, "settings"))
        return Problem(self.tuner, decision.op, tuple(values), device_of(decision.device.type, decision.device.index))


def _measured_sizes_text(*operands: Any) -> str:
    """Return the sizes that Inductor measures; an empty text if its key has all of them.

    If a size is symbolic, Inductor's key has its symbol, and Inductor measures the size of the first call.
    """
    texts = []
    has_symbols = False
    for operand in operands:
        if operand is None:
            continue
        measured: list[Any] = []
        for size in getattr(operand, "shape", ()):
            if isinstance(size, int):
                measured.append(size)
            else:
                has_symbols = True
                measured.append(getattr(size.node, "hint", None))
        texts.append(str(measured))
    if not has_symbols:
        return ""
    return ", ".join(texts)


def _find_decision(entry: Entry) -> bool | None:
    """Return the decision that an entry holds; None if it holds something else."""
    values = []
    for candidate in entry.candidates:
        values += [value.value for value in candidate.params if value.name == "pad"]
    if len(values) == 1 and isinstance(values[0], bool):
        return values[0]
    return None
