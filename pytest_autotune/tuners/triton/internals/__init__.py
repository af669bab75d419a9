"""Triton's internals, 3.4 to 3.9: no other module of this adapter names a module, a class or a private member of it.

What a user of Triton sees of an autotuner and its candidates (``configs``, ``keys``, ``cache``, ``fn``, ``pre_hook``,
``all_kwargs()``) is used by its name. Where a Triton is not what is known here, what hooks it raises HookError, and
what asks it says that there is none.
"""
