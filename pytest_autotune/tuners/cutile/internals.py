"""The names of cuTile that the adapter uses; the signatures are those of cuda-tile 1.7.

All but one are public: the options of a kernel's decorator, such as ``occupancy``, stand in ``_compiler_options``.
"""

from __future__ import annotations

import dataclasses
import inspect
from types import FunctionType, ModuleType
from typing import Any

from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.patches import check_signature
from pytest_autotune.tuners.source.libraries import find_version

#: The distribution of cuTile.
LIBRARY = "cuda-tile"
SEARCH_PARAMETERS = [
    "search_space",
    "stream",
    "grid_fn",
    "kernel",
    "args_fn",
    "hints_fn",
    "quiet",
    "single_run_timeout_sec",
    "flush_l2",
]
_MEASUREMENT_FIELDS = ["config", "mean_us", "num_samples", "error_margin_us"]
_RESULT_FIELDS = ["best", "successes", "failures"]
#: The words of tileiras if it loads the libnvvm of another CUDA, which ``CUDA_HOME`` names.
WRONG_LIBNVVM = "Return code 5"


class TileLibrary:
    """The module ``cuda.tile.tune``, checked.

    :raises HookError: if this version of cuTile has other functions and classes than the known ones.
    """

    def __init__(self, module: ModuleType) -> None:
        search = getattr(module, "exhaustive_search", None)
        self.search: Any = check_signature(search, "exhaustive_search()", LIBRARY, SEARCH_PARAMETERS)
        self._measurement = _check_fields(module, "Measurement", _MEASUREMENT_FIELDS)
        self._result = _check_fields(module, "TuningResult", _RESULT_FIELDS)

    def build_result(self, config: object, mean_us: float) -> object:
        """Return the result of a search that measured this configuration only."""
        best = self._measurement(config=config, mean_us=mean_us, num_samples=0, error_margin_us=0.0)
        return self._result(best=best, successes=(best,), failures=())


def _check_fields(module: ModuleType, name: str, fields: list[str]) -> Any:
    cls = getattr(module, name, None)
    if not dataclasses.is_dataclass(cls) or [field.name for field in dataclasses.fields(cls)] != fields:
        raise HookError(f"{name} of {LIBRARY} {find_version(LIBRARY)} has other fields")
    return cls


def is_kernel(kernel: object) -> bool:
    """Whether this is a ``@ct.kernel``, and not a function that returns the kernel of a configuration."""
    return hasattr(kernel, "replace_hints")


def list_decorator_options(kernel: object) -> dict[str, Any]:
    """Return the options that a kernel's decorator sets, by name. A value for each GPU is its text."""
    options: Any = getattr(kernel, "_compiler_options", None)
    set_options: dict[str, Any] = {}
    for name, value in sorted(getattr(options, "__dict__", {}).items()):
        if isinstance(value, int):
            set_options[name] = value
        elif value is not None:
            set_options[name] = str(value)
    return set_options


def list_parameter_names(function: FunctionType) -> list[str]:
    """Return the names of a kernel's parameters."""
    return list(inspect.signature(function).parameters)
