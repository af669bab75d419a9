"""``pytest-autotune convert``: a cache in another form, or XLA's own files as a cache and back."""

from __future__ import annotations

from pathlib import Path

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Device
from pytest_autotune.cache.quantities import describe_count
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
    """Write the cache IN as OUT, in the form that the suffix of OUT stands for; what OUT held is replaced."""
    if device is not None and from_ is None:
        raise CacheError("--device", "says what a file of XLA was tuned on", "add --from=xla")
    if xla_format is not None and to is None:
        raise CacheError("--xla-format", "says what to write for XLA", "add --to=xla")
    on = _device(device) if device is not None else None
    cache = _decode_xla(stores.read_file(source), source, on) if from_ else _read_whole(source)
    if to:
        print_lines([safe(_write_xla(cache, source, output, xla_format))])
        return
    store = stores.open_store(output)
    store.check_writable()
    updated = store.update(lambda now: cache)
    print_lines([f"{describe_count(len(cache.entries), 'entry')} written to {safe(updated.written_to)}"])


def _device(text: str) -> Device:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 3 or not parts[0] or not parts[2].isdecimal():
        raise CacheError("--device", f"expected NAME,ARCH,MULTIPROCESSORS, not {text!r}")
    return Device(parts[0], parts[1], int(parts[2]))


def _read_whole(path: str) -> Cache:
    """A cache of ours."""
    try:
        return refuse_lossy(stores.read_cache(path))
    except CacheError:
        if _is_file_of_xla(path):
            raise CacheError(path, "is a file of XLA's, not a cache", "add --from=xla") from None
        raise


def _is_file_of_xla(path: str) -> bool:
    try:
        return _is_of_xla(stores.read_file(path), path)
    except CacheError:
        return False


def _is_of_xla(data: bytes, path: str) -> bool:
    try:
        _decode_xla(data, path)
    except CacheError:
        return False
    return bool(data.strip())


def _decode_xla(data: bytes, path: str, device: Device | None = None) -> Cache:
    from pytest_autotune.tuners.xla import entries, files

    return entries.to_cache(files.read(data, path), device)


def _write_xla(cache: Cache, source: str, output: str, wanted: str | None) -> str:
    from pytest_autotune.tuners.xla import entries, files

    ours = [entry for entry in cache.entries if entry.problem.tuner == entries.NAME]
    theirs = [entries.to_xla(entry) for entry in ours]
    found = {entry.layout for entry in theirs}
    layout = files.XlaLayout(wanted) if wanted else next(iter(found), None)
    chosen = [entry for entry in theirs if entry.layout is layout]
    if layout is None or not chosen:
        raise CacheError(source, f"holds no entries of XLA{f' in its {wanted} format' if wanted else ''}")
    if wanted is None and len(found) > 1:
        raise CacheError(
            source, "holds entries in both of XLA's formats", "add --xla-format=new or --xla-format=legacy"
        )
    file = stores.OutputFile(output)
    before = file.read()
    if before.strip() and not _is_of_xla(before, output):
        raise CacheError(output, "holds something else than XLA's autotuning results", "name a new file")
    file.replace(files.write(chosen, layout, files.is_text(Path(output))))
    left_out = len(cache.entries) - len(chosen)
    rest = f"; {describe_count(left_out, 'other')} left out" if left_out else ""
    return f"{describe_count(len(chosen), 'entry')} written to {output} in XLA's {layout.value} format{rest}"
