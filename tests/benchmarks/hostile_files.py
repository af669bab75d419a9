"""Read cache files that were made to be expensive, and check that the time grows only with their size.

    python tests/benchmarks/hostile_files.py [--megabytes 4] [FILE ...]

The script writes each file and reads it. The result must be a cache or one line of error. If that takes longer than
0.8 s, the script also reads a file of half the size. The table has seconds of processor time. The exit status is 1 if
the whole file takes more than four times as long as half of it (a time below 0.2 s counts as 0.2 s), or if an error is
not one printable line.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Protocol

from pytest_autotune.cache.codec import Format, encode
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions
from pytest_autotune.cache.stores import read_cache

#: A longer time than this many times the time for half of the file is too long.
MAX_RATIO = 4
#: Times below this are too short to compare.
SHORTEST_S = 0.2


class HostileFile(Protocol):
    """A file that can be built in any size."""

    def build(self, size: int) -> bytes:
        """Return a file of about this many bytes."""


@dataclass(frozen=True)
class Repeated:
    """A text file in which one piece is repeated until the file is large enough."""

    head: str
    piece: str
    tail: str

    def build(self, size: int) -> bytes:
        count = size // len(self.piece)
        return f"{self.head}{self.piece * count}{self.tail}".encode()


@dataclass(frozen=True)
class Numbered:
    """A text file in which a piece is repeated with another number each time; ``%d`` stands for the number."""

    head: str
    piece: str
    tail: str

    def build(self, size: int) -> bytes:
        count = size // len(self.piece % 99_999)
        pieces = "".join(self.piece % number for number in range(count))
        return f"{self.head}{pieces}{self.tail}".encode()


@dataclass(frozen=True)
class Words:
    """A file with many different words of four letters.

    :param before: bytes before each word.
    :param after: bytes after each word, between two words only.
    """

    head: bytes
    before: bytes
    after: bytes
    tail: bytes

    def build(self, size: int) -> bytes:
        count = size // (4 + len(self.before) + len(self.after))
        words = self.after.join(self.before + word for word in islice(_list_words(), count))
        return self.head + words + self.tail


def _list_words() -> Iterator[bytes]:
    """Yield words of four letters, all different."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    for word in product(letters, repeat=4):
        yield "".join(word).encode()


class WrittenYaml:
    """A YAML file as the plugin writes it."""

    def build(self, size: int) -> bytes:
        device = Device("NVIDIA H200", "sm_90", 132)
        digests = (Value("search", "c0ffee123456", "digest"), Value("source", "5f2c91d0a7b3", "digest"))
        choice = Candidate("", (Value("BLOCK_M", 64), Value("BLOCK_N", 128), Value("num_warps", 4)), 10.4)
        dtypes = [Value(f"{name}_ptr.dtype", "fp16", "dtype") for name in "ab"]
        versions = Versions.parse("triton 3.6.0, torch 2.11.0")
        entries = []
        # An entry has about 780 bytes.
        for number in range(size // 780):
            sizes = [Value(name, number + offset) for offset, name in enumerate("KMN")]
            problem = Problem("triton", f"lib.ops.kernel_{number % 40}", (*sizes, *dtypes), device)
            entries.append(Entry(problem, digests, choice, tuning_seconds=5.3, versions=versions))
        return encode(Cache(tuple(entries)), Format.YAML)


def _varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def _field(tag: int, data: bytes) -> bytes:
    """Return a protobuf field of text, bytes or a message."""
    return bytes([tag << 3 | 2]) + _varint(len(data)) + data


#: The number of a piece of a binary file, in a fixed width. It is replaced by 0, 1, 2 …
NUMBER_8, NUMBER_12 = b"#" * 8, b"#" * 12


@dataclass(frozen=True)
class Binary:
    """A binary file in which a field of the cache is repeated after a head."""

    head: bytes
    piece: bytes

    def build(self, size: int) -> bytes:
        return self.head + _repeat(self.piece, size)


@dataclass(frozen=True)
class BinaryEntry:
    """A binary file with one entry, in which a field of the entry is repeated.

    :param container: the tag of the entry's field that has all the pieces, or None: they are fields of the entry.
    """

    piece: bytes
    container: int | None = None

    def build(self, size: int) -> bytes:
        pieces = _repeat(self.piece, size)
        if self.container is not None:
            pieces = _field(self.container, pieces)
        return DEVICE_HEAD + _field(3, PROBLEM + pieces)


class BinaryWords:
    """A binary file with one entry that was compiled for many different words."""

    def build(self, size: int) -> bytes:
        words = [_field(12, word) for word in islice(_list_words(), size // 6)]
        return DEVICE_HEAD + _field(3, PROBLEM + b"".join(words))


def _repeat(piece: bytes, size: int) -> bytes:
    """Repeat a piece until there are about this many bytes, with another number each time if it has a place for it."""
    count = size // len(piece)
    for place in (NUMBER_12, NUMBER_8):
        if place in piece:
            numbers = [str(number).zfill(len(place)).encode() for number in range(count)]
            return b"".join(piece.replace(place, number) for number in numbers)
    return piece * count


HEAD = 'format_version: 1\ndevices { id: "d" }\n'
ENTRY = 'entries { tuner: "t" kernel: "k" device: "d" '
JSON = '{"format_version": 1, "devices": [{"id": "d"}], "entries": [{"tuner": "t", "kernel": "k", "device": "d", '
YAML = 'format_version: 1\ndevices: [{id: "d"}]\nentries:\n- {tuner: "t", kernel: "k", device: "d", '
#: The format's version, alone and with a device.
VERSION_HEAD = b"\x08\x01"
DEVICE_HEAD = VERSION_HEAD + _field(2, _field(1, b"d"))
#: The fields of an entry that name its tuner, kernel and device.
PROBLEM = _field(1, b"t") + _field(2, b"k") + _field(4, b"d")
NUMBERED_PROBLEM = _field(1, b"t") + _field(2, NUMBER_8) + _field(4, b"d")

#: The files by their name, whose suffix is their format.
FILES: dict[str, HostileFile] = {
    "names.textproto": Numbered(HEAD + ENTRY, 'key { name: "%d" } ', "}"),
    "candidates.textproto": Repeated(HEAD + ENTRY, "candidates {}", "}"),
    "list.textproto": Repeated(HEAD + ENTRY + "candidates [", "{},", "{}] }"),
    "one-line.textproto": Repeated(HEAD + ENTRY + 'label: "', "x", '" ? }'),
    "escapes.textproto": Repeated(HEAD + ENTRY + 'label: "', "\\n", '" }'),
    "unknown.textproto": Repeated(HEAD, "new { a: 1 }\n", ""),
    "comments.textproto": Repeated("", "#\n", HEAD),
    "entries.textproto": Repeated(HEAD, "entries {}\n", ""),
    "duplicates.textproto": Repeated(HEAD, ENTRY + "}\n", ""),
    "names.json": Numbered(JSON + '"key": [', '{"name":"%d"},', "{}]}]}"),
    "one-object.json": Numbered("{", '"%d":1,', '"0":1}'),
    "lists.json": Repeated("[", "[],", "[]]"),
    "objects.json": Repeated("[", "{},", "{}]"),
    "unknown-objects.json": Repeated("[", '{"a":0},', "{}]"),
    "numbers.json": Repeated("[", "1000,", "1]"),
    "texts.json": Repeated("[", '"xy",', "1]"),
    "names.yaml": Numbered(YAML + "key: [", '{name: "%d"},', "{}]}\n"),
    "lists.yaml": Repeated("[", "[],", "[]]"),
    "items.yaml": Repeated("", "- 1\n", ""),
    "objects.yaml": Repeated("", "- {}\n", ""),
    "written.yaml": WrittenYaml(),
    "aliases.yaml": Numbered("a: &a [x,x]\n", "b%d: [*a,*a]\n", ""),
    "candidates.pb": BinaryEntry(b"\x3a\x00"),
    "params.pb": BinaryEntry(b"\x12\x00", container=6),
    "names.pb": BinaryEntry(b"\x1a\x00"),
    "entries.pb": Binary(VERSION_HEAD, b"\x1a\x00"),
    "devices.pb": Binary(VERSION_HEAD, b"\x12\x00"),
    "distinct-names.pb": BinaryEntry(_field(3, _field(1, NUMBER_12))),
    "distinct-params.pb": BinaryEntry(_field(2, _field(1, NUMBER_12)), container=6),
    "distinct-candidates.pb": BinaryEntry(_field(7, _field(2, _field(1, NUMBER_8)))),
    "distinct-entries.pb": Binary(DEVICE_HEAD, _field(3, NUMBERED_PROBLEM)),
    "names-of-entries.pb": Binary(DEVICE_HEAD, _field(3, PROBLEM + _field(3, _field(1, NUMBER_8)))),
    "distinct-devices.pb": Binary(VERSION_HEAD, _field(2, _field(1, NUMBER_8))),
    "words.textproto": Words((HEAD + ENTRY).encode(), b'compiled:"', b'"', b'"}'),
    "words.json": Words((JSON + '"compiled": [').encode(), b'"', b'",', b'"]}]}'),
    "words.yaml": Words((YAML + "compiled: [").encode(), b"", b",", b"]}\n"),
    "words.pb": BinaryWords(),
    "unknown.pb": Binary(VERSION_HEAD, b"\xa0\x06\x01"),
}


@dataclass(frozen=True)
class Reading:
    """The result of reading a file.

    :param message: the number of entries, or the error without the file's path.
    """

    seconds: float
    message: str

    @property
    def is_plain(self) -> bool:
        """Whether the message is one printable line of reasonable length."""
        return self.message.isprintable() and len(self.message) <= 1000


def read_file(name: str, size: int, folder: Path) -> Reading:
    """Write a file of about this many bytes, and read it."""
    path = folder / name
    path.write_bytes(FILES[name].build(size))
    started = time.process_time()
    try:
        message = f"{len(read_cache(path).entries)} entries"
    except CacheError as error:
        message = str(error).removeprefix(str(path))
    return Reading(time.process_time() - started, message)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("names", nargs="*", default=list(FILES))
    options = parser.parse_args()
    bad_count = 0
    print("| file | s | s, half of it | result |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names:
            whole = read_file(name, int(options.megabytes * 1e6), Path(folder))
            half_s, half_text = SHORTEST_S, ""
            if whole.seconds > SHORTEST_S * MAX_RATIO:
                half_s = read_file(name, int(options.megabytes * 5e5), Path(folder)).seconds
                half_text = f"{half_s:.2f}"
            is_slow = whole.seconds > max(half_s, SHORTEST_S) * MAX_RATIO
            sign = ""
            if is_slow or not whole.is_plain:
                bad_count += 1
                sign = " BAD"
            print(f"| {name} | {whole.seconds:.2f} | {half_text} | {whole.message[:90]} |{sign}", flush=True)
    return 1 if bad_count else 0


if __name__ == "__main__":
    sys.exit(main())
