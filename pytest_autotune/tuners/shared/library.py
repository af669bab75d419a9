"""A tuner's library: its version, the parameters of its functions, and the moment of its import.

:mod:`.patches` replaces the functions.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from traceback import walk_tb
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from pytest_autotune.cache.model import Versions
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.distributions import Distribution


def find_version(library: str) -> str:
    """Return the version of an imported or installed library, without its local part; ``"?"`` if it is unknown."""
    installed = getattr(sys.modules.get(library), "__version__", None)
    if installed is None:
        with suppress(PackageNotFoundError):
            installed = version(library)
    return str(installed or "?").split("+")[0]


def list_versions(*libraries: str, distributions: Iterable[Distribution] = ()) -> Versions:
    """Return the versions of imported libraries: ``triton 3.6.0, torch 2.11.0, cuda 13.0``.

    ``cuda`` or ``hip`` is the version that torch was built for.

    :param distributions: the distributions that a kernel uses besides.
    """
    pairs = [(library, find_version(library)) for library in libraries if library in sys.modules]
    torch: Any = sys.modules.get("torch")
    if "torch" in libraries and torch is not None:
        for platform in ("cuda", "hip"):
            platform_version = getattr(torch.version, platform, None)
            if platform_version:
                pairs.append((platform, str(platform_version)))
    pairs += sorted((distribution.name, distribution.version) for distribution in distributions)
    return Versions(tuple(pairs))


def check_signature(
    function: Any,
    name: str,
    library: str,
    parameters: Sequence[str],
    *,
    and_others: bool = False,
    needed: str = "another version is needed",
) -> Callable[..., Any]:
    """Return a function of a library after a check of its parameters.

    :param name: the name of the function, for messages.
    :param parameters: the names of the parameters, in order.
    :param and_others: whether later versions may have more parameters after these.
    :param needed: the version to install, for the message if there is no function.
    :raises HookError: if there is no function, or it has other parameters.
    """
    if function is None:
        raise HookError(f"{library} {find_version(library)} has no {name}; {needed}")
    names = list(inspect.signature(function).parameters)
    if and_others:
        names = names[: len(parameters)]
    if names != list(parameters):
        raise HookError(f"{name} of {library} {find_version(library)} has another signature")
    return function  # type: ignore[no-any-return]


def when_imported(module: str, hook: Callable[..., object], *arguments: object) -> None:
    """Call ``hook`` with the arguments and the module when the module is imported, or now if it is.

    :param hook: a bound method. wrapt keeps its hooks for the life of the process, so only a weak reference to the
        method is kept: the hooks must not keep a run alive.
    """
    import wrapt

    reference = weakref.WeakMethod(hook)

    def call(library: ModuleType) -> None:
        method = reference()
        if method is not None:
            method(*arguments, library)

    wrapt.register_post_import_hook(call, module)


_IS_GUARDED = "_pytest_autotune_guarded"


def guarded(
    replacement: Callable[..., Any],
    original: Callable[..., Any],
    session: Session,
    tuner: str,
    library: str = "",
    calls: Callable[..., Iterable[object]] = lambda *args, **kwargs: (),
) -> Any:
    """A function that calls ``replacement``, and where that fails by itself the tuner's ``original`` instead.

    Errors that the tuner raises are none of the adapter's and pass: those that come through ``original`` or through
    a function among its arguments or in ``calls``, and in a search those that come through any function of the tuner's
    library. So do a refusal and what is no ``Exception``: Ctrl-C, ``pytest.fail``. Where a miss is an error, so is a
    call that could not be looked up.

    :param tuner: whose adapter it is; reported with the error, once.
    :param library: the top package of the tuner; that of ``original``, if empty.
    :param calls: what else ``replacement`` calls that is none of the adapter's, by its arguments.
    """
    if hasattr(replacement, _IS_GUARDED):
        return replacement
    library = library or (original.__module__ or "").partition(".")[0]
    own = replacement.__module__

    @wraps(replacement)
    def call(*args: Any, **kwargs: Any) -> Any:
        searches = session.progress.searches
        try:
            return replacement(*args, **kwargs)
        except Exception as error:
            frames = [frame for frame, _ in walk_tb(error.__traceback__)][1:]
            theirs = {_code_of(one) for one in (original, *calls(*args, **kwargs), *args, *kwargs.values())} - {None}
            if any(frame.f_code in theirs for frame in frames):
                raise
            modules = {str(frame.f_globals.get("__name__", "")) for frame in frames} - {own}
            if session.progress.searches > searches and any(module.partition(".")[0] == library for module in modules):
                raise
            session.report_unanswered_call(tuner, f"{getattr(original, '__name__', original)}()", error)
        return original(*args, **kwargs)

    setattr(call, _IS_GUARDED, True)
    return call


def _code_of(value: object) -> CodeType | None:
    """The code of a function; None for anything else."""
    # Not isinstance: it asks proxies for their class, which may run code of theirs.
    function = value.__func__ if type(value) is MethodType else value
    return inspect.unwrap(function).__code__ if type(function) is FunctionType else None


class FunctionPatches:
    """A tuner's functions that were replaced, by their signature; an error of a replacement leaves them to it."""

    def __init__(self, session: Session, tuner: str) -> None:
        self._session = session
        self._tuner = tuner
        self._originals: list[tuple[Any, str, Any]] = []

    def replace(
        self,
        owner: Any,
        name: str,
        parameters: Sequence[str],
        replacement: Callable[..., Any],
        *,
        and_others: bool = False,
    ) -> None:
        """Replace a function of a module, or a method of a class.

        :param parameters: their names, in order; ``and_others``: later versions have further ones, which are handed on.
        :param replacement: is called with the original before what it is called with.
        """
        original = self.known(owner, name, parameters, and_others=and_others)

        def call(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        setattr(owner, name, guarded(call, original, self._session, self._tuner))

    def known(self, owner: Any, name: str, parameters: Sequence[str], **more: Any) -> Any:
        """A function, or a class, that is about to be replaced, and is put back at the end; see :func:`known`."""
        where = f"{owner.__name__.rpartition('.')[2]}.{name}"
        library = getattr(owner, "__module__", owner.__name__).partition(".")[0]
        original = check_signature(vars(owner).get(name), where, library, parameters, **more)
        self._originals.append((owner, name, original))
        return original

    def undo(self) -> None:
        """Put back what was there, the last one first."""
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)


class Replaced:
    """What an adapter replaces in its tuner's module, and in the classes that this defines, while it hooks it.

    Found by comparing before and after, so that it holds for adapters that know nothing of it.
    """

    def __init__(self, library: ModuleType) -> None:
        self._before = dict(_functions(library))

    def _changed(self) -> Iterator[tuple[Any, str, FunctionType, object]]:
        for (owner, name), before in self._before.items():
            now = vars(owner).get(name)
            if now is not before and now is not None:
                yield owner, name, before, now

    def guard(self, session: Session, tuner: str) -> None:
        """Put the guard around each function that was replaced by another one, if that can be called."""
        for owner, name, before, now in self._changed():
            if not callable(now):
                raise TypeError(f"{name}() was replaced by {type(now).__name__}, which cannot be called")
            if inspect.isfunction(now) or not isinstance(owner, type):  # else, as a method, it is called in its own way
                setattr(owner, name, guarded(now, before, session, tuner))

    def put_back(self) -> None:
        """Put back the functions that are still replaced."""
        for owner, name, before, _ in self._changed():
            setattr(owner, name, before)


def _functions(library: ModuleType) -> Iterator[tuple[tuple[Any, str], FunctionType]]:
    classes = [value for value in vars(library).values() if isinstance(value, type)]
    for owner in (library, *(cls for cls in classes if cls.__module__ == library.__name__)):
        for name, value in list(vars(owner).items()):
            if inspect.isfunction(value):
                yield (owner, name), value
