"""The distance between two keys, for all who look for the nearest entry, and keys as a launch shows them.

Exported modules contain a copy of :func:`distance`, so the function uses nothing but the standard library. Each caller
decides itself which entries it compares: a run in :mod:`pytest_autotune.run.nearest`, production in
``production/picker.py``.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import zip_longest
from typing import Any, TypeAlias

from pytest_autotune.cache.model import Scalar, Value

#: A scalar, or a tuple of such values.
LaunchValue: TypeAlias = "Scalar | tuple[LaunchValue, ...]"
#: torch's names of the dtypes of arguments, by the names of Triton.
_TORCH_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def distance(wanted: Mapping[str, Any], has: Mapping[str, Any]) -> tuple[int, float]:
    """Return how far two keys are apart: first the parts that are no numbers, then the doublings between the numbers.

    The nearest key has the smallest result. A part that only one key has counts as one. 16 and 64 are two doublings
    apart, and numbers below 0.5 count as 0.5. Texts and tuples are compared word by word and number by number.
    """
    parts = len(wanted.keys() ^ has.keys())
    doublings = []
    for name in wanted.keys() & has.keys():
        if wanted[name] == has[name]:
            continue
        pairs: Any = [(wanted[name], has[name])]
        if isinstance(wanted[name], (str, tuple)) and isinstance(has[name], (str, tuple)):
            words = [re.findall(r"\w+", str(value)) for value in pairs[0]]
            pairs = zip_longest(*words)
        for a, b in pairs:
            if isinstance(a, str) and isinstance(b, str) and a.isdecimal() and b.isdecimal():
                a, b = float(a), float(b)
            if a == b:
                continue
            if type(a) in (int, float) and type(b) in (int, float) and a == a and b == b:  # not a bool, not NaN
                doublings.append(abs(math.log2(max(a, 0.5)) - math.log2(max(b, 0.5))))
            else:
                parts += 1
    # Sets have another order in each process, which must not change the last digit of the sum.
    return parts, math.hypot(*sorted(doublings))


def launch_value(value: Value) -> LaunchValue:
    """Return a value as the picker sees it in a launch: a dtype by torch's name, a function as ``module.name()``.

    Text that cannot be read as its type says stays text.
    """
    text = str(value.value)
    if value.type == "dtype" and value.name.endswith(".dtype"):
        name = text.rpartition(".")[2]
        return _TORCH_DTYPES.get(name, name)
    if value.type == "function":
        return f"{text.partition('@')[0]}()"
    with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        if value.type == "int":
            return int(text)
        if value.type == "tuple":
            parts = []
            for _, part, part_type in ast.literal_eval(text):
                parts.append(launch_value(Value("", ast.literal_eval(part), part_type)))
            return tuple(parts)
    return value.value


def launch_key(values: Iterable[Value]) -> dict[str, LaunchValue]:
    """Return the values of a key, or of a candidate's params, by their names."""
    return {value.name: launch_value(value) for value in values}
