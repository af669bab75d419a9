"""``pytest-autotune git-merge``: git's merge driver for caches."""

from __future__ import annotations

from pathlib import Path

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.combine import combine
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats import Format, decode, encode, format_of
from pytest_autotune.cache.model import Cache
from pytest_autotune.cli.arguments import check_whole
from pytest_autotune.cli.merge import settled
from pytest_autotune.cli.output import safe
from pytest_autotune.cli.status import FOUND, OK


@click.command("git-merge", short_help="git's merge driver; git-setup installs it")
@click.argument("ancestor")
@click.argument("ours")
@click.argument("theirs")
@click.argument("path")
def command(ancestor: str, ours: str, theirs: str, path: str) -> int:
    """Merge the files THEIRS and OURS into OURS, as versions of the cache PATH that began with ANCESTOR.

    What only one side changed is changed; of two entries of one problem and fingerprint, the one stays that a run
    would keep. Exit status 1 where one side cannot be read: then OURS is as it was.
    """
    format = format_of(Path(path), path)
    try:
        sides = {name: _read(side, format, path) for name, side in (("ours", ours), ("theirs", theirs))}
        before = _read(ancestor, format, path)
        check_whole(sides.values())
        combined = combine(sides, before)
        data = encode(combined.cache, format)
    except CacheError as error:
        click.echo(f"pytest-autotune: {path}: cannot be merged as a cache: {error}", err=True)
        return FOUND
    stores.replace_file(ours, data)
    for line in settled(combined):
        click.echo(f"{safe(path)}: {line}", err=True)
    return OK


def _read(version: str, format: Format, path: str) -> Cache:
    """One of git's versions of a file; an empty one where both sides added the file."""
    data = stores.file_bytes(version)
    return decode(data, format, path) if data.strip() else Cache()
