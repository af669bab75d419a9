"""What digests of fingerprints are made of, in short: so that a stale entry can say what has changed.

The parts of a digest of source, ``relu 3f2a`` and ``helper 81cc``, name functions and constants, each with four digits
of a digest of its own. Those of a list of candidates are the names of their params and then each by its values,
``BLOCK num_warps``, ``64 4`` and ``128 8``, or, where they are many, each param with its values: ``BLOCK=64,128`` and
``num_warps=4,8``. They are reported, no choice depends on them. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pytest_autotune.cache.model import Digest, Value
from pytest_autotune.cache.quantities import describe_first

#: A list of candidates is kept whole up to this many characters.
MAX_LIST_LENGTH = 1200
#: So many names or candidates are said.
MAX_DESCRIBED = 3
#: and so many characters of each.
MAX_DESCRIBED_LENGTH = 100
_CUT = "..."
#: Types of the values of a fingerprint that say themselves what they stand for.
_SAY_THEMSELVES = frozenset({"", "int", "tuple", "json", "settings"})
_PLAIN = re.compile(r"[\s|,=]+")


def digest_of_parts(digest: str, parts: Mapping[str, str]) -> Digest:
    """What a digest of source is made of: the name of each function and constant -> a digest of that alone."""
    return Digest(digest, tuple(f"{_plain(part)} {parts[part][:4]}" for part in sorted(parts)))


def digest_of_candidates(digest: str, candidates: Iterable[Iterable[Value]]) -> Digest:
    """What a digest of candidates is made of: each by its params; in any order, the same."""
    rows = [{value.name: _plain(value.display_text) for value in params} for params in candidates]
    names = sorted({one for row in rows for one in row})
    listed = sorted({" ".join(row.get(one, "-") for one in names) for row in rows})
    parts = [" ".join(map(_plain, names)), *listed]
    if sum(map(len, parts)) > MAX_LIST_LENGTH:
        axes = {one: sorted({row[one] for row in rows if one in row}, key=_order) for one in names}
        parts = [f"{_plain(one)}={','.join(values)}" for one, values in axes.items()]
    while sum(map(len, parts)) > MAX_LIST_LENGTH:
        parts[-2:] = [_CUT]
    return Digest(digest, tuple(parts))


def list_changed_names(before: Iterable[Value], now: Iterable[Value]) -> list[str]:
    """Return the names of the parts of a fingerprint that changed, sorted."""
    old_parts = {value.name: value for value in before}
    new_parts = {value.name: value for value in now}
    return sorted(name for name in old_parts.keys() | new_parts.keys() if old_parts.get(name) != new_parts.get(name))


def describe_changes(before: Iterable[Value], now: Iterable[Value], digests: Iterable[Digest]) -> str:
    """Return which parts of a fingerprint changed, ``source changed (relu)``; empty where none did.

    :param digests: what the digests of both sides are made of, as far as that is known.
    """
    old_parts = {value.name: value for value in before}
    new_parts = {value.name: value for value in now}
    made_of = {digest.id: digest for digest in digests}
    names = list_changed_names(old_parts.values(), new_parts.values())
    if not names:
        return ""
    reported = []
    for name in names:
        if words := _difference_of_values(name, old_parts.get(name), new_parts.get(name), made_of):
            reported.append(words if len(names) == 1 else f"{name}: {words}")
    return f"{', '.join(names)} changed" + (f" ({'; '.join(reported)})" if reported else "")


def _difference_of_values(name: str, old: Value | None, now: Value | None, made_of: Mapping[str, Digest]) -> str:
    """Return how two parts of a fingerprint differ; empty where that is not known."""
    if all(value is None or value.type in _SAY_THEMSELVES for value in (old, now)):  # such as a version
        return " -> ".join(
            "none" if value is None else value.display_text[:MAX_DESCRIBED_LENGTH] for value in (old, now)
        )
    before = made_of.get(str(old.value)) if old is not None else None
    after = made_of.get(str(now.value)) if now is not None else None
    return describe_difference(name, before, after) if before and after else ""


def describe_difference(name: str, before: Digest, now: Digest) -> str:
    """What is another in two digests of a part of a fingerprint, in words; empty where they do not say."""
    old, new = before.parts, now.parts
    if name == "source":
        was, now_is = _pairs(old), _pairs(new)
        changed = (part for part in was.keys() & now_is.keys() if was[part] != now_is[part])
        return _came_and_went(now_is.keys() - was.keys(), was.keys() - now_is.keys(), changed)
    if not old or not new or _CUT in (*old, *new):
        return ""
    are_axes = [all("=" in part for part in parts) for parts in (old, new)]
    if not any(are_axes):
        return _of_lists(old, new)
    if all(are_axes):
        values = [{f"{axis}={value}" for axis, each in _axes(parts) for value in each} for parts in (old, new)]
        return _came_and_went(values[1] - values[0], values[0] - values[1])
    return ""


def _of_lists(old: Sequence[str], new: Sequence[str]) -> str:
    def rows(lines: Sequence[str]) -> list[dict[str, str]]:
        names = lines[0].split(" ")
        return [dict(zip(names, line.split(" "), strict=False)) for line in lines[1:]]

    both = [*rows(old), *rows(new)]
    names = {name for row in both for name in row}
    # What all candidates have in common tells none of them apart.
    differing = sorted(name for name in names if len({row.get(name, "-") for row in both}) > 1)

    def said(lines: Sequence[str]) -> set[str]:
        return {" ".join(f"{name}={row.get(name, '-')}" for name in differing) for row in rows(lines)}

    before, now = said(old), said(new)
    return _came_and_went(now - before, before - now)


def _came_and_went(came: Iterable[str], went: Iterable[str], changed: Iterable[str] = ()) -> str:
    kinds = [(sorted(each, key=_order), word) for each, word in ((changed, ""), (came, " came"), (went, " went"))]
    return "; ".join(
        f"{describe_first([one[:MAX_DESCRIBED_LENGTH] for one in each], MAX_DESCRIBED)}{word}"
        for each, word in kinds
        if each
    )


def _pairs(parts: Iterable[str]) -> dict[str, str]:
    pairs = (part.rpartition(" ") for part in parts)
    return {name: digest for name, _, digest in pairs if name}


def _axes(parts: Iterable[str]) -> list[tuple[str, list[str]]]:
    return [(name, values.split(",")) for name, _, values in (part.partition("=") for part in parts)]


def _order(text: str) -> list[tuple[int, str]]:
    """Sorts numbers in a text by their size."""
    # Not int(): a file may hold numbers that it refuses to read.
    parts = [part.lstrip("0") if part.isdecimal() else part for part in re.split(r"(\d+)", text)]
    return [(len(part) if part.isdecimal() else 0, part) for part in parts]


def _plain(text: str) -> str:
    return _PLAIN.sub("_", text) or "-"
