"""XLA's entries as ours, and back: XLA's bytes are the authority, readable fields stand beside them.

What it measured, and the HLO that stands behind a fingerprint, its tuning log tells.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import NO_VERSIONS, Cache, Candidate, Device, Entry, Problem, Value, Versions
from pytest_autotune.tuners.xla import messages
from pytest_autotune.tuners.xla.files import XlaEntry, XlaLayout

NAME = "xla"
#: The kernel of an entry: the layout that its bytes have. XLA gives no other name at a lookup.
KERNELS = {XlaLayout.NEW: "hlo", XlaLayout.LEGACY: "hlo.legacy"}
_DNN = re.compile(r", DNN version: ([^,]*)")
_INSTRUCTION = re.compile(r"^\s*(ROOT\s+)?%?([\w.-]+) = (\(.*?\)|[\w]+\[[^\]]*\](?:\{[^}]*\})?) ([a-z][\w-]*)\((.*)$")
_SHAPE = re.compile(r"[a-z]\w*\[[^\]]*\]")
_NUMBER = re.compile(r"(\.\d+)+$")
_OP_NAME = re.compile(r'metadata=\{[^}]*?op_name="([^"/]*)(?:[^"]*(/[^"/]*))?"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# They move or name data; what is left says what is computed.
_QUIET = {
    "constant", "tuple", "get-tuple-element", "bitcast", "copy", "broadcast", "reshape", "transpose", "convert", "iota",
}  # fmt: skip
_MAX_OPS = 6


def split_description(description: str) -> tuple[str, str]:
    """XLA's description of a device without cuDNN's version, and that version; empty where there is none."""
    match = _DNN.search(description)
    return _DNN.sub("", description), match[1] if match else ""


def problem_of(entry: XlaEntry, device: Device) -> Problem:
    """The problem that an entry of XLA solves."""
    if entry.layout is XlaLayout.NEW:
        key = [Value("device_fingerprint", entry.device, "digest"), Value("hlo_fingerprint", entry.hlo, "digest")]
        if explicit := entry.message.key.target.explicit_version:
            key.append(Value("explicit_version", str(explicit)))
    else:
        digest = hashlib.sha256(entry.hlo.encode()).hexdigest()[:32]
        key = [
            Value("device_description", split_description(entry.device)[0]),
            Value("hlo_digest", digest, "digest"),
        ]
    return Problem(NAME, KERNELS[entry.layout], tuple(key), device)


def fingerprint_of(entry: XlaEntry) -> tuple[Value, ...]:
    """What an entry of XLA rests on."""
    if entry.layout is XlaLayout.LEGACY:
        cudnn = split_description(entry.device)[1]
        version = Value("entry_version", int(entry.message.version))
        return (Value("cudnn", cudnn), version) if cudnn else (version,)
    environment = entry.message.key.environment
    codegen = Value("codegen", str(environment.codegen_version), "digest")
    options = str(environment.codegen_options_fingerprint)
    return (codegen, Value("codegen_options", options, "digest")) if options else (codegen,)


def choice_of(entry: XlaEntry) -> Candidate:
    """The choice in readable words."""
    if entry.layout is XlaLayout.NEW:
        return candidate(entry.message.value.optimal_config)
    result = entry.message.result
    kind = result.WhichOneof("one_of") or "none"
    if kind == "other":
        params = [Value("backend", str(result.other.name)), *_params(result.other.config)]
    else:
        params = [Value("backend", kind.upper()), *_params(getattr(result, kind))] if kind != "none" else []
    time_us = microseconds(result.run_time) if result.HasField("run_time") else None
    return Candidate(params=tuple(params), time_us=time_us)


def candidate(config: messages.Message, time_us: float | None = None, failed: str = "") -> Candidate:
    """A configuration of the new format in readable words."""
    backend = Value("backend", word(config.DESCRIPTOR.fields_by_name["backend"], config.backend))
    return Candidate(params=(backend, *_params(config.backend_config)), time_us=time_us, failed=failed)


def word(field: Any, number: int) -> str:
    """The name of an enum's value; its number where a newer XLA has added it."""
    value = field.enum_type.values_by_number.get(number)
    return value.name if value else str(number)


def microseconds(duration: messages.Message) -> float:
    """A duration in microseconds."""
    return float(duration.seconds * 1_000_000 + duration.nanos / 1000)


def _params(message: messages.Message) -> list[Value]:
    """The fields that are set, those of inner messages among them."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Any":
        name = message.type_url.rpartition("/")[2]
        try:
            return _params(messages.parsed(name, message.value))
        except Exception:  # of another version of XLA; its bytes are kept all the same
            return [Value("config", name)]
    params: list[Value] = []
    for field, value in message.ListFields():
        if field.enum_type is not None:
            params.append(Value(field.name, word(field, value)))
        elif field.message_type is None:
            params.append(Value(field.name, value if isinstance(value, (bool, int, str)) else str(value)))
        elif field.name == "tuning_knobs":
            params.append(Value(field.name, " ".join(f"{knob}={value[knob]}" for knob in sorted(value))))
        elif field.name == "output_tiles":
            params.append(Value(field.name, " ".join("x".join(map(str, tile.sizes)) for tile in value)))
        elif field.name == "workspace_size":
            params.append(Value(field.name, int(value.value)))
        else:
            params += _params(value)
    return params


def to_entry(
    entry: XlaEntry,
    device: Device,
    candidates: Sequence[Candidate] = (),
    label: str = "",
    versions: Versions = NO_VERSIONS,
) -> Entry:
    """Our entry for an entry of XLA, with what XLA measured where it says so; a legacy entry labels itself."""
    choice = choice_of(entry)
    measured = next((one for one in candidates if one.is_same_configuration(choice)), choice)
    return Entry(
        problem_of(entry, device),
        fingerprint_of(entry),
        measured,
        tuple(candidates),
        entry.raw,
        label or (hlo_summary(entry.hlo) if entry.layout is XlaLayout.LEGACY else ""),
        versions=versions,
    )


def to_xla(entry: Entry) -> XlaEntry:
    """XLA's entry in an entry of ours; a CacheError where its bytes are not those of its problem."""
    layout = next((layout for layout, kernel in KERNELS.items() if kernel == entry.problem.kernel), None)
    if layout is None:
        raise CacheError(str(entry.problem), "is of a kind of XLA's entries that is not known here", "upgrade")
    made = XlaEntry(layout, entry.native)
    try:
        same = problem_of(made, entry.problem.device) == entry.problem
    except Exception:  # protobuf raises several
        same = False
    if not same:
        raise CacheError(str(entry.problem), "its native bytes are not those of this problem", "dump it anew")
    return made


def to_cache(entries: Iterable[XlaEntry], device: Device | None = None) -> Cache:
    """A cache with XLA's entries; XLA does not write down the device that they were tuned on."""
    return Cache(tuple(to_entry(entry, device or Device("GPU", "")) for entry in entries))


def hlo_summary(text: str) -> str:
    """Op names and shapes of HLO text: ``dot, tanh: f16[512,64], f16[64,512] -> f32[512,512]``.

    The shapes are those of the parameters, or of the operands of an instruction that stands alone, and of the result. A
    fusion whose computation is not in the text is named by its own name and by the operation of JAX that it came from.
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
        if op == "custom-call" and (target := _TARGET.search(rest)):
            op = target[1]
        if op == "fusion":
            op, source = _NUMBER.sub("", name), source or _jax_operation(rest)
        ops[op] = None
    if not result:
        return ""
    names = [op for op in ops if op not in _QUIET] or list(ops)
    label = ", ".join(names[:_MAX_OPS]) + (", …" if len(names) > _MAX_OPS else "")
    inputs = ", ".join(parameters or operands)
    label += f": {inputs} -> {result}" if inputs else f": {result}"
    return f"{label}; {source}" if source else label


def _jax_operation(rest: str) -> str:
    """The function that was compiled, with the last part of the path that JAX gave an instruction."""
    found = _OP_NAME.search(rest)
    return "".join(found.groups("")) if found else ""


@dataclass(frozen=True)
class Profile:
    """What XLA measured for one instruction."""

    hlo_text: str
    candidates: tuple[Candidate, ...]


#: Device fingerprint and HLO fingerprint -> what was measured.
Profiles = dict[tuple[str, str], Profile]


def read_log(text: str) -> tuple[Profiles, dict[str, str]]:
    """The log of one compilation: what was measured, and XLA's names of backends with their versions.

    XLA appends a message for each module, and their one-of-a-kind fields repeat: the text is not that of one message.
    A legacy log, which names no fingerprints, reads as empty.
    """
    from google.protobuf import text_format

    profiles: Profiles = {}
    versions: dict[str, str] = {}
    if re.match(r"\s*logs\s*\{", text):
        return {}, {}
    for part in re.split(r"^(?=device:)", text, flags=re.MULTILINE):
        if not part.strip():
            continue
        message = messages.new("xla.autotuner.AllRawConfigProfiles")
        try:
            text_format.Parse(part, message, allow_unknown_field=True, descriptor_pool=messages.pool())
        except text_format.ParseError as error:
            raise ValueError(f"XLA's tuning log cannot be read: {error}") from None
        versions.update((one.key, one.value) for one in message.per_backend_versions)
        for one in message.instruction_profiles:
            measured = [candidate(p.config, microseconds(p.run_time)) for p in one.config_profiles]
            failed = [candidate(f.config, failed=_failure(f)) for f in one.failed_configs]
            profiles[message.device, one.hlo_fingerprint] = Profile(one.hlo_text, (*measured, *failed))
    return profiles, versions


def _failure(failed: messages.Message) -> str:
    kind = word(failed.DESCRIPTOR.fields_by_name["kind"], failed.kind).lower().replace("_", " ")
    first = failed.message.strip().partition("\n")[0][:200]
    return f"{kind}: {first}" if first else kind
