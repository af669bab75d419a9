"""Keeps readable parts beside each digest of a fingerprint. With them, a message about a stale entry names the change.

Parts are only reported: no lookup compares them, and no choice depends on them.

- The digest of a source has a part for each function and constant: its name, and four digits of its own digest, as in
  ``relu 3f2a`` and ``helper 81cc``.
- The digest of a list of candidates has a part with the names of their params, then a part for each candidate with its
  values: ``BLOCK num_warps``, ``64 4`` and ``128 8``. A long list has a part for each param with its values instead:
  ``BLOCK=64,128`` and ``num_warps=4,8``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_autotune.cache.model import Digest, Value
from pytest_autotune.cache.wording import describe_first

#: A list of candidates is kept whole up to this many characters.
MAX_LIST_LENGTH = 1200
#: A message names at most so many functions, constants or candidates.
MAX_DESCRIBED = 3
#: A longer name or candidate is cut to this many characters.
MAX_DESCRIBED_LENGTH = 100
#: Stands for the parts that a digest leaves out.
_CUT = "..."
#: The types of fingerprint values that are readable themselves. The other types are digests.
_READABLE_TYPES = frozenset({"", "int", "tuple", "settings"})
_SEPARATORS = re.compile(r"[\s|,=]+")

#: A candidate's param values by the param's name.
_Row = dict[str, str]


def digest_of_parts(digest: str, parts: Mapping[str, str]) -> Digest:
    """Return a digest of source with its parts.

    :param parts: the name of each function and constant, and the digest of its own source.
    """
    words = [f"{_as_word(name)} {parts[name][:4]}" for name in sorted(parts)]
    return Digest(digest, tuple(words))


def digest_of_candidates(digest: str, candidates: Iterable[Iterable[Value]]) -> Digest:
    """Return a digest of candidates with its parts. The order of the candidates does not matter.

    :param candidates: the params of each candidate.
    """
    rows: list[_Row] = []
    #: The names of all params. A candidate may lack some of them.
    names: set[str] = set()
    for params in candidates:
        row = {value.name: _as_word(value.display_text) for value in params}
        rows.append(row)
        names.update(row)
    sorted_names = sorted(names)
    parts = _build_candidate_parts(rows, sorted_names)
    if _total_length(parts) > MAX_LIST_LENGTH:
        parts = _build_param_parts(rows, sorted_names)
    while _total_length(parts) > MAX_LIST_LENGTH:
        # Leave out the last part. "..." stands for all parts that are left out.
        parts[-2:] = [_CUT]
    return Digest(digest, tuple(parts))


def _total_length(parts: Iterable[str]) -> int:
    return sum(len(part) for part in parts)


def _build_candidate_parts(rows: Iterable[_Row], names: Sequence[str]) -> list[str]:
    """Return a part with the names, then a part for each candidate with its values: ``BLOCK num_warps``, ``64 4``."""
    header = " ".join([_as_word(name) for name in names])
    candidates = set()
    for row in rows:
        candidates.add(" ".join([row.get(name, "-") for name in names]))
    return [header, *sorted(candidates)]


def _build_param_parts(rows: Sequence[_Row], names: Sequence[str]) -> list[str]:
    """Return a part for each param with all its values: ``BLOCK=64,128``."""
    parts = []
    for name in names:
        values = {row[name] for row in rows if name in row}
        parts.append(f"{_as_word(name)}={','.join(sorted(values, key=_number_key))}")
    return parts


def list_changed_names(old_fingerprint: Iterable[Value], new_fingerprint: Iterable[Value]) -> list[str]:
    """Return the names of the values of a fingerprint that changed, sorted: ``["search", "source"]``."""
    old_values = {value.name: value for value in old_fingerprint}
    new_values = {value.name: value for value in new_fingerprint}
    changed_names = []
    for name in sorted(old_values.keys() | new_values.keys()):
        if old_values.get(name) != new_values.get(name):
            changed_names.append(name)
    return changed_names


def describe_changes(
    old_fingerprint: Iterable[Value], new_fingerprint: Iterable[Value], digests: Iterable[Digest]
) -> str:
    """Return the values of a fingerprint that changed, in words: ``source changed (relu)``; empty if none changed.

    The details in parentheses name the parts of a digest that changed. If several values changed, each detail begins
    with the name of its value: ``search, source changed (source: relu)``.

    :param digests: the known digests of both fingerprints, with their parts. Without them, there are no details.
    """
    old_values = {value.name: value for value in old_fingerprint}
    new_values = {value.name: value for value in new_fingerprint}
    digests_by_id = {digest.id: digest for digest in digests}
    changed_names = list_changed_names(old_values.values(), new_values.values())
    if not changed_names:
        return ""
    details = []
    for name in changed_names:
        detail = _describe_change_of_value(old_values.get(name), new_values.get(name), name, digests_by_id)
        if detail and len(changed_names) > 1:
            detail = f"{name}: {detail}"
        if detail:
            details.append(detail)
    description = f"{', '.join(changed_names)} changed"
    if details:
        description += f" ({'; '.join(details)})"
    return description


def _describe_change_of_value(old: Value | None, new: Value | None, name: str, digests: Mapping[str, Digest]) -> str:
    """Return how a value of a fingerprint changed; empty if its parts are not known.

    :param old: the old value; None if the old fingerprint has no value of this name.
    :param new: the new value; None if the new fingerprint has none.
    :param digests: the digests by their id.
    """
    if _is_readable(old) and _is_readable(new):
        return f"{_shorten(old)} -> {_shorten(new)}"
    if old is None or new is None:
        return ""
    old_digest, new_digest = digests.get(str(old.value)), digests.get(str(new.value))
    if old_digest is None or new_digest is None:
        return ""
    return describe_difference(name, old_digest, new_digest)


def _is_readable(value: Value | None) -> bool:
    return value is None or value.type in _READABLE_TYPES


def _shorten(value: Value | None) -> str:
    if value is None:
        return "none"
    return value.display_text[:MAX_DESCRIBED_LENGTH]


def describe_difference(name: str, old: Digest, new: Digest) -> str:
    """Return in words how the parts of two digests differ; empty if the parts do not show it.

    :param name: the name of the value in the fingerprint. Only ``source`` has functions and constants as parts.
    """
    if name == "source":
        return _compare_sources(old.parts, new.parts).describe()
    if not old.parts or not new.parts:
        return ""
    if _CUT in old.parts or _CUT in new.parts:
        # A part that only one digest has may have been cut from the other.
        return ""
    old_has_params, new_has_params = _has_param_parts(old.parts), _has_param_parts(new.parts)
    if old_has_params and new_has_params:
        return _compare_sets(_list_param_values(old.parts), _list_param_values(new.parts)).describe()
    if old_has_params or new_has_params:
        # The parts of one digest are candidates, and those of the other are params. They cannot be compared.
        return ""
    return _compare_lists(old.parts, new.parts).describe()


@dataclass(frozen=True)
class _Difference:
    """The names, candidates or values that differ between two digests."""

    changed: Iterable[str]
    added: Iterable[str]
    removed: Iterable[str]

    def describe(self) -> str:
        """Return the difference in words: ``relu; helper added; scale removed``."""
        parts = []
        for words, verb in ((self.changed, ""), (self.added, " added"), (self.removed, " removed")):
            shortened = [word[:MAX_DESCRIBED_LENGTH] for word in sorted(words, key=_number_key)]
            if shortened:
                parts.append(f"{describe_first(shortened, MAX_DESCRIBED)}{verb}")
        return "; ".join(parts)


def _compare_sets(old: set[str], new: set[str]) -> _Difference:
    return _Difference(changed=(), added=new - old, removed=old - new)


def _compare_sources(old_parts: Iterable[str], new_parts: Iterable[str]) -> _Difference:
    """Compare the functions and constants of two sources."""
    old_digests, new_digests = _read_digests(old_parts), _read_digests(new_parts)
    changed = [name for name in old_digests.keys() & new_digests.keys() if old_digests[name] != new_digests[name]]
    added = new_digests.keys() - old_digests.keys()
    removed = old_digests.keys() - new_digests.keys()
    return _Difference(changed, added, removed)


def _read_digests(parts: Iterable[str]) -> dict[str, str]:
    """Return the digest of each function and constant by its name."""
    digests = {}
    for part in parts:
        name, _, digest = part.rpartition(" ")
        if name:
            digests[name] = digest
    return digests


def _compare_lists(old_parts: Sequence[str], new_parts: Sequence[str]) -> _Difference:
    """Compare the candidates of two lists."""
    old_rows, new_rows = _read_rows(old_parts), _read_rows(new_parts)
    names = _list_differing_names([*old_rows, *new_rows])
    return _compare_sets(_describe_rows(old_rows, names), _describe_rows(new_rows, names))


def _read_rows(parts: Sequence[str]) -> list[_Row]:
    """Return the candidates of a list: the first part has the names, each other part the values of a candidate."""
    names = parts[0].split(" ")
    return [dict(zip(names, part.split(" "), strict=False)) for part in parts[1:]]


def _list_differing_names(rows: Sequence[_Row]) -> list[str]:
    """Return the names of the params in which the candidates differ. The other params tell no candidates apart."""
    names: set[str] = set()
    for row in rows:
        names.update(row)
    differing = []
    for name in sorted(names):
        values = {row.get(name, "-") for row in rows}
        if len(values) > 1:
            differing.append(name)
    return differing


def _describe_rows(rows: Iterable[_Row], names: Sequence[str]) -> set[str]:
    """Return each candidate in words: ``BLOCK=64 num_warps=4``."""
    words = set()
    for row in rows:
        words.add(" ".join([f"{name}={row.get(name, '-')}" for name in names]))
    return words


def _has_param_parts(parts: Iterable[str]) -> bool:
    """Whether the parts of a list of candidates are params with their values: ``BLOCK=64,128``."""
    return all("=" in part for part in parts)


def _list_param_values(parts: Iterable[str]) -> set[str]:
    """Return each value of each param: ``BLOCK=64`` and ``BLOCK=128`` for the part ``BLOCK=64,128``."""
    words = set()
    for part in parts:
        name, _, values = part.partition("=")
        for value in values.split(","):
            words.add(f"{name}={value}")
    return words


def _number_key(text: str) -> list[tuple[int, str]]:
    """Sorts the numbers in a text by their size."""
    key = []
    for part in re.split(r"(\d+)", text):
        if part.isdecimal():
            # int() refuses numbers with thousands of digits, which a file may have.
            digits = part.lstrip("0")
            key.append((len(digits), digits))
        else:
            key.append((0, part))
    return key


def _as_word(text: str) -> str:
    """Return a text without the characters that separate words in parts."""
    return _SEPARATORS.sub("_", text) or "-"
