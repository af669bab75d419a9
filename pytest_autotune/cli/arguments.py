"""What several commands ask of their arguments."""

from __future__ import annotations

from collections.abc import Iterable

import click

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache

#: A path that shells complete; whether it can be read is for the one who reads it to say.
PATH = click.Path(readable=False)


def check_whole(caches: Iterable[Cache]) -> None:
    """Refuse to write caches of which the output would hold only a part.

    :raises CacheError: where one has fields that this version does not know.
    """
    for cache in caches:
        if cache.lossy:
            raise CacheError(*cache.lossy)
