"""The caches around searches."""

import os
from typing import ClassVar

from .base_search import BaseAutotuner


def should_skip_cache():
    return os.environ.get("HELION_SKIP_CACHE", "").strip().lower() not in {"", "0", "false"}


class AutotuneCacheBase(BaseAutotuner):
    def __init__(self, autotuner, *, autotuner_factory=None):
        self.autotuner = autotuner
        self.kernel = autotuner.kernel
        self.args = autotuner.args
        self._autotuner_factory = autotuner_factory

    def autotune(self, *, skip_cache=False):
        if not skip_cache and not should_skip_cache() and (config := self.get()) is not None:
            return config
        config = self._run_autotune_trials()
        if not should_skip_cache():
            self.put(config)
        return config

    def _run_autotune_trials(self):
        count = self.autotuner.settings.autotune_best_of_k
        if count <= 1:
            return self.autotuner.autotune()
        configs = [self._autotuner_factory().autotune() for _ in range(count)]
        return self._autotuner_factory()._choose(configs)


class LocalAutotuneCache(AutotuneCacheBase):
    entries: ClassVar[dict] = {}

    def get(self):
        return self.entries.get(self.kernel.kernel.name)

    def put(self, config):
        self.entries[self.kernel.kernel.name] = config
