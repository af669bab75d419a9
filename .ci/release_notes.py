"""Print the section of CHANGELOG.md for a version: ``python .ci/release_notes.py 0.1.0``.

The exit status is 1 where there is none, or where it has no date yet.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"


def find_section(changelog: str, version: str) -> str:
    """Return the text below the heading of a version, or an empty string.

    A heading without a date, such as ``## [0.1.0] - unreleased``, is not the one of a release.
    """
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n"
    match = re.search(heading + r"(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if match is None:
        return ""
    return match[1].strip()


def main(arguments: list[str]) -> int:
    """Print the section of the version that the command line names."""
    (version,) = arguments
    section = find_section(CHANGELOG.read_text(encoding="utf-8"), version)
    if not section:
        print(f"CHANGELOG.md: no section '## [{version}] - YYYY-MM-DD' with text", file=sys.stderr)
        return 1
    print(section)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
