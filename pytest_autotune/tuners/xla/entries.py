"""Converts XLA's entries to entries of a cache and back, and reads XLA's tuning log.

An entry of a cache keeps XLA's bytes in ``native``; its readable fields are made from them. The tuning log tells the
measured times and the HLO text behind a fingerprint. XLA's own files are in :mod:`pytest_autotune.tuners.xla.files`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import (
    NO_VERSIONS,
    Cache,
    Candidate,
    Device,
    Entry,
    Fingerprint,
    Problem,
    Value,
    Versions,
)
from pytest_autotune.tuners.xla import messages
from pytest_autotune.tuners.xla.files import XlaEntry, XlaLayout

NAME = "xla"
#: The kernel name of an entry, by the layout of its bytes. XLA gives no other name at a lookup.
KERNELS = {XlaLayout.NEW: "hlo", XlaLayout.LEGACY: "hlo.legacy"}
_DNN = re.compile(r", DNN version: ([^,]*)")
_INSTRUCTION = re.compile(r"^\s*(ROOT\s+)?%?([\w.-]+) = (\(.*?\)|[\w]+\[[^\]]*\](?:\{[^}]*\})?) ([a-z][\w-]*)\((.*)$")
_SHAPE = re.compile(r"[a-z]\w*\[[^\]]*\]")
_NUMBER_SUFFIX = re.compile(r"(\.\d+)+$")
_OP_NAME = re.compile(r'metadata=\{[^}]*?op_name="([^"/]*)(?:[^"]*(/[^"/]*))?"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# These operations move or name data. A label leaves them out, so that it shows what the fusion computes.
_MOVING_OPS = {
    "constant", "tuple", "get-tuple-element", "bitcast", "copy", "broadcast", "reshape", "transpose", "convert", "iota",
}  # fmt: skip
_MAX_OPS = 6


def split_description(description: str) -> tuple[str, str]:
    """Return XLA's description of a device without cuDNN's version, and that version; the version may be empty."""
    match = _DNN.search(description)
    return _DNN.sub("", description), match[1] if match else ""


def problem_of(entry: XlaEntry, device: Device) -> Problem:
    """Return the problem that an entry of XLA solves.

    :param device: the device that XLA tuned on; XLA's own device is a part of the key.
    """
    if entry.layout is XlaLayout.NEW:
        key = [Value("device_fingerprint", entry.device, "digest"), Value("hlo_fingerprint", entry.hlo, "digest")]
        explicit_version = entry.message.key.target.explicit_version
        if explicit_version:
            key.append(Value("explicit_version", str(explicit_version)))
    else:
        digest = hashlib.sha256(entry.hlo.encode()).hexdigest()[:32]
        key = [
            Value("device_description", split_description(entry.device)[0]),
            Value("hlo_digest", digest, "digest"),
        ]
    return Problem(NAME, KERNELS[entry.layout], tuple(key), device)


def fingerprint_of(entry: XlaEntry) -> tuple[Value, ...]:
    """Return the fingerprint of an entry of XLA: versions of cuDNN and the entry, or of the code generator."""
    fingerprint = []
    if entry.layout is XlaLayout.LEGACY:
        cudnn = split_description(entry.device)[1]
        if cudnn:
            fingerprint.append(Value("cudnn", cudnn))
        fingerprint.append(Value("entry_version", int(entry.message.version)))
        return tuple(fingerprint)
    environment = entry.message.key.environment
    fingerprint.append(Value("codegen", str(environment.codegen_version), "digest"))
    codegen_options = str(environment.codegen_options_fingerprint)
    if codegen_options:
        fingerprint.append(Value("codegen_options", codegen_options, "digest"))
    return tuple(fingerprint)


def choice_of(entry: XlaEntry) -> Candidate:
    """Return the choice of an entry of XLA with readable parameters."""
    if entry.layout is XlaLayout.NEW:
        return build_candidate(entry.message.value.optimal_config)
    result = entry.message.result
    kind = result.WhichOneof("one_of")
    params: list[Value] = []
    if kind == "other":
        params = [Value("backend", str(result.other.name)), *_list_params(result.other.config)]
    elif kind is not None:
        params = [Value("backend", kind.upper()), *_list_params(getattr(result, kind))]
    time_us = None
    if result.HasField("run_time"):
        time_us = to_microseconds(result.run_time)
    return Candidate(params=tuple(params), time_us=time_us)


def build_candidate(config: messages.Message, time_us: float | None = None, failed: str = "") -> Candidate:
    """Return the candidate for a configuration of the new format."""
    backend = Value("backend", enum_name(config.DESCRIPTOR.fields_by_name["backend"], config.backend))
    return Candidate(params=(backend, *_list_params(config.backend_config)), time_us=time_us, failed=failed)


def enum_name(field: Any, number: int) -> str:
    """Return the name of an enum's value; its number as text if a newer XLA added the value."""
    value = field.enum_type.values_by_number.get(number)
    return value.name if value else str(number)


def to_microseconds(duration: messages.Message) -> float:
    """Return a protobuf duration in microseconds."""
    return float(duration.seconds * 1_000_000 + duration.nanos / 1000)


def _list_params(message: messages.Message) -> list[Value]:
    """Return the fields that are set in a message and in its inner messages."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Any":
        name = message.type_url.rpartition("/")[2]
        try:
            return _list_params(messages.parse(name, message.value))
        except Exception:
            # The message is of another version of XLA. Its bytes are kept in the entry's native field.
            return [Value("config", name)]
    params: list[Value] = []
    for descriptor, value in message.ListFields():
        if descriptor.enum_type is not None:
            params.append(Value(descriptor.name, enum_name(descriptor, value)))
        elif descriptor.message_type is None:
            scalar = value if isinstance(value, (bool, int, str)) else str(value)
            params.append(Value(descriptor.name, scalar))
        elif descriptor.name == "tuning_knobs":
            params.append(Value(descriptor.name, " ".join(f"{knob}={value[knob]}" for knob in sorted(value))))
        elif descriptor.name == "output_tiles":
            params.append(Value(descriptor.name, " ".join("x".join(map(str, tile.sizes)) for tile in value)))
        elif descriptor.name == "workspace_size":
            params.append(Value(descriptor.name, int(value.value)))
        else:
            params += _list_params(value)
    return params


def to_entry(
    entry: XlaEntry,
    device: Device,
    candidates: Sequence[Candidate] = (),
    label: str = "",
    versions: Versions = NO_VERSIONS,
) -> Entry:
    """Return the cache entry for an entry of XLA.

    :param candidates: the candidates that XLA measured; empty if its log tells none.
    :param label: words about the fusion. An entry of the legacy format has its HLO text and needs no label.
    """
    choice = choice_of(entry)
    for candidate in candidates:
        if candidate.is_same_configuration(choice):
            choice = candidate
            break
    if not label and entry.layout is XlaLayout.LEGACY:
        label = describe_hlo(entry.hlo)
    return Entry(
        problem_of(entry, device),
        Fingerprint(fingerprint_of(entry)),
        choice,
        tuple(candidates),
        entry.raw,
        label,
        versions=versions,
    )


def to_xla(entry: Entry) -> XlaEntry:
    """Return XLA's entry from the native bytes of a cache entry.

    :raises CacheError: if the bytes are not of the entry's problem, or of a layout that is unknown here.
    """
    layouts = {kernel: layout for layout, kernel in KERNELS.items()}
    layout = layouts.get(entry.problem.kernel)
    if layout is None:
        raise CacheError(str(entry.problem), "is of a kind of XLA's entries that is not known here", "upgrade")
    xla_entry = XlaEntry(layout, entry.native)
    try:
        is_same = problem_of(xla_entry, entry.problem.device) == entry.problem
    except Exception:
        # Protobuf raises several kinds of errors for damaged bytes.
        is_same = False
    if not is_same:
        raise CacheError(str(entry.problem), "its native bytes are not those of this problem", "dump it anew")
    return xla_entry


def to_cache(entries: Iterable[XlaEntry], device: Device | None = None) -> Cache:
    """Return a cache with entries of XLA.

    :param device: the device that they were tuned on, which XLA's files do not name; unknown if None.
    """
    if device is None:
        device = Device("GPU", "")
    return Cache(tuple(to_entry(entry, device) for entry in entries))


def describe_hlo(text: str) -> str:
    """Return the op names and shapes of HLO text: ``dot, tanh: f16[512,64], f16[64,512] -> f32[512,512]``.

    The input shapes are those of the parameters, or of the operands of a single instruction. If the text does not
    contain the computation of a fusion, the label has the fusion's own name and its operation of JAX.
    """
    ops: dict[str, None] = {}
    parameters: list[str] = []
    operands: list[str] = []
    result = source = ""
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        root, name, shape, op, rest = match.groups()
        shapes = _SHAPE.findall(shape)
        if op == "parameter":
            parameters += shapes
            continue
        if root or not result:
            result = ", ".join(shapes)
        operands = operands or _SHAPE.findall(rest.partition("), ")[0])
        target = _TARGET.search(rest)
        if op == "custom-call" and target is not None:
            op = target[1]
        if op == "fusion":
            op = _NUMBER_SUFFIX.sub("", name)
            source = source or _find_jax_operation(rest)
        ops[op] = None
    if not result:
        return ""
    names = [op for op in ops if op not in _MOVING_OPS] or list(ops)
    label = ", ".join(names[:_MAX_OPS])
    if len(names) > _MAX_OPS:
        label += ", …"
    inputs = ", ".join(parameters or operands)
    label += f": {inputs} -> {result}" if inputs else f": {result}"
    return f"{label}; {source}" if source else label


def _find_jax_operation(attributes: str) -> str:
    """Return the compiled function with the last part of the path that JAX gave an instruction; empty if unknown."""
    match = _OP_NAME.search(attributes)
    return "".join(match.groups("")) if match else ""


@dataclass(frozen=True)
class Profile:
    """The measurements of one instruction in XLA's tuning log."""

    hlo_text: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class TuningLog:
    """The tuning log of one compilation.

    :param profiles: the measurements by (device fingerprint, HLO fingerprint).
    :param backend_versions: XLA's names of its backends, with their versions.
    """

    profiles: Mapping[tuple[str, str], Profile] = field(default_factory=dict)
    backend_versions: Mapping[str, str] = field(default_factory=dict)


def read_log(text: str) -> TuningLog:
    """Read the text of XLA's tuning log. A log of the legacy format has no fingerprints and reads as empty.

    XLA appends one message for each module, so the text holds several messages: each begins with its device.

    :raises ValueError: for a text that is no tuning log.
    """
    from google.protobuf import text_format

    profiles: dict[tuple[str, str], Profile] = {}
    versions: dict[str, str] = {}
    if re.match(r"\s*logs\s*\{", text):
        return TuningLog()
    for part in re.split(r"^(?=device:)", text, flags=re.MULTILINE):
        if not part.strip():
            continue
        message = messages.new("xla.autotuner.AllRawConfigProfiles")
        try:
            text_format.Parse(part, message, allow_unknown_field=True, descriptor_pool=messages.pool())
        except text_format.ParseError as error:
            raise ValueError(f"XLA's tuning log cannot be read: {error}") from None
        for version in message.per_backend_versions:
            versions[version.key] = version.value
        for instruction in message.instruction_profiles:
            candidates = _list_candidates(instruction)
            profiles[message.device, instruction.hlo_fingerprint] = Profile(instruction.hlo_text, tuple(candidates))
    return TuningLog(profiles, versions)


def _list_candidates(instruction: messages.Message) -> list[Candidate]:
    """Return the candidates of one instruction: first the measured, then the failed."""
    candidates = []
    for profile in instruction.config_profiles:
        candidates.append(build_candidate(profile.config, to_microseconds(profile.run_time)))
    for failure in instruction.failed_configs:
        candidates.append(build_candidate(failure.config, failed=_describe_failure(failure)))
    return candidates


def _describe_failure(failed: messages.Message) -> str:
    """Return the kind of a failure with the first line of XLA's message, at most 200 characters."""
    kind = enum_name(failed.DESCRIPTOR.fields_by_name["kind"], failed.kind).lower().replace("_", " ")
    first_line = failed.message.strip().partition("\n")[0][:200]
    return f"{kind}: {first_line}" if first_line else kind
