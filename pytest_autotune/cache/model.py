"""What a cache holds: devices, problems, candidates and entries, as immutable data with value equality."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from pytest_autotune.cache.foreign_text import describe_tuple
from pytest_autotune.cache.quantities import describe_count

Scalar = bool | int | float | str | None

_SCALARS = frozenset({bool, int, float, str, type(None)})
INT64 = range(-(2**63), 2**63)
UINT32 = range(2**32)
_BY_NAME = attrgetter("name")

#: The name of a value of a fingerprint: the digest of the candidates that pruning left, where they are fewer.
PRUNED = "pruned"
#: The type of that part where some of what pruning left was in no list, and so was not measured with it.
NEW_CANDIDATES_TYPE = "digest.anew"


class UncacheableError(ValueError):
    """An object has no form that means the same in another process."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A named value: a part of a key, of a fingerprint or of a candidate's params.

    Values are compared as they are encoded, so ``True``, ``1`` and ``1.0`` are three different ones.

    :param type: what it was where it is more than the plain scalar: ``"dtype"``, ``"function"``, ``"digest"`` …
    :raises UncacheableError: for what no file or process could hand on, such as a scalar of numpy's, an integer beyond
        64 bits, text that UTF-8 cannot encode. :func:`plain_value` takes more.
    """

    name: str
    value: Scalar
    type: str = ""

    def __post_init__(self) -> None:
        kind = self.value.__class__
        if kind not in _SCALARS:
            raise UncacheableError(f"{self.name} is a {_type_name(self.value)}, which has no stable form")
        if kind is int and self.value not in INT64:
            raise UncacheableError(f"{self.name} is an integer beyond 64 bits")
        if kind is str:
            _check_text(self.name, self.value)
        check_name(self.name)
        check_name(self.type)

    @property
    def encoded(self) -> tuple[str, str, str, str]:
        """The value as text: name, kind of scalar, scalar, type."""
        value = self.value
        return self.name, type(value).__name__, repr(value), self.type

    @property
    def sort_key(self) -> tuple[str, float, tuple[str, str, str, str]]:
        """Orders values of one name: numbers by their size."""
        value = self.value
        is_number = isinstance(value, (int, float)) and value == value
        return self.name, float(value) if is_number and value is not None else 0.0, self.encoded

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value) or self.value.__class__ is not other.value.__class__:
            return False
        mine, theirs = self.value, other.value
        is_same = repr(mine) == repr(theirs) if mine.__class__ is float else mine == theirs
        return is_same and self.name == other.name and self.type == other.type

    def __hash__(self) -> int:
        # Coarser than equality, and much cheaper: a problem is hashed at every lookup.
        return hash((self.name, self.type, str(self.value)))

    @property
    def display_text(self) -> str:
        """The value as people read it: a tuple as ``(16, fp32)``, and not with the kind and type of each part."""
        text = str(self.value)
        return describe_tuple(text) if self.type == "tuple" else text

    def __str__(self) -> str:
        return f"{self.name}={self.display_text}"


def plain_value(name: str, value: object) -> Value:
    """Encode a scalar of Python; an integer beyond 64 bits as text of type ``"int"``.

    :raises UncacheableError: for all but None, bool, int, float (not NaN: it never equals itself, so it could never be
        found again) and text that UTF-8 can encode.
    """
    check_name(name)
    if isinstance(value, str):
        return Value(name, str(value))
    if value is None or isinstance(value, bool):
        return Value(name, value)
    if isinstance(value, int):
        number = int(value)
        return Value(name, number) if number in INT64 else Value(name, str(number), "int")
    if isinstance(value, float) and value == value:
        return Value(name, float(value))
    raise UncacheableError(f"{name} is a {_type_name(value)}, which has no stable form")


def check_name(name: str) -> None:
    """Refuse, by an :class:`UncacheableError`, a name that is no text, or that UTF-8 cannot encode."""
    if not isinstance(name, str) or not name.isascii():
        _check_text(f"the name {name!r}", name)


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise UncacheableError(f"{what} is a {_type_name(text)}, and not text")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UncacheableError(f"{what} is text that UTF-8 cannot encode") from None


def _check_names(what: str, values: tuple[Value, ...]) -> None:
    names = [value.name for value in values]
    if len(set(names)) < len(names):
        ((name, _),) = Counter(names).most_common(1)
        raise UncacheableError(f'the name "{name}" is used twice in its {what}')


def _check_type(what: str, parts: Iterable[object], of: type) -> None:
    """Refuse what an adapter that mypy has not seen may give."""
    for part in parts:
        if not isinstance(part, of):
            raise UncacheableError(f"{what} is a {_type_name(part)}, and not a {of.__name__}")


def _noted(text: str) -> str:
    """Text that is reported and never compared; what UTF-8 cannot encode, such as half a file name, is escaped."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _type_name(value: object) -> str:
    cls = value.__class__
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


@dataclass(frozen=True, slots=True)
class Device:
    """The type of processor that measurements hold for; not an index, not a host.

    :param name: what its maker calls it, ``"NVIDIA H200"``.
    :param arch: the architecture it is compiled for, ``"sm_90"``.
    :param multiprocessors: or threads, for a CPU; 0 where the number means nothing. Slices differ in it.
    """

    name: str
    arch: str
    multiprocessors: int = 0

    def __post_init__(self) -> None:
        check_name(self.name)
        check_name(self.arch)
        if self.multiprocessors not in UINT32:
            raise UncacheableError(f"{self.name} has a number of multiprocessors that does not fit 32 bits")

    @property
    def id(self) -> str:
        """The identity as one readable word."""
        arch = self.arch.replace("_", "")
        words = [self.name, arch, str(self.multiprocessors) if self.multiprocessors else ""]
        return "-".join(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-") for word in words if word)

    @property
    def sort_key(self) -> tuple[str, str, str, int]:
        """Orders devices the same way in every process: two may have one id."""
        return self.id, self.name, self.arch, self.multiprocessors

    def __str__(self) -> str:
        what = "thread" if self.name == "CPU" else "multiprocessor"
        number = f", {describe_count(self.multiprocessors, what)}" if self.multiprocessors else ""
        return f"{self.name} ({self.arch}{number})"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration that a tuner may choose.

    :param id: the tuner's own stable name for it, where it has one.
    :param time_us: None where it was not measured.
    :param failed: why it cannot be used; empty where it can.
    :param label: readable words about it, never compared.
    """

    id: str = ""
    params: tuple[Value, ...] = ()
    time_us: float | None = None
    failed: str = ""
    label: str = ""

    def __post_init__(self) -> None:
        check_name(self.id)
        _check_type("a parameter", self.params, Value)
        if not isinstance(self.time_us, (float, int, type(None))):
            raise UncacheableError(f"the time of {self} is a {_type_name(self.time_us)}")
        for name in ("failed", "label"):
            object.__setattr__(self, name, _noted(getattr(self, name)))

    def is_same_configuration(self, other: Candidate) -> bool:
        """Whether both name one configuration, whatever was measured of it."""
        return self.id == other.id and self.params == other.params

    @property
    def display_text(self) -> str:
        """What a reader knows of it: not an id, which may be a digest, where anything else is known; may be empty."""
        return ", ".join(map(str, self.params)) or self.label or self.id

    def __str__(self) -> str:
        return self.display_text or "default"


def is_tuner_named(tuner: str, names: Iterable[str]) -> bool:
    """Whether one of some names is a tuner's, or that of one above it: ``inductor`` names ``inductor.config``."""
    return any(f"{tuner}.".startswith(f"{name}.") for name in names)


def library_of(tuner: str) -> str:
    """The library that a tuner belongs to, as one adapter hooks it: ``inductor`` of ``inductor.config``."""
    return tuner.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is tuned: tuner + kernel + key + device.

    :param key: in the order in which the tuner has it, which is kept and shown; in any other it is the same problem.
    :raises UncacheableError: for a problem that no file could hold.
    """

    tuner: str
    kernel: str
    key: tuple[Value, ...] = field(compare=False)
    device: Device
    sorted_key: tuple[Value, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for part, name in (("tuner", self.tuner), ("kernel", self.kernel)):
            check_name(name)
            if not name:
                raise UncacheableError(f"its {part} is empty")
        _check_type("its device", [self.device], Device)
        object.__setattr__(self, "key", tuple(self.key))
        _check_names("key", self.key)
        object.__setattr__(self, "sorted_key", tuple(sorted(self.key, key=_BY_NAME)))

    @property
    def name(self) -> str:
        """The kernel as users write it where several tuners meet: ``tuner:kernel``."""
        return f"{self.tuner}:{self.kernel}"

    @property
    def library(self) -> str:
        """The library whose tuner it is."""
        return library_of(self.tuner)

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that name this problem in any process, on any machine."""
        device = (self.device.name, self.device.arch, self.device.multiprocessors)
        parts = (self.tuner, self.kernel, tuple(value.encoded for value in self.sorted_key), device)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Orders problems the same way in every process."""
        return self.tuner, self.kernel, self.device.sort_key, tuple(value.sort_key for value in self.key)

    def __str__(self) -> str:
        key = f" ({', '.join(map(str, self.key))})" if self.key else ""
        return f"{self.name}{key}"


class Identity(NamedTuple):
    """A problem with a fingerprint: of two entries with one identity a cache holds one."""

    problem: Problem
    fingerprint: tuple[Value, ...]

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that name this identity in any process, on any machine."""
        parts = [self.problem.digest, *(value.encoded for value in self.fingerprint)]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Versions:
    """Of libraries at tuning time; noted, and compared only to say what is unused or was tuned under another version.

    :param each: (library, version), the tuner's own library first; the version is empty where none is known.
    """

    libraries: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Those that a text names: ``"triton 3.6.0, torch 2.11.0"``. Any text comes back from ``str`` as it was."""
        pairs = []
        text = _noted(text)
        for part in text.split(", ") if text else ():
            library, _, version = part.partition(" ")
            pairs.append((library, version) if library and version else (part, ""))
        return cls(tuple(pairs))

    @property
    def tuner_version(self) -> str:
        """The tuner's own library with its version: ``"triton 3.6.0"``; empty where none is known."""
        return str(Versions(self.libraries[:1]))

    @property
    def tuner_minor_version(self) -> tuple[str, str]:
        """The tuner's own library, and its version as far as its users have to care: ``("triton", "3.6")``."""
        library, version = self.libraries[0] if self.libraries else ("", "")
        return library, ".".join(version.split(".")[:2])

    def __bool__(self) -> bool:
        return bool(self.libraries)

    def __str__(self) -> str:
        return ", ".join([f"{library} {version}" if version else library for library, version in self.libraries])


NO_VERSIONS = Versions()
#: A higher number in a file counts as 0: a damaged one would else never be replaced.
LAST_GENERATION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Digest:
    """What a digest of a fingerprint is made of, in short; reported, never compared. See :mod:`~.cache.digest_parts`.

    :param id: the digest itself, as it is the value of a part of a fingerprint.
    """

    id: str
    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        check_name(self.id)
        object.__setattr__(self, "parts", tuple(map(_noted, self.parts)))


@dataclass(frozen=True, slots=True)
class Entry:
    """A problem, what its choice rests on, the result, and what is noted about it.

    The result is a ``choice``, and where the tuner needs them every candidate's measurement in ``candidates``, or the
    tuner's own bytes in ``native``. ``label``, ``tuning_seconds`` and ``versions`` are reported. What is
    said of below is no part of what makes entries equal.

    :param compiled: what the choice was compiled for, one text for each specialization, sorted.
    :param digests: what digests of the fingerprint are made of, where it is known. A file has them once for all.
    :param generation: how often the entry was replaced, or removed in a store that many share; where caches meet, the
        higher one stays, whatever the times.
    """

    problem: Problem
    fingerprint: tuple[Value, ...] = ()
    choice: Candidate | None = None
    candidates: tuple[Candidate, ...] = ()
    native: bytes = b""
    label: str = ""
    tuning_seconds: float = 0.0
    versions: Versions = NO_VERSIONS
    compiled: tuple[str, ...] = field(default=(), compare=False)
    digests: tuple[Digest, ...] = field(default=(), compare=False)
    generation: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprint", tuple(sorted(self.fingerprint, key=_BY_NAME)))
        _check_names("fingerprint", self.fingerprint)
        object.__setattr__(self, "compiled", tuple(sorted({_noted(text) for text in self.compiled})))
        object.__setattr__(self, "label", _noted(self.label))
        _check_type("what the tuner itself wrote", [self.native], bytes)
        _check_type("its choice", [] if self.choice is None else [self.choice], Candidate)
        _check_type("a candidate", self.candidates, Candidate)

    @property
    def identity(self) -> Identity:
        """What the entry is of."""
        return Identity(self.problem, self.fingerprint)

    @property
    def is_failure(self) -> bool:
        """Whether the result is that no candidate can be used; each then says why."""
        has_result = self.choice is not None or self.native or not self.candidates
        return not has_result and all(candidate.failed for candidate in self.candidates)

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Orders entries by problem, then fingerprint, the same way in every process."""
        return *self.problem.sort_key, tuple(value.encoded for value in self.fingerprint)


def is_part(fingerprint: tuple[Value, ...]) -> bool:
    """Whether all that pruning left is in the list, so that the fastest of the list is the fastest of that."""
    return all(value.type != NEW_CANDIDATES_TYPE for value in fingerprint if value.name == PRUNED)


def before_pruning(fingerprint: tuple[Value, ...]) -> tuple[Value, ...]:
    """A fingerprint without what pruning left."""
    return tuple(value for value in fingerprint if value.name != PRUNED)


@dataclass(frozen=True, slots=True)
class Cache:
    """A set of entries, at most one for each problem and fingerprint.

    :param lossy: why what it was read from must not be rewritten, as a field that this version does not know: the
        place, what was found and what to do, as of a :class:`CacheError`. Else empty.
    """

    entries: tuple[Entry, ...] = ()
    lossy: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that the entries are of, sorted by id, then by what else they are."""
        return tuple(sorted({entry.problem.device for entry in self.entries}, key=attrgetter("sort_key")))
