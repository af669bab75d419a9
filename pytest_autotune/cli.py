"""The command ``pytest-autotune``: what can be done with caches without running tests.

Each verb is a :class:`Verb`; exit statuses are 0, and 4 (pytest's for a usage error)
with one line on standard error for arguments that make no sense, an input that
cannot be read and an output that cannot be written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.cache.formats import Format, format_of
from pytest_autotune.cache.model import Cache, Device

PROGRAM = "pytest-autotune"
FAILED = 4
_XLA = "xla"


@dataclass(frozen=True)
class Verb:
    """One thing that the command does.

    :param help: one line about it.
    :param add_arguments: declares its arguments.
    :param run: does it; what it returns is printed.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    :returns: its exit status.
    """
    try:
        options = _parser().parse_args(arguments)
        verb: Verb = options.verb
        print(one_line(verb.run(options)))
    except CacheError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return FAILED
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(FAILED, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description="Work with autotuning caches.", allow_abbrev=False)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name, verb in VERBS.items():
        of_verb = verbs.add_parser(name, help=verb.help, description=verb.help, allow_abbrev=False)
        verb.add_arguments(of_verb)
        of_verb.set_defaults(verb=verb)
    return parser


# convert


def _add_convert_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="IN", help="a cache: .textproto, .pb, .yaml, .json, or a folder ending in /")
    parser.add_argument("output", metavar="OUT", help="the same, in any of these forms; what is there is replaced")
    parser.add_argument("--from", dest="from_", choices=[_XLA], help="IN is a file that XLA wrote")
    parser.add_argument("--to", choices=[_XLA], help="write a file that XLA can load")
    parser.add_argument(
        "--xla-format",
        choices=["new", "legacy"],
        help="with --to=xla: which of XLA's two formats, where IN has entries of both",
    )
    parser.add_argument(
        "--device",
        metavar="NAME,ARCH,N",
        help='with --from=xla: what the entries were tuned on, as "NVIDIA H200,sm_90,132" (XLA does not write it down)',
    )


def _convert(options: argparse.Namespace) -> str:
    if options.device is not None and options.from_ is None:
        raise CacheError("--device", "says what a file of XLA was tuned on", "add --from=xla")
    if options.xla_format is not None and options.to is None:
        raise CacheError("--xla-format", "says what to write for XLA", "add --to=xla")
    device = _device(options.device) if options.device is not None else None
    cache = _read_xla(options.input, device) if options.from_ else _read_whole(options.input, options.output)
    if options.to:
        return _write_xla(cache, options.input, options.output, options.xla_format)
    stores.check_writable(options.output)
    updated = stores.update(options.output, lambda now: cache)
    return f"{_count(len(cache.entries))} written to {updated.written_to}"


def _device(text: str) -> Device:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 3 or not parts[0] or not parts[2].isdecimal():
        raise CacheError("--device", f"expected NAME,ARCH,MULTIPROCESSORS, not {text!r}")
    return Device(parts[0], parts[1], int(parts[2]))


def _read_whole(path: str, output: str) -> Cache:
    """A cache of ours; not one of which the output would hold only a part."""
    try:
        cache = stores.read(path)
    except CacheError as error:
        hint = "if XLA wrote it, add --from=xla" if "format_version" in error.found else error.remedy
        raise CacheError(error.where, error.found, hint) from None
    if cache.lossy:
        raise CacheError(*cache.lossy)
    unknown = cache.unknown or any(entry.raw for entry in cache.entries)
    if unknown and (output.endswith("/") or format_of(Path(output)) is not Format.BINARY):
        raise CacheError(path, "has fields that this version does not know", "upgrade pytest-autotune")
    return cache


def _read_xla(path: str, device: Device | None) -> Cache:
    from pytest_autotune.tuners.xla import entries, files

    data = stores.file_bytes(path)
    return entries.to_cache(files.read(data, files.is_text(Path(path)), path), device)


def _write_xla(cache: Cache, input: str, output: str, wanted: str | None) -> str:
    from pytest_autotune.tuners.xla import entries, files

    ours = [entry for entry in cache.entries if entries.is_of_xla(entry)]
    theirs = [entries.to_xla(entry) for entry in ours]
    found = {entry.layout for entry in theirs}
    layout = files.Layout(wanted) if wanted else next(iter(found), None)
    chosen = [entry for entry in theirs if entry.layout is layout]
    if layout is None or not chosen:
        raise CacheError(input, f"holds no entries of XLA{f' in its {wanted} format' if wanted else ''}")
    if wanted is None and len(found) > 1:
        raise CacheError(input, "holds entries in both of XLA's formats", "add --xla-format=new or --xla-format=legacy")
    _check_replaceable(output)
    data = files.write(chosen, layout, files.is_text(Path(output)))
    stores.replace_file(output, data)
    left_out = len(cache.entries) - len(chosen)
    rest = f"; {left_out} other{'' if left_out == 1 else 's'} left out" if left_out else ""
    return f"{_count(len(chosen))} written to {output} in XLA's {layout.value} format{rest}"


def _check_replaceable(output: str) -> None:
    """Replace a file of XLA, but nothing else."""
    from pytest_autotune.tuners.xla import files

    if Path(output).exists() and (data := stores.file_bytes(output)):
        try:
            files.read(data, files.is_text(Path(output)), output)
        except CacheError:
            raise CacheError(output, "holds something else than XLA's autotuning results", "name a new file") from None


def _count(entries: int) -> str:
    return "1 entry" if entries == 1 else f"{entries} entries"


VERBS = {
    "convert": Verb(
        "write a cache in another form, or between XLA's own files and caches", _add_convert_arguments, _convert
    )
}

if __name__ == "__main__":
    sys.exit(main())
