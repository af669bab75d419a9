"""One call of an autotuned kernel, and what its choice is known by: problem, candidates, and fingerprint."""

from __future__ import annotations

import enum
import numbers
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.digest_parts import digest_of_candidates, digest_of_parts
from pytest_autotune.cache.model import (
    NEW_CANDIDATES_TYPE,
    PRUNED,
    Device,
    Digest,
    Problem,
    UncacheableError,
    Value,
    plain_value,
)
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.tuners.shared.functions import closure_cells, python_function, qualified_name
from pytest_autotune.tuners.shared.scalars import DtypeName, unwrapped
from pytest_autotune.tuners.shared.source_digest import (
    FORM,
    Source,
    callable_text,
    digest,
    immutable_text,
    is_code,
    read_source,
    stable_value,
)
from pytest_autotune.tuners.triton.internals import autotuners, environment

#: The functions of ``triton.heuristics``, by the name of the value that each makes.
Heuristics = list[tuple[str, Callable[..., object]]]
#: How values are named that are in no key of Triton's: they are compiled in as they are.
_CELLS = ("closure.", "heuristics.")
NAME = "triton"
#: What stands for the candidates of which a performance model leaves the best.
BY_MODEL = "by a performance model"


@dataclass(frozen=True)
class Call:
    """One call that found no choice in Triton's memory."""

    autotuner: Any
    tuning_key: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    heuristics: Heuristics

    @classmethod
    def of(cls, autotuner: Any, tuning_key: Any, bench_fn: Callable[[], None], over: Iterable[Any] = ()) -> Call:
        """The call that a benchmark function of Triton's is for.

        :param over: the ``triton.heuristics`` over the autotuner.
        :raises LookupError: when it is not the function that Triton is known to pass.
        """
        return cls(autotuner, tuning_key, *autotuners.arguments_of(bench_fn), heuristics_of(autotuner, over))

    @property
    def named(self) -> dict[str, Any]:
        """Every argument by its name, with Triton's own ``grid`` and ``warmup`` among them."""
        return {**dict(zip(self.autotuner.arg_names, self.args, strict=False)), **self.kwargs}

    def arguments(self, config: Any) -> dict[str, Any]:
        """What Triton's hooks get to see when ``config`` is used."""
        return {**self.named, **config.all_kwargs()}

    def adopt(self, config: Any, times_ms: Mapping[Any, float], seconds: float = 0.0) -> None:
        """Leave the autotuner as a benchmark would have left it that chose this candidate.

        The last launch may have been another candidate's: what it left in the tensors must not differ.
        """
        if not stream_is_capturing():  # first: with arguments that it refuses, nothing was chosen
            self.autotuner.pre_hook(self.arguments(config), reset_only=True)
        self.autotuner.configs_timings = {one: [time_ms] * 3 for one, time_ms in times_ms.items()}
        self.autotuner.bench_time = seconds
        self.autotuner.cache[self.tuning_key] = config  # last: nobody goes on with a choice that lacks the rest


def heuristics_of(autotuner: Any, over: Iterable[Any] = ()) -> Heuristics:
    """The functions of the ``triton.heuristics`` under an autotuner, and of those ``over`` it."""
    return [pair for one in (*autotuners.heuristics_under(autotuner), *over) for pair in one.values.items()]


def key_values(call: Call, function: FunctionType) -> Iterator[tuple[str, object]]:
    """What a tuning depends on, by name: positions shift with defaults and keyword arguments."""
    autotuner = call.autotuner
    named = {name: value for name, value in call.named.items() if name in autotuner.arg_names}
    yield from ((name, named[name]) for name in dict.fromkeys(autotuner.keys) if name in named)
    for name, value in named.items():
        yield from _compiled_in(name, value, is_key=name in autotuner.keys)
    yield from _cells("closure", function)
    for name, heuristic in call.heuristics:
        if (inner := python_function(heuristic)) is not None:
            yield from _cells(f"heuristics.{name}", inner)


def _compiled_in(name: str, value: Any, is_key: bool) -> Iterator[tuple[str, object]]:
    """The dtypes of an argument, in tuples and descriptors too, and functions that the key does not name."""
    if hasattr(value, "dtype"):
        yield f"{name}.dtype", DtypeName(str(value.dtype))
    elif isinstance(value, tuple):
        for position, part in enumerate(value):
            yield from _compiled_in(f"{name}.{position}", part, is_key)
    elif hasattr(getattr(value, "base", None), "dtype"):
        yield f"{name}.base.dtype", DtypeName(str(value.base.dtype))
    elif not is_key and python_function(unwrapped(value)) is not None:
        yield name, value


def _cells(prefix: str, function: FunctionType) -> Iterator[tuple[str, object]]:
    for name, value in closure_cells(function).items():
        if not is_code(value):
            yield f"{prefix}.{name}", value


def key_value(name: str, value: object) -> Value:
    """Encode a part of a key as Triton compares it: True, 1 and 1.0 are one key there; in a closure they are three."""
    value = unwrapped(value)
    if name.startswith(_CELLS):
        return stable_value(name, value, dtype_apart=True)
    if isinstance(value, numbers.Integral) and not isinstance(value, enum.Enum):
        return plain_value(name, int(value))
    if _is_number(name, value):
        number = float(value)  # type: ignore[arg-type]
        return plain_value(name, int(number) if number.is_integer() else number)
    return stable_value(name, value, dtype_apart=not isinstance(value, DtypeName))


def _is_number(name: str, value: object) -> bool:
    """Whether a part of a key is compared by its number alone, as the member of an IntEnum is."""
    return not name.startswith(_CELLS) and isinstance(unwrapped(value), numbers.Real)


@dataclass(frozen=True)
class CallIdentity:
    """What a call is known by.

    :param uncacheable: the part of it that has no stable form, in words: then there is no more than the problem.
    :param offered: the candidates by their params.
    :param source: of the kernel and its heuristics; None for what is uncacheable.
    """

    problem: Problem
    uncacheable: str = ""
    fingerprint: tuple[Value, ...] = ()
    offered: Mapping[tuple[Value, ...], Any] = field(default_factory=dict)
    source: Source | None = None


def identity_of(call: Call, function: FunctionType, configs: Sequence[Any], on: Device) -> CallIdentity:
    """The problem of a call, what its choice rests on, and the candidates.

    :param function: the kernel's.
    :param configs: the candidates that pruning left.
    """
    key: list[Value] = []
    reason = "a lambda has no name" if function.__name__ == "<lambda>" else ""
    if watcher := autotuners.watched_by(call.autotuner, function):
        reason = f"{watcher} sees each search, so there is one"
    arguments = list(key_values(call, function))
    for name, value in arguments:
        try:
            key.append(key_value(name, value))
        except UncacheableError as error:  # the rest of the key still tells problems apart
            reason = reason or str(error)
    problem = Problem(NAME, qualified_name(function), tuple(key), on)
    if reason:
        return CallIdentity(problem, reason)
    offered: dict[tuple[Value, ...], Any] = {}
    try:
        for config, params in zip(configs, distinct_params(configs), strict=True):
            offered.setdefault(params, config)
        source = _source(call.autotuner.fn, call.heuristics, arguments)
        fingerprint = (*_fingerprint(call.autotuner, source), *_pruned(call.autotuner, configs))
        return CallIdentity(problem, "", fingerprint, offered, source)
    except UncacheableError as error:
        return CallIdentity(problem, str(error))


def fingerprint_of(autotuner: Any, heuristics: Heuristics) -> tuple[Value, ...]:
    """What choices of an autotuner rest on, before pruning, as far as this shows without a call.

    :param heuristics: those under and over the autotuner.
    :raises UncacheableError: when a part of it has no stable form.
    """
    return _fingerprint(autotuner, _source(autotuner.fn, heuristics, ()))


def _fingerprint(autotuner: Any, source: Source) -> tuple[Value, ...]:
    return (
        Value("source", source.digest, FORM),
        Value("search", _list_digest(autotuner.configs), "digest"),
        *settings(autotuner),
    )


def _list_digest(configs: Iterable[Any]) -> str:
    return digest("\n".join(sorted(search_text(config) for config in configs)))


def target_device() -> Device:
    """The device where torch has no GPU in use: what Triton's driver compiles for."""
    target = environment.current_target()
    return devices.cpu() if target.backend == "cpu" else Device(str(target.backend), environment.arch_of(target))


def digest_parts(call: Call, identity: CallIdentity, configs: Sequence[Any]) -> Iterator[Digest]:
    """What the digests of a fingerprint stand for.

    :param configs: the candidates that pruning left.
    """
    for value in identity.fingerprint:
        if value.name == "source" and identity.source is not None:
            yield digest_of_parts(str(value.value), identity.source.parts)
        elif value.name in ("search", PRUNED) and value.type in ("digest", NEW_CANDIDATES_TYPE):
            chosen = call.autotuner.configs if value.name == "search" else _left_early(call.autotuner, configs)
            yield digest_of_candidates(str(value.value), distinct_params(chosen))


def _pruned(autotuner: Any, configs: Sequence[Any]) -> list[Value]:
    """What pruning left, where that is not all: it may depend on arguments that are in no key.

    Pruners also make candidates anew, as many as there were.

    Where a performance model chooses of it, only that: what it leaves may be another list each time. It differs
    from the whole all the same, since the best of a part is not the best of all.
    """
    whole, is_modelled = autotuner.configs, autotuner.perf_model is not None
    if configs is whole or (len(configs) == len(whole) and all(map(operator.is_, configs, whole))):
        return []
    early = _left_early(autotuner, configs)
    left, of_all = _list_digest(early), _list_digest(whole)
    if left == of_all:
        is_chosen = is_modelled and _list_digest(configs) != of_all
        return [Value(PRUNED, BY_MODEL)] if is_chosen else []
    is_part = set(map(search_text, early)) <= set(map(search_text, whole))
    return [
        Value(
            PRUNED, digest(f"{left} {BY_MODEL}") if is_modelled else left, "digest" if is_part else NEW_CANDIDATES_TYPE
        )
    ]


def _left_early(autotuner: Any, configs: Sequence[Any]) -> Sequence[Any]:
    """The candidates that pruning left before a performance model chose of them."""
    if isinstance(configs, autotuners.Pruned):
        return configs.early
    return configs if autotuner.perf_model is None else list(autotuner.configs)


def _source(kernel: Any, heuristics: Heuristics, arguments: Sequence[tuple[str, object]]) -> Source:
    """The source of a kernel with all that is compiled into it and is not in the key."""
    source = read_source(kernel, named=False)
    texts, parts, libraries = [source.digest], source.parts, source.libraries
    for name, function in heuristics:
        if python_function(function) is None:
            texts.append(f"{name}: {callable_text(function)}")
            continue
        own = read_source(function)
        texts.append(f"{name}: {own.digest}")
        parts = parts | {f"{name}.{part}": text for part, text in own.parts.items()}
        libraries = libraries | own.libraries
    # The key has the name of an enum's member and the values of a named tuple; what belongs to them may be edited.
    for name, value in arguments:
        if has_names(value) and not _is_number(name, value):
            texts.append(f"{name}: {immutable_text(value)}")
    return source if len(texts) == 1 else Source(digest("\n".join(texts)), parts, libraries)


def settings(autotuner: Any) -> Iterator[Value]:
    """The settings of Triton that change what is compiled, where they are not what they are by themselves."""
    if autotuners.interprets(autotuner):
        return
    changed = list(environment.changed_settings())
    if changed:
        yield Value("settings", ", ".join(changed), "settings")


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
            text = callable_text(value, carried=False) if callable(value) else ""
            words.append((name, type(value).__qualname__, text, ""))
    return repr(words)


def has_names(value: object) -> bool:
    """Whether a value is more than what keys hold of it: the member of an enum, a named tuple."""
    value = unwrapped(value)
    if isinstance(value, enum.Enum) or hasattr(value, "_fields"):
        return True
    return isinstance(value, (tuple, list)) and any(map(has_names, value))
