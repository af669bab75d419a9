"""A cache that a fleet shares, in object storage: S3, GCS, Azure or what speaks like one of them.

It is a set of segments that are written once: ``v1/<device>/<sha256 of the content>.pb`` below the URL. Each is a
cache in the binary format, of what one run has tuned for one device. What the store holds is all of them merged by a
rule that knows no order, so nothing is ever replaced in place, and no two writers can lose each other's entries: there
is no lock, no lease, no clock and no conditional write. A name says what the bytes have to be; a copy of them on this
machine is never out of date.

Of the entries of one identity the one with the higher generation stays. An entry that takes the place of another has
the next generation, and so has a *tombstone*: an entry without a result, which removes.

Segments of all devices are read. Which one the tests will ask for is not known before the first lookup (asking would
initialise CUDA), and that a kernel was tuned for other devices only is worth telling.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import INSTANCE, Location
from pytest_autotune.cache.merge import combine_caches, next_generation
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.stores.disk import MAX_BYTES
from pytest_autotune.cache.stores.store import Change, NotTakenError, Updated

#: A request that hangs ends after so many seconds, and others are tried again for so many: a store that is down costs
#: a run one request at its start and one at its end.
_REQUEST_S = 4
_RETRY_S = 3
#: A larger segment becomes two, so that one of them is read within a request's time.
_LARGE = 4 * 2**20
_REQUESTS_AT_ONCE = 8
#: What is gone when it is asked for was merged into another segment by a compaction: the names are read again.
_TRIES = 4
_SEGMENT = re.compile(r"v1/[^/]+/([0-9a-f]{64})\.pb")

#: The variables that hold credentials, or say where they are. A machine may have some of its own, but asking one that
#: has none takes seconds.
_CREDENTIALS = {
    "s3": re.compile("AWS_(ACCESS_KEY_ID|WEB_IDENTITY_TOKEN_FILE|CONTAINER_CREDENTIALS_(RELATIVE|FULL)_URI)"),
    "gs": re.compile("GOOGLE_(APPLICATION_CREDENTIALS|SERVICE_ACCOUNT(_PATH|_KEY)?)"),
    "az": re.compile("AZURE_(STORAGE_.*(KEY|TOKEN)|(STORAGE_)?CLIENT_SECRET|FEDERATED_TOKEN_FILE|USE_AZURE_CLI)"),
}


class SegmentStore:
    """A cache at a URL."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._where = str(location)
        self._keep = location.local_copy or Path(os.devnull)  # below which nothing can be
        self._library, self._objects, self.has_credentials = open_url(location)
        #: What was there when it was first asked for, tombstones too.
        self._held: Cache | None = None

    def __str__(self) -> str:
        return self._where

    def read(self, missing_ok: bool = False) -> Cache:
        """What was there when it was first asked for; of a store that was down then, nothing but once an error.

        A segment that cannot be read is reported: the others are what they were.
        """
        held = self._read()
        if not (held.entries or missing_ok):
            raise CacheError(self._where, "holds no cache", f"create it with --autotune-dump={self._where}")
        return _without_tombstones(held)

    def _read(self) -> Cache:
        if self._held is None:
            self._held = Cache()
            segments = self._segments()
            unread = [cache.lossy for cache in segments.values() if cache.lossy]
            if unread and len(unread) == len(segments):
                raise CacheError(*unread[0])
            self._held = combine_caches(segments).cache
        return self._held

    def check_writable(self) -> Cache:
        return self.read(missing_ok=True)  # whether it can be written to is found out when it is

    def update(self, change: Change, removing: bool = False) -> Updated:
        """Add what ``change`` adds to, or has replaced in, what was there; what it leaves out stays for others' runs.

        :raises NotTakenError: where it could not be written.
        """
        held = self._read()
        now = _without_tombstones(held)
        cache = change(now)
        new = list(_difference(held, cache))
        if removing:
            kept = {entry.identity for entry in cache.entries}
            new += [_tombstone(entry) for entry in now.entries if entry.identity not in kept]
        try:
            self._put(new)
        except CacheError as error:
            data = encode(Cache(tuple(new)), Format.BINARY)
            file = self._keep / "unsent" / f"{_name_of(data)[:16]}.pb"
            place = os.path.relpath(file) if _is_written(file, data) else ""
            send = f"it is kept: pytest-autotune merge {place} -o {self._location.url}/ sends it"
            raise NotTakenError(self._where, error.event, place, send) from None
        return Updated(self._where, bool(new))

    def compact(self) -> tuple[int, int]:
        """Write all segments as one for each device, then remove them; what others add meanwhile stays as it is.

        Whoever reads meanwhile finds every entry in some segment. Tombstones go last, after what they remove.
        """
        segments = self._segments()
        mergeable = {name: cache for name, cache in segments.items() if not cache.lossy}
        new = self._put(_without_tombstones(combine_caches(mergeable).cache).entries, there=mergeable)
        old = [name for name in mergeable if name not in new]
        with_tombstones = [name for name in old if any(map(_is_tombstone, mergeable[name].entries))]
        for names in ([name for name in old if name not in with_tombstones], with_tombstones):
            if names:
                with self._errors("cannot be compacted"), suppress(FileNotFoundError):
                    self._library.delete(self._objects, names)
        return len(segments), len(segments) - len(old) + len([name for name in new if name not in segments])

    def _segments(self) -> dict[str, Cache]:
        """The segments by their names."""
        found: dict[str, bytes] = {}
        pool = ThreadPoolExecutor(_REQUESTS_AT_ONCE)
        try:
            with self._errors("cannot be read", "with ?optional a run goes on without it"):
                for _ in range(_TRIES):
                    names = self._names()
                    read = zip(names, pool.map(self._bytes, names), strict=True)
                    found = {name: data for name, data in read if data is not None}
                    if len(found) == len(names):
                        break
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # where one request hangs, the others do
        self._tidy_copies(found)
        return {name: self._decoded(name, data) for name, data in found.items()}

    def _decoded(self, name: str, data: bytes) -> Cache:
        """What a segment holds; where that cannot be read, nothing but why."""
        where = f"{self._where}: {name}"
        if _name_of(data) not in name:
            return Cache(lossy=(where, "holds other bytes than its name says, and is left out", "remove that object"))
        try:
            return decode(data, Format.BINARY, where)
        except CacheError as error:
            return Cache(lossy=(where, f"{error.event}; it is left out", error.remedy))

    def _names(self) -> list[str]:
        pages = self._library.list(self._objects, prefix="v1/")
        found = {one["path"]: one["size"] for page in pages for one in page}  # a page may repeat what another had
        return sorted(name for name, size in found.items() if _SEGMENT.fullmatch(name) and size <= MAX_BYTES)

    def _bytes(self, name: str) -> bytes | None:
        """The bytes of a segment; None where it is gone."""
        with suppress(OSError):
            data = self._copy_of(name).read_bytes()
            if _name_of(data) in name:
                return data
        try:
            data = bytes(self._library.get(self._objects, name).bytes())
        except FileNotFoundError:
            return None
        if _name_of(data) in name:
            _is_written(self._copy_of(name), data)
        return data

    def _copy_of(self, name: str) -> Path:
        """Where a segment is kept on this machine."""
        return self._keep / "segments" / _name_of(self._location.url.encode())[:16] / name.replace("/", "-")

    def _tidy_copies(self, found: Iterable[str]) -> None:
        listed = set(map(self._copy_of, found))
        with suppress(OSError):  # there are none, or it is a read-only tree
            for file in self._copy_of("").iterdir():
                if file not in listed and file.suffix == ".pb":
                    file.unlink()

    def _put(self, entries: Iterable[Entry], there: Iterable[str] = ()) -> set[str]:
        """Write entries as segments, one for each device, but those that are there; returns the names of all."""
        names = set(there)
        new = {f"v1/{device}/{_name_of(data)}.pb": data for device, data in _encoded(entries)}
        with self._errors("cannot be written"):
            for name, data in new.items():
                if name not in names:
                    self._library.put(self._objects, name, data)  # of a name all writers have the same bytes
                    _is_written(self._copy_of(name), data)
        return set(new)

    @contextmanager
    def _errors(self, what: str, remedy: str = "") -> Iterator[None]:
        """Turn the errors of the library into a :class:`CacheError`."""
        try:
            yield
        except BaseException as error:
            # The library panics at an address that is none, with a class that cannot be imported.
            is_panic = type(error).__name__ == "PanicException"
            if not (is_panic or isinstance(error, (self._library.exceptions.BaseError, OSError, ValueError))):
                raise
            hint = "" if self.has_credentials else ", asked without credentials: none are in the environment"
            raise CacheError(self._where, f"{what}: {_words(error)}{hint}", remedy) from None


def open_url(location: Location) -> tuple[Any, Any, bool]:
    """The library, what it has for a URL, and whether there are credentials for that.

    :raises CacheError: where the library is not installed, or the URL makes no sense to it.
    """
    try:
        import obstore
        from obstore.store import from_url
    except ImportError:
        remedy = "pip install 'pytest-autotune[stores]'"
        raise CacheError(str(location), "is a URL, and obstore is not installed", remedy) from None
    has_name = _CREDENTIALS[location.url.partition(":")[0]].fullmatch
    is_set = any(has_name(name) and value for name, value in os.environ.items())
    has_credentials = is_set or INSTANCE in location.options
    wait = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1), "base": 2}
    url: Any = location.url + "/"
    config: Any = {} if has_credentials else {"skip_signature": True}
    # Without TLS only where somebody has said so, by an endpoint that begins with http://
    client: Any = {"timeout": f"{_REQUEST_S}s", "connect_timeout": "2s", "allow_http": True}
    retry: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=_RETRY_S), "backoff": wait}
    try:
        return obstore, from_url(url, config=config, client_options=client, retry_config=retry), has_credentials
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise CacheError(str(location), _words(error)) from None


def _words(error: BaseException) -> str:
    """An error of the library, which has pages of details, in short."""
    text = str(error)
    if status := re.search(r"status code: (\d{3}[ A-Za-z]*)", text):
        code = re.search(r"<Code>(\w+)</Code>", text)
        return f"the store answers {status[1].strip()}{f' ({code[1]})' if code else ''}"
    if re.search(r"\bTimed ?[oO]ut|kind: Timeout", text):
        return f"no answer within {_REQUEST_S} s"
    if cause := re.search(r'message: "([^"]*)"', text):
        return cause[1]
    return text.partition("\n")[0].rpartition(" - ")[2]


def _is_written(file: Path, data: bytes) -> bool:
    """Whether a file could be written."""
    temporary = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        os.replace(temporary, file)
    except OSError:
        return False
    return True


def _name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _is_tombstone(entry: Entry) -> bool:
    return entry.choice is None and not entry.candidates and not entry.native


def _tombstone(entry: Entry) -> Entry:
    return Entry(entry.problem, entry.fingerprint, generation=next_generation(entry))


def _without_tombstones(cache: Cache) -> Cache:
    return replace(cache, entries=tuple(entry for entry in cache.entries if not _is_tombstone(entry)))


def _difference(held: Cache, after: Cache) -> Iterator[Entry]:
    """What has to be written so that the store holds a cache, with the generations that this takes."""
    there = {entry.identity: entry for entry in held.entries}
    for entry in after.entries:
        old = there.get(entry.identity)
        if old is None:
            yield entry
        elif entry != old:
            yield replace(entry, generation=max(entry.generation, next_generation(old)))
        elif entry.compiled != old.compiled:
            yield replace(entry, generation=max(entry.generation, old.generation))


def _encoded(entries: Iterable[Entry]) -> Iterator[tuple[str, bytes]]:
    """Entries as segments: the device of each, as it stands in its name, and its bytes."""
    of_device: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.sort_key):
        of_device[re.sub(r"^\.+$", "", entry.problem.device.id) or "device"].append(entry)
    for device, some in of_device.items():
        yield from ((device, data) for data in _parts(some))


def _parts(entries: Sequence[Entry]) -> Iterator[bytes]:
    data = encode(Cache(tuple(entries)), Format.BINARY)
    if len(data) <= _LARGE or len(entries) == 1:
        yield data
    else:
        middle = len(entries) // 2
        yield from _parts(entries[:middle])
        yield from _parts(entries[middle:])
