"""What a hand-written tuner's choice rests on: the space, the caller's version, the source, how it was searched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_autotune.cache.made_of import of_candidates, of_parts
from pytest_autotune.cache.model import Value
from pytest_autotune.tuners.function.carried import Carried
from pytest_autotune.tuners.function.source_text import left_out_of, parts_of, source_text
from pytest_autotune.tuners.function.space import Space, listed
from pytest_autotune.tuners.shared.digest import digest
from pytest_autotune.tuners.shared.source.source_digest import FORM
from pytest_autotune.tuners.shared.values import stable_value

#: How many names of what is left out are noted.
NAMED = 5


@dataclass(frozen=True)
class Fingerprint:
    """Values that are compared, and what is noted about them.

    :param label: what the fingerprint leaves out; empty where it has the source.
    """

    values: tuple[Value, ...]
    label: str = ""


def fingerprint(
    space: Space, version: object, sources: Sequence[object], carried: Carried, searched: Sequence[Value] = ()
) -> Fingerprint:
    """The fingerprint of a choice; its values are sorted by name.

    :param version: anything with a stable form that the caller changes when a choice is no longer good.
    :param sources: see :func:`~pytest_autotune.tuners.function.source_text.source_text`.
    :param carried: what the functions carry beside their source.
    :param searched: how the search and its measurements differ from the usual.
    :raises UnportableError: when the version has no stable form.
    """
    values = [Value("space", space.digest, "digest")]
    parts = ["space"]
    texts = [source_text(source) for source in sources]
    known = [text for text in texts if text is not None]
    if known:
        parts.append("source")
        form = "digest" if all(isinstance(source, (str, Path)) for source in sources) else FORM
        values.append(Value("source", known[0] if len(known) == 1 else digest("\n".join(known)), form))
    if carried.digest:
        parts.append("carried")
        values.append(Value("carried", carried.digest, "digest"))
    if version is not None:
        parts.append("version")
        values.append(stable_value("version", version))
    label = ""
    if not known:
        label = f"fingerprint: {' and '.join(parts)} only"
    elif len(known) < len(texts):
        label = "fingerprint: without a source that cannot be read"
    left_out = sorted({*carried.left_out, *(name for source in sources for name in left_out_of(source))})
    if left_out:
        label += f"{'; ' if label else ''}not in the fingerprint: {', '.join(left_out[:NAMED])}"
        label += f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
    values += searched

    return Fingerprint(_sorted(values), label)


def made_of(values: Sequence[Value], space: Space, sources: Sequence[object]) -> Iterator[str]:
    """What the digests of a fingerprint stand for.

    :param values: of the fingerprint.
    :param sources: as for :func:`fingerprint`.
    """
    for value in values:
        if value.name == "space":
            yield of_candidates(value.name, str(value.value), listed(space))
        elif value.name == "source":
            parts = [part for source in sources for part in parts_of(source).items()]
            yield of_parts(value.name, str(value.value), dict(parts))


def _sorted(values: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(sorted(values, key=lambda value: value.name))
