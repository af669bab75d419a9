"""Values of a configuration that are lists or mappings, as JSON that a reviewer reads in the cache file.

``block_sizes=[64, 128]`` is one value of type ``"json"``. Numbers, text and None stay what
:func:`~pytest_autotune.cache.model.plain_value` makes of them. Each value can be turned back into what it was, so that
an adapter can build a configuration from an entry. A tuple comes back as a list.

``tune()`` writes the tuples and lists of a configuration as JSON, too, with types that keep the two apart. Values of
keys hold tuples in an older form. ``launch_value`` in :mod:`pytest_autotune.cache.distance` reads all these types.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from pytest_autotune.cache.model import UncacheableError, Value, check_name, plain_value

#: The type of a value that holds JSON.
JSON = "json"
#: The types of a tuple and of a list in a configuration of ``tune()``. Their text may be the same.
JSON_TUPLE = f"{JSON}.tuple"
JSON_LIST = f"{JSON}.list"
#: The types of values that :func:`decode_value` can turn back.
_DECODABLE = ("", "int", JSON)


def structured_value(name: str, value: object) -> Value:
    """Encode a scalar of Python, or a list, tuple or mapping of such values.

    :raises UncacheableError: for anything else inside the value, such as a dtype, NaN, or a name that is not text.
    """
    check_name(name)
    if not isinstance(value, (list, tuple, Mapping)):
        return plain_value(name, value)
    try:
        # With allow_nan=False, NaN and infinity are a ValueError.
        text = json.dumps(_plain_data(name, value), allow_nan=False, ensure_ascii=False, sort_keys=True)
    except (ValueError, RecursionError):
        raise UncacheableError(f"{name} holds a number without a stable form, or is nested too deeply") from None
    return Value(name, text, JSON)


def _plain_data(name: str, value: object) -> object:
    """Return a value as lists, dictionaries and scalars.

    :raises UncacheableError: for anything else inside the value.
    """
    if isinstance(value, Mapping):
        data = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise UncacheableError(f"{name} has a key that is not text: {key!r}")
            data[str(key)] = _plain_data(name, item)
        return data
    if isinstance(value, (list, tuple)):
        return [_plain_data(name, item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return plain_value(name, value).value


def decode_value(value: Value) -> object:
    """Return the scalar, list or dictionary that :func:`structured_value` encoded.

    :raises ValueError: for a value of another type, such as a dtype, and for text of a damaged file.
    """
    if value.type not in _DECODABLE:
        raise ValueError(f"{value.name} is of type {value.type!r}, which cannot be turned back")
    if not value.type:
        return value.value
    try:
        decoded: object = json.loads(str(value.value))
    except (ValueError, RecursionError):
        raise ValueError(f"{value.name} is not the {value.type} that its type says") from None
    if value.type == "int" and type(decoded) is not int:
        raise ValueError(f"{value.name} is not the int that its type says")
    return decoded


def decode_params(params: Iterable[Value]) -> dict[str, object]:
    """Return a configuration by the names of its params.

    :raises ValueError: if a value cannot be turned back.
    """
    return {value.name: decode_value(value) for value in params}
