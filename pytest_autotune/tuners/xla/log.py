"""XLA's tuning log: what it measured, and the HLO that stands behind a fingerprint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_autotune.cache.model import Candidate
from pytest_autotune.tuners.xla import messages
from pytest_autotune.tuners.xla.entries import candidate, microseconds, word


@dataclass(frozen=True)
class Profile:
    """What XLA measured for one instruction."""

    hlo_text: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class TuningLog:
    """What one compilation tuned.

    :param profiles: device fingerprint and HLO fingerprint -> what was measured.
    :param versions: XLA's name of a backend -> its version, such as ``CUDNN`` -> ``9.10.0``.
    """

    profiles: Mapping[tuple[str, str], Profile] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def read(text: str) -> TuningLog:
    """The log of one compilation.

    XLA appends a message for each module, and their one-of-a-kind fields repeat, so
    the text is not that of one message. A legacy log, which names no fingerprints,
    reads as empty.

    :raises ValueError: for text that is no such log.
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
        versions.update((one.key, one.value) for one in message.per_backend_versions)
        for one in message.instruction_profiles:
            measured = [candidate(p.config, microseconds(p.run_time)) for p in one.config_profiles]
            failed = [candidate(f.config, failed=_failure(f)) for f in one.failed_configs]
            profiles[message.device, one.hlo_fingerprint] = Profile(one.hlo_text, (*measured, *failed))
    return TuningLog(profiles, versions)


def _failure(failed: messages.Message) -> str:
    kind = word(failed.DESCRIPTOR.fields_by_name["kind"], failed.kind).lower().replace("_", " ")
    first = failed.message.strip().partition("\n")[0][:200]
    return f"{kind}: {first}" if first else kind
