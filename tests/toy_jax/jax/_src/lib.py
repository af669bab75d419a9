from types import SimpleNamespace

xla_client = SimpleNamespace(AutotuneCacheMode=SimpleNamespace(READ="read", UPDATE="update"))
