"""Why candidates failed, as entries keep it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable

from pytest_autotune.cache.model import Candidate

#: So many different reasons of failed candidates are kept in an entry without a choice,
REASONS = 5
#: and so many characters of each.
REASON_LENGTH = 200


#: Files of which the folder says that nobody chose their name.
_TEMPORARY = "|".join(map(re.escape, dict.fromkeys(["/tmp", "/var/tmp", "/dev/shm", tempfile.gettempdir()])))
#: What differs from run to run, or from machine to machine, and what stands for it; in this order.
_UNSTABLE = [
    (re.compile(pattern), stands_for)
    for pattern, stands_for in (
        (r"0[xX][0-9a-fA-F]+", "0x..."),
        (rf"(?<![\w.])(?:{_TEMPORARY})/[\w+~-]+?(\.[a-zA-Z]\w*)?(?![\w/.+~-])", r"tmp...\1"),
        (r"(?<![\w.])/(?:[\w.+~-]+/)*([\w.+~-]+)", r"\1"),
        (r"\btmp\w{6,}", "tmp..."),
        # Dates and times of day, which places such as lib.py:54:12 look like, and times that were measured.
        (r"\b\d{4}-\d\d-\d\d(?:[T ]\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?Z?)?\b", "..."),
        (r"(?<![\w.:])(?:[01]?\d|2[0-3]):[0-5]\d:[0-5]\d(?:[.,]\d+)?Z?\b", "..."),
        (r"\b(?:\d+\.\d+(?= ?(?:s|sec|seconds?|min|minutes?)\b)|\d+(?:\.\d+)?(?= ?(?:[mnuµ]s)\b))", "..."),
        (r"(?i)\b(?<!per )(?<!to )(?<!not )((?:[pt]|pp)id|process|thread)(\W{0,3}|-| id )\d+\b", r"\1\2..."),
        # Digests and addresses without a mark, also in decimal; names of Triton's folders.
        (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "..."),
        (r"(?<![0-9a-zA-Z])(?=[a-fA-F]*[0-9])(?=[0-9]*[a-fA-F])[0-9a-fA-F]{8,}(?![0-9a-zA-Z])", "..."),
        (r"(?<!\d)\d{12,}(?!\d)", "..."),
        (r"\b[A-Z2-7]{40,}\b", "..."),
    )
]


def stable_reason(text: str) -> str:
    """Why a candidate failed, in one line that the next run and another machine would write, too.

    Without addresses, absolute paths, names of temporary files, numbers of processes, digests and measured times; cut
    to :data:`REASON_LENGTH` characters.
    """
    for unstable, stands_for in _UNSTABLE:
        text = unstable.sub(stands_for, text)
    text = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return text if len(text) <= REASON_LENGTH else f"{text[: REASON_LENGTH - 3]}..."


def failed_candidates(reasons: Iterable[str]) -> list[Candidate]:
    """The candidates of an entry that says that none can be used, one for each of some different reasons."""
    distinct = sorted({stable_reason(reason) for reason in reasons} - {""}) or ["failed"]
    return [Candidate(failed=reason) for reason in distinct[:REASONS]]
