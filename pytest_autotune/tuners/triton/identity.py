"""What a choice of Triton is known by: its problem, and the fingerprint of what it rests on."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.made_of import of_candidates, of_parts
from pytest_autotune.cache.model import (
    MADE_ANEW,
    PRUNED,
    Device,
    Digest,
    Entry,
    Problem,
    UncacheableError,
    Value,
    Versions,
    before_pruning,
)
from pytest_autotune.tuners.shared.functions import python_function, qualified_name
from pytest_autotune.tuners.shared.library import versions_of
from pytest_autotune.tuners.shared.source_digest import FORM, callable_text, immutable_text, source_digest, source_parts
from pytest_autotune.tuners.shared.values import digest
from pytest_autotune.tuners.triton import interpreter
from pytest_autotune.tuners.triton.call import Call, Heuristics, key_value, key_values
from pytest_autotune.tuners.triton.internals import knobs, targets
from pytest_autotune.tuners.triton.params import distinct_params, has_names, search_text

NAME = "triton"


class UncacheableProblem(Exception):
    """A problem cannot be written; carries what is known of it."""

    def __init__(self, problem: Problem, reason: str) -> None:
        super().__init__(reason)
        self.problem = problem
        self.reason = reason


@dataclass(frozen=True)
class CallIdentity:
    """What a call is known by.

    :param offered: the candidates by their params.
    """

    problem: Problem
    fingerprint: tuple[Value, ...]
    offered: Mapping[tuple[Value, ...], Any]


def identity_of(call: Call, function: FunctionType, configs: Sequence[Any], on: Device) -> CallIdentity:
    """The problem of a call, what its choice rests on, and the candidates.

    :param function: the kernel's.
    :param configs: the candidates that pruning left.
    :raises UncacheableProblem: when a part of it has no stable form.
    """
    key: list[Value] = []
    try:
        arguments = list(key_values(call, function))
        for name, value in arguments:
            key.append(key_value(name, value))
        offered: dict[tuple[Value, ...], Any] = {}
        for config, params in zip(configs, distinct_params(configs), strict=True):
            offered.setdefault(params, config)
        fingerprint = (*_fingerprint(call.autotuner, call.heuristics, arguments), *_pruned(call.autotuner, configs))
    except UncacheableError as error:
        raise UncacheableProblem(Problem(NAME, qualified_name(function), tuple(key), on), str(error)) from None
    return CallIdentity(Problem(NAME, qualified_name(function), tuple(key), on), fingerprint, offered)


def holds(entry: Entry, autotuner: Any, function: FunctionType, heuristics: Heuristics) -> bool:
    """Whether an entry's fingerprint is that of an autotuner now, as far as this shows without a call.

    :param heuristics: those under and over the autotuner.
    """
    try:
        now = _fingerprint(autotuner, heuristics, ())
    except UncacheableError:
        return False
    return before_pruning(entry.fingerprint) == tuple(sorted(now, key=operator.attrgetter("name")))


def _fingerprint(autotuner: Any, heuristics: Heuristics, arguments: Sequence[tuple[str, object]]) -> tuple[Value, ...]:
    """What choices of an autotuner rest on, before pruning.

    :raises UncacheableError: when a part of it has no stable form.
    """
    return (
        Value("source", _source(autotuner.fn, heuristics, arguments), FORM),
        Value("search", _list_digest(autotuner.configs), "digest"),
        *settings(autotuner),
    )


def _list_digest(configs: Iterable[Any]) -> str:
    return digest("\n".join(sorted(search_text(config) for config in configs)))


def versions() -> Versions:
    """The versions that a choice of Triton may depend on."""
    return versions_of("triton", "torch")


def target_device() -> Device:
    """The device where torch has no GPU in use: what Triton's driver compiles for."""
    target = targets.current_target()
    return devices.cpu() if target.backend == "cpu" else Device(str(target.backend), targets.arch_of(target))


def made_of(call: Call, fingerprint: Iterable[Value], configs: Sequence[Any]) -> Iterator[Digest]:
    """What the digests of a fingerprint stand for.

    :param configs: the candidates that pruning left.
    """
    for value in fingerprint:
        if value.name == "source" and value.type == FORM:
            parts = source_parts(call.autotuner.fn, named=False)
            for name, heuristic in call.heuristics:
                if python_function(heuristic) is not None:
                    parts |= {f"{name}.{part}": one for part, one in source_parts(heuristic).items()}
            yield of_parts(str(value.value), parts)
        elif value.name in ("search", PRUNED) and value.type in ("digest", MADE_ANEW):
            chosen = call.autotuner.configs if value.name == "search" else configs
            yield of_candidates(str(value.value), distinct_params(chosen))


def _pruned(autotuner: Any, configs: Sequence[Any]) -> list[Value]:
    """What pruning left, where that is not all: it may depend on arguments that are in no key.

    Pruners also make candidates anew, as many as there were.

    Where a performance model chooses, only that: what it leaves may be another list each time. It differs
    from the whole all the same, since the best of a part is not the best of all.
    """
    whole = autotuner.configs
    if configs is whole or (len(configs) == len(whole) and all(map(operator.is_, configs, whole))):
        return []
    left = _list_digest(configs)
    if left == _list_digest(whole):
        return []
    if autotuner.perf_model is not None:
        return [Value(PRUNED, "by a performance model")]
    is_part = set(map(search_text, configs)) <= set(map(search_text, whole))
    return [Value(PRUNED, left, "digest" if is_part else MADE_ANEW)]


def _source(kernel: Any, heuristics: Heuristics, arguments: Sequence[tuple[str, object]]) -> str:
    """The digest of a kernel with all that is compiled into it and is not in the key."""
    parts = [source_digest(kernel, named=False)]
    for name, function in heuristics:
        is_plain = python_function(function) is not None
        text = source_digest(function) if is_plain else callable_text(function)
        parts.append(f"{name}: {text}")
    # The key has the name of an enum's member and the values of a named tuple; what belongs to them may be edited.
    parts += [f"{name}: {immutable_text(value)}" for name, value in arguments if has_names(value)]
    return parts[0] if len(parts) == 1 else digest("\n".join(parts))


def settings(autotuner: Any) -> Iterator[Value]:
    """The settings of Triton that change what is compiled, where they are not what they are by themselves."""
    if interpreter.interprets(autotuner):
        return
    changed = list(knobs.changed_settings())
    if changed:
        yield Value("settings", ", ".join(changed), "settings")
