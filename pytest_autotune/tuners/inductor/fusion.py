"""``inductor.fusion``: what fused and unfused kernels take, when Inductor measures whether to fuse.

``TritonScheduling.benchmark_codegened_module`` is replaced. Inductor keeps what it
returns in files beside the generated modules; these are neither read nor written.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from pytest_autotune.cache.model import Candidate, Entry, Problem, Value
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks
from pytest_autotune.tuners.inductor.hooking import Part, Patches
from pytest_autotune.tuners.inductor.identity import device_of, measured_module_digest, versions
from pytest_autotune.tuners.inductor.templates import DIGITS
from pytest_autotune.tuners.shared.candidates import rounded_us
from pytest_autotune.tuners.shared.source_digest import digest


class Fusions(Part):
    """The part of the adapter for measurements that decide about fusion."""

    tuner = "inductor.fusion"
    module = "torch._inductor.codegen.triton"

    def __init__(self, timed: Benchmarks) -> None:
        self._timed = timed
        self._module: Any = None
        #: Digest of a generated module's text -> the name that the kernel would have in a graph, and what it computes.
        self._said: dict[str, tuple[str, str]] = {}

    def hook(self, module: ModuleType, session: Session, patches: Patches) -> None:
        """See :class:`~pytest_autotune.tuners.inductor.hooking.Part`."""
        self._session = session
        self._module = module
        owner = module.TritonScheduling
        measured = ["self", "mod", "n_spills_threshold", "node_names"]
        patches.replace(owner, "benchmark_codegened_module", measured, self._benchmark, and_others=True)
        base = next(cls for cls in owner.__mro__ if "generate_kernel_code_from_nodes" in vars(cls))
        generated = ["self", "nodes", "benchmark_kernel", "hint_override"]
        patches.replace(base, "generate_kernel_code_from_nodes", generated, self._generate, and_others=True)

    def _generate(self, original: Any, scheduling: Any, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        source = original(scheduling, nodes, *args, **kwargs)
        with suppress(Exception):  # a description is only a label
            self._said[digest(source.strip())] = _name(self._module, nodes), _computed(nodes)
        return source

    def _benchmark(
        self, original: Any, scheduling: Any, mod: Any, n_spills_threshold: int = 8, *args: Any, **kwargs: Any
    ) -> Any:
        def measure(mod: Any) -> Any:
            return original(scheduling, mod, n_spills_threshold, *args, **kwargs)

        session = self._session
        source = Path(mod.__file__).read_text(encoding="utf-8")
        name, computed = self._said.get(digest(source.strip()), ("triton_fused", ""))
        label = "; ".join(filter(None, [computed, "whether to fuse"]))
        on = self._module.V.graph.get_current_device_or_throw()
        # A kernel that spills more registers counts as infinitely slow.
        key = (Value("code", measured_module_digest(f"{source}\n{n_spills_threshold = }\n"), "digest"),)
        problem = Problem(self.tuner, name, key, device_of(on.type, on.index))
        if session.paused or session.ignores(self.tuner, name):
            return measure(mod)
        with session.tuning(problem, (), _has_result, versions(), label) as tuning:
            entry = tuning.entry or self._measure(measure, mod, tuning)
            time_us = entry.candidates[0].time_us
            return math.inf if time_us is None else time_us / 1000, mod.__file__

    def _measure(self, measure: Callable[[Any], Any], mod: Any, tuning: Tuning) -> Entry:
        with suppress(Exception):  # fails again where Inductor knows what to do about it
            if not mod.triton_.launchers:
                mod.triton_.precompile()
        # Inductor looks for an earlier measurement beside the module's file, and leaves its own there.
        with tempfile.TemporaryDirectory() as folder, self._timed.during(tuning):
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


def _has_result(entry: Entry) -> bool:
    return len(entry.candidates) == 1


def _name(module: Any, nodes: Any) -> str:
    """What the kernel would be called in a graph, without its number."""
    fused: str = module.get_fused_kernel_name(nodes, module.config.triton.descriptive_names)
    if any(node.is_template() for node in nodes):
        return f"triton_tem_{fused}"
    reduces = any(node.is_reduction() for node in nodes)
    return f"triton_red_{fused}" if reduces else f"triton_poi_{fused}"


def _computed(nodes: Any) -> str:
    """The last of a kernel's results, and what it fuses: ``"float16[2048, 512]; aten.mm, aten.add"``."""
    layout = nodes[-1].node.get_layout()
    result = f"{str(layout.dtype).removeprefix('torch.')}{[int(size) for size in layout.size]}"
    origins = [origin for node in nodes for origin in sorted(node.node.origins)]
    operations = [origin.meta["original_aten"] for origin in origins if "original_aten" in origin.meta]
    names = dict.fromkeys(str(getattr(operation, "overloadpacket", operation)) for operation in operations)
    return "; ".join([result, ", ".join(names)])
