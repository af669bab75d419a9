"""Helion's own cache in the object storage of this package.

``HELION_REMOTE_CACHE_BACKEND=pytest_autotune.helion_backend.HelionStore`` selects it. Helion keeps its own JSON under
its own keys, and the last write stays: no file of it is a choice of this package. The files are in a folder ``helion/``
beside the segments, below the URL in the variable ``PYTEST_AUTOTUNE_STORE``. Helion expects a backend that raises an
error for a fault, and then goes on with the files of this machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.stores.objects import open_url

try:
    from helion.autotuner.remote_cache import RemoteCacheBackend  # type: ignore[import-not-found]
except ImportError:  # then nobody asks for it
    RemoteCacheBackend = object

VARIABLE = "PYTEST_AUTOTUNE_STORE"


class HelionStore(RemoteCacheBackend):  # type: ignore[misc]
    """Keeps what Helion tuned at a URL."""

    def __init__(self) -> None:
        url = os.environ.get(VARIABLE, "")
        location = Location.parse(url, Path())
        if not location.url:
            raise CacheError(VARIABLE, f"names no URL: {url!r}", f"{VARIABLE}=s3://BUCKET/FOLDER/")
        opened = open_url(location)
        self._library, self._objects = opened.library, opened.objects

    def get(self, key: str) -> str | None:
        try:
            return bytes(self._library.get(self._objects, _name(key)).bytes()).decode()
        except FileNotFoundError:
            return None

    def put(self, key: str, data: str) -> None:
        self._library.put(self._objects, _name(key), data.encode())

    def list(self, max_results: int | None = None) -> Iterable[str]:
        found = [one for page in self._library.list(self._objects, prefix="helion/v1/") for one in page]
        newest = sorted(found, key=lambda one: (one["last_modified"], one["path"]), reverse=True)[:max_results]
        return [text for one in newest if (text := self.get(one["path"].rpartition("/")[2][: -len(".json")]))]


def _name(key: str) -> str:
    return f"helion/v1/{key}.json"
