"""What the names in a profiler's trace mean: which event is a kernel, a collective, a copy, a step."""

from __future__ import annotations

import re

_DEVICE = {
    "kernel", "concurrent_kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset", "mtia_ccp_events",
}  # fmt: skip
_LIBRARY = re.compile(r"^(nccl|rccl|hccl|mccl).*Kernel|^hcom_|oneccl")
_COPY = re.compile(r"^(Memcpy|Memset|dma|Copy(Device|Host)To)|^(MEMCPY|MEMSET)_")
_HELD_UP = re.compile(r"(event|notify)_?\s?(wait|record)$", re.IGNORECASE)  # a queue that waits for another one
_CPU_COMM = re.compile(r"^(gloo|mpi|ucc):")
_POINT_TO_POINT = re.compile(r"SendRecv|:(send|recv)", re.IGNORECASE)
_PROCESSES = {
    "Ascend Hardware": "device", "Communication": "collectives", "HCCL": "collectives", "Overlap Analysis": "derived",
    "AI Core Freq": "derived",
}  # fmt: skip
_SIZES = {
    "double": 8, "long": 8, "int64": 8, "float64": 8, "complexfloat": 8, "float": 4, "int": 4, "float32": 4,
    "int32": 4, "half": 2, "bfloat16": 2, "float16": 2, "short": 2, "int16": 2, "byte": 1, "char": 1, "bool": 1,
    "int8": 1, "uint8": 1, "complexdouble": 16, "long int": 8, "short int": 2, "signed char": 1, "unsigned char": 1,
    "complex<float>": 8, "complex<double>": 16,
}  # fmt: skip


def is_device(cat: str) -> bool:
    """Whether events of this category run on a GPU stream.

    >>> is_device("kernel"), is_device("cuda_runtime"), is_device("Memcpy")
    (True, False, True)
    """
    return cat.lower() in _DEVICE


def category(cat: str, name: str) -> str:
    """The category of the frame for a profiler's (category, name).

    >>> category("kernel", "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'comm'
    >>> category("gpu_memset", "Memset (Device)"), category("user_annotation", "ProfilerStep#12")
    ('memcpy', 'step')
    >>> category("cpu_op", "aten::mm"), category("cuda_runtime", "cudaLaunchKernel")
    ('cpu_op', 'other')
    >>> category("mtia_ccp_events", "pe_exe"), category("mtia_ccp_events", "event_wait")
    ('kernel', 'other')
    >>> category("user_annotation", "gloo:all_reduce"), category("gpu_user_annotation", "gloo:all_reduce")
    ('comm', 'annotation')
    """
    cat = cat.lower()
    if cat in _DEVICE:
        if _LIBRARY.search(name):
            return "comm"
        if _HELD_UP.match(name):
            return "other"
        return "memcpy" if _COPY.match(name) or "mem" in cat else "kernel"
    if cat in ("gpu_user_annotation", "python_function", "cuda_sync"):  # a host span's shadow on the device
        return "annotation"
    if _CPU_COMM.match(name):
        return "comm"
    if name.startswith("ProfilerStep"):
        return "step"
    if name.startswith("enumerate(DataLoader)"):
        return "io"
    return {"cpu_op": "cpu_op", "operator": "cpu_op", "user_annotation": "annotation"}.get(cat, "other")


def process(name: str) -> str:
    """What the rows of a process are, where its name tells: `device`, `collectives`, `derived`; else ''.

    Ascend's profiler writes no categories, but a process for the hardware, one for the collectives of HCCL, and one
    with what it worked out from them.

    >>> process("Ascend Hardware"), process("Communication"), process("Overlap Analysis"), process("python3")
    ('device', 'collectives', 'derived', '')
    """
    return _PROCESSES.get(name, "")


def point_to_point(name: str) -> bool:
    """Whether a communication kernel joins two ranks only: its number means nothing to the others.

    >>> point_to_point("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"), point_to_point("nccl:recv 0<-1")
    (True, True)
    """
    return _POINT_TO_POINT.search(name) is not None


def gathers(name: str) -> bool:
    """Whether every rank gives one part of what all receive.

    >>> gathers("gloo:all_gather"), gathers("gloo:all_reduce")
    (True, False)
    """
    return re.search("all_?gather", name, re.IGNORECASE) is not None


def element_size(dtype: str) -> int:
    """Bytes of an element of torch's type, in torch's words or in C++'s; 0 for a word that is no type.

    >>> element_size("BFloat16"), element_size("c10::Float8_e4m3fn"), element_size("long int"), element_size("ring")
    (2, 1, 8, 0)
    """
    word = dtype.lower().removeprefix("torch.").removeprefix("c10::")
    return 1 if word.startswith("float8") else _SIZES.get(word, 0)
