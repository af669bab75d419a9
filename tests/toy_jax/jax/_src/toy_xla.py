"""XLA's rules of lookup, memory and dump, over the real file formats; the tuning is a table."""

import base64
import hashlib
import os
from pathlib import Path
from types import SimpleNamespace

from google.protobuf import text_format

from pytest_autotune.tuners.xla import files

DEVICE = os.environ.get("TOY_XLA_DEVICE", "ed0e56ab8b2a0ecb")
DESCRIPTION = os.environ.get("TOY_XLA_DESCRIPTION", "CUDA: 9.0, Cores: 132, L2 cache: 60 MB")
CUDNN = os.environ.get("TOY_XLA_CUDNN", "9.10.0")
TRITON = os.environ.get("TOY_XLA_TRITON", "a77e7c793abc0d0c923a9afb275058e2fe57a198")
CODEGEN = hashlib.sha256(f"{CUDNN} {TRITON}".encode()).hexdigest()[:16]
NEW = os.environ.get("TOY_XLA_LAYOUT", "new") == "new"
VERSION = int(os.environ.get("TOY_XLA_ENTRY_VERSION", "50"))
MEMORY = {}


class Options:
    """JAX's CompileOptions, as far as it goes."""

    def __init__(self, flags, overrides):
        names = ("dump_autotune_results_to", "load_autotune_results_from", "dump_autotune_logs_to")
        debug_options = {f"xla_gpu_{name}": "" for name in names}
        debug_options["xla_gpu_per_fusion_autotune_cache_dir"] = ""
        debug_options["xla_gpu_experimental_autotune_cache_mode"] = "update"
        self.nameless = files.new_message("xla.CompileOptionsProto")
        for name in {"xla_gpu_autotune_level", "xla_gpu_deterministic_ops"} & flags.keys():
            setattr(self.nameless.executable_build_options.debug_options, name, flags.pop(name))
        debug_options.update(flags)
        self.env_option_overrides = overrides
        self.executable_build_options = SimpleNamespace(debug_options=SimpleNamespace(**debug_options))

    def SerializeAsString(self):
        return self.nameless.SerializeToString()


class Program(tuple):
    """JAX's module, as far as it goes."""

    operation = SimpleNamespace(attributes={"sym_name": SimpleNamespace(value="jit_program")})


def hlo_text(fusion):
    return f"""{{
  tmp_0 = f16[64,{len(fusion)}]{{1,0}} parameter(0)
  tmp_1 = f16[{len(fusion)},64]{{1,0}} parameter(1)
  tmp_2 = f32[64,64]{{1,0}} dot(f16[64,{len(fusion)}]{{1,0}} tmp_0, f16[{len(fusion)},64]{{1,0}} tmp_1)
  ROOT tmp_3 = f32[64,64]{{1,0}} {fusion}(f32[64,64]{{1,0}} tmp_2)
}}"""


def fingerprint(fusion):
    return hashlib.sha256(fusion.encode()).hexdigest()[:32]


def compile(fusions, options):
    flags = options.executable_build_options.debug_options
    folder = flags.xla_gpu_per_fusion_autotune_cache_dir
    if folder:
        assert flags.xla_gpu_experimental_autotune_cache_mode == "read"
    log = []
    for fusion in fusions:
        if fusion not in MEMORY:
            found = from_folder(fusion, Path(folder)) if folder else None
            MEMORY[fusion] = found or tuned(fusion, log)
    if flags.xla_gpu_dump_autotune_logs_to and log and NEW:
        with open(flags.xla_gpu_dump_autotune_logs_to, "a") as file:
            file.write(head() + "".join(log))
    if flags.xla_gpu_dump_autotune_results_to:
        Path(flags.xla_gpu_dump_autotune_results_to).write_bytes(dump())
    return [block(MEMORY[fusion]) for fusion in fusions]


def block(entry):
    return (entry.value.optimal_config.backend_config if NEW else entry.result).triton.block_m


def times_of(fusion):
    """Block size -> microseconds; TOY_XLA_BEST makes another one the fastest."""
    if fusion == "copy":
        return {64: 10.0}
    best = int(os.environ.get("TOY_XLA_BEST", "64"))
    return {size: 10.0 if size == best else 10.0 + abs(size - best) for size in (32, 64, 128)}


def tuned(fusion, log):
    with open(os.environ["TOY_LOG"], "a") as file:
        file.write(f"{fusion}\n")
    times = times_of(fusion)
    best = min(times, key=times.get)
    if not NEW:
        entry = files.new_message("xla.AutotuneResultsEntry")
        entry.device, entry.hlo, entry.version = f"{DESCRIPTION}, DNN version: {CUDNN}", hlo_text(fusion), VERSION
        entry.result.triton.block_m = best
        return entry
    entry = files.new_message("xla.autotuner.AutotuneEntry")
    entry.key.target.device, entry.key.target.hlo_fingerprint = DEVICE, fingerprint(fusion)
    entry.key.environment.codegen_version = CODEGEN
    entry.value.optimal_backend_version = TRITON
    entry.value.optimal_config.backend = 2
    entry.value.optimal_config.backend_config.triton.block_m = best
    profile = files.new_message("xla.autotuner.InstructionRawConfigProfiles")
    profile.hlo_fingerprint, profile.hlo_text = fingerprint(fusion), hlo_text(fusion)
    for size, time_us in times.items():
        one = profile.config_profiles.add()
        one.config.backend = 2
        one.config.backend_config.triton.block_m = size
        one.run_time.nanos = int(time_us * 1000)
    if len(times) > 1:  # a candidate that is the only one is not measured
        log.append("instruction_profiles {\n" + text_format.MessageToString(profile) + "}\n")
    return entry


def head():
    versions = "".join(
        f'per_backend_versions {{ key: "{name}" value: "{version}" }}\n'
        for name, version in (("CUDNN", CUDNN), ("TRITON", TRITON))
    )
    return f'device: "{DEVICE}"\ncodegen_version: "{CODEGEN}"\n{versions}'


def from_folder(fusion, folder):
    try:
        if NEW:
            data = (folder / DEVICE / f"{fingerprint(fusion)}.pb").read_bytes()
            entry = files.parse_message("xla.autotuner.AutotuneEntry", data)
            same = entry.key.environment.codegen_version == CODEGEN or entry.value.optimal_backend_version == TRITON
            return entry if same else None
        device, hlo = f"{DESCRIPTION}, DNN version: {CUDNN}", hlo_text(fusion)
        key = f"<key model='{device}', hlo='{hlo}', version={VERSION}>"
        name = base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()).rstrip(b"=").decode()
        entry = files.new_message("xla.AutotuneResultsEntry")
        entry.device, entry.hlo, entry.version = device, hlo, VERSION
        text_format.Parse(
            (folder / f"{name}.textproto").read_text(), entry.result, descriptor_pool=files.message_pool()
        )
        return entry
    except FileNotFoundError:
        return None


def dump():
    if NEW:
        file = files.new_message("xla.autotuner.AutotuneCache")
        file.entries.extend(sorted(MEMORY.values(), key=lambda entry: entry.key.target.hlo_fingerprint))
    else:
        file = files.new_message("xla.AutotuneResults")
        file.version = 3
        file.results.extend(sorted(MEMORY.values(), key=lambda entry: entry.hlo))
    return file.SerializeToString()
