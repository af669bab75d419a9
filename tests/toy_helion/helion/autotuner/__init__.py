"""The searches of the toy."""

from . import base_cache, base_search, benchmark_provider, benchmark_worker
from .base_cache import LocalAutotuneCache as LocalAutotuneCache
from .finite_search import FiniteSearch as FiniteSearch
from .random_search import RandomSearch as RandomSearch

__all__ = ["base_cache", "base_search", "benchmark_provider", "benchmark_worker"]


def default_autotuner_fn(bound_kernel, args, **kwargs):
    def factory():
        return RandomSearch(bound_kernel, args, 3)

    return LocalAutotuneCache(factory(), autotuner_factory=factory)
