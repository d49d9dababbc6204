"""Who may ask: keys of tenants, compared without telling how nearly right a wrong one was.

Only digests are kept. A key shown is digested with a salt that is new in every process, so where it would be found
among the others says nothing about the others.

>>> keys = Keys([Key(hashlib.sha256(b"secret").digest(), tenant="acme", tier="premium")])
>>> keys.find({b"authorization": b"Bearer secret"}).tenant, keys.find({b"x-api-key": b"secret"}).tenant
('acme', 'acme')
>>> keys.find({b"authorization": b"Bearer wrong"}), keys.find({})
(None, None)
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from assay.live.quotas import UNLIMITED, Allowance
from assay.live.settings import KeySettings, from_environment
from assay.record.errors import BadInput


@dataclass(frozen=True)
class Key:
    """A tenant's key, as its SHA-256."""

    digest: bytes
    tenant: str
    tier: str = ""
    admin: bool = False
    allowance: Allowance = UNLIMITED


class Keys:
    """The keys a gateway knows; without any, everybody may ask."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._salt = os.urandom(32)
        self._known = {self._mark(key.digest): key for key in keys}
        self.admins = any(key.admin for key in self._known.values())

    @property
    def known(self) -> Iterable[Key]:
        """All of them."""
        return self._known.values()

    def __bool__(self) -> bool:
        return bool(self._known)

    def find(self, fields: Mapping[bytes, bytes]) -> Key | None:
        """Whose key is shown in a head: as a bearer's, or as clients of /v1/messages show theirs."""
        authorization = fields.get(b"authorization")
        if authorization is not None:
            scheme, _, shown = authorization.partition(b" ")
            if scheme.lower() != b"bearer":
                return None
        else:
            shown = fields.get(b"x-api-key", b"")
        digest = hashlib.sha256(shown.strip()).digest()
        key = self._known.get(self._mark(digest))
        return key if key is not None and hmac.compare_digest(key.digest, digest) else None

    def _mark(self, digest: bytes) -> bytes:
        return hmac.digest(self._salt, digest, "sha256")


def read(settings: Iterable[KeySettings], priced: bool = True) -> Keys:
    """The keys that the settings name; BadInput where one has dollars to spend and nothing has a price."""
    found = []
    for key in settings:
        if key.env:
            digest = hashlib.sha256(from_environment(key.env, f"key of '{key.tenant}'")).digest()
        else:
            digest = bytes.fromhex(key.sha256)
        allowance = Allowance(
            key.requests_per_minute, key.tokens_per_minute, key.parallel, key.tokens_per_day, key.dollars_per_day
        )
        if key.dollars_per_day and not priced:
            raise BadInput(f"key of '{key.tenant}': dollars_per_day needs a [[price]] of all models (model = \"*\")")
        found.append(Key(digest, key.tenant, key.tier, key.admin, allowance))
    return Keys(found)
