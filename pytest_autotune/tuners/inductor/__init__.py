"""The adapter for torch.compile: what Inductor tunes, in four parts.

- :mod:`.kernels`: block sizes and warps of generated Triton kernels
- :mod:`.templates`: which template or library call computes a matrix product
- :mod:`.graph_shape`: whether to fuse, and whether to pad the operands of a matrix product

A part whose hook points are not the ones known here is bypassed; the others act.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType

from pytest_autotune.run.session import Session
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks
from pytest_autotune.tuners.inductor.compiling import CompileWorkers
from pytest_autotune.tuners.inductor.graph_caches import GraphCaches
from pytest_autotune.tuners.inductor.graph_shape import Fusions, Paddings
from pytest_autotune.tuners.inductor.kernels import Kernels
from pytest_autotune.tuners.inductor.parts import Part
from pytest_autotune.tuners.inductor.templates import Templates
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.library import FunctionPatches, when_imported


class Adapter:
    """Hooks Inductor, the compiler behind ``torch.compile``: torch 2.11 to 2.15."""

    module = "torch._inductor.config"
    # While it acts, graphs are compiled anew in every process.
    acts_without_entries = False
    names_candidates = True

    def __init__(self) -> None:
        self._session: Session | None = None
        self._caches = GraphCaches()
        self._workers = CompileWorkers()
        timed = Benchmarks()
        self._kernels = Kernels(timed)
        self._parts: list[Part] = [
            timed,
            self._workers,
            self._kernels,
            Templates(timed),
            Fusions(timed),
            Paddings(timed),
        ]
        self._hooked = ExitStack()

    def hook(self, module: ModuleType, session: Session) -> None:
        """Hook the modules in which Inductor tunes when they are imported: in the first call of a compiled function."""
        self._session = session
        self._hooked.callback(self._caches.change_back)
        self._hooked.callback(self._workers.end)
        self._caches.keep_apart(module, session)
        for part in self._parts:
            when_imported(part.module, self.hook_part, part)

    def hook_part(self, part: Part, module: ModuleType) -> None:
        """Hook one part, whose module has just been imported; where that fails, only it is bypassed."""
        if self._session is None:
            return
        patches = FunctionPatches(self._session, part.tuner)
        try:
            part.hook(module, self._session, patches)
        except Exception as error:
            patches.undo()
            reason = str(error) if isinstance(error, HookError) else f"{type(error).__name__}: {error}"
            self._session.report_bypass(part.tuner, reason, error)
        else:
            self._hooked.callback(patches.undo)

    def unhook(self) -> None:
        self._session = None
        self._hooked.close()

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Have every graph compiled anew inside, and again afterwards; choices made before stay known."""
        with self._caches.isolated():
            yield

    def untracked(self) -> list[str]:
        """Kernels that were measured outside the first call, where the session is asked."""
        return sorted(self._kernels.untracked)
