"""Update stores, for tests."""

from __future__ import annotations

from collections.abc import Callable

from pytest_autotune.cache.model import Cache
from pytest_autotune.cache.stores.store import Store, UpdateOutcome


def update_store(store: Store, change: Callable[[Cache], Cache], removing: bool = False) -> UpdateOutcome:
    """Replace the content of a store with ``change(content)``."""
    with store.open_for_update(removing) as opened:
        return opened.write(change(opened.cache))
