"""Requests to object storage: the library that makes them, their time limits, and their errors in short.

Nothing here knows which objects are stored.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import re
from collections.abc import Awaitable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from time import sleep
from typing import Any, Generic, TypeVar

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import INSTANCE, Location

#: A request that hangs ends after so many seconds.
_REQUEST_S = 4
#: A request that fails is repeated for so many seconds. A store that is down costs a run one request at its start and
#: another at its end.
_RETRY_S = 3
#: A request with all its repetitions takes at most so many seconds. Two of them, and the rest of a run, take less than
#: the 10 s that the documentation promises.
_PATIENCE_S = 4.2

#: A process that made requests waits so many seconds before it ends.
_EXIT_S = 0.1

#: The variables that hold credentials, or say where they are. A machine may have credentials of its own, but asking a
#: machine that has none takes seconds.
_CREDENTIALS = {
    "s3": re.compile("AWS_(ACCESS_KEY_ID|WEB_IDENTITY_TOKEN_FILE|CONTAINER_CREDENTIALS_(RELATIVE|FULL)_URI)"),
    "gs": re.compile("GOOGLE_(APPLICATION_CREDENTIALS|SERVICE_ACCOUNT(_PATH|_KEY)?)"),
    "az": re.compile("AZURE_(STORAGE_.*(KEY|TOKEN)|(STORAGE_)?CLIENT_SECRET|FEDERATED_TOKEN_FILE|USE_AZURE_CLI)"),
}
#: The variables whose values are parts of requests. The library panics at a line break in them.
_REQUEST_PARTS = {
    "s3": re.compile("AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|(SESSION_)?TOKEN|(DEFAULT_)?REGION|ENDPOINT(_URL(_S3)?)?)"),
    "gs": re.compile("GOOGLE_(BEARER_TOKEN|BASE_URL)"),
    "az": re.compile("AZURE_.*(KEY|TOKEN|SECRET|_ID|NAME|ENDPOINT)"),
}
_ADDRESS = re.compile("AWS_ENDPOINT.*|AZURE_(STORAGE_)?ENDPOINT|GOOGLE_BASE_URL")

_T = TypeVar("_T")


def run(requests: Coroutine[Any, Any, _T]) -> _T:
    """Run requests in a thread of their own, and return their result. The caller's thread may run an event loop."""
    running = _Running[_T](requests)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(asyncio.run, running.wait())
        try:
            return future.result()
        except KeyboardInterrupt:
            running.cancel()
            raise


class _Running(Generic[_T]):
    """Requests that another thread can cancel."""

    def __init__(self, requests: Coroutine[Any, Any, _T]) -> None:
        self._requests = requests
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[_T] | None = None

    async def wait(self) -> _T:
        """Run the requests, and return their result."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._requests)
        return await self._task

    def cancel(self) -> None:
        """Cancel the requests, if they run."""
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)


async def within_patience(request: Awaitable[_T]) -> _T:
    """Return the answer to a request.

    :raises TimeoutError: if the answer takes too long.
    """
    try:
        return await asyncio.wait_for(request, _PATIENCE_S)
    except asyncio.TimeoutError:
        # Before Python 3.11, asyncio.TimeoutError is another class than the built-in TimeoutError.
        raise TimeoutError(f"no answer within {_PATIENCE_S:g} s") from None


async def next_page(pages: Any) -> Any:
    """Return the next page of a list; None after the last page."""
    try:
        return await pages.__anext__()
    except StopAsyncIteration:
        return None


@dataclass(frozen=True)
class OpenedUrl:
    """The access to the objects of a URL.

    :param library: the module that makes the requests.
    :param objects: the library's object for the URL.
    :param has_credentials: whether the requests have credentials.
    """

    library: Any
    objects: Any
    has_credentials: bool


def open_url(location: Location) -> OpenedUrl:
    """Return the access to the objects of a URL. No request is made.

    :raises CacheError: if the library is not installed, or cannot parse the URL.
    """
    try:
        import obstore
        from obstore.store import from_url
    except ImportError:
        remedy = "pip install 'pytest-autotune[stores]'"
        raise CacheError(str(location), "is a URL, and obstore is not installed", remedy) from None
    _wait_for_library_at_exit()
    scheme = location.url.partition(":")[0]
    _check_environment(str(location), scheme)
    has_credentials = INSTANCE in location.options or _has_credential_variable(scheme)
    config: Any = {}
    if not has_credentials:
        config = {"skip_signature": True}
    # The library follows redirects, and sends the session's token along. No option prevents that. Without allow_http,
    # it refuses at least a redirect to a host without TLS.
    client_options: Any = {"timeout": f"{_REQUEST_S}s", "connect_timeout": "2s", "allow_http": _allows_http(scheme)}
    # The pauses between the repetitions of a request.
    backoff = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1), "base": 2}
    retry_config: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=_RETRY_S), "backoff": backoff}
    url: Any = location.url + "/"
    try:
        objects = from_url(url, config=config, client_options=client_options, retry_config=retry_config)
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise CacheError(str(location), describe_request_error(error)) from None
    return OpenedUrl(obstore, objects, has_credentials)


@cache
def _wait_for_library_at_exit() -> None:
    """Let the library's threads end before the process does.

    After the last answer, such a thread still releases Python's objects. If the interpreter has ended by then, the
    process is aborted by a signal, and its exit status is lost.
    """
    atexit.register(sleep, _EXIT_S)


def _has_credential_variable(scheme: str) -> bool:
    """Whether a variable with credentials is set."""
    for name, value in os.environ.items():
        if value and _CREDENTIALS[scheme].fullmatch(name):
            return True
    return False


def _check_environment(place: str, scheme: str) -> None:
    """Refuse environment variables whose values obstore cannot put into a request.

    :raises CacheError: for the first such variable. The error does not repeat the value, which may be a secret.
    """
    for name, value in sorted(os.environ.items()):
        if not _REQUEST_PARTS[scheme].fullmatch(name):
            continue
        if re.search(r"[\x00-\x1f\x7f]", value):
            raise CacheError(
                place, f"the environment variable {name} holds a line break or a control character", "remove it"
            )
        if _ADDRESS.fullmatch(name) and value and not value.startswith(("http://", "https://")):
            raise CacheError(
                place, f"the environment variable {name} is not an address", "begin it with https:// or http://"
            )


def _allows_http(scheme: str) -> bool:
    """Whether requests without TLS are allowed. For S3, an address must begin with ``http://``."""
    if scheme != "s3":
        return True
    for name, value in os.environ.items():
        if name.startswith("AWS_ENDPOINT") and value.startswith("http://"):
            return True
    return False


def describe_request_error(error: BaseException) -> str:
    """Return an error of the library in short; its own text has pages of details.

    A text of the library begins with a line such as this one, and the details follow. If the store has not answered,
    the line ends with ``HTTP error: error sending request``, and the cause is in the details::

        …: Error performing GET http://127.0.0.1:9000/bucket/x in 1ms - Server returned non-2xx status code:
        403 Forbidden: <?xml version="1.0"?><Error><Code>AccessDenied</Code>…

    The result is one of these:

    - the store has answered: ``the store answers 403 Forbidden (AccessDenied)``. This names no host.
    - a time limit has passed: ``no answer within 4 s (127.0.0.1:9000)``
    - another cause, in the words of the library: ``Connection refused (127.0.0.1:9000)``
    """
    text = str(error)
    if status := re.search(r"status code: (\d{3}[ A-Za-z]*)", text):
        answer = f"the store answers {status[1].strip()}"
        if code := re.search(r"<Code>(\w+)</Code>", text):
            answer += f" ({code[1]})"
        return answer
    host = ""
    if address := re.search(r"Error performing \w+ \w+://([^/?#\s]*)", text):
        # Text before an @ may be a password.
        host = f" ({address[1].rpartition('@')[2]})"
    if re.search(r"\bTimed ?[oO]ut|kind: Timeout", text):
        return f"no answer within {_REQUEST_S} s{host}"
    if cause := re.search(r'(?:message|error): "([^"]*)"', text):
        return cause[1] + host
    # The first line ends with the cause, behind a dash.
    first_line = text.partition("\n")[0]
    return first_line.rpartition(" - ")[2] + host
