"""What a candidate is known by: its params in entries, and its text in the digest of the list."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_autotune.cache.model import UncacheableError, Value
from pytest_autotune.tuners.shared.source_digest import callable_text, immutable_text, label_text, stable_value
from pytest_autotune.tuners.shared.values import digest, unwrapped


def _own_params(config: Any) -> tuple[Value, ...]:
    return tuple(stable_value(name, value, dtype_apart=True) for name, value in config.all_kwargs().items())


def distinct_params(configs: Sequence[Any]) -> list[tuple[Value, ...]]:
    """The params of each candidate; where those of two are equal, what else they differ in is added.

    :raises UncacheableError: when that has no stable form, so that nothing tells the two apart.
    """
    found = [_own_params(config) for config in configs]
    often = Counter(found)
    return [
        params if often[params] == 1 else (*params, *(_stable_extra(*extra) for extra in _extras(config)))
        for params, config in zip(found, configs, strict=True)
    ]


def _extras(config: Any) -> Iterator[tuple[str, object]]:
    """What a candidate holds that Triton does not pass to the kernel: its ``pre_hook``, and what a backend added."""
    passed = config.all_kwargs()
    for name, value in sorted(vars(config).items()):
        if name != "kwargs" and name not in passed and value is not None:
            yield name, value


def _stable_extra(name: str, value: object) -> Value:
    return Value(name, callable_text(value), "function") if callable(value) else stable_value(name, value)


def search_text(config: Any) -> str:
    """What a candidate adds to the digest of the list that it stands in."""
    words = [value.encoded for value in _own_params(config)]
    words += [
        (name, "", str(immutable_text(value)), "") for name, value in config.all_kwargs().items() if has_names(value)
    ]
    for name, value in _extras(config):
        try:
            words.append(_stable_extra(name, value).encoded)
        except UncacheableError:  # enough to see that there is one, and what can be seen of it
            words.append((name, type(value).__qualname__, label_text(value) if callable(value) else "", ""))
    override = getattr(config, "ir_override", None)
    if override is not None:
        with suppress(OSError):
            words.append(("ir_override", "text", digest(Path(override).read_text("utf-8", "replace")), ""))
    return repr(words)


def has_names(value: object) -> bool:
    """Whether a value is more than what keys hold of it: the member of an enum, a named tuple."""
    value = unwrapped(value)
    if isinstance(value, enum.Enum) or hasattr(value, "_fields"):
        return True
    return isinstance(value, (tuple, list)) and any(map(has_names, value))
