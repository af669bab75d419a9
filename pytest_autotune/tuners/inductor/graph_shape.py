"""``inductor.fusion`` and ``inductor.pad_mm``: measurements that decide on the shape of a graph.

- Fusion: Inductor compares the time of a fused kernel with the times of the unfused kernels. Its function
  ``TritonScheduling.benchmark_codegened_module`` measures one kernel. An entry has the time of one kernel.
- Padding: Inductor compares a matrix product with and without padded operands, in the module
  ``torch._inductor.fx_passes.pad_mm``. An entry has the decision whether to pad one product.

The parts of the adapter replace these functions. They also keep Inductor from reading and writing its own files with
times of earlier runs, because a time from such a file would come from no lookup.
"""

from __future__ import annotations

import inspect
import math
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from pytest_autotune.cache.model import Candidate, Entry, Problem, Value
from pytest_autotune.cache.wording import rounded_us
from pytest_autotune.run.lookup import Question
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.inductor.benchmarks import EXACT_DIGITS, Benchmarks
from pytest_autotune.tuners.inductor.identity import device_of, list_triton_settings, measured_module_digest, versions
from pytest_autotune.tuners.inductor.template_key import product_settings
from pytest_autotune.tuners.shared.patches import CallHook, CallInstead, CallResult, HookedCall, Patches, find_definer
from pytest_autotune.tuners.source.source_digest import digest

FUSION = "inductor.fusion"
PADDING = "inductor.pad_mm"
#: The name of a kernel whose nodes in the graph are unknown.
_UNKNOWN_KERNEL = "triton_fused"
#: Inductor pads a product if its time is more than this number times that of the padded product.
_DEFAULT_PADDING_MULTIPLIER = 1.1


# Fusion.


class FusionQuestion(Question):
    """Asks for the time of a single kernel, which is fused or unfused."""

    def offers(self, entry: Entry) -> bool:
        """Whether the entry holds a time."""
        return len(entry.candidates) == 1


class Fusions:
    """The part of the adapter for measurements that decide about fusion."""

    tuner = FUSION
    module = "torch._inductor.codegen.triton"

    def __init__(self, benchmarks: Benchmarks) -> None:
        self._benchmarks = benchmarks

    def hook(self, module: ModuleType, session: Session, patches: Patches) -> None:
        scheduling = module.TritonScheduling
        names = KernelNameHook(module)
        times = FusionHook(session, self._benchmarks, module, names)
        parameters = ["self", "mod", "n_spills_threshold", "node_names"]
        patches.replace(scheduling, "benchmark_codegened_module", parameters, times, allow_more_parameters=True)
        owner = find_definer(scheduling, "generate_kernel_code_from_nodes", "torch")
        parameters = ["self", "nodes", "benchmark_kernel", "hint_override"]
        patches.replace(owner, "generate_kernel_code_from_nodes", parameters, names, allow_more_parameters=True)


class KernelNameHook(CallHook):
    """Notes the names of kernels, after ``generate_kernel_code_from_nodes``.

    The code that Inductor generates to measure a kernel has no name, only a placeholder. The hook computes the name
    from the nodes of the graph, so that an entry has the name of its kernel.

    :param module: Inductor's module that generates Triton code.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        #: By the digest of a generated module: the name that its kernel would have in a graph.
        self._names: dict[str, str] = {}

    def note(self, call: HookedCall, result: Any) -> None:
        """Note the name of the kernel in a generated module."""
        # After an error, the kernel has the name of an unknown kernel.
        with suppress(Exception):
            name = _kernel_name_in_graph(self._module, call.arguments["nodes"])
            self._names[digest(result.strip())] = name

    def find_name(self, source: str) -> str:
        """Return the name of the kernel in a generated module."""
        return self._names.get(digest(source.strip()), _UNKNOWN_KERNEL)


@dataclass(frozen=True)
class FusionMeasurement:
    """A measurement that Inductor makes after the hook was asked.

    :param path: the path of the measured module.
    """

    tuning: Tuning
    path: str


class FusionHook(CallHook):
    """Finds the time of a kernel that Inductor made only to measure it, in place of ``benchmark_codegened_module``.

    :param module: Inductor's module that generates Triton code.
    :param names: has the names of the generated kernels.
    """

    def __init__(self, session: Session, benchmarks: Benchmarks, module: Any, names: KernelNameHook) -> None:
        self._session = session
        self._benchmarks = benchmarks
        self._module = module
        self._names = names

    def ask(self, call: HookedCall) -> CallResult | CallInstead | None:
        """Return the time of the entry, or have Inductor measure the kernel."""
        kernel_module = call.arguments["mod"]
        source = Path(kernel_module.__file__).read_text(encoding="utf-8")
        kernel_name = self._names.find_name(source)
        if self._session.leaves_alone(FUSION, kernel_name):
            return None
        problem = self._build_problem(kernel_name, source, call.arguments["n_spills_threshold"])
        question = FusionQuestion(problem, label="whether to fuse", versions=versions())
        tuning = call.enter(self._session.tuning(question))
        if tuning.entry is not None:
            return _build_result(tuning.entry, kernel_module.__file__)
        # The kernel is compiled before the measurement takes the device. Inductor handles an error when it measures.
        with suppress(Exception):
            if not kernel_module.triton_.launchers:
                kernel_module.triton_.precompile()
        # Inductor reads the time from a file beside the module, if there is such a file, and else writes the file. In
        # an empty folder it finds no file, and the folder is removed after the call.
        empty_folder = call.enter(tempfile.TemporaryDirectory())
        call.enter(self._benchmarks.measuring(tuning))
        call.state = FusionMeasurement(tuning, kernel_module.__file__)
        return call.with_arguments(mod=_build_stand_in(kernel_module, empty_folder))

    def _build_problem(self, kernel_name: str, source: str, n_spills_threshold: object) -> Problem:
        """Return the problem of one kernel.

        :param source: the source of the module with the kernel.
        :param n_spills_threshold: a kernel that spills more registers than this number counts as infinitely slow.
        """
        code = measured_module_digest(f"{source}\n{n_spills_threshold = }\n")
        values = [Value("code", code, "digest")]
        settings = ", ".join(list_triton_settings())
        if settings:
            values.append(Value("settings", settings, "settings"))
        torch_device = self._module.V.graph.get_current_device_or_throw()
        device = device_of(torch_device.type, torch_device.index)
        return Problem(FUSION, kernel_name, tuple(values), device)

    def note(self, call: HookedCall, result: Any) -> CallResult | None:
        """Record the time that Inductor measured, and return the recorded time."""
        measurement = call.state
        if not isinstance(measurement, FusionMeasurement):
            return None
        time_ms = float(result[0])  # the path of the module follows
        if math.isfinite(time_ms):
            candidate = Candidate(time_us=rounded_us(time_ms * 1000, EXACT_DIGITS))
        else:
            candidate = Candidate(failed="did not compile, or spills registers")
        # A load will give Inductor the rounded time, so this run gives it the rounded time, too.
        entry = measurement.tuning.record(choice=None, candidates=[candidate])
        return _build_result(entry, measurement.path)


def _build_stand_in(kernel_module: Any, folder: str) -> SimpleNamespace:
    """Return a stand-in for a module, whose file is in a folder. It has all that Inductor's benchmark uses."""
    return SimpleNamespace(
        __file__=str(Path(folder) / "module.py"),
        get_args=kernel_module.get_args,
        call=kernel_module.call,
        triton_=kernel_module.triton_,
    )


def _build_result(entry: Entry, path: str) -> CallResult:
    """Return the result of ``benchmark_codegened_module``: the entry's time in milliseconds, and the module's path."""
    time_us = entry.candidates[0].time_us
    if time_us is None:
        return CallResult((math.inf, path))
    return CallResult((time_us / 1000, path))


def _kernel_name_in_graph(module: Any, nodes: Any) -> str:
    """Return the name that a kernel of these nodes would have in a graph, without its number.

    Examples: ``triton_poi_fused_add_relu``, ``triton_red_fused_sum``, ``triton_tem_fused_mm``.

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
    """A decision that Inductor makes now: whether to pad the operands of a matrix product.

    :param call: the call of ``should_pad``. The contexts of the decision, such as its tuning, end with the call.
    :param op: for example ``"aten.mm"``.
    :param device: the device of the operands, a ``torch.device``.
    :param sizes: the measured sizes; empty if Inductor's key has all sizes.
    :param tuning: the search; None if Inductor does not measure, or does not measure yet.
    """

    call: HookedCall
    op: str
    device: Any
    sizes: str
    tuning: Tuning | None = None


class _ThreadDecisions(threading.local):
    """The decisions of one thread. Each decision ends in the thread in which it began."""

    def __init__(self) -> None:
        #: The decisions that Inductor makes now. Each began inside the decision before it.
        self.decisions: list[PaddingDecision] = []


class Paddings:
    """The part of the adapter for the padding of matrix products.

    Inductor calls ``should_pad``, and this function calls Inductor's cache in up to four steps. The hooks of this part
    answer in place of the cache:

    1. ``get_cached_should_pad`` returns the decision. If it returns None, the function measures.
    2. ``get_cached_base_mm_benchmark_time`` returns the time of the product without padding, if it is known.
    3. ``set_cached_base_mm_benchmark_time`` keeps this time.
    4. ``set_cached_should_pad`` keeps the decision.

    Newer versions of torch make these steps in ``_should_pad``, which ``should_pad`` calls under a memoizer.
    """

    tuner = PADDING
    module = "torch._inductor.fx_passes.pad_mm"

    def __init__(self, benchmarks: Benchmarks) -> None:
        self.benchmarks = benchmarks
        self._thread = _ThreadDecisions()
        #: Times of products without padding. Several decisions use the same time. The key is a problem with Inductor's
        #: key of the time, so a time counts only for the settings and the device with which it was measured.
        self.unpadded_times_ms: dict[Problem, float] = {}

    def hook(self, module: ModuleType, session: Session, patches: Patches) -> None:
        patches.replace(module, "should_pad", ["match", "mat1", "mat2", "op", "input"], PaddingHook(self, session))
        # An older torch that lacks this function has no memoizer.
        if hasattr(module, "_should_pad"):
            patches.replace(module, "_should_pad", ["match", "mat1", "mat2", "op", "input"], MemoizerHook(self))
        patches.replace(module, "get_cached_should_pad", ["key"], FindDecisionHook(self, session, module))
        patches.replace(module, "set_cached_should_pad", ["key", "value"], RecordDecisionHook(self))
        patches.replace(module, "get_cached_base_mm_benchmark_time", ["key"], FindTimeHook(self, module))
        patches.replace(module, "set_cached_base_mm_benchmark_time", ["key", "value"], NoteTimeHook(self, module))

    @contextmanager
    def deciding(self, decision: PaddingDecision) -> Iterator[None]:
        """Answer the questions to Inductor's cache, for a decision that Inductor makes inside."""
        self._thread.decisions.append(decision)
        try:
            yield
        finally:
            self._thread.decisions.pop()

    @property
    def decision(self) -> PaddingDecision | None:
        """The decision that Inductor makes in this thread.

        None if Inductor makes no decision now, or if the plugin does not act on the decision.
        """
        if not self._thread.decisions:
            return None
        return self._thread.decisions[-1]


class PaddingHook(CallHook):
    """Notes the decision that Inductor makes, around ``should_pad``."""

    def __init__(self, paddings: Paddings, session: Session) -> None:
        self._paddings = paddings
        self._session = session

    def ask(self, call: HookedCall) -> None:
        """Begin the decision."""
        arguments = call.arguments
        op = str(arguments["op"])
        if self._session.leaves_alone(PADDING, op):
            return
        sizes = _measured_sizes_text(arguments["mat1"], arguments["mat2"], arguments["input"])
        call.enter(self._paddings.deciding(PaddingDecision(call, op, arguments["mat1"].device, sizes)))


class MemoizerHook(CallHook):
    """Calls ``_should_pad`` without torch's memoizer, which answers from the files of earlier runs.

    With ``TORCHINDUCTOR_ENABLE_CACHING_MODULE=1``, the memoizer wraps the function. Its answer would come from no
    lookup, and its key has no device and few settings.
    """

    def __init__(self, paddings: Paddings) -> None:
        self._paddings = paddings

    def ask(self, call: HookedCall) -> CallInstead | None:
        """Have the function inside the memoizer called, if the plugin acts on the decision."""
        if self._paddings.decision is None:
            return None
        return CallInstead(inspect.unwrap(call.original), kwargs=call.arguments)


class FindDecisionHook(CallHook):
    """Returns the loaded decision, in place of ``get_cached_should_pad``.

    :param module: Inductor's module ``pad_mm``.
    """

    def __init__(self, paddings: Paddings, session: Session, module: Any) -> None:
        self._paddings = paddings
        self._session = session
        self._module = module

    def ask(self, call: HookedCall) -> CallResult | None:
        """Look up the decision.

        :returns:
            - ``CallResult(decision)`` on a hit.
            - ``CallResult(None)`` if Inductor's cache shall seem empty. Inductor then decides by itself.
            - None outside of a decision. The call then reaches Inductor's own cache.
        """
        decision = self._paddings.decision
        if decision is None:
            return None
        # Inductor decides without a measurement, so there is nothing to record or load.
        if self._module.torch._inductor.config.deterministic:
            return CallResult(None)
        problem = _build_padding_problem(self._module.torch, decision, call.arguments["key"])
        question = PaddingQuestion(problem, label="whether to pad", versions=versions())
        tuning = decision.call.enter(self._session.tuning(question))
        if tuning.entry is not None:
            return CallResult(_find_decision(tuning.entry))
        # Inductor now measures, still inside `should_pad`. The decision's call ends the tuning and the measuring.
        decision.tuning = tuning
        decision.call.enter(self._paddings.benchmarks.measuring(tuning))
        return CallResult(None)


class RecordDecisionHook(CallHook):
    """Records a measured decision, in place of ``set_cached_should_pad``."""

    def __init__(self, paddings: Paddings) -> None:
        self._paddings = paddings

    def ask(self, call: HookedCall) -> CallResult | None:
        """Record the decision if Inductor has measured."""
        decision = self._paddings.decision
        if decision is None:
            return None
        if decision.tuning is not None:
            # The decision is recorded as a candidate and not as the choice. A dump may keep an older choice whose time
            # is nearly the same. But of decisions a dump must keep the newest: the rest of the graph depends on it.
            candidate = Candidate(params=(Value("pad", bool(call.arguments["value"])),))
            decision.tuning.record(choice=None, candidates=[candidate])
        return CallResult(None)


class FindTimeHook(CallHook):
    """Returns a time of this run, in place of ``get_cached_base_mm_benchmark_time``.

    :param module: Inductor's module ``pad_mm``.
    """

    def __init__(self, paddings: Paddings, module: Any) -> None:
        self._paddings = paddings
        self._module = module

    def ask(self, call: HookedCall) -> CallResult | None:
        """Return the time of the product without padding, if this run has measured it."""
        decision = self._paddings.decision
        if decision is None:
            return None
        product = _build_padding_problem(self._module.torch, decision, call.arguments["key"])
        return CallResult(self._paddings.unpadded_times_ms.get(product))


class NoteTimeHook(CallHook):
    """Notes a time of this run, in place of ``set_cached_base_mm_benchmark_time``.

    :param module: Inductor's module ``pad_mm``.
    """

    def __init__(self, paddings: Paddings, module: Any) -> None:
        self._paddings = paddings
        self._module = module

    def ask(self, call: HookedCall) -> CallResult | None:
        """Note the time of the product without padding."""
        decision = self._paddings.decision
        if decision is None:
            return None
        product = _build_padding_problem(self._module.torch, decision, call.arguments["key"])
        self._paddings.unpadded_times_ms[product] = call.arguments["value"]
        return CallResult(None)


def _build_padding_problem(torch: Any, decision: PaddingDecision, inductors_key: str) -> Problem:
    """Return the problem of a decision, or of the product without padding that the decision measures.

    :param torch: the module.
    :param inductors_key: Inductor's own key of the decision or the product, with the shapes, strides and dtypes of the
        operands.
    """
    values = [Value("inputs", inductors_key)]
    if decision.sizes:
        values.append(Value("sizes", decision.sizes))
    settings = product_settings(torch) + _padding_settings(torch._inductor.config, decision.op)
    if settings:
        values.append(Value("settings", ", ".join(settings), "settings"))
    return Problem(PADDING, decision.op, tuple(values), device_of(decision.device.type, decision.device.index))


def _padding_settings(config: Any, op: str) -> list[str]:
    """Return the settings by which Inductor decides about padding, if they differ from their defaults.

    :param config: ``torch._inductor.config``.
    :param op: for example ``"aten.mm"``.
    """
    settings = []
    options = config.post_grad_fusion_options.get("shape_padding_multiplier", {})
    multiplier = options.get("value", _DEFAULT_PADDING_MULTIPLIER)
    if multiplier != _DEFAULT_PADDING_MULTIPLIER:
        settings.append(f"shape_padding_multiplier={multiplier}")
    # Inductor asks its learned heuristic about this operation only.
    if op == "aten.mm" and config.use_autoheuristic("pad_mm"):
        settings.append("autoheuristic_use=pad_mm")
    return settings


def _measured_sizes_text(*operands: Any) -> str:
    """Return the sizes that Inductor measures, for example ``[100, 64], [64, 32]``; empty if Inductor's key has them.

    If a size is symbolic, Inductor's key has only the symbol. Inductor then measures with the size of the first call.
    """
    texts = []
    has_symbols = False
    for operand in operands:
        if operand is None:
            continue
        measured_sizes: list[Any] = []
        for size in getattr(operand, "shape", ()):
            if isinstance(size, int):
                measured_sizes.append(size)
            else:
                has_symbols = True
                # The hint is the size of the first call; None if torch does not know it.
                measured_sizes.append(getattr(size.node, "hint", None))
        texts.append(str(measured_sizes))
    if not has_symbols:
        return ""
    return ", ".join(texts)


def _find_decision(entry: Entry) -> bool | None:
    """Return the decision that an entry holds, which is the value ``pad`` of its only candidate; else None."""
    decisions = []
    for candidate in entry.candidates:
        decisions += [value.value for value in candidate.params if value.name == "pad"]
    if len(decisions) == 1 and isinstance(decisions[0], bool):
        return decisions[0]
    return None
