"""Real XLA that compiles for an NVIDIA H200 on a machine without any GPU.

JAX's CUDA plugin compiles ahead of time for a described device. It looks loaded
choices up like on a GPU; without a device it tunes nothing and dumps nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import xla_client


def gpu_sharding() -> NamedSharding:
    """A sharding on one H200 that is not there."""
    jax.config.update("jax_platforms", "cpu")
    jax.devices()
    xla_client.load_pjrt_plugin_dynamically("cuda", os.environ["XLA_CUDA_PLUGIN"])
    try:
        xla_client.initialize_pjrt_plugin("cuda")
    except Exception as error:
        print("the plugin has no GPU:", str(error).splitlines()[0])
    spec = Path(__file__).with_name("h200.txtpb").read_text()
    options = {"target_config": spec, "topology": "1x1x1"}
    made: Any = xla_client._xla.get_default_c_api_topology("cuda", "", options)
    devices = topologies.TopologyDescription(made._make_compile_only_devices()).devices
    return NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec())


def dot_with_epilogue(a: Any, b: Any) -> Any:
    return jnp.tanh(a @ b).sum()


def softmax(x: Any, _: Any) -> Any:
    return jax.nn.softmax(x, axis=-1)


def compiled(function: Any, size: int, sharding: NamedSharding, dtype: Any = jnp.bfloat16) -> str:
    """The optimised HLO of a function of two square matrices."""
    shape = jax.ShapeDtypeStruct((size, size), dtype, sharding=sharding)
    return str(jax.jit(function).lower(shape, shape).compile().as_text())
