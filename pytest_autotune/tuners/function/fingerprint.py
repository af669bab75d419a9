"""What a hand-written tuner's choice belongs to: the caller's key; and what it rests on: the space, the caller's
version, the source, how it was searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_autotune.cache.foreign_text import one_line, words_of
from pytest_autotune.cache.made_of import of_candidates, of_parts
from pytest_autotune.cache.model import Digest, UncacheableError, Value
from pytest_autotune.tuners.function.source_text import parts_of, source_text
from pytest_autotune.tuners.function.space import Space
from pytest_autotune.tuners.function.strategies import Exhaustive, Optuna, Random, Strategy
from pytest_autotune.tuners.measuring.how import Measuring
from pytest_autotune.tuners.shared.functions import python_function
from pytest_autotune.tuners.shared.source_digest import FORM, class_digest, immutable_text, stable_value
from pytest_autotune.tuners.shared.values import digest


@dataclass(frozen=True)
class Fingerprint:
    """Values that are compared, and what is noted about them.

    :param label: what the fingerprint leaves out; empty where it has the source.
    :param sources: what the digest of the source is of.
    """

    values: tuple[Value, ...]
    label: str = ""
    sources: tuple[object, ...] = ()

    def made_of(self, space: Space) -> Iterator[Digest]:
        """What the digests stand for."""
        for value in self.values:
            if value.name == "space":
                yield of_candidates(str(value.value), space.listed())
            elif value.name == "source":
                parts = [part for source in self.sources for part in parts_of(source).items()]
                yield of_parts(str(value.value), dict(parts))


def fingerprint(
    space: Space, version: object, sources: tuple[object, ...], searched: Sequence[Value] = ()
) -> Fingerprint:
    """The fingerprint of a choice; its values are sorted by name.

    :param version: anything with a stable form that the caller changes when a choice is no longer good.
    :param sources: see :func:`~pytest_autotune.tuners.function.source_text.source_text`.
    :param searched: how the search and its measurements differ from the usual.
    :raises UncacheableError: when the version has no stable form.
    """
    values = [Value("space", space.digest, "digest"), *searched]
    texts = [source_text(source) for source in sources]
    known = [text for text in texts if text is not None]
    if known:
        form = "digest" if all(isinstance(source, (str, Path)) for source in sources) else FORM
        values.append(Value("source", known[0] if len(known) == 1 else digest("\n".join(known)), form))
    if version is not None:
        values.append(stable_value("version", version))
    label = ""
    if not known:
        label = f"fingerprint: space{'' if version is None else ' and version'} only"
    elif len(known) < len(texts):
        label = "fingerprint: without a source that cannot be read"
    return Fingerprint(tuple(sorted(values, key=lambda value: value.name)), label, sources)


def how_measured(measuring: Measuring, on_gpu: bool) -> Iterator[Value]:
    """What is measured, where it is not the usual: with the L2 cache flushed, by another clock.

    How often and how long decides how exact the times are, and is left out.
    """
    if measuring.flush_l2:
        yield Value("flush_l2", True)
    clock = measuring.clock
    if callable(clock):
        yield Value("clock", _own_text(clock), "function")
    elif on_gpu and clock == "host":
        yield Value("clock", clock)


def how_searched(strategy: Strategy, space: Space) -> Iterator[Value]:
    """Which part of a space is measured, where it is not all of it."""
    if isinstance(strategy, Exhaustive):
        return
    if not isinstance(strategy, (Optuna, Random)):
        yield Value("strategy", _own_text(strategy), "function")
    elif space.size > strategy.trials:
        yield Value("strategy", str(strategy))


def _own_text(own: object) -> str:
    """A digest of a benchmark or strategy of the caller's own; of an object, its class and what cannot change of it."""
    if python_function(own) is not None:
        return source_text(own) or "unread"
    return digest(f"{class_digest(type(own))} {immutable_text(own)}")


#: Characters of what is said of a key, or of why it fails.
_LONGEST = 200


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below ``n``; 1 for 0 and 1.

    :raises ValueError: for a negative number.
    """
    if n < 0:
        raise ValueError(f"power_of_two({n}): a size is not negative")
    return 1 << (n - 1).bit_length() if n > 1 else 1


def multiple_of(n: int, k: int) -> int:
    """The smallest multiple of ``k`` that is not below ``n``.

    :raises ValueError: when ``n`` is negative or ``k`` is not positive.
    """
    if n < 0 or k <= 0:
        raise ValueError(f"multiple_of({n}, {k}): expected a size of 0 or more, and a step of 1 or more")
    return -(-n // k) * k


class KeyArgumentError(TypeError):
    """A caller's key is none, or looking at a part of it fails."""


def key_values(key: object) -> tuple[Value, ...]:
    """A caller's ``key=``, in its order.

    :raises KeyArgumentError: when it is no mapping from names, or a value fails as it is looked at.
    :raises UncacheableError: when a value has no stable form.
    """
    return tuple(_value(name, value) for name, value in _parts(key))


def stable_values(key: object) -> tuple[Value, ...]:
    """Those of :func:`key_values` that have a stable form: they tell problems apart that cannot be kept."""
    values = []
    for name, value in _parts(key):
        with suppress(UncacheableError):
            values.append(_value(name, value))
    return tuple(values)


def _parts(key: object) -> list[tuple[str, object]]:
    parts = {} if key is None else key
    if not isinstance(parts, Mapping) or not all(isinstance(name, str) for name in parts):
        raise KeyArgumentError(f"key= takes a mapping of names to values, not a {type(key).__name__}")
    return [(name, parts[name]) for name in parts]


def _value(name: str, value: object) -> Value:
    try:
        return stable_value(name, value, carried=False)
    except UncacheableError:
        raise
    except Exception as error:
        words = one_line(f"{type(error).__name__}: {words_of(error)}", _LONGEST)
        raise KeyArgumentError(f"key={{{name!r}: …}} cannot be encoded: {words}") from None
