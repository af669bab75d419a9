"""Which pool Inductor's compile workers come from in a run that dumps: see :mod:`.forked_pool`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.run.door import TuningRun
from pytest_autotune.run.together import machine
from pytest_autotune.tuners.inductor.forked_pool import ForkedPool
from pytest_autotune.tuners.inductor.forked_worker import prepare, warm_up
from pytest_autotune.tuners.inductor.patches import Patches
from pytest_autotune.tuners.protocol import HookError

#: So long may it take at most until Triton knows what its keys are made of, in seconds.
_WARM_S = 10.0


class CompileChildren:
    """The part of the adapter for compile workers."""

    tuner = "inductor"
    module = "torch._inductor.async_compile"

    def __init__(self) -> None:
        self._module: Any = None
        self._pools: list[ForkedPool] = []

    def hook(self, module: ModuleType, run: TuningRun, patches: Patches) -> None:
        """See :class:`~pytest_autotune.tuners.inductor.part.Part`."""
        failed: Any = getattr(module, "SubprocException", None)
        if failed is None or not _may_fork(run):
            return
        part = self
        self._module = module

        def make_pool_class(original: Any) -> Any:
            class Pool(ForkedPool):
                def __init__(self, nprocs: int, *args: Any, **kwargs: Any) -> None:
                    number = min(nprocs, machine.free_memory() // machine.FREE_MEMORY)
                    target = _target()
                    # Not before the fork, and in a thread: it takes as long as a kernel.
                    warming = threading.Thread(target=warm_up, args=(target,), daemon=True)

                    def take_inductors_ptxas() -> None:
                        # As Inductor does wherever it compiles a kernel. Not before: what Triton's keys and the code of
                        # kernels tell of ptxas would be another one in a load, and in the children.
                        if warming.is_alive():
                            warming.join(_WARM_S)
                        with suppress(AttributeError):
                            module._set_triton_ptxas_path()

                    super().__init__(
                        number,
                        lambda: original(nprocs, *args, **kwargs),
                        failed,
                        partial(prepare, target),
                        take_inductors_ptxas,
                    )
                    part._pools.append(self)
                    with suppress(RuntimeError):  # no thread is left
                        warming.start()

            return Pool

        # Another version's own pool does everything, as without the plugin: no choice depends on it.
        with suppress(HookError):
            patches.replace_class(module, "SubprocPool", ["nprocs", "pickler", "kind", "quiesce"], make_pool_class)

    def compiled(self, autotuner: Any, configs: Sequence[Any]) -> list[bool] | None:
        """Have configurations of a kernel compiled into Triton's cache on disk.

        :returns: whether each is there now; None where there are no children.
        """
        pool = self._pool(autotuner)
        if pool is None:
            return None
        futures = [pool.compile(autotuner, config) for config in configs]
        return [future is not None and future.exception() is None for future in futures]

    def _pool(self, autotuner: Any) -> ForkedPool | None:
        if autotuner.device_props.type == "cpu" or os.environ.get("TRITON_ALWAYS_COMPILE", "0") != "0":
            return None
        return next((pool for pool in self._pools if pool.is_alive), None)

    def end(self) -> None:
        """End all children; what Inductor compiles from now on, its own workers do."""
        for pool in self._pools:
            pool.shutdown()
            with suppress(AttributeError):  # in a version that keeps its pools otherwise
                self._module._pool_set.discard(pool)
                self._module.AsyncCompile.process_pool.cache_clear()
                self._module.AsyncCompile._ready_future = None
        self._pools.clear()


def _may_fork(run: TuningRun) -> bool:
    # Workers compile all candidates of a kernel, which is a waste where its choice is loaded.
    is_loaded = any("inductor.config" in index.tuners() for index in run.indexes)
    is_possible = sys.platform.startswith("linux") and "TORCHINDUCTOR_WORKER_START" not in os.environ
    return run.policy.dumping and not is_loaded and is_possible


def _target() -> tuple[Any, ...] | None:
    """What Triton will compile for, where CUDA says so already."""
    gpu = devices.current_gpu() if devices.cuda_is_initialised() else None
    if gpu is None or not gpu.arch.startswith("sm_"):
        return None
    return "cuda", int("".join(filter(str.isdigit, gpu.arch))), 32
