"""The digest of the bytes of a cache, by which a report names the cache that its process loaded."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pytest_autotune.cache.locations import Location


def compute_content_digest(location: Location) -> str:
    """Return 32 hexadecimal digits for the bytes of a cache file, or for all files of a cache folder.

    The digest is empty for a cache that is missing, and for a URL: other runs add to it at any time.
    """
    if location.url:
        return ""
    path = Path(location.resolved)
    digest = hashlib.sha256()
    try:
        if not location.is_folder:
            digest.update(path.read_bytes())
        else:
            for name in sorted(os.listdir(path)):
                if name.endswith(".textproto"):
                    digest.update(f"{name}\n".encode())
                    digest.update((path / name).read_bytes())
    except OSError:
        return ""
    return digest.hexdigest()[:32]
