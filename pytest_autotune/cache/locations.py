"""The locations of caches, as users write them. A location is parsed once, and then has an absolute path or a URL."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pytest_autotune.cache.errors import CacheError

#: The file that marks a folder as a cache.
MARKER = ".pytest-autotune"
#: The beginnings of the URLs of object storage.
SCHEMES = ("s3", "gs", "az")
#: The options of a URL. ``optional``: if the store is down, the run says so and does not fail. ``readonly``: no run
#: writes to the store. ``instance``: the machine itself gives the credentials.
OPTIONAL, READ_ONLY, INSTANCE = OPTIONS = ("optional", "readonly", "instance")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
#: A bucket, and folders in it. A folder named ``..`` would lead to another place, and the library ignores the text
#: behind a ``#``.
_BUCKET_AND_FOLDERS = re.compile(r"[\w.-]+(/(?!\.+(/|$))[\w .:=+,-]+)*/*")


def resolve(path: str | os.PathLike[str]) -> str:
    """Return the absolute path, without links, of the file that ``open()`` would read or create.

    Folders at the end of the path may be missing, because a writer creates them.

    :raises OSError: for a ``..`` after a missing folder, and for a loop of links.
    """
    absolute = os.fspath(path)
    if not os.path.isabs(absolute):
        # Only a relative path needs the current folder. getcwd() fails if a test has removed that folder.
        absolute = os.path.join(os.getcwd(), absolute)
    existing, missing_names = _split_existing(absolute)
    if os.pardir in missing_names:
        # For "missing/../file", open() fails, and os.path.realpath() would return the path of "file".
        names = [os.path.basename(existing), *missing_names]
        missing_folder = names[names.index(os.pardir) - 1]
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {missing_folder}")
    try:
        os.stat(existing)
    except (FileNotFoundError, NotADirectoryError):
        # The existing part is a link whose target is missing. Here, open() creates the target.
        target = os.readlink(existing)
        return resolve(os.path.join(os.path.dirname(existing), target, *missing_names))
    return os.path.join(os.path.realpath(existing), *missing_names)


def _split_existing(path: str) -> tuple[str, list[str]]:
    """Split an absolute path into the longest part that exists, and the names behind that part.

    If only the folder ``/home`` exists, ``/home/ann/cache`` is split into ``"/home"`` and ``["ann", "cache"]``.
    """
    existing = path
    missing_names: list[str] = []
    while not os.path.lexists(existing):
        existing, name = os.path.split(existing)
        missing_names.insert(0, name)
    return existing, missing_names


def is_url(text: str | os.PathLike[str]) -> bool:
    """Whether a location is a URL, such as ``s3://bucket/folder/``, and not a path."""
    return _URL.match(os.fspath(text)) is not None


@dataclass(frozen=True)
class Location:
    """The location of a cache.

    :param path: the path of a file or folder; empty for a URL.
    :param is_folder_path: whether the user wrote a slash at the end: a folder of a file for each problem.
    :param display_text: the location as the user wrote it, for messages.
    :param url: a URL of object storage, without its options and without a slash at its end; empty for a path.
    :param options: the :data:`OPTIONS` behind the URL.
    :param local_copy: the folder on this machine for copies of a URL's objects, and for entries that could not be sent.
    """

    path: Path
    is_folder_path: bool = False
    display_text: str = field(default="", compare=False)
    url: str = ""
    options: frozenset[str] = frozenset()
    local_copy: Path | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, text: str | os.PathLike[str], base_folder: Path, display_text: str = "") -> Location:
        """Return the location that a user wrote.

        :param base_folder: a relative path starts here.
        :param display_text: the path for messages; empty for the text itself.
        :raises CacheError: for a URL of another kind, or with other options; for a path that no report could hold.
        """
        text = os.fspath(text)
        if is_url(text):
            return cls._parse_url(text)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise CacheError(text, "the path is not encoded in UTF-8", "rename the file or folder") from None
        return cls(base_folder / os.path.expanduser(text), text.endswith("/"), display_text or text)

    @classmethod
    def _parse_url(cls, text: str) -> Location:
        """Return the location of a URL such as ``s3://bucket/folder/?readonly&optional``.

        :raises CacheError: for a URL of another kind, with credentials, or with unknown options.
        """
        url, _, query = text.partition("?")
        scheme, _, bucket_and_folders = url.partition("://")
        _, _, without_credentials = bucket_and_folders.rpartition("@")
        # The text before an "@" may be a password, and the text behind a "?" a signature. No message may show them.
        safe_url = f"{scheme}://{without_credentials}"
        if without_credentials != bucket_and_folders:
            raise CacheError(
                safe_url, "the URL holds credentials", "remove them, and set them as environment variables"
            )
        if scheme not in SCHEMES or not _BUCKET_AND_FOLDERS.fullmatch(bucket_and_folders):
            urls = ", ".join([f"{name}://BUCKET/FOLDER/" for name in SCHEMES])
            raise CacheError(safe_url, "is a URL of an unknown kind of store", f"name one of {urls}, or a path")
        options = set(query.split("&")) - {""}
        unknown_options = sorted(options.difference(OPTIONS))
        if unknown_options:
            # Only the name is shown, because the value may be a signature.
            name, _, _ = unknown_options[0].partition("=")
            known_options = ", ".join([f"?{option}" for option in OPTIONS])
            raise CacheError(safe_url, f"the option ?{name} is unknown", f"known are {known_options}")
        return cls(Path(), display_text=text, url=url.rstrip("/"), options=frozenset(options))

    @property
    def is_folder(self) -> bool:
        """Whether the location is a folder of caches: the user wrote a slash, or the folder has the marker file."""
        if self.url:
            return False
        # Path.is_file() raises an error for some paths.
        return self.is_folder_path or os.path.isfile(self.path / MARKER)

    @property
    def absolute_text(self) -> str:
        """The location as a user may write it in any folder."""
        if self.url:
            return self.display_text
        if self.is_folder_path:
            return f"{self.path}/"
        return str(self.path)

    @property
    def unique_text(self) -> str:
        """The text that is equal for all spellings of a path. For a URL, the URL as the user wrote it.

        A path that cannot be resolved stands for itself. The code that reads the cache reports the error.
        """
        if self.url:
            return str(self)
        try:
            return self.resolved
        except CacheError:
            return self.absolute_text

    @cached_property
    def resolved(self) -> str:
        """The absolute path without links: the same for all names of a file or folder. For a URL, the URL.

        It is computed once, so a link that is changed later changes neither reading nor writing.

        :raises CacheError: for a path that ``open()`` would not find. Folders at its end may be missing.
        """
        if self.url:
            return self.url
        try:
            return resolve(self.path)
        except OSError as error:
            raise CacheError(str(self), f"cannot be read: {error.strerror or error}") from None

    def __str__(self) -> str:
        return self.display_text or self.absolute_text
