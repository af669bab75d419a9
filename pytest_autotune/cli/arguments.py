"""What several commands ask of their arguments."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats import format_of, keeps_unknown_fields
from pytest_autotune.cache.model import Cache

#: A path that shells complete; whether it can be read is for the one who reads it to say.
PATH = click.Path(readable=False)


def check_whole(caches: Iterable[tuple[str, Cache]], output: str) -> None:
    """Refuse to write caches of which the output would hold only a part.

    :param caches: by their paths.
    :raises CacheError: where one has fields that this version does not know, and the output cannot keep.
    """
    for path, cache in caches:
        if cache.lossy:
            raise CacheError(*cache.lossy)
        unknown = cache.unknown or any(entry.raw for entry in cache.entries)
        if unknown and (output.endswith("/") or not keeps_unknown_fields(format_of(Path(output)))):
            raise CacheError(path, "has fields that this version does not know", "upgrade pytest-autotune")
