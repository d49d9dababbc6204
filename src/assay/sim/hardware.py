"""What a device can do: the records of `hardware.toml`, each value with the place it comes from.

    >>> h100 = device("H100")
    >>> h100.mem_bw / 1e12, h100.peak_flops["bf16"] / 1e12
    (3.35, 989.0)
    >>> h100.source["mem_bw"]
    'NVIDIA H100 data sheet'

A device that is not there is a `dataclasses.replace` of one that is.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from assay.record.errors import BadInput
from assay.sim.collectives import Link

RECORDS = Path(__file__).with_name("hardware.toml")
PEAKS = ("bf16", "fp8", "fp4", "fp32", "int8")  # the dtypes a record may give a peak for
PLAIN = ("mem_bytes", "mem_bw", "l2_bytes", "launch", "idle_watts", "tdp_watts", "usd_per_hour")


@dataclass(frozen=True)
class Device:
    """One accelerator (or one CPU socket) and how it is connected.

    `nvlink` stands for any direct link between the devices of a node; where there is none, it is the PCIe link.
    Bandwidths are per direction and device.
    """

    name: str
    title: str
    peak_flops: Mapping[str, float] = field(hash=False)  # dense FLOP/s by dtype
    mem_bytes: float
    mem_bw: float
    l2_bytes: float
    nvlink: Link
    pcie: Link
    nic: Link
    launch: float  # seconds from the end of a kernel to the start of the next
    idle_watts: float
    tdp_watts: float
    usd_per_hour: float
    gpus_per_node: int
    source: Mapping[str, str] = field(hash=False, repr=False)
    silicon: str = ""  # the chip, where several products are cut from it

    def flops(self, dtype: str) -> float:
        """FLOP/s at which matrices of this dtype are multiplied.

        What the device has no units for is unpacked and computed in bf16, as weight-only quantisation does.

        >>> device("a100").flops("fp8") == device("a100").flops("bf16")
        True
        """
        return self.peak_flops.get("bf16" if dtype == "fp16" else dtype, self.peak_flops["bf16"])


def device(name: str) -> Device:
    """The record of this name, in any case.

    >>> device("4090").name
    'rtx4090'

    Raises:
        BadInput: no such device; the message names the nearest.
    """
    known = _devices()
    found = known.get(name.strip().lower().replace("_", "-"))
    if found is None:
        raise BadInput(f"unknown device {name!r}{nearest(name, (record.name for record in devices()))}")
    return found


def devices() -> list[Device]:
    """All records, in the file's order.

    >>> [d.name for d in devices()][:3]
    ['a100', 'a100-40g', 'a800']
    """
    return list(dict.fromkeys(_devices().values()))


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the likeliest ones, or all where none is close.

    >>> nearest("h10", ["h100", "h20", "mi300x"])
    ': did you mean h100, h20?'
    """
    names = list(known)
    close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    return f": did you mean {', '.join(close)}?" if close else f"; there are {', '.join(names)}"


@cache
def _devices() -> dict[str, Device]:
    records = tomllib.loads(RECORDS.read_text(encoding="utf-8"))
    found = {name: _device(name, record) for name, record in records.items()}
    return found | {alias: found[name] for name, record in records.items() for alias in record["aliases"]}


def _device(name: str, record: dict[str, Any]) -> Device:
    given = {key: pair for key, pair in record.items() if isinstance(pair, list) and key != "aliases"}
    value = {key: float(pair[0]) for key, pair in given.items()}
    pcie = Link(value["pcie_latency"], value["pcie_bw"])
    return Device(
        name=name,
        title=record["title"],
        peak_flops=MappingProxyType({dtype: value[dtype] for dtype in PEAKS if dtype in value}),
        nvlink=Link(value["nvlink_latency"], value["nvlink_bw"]) if "nvlink_bw" in value else pcie,
        pcie=pcie,
        nic=Link(value["nic_latency"], value["nic_bw"]),
        gpus_per_node=int(value["gpus_per_node"]),
        source=MappingProxyType({key: str(pair[1]) for key, pair in given.items()}),
        silicon=record.get("silicon", ""),
        **{key: value[key] for key in PLAIN},
    )
