"""A store that a fleet shares: what one has tuned all have, whatever the network does, and nothing is lost.

S3 is moto's server, behind a proxy that makes requests fail; Azure is azurite, where it is installed; of Google there
is a stub of ours.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from email.utils import formatdate
from itertools import count, permutations, product
from pathlib import Path
from typing import Any

import pytest

from pytest_autotune import cli
from pytest_autotune.cache import stores
from pytest_autotune.cache.codec import Format, encode
from pytest_autotune.cache.combine import combine_caches
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.stores import objects as requests_of_stores
from pytest_autotune.cache.stores import segments
from pytest_autotune.cache.stores.segments import SegmentStore
from pytest_autotune.report.json_report import to_json
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import Lookup, Outcome, UsedEntry
from pytest_autotune.run.result import RunResult
from tests import object_storage
from tests.conftest import DISTRIBUTIONS, Suite
from tests.entries import A100, entry
from tests.stores import update_store

obstore = pytest.importorskip("obstore")
from_url = pytest.importorskip("obstore.store").from_url
pytest.importorskip("moto")
pytest.importorskip("flask_cors")
_NUMBERS = count()
FAULTS = ["500", "503", "403", "reset", "truncated", "hang", "lost"]


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with object_storage.moto() as port:
        yield port


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[object_storage.Proxy]:
    proxy = object_storage.Proxy(server)
    for name, value in proxy.environment.items():
        monkeypatch.setenv(name, value)
    yield proxy
    proxy.close()


@pytest.fixture
def url(proxy: object_storage.Proxy) -> str:
    return f"s3://{object_storage.BUCKET}/{next(_NUMBERS)}/"


#: The time limits of :func:`short_limits` are the product's limits divided by this number.
SHORTER = 4
#: The seconds that a run with two requests may take beside the limits of these requests, of the ten seconds in all.
REST_S = 10 - 2 * requests_of_stores._PATIENCE_S


@contextmanager
def shorter_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, names in (
            (requests_of_stores, ["_REQUEST_S", "_RETRY_S", "_PATIENCE_S"]),
            (segments, ["_LIST_S", "_PAUSE_S"]),
        ):
            for name in names:
                patch.setattr(module, name, getattr(module, name) / SHORTER)
        yield


@pytest.fixture
def short_limits() -> Iterator[None]:
    """Wait for a quarter of the time for a store that fails.

    The real limits are in test_slow_then_hanging_stores_delay_a_run_at_most_10_seconds.
    """
    with shorter_limits():
        yield


def both(url: str) -> list[str]:
    return [f"--autotune-load={url}", f"--autotune-dump={url}"]


def add(url: str, *entries: Entry) -> None:
    update_store(stores.open_store(url), lambda now: Cache((*now.entries, *entries)))


def held(url: str) -> set[Entry]:
    return set(stores.read_cache(url, missing_ok=True).entries)


#: The operations that send each request. A fault of a write that happens after it was done is mended by asking again.
ACTS: dict[str, list[Callable[[str], object]]] = {
    "LIST": [held, stores.compact],
    "GET": [held, stores.compact],
    "PUT": [lambda url: add(url, entry(3)), stores.compact],
    "DELETE": [stores.compact],
}


def bucket(url: str) -> Any:
    return from_url(url, client_options={"allow_http": True})


def alone(suite: Suite) -> dict[str, str]:
    """The environment of a run in a process of its own."""
    path = str(Path(cli.__file__).parents[2])
    return os.environ | {"TOY_LOG": str(suite.log), "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def objects(url: str) -> list[str]:
    return sorted(item["path"] for page in obstore.list(bucket(url)) for item in page)


# The behaviour that users see.


def test_a_marker_can_load_the_cache_of_a_test_from_a_store_url(serial_suite: Suite, url: str) -> None:
    test = f"import pytest\n@pytest.mark.autotune_cache(load={url!r})\ndef test(tune): tune('k', m=1)"
    serial_suite.write(test_one="def test(tune): tune('k', m=1)").run(f"--autotune-dump={url}")

    serial_suite.write(test_one=test).run("--autotune-dump=other.textproto")

    assert serial_suite.tunings == []


@pytest.mark.parametrize("distribution", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_a_run_uses_entries_another_machine_wrote_to_a_store(
    pytester: pytest.Pytester, monkeypatch, section, url: str, distribution: list[str]
) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    suite = Suite(pytester, distribution).write()

    first = suite.run(*both(url))
    shutil.rmtree(suite.folder / ".pytest_cache")
    second = suite.run(*both(url), "-p", "no:cacheprovider")

    assert f"4 entries written to {url}: 4 added" in section(first)[-1]
    assert (second.ret, suite.tunings) == (0, [])
    assert f"{url} is up to date (4 entries" in section(second)[-1]


def test_a_run_lists_a_store_once_and_writes_it_at_most_once(serial_suite: Suite, url: str, proxy) -> None:
    serial_suite.write()

    serial_suite.run(*both(url))
    first = proxy.requests[:]
    serial_suite.run(f"--autotune-load={url}", "--autotune-max-misses=0")
    serial_suite.write(test_more="def test_more(tune): tune('lib.more')")
    serial_suite.run(*both(url))

    assert first == ["LIST", "PUT"]
    assert proxy.requests[2:] == ["LIST", "LIST", "PUT"]
    assert len(serial_suite.tunings) == 1
    assert not any("if-none-match" in head.lower() or "if-match" in head.lower() for head in proxy.heads)


def test_a_loaded_file_takes_precedence_over_a_loaded_store(serial_suite: Suite, section, url: str) -> None:
    suite = serial_suite.write(test_one="def test(tune): print(tune('k', m=1))")
    suite.run("--autotune-dump=cache.textproto")
    suite.cache.write_text(suite.cache.read_text().replace('text: "a"', 'text: "b"'))
    suite.write(test_one="def test(tune): print(tune('k', m=1), tune('k', m=2))")
    suite.run(f"--autotune-dump={url}")

    for order in permutations(["--autotune-load=cache.textproto", f"--autotune-load={url}"]):
        result = suite.run(*order, "-s", f"--autotune-dump={url}")
        assert "b a" in result.stdout.str()
        assert (suite.tunings, section(result)[-1]) == ([], f"2 hits; {url} is up to date (2 entries)")


def test_only_update_prune_removes_store_entries_of_other_runs(serial_suite: Suite, url: str) -> None:
    """Entries of other runs are not unused, either."""
    suite = serial_suite.write(test_a="def test(tune): tune('k', m=1)")
    suite.run(f"--autotune-dump={url}")
    suite.write(test_a="def test(tune): tune('k', m=1, source='of a branch'), tune('k', m=2)")

    report = suite.report(*both(url))

    assert (report["counts"]["stale"], report["counts"]["unused"], len(held(url))) == (1, 0, 3)
    suite.run(f"--autotune-load={url}", "--autotune-update=prune")
    assert len(held(url)) == 2
    suite.write(test_a="def test(tune): tune('k', m=1)")
    suite.run(*both(url))
    assert len(held(url)) == 3, "what was removed is tuned and kept again"


def test_verify_with_update_replaces_a_slower_choice_in_a_store(serial_suite: Suite, url: str) -> None:
    suite = serial_suite.write(test_a="def test(tune): print('chosen', tune('k', times={'a': 10.0, 'b': 20.0}))")
    suite.run(f"--autotune-dump={url}")
    (before,) = held(url)

    suite.run(f"--autotune-load={url}", "--autotune-verify", "--autotune-update", TOY_TIMES="a=30.0 b=20.0")
    result = suite.run(f"--autotune-load={url}", "-s")

    (after,) = held(url)
    assert (before.generation, after.generation, suite.tunings) == (0, 1, [])
    assert "chosen b" in result.stdout.str()


def test_merging_into_a_store_keeps_a_later_but_slower_entry(serial_suite: Suite, url: str) -> None:
    suite = serial_suite.write(test_a="def test(tune): tune('k', times={'a': 10.0, 'b': 20.0})")
    suite.dump()
    assert cli.main(["merge", str(suite.cache), "-o", url]) == 0
    suite.load("--autotune-verify", "--autotune-update", TOY_TIMES="a=30.0 b=20.0")

    assert cli.main(["merge", str(suite.cache), "-o", url]) == 0

    assert [stored_entry.choice.time_us for stored_entry in held(url) if stored_entry.choice] == [20.0], (
        "though the older one was faster"
    )


def test_a_dump_without_credentials_keeps_its_entries_in_a_file(
    serial_suite: Suite, section, url: str, monkeypatch, proxy
) -> None:
    suite = serial_suite.write()
    with monkeypatch.context() as patch:
        for name in object_storage.KEYS:
            patch.delenv(name)
        proxy.faults["PUT"] = "403"
        result = suite.run(f"--autotune-dump={url}")
        proxy.faults.clear()

    assert result.ret == 0
    (line,) = [line for line in section(result) if line.startswith(url)]
    assert line.startswith(
        f"{url} cannot be written: the store answers 403 Forbidden, without credentials, because the "
    )
    sending = line.partition("to send them: pytest-autotune ")[2].split()
    assert cli.main(sending) == 0
    assert len(held(url)) == 4


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize(("operation", "fault"), [("LIST", "403"), ("GET", "reset")])
def test_an_unreachable_store_is_an_error_within_10_seconds(
    serial_suite: Suite, section, url: str, proxy, operation: str, fault: str
) -> None:
    """With ``?optional`` it is no error."""
    suite = serial_suite.write()
    suite.run(f"--autotune-dump={url}", "-p", "no:cacheprovider")
    proxy.faults[operation] = fault

    started = time.monotonic()
    strict = suite.run(f"--autotune-load={url}", "-p", "no:cacheprovider")
    seconds = [time.monotonic() - started]
    started = time.monotonic()
    optional = suite.run(f"--autotune-load={url}?optional", "-p", "no:cacheprovider")
    seconds.append(time.monotonic() - started)

    assert strict.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = filter(None, strict.errlines)
    assert line.startswith(f"ERROR: --autotune-load: {url}: cannot be read: ")
    assert (optional.ret, len(suite.tunings)) == (0, 4)
    assert len([line for line in section(optional) if "cannot be read" in line]) == 1
    assert max(seconds) < requests_of_stores._PATIENCE_S * 2 + REST_S


@pytest.mark.usefixtures("short_limits")
def test_five_hanging_optional_stores_cost_a_run_two_timeouts(serial_suite: Suite, section, url: str, proxy) -> None:
    suite = serial_suite.write(test_a="def test(tune): tune('k')")
    proxy.faults |= dict.fromkeys(("LIST", "PUT"), "hang")
    started = time.monotonic()

    loads = [f"--autotune-load={url}{name}/?optional" for name in "abc"]
    result = suite.run(*loads, f"--autotune-dump={url}e/?optional")

    assert result.ret == 0
    assert len([line for line in section(result) if "no answer within" in line]) == 5
    assert time.monotonic() - started < requests_of_stores._PATIENCE_S * 2 + REST_S


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("fault", ["endless", "empty"])
def test_a_store_that_repeats_its_first_page_is_a_one_line_error(
    serial_suite: Suite, section, url: str, proxy, fault: str
) -> None:
    """Some stores ignore the token of the next page, and give the first page again and again."""
    suite = serial_suite.write(test_a="def test(tune): tune('k')")
    suite.run(f"--autotune-dump={url}")
    proxy.faults["LIST"] = fault
    proxy.faults["PUT"] = "hang"

    started = time.monotonic()
    optional = suite.run(f"--autotune-load={url}?optional", f"--autotune-dump={url}?optional")
    seconds = time.monotonic() - started

    assert optional.ret == 0
    assert len([line for line in section(optional) if "cannot be read" in line]) == 1
    assert seconds < 20 / SHORTER + REST_S  # of an endless list, on a loaded machine


def test_slow_then_hanging_stores_delay_a_run_at_most_10_seconds(serial_suite: Suite, url: str, proxy) -> None:
    suite = serial_suite.write(test_a="def test(tune): tune('k')")
    proxy.faults = {operation: ["slow", *["hang"] * 9] for operation in ("LIST", "PUT")}

    started = time.monotonic()
    result = suite.run(f"--autotune-load={url}?optional", f"--autotune-dump={url}?optional")

    assert result.ret == 0
    assert time.monotonic() - started < 10


def test_an_unreachable_store_in_a_marker_is_tried_once_per_run(serial_suite: Suite, section, url: str, proxy) -> None:
    suite = serial_suite.write(
        test_a=f"""
        import pytest

        @pytest.mark.autotune_cache(load="{url}?optional")
        @pytest.mark.parametrize("m", range(4))
        def test(tune, m): tune("k", M=m)
        """
    )
    proxy.faults["LIST"] = "403"

    result = suite.run()

    result.assert_outcomes(passed=4)
    assert proxy.requests == ["LIST"]
    assert len([line for line in section(result) if f"{url}?optional: cannot be read: " in line]) == 1


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("fault", ["403", "truncated"])
def test_after_a_failed_write_the_next_run_writes_the_entries(
    serial_suite: Suite, section, url: str, proxy, fault: str
) -> None:
    suite = serial_suite.write()
    proxy.faults["PUT"] = fault

    strict = suite.run(*both(url))
    optional = suite.run(f"--autotune-dump={url}other/?optional", "-o", "cache_dir=other")

    assert strict.ret == pytest.ExitCode.TESTS_FAILED
    (line,) = [
        line for line in section(strict) if line.startswith(f"ERROR --autotune-dump: {url}: cannot be written: ")
    ]
    assert line.endswith("the tunings are kept, and the next run with this dump path writes them")
    assert (optional.ret, len([line for line in section(optional) if "cannot be written" in line])) == (0, 1)
    proxy.faults.clear()
    suite.run(*both(url))
    assert (suite.tunings, len(held(url))) == ([], 4), "the next run sends it"
    file = line.partition("merge ")[2].split()[0]
    assert cli.main(["merge", str(suite.folder / file), "-o", f"{url}again/"]) == 0
    assert {stored_entry.problem for stored_entry in held(f"{url}again/")} == {
        stored_entry.problem for stored_entry in held(url)
    }


@pytest.mark.parametrize("operation", ["LIST", "GET", "PUT"])
@pytest.mark.parametrize("fault", ["500", "503", "reset", "lost"])
def test_a_store_request_that_fails_once_is_repeated(url: str, proxy, operation: str, fault: str) -> None:
    add(url, entry(1))
    proxy.faults[operation] = [fault]

    add(url, entry(2))

    assert proxy.faults[operation] == []
    assert held(url) == {entry(1), entry(2)}


def test_a_run_killed_while_writing_to_a_store_loses_no_entry(pytester: pytest.Pytester, url: str, proxy) -> None:
    suite = Suite(pytester, []).write()
    command = [sys.executable, "-m", "pytest", "-q", "-ppytest_autotune.plugin", *both(url)]
    run = subprocess.Popen(command, cwd=suite.folder, env=alone(suite), stdout=subprocess.DEVNULL)
    proxy.faults["PUT"] = lambda: run.send_signal(signal.SIGKILL)
    assert run.wait(60) == -signal.SIGKILL
    proxy.faults.clear()

    result = suite.run(*both(url))

    assert (result.ret, suite.tunings, len(held(url))) == (0, [], 4)


def test_all_commands_accept_the_url_of_a_store_as_a_cache(url: str, tmp_path: Path, capsys, proxy) -> None:
    file, report = str(tmp_path / "c.textproto"), tmp_path / "r.json"
    update_store(stores.open_store(file), lambda now: Cache((entry(1), entry(2))))

    assert cli.main(["convert", file, url]) == 0
    assert cli.main(["check", url]) == 0
    assert cli.main(["diff", "--exit-code", url, file]) == 0
    assert cli.main(["merge", url, "-o", str(tmp_path / "m.textproto")]) == 0
    assert (tmp_path / "m.textproto").read_bytes() == Path(file).read_bytes()
    add(url, entry(3))
    used = entry(1)
    lookup = Lookup(used.identity, Outcome.HIT, result=UsedEntry(used))
    collected = Collected(lookups=(lookup,), versions={"triton": used.versions})
    loaded = tuple(held(url))
    report.write_text(to_json(RunResult(collected=collected, initial_entries=loaded)))
    assert cli.main(["prune", url, "--together", f"--unused-in={report}"]) == 0
    assert cli.main(["compact", url]) == 0
    assert held(url) == {entry(1)}
    assert cli.main(["show", url]) == 0
    assert cli.main(["compact", file]) == 4
    proxy.faults["DELETE"] = "403"
    add(url, entry(4))
    assert cli.main(["compact", url]) == 4
    output = capsys.readouterr()
    assert "1 entry, 1 kernel, 1 device" in output.out
    assert f"pytest-autotune: {url}: cannot be compacted: the store answers 403" in output.err
    proxy.faults["LIST"] = "403"
    for arguments in (["show"], ["diff", file], ["prune", f"--unused-in={report}"]):
        assert cli.main([*arguments, f"{url}?optional"]) == 0
        assert f"{url}?optional: cannot be read: the store answers 403" in capsys.readouterr().err, "not empty"


def test_a_wrong_store_url_is_an_error_but_an_empty_store_is_not(serial_suite: Suite, url: str, monkeypatch) -> None:
    suite = serial_suite.write()
    assert suite.run(f"--autotune-load={url}?optional").ret == 0
    suite.write(test_m="import pytest\n@pytest.mark.autotune_cache(load='s3://id:key@x/')\ndef test(): pass")
    suite.run("test_m.py").stdout.fnmatch_lines(["autotune_cache: s3://x/: the URL holds credentials (*)"])

    monkeypatch.setenv("AWS_ENDPOINT_URL", "nowhere")

    assert suite.run(f"--autotune-load={url}").ret == pytest.ExitCode.USAGE_ERROR


def test_without_obstore_a_store_url_is_an_error_with_a_remedy(serial_suite: Suite, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)

    result = serial_suite.write().run("--autotune-load=s3://bucket/x/")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [
        "ERROR: --autotune-load: s3://bucket/x/: is a URL, and obstore is not installed "
        "(pip install 'pytest-autotune[stores]')"
    ]


def test_a_run_without_a_store_url_does_not_import_obstore(pytester: pytest.Pytester) -> None:
    suite = Suite(pytester, []).write()
    pytester.makepyfile(
        test_z="import sys\ndef test(): assert not {'obstore', *ours} & {*sys.modules}\n".replace(
            "*ours", "'pytest_autotune.cache.stores.segments'"
        )
    )
    command = [sys.executable, "-m", "pytest", "-ppytest_autotune.plugin", "--autotune-dump=c.textproto"]

    assert subprocess.run(command, cwd=suite.folder, env=alone(suite), stdout=subprocess.DEVNULL).returncode == 0


# The guarantees of the store.


def test_a_store_keeps_the_later_entry_even_if_it_is_slower(url: str, tmp_path: Path) -> None:
    fast, slow = entry(block=32, time_us=10.0), entry(block=64, time_us=11.0)
    add(url, fast)
    update_store(stores.open_store(url), lambda now: Cache((slow,)))

    assert held(url) == {slow}
    sides = {str(number): Cache((replace(fast, generation=number),)) for number in range(3)}
    sides["slow"] = Cache((replace(slow, generation=2),))
    texts = {
        encode(combine_caches({side: sides[side] for side in order}).cache, Format.TEXT)
        for order in permutations(sides)
    }
    assert texts == {encode(Cache((replace(fast, generation=2),)), Format.TEXT)}, "of one generation the faster"


def test_compacting_keeps_a_folder_per_gpu_and_foreign_files(url: str) -> None:
    add(url, entry(1), entry(1, device=A100))
    obstore.put(bucket(url), "v1/readme.txt", b"hello")

    folders = [name.split("/")[1] for name in objects(url)]
    assert folders == ["nvidia-a100-sm80-108", "nvidia-h200-sm90-132", "readme.txt"]
    assert stores.compact(url) == (2, 2)
    assert len(held(url)) == 2


def test_compacting_a_store_does_not_restore_a_removed_entry(url: str) -> None:
    add(url, entry(1), entry(2))
    update_store(stores.open_store(url), lambda now: Cache((entry(2),)), removing=True)
    assert held(url) == {entry(2)}

    assert stores.compact(url) == (2, 1)

    assert held(url) == {entry(2)}


def test_a_readonly_store_is_neither_written_nor_compacted(serial_suite: Suite, section, url: str, proxy) -> None:
    add(url, entry(1))
    add(url, entry(2))
    suite = serial_suite.write()
    proxy.requests.clear()

    dump = suite.run(f"--autotune-dump={url}?readonly")
    load = suite.run(f"--autotune-load={url}?readonly")
    marker = f"import pytest\n@pytest.mark.autotune_cache(load='{url}?readonly')\ndef test(tune): tune('k', m=1)"
    update = suite.write(test_one=marker).run("test_one.py", "--autotune-update")

    assert dump.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = filter(None, dump.errlines)
    assert line.startswith(f"ERROR: --autotune-dump: {url}?readonly: is read-only (?readonly) (")
    assert "--autotune-update" not in load.stdout.str(), "it would be refused"
    assert f"{url}?readonly is read-only (?readonly), so nothing was written to it" in section(update)
    assert (update.ret, len(suite.tunings), "PUT" in proxy.requests) == (0, 1, False)
    with pytest.raises(CacheError, match="cannot be compacted, because it is a path or read-only"):
        stores.compact(f"{url}?readonly")


def test_compacting_keeps_the_old_files_if_the_new_one_was_lost(url: str, proxy) -> None:
    """The store acknowledges what it does not keep."""
    for m in range(3):
        add(url, entry(m))
    before = objects(url)
    proxy.faults["PUT"] = "taken"

    with pytest.raises(CacheError, match=r"does not give it back \(nothing was removed\)"):
        stores.compact(url)

    assert objects(url) == before
    assert held(url) == {entry(m) for m in range(3)}


@pytest.mark.usefixtures("short_limits")
def test_a_listed_store_file_that_is_gone_is_reported(serial_suite: Suite, section, url: str, proxy, capsys) -> None:
    suite = serial_suite.write(test_a="def test(tune): tune('k')")
    add(url, entry(1))
    add(url, entry(2))
    missing_name = objects(url)[0]
    proxy.faults_below[missing_name.rpartition("/")[2]] = {"GET": "404"}

    result = suite.run(f"--autotune-load={url}")

    assert result.ret == 0
    assert len([line for line in section(result) if missing_name in line and "answers 404" in line]) == 1
    assert len(held(url)) == 1
    assert cli.main(["check", url]) == 1
    assert "1 cache has defects" in capsys.readouterr().out
    stores.compact(url)
    assert missing_name in objects(url)


FOREIGN = ["v1//x.pb", "v1/../x.pb", "v1/gpu//x.pb", "v1/nvidia-h200-sm90-132/../x.pb", "v1/nvidia-h200-sm90-132/a//x"]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_store_with_a_foreign_file_is_read_and_compacted(server: int, url: str, name: str) -> None:
    add(url, entry(1), entry(1, device=A100))
    # The library itself refuses to write such a name.
    address = f"http://127.0.0.1:{server}/{url.removeprefix('s3://')}{name}"
    urllib.request.urlopen(urllib.request.Request(address, b"x", method="PUT")).close()

    cache = stores.read_cache(url)

    assert set(cache.entries) == {entry(1), entry(1, device=A100)}
    assert name in cache.lossy[1]
    add(url, entry(2))
    assert stores.compact(url) == (3, 2)
    assert set(stores.read_cache(url).entries) == {entry(1), entry(1, device=A100), entry(2)}


def test_an_entry_of_the_highest_generation_can_be_replaced(url: str) -> None:
    add(url, replace(entry(block=32, time_us=10.0), generation=2**32 - 1))
    slow = entry(block=64, time_us=11.0)

    update_store(stores.open_store(url), lambda now: Cache((slow,)))

    assert held(url) == {slow}


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"])
def test_a_line_break_in_an_aws_secret_is_a_one_line_error(url: str, monkeypatch, capfd, name: str) -> None:
    monkeypatch.setenv(name, "http://secret\n")

    assert cli.main(["show", f"{url}?optional"]) == 4

    output = capfd.readouterr().err
    assert output.count("\n") == 1
    assert f"{name} holds a line break" in output
    assert "secret\n" not in output


def test_s3_allows_plain_http_only_for_an_http_endpoint(monkeypatch) -> None:
    """The library follows a redirect with the token of the session, so it must not lead to a host without TLS."""
    allowed: list[Any] = []
    monkeypatch.setattr("obstore.store.from_url", lambda url, **given: allowed.append(given["client_options"]))
    for address in ("http://host", "https://host", ""):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        SegmentStore(Location.parse("s3://bucket/x/", Path()))

    assert [options["allow_http"] for options in allowed] == [True, False, False]


def test_a_store_error_names_the_host_but_no_password(url: str, monkeypatch) -> None:
    for address, words in (
        ("http://user:password@127.0.0.1:1", "Connection refused (127.0.0.1:1) "),
        ("http://nowhere.invalid:1", "(nowhere.invalid:1) "),
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        with pytest.raises(CacheError) as caught:
            held(url)
        assert words in str(caught.value)
        assert "password" not in str(caught.value)


@pytest.mark.parametrize("fault", ["repeated", "left out"])
def test_a_store_listing_with_gaps_or_repeats_loses_no_entry(url: str, proxy, fault: str) -> None:
    for m in range(4):
        add(url, entry(m))
    proxy.faults["LIST"] = fault
    assert held(url) <= {entry(m) for m in range(4)}
    stores.compact(url)
    add(url, entry(4))
    proxy.faults.clear()

    assert held(url) == {entry(m) for m in range(5)}


def test_no_entry_is_lost_if_a_request_to_an_object_store_fails(url: str, proxy) -> None:
    """Each fault of each request of a read, a write and a compaction, side by side in folders of their own."""

    def prepare(case: tuple[str, str]) -> None:
        operation, fault = case
        add(folders[case], entry(1))
        add(folders[case], entry(2))
        proxy.faults_below[f"{operation}-{fault}"] = {operation: fault}

    def strike(case: tuple[str, str]) -> None:
        operation, _ = case
        for act in ACTS[operation]:
            started = time.monotonic()
            with pytest.raises(CacheError):
                act(folders[case])
            assert time.monotonic() - started < 10 / SHORTER + REST_S

    def mend(case: tuple[str, str]) -> None:
        folder = folders[case]
        assert held(folder) - {entry(3)} == {entry(1), entry(2)}
        assert stores.compact(folder)[1] == 1
        assert held(folder) - {entry(3)} == {entry(1), entry(2)}

    folders = {(operation, fault): f"{url}{operation}-{fault}/" for operation, fault in product(ACTS, FAULTS)}
    with ThreadPoolExecutor(len(folders)) as pool:
        list(pool.map(prepare, folders))
        with shorter_limits():
            list(pool.map(strike, folders))
        proxy.faults_below.clear()
        list(pool.map(mend, folders))


def test_an_unreadable_store_file_is_skipped_with_a_summary_line(serial_suite: Suite, section, url: str) -> None:
    suite = serial_suite.write()
    suite.run(f"--autotune-dump={url}")
    poisoned, unreadable = (f"v1/gpu/{hashlib.sha256(data).hexdigest()}.pb" for data in (b"other", b"no cache"))
    obstore.put(bucket(url), poisoned, b"")
    options = [f"--autotune-load={url}", "-o", "cache_dir=new"]

    result = suite.run(*options)
    obstore.delete(bucket(url), poisoned)
    obstore.put(bucket(url), unreadable, b"no cache")
    other = suite.run(*options)

    assert (result.ret, other.ret, suite.tunings) == (0, 0, [])
    assert f"{url}: {poisoned}: is damaged (its checksum does not match its name), so it was ignored" in "\n".join(
        section(result)
    )
    assert len([line for line in section(other) if f"{url}: {unreadable}: " in line and "ignored" in line]) == 1
    stores.compact(url)
    assert unreadable in objects(url), "what nobody can read is not removed"
    for name in set(objects(url)) - {unreadable}:
        obstore.delete(bucket(url), name)
    assert suite.run(*options).ret == pytest.ExitCode.USAGE_ERROR, "nothing can be read"


def test_if_a_local_copy_is_damaged_the_store_is_read_again(url: str, tmp_path: Path) -> None:
    location = replace(Location.parse(url, Path()), local_copy=tmp_path)
    add(url, entry(1))
    assert set(SegmentStore(location).read().entries) == {entry(1)}
    (copy,) = tmp_path.rglob("*.pb")
    copy.write_bytes(b"damaged")

    assert set(SegmentStore(location).read().entries) == {entry(1)}


@pytest.mark.parametrize("place", ["behind a link", "in the folder"])
def test_reading_a_store_removes_only_its_outdated_local_copies(url: str, tmp_path: Path, place: str) -> None:
    location = replace(Location.parse(url, Path()), local_copy=tmp_path / "keep")
    add(url, entry(1))
    SegmentStore(location).read()
    (copy,) = tmp_path.rglob("*.pb")
    if place == "behind a link":
        copy.parent.rename(tmp_path / "elsewhere")
        copy.parent.symlink_to(tmp_path / "elsewhere")
    (copy.parent / "precious.pb").write_text("mine")
    old_copy = copy.with_name(f"v1-gpu-{'0' * 64}.pb")
    old_copy.write_text("of a segment that is gone")

    SegmentStore(location).read()

    assert (copy.parent / "precious.pb").read_text() == "mine"
    assert old_copy.exists() == (place == "behind a link")


def test_simultaneous_runs_and_compactions_lose_no_entry(url: str, proxy) -> None:
    def run(number: int) -> set[Entry]:
        chance, acknowledged = random.Random(number), set[Entry]()
        for _ in range(4):
            new_entries = {entry(chance.randrange(60)) for _ in range(5)}
            try:
                store = SegmentStore(Location.parse(url, Path()))
                update_store(store, lambda now, new_entries=new_entries: Cache((*now.entries, *new_entries)))
                acknowledged |= new_entries
                if chance.random() < 0.3:
                    store.compact()
            except CacheError:
                proxy.faults = {chance.choice(["GET", "PUT"]): [chance.choice(["500", "reset", "lost", "truncated"])]}
        return acknowledged

    proxy.faults = {operation: ["lost", "500", "truncated", "reset"] for operation in ("LIST", "PUT", "GET", "DELETE")}
    with ThreadPoolExecutor(8) as pool:
        acknowledged = set().union(*pool.map(run, range(16)))
    proxy.faults = {}

    assert acknowledged
    assert acknowledged <= held(url)


# Other stores than S3.


def azurite(port: int) -> dict[str, str]:
    """The environment of azurite, with a container."""
    account, key = "devstoreaccount1", base64.b64encode(b"of azurite, for everybody").decode()
    date, path = formatdate(usegmt=True), f"/{account}/{object_storage.BUCKET}"
    text = f"PUT{12 * chr(10)}x-ms-date:{date}\nx-ms-version:2021-08-06\n/{account}{path}\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()).decode()
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06", "Content-Length": "0"}
    headers["Authorization"] = f"SharedKey {account}:{signature}"
    address = f"http://127.0.0.1:{port}"
    request = urllib.request.Request(f"{address}{path}?restype=container", method="PUT", headers=headers)
    urllib.request.urlopen(request).close()
    names = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ENDPOINT")
    return dict(zip(names, (account, key, f"{address}/{account}"), strict=True))


@pytest.fixture(params=["az", "gs"])
def other_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "gs":
        with object_storage.google() as environment:
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            yield f"gs://{object_storage.BUCKET}/x/"
        return
    command = shutil.which("azurite-blob")
    if command is None:
        pytest.skip("needs azurite (npm)")
    port, key = object_storage.free_port(), base64.b64encode(b"of azurite, for everybody").decode()
    monkeypatch.setenv("AZURITE_ACCOUNTS", f"devstoreaccount1:{key}")
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--silent", f"--blobPort={port}"]
    with object_storage.served([command, *options], port):
        for name, value in azurite(port).items():
            monkeypatch.setenv(name, value)
        yield f"az://{object_storage.BUCKET}/x/"


def test_azure_and_google_stores_are_written_read_and_compacted(other_url: str, serial_suite: Suite) -> None:
    serial_suite.write()
    assert serial_suite.run(f"--autotune-dump={other_url}").ret == 0
    assert serial_suite.run(*both(other_url)).ret == 0
    assert serial_suite.tunings == []
    add(other_url, entry(1))

    assert stores.compact(other_url) == (2, 2)

    assert (len(objects(other_url)), len(held(other_url))) == (2, 5)


def test_two_simultaneous_compactions_restore_no_removed_entry(other_url: str, monkeypatch) -> None:
    """Another compaction has removed an object first. The library then stops in the middle of the objects."""
    for m in range(30):
        add(other_url, entry(m))
    update_store(stores.open_store(other_url), lambda now: Cache((entry(0),)), removing=True)
    library_delete = obstore.delete
    batches: list[list[str]] = []

    def delete(store: Any, names: list[str]) -> None:
        if not batches:
            library_delete(store, names[:1])
        batches.append(names)
        library_delete(store, names)

    monkeypatch.setattr(obstore, "delete", delete)
    stores.compact(other_url)

    assert len(batches[0]) > 20
    assert held(other_url) == {entry(0)}
    assert len(objects(other_url)) == 1
