"""Requests to object storage: the library that makes them, how long they take, and their errors in short.

Nothing here knows what is stored.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Generic, TypeVar

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import INSTANCE, Location

#: A request that hangs ends after so many seconds, and others are tried again for so many. A store that is down costs
#: a run one request at its start and one at its end.
_REQUEST_S = 4
_RETRY_S = 3
#: A request with all its tries: two of them, and the rest of a run, take less than the 10 s that users are promised.
_PATIENCE_S = 4.2

#: The variables that hold credentials, or say where they are. A machine may have some of its own, but asking one that
#: has none takes seconds.
_CREDENTIALS = {
    "s3": re.compile("AWS_(ACCESS_KEY_ID|WEB_IDENTITY_TOKEN_FILE|CONTAINER_CREDENTIALS_(RELATIVE|FULL)_URI)"),
    "gs": re.compile("GOOGLE_(APPLICATION_CREDENTIALS|SERVICE_ACCOUNT(_PATH|_KEY)?)"),
    "az": re.compile("AZURE_(STORAGE_.*(KEY|TOKEN)|(STORAGE_)?CLIENT_SECRET|FEDERATED_TOKEN_FILE|USE_AZURE_CLI)"),
}
#: The variables whose values are parts of requests: the library panics at a line break in them.
_PARTS = {
    "s3": re.compile("AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|(SESSION_)?TOKEN|(DEFAULT_)?REGION|ENDPOINT(_URL(_S3)?)?)"),
    "gs": re.compile("GOOGLE_(BEARER_TOKEN|BASE_URL)"),
    "az": re.compile("AZURE_.*(KEY|TOKEN|SECRET|_ID|NAME|ENDPOINT)"),
}
_ADDRESS = re.compile("AWS_ENDPOINT.*|AZURE_(STORAGE_)?ENDPOINT|GOOGLE_BASE_URL")

_T = TypeVar("_T")


def run(requests: Coroutine[Any, Any, _T]) -> _T:
    """Return what requests come to. They have a thread of their own: the caller's may run a loop of events."""
    running = _Running[_T](requests)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(asyncio.run, running.until_done())
        try:
            return done.result()
        except KeyboardInterrupt:
            running.cancel()
            raise


class _Running(Generic[_T]):
    """Requests that another thread can cancel."""

    def __init__(self, requests: Coroutine[Any, Any, _T]) -> None:
        self._requests = requests
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[_T] | None = None

    async def until_done(self) -> _T:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._requests)
        return await self._task

    def cancel(self) -> None:
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)


async def within(request: Awaitable[_T]) -> _T:
    """Return what a request answers.

    :raises TimeoutError: where that takes too long.
    """
    try:
        return await asyncio.wait_for(request, _PATIENCE_S)
    except asyncio.TimeoutError:  # another class before Python 3.11
        raise TimeoutError(f"no answer within {_PATIENCE_S:g} s") from None


async def next_page(pages: Any) -> Any:
    """Return the next page of a list; None behind the last."""
    try:
        return await pages.__anext__()
    except StopAsyncIteration:
        return None


def open_url(location: Location) -> tuple[Any, Any, bool]:
    """The library, what it has for a URL, and whether there are credentials for that.

    :raises CacheError: where the library is not installed, or the URL makes no sense to it.
    """
    try:
        import obstore
        from obstore.store import from_url
    except ImportError:
        remedy = "pip install 'pytest-autotune[stores]'"
        raise CacheError(str(location), "is a URL, and obstore is not installed", remedy) from None
    scheme = location.url.partition(":")[0]
    _check_environment(str(location), scheme)
    has_name = _CREDENTIALS[scheme].fullmatch
    is_set = any(has_name(name) and value for name, value in os.environ.items())
    has_credentials = is_set or INSTANCE in location.options
    wait = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1), "base": 2}
    url: Any = location.url + "/"
    config: Any = {} if has_credentials else {"skip_signature": True}
    # The library follows redirects, and carries the token of a session there: at least never without TLS.
    client: Any = {"timeout": f"{_REQUEST_S}s", "connect_timeout": "2s", "allow_http": _may_be_plain(scheme)}
    retry: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=_RETRY_S), "backoff": wait}
    try:
        return obstore, from_url(url, config=config, client_options=client, retry_config=retry), has_credentials
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise CacheError(str(location), words(error)) from None


def _check_environment(where: str, scheme: str) -> None:
    """Refuse values of which the library can make no request.

    :raises CacheError: for the first one, which is named and not repeated.
    """
    for name, value in sorted(os.environ.items()):
        if not _PARTS[scheme].fullmatch(name):
            continue
        if re.search(r"[\x00-\x1f\x7f]", value):
            raise CacheError(where, f"{name} holds a line break or a control character", "set it without that")
        if _ADDRESS.fullmatch(name) and value and not value.startswith(("http://", "https://")):
            raise CacheError(where, f"{name} is no address", "it begins with https:// or http://")


def _may_be_plain(scheme: str) -> bool:
    """Whether requests without TLS are allowed: for S3, an address has to say so."""
    addresses = [value for name, value in os.environ.items() if name.startswith("AWS_ENDPOINT")]
    return scheme != "s3" or any(address.startswith("http://") for address in addresses)


def words(error: BaseException) -> str:
    """An error of the library, which has pages of details, in short."""
    text = str(error)
    if status := re.search(r"status code: (\d{3}[ A-Za-z]*)", text):
        code = re.search(r"<Code>(\w+)</Code>", text)
        return f"the store answers {status[1].strip()}{f' ({code[1]})' if code else ''}"
    address = re.search(r"Error performing \w+ \w+://([^/?#\s]*)", text)
    host = f" ({address[1].rpartition('@')[2]})" if address else ""
    if re.search(r"\bTimed ?[oO]ut|kind: Timeout", text):
        return f"no answer within {_REQUEST_S} s{host}"
    if cause := re.search(r'(?:message|error): "([^"]*)"', text):
        return cause[1] + host
    return text.partition("\n")[0].rpartition(" - ")[2] + host
