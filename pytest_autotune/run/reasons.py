"""Why candidates failed, as entries keep it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_autotune.cache.model import Candidate

#: So many different reasons of failed candidates are kept in an entry without a choice,
REASONS = 5
#: and so many characters of each.
REASON_LENGTH = 200


def stable_reason(text: str) -> str:
    """Why a candidate failed, in one line that the next run and another machine would write, too.

    Without addresses and absolute paths; cut to :data:`REASON_LENGTH` characters.
    """
    text = re.sub(r"0x[0-9a-fA-F]+", "0x...", text)
    text = re.sub(r"(?<![\w.])/(?:[\w.+~-]+/)*([\w.+~-]+)", r"\1", text)
    text = re.sub(r"\btmp\w{6,}", "tmp...", text)
    text = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return text if len(text) <= REASON_LENGTH else f"{text[: REASON_LENGTH - 3]}..."


def failed_candidates(reasons: Iterable[str]) -> list[Candidate]:
    """The candidates of an entry that says that none can be used, one for each of some different reasons."""
    distinct = sorted({stable_reason(reason) for reason in reasons} - {""}) or ["failed"]
    return [Candidate(failed=reason) for reason in distinct[:REASONS]]
