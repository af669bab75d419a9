"""What files cost that someone made to be expensive: ``python tests/benchmarks/hostile_files.py [--megabytes N]``.

Each comes to a cache or to one line of error, and reading twice as much must not take more than four times as long:
else the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice, product
from pathlib import Path

from pytest_autotune.cache.codec import Format, encode
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions
from pytest_autotune.cache.stores import read_cache

HEAD = 'format_version: 1\ndevices { id: "d" }\n'
ENTRY = 'entries { tuner: "t" kernel: "k" device: "d" '
JSON = '{"format_version": 1, "devices": [{"id": "d"}], "entries": [{"tuner": "t", "kernel": "k", "device": "d", '
YAML = 'format_version: 1\ndevices: [{id: "d"}]\nentries:\n- {tuner: "t", kernel: "k", device: "d", '


def _varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def _field(tag: int, data: bytes) -> bytes:
    return bytes([tag << 3 | 2]) + _varint(len(data)) + data


def _binary(*fields: tuple[int, bytes], repeat: tuple[bytes, int] = (b"", 0)) -> bytes:
    entry = _field(1, b"t") + _field(2, b"k") + _field(4, b"d") + b"".join(_field(*field) for field in fields)
    entry += repeat[0] * repeat[1]
    return b"\x08\x01" + _field(2, _field(1, b"d")) + _field(3, entry)


def _numbered(template: str, size: int) -> str:
    return "".join(template % number for number in range(size // len(template % 99_999)))


def _many(make: Callable[[int], bytes], size: int) -> bytes:
    return b"".join(map(make, range(size // len(make(0)))))


def _written(size: int) -> bytes:
    """YAML as the plugin writes it: an entry has some 780 bytes."""
    device = Device("NVIDIA H200", "sm_90", 132)
    digests = (Value("search", "c0ffee123456", "digest"), Value("source", "5f2c91d0a7b3", "digest"))
    choice = Candidate("", (Value("BLOCK_M", 64), Value("BLOCK_N", 128), Value("num_warps", 4)), 10.4)
    dtypes = [Value(f"{name}_ptr.dtype", "fp16", "dtype") for name in "ab"]
    entries = []
    for number in range(size // 780):
        key = (*(Value(name, number + place) for place, name in enumerate("KMN")), *dtypes)
        problem = Problem("triton", f"lib.ops.kernel_{number % 40}", key, device)
        entries.append(
            Entry(problem, digests, choice, tuning_seconds=5.3, versions=Versions.parse("triton 3.6.0, torch 2.11.0"))
        )
    return encode(Cache(tuple(entries)), Format.YAML)


def _words(size: int) -> Iterator[str]:
    """Words of four letters, all different."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    return map("".join, islice(product(letters, repeat=4), size // 6))


#: name with its suffix -> the file of about so many bytes.
FILES: dict[str, Callable[[int], str | bytes]] = {
    "names.textproto": lambda size: HEAD + ENTRY + _numbered('key { name: "%d" } ', size) + "}",
    "candidates.textproto": lambda size: HEAD + ENTRY + "candidates {}" * (size // 13) + "}",
    "list.textproto": lambda size: HEAD + ENTRY + f"candidates [{'{},' * (size // 3)}{{}}] }}",
    "one-line.textproto": lambda size: HEAD + ENTRY + 'label: "' + "x" * size + '" ? }',
    "escapes.textproto": lambda size: HEAD + ENTRY + 'label: "' + "\\n" * (size // 2) + '" }',
    "unknown.textproto": lambda size: HEAD + "new { a: 1 }\n" * (size // 13),
    "comments.textproto": lambda size: "#\n" * (size // 2) + HEAD,
    "entries.textproto": lambda size: HEAD + "entries {}\n" * (size // 11),
    "duplicates.textproto": lambda size: HEAD + (ENTRY + "}\n") * (size // 50),
    "names.json": lambda size: JSON + f'"key": [{_numbered("""{"name":"%d"},""", size)}{{}}]}}]}}',
    "one-object.json": lambda size: "{" + _numbered('"%d":1,', size) + '"0":1}',
    "lists.json": lambda size: "[" + "[]," * (size // 3) + "[]]",
    "objects.json": lambda size: "[" + "{}," * (size // 3) + "{}]",
    "unknown-objects.json": lambda size: "[" + '{"a":0},' * (size // 8) + "{}]",
    "numbers.json": lambda size: "[" + "1000," * (size // 5) + "1]",
    "texts.json": lambda size: "[" + '"xy",' * (size // 5) + "1]",
    "names.yaml": lambda size: YAML + f'key: [{_numbered("""{name: "%d"},""", size)}{{}}]}}\n',
    "lists.yaml": lambda size: "[" + "[]," * (size // 3) + "[]]",
    "items.yaml": lambda size: "- 1\n" * (size // 4),
    "objects.yaml": lambda size: "- {}\n" * (size // 5),
    "written.yaml": _written,
    "aliases.yaml": lambda size: "a: &a [x,x]\n" + _numbered("b%d: [*a,*a]\n", size),
    "candidates.pb": lambda size: _binary(repeat=(b"\x3a\x00", size // 2)),
    "params.pb": lambda size: _binary((6, b"\x12\x00" * (size // 2))),
    "names.pb": lambda size: _binary(repeat=(b"\x1a\x00", size // 2)),
    "entries.pb": lambda size: b"\x08\x01" + b"\x1a\x00" * (size // 2),
    "devices.pb": lambda size: b"\x08\x01" + b"\x12\x00" * (size // 2),
    "distinct-names.pb": lambda size: _binary(repeat=(_many(lambda n: _field(3, _field(1, b"%012d" % n)), size), 1)),
    "distinct-params.pb": lambda size: _binary((6, _many(lambda n: _field(2, _field(1, b"%012d" % n)), size))),
    "distinct-candidates.pb": lambda size: _binary(
        repeat=(_many(lambda n: _field(7, _field(2, _field(1, b"%08d" % n))), size), 1)
    ),
    "distinct-entries.pb": lambda size: (
        b"\x08\x01"
        + _field(2, _field(1, b"d"))
        + _many(lambda n: _field(3, _field(1, b"t") + _field(2, b"%08d" % n) + _field(4, b"d")), size)
    ),
    "names-of-entries.pb": lambda size: (
        b"\x08\x01"
        + _field(2, _field(1, b"d"))
        + _many(lambda n: _field(3, b"\x0a\x01t\x12\x01k\x22\x01d" + _field(3, _field(1, b"%08d" % n))), size)
    ),
    "distinct-devices.pb": lambda size: b"\x08\x01" + _many(lambda n: _field(2, _field(1, b"%08d" % n)), size),
    "words.textproto": lambda size: HEAD + ENTRY + "".join(f'compiled:"{word}"' for word in _words(size // 2)) + "}",
    "words.json": lambda size: JSON + f'"compiled": [{",".join(json.dumps(word) for word in _words(size))}]}}]}}',
    "words.yaml": lambda size: YAML + f"compiled: [{','.join(_words(size))}]}}\n",
    "words.pb": lambda size: _binary(repeat=(b"".join(_field(12, word.encode()) for word in _words(size)), 1)),
    "unknown.pb": lambda size: b"\x08\x01" + b"\xa0\x06\x01" * (size // 3),
}
#: More of the time for half of a file is too much; less than so many seconds is never.
MOST_TIME, ENOUGH_S = 4, 0.2


def told_of(name: str, size: int, folder: Path) -> tuple[float, str]:
    """Seconds of processor time, and what was told of a file of so many bytes."""
    data = FILES[name](size)
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    started = time.process_time()
    try:
        told = f"{len(read_cache(path).entries)} entries"
    except CacheError as error:
        told = str(error).removeprefix(str(path))
    return time.process_time() - started, told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("names", nargs="*", default=list(FILES))
    options = parser.parse_args()
    found_bad = 0
    print("| file | s | s, half of it | told |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names:
            half, _ = told_of(name, int(options.megabytes * 5e5), Path(folder))
            whole, told = told_of(name, int(options.megabytes * 1e6), Path(folder))
            bad = whole > max(half, ENOUGH_S) * MOST_TIME or not told.isprintable() or len(told) > 1000
            found_bad += bad
            print(f"| {name} | {whole:.2f} | {half:.2f} | {told[:90]} |{' BAD' * bad}", flush=True)
    return 1 if found_bad else 0


if __name__ == "__main__":
    sys.exit(main())
