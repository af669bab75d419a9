"""The adapter for torch.compile: it hooks Inductor, the compiler behind ``torch.compile``.

Inductor tunes in several places, and each place is a part of the adapter:

- :mod:`.kernels`: block sizes and warps of generated Triton kernels
- :mod:`.templates`: the template or library call that computes a matrix product
- :mod:`.graph_shape`: whether to fuse kernels, and whether to pad the operands of a matrix product

Two parts help them: :mod:`.benchmarks` times Inductor's measurements, and :mod:`.compiling` forks compile workers. If
this version of torch has other functions than a part knows, the part is bypassed, and the other parts act.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Protocol

from pytest_autotune.run.session import Session
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks
from pytest_autotune.tuners.inductor.compiling import CompileWorkers
from pytest_autotune.tuners.inductor.graph_caches import GraphCaches
from pytest_autotune.tuners.inductor.graph_shape import Fusions, Paddings
from pytest_autotune.tuners.inductor.kernels import Kernels
from pytest_autotune.tuners.inductor.templates import Templates
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.patches import Patches, when_imported


class Part(Protocol):
    """One place in which Inductor tunes, or a helper of such places.

    :cvar tuner: its name in options and entries, for example ``"inductor.config"``.
    :cvar module: the name of the module that the part hooks. The module is hooked when it is imported.
    """

    tuner: str
    module: str

    def hook(self, module: ModuleType, session: Session, patches: Patches) -> None:
        """Replace the module's functions.

        :raises HookError: if the functions of this version differ from the functions that the part knows.
        """


class Adapter:
    """Hooks Inductor of torch 2.11 to 2.15; see :class:`~pytest_autotune.tuners.protocol.Adapter`."""

    module = "torch._inductor.config"
    # The adapter makes every process compile its graphs, which a suite without entries must not pay for.
    acts_without_entries = False
    names_candidates = True

    def __init__(self) -> None:
        self._session: Session | None = None
        self._caches = GraphCaches()
        self._workers = CompileWorkers()
        benchmarks = Benchmarks()
        self._kernels = Kernels(benchmarks)
        self._parts: list[Part] = [
            benchmarks,
            self._workers,
            self._kernels,
            Templates(benchmarks),
            Fusions(benchmarks),
            Paddings(benchmarks),
        ]
        #: Undoes the hooks, the last first.
        self._exits = ExitStack()

    def hook(self, module: ModuleType, session: Session) -> None:
        """Hook each part when its module is imported. Inductor imports most modules when it compiles a function."""
        self._session = session
        self._exits.callback(self._caches.change_back)
        self._exits.callback(self._workers.end)
        self._caches.change_settings(module, session)
        for part in self._parts:
            when_imported(part.module, self.hook_part, part)

    def hook_part(self, part: Part, module: ModuleType) -> None:
        """Hook a part whose module was imported just now. If that fails, only this part is bypassed."""
        if self._session is None:
            # The run is over, so nothing is hooked any more.
            return
        patches = Patches(self._session, part.tuner)
        try:
            part.hook(module, self._session, patches)
        except Exception as error:
            # The part may have replaced some functions before it failed.
            patches.undo()
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, HookError):
                reason = str(error)
            self._session.report_bypass(part.tuner, reason, error)
        else:
            # The hooks stay until unhook() is called.
            self._exits.callback(patches.undo)

    def unhook(self) -> None:
        self._session = None
        self._exits.close()

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Compile every graph again inside, and again afterwards. The choices of this process stay known."""
        with self._caches.isolated():
            yield

    def untracked(self) -> list[str]:
        """Return the names of kernels that were measured outside of their first launch."""
        return sorted(self._kernels.untracked)
