"""Converts XLA's entries to entries of a cache and back, and reads XLA's tuning log.

An entry of a cache keeps the bytes of XLA's entry in ``native``. The readable fields are computed from these bytes. HLO
is XLA's language for programs, and an entry is for one fusion or call in it. The tuning log has the measured times, and
the HLO text for a fingerprint. :mod:`pytest_autotune.tuners.xla.files` reads and
writes XLA's own files.
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
from pytest_autotune.tuners.xla import files
from pytest_autotune.tuners.xla.files import XlaEntry, XlaLayout

NAME = "xla"
#: A format of XLA's entries -> the kernel name of their cache entries. XLA tells no name of a fusion, so all entries of
#: a format share a name.
KERNELS = {XlaLayout.NEW: "hlo", XlaLayout.LEGACY: "hlo.legacy"}
_DNN = re.compile(r", DNN version: ([^,]*)")
#: An instruction of HLO text, such as ``ROOT %dot.1 = f16[512,512]{1,0} dot(f16[512,64] %a, f16[64,512] %b)``. The
#: groups are ``ROOT`` or None, the name, the shape of the result, the operation, and the rest after its parenthesis.
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
#: The fields with inner messages that become a single value of a choice.
_MESSAGES_AS_ONE_VALUE = ("tuning_knobs", "output_tiles", "workspace_size")


def split_description(description: str) -> tuple[str, str]:
    """Split XLA's description of a device into the description without cuDNN, and the version of cuDNN.

    The version is empty if the description has none. Example:
    ``"CUDA: 9.0, Cores: 132, DNN version: 9.10.0"`` gives ``("CUDA: 9.0, Cores: 132", "9.10.0")``.
    """
    match = _DNN.search(description)
    if match is None:
        return description, ""
    return _DNN.sub("", description), match[1]


def problem_of(entry: XlaEntry, device: Device) -> Problem:
    """Return the problem that an entry of XLA solves.

    ======== ======================================================
    format   key
    ======== ======================================================
    new      ``device_fingerprint``, ``hlo_fingerprint``
    legacy   ``device_description`` without cuDNN, ``hlo_digest``
    ======== ======================================================

    The key holds XLA's own name of the device, because XLA can tell devices apart that have equal names here.

    :param device: the device on which XLA tuned, as pytest-autotune names it.
    """
    if entry.layout is XlaLayout.NEW:
        key = _list_new_key(entry)
    else:
        key = _list_legacy_key(entry)
    return Problem(NAME, KERNELS[entry.layout], tuple(key), device)


def _list_new_key(entry: XlaEntry) -> list[Value]:
    """Return the key of an entry in the new format."""
    key = [Value("device_fingerprint", entry.device, "digest"), Value("hlo_fingerprint", entry.hlo, "digest")]
    explicit_version = entry.message.key.target.explicit_version
    if explicit_version:
        key.append(Value("explicit_version", str(explicit_version)))
    return key


def _list_legacy_key(entry: XlaEntry) -> list[Value]:
    """Return the key of an entry in the legacy format."""
    # The legacy format has the whole text of the HLO, which is too long for a key.
    digest = hashlib.sha256(entry.hlo.encode()).hexdigest()[:32]
    return [Value("device_description", split_description(entry.device)[0]), Value("hlo_digest", digest, "digest")]


def fingerprint_of(entry: XlaEntry) -> tuple[Value, ...]:
    """Return the fingerprint of an entry of XLA.

    ======== ===================================================================================
    format   fingerprint
    ======== ===================================================================================
    new      ``codegen`` and ``codegen_options``: the version and options of XLA's code generator
    legacy   ``cudnn`` and ``entry_version``: the version of cuDNN, and XLA's version of the entry
    ======== ===================================================================================

    ``codegen_options`` and ``cudnn`` are left out if XLA's entry does not name them.
    """
    fingerprint = []
    if entry.layout is XlaLayout.LEGACY:
        cudnn = split_description(entry.device)[1]
        if cudnn:
            fingerprint.append(Value("cudnn", cudnn))
        fingerprint.append(Value("entry_version", int(entry.message.version)))
    else:
        environment = entry.message.key.environment
        fingerprint.append(Value("codegen", str(environment.codegen_version), "digest"))
        codegen_options = str(environment.codegen_options_fingerprint)
        if codegen_options:
            fingerprint.append(Value("codegen_options", codegen_options, "digest"))
    return tuple(fingerprint)


def choice_of(entry: XlaEntry) -> Candidate:
    """Return the choice of an entry of XLA. The params have the name of the backend, and then its settings.

    Example: ``backend=TRITON block_m=64 block_n=32 num_stages=3``.
    """
    if entry.layout is XlaLayout.NEW:
        return build_candidate(entry.message.value.optimal_config)
    result = entry.message.result
    time_us = None
    if result.HasField("run_time"):
        time_us = to_microseconds(result.run_time)
    return Candidate(params=tuple(_list_legacy_params(result)), time_us=time_us)


def _list_legacy_params(result: files.Message) -> list[Value]:
    """Return the params of a choice in the legacy format: the backend, then its settings; empty if XLA chose none.

    The result has one inner message. Its name is the name of the backend, such as ``gemm`` or ``triton``. If the name
    is ``other``, the message itself has the backend's name and, in ``config``, the settings.
    """
    name = result.WhichOneof("one_of")  # the name of the inner message
    if name is None:
        return []
    if name == "other":
        return [Value("backend", str(result.other.name)), *_list_params(result.other.config)]
    return [Value("backend", name.upper()), *_list_params(getattr(result, name))]


def build_candidate(config: files.Message, time_us: float | None = None, failed: str = "") -> Candidate:
    """Return the candidate for a configuration of the new format."""
    backend = Value("backend", enum_name(config.DESCRIPTOR.fields_by_name["backend"], config.backend))
    return Candidate(params=(backend, *_list_params(config.backend_config)), time_us=time_us, failed=failed)


def enum_name(field: Any, number: int) -> str:
    """Return the name of an enum's value. If a newer XLA has added the value, return its number as text."""
    value = field.enum_type.values_by_number.get(number)
    if value is None:
        return str(number)
    return str(value.name)


def to_microseconds(duration: files.Message) -> float:
    """Return a protobuf duration in microseconds."""
    return float(duration.seconds * 1_000_000 + duration.nanos / 1000)


def _list_params(message: files.Message) -> list[Value]:
    """Return a value for each field that is set in a message and in its inner messages.

    Inner messages are flattened: ``{tile {m: 64} stages: 3}`` gives ``m=64 stages=3``.
    """
    # An Any holds another message: the name of its type, and its bytes.
    if message.DESCRIPTOR.full_name == "google.protobuf.Any":
        return _list_params_of_any(message)
    params: list[Value] = []
    for descriptor, value in message.ListFields():
        is_message = descriptor.message_type is not None
        if is_message and descriptor.name not in _MESSAGES_AS_ONE_VALUE:
            params += _list_params(value)
        else:
            params.append(Value(descriptor.name, _read_field(descriptor, value)))
    return params


def _list_params_of_any(message: files.Message) -> list[Value]:
    """Return the params of the message that an ``Any`` holds."""
    name = message.type_url.rpartition("/")[2]
    try:
        return _list_params(files.parse_message(name, message.value))
    except Exception:
        # The message is of another version of XLA, so only its name is readable. The native bytes of the entry keep the
        # whole message.
        return [Value("config", name)]


def _read_field(descriptor: Any, value: Any) -> bool | int | str:
    """Return the value of a field as a single plain value.

    :param descriptor: protobuf's description of the field.
    """
    if descriptor.name == "tuning_knobs":  # a map: "pipeline=1 split=2"
        return " ".join(f"{knob}={value[knob]}" for knob in sorted(value))
    if descriptor.name == "output_tiles":  # a list of sizes for each tile: "16x64 8x8"
        tiles = ["x".join(map(str, tile.sizes)) for tile in value]
        return " ".join(tiles)
    if descriptor.name == "workspace_size":
        return int(value.value)
    if descriptor.enum_type is not None:
        return enum_name(descriptor, value)
    if isinstance(value, (bool, int, str)):
        return value
    return str(value)


def to_entry(
    entry: XlaEntry,
    device: Device,
    candidates: Sequence[Candidate] = (),
    label: str = "",
    versions: Versions = NO_VERSIONS,
) -> Entry:
    """Return the cache entry for an entry of XLA.

    :param candidates: the candidates that XLA measured; empty if XLA's log has none.
    :param label: words about the fusion. If it is empty, an entry of the legacy format gets a label from its HLO text.
    """
    # An entry of the new format has no time. If XLA measured the choice, the candidate from the log has the time.
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
        choice=choice,
        candidates=tuple(candidates),
        native=entry.raw,
        label=label,
        versions=versions,
    )


def to_xla(entry: Entry) -> XlaEntry:
    """Return XLA's entry from the native bytes of a cache entry.

    The bytes must belong to the entry's problem: a cache file is data that somebody may have edited.

    :raises CacheError: if the bytes are damaged, belong to another problem, or have a format that is not known.
    """
    layout_by_kernel = {kernel: layout for layout, kernel in KERNELS.items()}
    layout = layout_by_kernel.get(entry.problem.kernel)
    if layout is None:
        raise CacheError(str(entry.problem), "is an entry of XLA of an unknown kind", "upgrade pytest-autotune")
    xla_entry = XlaEntry(layout, entry.native)
    try:
        is_of_problem = problem_of(xla_entry, entry.problem.device) == entry.problem
    except Exception:  # protobuf raises several kinds of errors for damaged bytes
        is_of_problem = False
    if not is_of_problem:
        raise CacheError(
            str(entry.problem), "holds an entry of XLA for another problem", "tune it again with --autotune-dump"
        )
    return xla_entry


def to_cache(entries: Iterable[XlaEntry], device: Device | None = None) -> Cache:
    """Return a cache with entries of XLA.

    :param device: the device on which the entries were tuned. XLA's files do not name it. If it is None, the entries
        get a device without a name, ``Device("GPU", "")``.
    """
    if device is None:
        device = Device("GPU", "")
    return Cache(tuple(to_entry(entry, device) for entry in entries))


@dataclass
class _HloSummary:
    """The parts of HLO text that a label shows.

    :param ops: the names of the operations, each once, in the order of the text. The values are unused.
    :param parameters: the shapes of the parameters.
    :param operands: the shapes of the first instruction's operands.
    :param result: the shape of the root, or of the first instruction if the text has no root.
    :param jax_operation: the operation of JAX behind the first fusion whose computation the text does not contain.
    """

    ops: dict[str, None] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)
    result: str = ""
    jax_operation: str = ""

    def add_instruction(self, instruction: re.Match[str]) -> None:
        """Add a line of the text.

        :param instruction: a match of ``_INSTRUCTION``.
        """
        root, name, shape, op, rest = instruction.groups()
        result_shapes = _SHAPE.findall(shape)
        if op == "parameter":
            self.parameters += result_shapes
            return
        if root or not self.result:
            self.result = ", ".join(result_shapes)
        # The operands end before the attributes of the instruction: "f16[8] %a, f16[8] %b), metadata={…}".
        if not self.operands:
            operands = rest.partition("), ")[0]
            self.operands = _SHAPE.findall(operands)
        # The target of a custom call tells its operation: "__cublas$gemm".
        target = _TARGET.search(rest)
        if op == "custom-call" and target is not None:
            op = target[1]
        # The name of a fusion tells its operations: "input_reduce_fusion.1".
        if op == "fusion":
            op = _NUMBER_SUFFIX.sub("", name)
            if not self.jax_operation:
                self.jax_operation = _find_jax_operation(rest)
        self.ops[op] = None

    def describe_ops(self) -> str:
        """Return the first operations that compute something; if all only move data, the first of these."""
        ops = [op for op in self.ops if op not in _MOVING_OPS]
        if not ops:
            ops = list(self.ops)
        text = ", ".join(ops[:_MAX_OPS])
        if len(ops) > _MAX_OPS:
            text += ", …"
        return text


def describe_hlo(text: str) -> str:
    """Return the op names and shapes of HLO text: ``dot, tanh: f16[512,64], f16[64,512] -> f32[512,512]``.

    The input shapes are those of the parameters, or of the operands of a single instruction. If the text does not
    contain the computation of a fusion, the label has the fusion's own name and its operation of JAX.
    """
    summary = _HloSummary()
    for line in text.splitlines():
        instruction = _INSTRUCTION.match(line)
        if instruction is not None:
            summary.add_instruction(instruction)
    # The text has no instruction, or only parameters.
    if not summary.result:
        return ""
    label = f"{summary.describe_ops()}: "
    inputs = ", ".join(summary.parameters or summary.operands)
    if inputs:
        label += f"{inputs} -> "
    label += summary.result
    if summary.jax_operation:
        label += f"; {summary.jax_operation}"
    return label


def _find_jax_operation(attributes: str) -> str:
    """Return the compiled function and the last part of the path that JAX gave to an instruction.

    Example: ``op_name="jit(f)/while/body/dot_general"`` gives ``jit(f)/dot_general``.

    :param attributes: the text of an instruction after its operation.
    :returns: empty if JAX gave no path.
    """
    match = _OP_NAME.search(attributes)
    if match is None:
        return ""
    return "".join(match.groups(""))


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
    """Read the text of XLA's tuning log.

    XLA appends a message for each module. A message begins with a line such as ``device: "9c2f…"``, at which this
    function splits the text. If the log has the legacy format, the result is empty: such a log has no fingerprints, so
    its measurements cannot be assigned to entries.

    :raises ValueError: for a text that is no tuning log.
    """
    # The text has the legacy format.
    if re.match(r"\s*logs\s*\{", text):
        return TuningLog()
    profiles: dict[tuple[str, str], Profile] = {}
    versions: dict[str, str] = {}
    for message_text in re.split(r"^(?=device:)", text, flags=re.MULTILINE):
        if not message_text.strip():
            continue
        message = _parse_log_message(message_text)
        for version in message.per_backend_versions:
            versions[version.key] = version.value
        for instruction in message.instruction_profiles:
            profile = Profile(instruction.hlo_text, tuple(_list_candidates(instruction)))
            profiles[message.device, instruction.hlo_fingerprint] = profile
    return TuningLog(profiles, versions)


def _parse_log_message(text: str) -> files.Message:
    """Return one message of XLA's tuning log.

    :raises ValueError: for a text that is no such message.
    """
    from google.protobuf import text_format

    message = files.new_message("xla.autotuner.AllRawConfigProfiles")
    try:
        text_format.Parse(text, message, allow_unknown_field=True, descriptor_pool=files.message_pool())
    except text_format.ParseError as error:
        raise ValueError(f"XLA's tuning log cannot be read: {error}") from None
    return message


def _list_candidates(instruction: files.Message) -> list[Candidate]:
    """Return the candidates of one instruction: first those with a time, then those that failed."""
    candidates = []
    for measured in instruction.config_profiles:
        candidates.append(build_candidate(measured.config, to_microseconds(measured.run_time)))
    for failure in instruction.failed_configs:
        candidates.append(build_candidate(failure.config, failed=_describe_failure(failure)))
    return candidates


def _describe_failure(failed: files.Message) -> str:
    """Return the kind of a failure with the first line of XLA's message, at most 200 characters."""
    kind = enum_name(failed.DESCRIPTOR.fields_by_name["kind"], failed.kind).lower().replace("_", " ")
    first_line = failed.message.strip().partition("\n")[0][:200]
    if not first_line:
        return kind
    return f"{kind}: {first_line}"
