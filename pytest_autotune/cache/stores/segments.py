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

import asyncio
import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.merge import combine_caches, next_generation
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.cache.stores.disk import MAX_BYTES
from pytest_autotune.cache.stores.objects import next_page, open_url, run, within, words
from pytest_autotune.cache.stores.store import NotTakenError, OpenedStore, UpdateOutcome

#: All pages of a list, for a run and for a compaction: some stores give the first page again and again.
_LIST_S = 5.0
_LIST_OF_COMPACTION_S = 60.0
#: A larger segment becomes two, so that one of them is read within a request's time.
_LARGE = 4 * 2**20
_REQUESTS_AT_ONCE = 8
#: What is gone when it is asked for was merged into another segment by a compaction: the names are read again.
_TRIES = 4
_PAUSE_S = 0.2
_SEGMENT = re.compile(r"v1/[^/]+/([0-9a-f]{64})\.pb")
#: Stands for the objects whose names the library refuses.
_FOREIGN = "v1/"
#: The name of its copy on this machine.
_COPY = re.compile(r"v1-.+-[0-9a-f]{64}\.pb")


@dataclass(frozen=True)
class OpenedSegments:
    """A store at a URL that is opened for an update."""

    store: SegmentStore
    cache: Cache
    removing: bool

    def write(self, cache: Cache) -> UpdateOutcome:
        """Add the new entries; see :meth:`SegmentStore.add`."""
        return self.store.add(cache, self.removing)


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

    @contextmanager
    def open_for_update(self, removing: bool = False) -> Iterator[OpenedStore]:
        """Open the store; see :class:`~pytest_autotune.cache.stores.store.Store`. It needs no lock."""
        yield OpenedSegments(self, _without_tombstones(self._read()), removing)

    def add(self, cache: Cache, removing: bool) -> UpdateOutcome:
        """Add the entries of a cache that are new, or that replace an entry of the store.

        :param removing: remove the entries that the cache lacks. They may belong to other runs.
        :raises NotTakenError: if the entries could not be written.
        """
        held = self._read()
        now = _without_tombstones(held)
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
        return UpdateOutcome(self._where, bool(new))

    def compact(self) -> tuple[int, int]:
        """Write all segments as one for each device, then remove them; what others add meanwhile stays as it is.

        Whoever reads meanwhile finds every entry in some segment. Tombstones go last, after what they remove. Nothing
        is removed before the new segments were read back.
        """
        segments = self._segments(_LIST_OF_COMPACTION_S)
        segments.pop(_FOREIGN, None)
        mergeable = {name: cache for name, cache in segments.items() if not cache.lossy}
        new = self._put(_without_tombstones(combine_caches(mergeable).cache).entries, there=mergeable)
        with self._errors("cannot be compacted", "nothing was removed"):
            run(self._check_stored(new))
        old = [name for name in mergeable if name not in new]
        with_tombstones = [name for name in old if any(map(_is_tombstone, mergeable[name].entries))]
        for names in ([name for name in old if name not in with_tombstones], with_tombstones):
            if names:
                with self._errors("cannot be compacted"), suppress(FileNotFoundError):
                    self._library.delete(self._objects, names)
        return len(segments), len(segments) - len(old) + len([name for name in new if name not in segments])

    async def _check_stored(self, names: Iterable[str]) -> None:
        """Raise where a store that has taken segments does not give them back."""
        for name in names:
            data = await self._get(name)
            if data is None or _name_of(data) not in name:
                raise ValueError(f"{name} was written, and the store does not give it back")

    def _segments(self, list_s: float = _LIST_S) -> dict[str, Cache]:
        """The segments by their names.

        :param list_s: the longest time for the list of their names.
        """
        with self._errors("cannot be read", "with ?optional a run goes on without it"):
            found, foreign = run(self._read_all(list_s))
        self._tidy_copies(found)
        segments = {name: self._decoded(name, data) for name, data in found.items()}
        if foreign:
            segments[_FOREIGN] = Cache(lossy=(self._where, f"holds a foreign object: {foreign}", "remove that object"))
        return segments

    async def _read_all(self, list_s: float) -> tuple[dict[str, bytes | None], str]:
        """Return the bytes of the segments by name, None of those that are listed and gone; and what is foreign."""
        at_once = asyncio.Semaphore(_REQUESTS_AT_ONCE)
        found: dict[str, bytes | None] = {}
        for tries_left in reversed(range(_TRIES)):
            names, foreign = await self._names(HostTime.monotonic() + list_s)
            unread = [name for name in names if found.get(name) is None]
            data = await asyncio.gather(*(self._bytes(name, at_once) for name in unread))
            found |= dict(zip(unread, data, strict=True))
            if None not in data or not tries_left:
                break
            await asyncio.sleep(_PAUSE_S)
        return {name: found[name] for name in names}, foreign

    def _decoded(self, name: str, data: bytes | None) -> Cache:
        """What a segment holds; where that cannot be read, nothing but why."""
        where = f"{self._where}: {name}"
        if data is None:
            return Cache(lossy=(where, "is listed, and the store answers 404; it is left out", "remove that object"))
        if _name_of(data) not in name:
            return Cache(lossy=(where, "holds other bytes than its name says, and is left out", "remove that object"))
        try:
            return decode(data, Format.BINARY, where)
        except CacheError as error:
            return Cache(lossy=(where, f"{error.event}; it is left out", error.remedy))

    async def _names(self, deadline: float) -> tuple[list[str], str]:
        """Return the names of the segments, and the error of a name that the library refuses."""
        refused = self._library.exceptions.InvalidPathError
        try:
            sizes, error = await self._sizes("v1/", deadline), ""
        except refused as invalid:
            # One such object, with // or .. in its name, fails a whole page. The folders are listed around it.
            error = words(invalid)
            sizes = {}
            try:
                listing = await within(self._library.list_with_delimiter_async(self._objects, "v1/"))
                folders = listing["common_prefixes"]
            except refused:
                folders = {name.rpartition("/")[0] for name in await self._sizes("v1/", deadline, "v1/0")}
            for folder in folders:
                sizes |= await self._sizes_in(folder, deadline)
        names = [name for name, size in sizes.items() if _SEGMENT.fullmatch(name) and size <= MAX_BYTES]
        return sorted(names), error

    async def _sizes_in(self, folder: str, deadline: float) -> dict[str, int]:
        """Return the names and sizes of the objects in a folder, around a name that the library refuses."""
        try:
            return await self._sizes(folder, deadline, f"{folder}/0")  # digests come behind // and ..
        except self._library.exceptions.InvalidPathError:
            listing = await within(self._library.list_with_delimiter_async(self._objects, folder))
            return {found["path"]: found["size"] for found in listing["objects"]}

    async def _sizes(self, prefix: str, deadline: float, after: str | None = None) -> dict[str, int]:
        """Return the names and sizes of all objects below a prefix, and behind a name."""
        sizes: dict[str, int] = {}
        pages = self._library.list(self._objects, prefix=prefix, offset=after).__aiter__()
        while page := await within(next_page(pages)):
            sizes |= {found["path"]: found["size"] for found in page}  # a page may repeat what another had
            if HostTime.monotonic() > deadline:
                raise ValueError(f"the list of its objects has no end: {describe_count(len(sizes), 'name')} so far")
        return sizes

    async def _bytes(self, name: str, at_once: asyncio.Semaphore) -> bytes | None:
        """The bytes of a segment; None where it is gone."""
        with suppress(OSError):
            data = self._copy_of(name).read_bytes()
            if _name_of(data) in name:
                return data
        async with at_once:
            stored = await self._get(name)
        if stored is not None and _name_of(stored) in name:
            _is_written(self._copy_of(name), stored)
        return stored

    async def _get(self, name: str) -> bytes | None:
        """Return what the store has under a name; None if it has nothing."""
        try:
            answer = await within(self._library.get_async(self._objects, name))
            return bytes(await within(answer.bytes_async()))
        except FileNotFoundError:
            return None

    def _copy_of(self, name: str) -> Path:
        """Where a segment is kept on this machine."""
        return self._keep / "segments" / _name_of(self._location.url.encode())[:16] / name.replace("/", "-")

    def _tidy_copies(self, found: Iterable[str]) -> None:
        """Remove the copies of segments that are gone: files that this store made, and none behind a link."""
        listed = set(map(self._copy_of, found))
        folder = self._copy_of("")
        if folder.is_symlink() or folder.parent.is_symlink():
            return
        with suppress(OSError):  # there are none, or it is a read-only tree
            for file in folder.iterdir():
                if file not in listed and _COPY.fullmatch(file.name):
                    file.unlink()

    def _put(self, entries: Iterable[Entry], there: Iterable[str] = ()) -> set[str]:
        """Write entries as segments, one for each device, but those that are there; returns the names of all."""
        names = set(there)
        new = {f"v1/{device}/{_name_of(data)}.pb": data for device, data in _encoded(entries)}
        with self._errors("cannot be written"):
            run(self._put_all({name: data for name, data in new.items() if name not in names}))
        return set(new)

    async def _put_all(self, new: Mapping[str, bytes]) -> None:
        for name, data in new.items():
            # Under one name all writers put the same bytes.
            await within(self._library.put_async(self._objects, name, data))
            _is_written(self._copy_of(name), data)

    @contextmanager
    def _errors(self, what: str, remedy: str = "") -> Iterator[None]:
        """Turn the errors of the library into a :class:`CacheError`."""
        try:
            yield
        except BaseException as error:
            # The library may panic, with classes that cannot be imported.
            is_panic = type(error).__name__ in ("PanicException", "RustPanic")
            if not (is_panic or isinstance(error, (self._library.exceptions.BaseError, OSError, ValueError))):
                raise
            hint = "" if self.has_credentials else ", asked without credentials: none are in the environment"
            raise CacheError(self._where, f"{what}: {words(error)}{hint}", remedy) from None


def _is_written(file: Path, data: bytes) -> bool:
    """Whether a file could be written."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as stream:  # never what somebody else has put there
            stream.write(data)
        os.replace(temporary, file)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
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
