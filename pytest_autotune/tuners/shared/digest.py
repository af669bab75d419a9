"""Short digests of text."""

from __future__ import annotations

import hashlib

DIGEST_LENGTH = 12


def digest(text: str) -> str:
    """A short digest of text, as fingerprints hold them."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]
