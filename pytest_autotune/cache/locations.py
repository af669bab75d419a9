"""Where a cache is kept, as a user wrote it: parsed once, and known by its absolute path or URL from then on."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pytest_autotune.cache.errors import CacheError

#: The file that makes a folder one of ours.
MARKER = ".pytest-autotune"
#: Object storage, by what its URLs begin with.
SCHEMES = ("s3", "gs", "az")
#: A store that is down is reported and no error; it is never written to; credentials are those of the machine itself.
OPTIONAL, READ_ONLY, INSTANCE = OPTIONS = ("optional", "readonly", "instance")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
#: A bucket, and folders in it, none of which leads elsewhere: ``..`` would, and what follows a ``#`` is left out.
_BUCKET_AND_FOLDERS = re.compile(r"[\w.-]+(/(?!\.+(/|$))[\w .:=+,-]+)*/*")


def resolve(path: str | os.PathLike[str]) -> str:
    """Return the absolute path without links of the file that ``open()`` would read or create.

    Folders at the end of the path may be missing: a writer creates them.

    :raises OSError: for a ``..`` behind a missing folder, and for a loop of links.
    """
    head = os.fspath(path)
    if not os.path.isabs(head):  # a test may have removed the current folder
        head = os.path.join(os.getcwd(), head)
    missing: list[str] = []
    while not os.path.lexists(head):
        head, name = os.path.split(head)
        missing.insert(0, name)
    if os.pardir in missing:
        # os.path.realpath() drops the missing folder with its "..", and so names a file that open() does not find.
        before = [os.path.basename(head), *missing]
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {before[before.index(os.pardir) - 1]}")
    try:
        os.stat(head)
    except (FileNotFoundError, NotADirectoryError):
        # A dangling link: the file is created where the link leads.
        return resolve(os.path.join(os.path.dirname(head), os.readlink(head), *missing))
    return os.path.join(os.path.realpath(head), *missing)


def is_url(written: str | os.PathLike[str]) -> bool:
    """Whether a location is at a URL: a cache that many share and add to, and no path."""
    return _URL.match(os.fspath(written)) is not None


@dataclass(frozen=True)
class Location:
    """Where a cache is kept.

    :param folder: it was written with a slash at its end: a folder of one file for each problem.
    :param shown: the path as the user wrote it, for messages.
    :param url: of object storage, without options and a slash at its end; empty for a path.
    :param options: some of :data:`OPTIONS`, which stand behind a URL.
    :param keep: the folder on this machine for what a URL holds and what could not be sent there, if any.
    """

    path: Path
    is_folder_path: bool = False
    display_text: str = field(default="", compare=False)
    url: str = ""
    options: frozenset[str] = frozenset()
    local_copy: Path | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, text: str | os.PathLike[str], base_folder: Path, display_text: str = "") -> Location:
        """The location that a user wrote, relative to a folder, and as messages are to call it.

        :raises CacheError: for a URL of another kind, or with other options; for a path that no report could hold.
        """
        text = os.fspath(text)
        if not is_url(text):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise CacheError(text, "the path is not encoded in UTF-8", "name it otherwise") from None
            return cls(base_folder / os.path.expanduser(text), text.endswith("/"), display_text or text)
        url, _, query = text.partition("?")
        scheme, _, rest = url.partition("://")
        display_text = f"{scheme}://{rest.rpartition('@')[2]}"  # messages hold no password and no signature
        if "@" in rest:
            raise CacheError(display_text, "the URL holds credentials", "put them into the environment")
        if scheme not in SCHEMES or not _BUCKET_AND_FOLDERS.fullmatch(rest):
            known = ", ".join(f"{scheme}://BUCKET/FOLDER/" for scheme in SCHEMES)
            raise CacheError(display_text, "is a URL of no store that is known", f"name one of {known}, or a path")
        options = frozenset(filter(None, query.split("&")))
        if unknown := sorted(options.difference(OPTIONS)):
            known = ", ".join(f"?{option}" for option in OPTIONS)
            found = f"the option ?{unknown[0].partition('=')[0]} is unknown"
            raise CacheError(display_text, found, f"known are {known}")
        return cls(Path(), display_text=text, url=url.rstrip("/"), options=options)

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of caches, by the way it was written or by what is there."""
        if self.url:
            return False
        return self.is_folder_path or os.path.isfile(self.path / MARKER)  # Path.is_file raises for some paths

    @cached_property
    def resolved(self) -> str:
        """The absolute path without links: the same for all names of one file or folder. Of a URL, the URL.

        It is computed once: whoever leads a link elsewhere later changes neither what is read nor what is written.

        :raises CacheError: for a path that ``open()`` would not find, but for missing folders at its end.
        """
        if self.url:
            return self.url
        try:
            return resolve(self.path)
        except OSError as error:
            raise CacheError(str(self), f"cannot be read: {error.strerror or error}") from None

    def __str__(self) -> str:
        return self.display_text or f"{self.path}{'/' if self.is_folder_path else ''}"
