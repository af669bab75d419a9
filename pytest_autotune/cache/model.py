"""The data of a cache: devices, problems, candidates and entries. They are immutable, and compare by value."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from pytest_autotune.cache.wording import describe_count, describe_tuple

Scalar = bool | int | float | str | None

_SCALARS = frozenset({bool, int, float, str, type(None)})
INT64 = range(-(2**63), 2**63)
UINT32 = range(2**32)
_BY_NAME = attrgetter("name")

#: The name of a value of a fingerprint: the digest of the candidates that pruning left, if it left fewer.
PRUNED = "pruned"
#: The type of that value if pruning made candidates that are not in the list. A measurement of the whole list then says
#: nothing about them.
NEW_CANDIDATES_TYPE = "digest.anew"


class UncacheableError(ValueError):
    """An object has no form that means the same in another process."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A named value: a part of a key, of a fingerprint or of a candidate's params.

    Values are compared as they are encoded, so ``True``, ``1`` and ``1.0`` are three different values.

    :param type: the kind of a value that stands for more than a plain scalar: ``"dtype"``, ``"function"``, ``"digest"``
        …; empty for a plain scalar.
    :raises UncacheableError: for a value that no file can hold, such as a scalar of numpy, an integer beyond 64 bits,
        or text that UTF-8 cannot encode. :func:`plain_value` takes more.
    """

    name: str
    value: Scalar
    type: str = ""

    def __post_init__(self) -> None:
        check_name(self.name)
        scalar_type = self.value.__class__
        if scalar_type not in _SCALARS:
            raise UncacheableError(f"{self.name} is a {_type_name(self.value)}, which has no stable form")
        if scalar_type is int and self.value not in INT64:
            raise UncacheableError(f"{self.name} is an integer beyond 64 bits")
        if scalar_type is str:
            _check_text(self.name, self.value)
        check_name(self.type)

    @property
    def encoded(self) -> tuple[str, str, str, str]:
        """The value as text: name, kind of scalar, scalar, type."""
        value = self.value
        return self.name, type(value).__name__, repr(value), self.type

    @property
    def sort_key(self) -> tuple[str, float, tuple[str, str, str, str]]:
        """Sorts values of the same name; numbers are sorted by their size."""
        value = self.value
        number = 0.0
        if isinstance(value, (int, float)) and value == value:
            number = float(value)
        return self.name, number, self.encoded

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value) or self.value.__class__ is not other.value.__class__:
            return False
        if self.name != other.name or self.type != other.type:
            return False
        if self.value.__class__ is float:
            # -0.0 and 0.0 are different, and NaN is equal to NaN.
            return repr(self.value) == repr(other.value)
        return self.value == other.value

    def __hash__(self) -> int:
        # Coarser than equality, and much cheaper: a problem is hashed at every lookup.
        return hash((self.name, self.type, str(self.value)))

    @property
    def display_text(self) -> str:
        """The value for people: a tuple is ``(16, fp32)``, without the kind and type of each part."""
        text = str(self.value)
        if self.type == "tuple":
            return describe_tuple(text)
        return text

    def __str__(self) -> str:
        return f"{self.name}={self.display_text}"


def plain_value(name: str, value: object) -> Value:
    """Encode a scalar of Python; an integer beyond 64 bits as text of type ``"int"``.

    :raises UncacheableError: for everything but None, bool, int, float and text that UTF-8 can encode. NaN is refused,
        too: it does not equal itself, so no lookup would find it.
    """
    # No code of the user may run here. A subclass may have the user's methods, such as __str__, and the __class__ of a
    # proxy may be a property of the user. So type() is used, and the methods of Python's own classes are called.
    cls = type(value)
    if issubclass(cls, str):
        return Value(name, str.__str__(value))
    if value is None or value is True or value is False:
        return Value(name, value)
    if issubclass(cls, int):
        number = int.__int__(value)  # type: ignore[arg-type]
        if number in INT64:
            return Value(name, number)
        return Value(name, str(number), "int")
    if issubclass(cls, float):
        float_value = float.__float__(value)  # type: ignore[arg-type]
        is_nan = float_value != float_value
        if not is_nan:
            return Value(name, float_value)
    check_name(name)
    raise UncacheableError(f"{name} is a {_type_name(value)}, which has no stable form")


def check_name(name: str) -> None:
    """Check that a name is text that UTF-8 can encode.

    :raises UncacheableError: if it is not.
    """
    if not isinstance(name, str) or not name.isascii():
        _check_text(f"the name {name!r}", name)


def _check_text(description: str, text: object) -> None:
    if not isinstance(text, str):
        raise UncacheableError(f"{description} is a {_type_name(text)}, and not text")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UncacheableError(f"{description} is text that UTF-8 cannot encode") from None


def _check_unique_names(description: str, values: tuple[Value, ...]) -> None:
    names = [value.name for value in values]
    if len(set(names)) < len(names):
        ((name, _),) = Counter(names).most_common(1)
        raise UncacheableError(f'the name "{name}" is used twice in its {description}')


def _check_types(description: str, items: Iterable[object], expected_type: type) -> None:
    """Check the types of an adapter's values. Adapters of other packages need not pass mypy.

    :raises UncacheableError: for the first value of another type.
    """
    for item in items:
        if not isinstance(item, expected_type):
            raise UncacheableError(f"{description} is a {_type_name(item)}, and not a {expected_type.__name__}")


def _escape_unencodable(text: str) -> str:
    """Return text with escapes for characters that UTF-8 cannot encode. Only for text that is never compared."""
    if text.isascii():
        return text
    return text.encode(errors="backslashreplace").decode()


def _type_name(value: object) -> str:
    # The text is <class 'module.name'>. Unlike the attributes of a class, it needs no code of a user's metaclass.
    return type.__repr__(type(value)).removeprefix("<class '").removesuffix("'>")


@dataclass(frozen=True, slots=True)
class Device:
    """A type of processor. A measurement holds for all processors of the type, so a device has no index and no host.

    :param name: the maker's name, ``"NVIDIA H200"``.
    :param arch: the architecture that kernels are compiled for, ``"sm_90"``.
    :param multiprocessors: the number of multiprocessors, or of a CPU's threads; 0 if the device has no such number.
        Slices of a GPU differ in this number.
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
        """The device as one readable word: ``nvidia-h200-sm90-132``."""
        words = [self.name, self.arch.replace("_", "")]
        if self.multiprocessors:
            words.append(str(self.multiprocessors))
        parts = []
        for word in words:
            if word:
                parts.append(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-"))
        return "-".join(parts)

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU: neither a CPU nor Triton's interpreter."""
        return self.name.lower() != "cpu" and self.arch != "interpreter"

    @property
    def sort_key(self) -> tuple[str, str, str, int]:
        """Sorts devices in the same way in every process. Two devices may have the same id."""
        return self.id, self.name, self.arch, self.multiprocessors

    def __str__(self) -> str:
        if not self.multiprocessors:
            return f"{self.name} ({self.arch})"
        noun = "multiprocessor"
        if self.name == "CPU":
            noun = "thread"
        return f"{self.name} ({self.arch}, {describe_count(self.multiprocessors, noun)})"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration that a tuner may choose.

    :param id: the tuner's own stable name of the configuration; empty if it has none.
    :param time_us: the measured time in microseconds; None if the candidate was not measured.
    :param failed: why the candidate cannot be used; empty if it can.
    :param label: readable words about the candidate or its measurement.
    """

    id: str = ""
    params: tuple[Value, ...] = ()
    time_us: float | None = None
    failed: str = ""
    label: str = ""

    def __post_init__(self) -> None:
        check_name(self.id)
        _check_types("a parameter", self.params, Value)
        if not isinstance(self.time_us, (float, int, type(None))):
            raise UncacheableError(f"the time of {self} is a {_type_name(self.time_us)}")
        for name in ("failed", "label"):
            object.__setattr__(self, name, _escape_unencodable(getattr(self, name)))

    def is_same_configuration(self, other: Candidate) -> bool:
        """Whether both candidates are the same configuration, whatever their times are."""
        return self.id == other.id and self.params == other.params

    @property
    def display_text(self) -> str:
        """The configuration for people: its params, else its label, else its id. It may be empty."""
        params = [str(param) for param in self.params]
        return ", ".join(params) or self.label or self.id

    def __str__(self) -> str:
        return self.display_text or "default"


def is_tuner_named(tuner: str, names: Iterable[str]) -> bool:
    """Whether one of the names is a tuner's name or a prefix of it: ``inductor`` names ``inductor.config``."""
    return any(f"{tuner}.".startswith(f"{name}.") for name in names)


def library_of(tuner: str) -> str:
    """Return the library of a tuner, which one adapter hooks: ``inductor`` for ``inductor.config``."""
    return tuner.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem to tune: tuner, kernel, key and device.

    :param key: in the tuner's order, which is kept and shown. Problems with the same key in another order are equal.
    :raises UncacheableError: for a problem that no file can hold.
    """

    tuner: str
    kernel: str
    key: tuple[Value, ...] = field(compare=False)
    device: Device
    sorted_key: tuple[Value, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for noun, name in (("tuner", self.tuner), ("kernel", self.kernel)):
            check_name(name)
            if not name:
                raise UncacheableError(f"its {noun} is empty")
        _check_types("its device", [self.device], Device)
        object.__setattr__(self, "key", tuple(self.key))
        _check_unique_names("key", self.key)
        object.__setattr__(self, "sorted_key", tuple(sorted(self.key, key=_BY_NAME)))

    @property
    def name(self) -> str:
        """The kernel with its tuner, as users write it: ``tuner:kernel``."""
        return f"{self.tuner}:{self.kernel}"

    @property
    def library(self) -> str:
        """The library of the tuner."""
        return library_of(self.tuner)

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that are the same in any process, on any machine."""
        device = (self.device.name, self.device.arch, self.device.multiprocessors)
        parts = (self.tuner, self.kernel, tuple(value.encoded for value in self.sorted_key), device)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Sorts problems in the same way in every process."""
        return self.tuner, self.kernel, self.device.sort_key, tuple(value.sort_key for value in self.key)

    def __str__(self) -> str:
        if not self.key:
            return self.name
        values = [str(value) for value in self.key]
        return f"{self.name} ({', '.join(values)})"


class Fingerprint(tuple[Value, ...]):
    """The values that an entry's choice depends on, sorted by name.

    If a lookup has equal values, it trusts the choice.

    A value named ``pruned`` is the digest of the candidates that pruning left, if it left fewer than the list has.
    """

    __slots__ = ()

    def __new__(cls, values: Iterable[Value] = ()) -> Fingerprint:
        return super().__new__(cls, sorted(values, key=_BY_NAME))

    @property
    def is_pruned(self) -> bool:
        """Whether pruning left fewer candidates than the list has."""
        return any(value.name == PRUNED for value in self)

    @property
    def has_only_listed_candidates(self) -> bool:
        """Whether all candidates that pruning left are in the list.

        Then the fastest candidate of the list is also the fastest of the candidates that pruning left, if it is one.
        """
        return all(value.type != NEW_CANDIDATES_TYPE for value in self if value.name == PRUNED)

    def without_pruning(self) -> Fingerprint:
        """Return the fingerprint of the whole list."""
        return Fingerprint(value for value in self if value.name != PRUNED)


class Identity(NamedTuple):
    """A problem with a fingerprint. A cache holds at most one entry for each identity."""

    problem: Problem
    fingerprint: Fingerprint

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that are the same in any process, on any machine."""
        parts = [self.problem.digest, *(value.encoded for value in self.fingerprint)]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of libraries at tuning time.

    They are reported, and compared only to find unused entries and entries of another version.

    :param libraries: (library, version), the tuner's own library first; the version is empty if it is not known.
    """

    libraries: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parse ``"triton 3.6.0, torch 2.11.0"``. ``str`` gives any text back unchanged."""
        if not text:
            return cls()
        libraries = []
        for words in _escape_unencodable(text).split(", "):
            library, _, version = words.partition(" ")
            if not library or not version:
                # The text is not of this form. It stays as it is.
                library, version = words, ""
            libraries.append((library, version))
        return cls(tuple(libraries))

    @property
    def tuner_version(self) -> str:
        """The tuner's own library with its version: ``"triton 3.6.0"``; empty if it is not known."""
        return str(Versions(self.libraries[:1]))

    @property
    def tuner_minor_version(self) -> tuple[str, str]:
        """The tuner's own library, and the first two parts of its version: ``("triton", "3.6")``."""
        if not self.libraries:
            return "", ""
        library, version = self.libraries[0]
        return library, ".".join(version.split(".")[:2])

    def __bool__(self) -> bool:
        return bool(self.libraries)

    def __str__(self) -> str:
        words = []
        for library, version in self.libraries:
            if version:
                words.append(f"{library} {version}")
            else:
                words.append(library)
        return ", ".join(words)


NO_VERSIONS = Versions()
#: A higher generation in a file is damaged and counts as 0, else the entry would never be replaced.
LAST_GENERATION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Digest:
    """The parts of a digest; reported, never compared. See :mod:`pytest_autotune.cache.digest_parts`.

    :param id: the digest itself: the value of a part of a fingerprint.
    """

    id: str
    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        check_name(self.id)
        object.__setattr__(self, "parts", tuple(map(_escape_unencodable, self.parts)))


@dataclass(frozen=True, slots=True)
class Entry:
    """The result of a tuning: a problem, its fingerprint, and the choice.

    The result is ``choice``; if the tuner needs them, every candidate's time in ``candidates``; or the tuner's own
    bytes in ``native``. ``label``, ``tuning_seconds`` (seconds) and ``versions`` are reported.

    Equality decides whether a merge replaces an entry, and whether ``diff`` shows a difference. It therefore compares
    the reported fields, too: else a changed label would never reach a file. It ignores ``compiled``, ``digests`` and
    ``generation``, because a merge itself computes these from both entries.

    :param compiled: the specializations that the choice was compiled for, as texts, sorted.
    :param digests: the parts of the fingerprint's digests, if they are known. A file has them once for all entries.
    :param generation: how often the entry was replaced, or removed from a shared store. If several caches have the
        entry, the highest generation stays, whatever the times are.
    :param asked_by: the tuning, as ``tuner:kernel``, during which the entry was asked for; empty if a test itself
        asked for the entry.
    """

    problem: Problem
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    choice: Candidate | None = None
    candidates: tuple[Candidate, ...] = ()
    native: bytes = b""
    label: str = ""
    tuning_seconds: float = 0.0
    versions: Versions = NO_VERSIONS
    compiled: tuple[str, ...] = field(default=(), compare=False)
    digests: tuple[Digest, ...] = field(default=(), compare=False)
    generation: int = field(default=0, compare=False)
    asked_by: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprint", Fingerprint(self.fingerprint))
        _check_unique_names("fingerprint", self.fingerprint)
        object.__setattr__(self, "compiled", tuple(sorted({_escape_unencodable(text) for text in self.compiled})))
        object.__setattr__(self, "label", _escape_unencodable(self.label))
        object.__setattr__(self, "asked_by", _escape_unencodable(self.asked_by))
        _check_types("what the tuner itself wrote", [self.native], bytes)
        if self.choice is not None:
            _check_types("its choice", [self.choice], Candidate)
        _check_types("a candidate", self.candidates, Candidate)

    @property
    def identity(self) -> Identity:
        """The problem with the fingerprint."""
        return Identity(self.problem, self.fingerprint)

    @property
    def is_failure(self) -> bool:
        """Whether the result is that no candidate can be used. Each candidate then says why."""
        if self.choice is not None or self.native:
            return False
        # An entry without any candidate has no result at all.
        return bool(self.candidates) and all(candidate.failed for candidate in self.candidates)

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Sorts entries by problem, then fingerprint, in the same way in every process."""
        return *self.problem.sort_key, tuple(value.encoded for value in self.fingerprint)


@dataclass(frozen=True, slots=True)
class Cache:
    """A set of entries, at most one for each problem and fingerprint.

    :param lossy: why the file must not be rewritten, for example because of a field that this version does not know:
        the place, the event and the remedy of a :class:`CacheError`; empty if it may be rewritten.
    """

    entries: tuple[Entry, ...] = ()
    lossy: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the entries, sorted."""
        return tuple(sorted({entry.problem.device for entry in self.entries}, key=attrgetter("sort_key")))
