"""Every renderer shows hostile text of a cache, a kernel or a device as harmless words of one line."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import pytest

from pytest_autotune.cache.codec import Format, encode
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions
from pytest_autotune.cache.wording import to_one_line
from pytest_autotune.report import FILES

from .conftest import Suite

#: A forged row, colours, a window title, an 8-bit control, reordered and invisible characters, a command of a CI
#: system, the end of a script and of a cell.
HOSTILE = (
    "::error::a\n::error file=x::forged\r\x1b[31m\x1b]0;title\x07\x9b1m\u202e\u2066\u200b\u2028\x85\u3164\x00"
    "</script><img src=x onerror=alert(1)><!--{{data}}|`z"
)
COMMANDS = ("::", "##")


def check_plain(shown: str) -> None:
    """Nothing in it has an effect, and no line of it is a command."""
    invisible = {char for char in shown if not char.isprintable() and char != "\n"} | ({"\u3164"} & set(shown))
    assert not invisible
    assert not [line for line in shown.split("\n") if line.lstrip().startswith(COMMANDS)]
    assert "forged" not in [line[:6] for line in shown.split("\n")]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe 名前 (M=64)", "größe 名前 (M=64)"),
        ("a\nb\r\nc\td", "a b c d"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\u202eevil\u2066", r"\u202eevil\u2066"),
        ("\x9b1m", r"\x9b1m"),
        ("\udcff.txt", r"\udcff.txt"),
        ("::error::x", r"\x3a:error::x"),
        (" ##[error]x", r" \x23#[error]x"),
        ("a ##vso[task.setvariable]x", r"a \x23#vso[task.setvariable]x"),
        ("k###[error]", r"k#\x23#[error]"),
        ("M ## 3 [4]", "M ## 3 [4]"),
        ("lib::kernel", "lib::kernel"),
        ("# a comment", "# a comment"),
    ],
)
def test_control_characters_and_ci_commands_are_escaped(text, shown):
    assert to_one_line(text) == shown
    assert to_one_line(shown) == shown


def test_a_cache_error_with_hostile_text_is_one_short_line():
    check_plain(str(CacheError(HOSTILE, HOSTILE, HOSTILE)))
    line = str(CacheError("/a/long/path" * 100, "x" * 10**6, "do this"))
    assert len(line) < 2000
    assert line.startswith("/a/long/path" * 100)
    assert line.endswith("x (do this)")


TESTS = f"""
H = {HOSTILE!r}

def test_hit(tune):
    tune(H + "hit", environment=H + " 1.0", **{{H: H}})

def test_stale(tune, session):
    tune(H + "stale", environment=H + " 1.0", **{{H: H}})
    session.note(H)

def test_mismatch(tune):
    tune(H + "mismatch", environment=H + " 1.0", **{{H: H}})

def test_miss(tune):
    tune(H + "miss", environment=H + " 1.0", **{{H: H}})

def test_unseen(session):
    from pytest_autotune.cache.model import Device, Problem
    session.report_uncacheable(Problem("toy", H, (), Device(H, H, 1)), H)
"""


def hostile_cache() -> bytes:
    """A cache that covers, in part, what the tests ask for; every text in it is hostile."""

    def entry(kernel: str, key: str = HOSTILE, device: str = "Toy GPU", choice: str = "a", then: str = " 1.0") -> Entry:
        return Entry(
            Problem("toy", HOSTILE + kernel, (Value(HOSTILE, key),), Device(device, "toy", 4)),
            (Value("search", "a,b", "digest"), Value("source", "one", "digest")),
            Candidate(HOSTILE if choice != "a" else "", (Value("config", choice),), 1.0, "", HOSTILE),
            label=HOSTILE,
            versions=Versions.parse(HOSTILE + then),
        )

    entries = [
        entry("hit", then=" 2.0"),
        entry("stale", choice=HOSTILE),
        entry("mismatch", device=HOSTILE),
        entry("miss", key=HOSTILE + "other"),
        entry("hit", key=HOSTILE + "unused"),
    ]
    return encode(Cache(tuple(entries)), Format.TEXT)


def test_text_of_a_hostile_cache_is_escaped_in_every_report(suite: Suite):
    suite.write(test_hostile=TESTS)
    suite.cache.write_bytes(hostile_cache())

    reports = [f"--autotune-report=report{suffix}" for suffix in FILES]
    result = suite.load("-v", "--color=no", *reports, "--junitxml=junit.xml")

    shown = result.stdout.str()
    check_plain(shown)
    for suffix in FILES:
        check = REPORT_CHECKS.get(suffix, check_plain)
        check((suite.folder / f"report{suffix}").read_text())
    for word in ("MISS", "STALE", "MISMATCH", "UNUSED", "UNCACHEABLE", "tuned with"):
        assert any(word in line and "error::a" in line for line in shown.splitlines()), word
    assert ET.parse(suite.folder / "junit.xml").getroot() is not None


def check_markdown(text: str) -> None:
    headings = "# Autotune cache", "### "  # ours; GitHub's commands begin with "##["
    check_plain("\n".join(line for line in text.split("\n") if not line.startswith(headings)))
    marks = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
    assert "error" not in marks
    assert "\\x1b" not in marks


def check_html(text: str) -> None:
    check_plain(text)
    assert "<img" not in text
    assert text.count("<!--") == 0
    assert text.count("<script") == text.count("</script>") == 2
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*)</script>', text)[1])
    assert any("<img src=x onerror" in lookup["kernel"] for lookup in data["lookups"])


#: The checks of reports whose own marks could have an effect, by suffix. All other reports must be plain lines.
REPORT_CHECKS = {".md": check_markdown, ".html": check_html}


def test_a_hostile_cache_cannot_inject_github_commands(suite: Suite):
    suite.write(test_hostile=TESTS)
    suite.cache.write_bytes(hostile_cache())

    result = suite.load("--autotune-max-misses=0", GITHUB_ACTIONS="true")

    commands = [line for line in result.outlines if line.startswith("::")]
    assert len(commands) > 3
    for line in commands:
        _, properties, message = re.fullmatch("::(error|warning|notice) ([^:]*)::(.*)", line).groups()
        assert {pair.split("=")[0] for pair in properties.split(",")} <= {"file", "line", "title"}
        check_plain(message.replace("%0A", "\n"))


def test_a_failed_test_shows_hostile_cache_text_escaped(suite: Suite):
    suite.write(test_hostile=TESTS)
    suite.cache.write_bytes(hostile_cache())

    result = suite.load("--color=no", "--autotune-on-miss=error", "--junitxml=junit.xml", "-rA")

    result.assert_outcomes(passed=1, failed=4)
    check_plain(result.stdout.str())
    check_plain("".join(ET.parse(suite.folder / "junit.xml").getroot().itertext()))
    failures = [node.get("message", "") for node in ET.parse(suite.folder / "junit.xml").iter("failure")]
    assert len(failures) == 4
    for message in failures:
        check_plain(message)
