"""A cache that many runs share, in object storage: S3, GCS, Azure, or a service with the interface of S3.

The cache is a set of segments: ``v1/<device>/<sha256 of the content>.pb`` below the URL. A segment is a cache in the
binary format, with the entries that a run tuned for a device. Segments are written once and never changed. The content
of the store is the merge of all segments, whatever their order. So no writer can lose the entries of another writer,
and the store needs no lock, lease, clock or conditional write. A segment's name is the digest of its bytes, so a copy
of the segment on this machine is never out of date.

The identity of an entry is its problem with its fingerprint. If several segments have entries of the same identity, the
entry with the highest generation stays. An entry that replaces another has the next generation. A *tombstone* is an
entry without a result: it removes the entry of its identity, and has the next generation, too. A *compaction* replaces
all segments of a device by one segment with the same entries.

"The library" is obstore, which makes the requests. It refuses to list a folder that holds an object with ``//`` or
``..`` in its name. Such a *refused* name is no segment's name, so another program has put the object there.

The segments of all devices are read. The device of the tests is not known before the first lookup, because asking for
it would initialise CUDA. Moreover, a miss can then say that the kernel was tuned for other devices.
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
from operator import attrgetter
from pathlib import Path

from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.combine import combine_caches
from pytest_autotune.cache.errors import CacheError, MissingCacheError
from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.merge import next_generation
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.stores.disk import MAX_BYTES
from pytest_autotune.cache.stores.objects import describe_request_error, next_page, open_url, run, within_patience
from pytest_autotune.cache.stores.store import NotTakenError, OpenedStore, UpdateOutcome
from pytest_autotune.cache.wording import describe_count

#: The longest time for all pages of a list, for a run and for a compaction. Some stores give the first page for ever.
_LIST_S = 5.0
_LIST_OF_COMPACTION_S = 60.0
#: A larger segment is written as two, so that a segment is read within a request's time.
_LARGE_BYTES = 4 * 2**20
_REQUESTS_AT_ONCE = 8
#: The tries to read all listed segments. A compaction may have merged a listed segment into another segment.
_TRIES = 4
_PAUSE_S = 0.2
_SEGMENT_NAME = re.compile(r"v1/[^/]+/([0-9a-f]{64})\.pb")
#: The folder of all segments.
_FOLDER = "v1/"
#: The name under which a loss is reported that the objects with refused names cause. It is no segment's name.
_REFUSED_OBJECTS = "v1/"
#: The name of a segment's copy on this machine.
_COPY_NAME = re.compile(r"v1-.+-[0-9a-f]{64}\.pb")


@dataclass(frozen=True)
class OpenedSegments:
    """A store at a URL that is opened for an update.

    :param cache: the content of the store.
    :param removing: also remove the entries that a new content lacks.
    """

    store: SegmentStore
    cache: Cache
    removing: bool

    def write(self, cache: Cache) -> UpdateOutcome:
        """Add the new entries; see :meth:`SegmentStore.add`."""
        return self.store.add(cache, self.removing)


@dataclass(frozen=True)
class _Listing:
    """The names of the segments of a store.

    :param refusal: the message with which the library refused the name of an object; empty if it refused none.
    """

    names: list[str]
    refusal: str


@dataclass(frozen=True)
class _StoredSegments:
    """The segments of a store.

    :param data_by_name: the bytes of each segment; None for a segment that is listed and gone.
    :param refusal: the message with which the library refused the name of an object; empty if it refused none.
    """

    data_by_name: Mapping[str, bytes | None]
    refusal: str


class SegmentStore:
    """A cache at a URL."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._place = str(location)
        # No file can be below the null device.
        self._local_copy = location.local_copy or Path(os.devnull)
        opened = open_url(location)
        self._library, self._objects, self.has_credentials = opened.library, opened.objects, opened.has_credentials
        #: The content at the first reading, with tombstones; None before the first reading.
        self._content: Cache | None = None

    def __str__(self) -> str:
        return self._place

    def read(self, missing_ok: bool = False) -> Cache:
        """Return the content at the first reading.

        A segment that cannot be read is reported, and the other segments are read. A store that is down is an error
        once, and empty afterwards.
        """
        content = self._read()
        if not (content.entries or missing_ok):
            raise MissingCacheError(self._place, "holds no cache")
        return _without_tombstones(content)

    def _read(self) -> Cache:
        """Return the content at the first reading, with tombstones."""
        if self._content is not None:
            return self._content
        # If the reading raises an error, the content stays empty: a store that is down is an error only once.
        self._content = Cache()
        segments = self._read_segments(_LIST_S)
        losses = [cache.lossy for cache in segments.values() if cache.lossy]
        if losses and len(losses) == len(segments):
            # No segment can be read.
            raise CacheError(*losses[0])
        self._content = combine_caches(segments).cache
        return self._content

    def check_writable(self) -> Cache:
        # Only writing shows whether the store can be written.
        return self.read(missing_ok=True)

    @contextmanager
    def open_for_update(self, removing: bool = False) -> Iterator[OpenedStore]:
        """Open the store; see :class:`~pytest_autotune.cache.stores.store.Store`. It needs no lock."""
        yield OpenedSegments(self, _without_tombstones(self._read()), removing)

    def add(self, cache: Cache, removing: bool) -> UpdateOutcome:
        """Write the entries by which a cache differs from the store, as new segments.

        :param removing: also remove the entries that the cache lacks from the store. Else they stay, because other runs
            may need them.
        :raises NotTakenError: if the entries could not be written.
        """
        content = self._read()
        new_entries = _list_new_entries(content, cache)
        if removing:
            new_entries += _list_tombstones(content, cache)
        try:
            self._write_segments(_encode_segments(new_entries))
        except CacheError as error:
            # A local file keeps the entries. If it cannot be written either, the path is empty, and the error leaves
            # the remedy out.
            path = self._write_unsent_file(new_entries)
            remedy = f"the entries are kept; to send them: pytest-autotune merge {path} -o {self._location.url}/"
            raise NotTakenError(self._place, error.event, path, remedy) from None
        return UpdateOutcome(self._place, bool(new_entries))

    def _write_unsent_file(self, entries: Iterable[Entry]) -> str:
        """Write entries that the store did not take into a local file. Return its path; empty if it is not written."""
        data = encode(Cache(tuple(entries)), Format.BINARY)
        file = self._local_copy / "unsent" / f"{_digest(data)[:16]}.pb"
        if not _try_to_write(file, data):
            return ""
        return os.path.relpath(file)

    # Compaction.

    def compact(self) -> tuple[int, int]:
        """Write all segments as one segment for each device, then remove the old segments.

        A segment that cannot be read, or that another process adds meanwhile, stays. A process that reads meanwhile
        finds every entry in some segment, because the old segments are removed last.

        :returns: the number of segments before the compaction, and after it.
        """
        segments = self._read_segments(_LIST_OF_COMPACTION_S)
        # This name stands for objects that are no segments.
        segments.pop(_REFUSED_OBJECTS, None)
        readable_segments = {name: cache for name, cache in segments.items() if not cache.lossy}
        merged_cache = _without_tombstones(combine_caches(readable_segments).cache)
        merged_data_by_name = _encode_segments(merged_cache.entries)
        # A name is a digest of the bytes. A merged segment whose name the store already has need not be written.
        new_data_by_name = {name: data for name, data in merged_data_by_name.items() if name not in readable_segments}
        self._write_segments(new_data_by_name)
        with self._cache_errors("cannot be compacted", "nothing was removed"):
            run(self._check_stored(merged_data_by_name.keys()))
        # The store has the merged segments now, so the segments that they replace can go.
        replaced_names = readable_segments.keys() - merged_data_by_name.keys()
        self._delete_segments({name: readable_segments[name] for name in sorted(replaced_names)})
        names_after = (segments.keys() - replaced_names) | merged_data_by_name.keys()
        return len(segments), len(names_after)

    def _delete_segments(self, segments: Mapping[str, Cache]) -> None:
        """Remove segments; the segments with tombstones last.

        If a tombstone were removed before the entry that it removes, a reader would find that entry again.
        """
        plain_names, names_with_tombstones = [], []
        for name, cache in segments.items():
            if any(_is_tombstone(entry) for entry in cache.entries):
                names_with_tombstones.append(name)
            else:
                plain_names.append(name)
        self._delete_objects(plain_names)
        self._delete_objects(names_with_tombstones)

    async def _check_stored(self, names: Iterable[str]) -> None:
        """Check that the store gives back the segments that it has taken.

        :raises ValueError: if it does not.
        """
        for name in names:
            data = await self._get(name)
            if data is None or not _is_intact(name, data):
                raise ValueError(f"{name} was written, but the store does not give it back")

    def _delete_objects(self, names: Sequence[str]) -> None:
        """Remove objects. When this returns, the store has none of them.

        :raises CacheError: if an object could not be removed.
        """
        if not names:
            return
        with self._cache_errors("cannot be compacted"):
            try:
                self._library.delete(self._objects, names)
            except FileNotFoundError:
                # GCS and Azure remove object by object, and this object was already gone: another process compacts the
                # store, too. The library stops at this error, so the next objects may still be there.
                self._delete_each(names)

    def _delete_each(self, names: Iterable[str]) -> None:
        """Remove objects, each with a request of its own. An object that is gone is skipped."""
        for name in names:
            with suppress(FileNotFoundError):
                self._library.delete(self._objects, [name])

    # Reading.

    def _read_segments(self, list_s: float) -> dict[str, Cache]:
        """Return the caches of the segments by name. A cache that cannot be read is empty, and says why in ``lossy``.

        :param list_s: the longest time for the list of the names.
        """
        with self._cache_errors("cannot be read", "with ?optional, a run goes on without the cache"):
            stored = run(self._load_segments(list_s))
        self._remove_old_copies(stored.data_by_name)
        segments = {name: self._decode(name, data) for name, data in stored.data_by_name.items()}
        if stored.refusal:
            loss = (
                self._place,
                f"holds an object that is not of pytest-autotune: {stored.refusal}",
                "remove that object",
            )
            segments[_REFUSED_OBJECTS] = Cache(lossy=loss)
        return segments

    async def _load_segments(self, list_s: float) -> _StoredSegments:
        """List the segments, and load the segments of the list.

        If a listed segment is gone, a compaction has probably merged it into a new segment. The list is then read again
        to find the new segment, up to :data:`_TRIES` times.

        :param list_s: the longest time for the list of the names.
        """
        #: The bytes of each segment; None for a segment that was listed and was gone.
        data_by_name: dict[str, bytes | None] = {}
        tries = 0
        while True:
            listing = await self._list(HostTime.monotonic() + list_s)
            # The first time, these are all segments. Later they are the new segments, and those that were gone.
            unread_names = [name for name in listing.names if data_by_name.get(name) is None]
            loaded = await self._load_named_segments(unread_names)
            data_by_name.update(loaded)
            tries += 1
            has_all_segments = None not in loaded.values()
            if has_all_segments or tries == _TRIES:
                # The last list has the segments that replace those of earlier lists.
                return _StoredSegments({name: data_by_name[name] for name in listing.names}, listing.refusal)
            await asyncio.sleep(_PAUSE_S)

    async def _load_named_segments(self, names: Sequence[str]) -> dict[str, bytes | None]:
        """Return the bytes of segments by name, a few requests at the same time; None for a segment that is gone."""
        limit = asyncio.Semaphore(_REQUESTS_AT_ONCE)
        loaded = await asyncio.gather(*[self._load_segment(name, limit) for name in names])
        return dict(zip(names, loaded, strict=True))

    async def _load_segment(self, name: str, limit: asyncio.Semaphore) -> bytes | None:
        """Return the bytes of a segment, from the copy on this machine or else from the store; None if it is gone.

        Bytes from the store are written to the copy.

        :param limit: limits the number of requests at the same time.
        """
        copied = self._read_copy(name)
        if copied is not None:
            return copied
        async with limit:
            stored = await self._get(name)
        if stored is not None and _is_intact(name, stored):
            # A copy only saves time, so it does not matter whether it could be written.
            _try_to_write(self._copy_path(name), stored)
        return stored

    async def _get(self, name: str) -> bytes | None:
        """Return the bytes of an object; None if the store has no object of this name."""
        try:
            answer = await within_patience(self._library.get_async(self._objects, name))
            return bytes(await within_patience(answer.bytes_async()))
        except FileNotFoundError:
            return None

    def _decode(self, name: str, data: bytes | None) -> Cache:
        """Return the cache in a segment. A cache that cannot be read is empty, and says why in ``lossy``.

        :param data: the bytes of the segment; None if it is gone.
        """
        place = f"{self._place}: {name}"
        remedy = "remove that object"
        if data is None:
            return Cache(lossy=(place, "is listed by the store, which then answers 404, so it was ignored", remedy))
        if not _is_intact(name, data):
            return Cache(lossy=(place, "is damaged (its checksum does not match its name), so it was ignored", remedy))
        try:
            return decode(data, Format.BINARY, place)
        except CacheError as error:
            return Cache(lossy=(place, f"was ignored: {error.event}", error.remedy))

    # Listing.

    async def _list(self, deadline: float) -> _Listing:
        """Return the names of the segments. Objects that are too large, or have names of another form, are left out.

        :param deadline: the time at which the list must have ended.
        """
        refusal = ""
        try:
            sizes = await self._list_sizes(_FOLDER, deadline)
        except self._library.exceptions.InvalidPathError as error:
            # The library refuses each page of a list that has a refused name. So each folder is listed in a way that
            # leaves such names out.
            refusal = describe_request_error(error)
            sizes = {}
            for folder in await self._list_folders(deadline):
                sizes |= await self._list_sizes_without_refused(folder, deadline)
        names = []
        for name, size in sizes.items():
            if size <= MAX_BYTES and _SEGMENT_NAME.fullmatch(name):
                names.append(name)
        return _Listing(sorted(names), refusal)

    async def _list_folders(self, deadline: float) -> Iterable[str]:
        """Return the folders of the devices, if the library refuses a name below ``v1/``."""
        try:
            listing = await within_patience(self._library.list_with_delimiter_async(self._objects, _FOLDER))
        except self._library.exceptions.InvalidPathError:
            # The name is directly below v1/. The characters "." and "/" are sorted before "0", so a list that begins
            # after "v1/0" leaves the name out.
            names = await self._list_sizes(_FOLDER, deadline, after=f"{_FOLDER}0")
            return {name.rpartition("/")[0] for name in names}
        folders: Iterable[str] = listing["common_prefixes"]
        return folders

    async def _list_sizes_without_refused(self, folder: str, deadline: float) -> dict[str, int]:
        """Return the sizes of the objects in a folder by name, without the names that the library refuses."""
        try:
            # A segment's name begins with a digit or a letter. These are sorted after the "." and "/" of refused names.
            return await self._list_sizes(folder, deadline, after=f"{folder}/0")
        except self._library.exceptions.InvalidPathError:
            # The refused name lies deeper, so a list of the folder without its subfolders leaves it out.
            listing = await within_patience(self._library.list_with_delimiter_async(self._objects, folder))
            return {item["path"]: item["size"] for item in listing["objects"]}

    async def _list_sizes(self, prefix: str, deadline: float, after: str | None = None) -> dict[str, int]:
        """Return the sizes of all objects below a prefix by name, in bytes.

        :param deadline: the time at which the list must have ended.
        :param after: leave out the names that are sorted before this name; None to leave out none.
        :raises ValueError: if the list has no end before the deadline.
        """
        sizes: dict[str, int] = {}
        pages = self._library.list(self._objects, prefix=prefix, offset=after).__aiter__()
        while page := await within_patience(next_page(pages)):
            for item in page:
                # A page may repeat items of another page.
                sizes[item["path"]] = item["size"]
            if HostTime.monotonic() > deadline:
                raise ValueError(f"the list of its objects has no end: {describe_count(len(sizes), 'name')} so far")
        return sizes

    # Copies on this machine.

    def _copy_path(self, name: str) -> Path:
        """Return the path of a segment's copy on this machine."""
        store = _digest(self._location.url.encode())[:16]
        return self._local_copy / "segments" / store / name.replace("/", "-")

    def _read_copy(self, name: str) -> bytes | None:
        """Return the bytes of a segment's copy on this machine; None if it is missing or damaged."""
        try:
            data = self._copy_path(name).read_bytes()
        except OSError:
            return None
        if not _is_intact(name, data):
            return None
        return data

    def _remove_old_copies(self, names: Iterable[str]) -> None:
        """Remove the copies of segments that are gone. Only files that this store made are removed.

        :param names: the names of the segments that are not gone.
        """
        copies = {self._copy_path(name) for name in names}
        folder = self._copy_path("")
        if folder.is_symlink() or folder.parent.is_symlink():
            # The files behind a link may belong to another program.
            return
        # An OSError means that there are no copies, or that the folder is read-only.
        with suppress(OSError):
            for file in folder.iterdir():
                if file not in copies and _COPY_NAME.fullmatch(file.name):
                    file.unlink()

    # Writing.

    def _write_segments(self, data_by_name: Mapping[str, bytes]) -> None:
        """Put segments into the store.

        :raises CacheError: if the store does not take a segment.
        """
        with self._cache_errors("cannot be written"):
            run(self._put_all(data_by_name))

    async def _put_all(self, data_by_name: Mapping[str, bytes]) -> None:
        for name, data in data_by_name.items():
            # A name is the digest of the bytes. So another process that puts this object puts the same bytes.
            await within_patience(self._library.put_async(self._objects, name, data))
            _try_to_write(self._copy_path(name), data)

    @contextmanager
    def _cache_errors(self, event: str, remedy: str = "") -> Iterator[None]:
        """Turn the errors of requests into a :class:`CacheError`.

        :param event: the words in front of the library's message: ``"cannot be read"``.
        """
        try:
            yield
        except BaseException as error:
            # A panic of the library has a class that cannot be imported, so its name is compared.
            is_panic = type(error).__name__ in ("PanicException", "RustPanic")
            is_request_error = isinstance(error, (self._library.exceptions.BaseError, OSError, ValueError))
            if not is_panic and not is_request_error:
                raise
            hint = ""
            if not self.has_credentials:
                hint = ", without credentials, because the environment has none"
            raise CacheError(self._place, f"{event}: {describe_request_error(error)}{hint}", remedy) from None


def _try_to_write(file: Path, data: bytes) -> bool:
    """Write a file as a whole. Return whether it could be written."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # The mode "x" never opens a file that another program has put there.
        with temporary.open("xb") as stream:
            stream.write(data)
        os.replace(temporary, file)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        return False
    return True


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _is_intact(name: str, data: bytes) -> bool:
    """Whether bytes are those of the segment with this name, which has their digest."""
    return _digest(data) in name


# Entries and tombstones.


def _is_tombstone(entry: Entry) -> bool:
    """Whether an entry has no result: it then says that the entry of its identity was removed."""
    return entry.choice is None and not entry.candidates and not entry.native


def _tombstone(entry: Entry) -> Entry:
    """Return the tombstone that removes an entry."""
    return Entry(entry.problem, entry.fingerprint, generation=next_generation(entry))


def _without_tombstones(cache: Cache) -> Cache:
    entries = [entry for entry in cache.entries if not _is_tombstone(entry)]
    return replace(cache, entries=tuple(entries))


def _list_new_entries(content: Cache, cache: Cache) -> list[Entry]:
    """Return the entries of a cache that the store lacks or has in another form, with the generations that they need.

    Entries that are equal in the cache and in the store are left out.

    :param content: the content of the store, with tombstones.
    """
    stored_entries = {entry.identity: entry for entry in content.entries}
    new_entries = []
    for entry in cache.entries:
        stored = stored_entries.get(entry.identity)
        if stored is None:
            # No segment has an entry of this problem and fingerprint.
            new_entries.append(entry)
        elif entry != stored:
            # Only with the next generation does the entry win over the stored entry when segments are merged.
            generation = max(entry.generation, next_generation(stored))
            new_entries.append(replace(entry, generation=generation))
        elif entry.compiled != stored.compiled:
            # `==` ignores `compiled`. A merge unites the specializations of equal entries, so the generation stays.
            generation = max(entry.generation, stored.generation)
            new_entries.append(replace(entry, generation=generation))
    return new_entries


def _list_tombstones(content: Cache, cache: Cache) -> list[Entry]:
    """Return a tombstone for each entry of the store that a cache lacks.

    :param content: the content of the store, with tombstones.
    """
    identities = {entry.identity for entry in cache.entries}
    tombstones = []
    for entry in _without_tombstones(content).entries:
        if entry.identity not in identities:
            tombstones.append(_tombstone(entry))
    return tombstones


def _encode_segments(entries: Iterable[Entry]) -> dict[str, bytes]:
    """Return the bytes of the segments for entries, by name; at least one segment for each device."""
    entries_by_folder: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=attrgetter("sort_key")):
        # In a path, a folder named ".." is the parent folder.
        folder = re.sub(r"^\.+$", "", entry.problem.device.id) or "device"
        entries_by_folder[folder].append(entry)
    segments = {}
    for folder, device_entries in entries_by_folder.items():
        for data in _encode_parts(device_entries):
            segments[f"{_FOLDER}{folder}/{_digest(data)}.pb"] = data
    return segments


def _encode_parts(entries: Sequence[Entry]) -> Iterator[bytes]:
    """Yield the bytes of the segments for the entries of a device: one segment, or several if it would be too large."""
    data = encode(Cache(tuple(entries)), Format.BINARY)
    if len(data) <= _LARGE_BYTES or len(entries) == 1:
        yield data
        return
    middle = len(entries) // 2
    yield from _encode_parts(entries[:middle])
    yield from _encode_parts(entries[middle:])
