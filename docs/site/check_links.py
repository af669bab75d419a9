"""Check every link of a built site that leads into the site: its file and its anchor must exist.

    python docs/site/check_links.py build/site

The script reads the built pages, so it sees the anchors that readers get. It does not follow links to other sites. The
exit status is 1 if a link leads nowhere.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes that hold an address.
LINK_ATTRIBUTES = ("href", "src")


@dataclass
class Page(HTMLParser):
    """The links and the anchors of one page."""

    path: Path
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the links and anchors of a tag."""
        for name, value in attrs:
            if value is None:
                continue
            if name in LINK_ATTRIBUTES:
                self.links.append(value)
            elif name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)


def find_problem(link: str, page: Page, pages: dict[Path, Page]) -> str:
    """Return why a link of a page leads nowhere, or an empty string."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        # The link leads to another site.
        return ""
    target = page.path
    if parts.path:
        target = (page.path.parent / unquote(parts.path)).resolve()
    if not target.is_file():
        return "no such file"
    # An empty anchor is the top of a page. An image, which is a file and no page, has no anchors.
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "no such anchor"
    return ""


def main(arguments: list[str]) -> int:
    """Check the site in the folder that the command line names."""
    (folder,) = arguments
    pages = {path: Page(path) for path in sorted(Path(folder).resolve().rglob("*.html"))}
    link_count = 0
    problems = []
    for page in pages.values():
        for link in page.links:
            link_count += 1
            if problem := find_problem(link, page, pages):
                problems.append(f"{page.path.relative_to(Path(folder).resolve())}: {link}: {problem}")
    print(*problems, f"{len(pages)} pages, {link_count} links, {len(problems)} lead nowhere", sep="\n")
    if problems or not pages:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
