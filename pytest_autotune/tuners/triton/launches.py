"""What Triton's own benchmark does around a launch, done for a race.

``Autotuner._bench`` makes a function of one launch with its hooks and hands it to ``triton.testing.do_bench``.
Here the same launch is handed to the race. Copies for ``restore_value`` and zeroing for ``reset_to_zero`` are
hooks of Triton's too, and are not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pytest_autotune.tuners.measuring.clocks import Clock, Runner, triton_clock
from pytest_autotune.tuners.measuring.launching import Result
from pytest_autotune.tuners.measuring.race import Race
from pytest_autotune.tuners.triton.internals import benchmark


@dataclass(frozen=True)
class RaceOutcome:
    """The outcome of a race: the candidate to choose, None where all failed, and what became of each."""

    best: Any
    results: Mapping[Any, Result]
    #: Rounds went on to disagree with each other.
    disturbed: bool


def clock_for(autotuner: Any) -> Callable[[], Clock] | None:
    """Makes the clock for the race; None where the kernel's own benchmark is to be used as it is."""
    driver = benchmark.driver_of(autotuner)
    return partial(triton_clock, driver) if driver is not None else None


def race(
    clock: Clock,
    autotuner: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    configs: Sequence[Any],
    codes: Mapping[Any, Hashable],
    told: Callable[[int, int], object] = lambda left, of: None,
) -> RaceOutcome:
    """Race compiled candidates of one call.

    :param codes: what candidates launch, by config; of those with the same code one is launched for all.
    :param told: as of :class:`Race`.
    :raises Exception: what Triton's own benchmark does not take for a failure of one candidate.
    """
    running = Race(clock, expected=benchmark.expected_failures(), told=told)
    running.probe([runner(autotuner, args, kwargs, config, codes.get(config)) for config in configs])
    results = running.finish()
    best = configs[running.choice] if any(result.measured for result in results) else None
    # Of one that is given twice the first is launched.
    outcomes = dict(reversed(list(zip(configs, results, strict=True))))
    return RaceOutcome(best, {config: outcomes[config] for config in configs}, running.disturbed)


def runner(autotuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], config: Any, code: Hashable = None) -> Runner:
    """One launch as ``Autotuner._bench`` makes it.

    :param code: see :class:`Runner`.
    :raises ValueError: as Triton does, for an argument that the candidates set, too.
    """
    if conflicts := kwargs.keys() & config.kwargs.keys():
        conflict = f"Conflicting meta-parameters: {', '.join(conflicts)}."
        raise ValueError(f"{conflict} Make sure that you don't re-define auto-tuned symbols.")
    current = dict(kwargs, **config.all_kwargs())
    named = {**dict(zip(autotuner.arg_names, args, strict=False)), **current}

    def before() -> None:
        if config.pre_hook:
            config.pre_hook(named)
        autotuner.pre_hook(named)

    def after(error: Exception | None) -> None:
        autotuner.post_hook(named, exception=error)

    return Runner(partial(autotuner.fn.run, *args, **current), before, after, code=code)
