"""The race of listed configurations on a GPU, for ``--autotune-verify``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from pytest_autotune import devices
from pytest_autotune.cache.model import Candidate
from pytest_autotune.tuners.measuring.clocks import Clock, Runner, torch_clock
from pytest_autotune.tuners.measuring.race import Contest
from pytest_autotune.tuners.shared.configurations import Configurations


class RunnerBuilder(Protocol):
    """Compiles configurations for a race."""

    def build_runner(self, config: Any) -> Runner:
        """Return a configuration, ready to be launched.

        :raises Exception: if the configuration cannot be used. It is then left out of the race.
        """


def build_contest(
    configurations: Configurations, builder: RunnerBuilder, stream: Any, *, flush_l2: bool
) -> Contest | str:
    """Return the contest in which a loaded choice competes with the other candidates.

    If they cannot race, return the reason in words, for the report.

    :param builder: makes the configurations ready to be launched.
    :param stream: the stream that the builder's configurations are launched on; see :func:`on_torch_stream`.
    :param flush_l2: whether the L2 cache is emptied before each launch.
    """
    if devices.current_gpu() is None:
        return "there is no GPU"
    if "torch" not in sys.modules:
        return "torch, whose events time a race, is not imported"
    contestants = _Contestants(configurations, builder, stream, flush_l2)
    return Contest(
        candidates=configurations.list_candidates(),
        ready=contestants.build_runners,
        make_clock=contestants.make_clock,
        expected=(Exception,),
        context=contestants.on_stream,
    )


class _Contestants:
    """The configurations of one race, with the methods that the race calls."""

    def __init__(self, configurations: Configurations, builder: RunnerBuilder, stream: Any, flush_l2: bool) -> None:
        self._configurations = configurations
        self._builder = builder
        self._stream = stream
        self._flush_l2 = flush_l2

    def build_runners(self, candidates: Sequence[Candidate]) -> Mapping[Candidate, Runner]:
        """Return a runner for each candidate that can be used."""
        runner_by_candidate = {}
        for candidate in candidates:
            try:
                runner_by_candidate[candidate] = self._builder.build_runner(self._configurations.find(candidate))
            except Exception:
                continue  # the library's own search leaves such a configuration out
        return runner_by_candidate

    def make_clock(self) -> Clock:
        """Return the clock that times the launches."""
        return torch_clock(flush_l2=self._flush_l2)

    def on_stream(self) -> AbstractContextManager[object]:
        """Return the context of the race."""
        return on_torch_stream(self._stream)


def on_torch_stream(stream: Any) -> AbstractContextManager[object]:
    """Return a context in which a stream is torch's current stream.

    :param stream: a stream of torch, or a number or object that stands for one. None and 0 are the default stream.
    """
    torch: Any = sys.modules["torch"]
    torch_stream = stream
    if not isinstance(stream, torch.cuda.Stream):
        # The default stream. The race keeps torch's current stream.
        if stream is None or int(stream) == 0:
            return nullcontext()
        torch_stream = torch.cuda.ExternalStream(int(stream))
    context: AbstractContextManager[object] = torch.cuda.stream(torch_stream)
    return context
