"""Post a text as a comment of a pull request, or bring the comment of an earlier run up to date.

    TOKEN=… NUMBER=7 CACHE=tests/autotune.textproto GITHUB_REPOSITORY=… python post_comment.py diff.md

A hidden line in the comment names the cache, so that each cache has one comment. A comment that cannot be posted is a
warning, and the exit status is 0: the token of a fork's pull request can read alone. This file needs no package.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

#: GitHub refuses longer comments.
MAX_LENGTH = 65_000
NO_DIFFERENCE = "**`no difference`**"


class GitHub:
    """The part of GitHub's interface that comments need."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token

    def request(self, method: str, path: str, content: object = None) -> Any:
        """Send a request and return the answer's content.

        :raises OSError: where GitHub refuses it or cannot be reached.
        """
        data = None
        if content is not None:
            data = json.dumps(content).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/vnd.github+json"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def find_comment(self, comments: str, mark: str) -> int | None:
        """Return the id of the comment that begins with a mark, or None."""
        page = 1
        while listed := self.request("GET", f"{comments}?per_page=100&page={page}"):
            for comment in listed:
                if (comment.get("body") or "").startswith(mark):
                    return int(comment["id"])
            page += 1
        return None


def build_comment(difference: str, cache: str) -> str:
    """Return the text of the comment."""
    text = f"{mark_of(cache)}\n### Autotuning cache `{cache}`\n\n{difference.strip()}\n"
    if len(text) > MAX_LENGTH:
        lines = text[:MAX_LENGTH].rpartition("\n")[0]
        text = f"{lines}\n\nThe rest is in the summary of the job.\n"
    return text


def mark_of(cache: str) -> str:
    """Return the hidden line by which a later run finds the comment."""
    return f"<!-- pytest-autotune: {cache} -->"


def post(github: GitHub, repository: str, number: str, cache: str, difference: str) -> str:
    """Post the comment, and return what was done.

    :raises OSError: where GitHub refuses it or cannot be reached.
    """
    comments = f"/repos/{repository}/issues/{number}/comments"
    earlier = github.find_comment(comments, mark_of(cache))
    body = {"body": build_comment(difference, cache)}
    if earlier is not None:
        github.request("PATCH", f"/repos/{repository}/issues/comments/{earlier}", body)
        return "the comment of an earlier run is up to date"
    if difference.strip() == NO_DIFFERENCE:
        return "no comment: the cache does not change"
    github.request("POST", comments, body)
    return "a comment shows what changes in the cache"


def main(arguments: list[str]) -> int:
    """Post the file that the command line names."""
    (file,) = arguments
    environment = os.environ
    github = GitHub(environment.get("GITHUB_API_URL", "https://api.github.com"), environment.get("TOKEN", ""))
    difference = Path(file).read_text(encoding="utf-8")
    try:
        done = post(github, environment["GITHUB_REPOSITORY"], environment["NUMBER"], environment["CACHE"], difference)
    except urllib.error.HTTPError as error:
        why = f"GitHub answers {error.code} {error.reason}; a fork's pull request may not write comments"
        done = f"::notice title=pytest-autotune::no comment was posted: {why}"
    except OSError as error:
        done = f"::notice title=pytest-autotune::no comment was posted: {error}"
    print(done)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
