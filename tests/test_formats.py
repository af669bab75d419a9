"""The formats: what they look like, that they say the same, and what they refuse."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import PurePath

import pytest

from pytest_autotune.cache.codec import Format, decode, encode, find_format, mapping
from pytest_autotune.cache.codec.binary import MAX_MESSAGES
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions

H200 = Device("NVIDIA H200", "sm_90", 132)
MI300 = Device("AMD Instinct MI300X", "gfx942", 304)

MATMUL = Entry(
    Problem("triton", "lib.ops.matmul", (Value("M", 1024), Value("dtype", "fp16", "dtype")), H200),
    (Value("source", "5f2c91d0a7b3", "digest"), Value("search", "c0ffee123456", "digest")),
    Candidate(params=(Value("BLOCK", 64), Value("warps", 4)), time_us=10.4),
    tuning_seconds=5.3,
    versions=Versions.parse("triton 3.6.0, torch 2.11.0, cuda 13.0"),
)
TEMPLATE = Entry(
    Problem("inductor.template", "mm", (Value("hint", None, "none"), Value("on", True), Value("alpha", -0.0)), MI300),
    candidates=(
        Candidate("extern", (), 12.0, label="aten"),
        Candidate("", (Value("x", math.inf), Value("y", 1e-05)), None, failed='out of "shared" memory\n\u202e\x1b[0m'),
        Candidate(),
    ),
)
XLA = Entry(Problem("xla", "hlo", (), H200), native=bytes(range(256)), label="fusion(größe, 名前)", choice=Candidate())
NONE_WORKS = Entry(Problem("triton", "k", (), H200), candidates=(Candidate(failed='no "x"'), Candidate(failed="1 > 0")))
CACHE = Cache((TEMPLATE, MATMUL, XLA, NONE_WORKS))

MATMUL_TEXT = """\
# proto-file: pytest_autotune/cache/autotune_cache.proto
# proto-message: pytest_autotune.AutotuneCache
format_version: 1
devices { id: "nvidia-h200-sm90-132" name: "NVIDIA H200" arch: "sm_90" multiprocessors: 132 }
entries {
  tuner: "triton"
  kernel: "lib.ops.matmul"
  key { name: "M" int: 1024 }
  key { name: "dtype" text: "fp16" type: "dtype" }
  device: "nvidia-h200-sm90-132"
  fingerprint { name: "search" text: "c0ffee123456" type: "digest" }
  fingerprint { name: "source" text: "5f2c91d0a7b3" type: "digest" }
  choice { params { name: "BLOCK" int: 64 } params { name: "warps" int: 4 } time_us: 10.4 }  # matmul M=1024 dtype=fp16
  tuning_seconds: 5.3
  environment: "triton 3.6.0, torch 2.11.0, cuda 13.0"
}
"""
MATMUL_YAML = """\
format_version: 1
devices:
- {id: "nvidia-h200-sm90-132", name: "NVIDIA H200", arch: "sm_90", multiprocessors: 132}
entries:
- tuner: "triton"
  kernel: "lib.ops.matmul"
  key:
  - {name: "M", int: 1024}
  - {name: "dtype", text: "fp16", type: "dtype"}
  device: "nvidia-h200-sm90-132"
  fingerprint:
  - {name: "search", text: "c0ffee123456", type: "digest"}
  - {name: "source", text: "5f2c91d0a7b3", type: "digest"}
  choice:
    params:
    - {name: "BLOCK", int: 64}
    - {name: "warps", int: 4}
    time_us: 10.4
  tuning_seconds: 5.3
  environment: "triton 3.6.0, torch 2.11.0, cuda 13.0"
"""

# A format that is added is in all of these; what only it can get wrong stands in tests of its own.
TEXTS = [format for format in Format if format.value.is_text]


def reads(format: Format, text: str) -> bool:
    """Whether a text is one of this format, whatever else it may be."""
    try:
        return bool(format.value.read(text, "cache").entries)
    except CacheError:
        return False


every_format = pytest.mark.parametrize("format", Format, ids=lambda format: format.value.name)
every_text = pytest.mark.parametrize("format", TEXTS, ids=lambda format: format.value.name)


def refusal(data: bytes | str, format: Format) -> str:
    """The one line that decoding comes to."""
    with pytest.raises(CacheError) as caught:
        decode(data.encode() if isinstance(data, str) else data, format, "cache")
    message = str(caught.value)
    assert "\n" not in message
    return message


def matmul_with(**fields: object) -> str:
    """A cache in JSON whose entry has other fields."""
    plain = json.loads(encode(Cache((MATMUL,)), Format.JSON))
    plain["entries"][0].update(fields)
    return json.dumps(plain)


mapping_formats = pytest.mark.parametrize(
    "format", [format for format in TEXTS if reads(format, matmul_with())], ids=lambda format: format.value.name
)


# Writing


def test_the_text_format_has_exactly_the_documented_layout():
    assert encode(Cache((MATMUL,)), Format.TEXT).decode() == MATMUL_TEXT


def test_the_yaml_format_has_exactly_the_expected_layout():
    assert encode(Cache((MATMUL,)), Format.YAML).decode() == MATMUL_YAML


@every_format
def test_devices_with_similar_names_are_kept_apart_in_a_file(format):
    devices = [Device("Toy GPU", "a_1"), Device("toy gpu", "a1"), Device("Toy/GPU", "a1"), Device("Toy GPU", "a1", 2)]
    cache = Cache(tuple(Entry(Problem("t", "k", (), device), label=device.name) for device in devices))
    data = encode(cache, format)
    assert set(decode(data, format, "cache").entries) == set(cache.entries)
    assert encode(Cache(cache.entries[::-1]), format) == data


def test_of_two_entries_of_a_problem_the_faster_one_is_read():
    block = MATMUL_TEXT[MATMUL_TEXT.index("entries {") :]
    other = block.replace("time_us: 10.4", "time_us: 9.5").replace("int: 64", "int: 128")
    head = MATMUL_TEXT[: -len(block)]
    for text in (head + block + other, head + other + block, head + " " + other + block):
        (entry,) = decode(text.encode(), Format.TEXT, "cache").entries
        assert entry.choice.time_us == 9.5


# Reading


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("  key", "\n   # tuned by hand\n\tkey"),
        lambda text: text.split("\n", 2)[2],
        lambda text: text.replace('"lib.ops.matmul"', "'lib.ops' '.matmul'"),
        lambda text: text.replace("key {", "key: <").replace("1024 }", "0x400 >").replace('"dtype" }', '"dtype" >'),
        lambda text: re.sub("#.*", "", text).replace("\n", " "),
    ],
    ids=["crlf", "comments", "no header", "other quotes", "other brackets", "one line"],
)
def test_a_cache_with_a_hand_edited_layout_has_the_same_entries(edit):
    assert decode(edit(MATMUL_TEXT).encode(), Format.TEXT, "cache") == Cache((MATMUL,))


@pytest.mark.parametrize("written", TEXTS, ids=lambda format: format.value.name)
@every_format
def test_a_wrong_suffix_is_an_error_that_names_the_right_one(format, written):
    data = encode(Cache((MATMUL,)), written)
    forms = [form for form in TEXTS if reads(form, data.decode())]  # JSON is YAML
    if format in forms:
        assert decode(data, format, "cache").entries == (MATMUL,)
    else:
        expected = [
            f"is in the format {form.value.name}, but its name stands for {format.value.name} "
            f"(rename it to end in {form.value.suffixes[0]})"
            for form in forms
        ]
        assert refusal(data, format).removeprefix("cache: ") in expected


@every_format
def test_a_git_lfs_pointer_is_an_error_that_says_git_lfs_pull(format):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
    assert refusal(pointer, format) == "cache: is a pointer of Git LFS, not the file itself (run: git lfs pull)"


@every_text
def test_an_error_in_a_megabyte_long_line_has_a_short_message(format):
    text = encode(Cache((MATMUL,)), format).decode()
    for damaged in (text.replace("1024", "x" * 1_400_000), text.replace("key", "k" * 1_400_000), "a " * 700_000):
        assert len(told(damaged, format)) < 500


# Newer versions


@every_format
def test_a_newer_format_version_is_an_error_that_says_upgrade(format, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr(mapping, "FORMAT_VERSION", 2)
        data = encode(Cache((MATMUL,)), format)
    expected = "format_version 2 is newer than this pytest-autotune reads (1) (upgrade pytest-autotune)"
    assert refusal(data, format) == f"cache: {expected}"


@pytest.mark.parametrize(
    ("data", "format"),
    [
        (MATMUL_TEXT.replace("  device:", "  colour: { red: 1 }\n  device:"), Format.TEXT),
        (MATMUL_TEXT.replace("int: 64 }", "int: 64 size: 3 }"), Format.TEXT),
        (MATMUL_YAML.replace("  device:", "  colour: {red: 1}\n  device:"), Format.YAML),
        (MATMUL_YAML.replace("int: 64", "int: 64, size: 3"), Format.YAML),
        (matmul_with(colour={"red": [1]}), Format.JSON),
        (matmul_with().replace('"arch"', '"vendor": "NVIDIA", "arch"'), Format.JSON),
    ],
    ids=["text entry", "text value", "YAML entry", "YAML value", "JSON entry", "JSON device"],
)
def test_a_cache_with_unknown_fields_is_read_but_not_rewritable(data, format):
    cache = decode(data.encode(), format, "cache")
    assert cache.lossy
    assert cache.entries == (MATMUL,)


# Errors


@every_format
@pytest.mark.parametrize("data", [b"", b" \n\t"])
def test_reading_an_empty_cache_file_is_an_error(data, format):
    assert "is empty" in refusal(data, format)


@every_text
def test_a_binary_cache_with_a_text_suffix_is_an_error(format):
    message = f"is in the format binary, but its name stands for {format.value.name} (rename it to end in .pb)"
    assert refusal(encode(CACHE, Format.BINARY), format) == f"cache: {message}"


@pytest.mark.parametrize(
    ("data", "format", "place"),
    [
        (MATMUL_TEXT.replace("time_us: 10.4", "time_us: ten"), Format.TEXT, "cache:13:"),
        (MATMUL_YAML.replace("  key:", "  key: ]"), Format.YAML, "cache:7:"),
        (encode(Cache((MATMUL,)), Format.JSON).decode().replace(": 1024", ": ,"), Format.JSON, "cache:18:"),
    ],
    ids=["text", "YAML", "JSON"],
)
def test_a_syntax_error_in_a_cache_is_reported_with_its_line(data, format, place):
    assert refusal(data, format).startswith(place)


@every_text
def test_a_merge_conflict_is_an_error_that_names_a_git_command(format):
    lines = encode(Cache((MATMUL,)), format).decode().splitlines(keepends=True)
    lines[1:1] = ["<<<<<<< HEAD\n", "=======\n", ">>>>>>> main\n"]
    message = refusal("".join(lines), format)
    assert message.startswith("cache:2: the file has an unresolved merge conflict")
    assert message.endswith("&& git add cache)")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('device: "nv', 'device: "xx', 'entries[0].device: no device has the id "xxidia-h200-sm90-132"'),
        ('tuner: "triton"', 'tuner: ""', "entries[0]: its tuner is empty"),
        ('kernel: "lib.ops.matmul"', "", "entries[0]: its kernel is empty"),
        ("dtype", "M", 'entries[0]: the name "M" is used twice in its key'),
        ("devices {", "devices { id: 'nvidia-h200-sm90-132' }\ndevices {", '"nvidia-h200-sm90-132" is used twice'),
        ('id: "nvidia-h200-sm90-132"', "", "devices[0] has no id"),
    ],
)
def test_an_invalid_textproto_value_is_reported_with_its_path(old, new, expected):
    assert expected in refusal(MATMUL_TEXT.replace(old, new, 1), Format.TEXT)


@mapping_formats
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"key": [{"name": "M", "int": True}]}, "entries[0].key[0].int: True where an integer of 64 bits belongs"),
        ({"key": [{"name": "M", "int": 1.0}]}, "entries[0].key[0].int: 1.0 where an integer"),
        ({"key": [{"name": "M", "int": 2**63}]}, "entries[0].key[0].int: 9223372036854775808 where an integer"),
        ({"key": [{"name": "M", "int": 1, "text": ""}]}, "entries[0].key[0] has int and text"),
        ({"key": [{"name": "M", "float": "1.5"}]}, "entries[0].key[0].float: '1.5' where a number"),
        ({"key": [{"name": "M", "float": 2**53 + 1}]}, "entries[0].key[0].float: 9007199254740993 where a number"),
        ({"key": [{"name": "M", "bool": 1}]}, "entries[0].key[0].bool: 1 where true or false belongs"),
        ({"key": {"M": 1}}, "entries[0].key: {'M': 1} where a list belongs"),
        ({"key": [None]}, "entries[0].key[0]: None where a mapping belongs"),
        ({"tuner": 3}, "entries[0].tuner: 3 where text in quotes belongs"),
        ({"native": "no base64"}, "entries[0].native is not base64"),
        ({"choice": []}, "entries[0].choice: [] where a mapping belongs"),
        ({"device": "other"}, 'entries[0].device: no device has the id "other"'),
    ],
)
def test_an_error_in_a_json_or_yaml_entry_names_its_field_path(fields, expected, format):
    assert expected in refusal(matmul_with(**fields), format)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("a: &x [1]\nb: *x", "an alias"),
        ("!!python/object/apply:os.system [echo]", "the tag"),
        ("format_version: !!int 1", "the tag"),
        ("format_version: 1\nformat_version: 1", "stands twice"),
        ("format_version: 1\n---\nformat_version: 1", "2 YAML documents where one belongs"),
        ("- 1", "[1] where a mapping belongs"),
        ("? [1]\n: 2", "a name that is not text"),
        ("format_version: 1\nentries: [{tuner: 2024-01-01}]", "entries[0].device"),
        ("[" * 100_000, "nested too deeply"),
        ("- " * 100_000, "nested too deeply"),
        ("{a: " * 100_000, "nested too deeply"),
        ("a: \x07", "is not YAML"),
    ],
    ids=lambda text: text[:24],
)
def test_a_yaml_cache_with_tags_or_aliases_is_an_error(data, expected):
    assert expected in refusal(data, Format.YAML)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ('{"format_version": 1, "format_version": 1}', "stands twice"),
        ('{"format_version": NaN}', "nan where an integer of 32 bits belongs"),
        ('{"format_version": ' + "9" * 5000 + "}", "cache"),
        ('{"format_version": 1, "devices": [{"id": "\\ud800", "name": "\\ud800"}]}', "UTF-8 cannot encode"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "[] where a mapping belongs"),
    ],
    ids=["twice", "nan", "digits", "surrogate", "nested", "list"],
)
def test_a_json_cache_with_duplicate_keys_or_nan_is_an_error(data, expected):
    assert expected in refusal(data, Format.JSON)


# Names and imports


@every_format
def test_the_suffix_of_a_cache_path_decides_the_file_format(format):
    for suffix in format.value.suffixes:
        assert find_format(PurePath(f"a{suffix}")) is format
        assert find_format(PurePath(f"a.b{suffix.upper()}")) is format


@pytest.mark.parametrize("name", ["cache", "cache.docx", ".json"])
def test_an_unknown_suffix_is_an_error_that_lists_the_known_ones(name):
    suffixes = " ".join(suffix for format in Format for suffix in format.value.suffixes)
    with pytest.raises(CacheError, match=re.escape(suffixes)):
        find_format(PurePath(name))


def test_importing_the_cache_imports_neither_protobuf_nor_yaml():
    names = ("model", "errors", "index", "stores", "codec")
    program = "; ".join(
        [*(f"import pytest_autotune.cache.{name}" for name in names), "import sys; print(*sys.modules)"]
    )
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert not {"yaml", "google.protobuf", "pytest", "torch"} & set(loaded)


# The messages about damaged and mistyped files


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("  kernel:", "  kernle:", 'cache:7: the field "kernle" is unknown (correct the name: is it "kernel"?)'),
        ("entries {", "entires {", 'cache:5: the field "entires" is unknown (correct the name: is it "entries"?)'),
        (
            "fingerprint {",
            "fingreprint {",
            'cache:11: the field "fingreprint" is unknown (correct the name: is it "fingerprint"?)',
        ),
        ("time_us", "colour", 'cache:13: the field "colour" is unknown (upgrade pytest-autotune)'),
    ],
)
def test_an_unknown_field_is_reported_with_line_and_likely_name(old, new, expected):
    assert told(MATMUL_TEXT.replace(old, new, 1), Format.TEXT) == expected


def told(data: str, format: Format) -> str:
    """Return the error of a file that is refused, or the reason why a loaded file must not be rewritten."""
    try:
        lossy = decode(data.encode(), format, "cache").lossy
    except CacheError as error:
        return str(error)
    assert lossy
    return str(CacheError(*lossy))


@pytest.mark.parametrize(
    "text", ["", "triton 3.6.0, torch 2.11.0+cu130, cuda 13.0", "x", "x , y", " a", "a, , b", "a  b c"]
)
def test_library_versions_are_printed_as_read_even_if_malformed(text: str) -> None:
    """Text that is no list of versions stays as it is, too."""
    assert str(Versions.parse(text)) == text


def test_words_after_a_quoted_text_in_a_text_cache_are_an_error() -> None:
    assert refusal(MATMUL_TEXT.replace('"triton"', '"triton" or""'), Format.TEXT).startswith("cache:6:21: ")


@pytest.mark.parametrize("data", [b"\x1a\x00", b"\x12\x00", b"\x22\x00"])
def test_a_binary_cache_of_too_many_empty_messages_is_an_error(data: bytes) -> None:
    assert "not a cache" in refusal(b"\x08\x01" + data * (MAX_MESSAGES + 1), Format.BINARY)


@pytest.mark.parametrize("other_choice", [None, *(Candidate("x", time_us=time) for time in (None, math.nan, 11.0))])
def test_the_faster_of_two_equal_entries_stays(other_choice: Candidate | None) -> None:
    other = replace(MATMUL, choice=other_choice)

    assert mapping.without_duplicates([MATMUL, other]) == (MATMUL,)
    assert mapping.without_duplicates([other, MATMUL]) == (MATMUL,)


@every_format
@pytest.mark.parametrize(("generation", "read"), [(2**31 - 1, 2**31 - 1), (2**31, 0)])
def test_a_generation_above_the_maximum_is_read_as_0(format, generation: int, read: int) -> None:
    """An entry of the last generation is replaced like any other, and one beyond it would never be replaced."""
    data = encode(Cache((replace(MATMUL, generation=generation),)), format)
    assert decode(data, format, "cache").entries[0].generation == read


def test_a_large_file_in_another_format_gets_no_rename_advice() -> None:
    """A large file would take protobuf's parser a second per MiB."""
    small, large = (b" " * size + encode(Cache((MATMUL,)), Format.JSON) for size in (0, 8 << 20))
    assert "rename it" in refusal(small, Format.TEXT)
    assert "rename it" not in refusal(large, Format.TEXT)
