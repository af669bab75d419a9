"""The functions of a tuner that an adapter replaces, and the guard around the adapter's part of each call.

A call of a replaced function has four steps:

1. ``CallHook.ask`` may answer the call, have another call made in place of it, or leave it as it is.
2. Unless ``ask`` answered, the tuner's own function is called.
3. ``CallHook.note`` sees the result, or ``CallHook.note_error`` the error.
4. The contexts that the hook entered with ``HookedCall.enter`` end.

The guard surrounds steps 1, 3 and 4, never step 2. If the adapter fails, the user sees one line in the summary, and
the tuner goes on as if the adapter had not been asked. Errors of the tuner and of the user's kernel pass unchanged, and
so do Ctrl-C, ``pytest.fail`` and the session's refusals.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import wraps
from types import ModuleType
from typing import Any, TypeVar

from pytest_autotune.cache.model import library_of
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.candidates import LaunchError
from pytest_autotune.tuners.source.libraries import find_version

_T = TypeVar("_T")


@dataclass(frozen=True)
class CallResult:
    """The result of a call, in place of the tuner's own.

    If ``CallHook.ask`` returns it, the tuner's function is not called.
    """

    value: Any


@dataclass(frozen=True)
class CallInstead:
    """A call of the tuner that is made in place of the call that the hook was asked about.

    The guard does not surround it: its errors pass unchanged.
    """

    function: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class HookedCall:
    """One call of a replaced function.

    :param original: the tuner's own function.
    :param bound: the arguments as the caller passed them.
    """

    def __init__(self, original: Callable[..., Any], bound: inspect.BoundArguments) -> None:
        self.original = original
        #: The arguments by the names of their parameters, with the defaults. A method has ``self`` among them.
        self.arguments: dict[str, Any] = {}
        #: A value that ``ask`` keeps for ``note``.
        self.state: Any = None
        #: Ends the entered contexts.
        self.exits = ExitStack()
        self._bound = bound
        with_defaults = inspect.BoundArguments(bound.signature, bound.arguments.copy())
        with_defaults.apply_defaults()
        self.arguments.update(with_defaults.arguments)

    def enter(self, context: AbstractContextManager[_T]) -> _T:
        """Enter a context, such as an open tuning, that ends after the call. The context gets the call's error, if any.

        If the adapter fails, the context ends with the adapter's error before the tuner goes on.
        """
        return self.exits.enter_context(context)

    def with_arguments(self, **changed: Any) -> CallInstead:
        """Return this call with other arguments for some parameters."""
        bound = inspect.BoundArguments(self._bound.signature, self._bound.arguments.copy())
        bound.arguments.update(changed)
        return CallInstead(self.original, bound.args, bound.kwargs)


class CallHook:
    """The code of an adapter before and after each call of a replaced function.

    A subclass overrides the methods that it needs.
    """

    def ask(self, call: HookedCall) -> CallResult | CallInstead | None:
        """Look up the choice before the tuner does its work.

        :returns: the result of the call, or a call to make in its place; None leaves the call as it is.
        """
        return None

    def note(self, call: HookedCall, result: Any) -> CallResult | None:
        """Record the tuner's result.

        :returns: another result for the caller; None leaves the result as it is.
        """
        return None

    def note_error(self, call: HookedCall, error: Exception) -> None:
        """See the error with which the tuner's own call ended. The error passes to the caller afterwards."""


class Patches:
    """The functions of one tuner that an adapter replaced.

    :param tuner: the name of the tuner, or of a part of it, for messages.
    """

    def __init__(self, session: Session, tuner: str) -> None:
        self._session = session
        self._tuner = tuner
        #: The replaced functions in the order of the replacements: their module or class, their name, the original.
        self._originals: list[tuple[Any, str, Any]] = []
        _all_patches.add(self)

    def replace(
        self,
        owner: Any,
        name: str,
        parameters: Sequence[str],
        hook: CallHook,
        *,
        allow_more_parameters: bool = False,
        advice: str = "another version is needed",
    ) -> None:
        """Replace a function by one that asks a hook in each call. :meth:`undo` puts the original back.

        :param owner: the module or the class that has the function.
        :param name: the name of the function in its owner.
        :param parameters: the names of the function's parameters, in order.
        :param allow_more_parameters: whether later versions may have more parameters after these.
        :param advice: the version to install, for the message.
        :raises HookError: if the owner has no such function, or it has other parameters.
        """
        original = self.keep_original(
            owner, name, parameters, allow_more_parameters=allow_more_parameters, advice=advice
        )
        setattr(owner, name, self.wrap(original, hook))

    def wrap(self, original: Callable[..., Any], hook: CallHook) -> Callable[..., Any]:
        """Return a function that does what ``original`` does, and asks a hook before and after it.

        This method replaces nothing: the adapter itself puts the returned function into an object. For a function of a
        module or class, use :meth:`replace`.

        :param original: a function of the tuner.
        """
        hooked = _HookedFunction(original, hook, self._session, self._tuner)

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return hooked.call(args, kwargs)

        # The function refers to the patches, so that they live as long as it: undo_patches knows only live patches.
        call.__dict__[_PATCHES] = self
        return call

    def keep_original(
        self,
        owner: Any,
        name: str,
        parameters: Sequence[str],
        *,
        allow_more_parameters: bool = False,
        advice: str = "another version is needed",
    ) -> Any:
        """Return a function, or a class, that the adapter replaces itself. :meth:`undo` puts it back.

        The parameters and the error are those of :meth:`replace`.
        """
        # For triton.runtime.autotuner.Autotuner: "Autotuner.prune_configs", "triton".
        displayed_name = f"{owner.__name__.rpartition('.')[2]}.{name}"
        owner_module = getattr(owner, "__module__", owner.__name__)
        library = owner_module.partition(".")[0]
        original = check_signature(
            vars(owner).get(name),
            displayed_name,
            library,
            parameters,
            allow_more_parameters=allow_more_parameters,
            advice=advice,
        )
        self._originals.append((owner, name, original))
        return original

    def undo(self) -> None:
        """Put the originals back, the last replaced first."""
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)

    def belongs_to(self, session: Session, library: str) -> bool:
        """Whether these are patches of a library's tuner for a session."""
        return self._session is session and library_of(self._tuner) == library


_PATCHES = "_pytest_autotune_patches"
_all_patches: weakref.WeakSet[Patches] = weakref.WeakSet()


def undo_patches(session: Session, library: str) -> None:
    """Put back the originals that an adapter left replaced, because it failed."""
    for patches in list(_all_patches):
        if patches.belongs_to(session, library):
            patches.undo()


class _HookedFunction:
    """A tuner's function with a hook, and the guard around the hook."""

    def __init__(self, original: Callable[..., Any], hook: CallHook, session: Session, tuner: str) -> None:
        self._original = original
        self._hook = hook
        self._session = session
        self._tuner = tuner
        self._signature = inspect.signature(original)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call in the four steps that the module describes."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            # The call is wrong. The tuner's function raises the error that its user expects.
            return self._original(*args, **kwargs)
        except Exception as error:
            # For example, a test mocks a function that inspect uses. The call may be a miss, so it is reported.
            if not self._session.leaves_alone(self._tuner, getattr(self._original, "__name__", "")):
                self._report(error)
            return self._original(*args, **kwargs)
        call = HookedCall(self._original, bound)
        answer = self._ask(call)
        if isinstance(answer, CallResult):
            self._end(call, error=None)
            return answer.value
        call_to_make = answer or CallInstead(self._original, args, kwargs)
        try:
            result = call_to_make.function(*call_to_make.args, **call_to_make.kwargs)
        except BaseException as error:
            self._note_error(call, error)
            raise
        changed_result = self._note(call, result)
        if changed_result is not None:
            return changed_result.value
        return result

    def _ask(self, call: HookedCall) -> CallResult | CallInstead | None:
        """Ask the hook. After an error of the adapter, return None.

        :raises BaseException: an error of the user's kernel, Ctrl-C, ``pytest.fail``, or a refusal of the session.
        """
        try:
            answer = self._hook.ask(call)
            if answer is not None and not isinstance(answer, (CallResult, CallInstead)):
                raise TypeError(f"ask() returned {type(answer).__name__}, and not a CallResult or CallInstead")
            return answer
        except LaunchError as error:
            # The hook launched the user's kernel. The test gets the kernel's error, as without the plugin.
            self._end(call, error.kernel_error)
            error.raise_kernel_error()
        except Exception as error:
            # An error of the adapter. The tuner goes on without it.
            self._end(call, error)
            self._report(error)
            return None
        except BaseException as error:
            # Ctrl-C, pytest.fail, or a refusal of the session.
            self._end(call, error)
            raise

    def _note(self, call: HookedCall, result: Any) -> CallResult | None:
        """Show the hook the tuner's result, and end the contexts. After an error of the adapter, return None."""
        try:
            changed_result = self._hook.note(call, result)
            if changed_result is not None and not isinstance(changed_result, CallResult):
                raise TypeError(f"note() returned {type(changed_result).__name__}, and not a CallResult")
        except Exception as error:
            # An error of the adapter. The caller gets the tuner's own result.
            self._end(call, error)
            self._report(error)
            return None
        except BaseException as error:
            # Ctrl-C, pytest.fail, or a refusal of the session.
            self._end(call, error)
            raise
        self._end(call, error=None)
        return changed_result

    def _note_error(self, call: HookedCall, error: BaseException) -> None:
        """Show the hook the error of the tuner's own call, and end the contexts with it."""
        try:
            if isinstance(error, Exception):
                self._hook.note_error(call, error)
        except Exception as error_of_hook:
            self._report(error_of_hook)
        finally:
            self._end(call, error)

    def _end(self, call: HookedCall, error: BaseException | None) -> None:
        """End the contexts that the hook entered. Report an error with which a context ends.

        :param error: the error that ends the call; None if there is none. A context may raise this error again, which
            is ignored here, because the caller of this method deals with it.
        """
        try:
            if error is None:
                call.exits.close()
            else:
                call.exits.__exit__(type(error), error, error.__traceback__)
        except Exception as error_of_context:
            if error_of_context is not error:
                self._report(error_of_context)
        except BaseException as error_of_context:
            if error_of_context is not error:
                raise

    def _report(self, error: Exception) -> None:
        """Report an error of the adapter.

        :raises BaseException: from the session's ``refuse``, if a miss is an error. The call may have been a miss.
        """
        name = getattr(self._original, "__name__", str(self._original))
        self._session.report_unanswered_call(self._tuner, f"{name}()", error)


def check_signature(
    function: Any,
    name: str,
    library: str,
    parameters: Sequence[str],
    *,
    allow_more_parameters: bool = False,
    advice: str = "another version is needed",
) -> Callable[..., Any]:
    """Check that a library has a function with the expected parameters, and return the function.

    :param function: the function; None if the library has none.
    :param name: the name of the function, for messages.
    :param parameters: the names of the parameters, in order.
    :param allow_more_parameters: whether later versions may have more parameters after these.
    :param advice: the version to install, for the message if there is no function.
    :raises HookError: if there is no function, or it has other parameters.
    """
    if function is None:
        raise HookError(f"{library} {find_version(library)} has no {name}; {advice}")
    names = list(inspect.signature(function).parameters)
    if allow_more_parameters:
        names = names[: len(parameters)]
    if names != list(parameters):
        raise HookError(f"{name} of {library} {find_version(library)} has another signature")
    return function  # type: ignore[no-any-return]


def find_definer(cls: type, name: str, library: str) -> type:
    """Return the class that defines a method: the class itself or one of its bases.

    :raises HookError: if no class defines the method.
    """
    for base in cls.__mro__:
        if name in vars(base):
            return base
    raise HookError(f"{library} {find_version(library)} has no {cls.__name__}.{name}()")


def when_imported(module: str, hook: Callable[..., object], *arguments: object) -> None:
    """Call ``hook`` when a module is imported. If the module is imported already, call ``hook`` now.

    :param module: the module's name.
    :param hook: a bound method. wrapt keeps its hooks for the life of the process, so only a weak reference to the
        method is kept: the hooks must not keep a run alive.
    :param arguments: passed to the hook before the module.
    """
    import wrapt

    method_reference = weakref.WeakMethod(hook)

    def call_hook(imported_module: ModuleType) -> None:
        method = method_reference()
        if method is not None:
            method(*arguments, imported_module)

    wrapt.register_post_import_hook(call_hook, module)
