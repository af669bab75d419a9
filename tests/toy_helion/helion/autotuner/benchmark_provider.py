"""Compiles and measures configs."""

from functools import partial
from math import inf
from typing import NamedTuple

from .benchmarking import do_bench


class BenchmarkResult(NamedTuple):
    config: object
    fn: object
    perf: float
    status: str
    compile_time: float | None


class LocalBenchmarkProvider:
    def __init__(self, kernel, args):
        self.kernel = kernel
        self.args = args

    def benchmark(self, configs):
        results = []
        for config in configs:
            try:
                function = self.kernel.compile_config(config, allow_print=False)
                perf = do_bench(partial(function, *self.args), return_mode="median")
            except Exception:
                results.append(BenchmarkResult(config, None, inf, "error", None))
            else:
                results.append(BenchmarkResult(config, function, perf, "ok", None))
        return results
