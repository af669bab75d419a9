"""Reading what ``--autotune-report=REPORT.json`` has written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError


@contextmanager
def report_at(path: str) -> Iterator[Any]:
    """The report that a path holds, as plain values.

    :raises CacheError: where it holds none, as far as what is asked of it inside shows.
    """
    try:
        yield json.loads(stores.file_bytes(path))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CacheError(path, "is no JSON report of a run", "write one with --autotune-report=REPORT.json") from None
