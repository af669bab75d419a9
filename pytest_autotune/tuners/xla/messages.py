"""XLA's protocol buffer messages, as far as its autotuning files need them.

They have XLA's own names, since the text form of an ``Any`` spells them out, and
live in a pool of their own: TensorFlow registers ``xla.*`` in the default one.
Names and numbers are those of jaxlib 0.11.2; what an older or newer XLA has
beside them is kept as unknown fields.
"""

from __future__ import annotations

from functools import cache
from typing import Any

#: A message of protobuf; its class is made at run time.
Message = Any

_ANY = "google.protobuf.Any"
_DURATION = "google.protobuf.Duration"
_ALGORITHM = "stream_executor.dnn.AlgorithmProto"
_TRITON_KEY = "xla.TritonGemmKey"
_GEMM_KEY = "xla.GemmKey"

_BLOCK_LEVEL = (
    ("num_warps", "int64", 2),
    ("output_tiles", "[xla.xtile.Tile]", 3),
    ("num_ctas", "int32", 4),
    ("num_stages", "int32", 5),
    ("is_tma_allowed", "bool", 6),
    ("is_warp_specialization_allowed", "bool", 7),
    ("waves_per_eu", "int32", 8),
    ("num_tiles_per_pid", "int32", 9),
    ("group_size", "int32", 10),
)

# message -> rows of (field, type, number); a type in brackets is repeated, "map" is a map of two int64,
# and "|" before a field puts it into the message's one oneof.
_MESSAGES: dict[str, tuple[tuple[str, str, int], ...]] = {
    _ALGORITHM: (
        ("algo_id", "int64", 1),
        ("math_type", "stream_executor.dnn.MathType", 2),
        ("tuning_knobs", "map", 4),
        ("is_cudnn_frontend", "bool", 5),
        ("workspace_size", "google.protobuf.UInt64Value", 6),
    ),
    _GEMM_KEY: (("algorithm", "int64", 1), ("autotune_workspace_size", "int64", 2)),
    _TRITON_KEY: (
        ("block_m", "int64", 1),
        ("block_n", "int64", 2),
        ("block_k", "int64", 3),
        ("split_k", "int64", 4),
        ("num_stages", "int64", 5),
        ("num_warps", "int64", 6),
        ("num_ctas", "int64", 7),
        ("is_tma_allowed", "bool", 8),
        ("is_warp_specialization_allowed", "bool", 9),
        ("waves_per_eu", "int64", 10),
        ("group_size", "int64", 11),
    ),
    "xla.ConvKey": (("algorithm", "int64", 1), ("tensor_ops_enabled", "bool", 2)),
    "xla.CudaConvPlanKey": (("exec_plan_id", "string", 1),),
    "xla.CustomKernelFusionKey": (("kernel_index", "int64", 1),),
    "xla.BackendConfigKey": (("name", "string", 1), ("config", _ANY, 2)),
    "xla.FailureResult": (
        ("kind", "xla.FailureKind", 1),
        ("msg", "string", 2),
        ("|reference_conv", "xla.ConvKey", 11),
        ("|reference_gemm", _GEMM_KEY, 12),
        ("|reference_cuda_conv_plan", "xla.CudaConvPlanKey", 14),
        ("|reference_algorithm", _ALGORITHM, 15),
        ("buffer_address", "int64", 13),
    ),
    # The legacy format: jax <= 0.11.1, or --xla_gpu_use_new_autotune_cache_format=false.
    "xla.AutotuneResult": (
        ("scratch_bytes", "int64", 8),
        ("run_time", _DURATION, 9),
        ("failure", "xla.FailureResult", 7),
        ("|conv", "xla.ConvKey", 5),
        ("|gemm", _GEMM_KEY, 6),
        ("|triton", _TRITON_KEY, 17),
        ("|cuda_conv_plan", "xla.CudaConvPlanKey", 15),
        ("|custom_kernel_fusion", "xla.CustomKernelFusionKey", 18),
        ("|algorithm", _ALGORITHM, 16),
        ("|other", "xla.BackendConfigKey", 19),
    ),
    "xla.AutotuneResultsEntry": (
        ("device", "string", 1),
        ("hlo", "string", 2),
        ("result", "xla.AutotuneResult", 3),
        ("version", "int32", 4),
    ),
    "xla.AutotuneResults": (("version", "int32", 1), ("results", "[xla.AutotuneResultsEntry]", 4)),
    # The configuration of one candidate.
    "xla.xtile.Tile": (("sizes", "[int64]", 1),),
    "xla.xtile.BlockLevelFusionConfig": _BLOCK_LEVEL,
    "xla.gpu.BlockLevelFusionConfig": _BLOCK_LEVEL,  # its older name, which legacy files spell out
    "xla.gpu.NativeEmitterBackendConfig": (("type", "xla.gpu.NativeEmitterType", 1), ("unroll_factor", "int32", 2)),
    "xla.cpu.LlvmKernelOptions": (
        ("slp_vectorizer_disabled", "bool", 1),
        ("disable_loop_unrolling", "bool", 2),
        ("optimize_for_size", "bool", 3),
        ("disable_platform_dependent_math", "bool", 4),
    ),
    "xla.cpu.YnnFusionOptions": (("use_threadpool", "bool", 1),),
    "xla.autotuner.BackendConfig": (
        ("|gemm", _GEMM_KEY, 1),
        ("|triton", _TRITON_KEY, 2),
        ("|block_level", "xla.xtile.BlockLevelFusionConfig", 3),
        ("|algorithm", _ALGORITHM, 4),
        ("|llvm_kernel", "xla.cpu.LlvmKernelOptions", 5),
        ("|native_emitter", "xla.gpu.NativeEmitterBackendConfig", 6),
        ("|ynn_fusion", "xla.cpu.YnnFusionOptions", 7),
    ),
    "xla.autotuner.Config": (
        ("backend", "xla.autotuner.Backend", 1),
        ("backend_config", "xla.autotuner.BackendConfig", 2),
    ),
    # The new format: jax >= 0.11.2.
    "xla.autotuner.AutotuneTargetKey": (
        ("device", "string", 1),
        ("explicit_version", "string", 2),
        ("hlo_fingerprint", "string", 3),
    ),
    "xla.autotuner.AutotuneEnvironmentKey": (
        ("codegen_version", "string", 1),
        ("codegen_options_fingerprint", "string", 2),
    ),
    "xla.autotuner.AutotuneKey": (
        ("target", "xla.autotuner.AutotuneTargetKey", 1),
        ("environment", "xla.autotuner.AutotuneEnvironmentKey", 2),
    ),
    "xla.autotuner.AutotuneValue": (
        ("optimal_config", "xla.autotuner.Config", 1),
        ("optimal_backend_version", "string", 2),
    ),
    "xla.autotuner.AutotuneEntry": (
        ("key", "xla.autotuner.AutotuneKey", 1),
        ("value", "xla.autotuner.AutotuneValue", 2),
    ),
    "xla.autotuner.AutotuneCache": (
        ("device_scope", "string", 1),
        ("explicit_version_scope", "string", 2),
        ("entries", "[xla.autotuner.AutotuneEntry]", 3),
    ),
    # The tuning log (--xla_gpu_dump_autotune_logs_to) that goes with it.
    "xla.autotuner.ConfigProfile": (
        ("config", "xla.autotuner.Config", 1),
        ("run_time", _DURATION, 2),
        ("scratch_bytes", "int64", 3),
    ),
    "xla.autotuner.FailedConfigs": (
        ("config", "xla.autotuner.Config", 1),
        ("kind", "xla.autotuner.FailureKind", 2),
        ("message", "string", 3),
    ),
    "xla.autotuner.InstructionRawConfigProfiles": (
        ("hlo_fingerprint", "string", 1),
        ("config_profiles", "[xla.autotuner.ConfigProfile]", 2),
        ("failed_configs", "[xla.autotuner.FailedConfigs]", 3),
        ("hlo_text", "string", 4),
    ),
    "xla.autotuner.PerBackendVersion": (("key", "string", 1), ("value", "string", 2)),
    "xla.autotuner.AllRawConfigProfiles": (
        ("device", "string", 1),
        ("explicit_version", "string", 2),
        ("codegen_version", "string", 3),
        ("codegen_options_fingerprint", "string", 4),
        ("per_backend_versions", "[xla.autotuner.PerBackendVersion]", 5),
        ("instruction_profiles", "[xla.autotuner.InstructionRawConfigProfiles]", 6),
    ),
}
_ENUMS: dict[str, dict[str, int]] = {
    "stream_executor.dnn.MathType": {"DEFAULT_MATH": 0, "TENSOR_OP_MATH": 1},
    "xla.FailureKind": {"UNKNOWN": 0, "REDZONE_MODIFIED": 1, "WRONG_RESULT": 2, "DISQUALIFIED": 3},
    "xla.autotuner.FailureKind": {
        "FAILURE_KIND_UNSPECIFIED": 0,
        "COMPILATION_FAILED": 1,
        "EXECUTION_FAILED": 2,
        "REDZONE_CHECK_FAILED": 3,
        "WRONG_RESULTS": 4,
    },
    "xla.gpu.NativeEmitterType": {
        "NATIVE_EMITTER_TYPE_INVALID": 0,
        "NATIVE_EMITTER_TYPE_LOOP": 1,
        "NATIVE_EMITTER_TYPE_IN_PLACE_DYNAMIC_UPDATE_SLICE": 2,
        "NATIVE_EMITTER_TYPE_CONCATENATE": 3,
        "NATIVE_EMITTER_TYPE_REDUCTION_ROW": 4,
        "NATIVE_EMITTER_TYPE_REDUCTION_MULTIROW": 5,
        "NATIVE_EMITTER_TYPE_REDUCTION_COLUMN": 6,
        "NATIVE_EMITTER_TYPE_REDUCTION_MULTICOLUMN": 7,
        "NATIVE_EMITTER_TYPE_SCATTER_SORTED_INDICES": 8,
        "NATIVE_EMITTER_TYPE_SCATTER_DISTRIBUTED_UPDATES": 9,
        "NATIVE_EMITTER_TYPE_TRANSPOSE": 10,
        "NATIVE_EMITTER_TYPE_PACKED_TRANSPOSE": 11,
    },
    "xla.autotuner.Backend": {
        "UNSPECIFIED_BACKEND": 0,
        "CUDNN": 1,
        "TRITON": 2,
        "CUBLASLT": 4,
        "HIPBLASLT": 6,
        "MIOPEN": 7,
        "CUSTOM_KERNEL": 8,
        "BLOCK_LEVEL_EMITTER": 9,
        "NATIVE_EMITTER": 10,
        "LLVM_KERNEL_EMITTER": 11,
        "CUBLASLT_FISSION": 13,
        "CUSTOM_KERNEL_FISSION": 14,
        "HIPBLASLT_FISSION": 16,
        "YNNPACK": 17,
        "BLOCK_LEVEL_EMITTER_CPU": 18,
    },
}


def new(name: str) -> Message:
    """An empty message of the type with XLA's name ``name``."""
    return _class(name)()


def parsed(name: str, data: bytes) -> Message:
    """The message that the bytes hold.

    :raises google.protobuf.message.DecodeError: where they hold none.
    """
    return _class(name).FromString(data)


@cache
def _class(name: str) -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(pool().FindMessageTypeByName(name))


@cache
def pool() -> Any:
    """The pool with these messages alone."""
    from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, wrappers_pb2

    made = descriptor_pool.DescriptorPool()
    for module in (any_pb2, duration_pb2, wrappers_pb2):
        made.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for package in sorted({name.rpartition(".")[0] for name in (*_MESSAGES, *_ENUMS)}, key=_order_of_package):
        made.Add(_file(package, descriptor_pb2))
    return made


# A file comes after those that it imports.
_PACKAGES = ("stream_executor.dnn", "xla", "xla.xtile", "xla.gpu", "xla.cpu", "xla.autotuner")


def _order_of_package(package: str) -> int:
    return _PACKAGES.index(package)


def _file(package: str, descriptor_pb2: Any) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in ("any", "duration", "wrappers"))
    file.dependency.extend(f"{other}.proto" for other in _PACKAGES[: _order_of_package(package)])
    for name, values in _ENUMS.items():
        if name.rpartition(".")[0] == package:
            enum = file.enum_type.add(name=name.rpartition(".")[2])
            for value, number in values.items():
                enum.value.add(name=value, number=number)
    for name, fields in _MESSAGES.items():
        if name.rpartition(".")[0] == package:
            _add_fields(file.message_type.add(name=name.rpartition(".")[2]), f".{name}", fields)
    return file


def _add_fields(message: Any, full_name: str, fields: tuple[tuple[str, str, int], ...]) -> None:
    if any(name.startswith("|") for name, _, _ in fields):
        message.oneof_decl.add(name="one_of")
    for name, type_, number in fields:
        field = message.field.add(name=name.lstrip("|"), number=number)
        repeated = type_ in ("map",) or type_.startswith("[")
        field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        if name.startswith("|"):
            field.oneof_index = 0
        if type_ == "map":
            entry = message.nested_type.add(name="".join(word.title() for word in name.split("_")) + "Entry")
            entry.options.map_entry = True
            _add_fields(entry, f"{full_name}.{entry.name}", (("key", "int64", 1), ("value", "int64", 2)))
            field.type, field.type_name = field.TYPE_MESSAGE, f"{full_name}.{entry.name}"
        elif (plain := type_.strip("[]")) in ("int32", "int64", "bool", "string"):
            field.type = getattr(field, f"TYPE_{plain.upper()}")
        else:
            field.type = field.TYPE_ENUM if plain in _ENUMS else field.TYPE_MESSAGE
            field.type_name = f".{plain}"
