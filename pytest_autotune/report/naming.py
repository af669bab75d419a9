"""Words for problems, choices, times and changes. All renderers and commands use them, so that names are equal.

:mod:`pytest_autotune.cache.wording` has the words for numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pytest_autotune.cache.diff import Change, find_winner
from pytest_autotune.cache.digest_parts import describe_changes
from pytest_autotune.cache.model import Candidate, Entry, Problem, Value
from pytest_autotune.cache.wording import describe_count, describe_duration, join_nonempty

#: Word of findings -> the noun for a count of them, singular and plural. For other words, the noun is the word.
_NOUNS = {"MISS": ("miss", "misses"), "MISMATCH": ("mismatch", "mismatches"), "HIT": ("hit", "hits")}
#: The number of kernels that a line names.
_MAX_NAMED_KERNELS = 3


def is_readable(value: Value) -> bool:
    """Whether a part of a key helps a reader. Neither digests nor settings help.

    A digest is only hexadecimal digits. Settings are long; if they differ, the reason of a row names them.
    """
    return value.type not in ("digest", "settings")


def describe_key(key: Iterable[Value]) -> str:
    """Return the readable parts of a key: ``M=64, N=64``."""
    return ", ".join(str(value) for value in key if is_readable(value))


def describe_problem(problem: Problem, label: str = "") -> str:
    """Return the name of a problem, with a label if it has one: ``triton:lib.matmul (M=64, N=64)``."""
    name = f"{problem.library}:{problem.kernel}"
    details = join_nonempty(", ", describe_key(problem.key), label)
    if not details:
        return name
    return f"{name} ({details})"


def describe_choice(entry: Entry) -> str:
    """Return the choice of an entry: ``BLOCK=64, num_warps=4``, or what the entry has in place of a choice."""
    # The winner is the choice or, for a tuner that keeps only times, the fastest candidate.
    winner = find_winner(entry)
    if winner is not None:
        text = winner.display_text or "-"
        if winner.failed:
            text += f" (failed: {winner.failed})"
        return text
    if entry.candidates:
        return "every candidate failed"
    if entry.native:
        return f"{len(entry.native)} bytes of the tuner"
    return "nothing"


def describe_time(entry: Entry) -> str:
    """Return the measured time of an entry's choice: ``7.68 us``; empty if it was not measured."""
    winner = find_winner(entry)
    if winner is None or winner.time_us is None:
        return ""
    return describe_duration(winner.time_us)


def describe_change(change: Change) -> tuple[str, str]:
    """Return two texts: how an entry's choice changed and why, and its times.

    An example is ``BLOCK 32 -> 64; source changed (relu)`` and ``12 us -> 10 us``. An entry that is new or gone has a
    single time.
    """
    # A new entry has no old side, and a removed entry has no new side. The same entry then stands on both sides, so its
    # fingerprint shows no change, and its time is written once.
    old = change.old or change.entry
    new = change.new or change.entry
    choice_change = _describe_choices(old, new)
    fingerprint_change = describe_changes(old.fingerprint, new.fingerprint, [*old.digests, *new.digests])
    time_change = join_with_arrow(describe_time(old), describe_time(new))
    return join_nonempty("; ", choice_change, fingerprint_change), time_change


def _describe_choices(old: Entry, new: Entry) -> str:
    """Return how a choice changed: ``BLOCK 32 -> 64``. The same entry on both sides gives the choice alone.

    If a choice has no params, the text has both choices: ``every candidate failed -> BLOCK=64``.
    """
    if old is new:
        return describe_choice(new)
    old_winner = find_winner(old)
    new_winner = find_winner(new)
    if old_winner is None or new_winner is None or not old_winner.params or not new_winner.params:
        return join_with_arrow(describe_choice(old), describe_choice(new))
    return _describe_changed_params(_map_params(old_winner), _map_params(new_winner))


def _map_params(candidate: Candidate) -> dict[str, str]:
    """Return name of a param -> its value as text: ``{"BLOCK": "64", "num_warps": "4"}``."""
    return {value.name: value.display_text for value in candidate.params}


def _describe_changed_params(old_texts: Mapping[str, str], new_texts: Mapping[str, str]) -> str:
    """Return the params that differ: ``BLOCK 32 -> 64, stages - -> 2``; empty if all are equal."""
    changes = []
    # Each name once: the params of the new choice, then those that only the old choice has.
    for name in dict.fromkeys([*new_texts, *old_texts]):
        old_text = old_texts.get(name, "-")
        new_text = new_texts.get(name, "-")
        if old_texts.get(name) != new_texts.get(name):
            changes.append(f"{name} {old_text} -> {new_text}")
    return ", ".join(changes)


def join_with_arrow(old: str, new: str) -> str:
    """Return ``old -> new``; a single text if both are equal or the other is empty."""
    if old == new:
        return old
    return join_nonempty(" -> ", old, new)


def describe_row_count(count: int, word: str, adjective: str = "") -> str:
    """Return the number of rows with a word: ``"2 more misses"``.

    :param word: the first word of the rows, such as ``"MISS"``.
    :param adjective: stands between the number and the noun, with a space at its end.
    """
    singular, plural = _NOUNS.get(word, (word.lower(), word.lower()))
    return describe_count(count, f"{adjective}{singular}", f"{adjective}{plural}")


def describe_kernels(kernels: Sequence[str]) -> str:
    """Return a list of kernels that fits in a line: ``toy:a, toy:b, toy:c and 2 other kernels``."""
    text = ", ".join(kernels[:_MAX_NAMED_KERNELS])
    unnamed_count = len(kernels) - _MAX_NAMED_KERNELS
    if unnamed_count > 0:
        text += f" and {describe_count(unnamed_count, 'other kernel')}"
    return text
