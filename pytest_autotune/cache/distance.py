"""Computes the distance between two keys, and turns keys into the values that a launch shows.

Exported modules contain a copy of :func:`distance` and :func:`split_words`, so these use nothing but the standard
library. Two modules search the nearest entry with them: :mod:`pytest_autotune.run.nearest` in a run, and
``production/picker.py`` in production.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any, TypeAlias

from pytest_autotune.cache.model import Scalar, Value
from pytest_autotune.cache.structured import JSON_LIST, JSON_TUPLE

#: A scalar, or a tuple of such values.
LaunchValue: TypeAlias = "Scalar | tuple[LaunchValue, ...]"
#: The dtypes of arguments: Triton's name -> torch's name.
_TORCH_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
#: The types of values that a file stores as text, and that become an integer or a tuple again.
_STORED_AS_TEXT = ("int", "tuple", JSON_TUPLE, JSON_LIST)


def distance(wanted: Mapping[str, Any], has: Mapping[str, Any]) -> tuple[int, float]:
    """Return how far two keys are apart. The nearest key is the key with the smallest result.

    The result has two numbers, and the first is the more important:

    - The number of parts that differ and are not both numbers. A part that only one key has is counted, too.
    - The doublings between the numbers: 16 and 64 are two doublings apart. Numbers below 0.5 count as 0.5.

    Texts and tuples are compared word by word: ``f32[2, 8]`` and ``f32[2, 64]`` are three doublings apart.
    """
    differing_parts = len(wanted.keys() ^ has.keys())
    doublings = []
    for name in wanted.keys() & has.keys():
        if wanted[name] == has[name]:
            continue
        # The two values of this part, or the pairs of their words.
        pairs: Any = [(wanted[name], has[name])]
        if isinstance(wanted[name], (str, tuple)) and isinstance(has[name], (str, tuple)):
            # None stands for each word that the shorter text lacks.
            pairs = zip_longest(split_words(wanted[name]), split_words(has[name]))
        for wanted_value, value in pairs:
            if wanted_value == value:
                continue
            # Types are compared, because a bool is an instance of int.
            are_numbers = {type(wanted_value), type(value)} <= {int, float}
            # NaN does not equal itself.
            has_nan = wanted_value != wanted_value or value != value
            if are_numbers and not has_nan:
                difference = math.log2(max(wanted_value, 0.5)) - math.log2(max(value, 0.5))
                doublings.append(abs(difference))
            else:
                differing_parts += 1
    # The names are a set, whose order differs between processes. Without sorting, the last digit could differ, too.
    return differing_parts, math.hypot(*sorted(doublings))


def split_words(value: Any) -> list[Any]:
    """Return the words of a text or tuple. Words of digits become numbers: ``f32[2, 8]`` gives ``"f32"``, 2.0, 8.0."""
    words: list[Any] = []
    for word in re.findall(r"\w+", str(value)):
        if word.isdecimal():
            words.append(float(word))
        else:
            words.append(word)
    return words


def launch_value(value: Value) -> LaunchValue:
    """Return a value of a key as the picker sees it in a launch.

    - ``a_ptr.dtype``, the dtype of an argument, becomes torch's name: ``fp16`` is ``float16``.
    - A function becomes ``module.name()``, without the digest of its source.
    - An integer beyond 64 bits, and a tuple, are stored as text. They become an integer and a tuple again.
    - Every other value stays a scalar.
    """
    text = str(value.value)
    if value.type == "dtype" and value.name.endswith(".dtype"):
        name = text.rpartition(".")[2]
        return _TORCH_DTYPES.get(name, name)
    if value.type == "function":
        function_name, _, _ = text.partition("@")
        return f"{function_name}()"
    if value.type in _STORED_AS_TEXT:
        try:
            return _read_stored_text(text, value.type)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            # A damaged file may have any text under these types. Such text stays as it is.
            return value.value
    return value.value


def _read_stored_text(text: str, value_type: str) -> LaunchValue:
    """Return the integer or the tuple that a value of a key or of a configuration stores as text.

    A tuple of a key is stored as ``[('int', '16', ''), ('str', "'fp32'", 'dtype')]``: the type of the scalar in Python,
    its literal, and the type of a :class:`Value`. A tuple or list of ``tune()`` is stored as JSON:
    ``[16, {"dtype": "fp16"}]``.

    :raises ValueError, TypeError, SyntaxError, RecursionError, MemoryError: for the text of a damaged file.
    """
    if value_type == "int":
        return int(text)
    if value_type == "tuple":
        parts = []
        for _kind, literal, part_type in ast.literal_eval(text):
            part = Value("", ast.literal_eval(literal), part_type)
            parts.append(launch_value(part))
        return tuple(parts)
    return _read_item(json.loads(text))


def _read_item(item: Any) -> LaunchValue:
    """Return an item of a tuple or list of ``tune()``: the list ``[16, {"dtype": "fp16"}]`` is ``(16, "fp16")``."""
    if isinstance(item, list):
        return tuple([_read_item(part) for part in item])
    if isinstance(item, dict):
        # A value with a type is an object with the type as its only name.
        ((type_name, part),) = item.items()
        if isinstance(part, list):
            return _read_item(part)
        return launch_value(Value("", part, type_name))
    scalar: Scalar = item
    return scalar


def launch_key(values: Iterable[Value]) -> dict[str, LaunchValue]:
    """Return the values of a key, or of a candidate's params, by their names."""
    return {value.name: launch_value(value) for value in values}
