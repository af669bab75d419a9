"""A toy Helion: the classes and functions that the adapter uses have the parameters of Helion 1.5.1.

Kernels are run by Python, one tile as large as the tensor. A kernel has a single tunable, ``block_sizes``.
"""

__version__ = "1.5.1"

from . import exc as exc
from . import runtime
from .runtime import Config as Config
from .runtime import Kernel as Kernel
from .runtime import kernel as kernel

from . import autotuner as autotuner  # isort: skip
from . import language as language  # isort: skip

__all__ = ["Config", "Kernel", "autotuner", "exc", "kernel", "language", "runtime"]
