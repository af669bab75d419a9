"""Reasons and verdicts for tests that do not assert their words.

tests/test_digest_parts.py asserts the words of reasons, and tests/test_settle.py those of a gate's verdict.
"""

from __future__ import annotations

from pytest_autotune.cache.digest_parts import describe_changes
from pytest_autotune.cache.model import Value
from pytest_autotune.report.gate import Limit, describe_excess_misses


def describe_changed(*names: str) -> str:
    """Return the reason of a stale problem whose digests with these names changed, if nothing is known of the parts."""
    before = [Value(name, "before", "digest") for name in names]
    now = [Value(name, "now", "digest") for name in names]
    return describe_changes(before, now, ())


def too_many_misses(misses: int, allowed: str, problems: int = 0) -> str:
    """Return the verdict of a gate whose limit on misses a run exceeds.

    :param allowed: the limit, such as ``"0"`` or ``"10%"``.
    :param problems: the number of all problems, for a limit in percent.
    """
    return f"{describe_excess_misses(Limit.parse(allowed), misses, problems)} (see the summary)"
