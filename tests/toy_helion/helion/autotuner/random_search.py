"""A search that makes its own configs, different ones in each search."""

import itertools

from ..runtime import Config
from .finite_search import FiniteSearch

_sizes = itertools.count(1)


class RandomSearch(FiniteSearch):
    def __init__(self, kernel, args, count=1000):
        super().__init__(kernel, args, [Config(block_sizes=[16 * next(_sizes)]) for _ in range(count)])
