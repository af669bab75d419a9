"""A check that all ranks of one distributed job load equal caches.

If ranks launch different kernels, a kernel with a collective operation can wait for ever. Each rank is a pytest
process. ``torchrun`` keeps a key-value store for the ranks that it starts. Rank 0 puts its caches or their digests into
this store, and the other ranks read them. Ranks that another launcher starts are not compared: until a test initializes
torch.distributed, the plugin cannot reach the other ranks.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache

#: How long a rank waits for rank 0, which may start later and has to read the caches first.
_TIMEOUT = timedelta(seconds=120)


class Ranks:
    """This rank, and the key-value store of the job.

    :param rank: the number of this rank, from 0.
    :param store: torch's store, which all ranks of the job share.
    """

    def __init__(self, rank: int, store: Any) -> None:
        self._rank = rank
        self._store = store

    @classmethod
    def of_this_job(cls) -> Ranks | None:
        """Return this rank of a job that torchrun started; None if the job has only this rank.

        torchrun describes the job in environment variables of each rank. The caller has checked that torchrun started
        this process.
        """
        environment = os.environ
        world_size = environment.get("WORLD_SIZE", "1")
        if world_size == "1":
            return None
        import torch.distributed

        distributed: Any = torch.distributed
        address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        is_server = False  # torchrun itself serves the store
        job_store = distributed.TCPStore(address, port, int(world_size), is_server, _TIMEOUT)
        # After a restart of the job, the store still has the values of the earlier attempt.
        attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        store_of_attempt = distributed.PrefixStore(f"pytest-autotune/{attempt}", job_store)
        return cls(int(environment["RANK"]), store_of_attempt)

    def _receive(self, name: str) -> bytes:
        """Return the data that rank 0 has put into the store under a name.

        :raises CacheError: if no data came within the time-out.
        """
        try:
            return bytes(self._store.get(name))
        except Exception as error:  # torch raises several classes for a time-out
            remedy = f"see the output of rank 0, which must load its caches within {_TIMEOUT.seconds} s of this rank"
            raise CacheError(f"rank {self._rank}", f"rank 0 did not send its caches: {error}", remedy) from None

    @property
    def is_rank_0(self) -> bool:
        """Whether this process is rank 0, which reads shared caches for all ranks."""
        return self._rank == 0

    def send_cache(self, place: str, cache: Cache) -> Cache:
        """Send a cache that rank 0 has read to the other ranks. Return the cache as the other ranks receive it.

        :param place: the path of the cache as a user types it.
        """
        data = encode(cache, Format.BINARY)
        self._store.set(place, data)
        return decode(data, Format.BINARY, place)

    def receive_cache(self, place: str) -> Cache:
        """Return the cache that rank 0 has sent under its path.

        :raises CacheError: if rank 0 sends nothing in time, for example because it cannot read the cache.
        """
        return decode(self._receive(place), Format.BINARY, place)

    def check_same(self, caches: Iterable[tuple[str, Cache]]) -> None:
        """Check that this rank has loaded the same caches as rank 0. Rank 0 only publishes the digests of its caches.

        :param caches: (path or URL, content) of each loaded cache, in the same order on all ranks.
        :raises CacheError: for the first cache that differs.
        """
        for number, (place, cache) in enumerate(caches):
            digest = hashlib.sha256(encode(cache, Format.BINARY)).hexdigest()[:12]
            digest_name = f"digest {number}"
            if self.is_rank_0:
                self._store.set(digest_name, digest.encode())
                continue
            rank_0_digest = self._receive(digest_name).decode()
            if digest != rank_0_digest:
                event = f"holds other choices on rank {self._rank} ({digest}) than on rank 0 ({rank_0_digest})"
                raise CacheError(place, event, "ranks that launch other kernels may hang: give all of them one cache")
