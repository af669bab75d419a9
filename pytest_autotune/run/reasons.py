"""Why candidates failed, as entries keep it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_autotune.cache.model import Candidate

#: So many different reasons of failed candidates are kept in an entry without a choice,
REASONS = 5
#: and so many characters of each.
REASON_LENGTH = 200


#: What differs from run to run, or from machine to machine, and what stands for it; in this order.
_UNSTABLE = [
    (re.compile(pattern), stands_for)
    for pattern, stands_for in (
        (r"0[xX][0-9a-fA-F]+", "0x..."),
        (r"(?<![\w.])/(?:[\w.+~-]+/)*([\w.+~-]+)", r"\1"),
        (r"\btmp\w{6,}", "tmp..."),
        (r"(?i)\b(?<!per )(?<!to )(?<!not )((?:[pt]|pp)id|process|thread)(\W{0,3}|-| id )\d+\b", r"\1\2..."),
    )
]


def stable_reason(text: str) -> str:
    """Why a candidate failed, in one line that the next run and another machine would write, too.

    Without addresses, absolute paths, names of temporary files and numbers of processes; cut to :data:`REASON_LENGTH`
    characters. Other words that change cost no entry: one that says that none works is kept whatever its words.
    """
    for unstable, stands_for in _UNSTABLE:
        text = unstable.sub(stands_for, text)
    text = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return text if len(text) <= REASON_LENGTH else f"{text[: REASON_LENGTH - 3]}..."


def failed_candidates(reasons: Iterable[str]) -> list[Candidate]:
    """The candidates of an entry that says that none can be used, one for each of some different reasons."""
    distinct = sorted({stable_reason(reason) for reason in reasons} - {""}) or ["failed"]
    return [Candidate(failed=reason) for reason in distinct[:REASONS]]
