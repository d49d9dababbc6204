"""What a page may ask for, as types: a body that does not fit them is refused with one line that says where."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from assay.record import seeds
from assay.record.errors import BadInput

Key = Annotated[str, Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
On = Annotated[str, Meta(pattern=r"^(local|ray|ray://[A-Za-z0-9.-]+:[0-9]{1,5})$", max_length=200)]
Seeds = Annotated[str, Meta(pattern=r"^[0-9, ]*$", max_length=2000)]
Value = Annotated[str, Meta(max_length=300)]


class Run(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A study to be run."""

    key: Key
    size: Literal["quick", "full"] = "quick"
    seeds: Seeds = ""
    first_seed: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    on: On = "local"
    fresh: bool = False

    @property
    def chosen(self) -> tuple[int, ...]:
        """The seeds, as `assay run` understands them."""
        said = self.seeds.strip()
        return seeds.chosen(seeds.read(said) if said else None, self.first_seed, self.size)


class Comparison(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Components to be put side by side: options by name, each with the values that were given."""

    name: Key
    options: Annotated[
        dict[Annotated[str, Meta(max_length=40)], Annotated[list[Value], Meta(max_length=16)]], Meta(max_length=40)
    ] = {}
    code: Annotated[str, Meta(max_length=20_000)] = ""
    whole: bool = False  # also the pictures that take longer


class Place(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A gateway or a watched job that the owner wants looked at."""

    kind: Literal["gateway", "watch"]
    url: Annotated[str, Meta(max_length=200)]


def read(body: bytes, kind: Any) -> Any:
    """A body as one of these; BadInput names the field that is wrong."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"the body does not fit: {error}") from error
