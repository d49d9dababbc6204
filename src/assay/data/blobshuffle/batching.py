"""When a buffer is worth a request: it is large enough, or what waits in it is old enough, or somebody commits."""

from __future__ import annotations

from dataclasses import dataclass

from assay.record.errors import BadInput


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Flush at `size` bytes or `age` seconds, whichever comes first; `on_commit`: also whenever the caller commits.

    >>> policy = BatchPolicy(size=16 << 20, age=0.5)
    >>> policy.due(nbytes=1000, oldest=10.0, now=10.2), policy.due(nbytes=1000, oldest=10.0, now=10.5)
    (False, True)
    >>> policy.fills_in(rate=64e6)  # seconds until it goes at 64 MB/s: by size; at 1 MB/s: by age
    0.262144
    >>> policy.fills_in(rate=1e6)
    0.5
    """

    size: int
    age: float
    on_commit: bool = True

    def __post_init__(self) -> None:
        if self.size < 1 or self.age < 0:
            raise BadInput(f"a batch has at least one byte and no negative age, not {self.size} and {self.age}")

    def due(self, nbytes: int, oldest: float, now: float, *, committing: bool = False) -> bool:
        """Whether to flush now; an empty buffer never is."""
        if nbytes == 0:
            return False
        return nbytes >= self.size or now - oldest >= self.age or (committing and self.on_commit)

    def deadline(self, oldest: float) -> float:
        """When what waits since `oldest` must go."""
        return oldest + self.age

    def fills_in(self, rate: float) -> float:
        """Seconds from the first byte to the flush at a steady rate in bytes/s."""
        return min(self.age, self.size / rate) if rate > 0 else self.age
