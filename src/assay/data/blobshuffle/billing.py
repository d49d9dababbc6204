"""What a shuffle costs: requests that were made and bytes that crossed zones, counted as they happen, times prices.

A replicated broker keeps every message in each of its zones. A message crosses once more where its producer is not in
its leader's zone, and again where its reader is not; readers that may ask the replica of their own zone save the last.

>>> from assay.sim.ledger import Ledger
>>> ledger = Ledger()
>>> _ = ledger.add("put", requests=64), ledger.add("get", requests=192)
>>> round(per_tib(ledger, payload=1 << 30), 2)  # a GiB in 64 blobs, each read by three zones
0.41
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.data.blobshuffle.brokers import Broker, Message
from assay.data.blobshuffle.shuffle import Placement
from assay.sim.ledger import GB, LIST_PRICES, Ledger, PriceBook

TIB = 1 << 40
MONTH = 730 * 3600.0  # seconds


class Billed:
    """A broker whose bytes are counted by the zones they pass. Its own requests are not a store's, and cost nothing."""

    def __init__(
        self, inner: Broker, ledger: Ledger, placement: Placement, zones: dict[str, str], *,
        follower_fetch: bool = False, replicas: int = 3,
    ) -> None:  # fmt: skip
        self.inner, self.ledger, self.placement = inner, ledger, placement
        self.zones = zones  # of the producers
        self.follower_fetch, self.replicas = follower_fetch, min(replicas, len(placement.zones))
        self.nbytes = 0

    async def close(self) -> None:
        """Passed on."""
        await self.inner.close()

    async def begin(self, producer: str) -> int:
        """Passed on."""
        return await self.inner.begin(producer)

    async def append(self, producer: str, messages: Sequence[tuple[int, bytes]]) -> None:
        """To the leader, and from there to the replicas; an aborted transaction's bytes went there, too."""
        for partition, body in messages:
            leader = self.placement.leader(partition)
            self._moved("produce", self.zones[producer], leader, len(body))
            others = [zone for zone in self.placement.zones if zone != leader]
            for zone in others[: self.replicas - 1]:
                self._moved("replicate", leader, zone, len(body))
            self.nbytes += len(body)
        await self.inner.append(producer, messages)

    async def commit(self, producer: str, offset: int) -> None:
        """Passed on."""
        await self.inner.commit(producer, offset)

    async def read(self, partition: int, after: int = -1, *, wait: bool = False) -> list[Message]:
        """From the leader, or from the reader's own zone where that is allowed."""
        found = await self.inner.read(partition, after, wait=wait)
        if not self.follower_fetch:
            moved = sum(len(message.body) for message in found)
            self._moved("consume", self.placement.leader(partition), self.placement.zone(partition), moved)
        return found

    def _moved(self, who: str, start: str, end: str, moved: int) -> None:
        if start != end and moved:
            self.ledger.add("transfer", who, f"{start}>{end}", moved)


def per_tib(
    ledger: Ledger, payload: int, prices: PriceBook = LIST_PRICES, *, kept: float = 0.0, stored: int = 0
) -> float:
    """Dollars for shuffling a TiB, from what was counted for `payload` bytes; `stored` bytes are kept so many seconds.

    What a broker's disks cost is left out, which flatters the designs that send everything through it.
    """
    months = stored / GB * kept / MONTH
    return ledger.usd(prices, stored_gb_months=months) * TIB / payload if payload else 0.0


def crossings(ledger: Ledger, payload: int) -> float:
    """How often a byte crossed a zone."""
    return sum(line.nbytes for (_, _, zone), line in ledger.lines.items() if zone) / payload if payload else 0.0
