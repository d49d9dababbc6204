"""Who is paid for holding chunks, who audits whom, and what a cheat loses: signed claims in a double-entry ledger.

A client pays a period's fee to its router, which splits it. A node is chosen with a weight of its stake, its record and
its free space. Routers ask nodes about chunks at random times; three failures within an hour take the node's stake,
and a part of that goes to whoever proved it, who had to put up a deposit. A stake is given back a tenth a day, so that
a node cannot leave with it before it is found out. No chain: the ledger is one process's, and every claim is signed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from assay.data.safecloud.grants import Signed, public_key
from assay.sim.streams import stream

SPLIT = {"node": 0.60, "router": 0.20, "auditor": 0.15, "treasury": 0.05}  # of a client's fee
DEPOSIT, LEAST_STAKE = 100, 1000  # of a claimant; coins
FAILURES, WITHIN = 3, 3600.0  # that cost a node its stake, in seconds
UNLOCK = 0.10  # of the stake, a day
REPLICAS = 2
DAY = 86_400.0
MICRO = 10**6  # of a coin: amounts are whole numbers, so that nothing is lost in rounding


class Claim(Signed, frozen=True):
    """A signed order to move coins; its number is used once."""

    payer: bytes
    payee: str
    amount: int
    number: int


def claim(secret: bytes, payee: str, amount: int, number: int) -> Claim:
    """An order, signed by who pays."""
    return Claim(public_key(secret), payee, amount, number).signed_by(secret)


@dataclass
class Accounts:
    """A double-entry ledger: every coin that one account gets, another has given; the sum is always nothing.

    >>> books = Accounts()
    >>> books.move("mint", "client", 5); books.move("client", "node", 3)
    >>> books.of["client"], books.of["node"], sum(books.of.values())
    (2, 3, 0)
    """

    of: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    used: set[tuple[bytes, int]] = field(default_factory=set)

    def move(self, payer: str, payee: str, amount: int) -> None:
        """From one account to another; only the mint may owe."""
        if amount < 0 or (payer != "mint" and self.of[payer] < amount):
            raise ValueError(f"{payer} has {self.of[payer]}, and cannot pay {amount}")
        self.of[payer] -= amount
        self.of[payee] += amount

    def settle(self, one: Claim) -> bool:
        """Carry out a claim whose payer signed it, once; False where it is forged, was used, or is not covered."""
        payer = one.payer.hex()
        fresh = (one.payer, one.number) not in self.used
        covered = 0 <= one.amount <= self.of[payer]
        if not fresh or not covered or not one.is_from(one.payer):
            return False
        self.used.add((one.payer, one.number))
        self.move(payer, one.payee, one.amount)
        return True


def split(fee: int, shares: Mapping[str, float] = SPLIT) -> dict[str, int]:
    """A fee in whole parts; what rounding leaves goes to the last.

    >>> split(99)
    {'node': 59, 'router': 19, 'auditor': 14, 'treasury': 7}
    """
    parts = {name: int(fee * share) for name, share in shares.items()}
    parts[list(parts)[-1]] += fee - sum(parts.values())
    return parts


@dataclass
class Member:
    """A node in the market: what it has at stake, how it did, how much room it has, and whether it cheats."""

    name: str
    caught: float  # the chance that one challenge shows that it cheats; 0: it is honest, or the audit is blind
    stake: int = LEAST_STAKE * MICRO
    free: float = 1.0
    passed: int = 1
    asked: int = 1
    failures: deque[float] = field(default_factory=deque)
    slashed: float | None = None  # when

    @property
    def weight(self) -> float:
        """How likely it is to be given a chunk."""
        return self.stake * (self.passed / self.asked) * self.free if self.slashed is None else 0.0

    def challenged(self, now: float, failed: bool) -> bool:
        """Note an audit; True where it was the failure that costs the stake."""
        self.asked += 1
        self.passed += not failed
        if failed:
            self.failures.append(now)
        while self.failures and self.failures[0] < now - WITHIN:
            self.failures.popleft()
        return len(self.failures) >= FAILURES


def place(members: Sequence[Member], rng: np.random.Generator, copies: int = REPLICAS) -> list[Member]:
    """Nodes for a chunk, each at most once, by weight."""
    weights = np.array([member.weight for member in members])
    able = int((weights > 0).sum())
    chosen = rng.choice(len(members), min(copies, able), replace=False, p=weights / weights.sum()) if able else ()
    return [members[int(at)] for at in chosen]


def unlocked(stake: int, left: float, now: float) -> int:
    """What a node that left may take out by now."""
    return min(stake, int(stake * UNLOCK * max(0.0, now - left) / DAY))


def market(
    caught: Mapping[str, float], days: float, audits_per_hour: float, fee: float, seed: int
) -> tuple[Accounts, list[Member]]:
    """Let nodes earn and be audited for so many days; `caught` gives each one's chance to fail a challenge.

    The clock jumps from audit to audit (a Poisson process for each node) and from hour to hour, when fees are paid.
    """
    rng, books = stream(seed, "safecloud", "market"), Accounts()
    members = [Member(name, chance) for name, chance in caught.items()]
    client, bills = rng.bytes(32), 0
    books.move("mint", public_key(client).hex(), int(fee * MICRO) * REPLICAS * int(days * 24))
    books.move("mint", "auditor", DEPOSIT * MICRO)
    for member in members:
        books.move("mint", member.name, member.stake)
        books.move(member.name, f"stake of {member.name}", member.stake)
    gaps = rng.exponential(3600.0 / audits_per_hour, (len(members), int(days * 24 * audits_per_hour * 2) + 50))
    events = [(float(at), 0, i) for i, row in enumerate(np.cumsum(gaps, axis=1)) for at in row if at < days * DAY]
    events += [(3600.0 * hour, 1, 0) for hour in range(1, int(days * 24) + 1)]
    for now, kind, who in sorted(events):
        if kind:
            for member in place(members, rng):
                bills += 1
                _paid(books, member, claim(client, "router", int(fee * MICRO), bills))
        elif members[who].slashed is None and members[who].challenged(now, bool(rng.random() < members[who].caught)):
            _slashed(books, members[who], now)
    return books, members


def _paid(books: Accounts, member: Member, bill: Claim) -> None:
    """The client's fee to the router, which keeps its own share of it."""
    if books.settle(bill):
        for role, amount in split(bill.amount).items():
            books.move("router", member.name if role == "node" else role, amount)


def _slashed(books: Accounts, member: Member, now: float) -> None:
    """The claimant puts up its deposit, proves what two signatures show, and gets it back with half of the stake."""
    books.move("auditor", "deposits", DEPOSIT * MICRO)
    books.move("deposits", "auditor", DEPOSIT * MICRO)
    reward = member.stake // 2
    books.move(f"stake of {member.name}", "auditor", reward)
    books.move(f"stake of {member.name}", "treasury", member.stake - reward)
    member.stake, member.slashed = 0, now
