"""``exhaustive_search``: the time of a configuration is the product of its integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuda import tile

#: The number of searches in this process.
searches: list[object] = []


@dataclass(frozen=True, kw_only=True)
class Measurement:
    config: Any
    mean_us: float
    num_samples: int
    error_margin_us: float


@dataclass(frozen=True, kw_only=True)
class TuningResult:
    best: Any
    successes: Any
    failures: Any


class TileCompilerExecutionError(Exception):
    pass


def exhaustive_search(
    search_space: Any,
    stream: Any,
    grid_fn: Any,
    kernel: Any,
    args_fn: Any,
    hints_fn: Any = None,
    *,
    quiet: bool = False,
    single_run_timeout_sec: float | None = None,
    flush_l2: bool = True,
) -> Any:
    # As in cuda-tile, an iterator has no len(), and only a launch and the arguments of a launch may fail.
    if len(search_space) == 0:
        raise ValueError("Search space is empty.")
    searches.append(kernel)
    successes, failures = [], []
    for config in search_space:
        grid = grid_fn(config)
        base_kernel = kernel if isinstance(kernel, tile.kernel) else kernel(config)
        hints = hints_fn(config) if hints_fn is not None else {}
        tuned = base_kernel.replace_hints(**hints)
        try:
            tile.launch(stream, grid, tuned, args_fn(config))
            time_us = 1.0
            values = [item for value in config.values() for item in (value if isinstance(value, tuple) else [value])]
            for value in values:
                if value == 3:
                    raise TileCompilerExecutionError("Return code 5\nfailed to compile Tile IR program")
                time_us *= value
        except Exception as error:
            failures.append((config, type(error), str(error)))
            continue
        successes.append(Measurement(config=config, mean_us=time_us, num_samples=5, error_margin_us=0.1))
    if not successes:
        config, kind, message = failures[0]
        raise ValueError(f"No valid config found in search space.\nConfig: {config}\n{kind.__name__}: {message}")
    best = min(successes, key=lambda measurement: measurement.mean_us)
    return TuningResult(best=best, successes=tuple(successes), failures=tuple(failures))
