"""The search over the user's list."""

from .base_search import BaseSearch


class FiniteSearch(BaseSearch):
    def __init__(self, kernel, args, configs=None):
        super().__init__(kernel, args)
        self.configs = list(configs if configs is not None else kernel.configs)

    def _autotune(self):
        return self._choose(self.configs)
