"""Triton's internals, 3.4 to 3.9: only this room names Triton's modules, classes and private members.

The rest of the adapter uses the public members of an autotuner and its candidates (``configs``, ``keys``, ``cache``,
``fn``, ``pre_hook``, ``all_kwargs()``) by their names. If a Triton differs from the known ones, functions that hook it
raise HookError, and functions that look for something return None.
"""
