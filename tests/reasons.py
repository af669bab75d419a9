"""Reasons for tests that do not assert their words. Only tests/test_digest_parts.py asserts the words."""

from __future__ import annotations

from pytest_autotune.cache.digest_parts import describe_changes
from pytest_autotune.cache.model import Value


def describe_changed(*names: str) -> str:
    """Return the reason of a stale problem whose digests with these names changed, if nothing is known of the parts."""
    before = [Value(name, "before", "digest") for name in names]
    now = [Value(name, "now", "digest") for name in names]
    return describe_changes(before, now, ())
