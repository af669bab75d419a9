"""The base of all searches."""

from math import inf

from .benchmark_provider import LocalBenchmarkProvider
from .benchmarking import do_bench as do_bench
from .benchmarking import interleaved_bench as interleaved_bench


class BaseAutotuner:
    def autotune(self, *, skip_cache=False):
        raise NotImplementedError


class BaseSearch(BaseAutotuner):
    def __init__(self, kernel, args):
        self.kernel = kernel
        self.settings = kernel.settings
        self.config_spec = kernel.config_spec
        self.args = args
        self.best_perf_so_far = inf
        self.benchmark_provider = LocalBenchmarkProvider(kernel, args)

    def benchmark_batch(self, configs, *, desc="Benchmarking", raise_if_no_viable_config=True):
        config_filter = self.settings.autotune_config_filter
        if config_filter is not None:
            configs = [config_filter(config) for config in configs]
        results = self.benchmark_provider.benchmark(configs)
        self.best_perf_so_far = min(self.best_perf_so_far, *(result.perf for result in results))
        return results

    def autotune(self, *, skip_cache=False):
        return self._autotune()

    def _choose(self, configs):
        results = self.benchmark_batch(configs)
        best = min(results, key=lambda result: result.perf)
        assert best.status == "ok"
        return best.config

    def _autotune(self):
        raise NotImplementedError
