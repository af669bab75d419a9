"""The faces of a summary that CI systems read from the log: GitHub's annotations, GitLab's foldable sections.

GitHub: a line ``::error file=F,line=N,title=T::message``, in which ``%``, line breaks and, in properties, ``:`` and
``,`` are percent-encoded. It shows ten errors and ten warnings of a step:
https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands. GitLab: markers around lines that
can be folded: https://docs.gitlab.com/ci/jobs/job_logs/.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.report.findings import Finding, findings
from pytest_autotune.report.grouping import groups
from pytest_autotune.report.hints import hints
from pytest_autotune.report.summary import Place, Summary

#: How many annotations of one level GitHub shows of a step.
SHOWN = 10
#: How many problems, or groups of them that say the same, one annotation names.
_NAMED = 10
_TITLE = "autotune cache"
#: What GitHub takes of a step's summary, in bytes, and some room for what other tools write there.
SUMMARY_BYTES = 1024 * 1024 - 64 * 1024


def github_annotations(summary: Summary) -> list[str]:
    """Lines that GitHub turns into annotations: why the run fails, and at each test what it asked for and was no hit.

    They are errors where the run or the test fails for it, and else warnings.
    """
    to_do = " ".join(hints(summary))
    lines = [_command("error", failure, to_do) for failure in summary.failures[:SHOWN]]
    found: defaultdict[str, defaultdict[Place, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    for finding in findings(summary):
        found["error" if finding.fails else "warning"][finding.place].append(finding)
    for level, room in (("error", SHOWN - len(lines)), ("warning", SHOWN)):
        places = sorted(found[level], key=lambda place: (place.path, place.line))
        shown = places if len(places) <= room else places[: max(room - 1, 0)]
        lines += [_annotation(level, place, found[level][place]) for place in shown]
        if hidden := len(places) - len(shown):
            what = counted(hidden, "more test asks", "more tests ask")
            lines += [_command(level, f"{what} for what is no hit; the section of the log names all with -v")]
    if summary.unused:
        what = counted(len(summary.unused), "entry is", "entries are")
        them = "it" if len(summary.unused) == 1 else "them"
        lines.append(_command("notice", f"{what} unused: in this complete run no test asked for {them}"))
    return lines


def gitlab_section(seconds: int, is_folded: bool) -> tuple[str, str]:
    """The lines before and after a section that GitLab's log can fold.

    :param seconds: since the epoch; GitLab shows how long a section took.
    """
    folded = "[collapsed=true]" if is_folded else ""
    begin = f"\x1b[0Ksection_start:{seconds}:autotune_cache{folded}\r\x1b[0K{_TITLE}"
    return begin, f"\x1b[0Ksection_end:{seconds}:autotune_cache\r\x1b[0K"


def _annotation(level: str, place: Place, found: Sequence[Finding]) -> str:
    """All that is found at one place."""
    together = groups([one.row for one in found if one.row is not None])
    told = [(f"{group.outcome.value.upper()} {group}", len(group.rows)) for group in together]
    told += [(str(one), 1) for one in found if one.row is None]
    named = [words for words, _ in told[:_NAMED]]
    if more := sum(number for _, number in told[_NAMED:]):
        named.append(f"… and {more} more")
    where = {"file": place.path, "line": str(place.line) if place.line else ""} if place.path else {}
    return _command(level, *named, title=f"{_TITLE}: {', '.join(sorted({one.word for one in found}))}", **where)


def _command(level: str, *lines: str, title: str = _TITLE, **where: str) -> str:
    properties = {**where, "title": title}
    written = ",".join(f"{name}={_property(value)}" for name, value in properties.items() if value)
    return f"::{level} {written}::{_data(lines)}"


def _data(lines: Sequence[str]) -> str:
    return "%0A".join(one_line(line).replace("%", "%25") for line in lines if line)


def _property(text: str) -> str:
    return one_line(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
