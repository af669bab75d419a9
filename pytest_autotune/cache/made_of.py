"""What digests of fingerprints stand for, in short: so that a stale entry can say what has changed.

A text belongs to one digest. ``source 5f2c91d0a7b3: relu 3f2a, helper 81cc`` names functions and constants, each with
four digits of a digest of its own. ``search c0ffee123456: BLOCK num_warps | 64 4 | 128 8`` lists the candidates, or,
where they are many, ``search c0ffee123456: BLOCK=64,128 num_warps=4,8``. It is noted, no choice depends on it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_autotune.cache.model import Entry, Value

#: A list of candidates is kept whole up to this many characters.
MOST = 1200
#: So many names or candidates are said.
SAID = 3
#: and so many characters of each.
LONGEST = 100
_LIST = " | "
_PLAIN = re.compile(r"[\s|,=]+")


def of_parts(name: str, digest: str, parts: Mapping[str, str]) -> str:
    """What a digest of source stands for.

    :param parts: the name of each function and constant -> a digest of that alone.
    """
    return f"{name} {digest}: {', '.join(f'{_plain(part)} {parts[part][:4]}' for part in sorted(parts))}"


def of_candidates(name: str, digest: str, candidates: Iterable[Iterable[Value]]) -> str:
    """What a digest of candidates stands for: each by its params; in any order, the same text."""
    rows = [{value.name: _plain(value.words) for value in params} for params in candidates]
    names = sorted({one for row in rows for one in row})
    listed = sorted({" ".join(row.get(one, "-") for one in names) for row in rows})
    text = _LIST.join([" ".join(map(_plain, names)), *listed])
    if len(text) > MOST:
        axes = {one: sorted({row[one] for row in rows if one in row}, key=_order) for one in names}
        text = " ".join(f"{_plain(one)}={','.join(values)}" for one, values in axes.items())
    return f"{name} {digest}: {text if len(text) <= MOST else f'{text[:MOST]}...'}"


def difference(before: str, now: str) -> str:
    """What is another in the texts of two digests, in words; empty where they do not say."""
    (name, _, old), (_, _, new) = (text.partition(": ") for text in (before, now))
    if name.partition(" ")[0] == "source":
        return _of_sources(_pairs(old), _pairs(new))
    if _LIST in old and _LIST in new:
        return _of_lists(old.split(_LIST), new.split(_LIST))
    if _LIST not in old and _LIST not in new and not (old + new).count("..."):
        values = [{f"{axis}={value}" for axis, each in _axes(text) for value in each} for text in (old, new)]
        return _came_and_went(values[1] - values[0], values[0] - values[1])
    return ""


def _of_sources(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    changed = sorted(part for part in old.keys() & new.keys() if old[part] != new[part])
    said = [_some(changed)] if changed else []
    said += [f"{_some(sorted(new.keys() - old.keys()))} came"] if new.keys() - old.keys() else []
    said += [f"{_some(sorted(old.keys() - new.keys()))} went"] if old.keys() - new.keys() else []
    return "; ".join(said)


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


def _came_and_went(came: Iterable[str], went: Iterable[str]) -> str:
    said = [f"{_some(sorted(each, key=_order))} {word}" for each, word in ((came, "came"), (went, "went")) if each]
    return "; ".join(said)


def _some(words: Sequence[str]) -> str:
    more = f" and {len(words) - SAID} more" if len(words) > SAID else ""
    return ", ".join(word[:LONGEST] for word in words[:SAID]) + more


def _pairs(text: str) -> dict[str, str]:
    pairs = (part.rpartition(" ") for part in text.split(", "))
    return {name: digest for name, _, digest in pairs if name}


def _axes(text: str) -> list[tuple[str, list[str]]]:
    return [(name, values.split(",")) for name, _, values in (part.partition("=") for part in text.split(" "))]


def _order(text: str) -> list[tuple[int, str]]:
    """Sorts numbers in a text by their size."""
    # Not int(): a file may hold numbers that it refuses to read.
    parts = [part.lstrip("0") if part.isdecimal() else part for part in re.split(r"(\d+)", text)]
    return [(len(part) if part.isdecimal() else 0, part) for part in parts]


def _plain(text: str) -> str:
    return _PLAIN.sub("_", text) or "-"


def said_once(entries: Sequence[Entry], before: Iterable[Entry], known: Iterable[Entry]) -> list[Entry]:
    """The entries, of which one of each kernel says what a digest is made of: one that did before, else the first.

    :param before: the entries as they were.
    :param known: whose texts are known, too.
    """
    texts: dict[tuple[str, str, str], str] = {}
    for entry in (*before, *known, *entries):
        for text in entry.made_of:
            texts.setdefault((entry.problem.tuner, entry.problem.kernel, text.partition(":")[0]), text)
    if not texts:
        return list(entries)
    said_before = {(entry.identity, text.partition(":")[0]) for entry in before for text in entry.made_of}
    says: dict[tuple[str, str, str], int] = {}
    wanted: list[list[tuple[str, str, str]]] = []

    def has_said(number: int, digest: str) -> bool:
        return (entries[number].identity, digest) in said_before

    for number, entry in enumerate(entries):
        problem = entry.problem
        keys = [(problem.tuner, problem.kernel, digest_of(part)) for part in entry.fingerprint]
        wanted.append([key for key in keys if key in texts])
        for key in wanted[-1]:
            if key not in says or (has_said(number, key[2]) and not has_said(says[key], key[2])):
                says[key] = number
    found = []
    for number, entry in enumerate(entries):
        made_of = tuple(sorted(texts[key] for key in wanted[number] if says[key] == number))
        found.append(entry if made_of == entry.made_of else replace(entry, made_of=made_of))
    return found


def digest_of(part: Value) -> str:
    """What the text of a part of a fingerprint begins with: ``source 5f2c91d0a7b3``."""
    return f"{part.name} {part.value}"


def by_digest(texts: Iterable[str]) -> dict[str, str]:
    """Texts by what each is of (:func:`digest_of`)."""
    return {text.partition(":")[0]: text for text in texts}
