"""The command ``pytest-autotune convert``, which writes a cache in another form, also from and to XLA's own files."""

from __future__ import annotations

from pathlib import Path

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Device
from pytest_autotune.cache.wording import describe_count
from pytest_autotune.cli.output import PATH, print_lines, refuse_lossy, safe

_XLA = "xla"


@click.command("convert", short_help="write a cache in another form, or between XLA's own files and caches")
@click.argument("source", metavar="IN", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@click.option("--from", "from_", type=click.Choice([_XLA]), help="IN is a file that XLA wrote.")
@click.option("--to", type=click.Choice([_XLA]), help="Write a file that XLA can load.")
@click.option(
    "--xla-format",
    type=click.Choice(["new", "legacy"]),
    help="With --to=xla: which of XLA's two formats, where IN has entries of both.",
)
@click.option(
    "--device",
    metavar="NAME,ARCH,N",
    help='With --from=xla: what the entries were tuned on, as "NVIDIA H200,sm_90,132" (XLA does not write it down).',
)
def command(
    source: str, output: str, from_: str | None, to: str | None, xla_format: str | None, device: str | None
) -> None:
    """Write the cache IN as OUT, in the form that the suffix of OUT stands for.

    An existing OUT is replaced only if IN has every problem and every entry of OUT.
    """
    if device is not None and from_ is None:
        raise CacheError("--device", "says what a file of XLA was tuned on", "add --from=xla")
    if xla_format is not None and to is None:
        raise CacheError("--xla-format", "says what to write for XLA", "add --to=xla")
    xla_device = None
    if device is not None:
        xla_device = _parse_device(device)
    if from_:
        cache = _decode_xla(stores.read_file(source), source, xla_device)
    else:
        cache = _read_cache(source)
    if to:
        print_lines([safe(_write_xla(cache, source, output, xla_format))])
        return
    store = stores.open_store(output)
    store.check_writable()
    with store.open_for_update() as opened:
        remedy = "name another file, remove this one, or merge both with pytest-autotune merge"
        _refuse_loss(cache, output, opened.cache, remedy)
        updated = opened.write(cache)
    print_lines([f"{describe_count(len(cache.entries), 'entry')} written to {safe(updated.written_to)}"])


def _refuse_loss(cache: Cache, output: str, output_cache: Cache, remedy: str) -> None:
    """Refuse to replace a cache that has a problem or an entry which the converted cache lacks.

    A converted entry with the same problem and fingerprint replaces the entry of the output.

    :param remedy: how to keep both.
    :raises CacheError: if there is such a problem or entry.
    """
    problems = {entry.problem for entry in cache.entries}
    identities = {entry.identity for entry in cache.entries}
    lost_problems = {entry.problem for entry in output_cache.entries} - problems
    lost_identities = {entry.identity for entry in output_cache.entries} - identities
    if not lost_identities:
        return
    # The entries of a lost problem are lost, too. The number of problems is the plainer one.
    count = describe_count(len(lost_identities), "entry")
    if lost_problems:
        count = describe_count(len(lost_problems), "problem")
    raise CacheError(output, f"holds {count} that the other cache lacks, and was left as it was", remedy)


def _parse_device(text: str) -> Device:
    parts = list(map(str.strip, text.split(",")))
    if len(parts) != 3 or not parts[0] or not parts[2].isdecimal():
        raise CacheError("--device", f"expected NAME,ARCH,MULTIPROCESSORS, not {text!r}")
    return Device(parts[0], parts[1], int(parts[2]))


def _read_cache(path: str) -> Cache:
    """Read a cache. If the file is XLA's, the error says so."""
    try:
        return refuse_lossy(stores.read_cache(path))
    except CacheError:
        if _is_xla_file(path):
            raise CacheError(path, "is a file of XLA's, not a cache", "add --from=xla") from None
        raise


def _is_xla_file(path: str) -> bool:
    try:
        return _is_xla_data(stores.read_file(path), path)
    except CacheError:
        return False


def _is_xla_data(data: bytes, path: str) -> bool:
    try:
        _decode_xla(data, path)
    except CacheError:
        return False
    return bool(data.strip())


def _decode_xla(data: bytes, path: str, device: Device | None = None) -> Cache:
    """Return the results of a file of XLA as a cache.

    :param path: names the file in messages.
    """
    from pytest_autotune.tuners.xla import entries, files

    return entries.to_cache(files.read(data, path), device)


def _write_xla(cache: Cache, source: str, output: str, format_name: str | None) -> str:
    """Write the entries of XLA in a cache as a file of XLA, and return what was written as a line.

    :param source: the path of the cache, for messages.
    :param format_name: ``"new"`` or ``"legacy"``; None if the cache has entries of a single format.
    """
    from pytest_autotune.tuners.xla import entries, files

    xla_entries = [entries.to_xla(entry) for entry in cache.entries if entry.problem.tuner == entries.NAME]
    layouts = {entry.layout for entry in xla_entries}
    if format_name:
        layouts &= {files.XlaLayout(format_name)}
    if not layouts:
        words = ""
        if format_name:
            words = f" in its {format_name} format"
        raise CacheError(source, f"holds no entries of XLA{words}")
    if len(layouts) > 1:
        raise CacheError(
            source, "holds entries in both of XLA's formats", "add --xla-format=new or --xla-format=legacy"
        )
    (layout,) = layouts
    written_entries = [entry for entry in xla_entries if entry.layout is layout]
    file = stores.OutputFile(output)
    old_data = file.read()
    if old_data.strip():
        if not _is_xla_data(old_data, output):
            raise CacheError(output, "holds something else than XLA's autotuning results", "name a new file")
        # XLA's files do not name the device, so both sides are compared without it.
        written_cache, old_cache = entries.to_cache(written_entries), _decode_xla(old_data, output)
        _refuse_loss(written_cache, output, old_cache, "name another file, or remove this one")
    file.replace(files.write(written_entries, layout, files.is_text(Path(output))))
    line = f"{describe_count(len(written_entries), 'entry')} written to {output} in XLA's {layout.value} format"
    left_out = len(cache.entries) - len(written_entries)
    if left_out:
        line += f"; {describe_count(left_out, 'other')} left out"
    return line
