"""Configs, kernels, and kernels that are bound to arguments of one kind."""

import hashlib
import inspect
from collections.abc import Mapping
from types import FunctionType, SimpleNamespace

SETTINGS = {
    "allow_warp_specialize": True,
    "autotune_benchmark_fn": None,
    "autotune_best_of_k": 1,
    "autotune_budget_seconds": None,
    "autotune_config_filter": None,
    "autotune_config_overrides": {},
    "autotune_effort": "full",
    "autotune_force_persistent": False,
    "autotune_initial_population_strategy": None,
    "autotune_max_generations": None,
    "autotune_search_acf": [],
    "autotune_seed_configs": None,
    "autotuner_fn": None,
    "backend": "triton",
    "disable_autotuner_heuristics": False,
    "dot_precision": "tf32",
    "fast_math": False,
    "index_dtype": None,
    "persistent_reserved_sms": 0,
    "static_shapes": True,
    "triton_do_not_specialize": False,
}


class Config(Mapping):
    def __init__(self, **kwargs):
        self.config = kwargs

    @classmethod
    def from_dict(cls, config_dict):
        return cls(**config_dict)

    def __getitem__(self, key):
        return self.config[key]

    def __iter__(self):
        return iter(self.config)

    def __len__(self):
        return len(self.config)

    def __hash__(self):
        return hash(str(self.config))


class ConfigSpec:
    """The configs that a kernel can have."""

    def normalize(self, config):
        from .exc import InvalidConfig

        for name in config:
            if name != "block_sizes":
                raise InvalidConfig(name)

    def cache_fingerprint_hash(self, *, advanced_controls_files=None):
        return hashlib.sha256(b"block_sizes").hexdigest()


class Kernel:
    def __init__(self, fn, *, configs=None, settings=None, key=None):
        self.fn = fn
        self.name = fn.__name__
        self.signature = inspect.signature(fn)
        self.configs = list(configs or [])
        self.settings = SimpleNamespace(**{**SETTINGS, **(settings or {})})
        self._key_fn = key
        self._bound_kernels = {}

    def specialization_key(self, args):
        parts = [self._part(arg) for arg in args]
        parts += ["cpu", None, False]
        if self._key_fn is not None:
            parts.append(self._key_fn(*args))
        return tuple(parts)

    def _part(self, arg):
        if isinstance(arg, FunctionType):
            return arg.__code__
        if not hasattr(arg, "dtype"):
            return type(arg)
        if self.settings.static_shapes:
            return (arg.dtype, arg.size(), arg.stride(), frozenset())
        return (arg.dtype, (2,) * arg.dim(), False, frozenset())

    def bind(self, args):
        return self._bound_kernels.setdefault(self.specialization_key(args), BoundKernel(self, args))

    def autotune(self, args, *, force=True):
        return self.bind(args).autotune(args, force=force)

    def reset(self):
        self._bound_kernels.clear()

    def __call__(self, *args):
        return self.bind(args)(*args)


class BoundKernel:
    def __init__(self, kernel, args):
        self.kernel = kernel
        self.settings = kernel.settings
        self.config_spec = ConfigSpec()
        self.configs = kernel.configs
        self.env = SimpleNamespace(device=next(arg.device for arg in args if hasattr(arg, "device")))
        self._config = None

    def compile_config(self, config=None, *, allow_print=True):
        if config["block_sizes"] == [0]:
            raise ValueError("no block has 0 rows")
        return self.kernel.fn

    def autotune(self, args, *, force=True):
        from .autotuner import FiniteSearch, default_autotuner_fn

        if not force and self.kernel.configs:
            search = FiniteSearch(self, args, self.configs)
        else:
            search = (self.settings.autotuner_fn or default_autotuner_fn)(self, args)
        self._config = search.autotune(skip_cache=force)
        return self._config

    def __call__(self, *args):
        if self._config is None and len(self.kernel.configs) == 1:
            self._config = self.kernel.configs[0]
        if self._config is None:
            self.autotune(args, force=False)
        return self.compile_config(self._config)(*args)


def kernel(fn=None, *, config=None, configs=None, key=None, **settings):
    if fn is None:
        return lambda function: kernel(function, config=config, configs=configs, key=key, **settings)
    return Kernel(fn, configs=configs or ([config] if config else []), settings=settings, key=key)
