"""What generated kernels fuse, and what is tuned in ways that are not covered: reported, never compared."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pytest_autotune.run.door import TuningRun
from pytest_autotune.tuners.inductor.identity import fused
from pytest_autotune.tuners.inductor.patches import Patches

#: Settings of Inductor under which it tunes in ways that do not come here -> what they do.
_UNCOVERED = {
    "triton.multi_kernel": "multi-kernel choices",
    "benchmark_combo_kernel": "benchmarks of combo kernels",
    "pipeline_max_autotune_gemm": "pipelined template choices",
    "distributed_max_autotune_gemm": "distributed template choices",
}


class Descriptions:
    """The part of the adapter that reads the comments above generated kernels."""

    tuner = "inductor"
    module = "torch._inductor.codegen.wrapper"

    def __init__(self) -> None:
        self._of: dict[str, tuple[str, str]] = {}

    def __call__(self, kernel: str) -> tuple[str, str]:
        """What is known of a kernel of the graph compiled last, by its numbered name: in short, and in full."""
        return self._of.get(kernel, ("", ""))

    def hook(self, module: ModuleType, run: TuningRun, patches: Patches) -> None:
        """See :class:`~pytest_autotune.tuners.inductor.part.Part`."""

        def make_define(original: Any) -> Any:
            def define_kernel(
                self: Any, kernel_name: str, kernel_body: str, metadata: str | None = None, *args: Any, **kwargs: Any
            ) -> Any:
                descriptions._of[kernel_name] = fused(metadata or "")
                for what in _uncovered(module.config):
                    run.note(f"inductor: {what} are not covered: they are tuned in every run")
                return original(self, kernel_name, kernel_body, metadata, *args, **kwargs)

            return define_kernel

        descriptions = self
        parameters = ["self", "kernel_name", "kernel_body", "metadata"]
        patches.replace(module.PythonWrapperCodegen, "define_kernel", parameters, make_define, and_others=True)


def _uncovered(config: Any) -> list[str]:
    found = []
    for name, what in _UNCOVERED.items():
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part, None)
        if value:
            found.append(what)
    return found
