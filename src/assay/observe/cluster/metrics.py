"""The 751 metric names of a node of the model cluster, in eight families, and how each behaves when nothing is wrong.

Names are those of the usual exporters (DCGM, node_exporter, mountstats). Counters are given as their increase since the
last scrape. Where nobody knows how a metric behaves, its parameters are drawn once, from its name, and are the same in
every cluster: about a fifth of all metrics never change, some hardly ever count anything, and some have heavy tails,
as on real machines.

>>> len(METRICS), len({metric.family for metric in METRICS})
(751, 8)
>>> METRICS[0].name, METRICS[0].gpu, METRICS[0].family
('DCGM_FI_DEV_GPU_TEMP', 0, 'gpu')
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.sim.random import stream

GPUS = 8


@dataclass(frozen=True, slots=True)
class Metric:
    """A column of a node: idle level, what full load, a save and a warm day add to it, and how it wavers."""

    family: str
    name: str
    gpu: int  # -1: of the node itself
    level: float = 0.0
    load: float = 0.0
    save: float = 0.0
    warm: float = 0.0
    noise: float = 0.0  # from scrape to scrape
    drift: float = 0.0  # from hour to hour
    unlike: float = 0.0  # from machine to machine
    rate: float = 0.0  # of those that count: events a scrape
    heavy: bool = False


_GPU = """GPU_TEMP MEMORY_TEMP POWER_USAGE POWER_VIOLATION THERMAL_VIOLATION SM_CLOCK MEM_CLOCK VIDEO_CLOCK GPU_UTIL
 MEM_COPY_UTIL ENC_UTIL DEC_UTIL FB_FREE FB_USED FB_RESERVED TOTAL_ENERGY_CONSUMPTION FAN_SPEED PSTATE SLOWDOWN_TEMP
 SHUTDOWN_TEMP CLOCK_THROTTLE_REASONS SYNC_BOOST_VIOLATION BOARD_LIMIT_VIOLATION LOW_UTIL_VIOLATION
 RELIABILITY_VIOLATION POWER_MGMT_LIMIT ENFORCED_POWER_LIMIT GPU_MAX_OP_TEMP MEM_MAX_OP_TEMP AUTOBOOST""".split()
_PROF = """GR_ENGINE_ACTIVE SM_ACTIVE SM_OCCUPANCY PIPE_TENSOR_ACTIVE DRAM_ACTIVE PIPE_FP64_ACTIVE PIPE_FP32_ACTIVE
 PIPE_FP16_ACTIVE PCIE_TX_BYTES PCIE_RX_BYTES""".split()
_ECC = """ECC_SBE_VOL_TOTAL ECC_DBE_VOL_TOTAL ECC_SBE_AGG_TOTAL ECC_DBE_AGG_TOTAL CORRECTABLE_REMAPPED_ROWS
 UNCORRECTABLE_REMAPPED_ROWS ROW_REMAP_PENDING RETIRED_SBE""".split()
_NVLINK = """NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL NVLINK_CRC_DATA_ERROR_COUNT_TOTAL NVLINK_REPLAY_ERROR_COUNT_TOTAL
 NVLINK_RECOVERY_ERROR_COUNT_TOTAL NVLINK_BANDWIDTH_TOTAL NVLINK_TX_BYTES NVLINK_RX_BYTES""".split()
_PCIE = "PCIE_REPLAY_COUNTER PCIE_LINK_WIDTH PCIE_LINK_GEN PCIE_MAX_LINK_WIDTH".split()
_MEMORY = """MemFree MemAvailable Buffers Cached SwapCached Active Inactive Active_anon Inactive_anon Active_file
 Inactive_file Unevictable Mlocked Dirty Writeback AnonPages Mapped Shmem KReclaimable Slab SReclaimable SUnreclaim
 KernelStack PageTables CommitLimit Committed_AS VmallocUsed Percpu AnonHugePages HugePages_Free""".split()
_VMSTAT = "pgfault pgmajfault pgpgin pgpgout pswpin pswpout oom_kill numa_hit numa_miss compact_stall".split()
_DISK = """reads_completed writes_completed read_bytes written_bytes read_time write_time io_now io_time
 io_time_weighted discards flushes reads_merged""".split()
_FILES = "size_bytes free_bytes avail_bytes files files_free readonly".split()
_HOST = "context_switches interrupts forks procs_running procs_blocked".split()
_NIC = "transmitted_bytes received_bytes transmitted_packets xmit_wait symbol_error link_downed".split()
_METHODS = """Access Commit Create Fsinfo Fsstat Getattr Link Lookup Mkdir Null Open Pathconf Read Readdir Remove Rename
 Rmdir Setattr Symlink Write""".split()
_RPC = """queue_seconds rtt_seconds execute_seconds backlog slots_used retransmissions bad_xids read_bytes write_bytes
 age""".split()
_XPRT = "sends receives pending sending_queue max_slots bind connect idle req_u bklog_u".split()
_SCHEDULER = """session_running session_step_seconds session_tokens session_restarts data_wait_seconds rank_alive
 gpu_allocated containers_running agent_heartbeat_age_seconds scrape_duration_seconds scrape_samples_scraped up
 process_restarts""".split()

# What is known of a metric: (idle level, load, save, warm, noise, drift, unlike) or a rate of events.
_KNOWN: dict[str, tuple[float, ...]] = {
    "DCGM_FI_DEV_GPU_TEMP": (34, 26, -3, 2.5, 0.6, 0.5, 2.0),
    "DCGM_FI_DEV_MEMORY_TEMP": (36, 34, -3, 2.5, 0.8, 0.6, 2.5),
    "DCGM_FI_DEV_POWER_USAGE": (140, 760, -350, 4, 14, 5, 12),
    "DCGM_FI_DEV_SM_CLOCK": (1200, 640, -40, -3, 12, 4, 8),
    "DCGM_FI_DEV_GPU_UTIL": (0, 98, -50, 0, 1.2, 0.3, 0.2),
    "DCGM_FI_DEV_FAN_SPEED": (35, 20, 0, 3, 0.8, 0.5, 1.5),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0, 0.52, -0.3, 0, 0.012, 0.004, 0.004),
    "DCGM_FI_PROF_PCIE_TX_BYTES": (2e6, 4e9, 2e9, 0, 2e8, 5e7, 5e7),
    "DCGM_FI_PROF_PCIE_RX_BYTES": (2e6, 3e9, 1e8, 0, 2e8, 5e7, 5e7),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": (1e6, 3.1e11, -2e11, 0, 6e9, 2e9, 2e9),
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": (16, 0, 0, 0, 0, 0, 0),
    "node_procs_blocked": (0.2, 0.3, 4, 0, 0.3, 0.05, 0.05),
    "node_nfs_rpc_rtt_seconds": (2e-3, 1e-3, 0, 0, 3e-4, 1e-4, 1e-4),
    "node_nfs_rpc_execute_seconds": (2.5e-3, 1e-3, 0, 0, 3e-4, 1e-4, 1e-4),
    "node_nfs_rpc_slots_used": (1, 2, 0, 0, 0.4, 0.1, 0.1),
    "node_nfs_rpc_write_bytes": (1e6, 3e6, 0, 0, 3e5, 1e5, 1e5),
    "node_nfs_xprt_sending_queue": (0.5, 0.5, 30, 0, 0.2, 0.05, 0.05),
    "node_nfs_rpc_backlog": (0.5, 0.2, 40, 0, 0.3, 0.1, 0.1),
    "session_step_seconds": (0.0, 9.5, 0.0, 0, 0.05, 0.02, 0.01),
    "scrape_duration_seconds": (0.11, 0.03, 0.02, 0, 0.012, 0.003, 0.01),
}  # fmt: skip
_RATES = {
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 2e-4, "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": 2e-4, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 1e-7,
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 3e-3, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 5e-4,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 1e-3, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 1e-6,
    "DCGM_FI_DEV_THERMAL_VIOLATION": 1e-4, "DCGM_FI_DEV_POWER_VIOLATION": 0.02,
    "node_nfs_rpc_retransmissions": 2e-3,
}  # fmt: skip
_SETTLED = (
    "LIMIT",
    "MAX",
    "SLOWDOWN",
    "SHUTDOWN",
    "size_bytes",
    "files",
    "max_slots",
    "up",
    "GEN",
    "rank_alive",
    "bind",
)
_COUNTING = ("ERROR", "VIOLATION", "ECC", "REMAP", "RETIRED", "REPLAY", "symbol_error", "link_downed", "retrans",
             "bad_xids", "oom_kill", "restarts", "majfault", "pswp", "compact_stall")  # fmt: skip


def _metric(family: str, name: str, gpu: int = -1) -> Metric:
    bare = name.split("{")[0]
    if bare in _KNOWN:
        level, load, save, warm, noise, drift, unlike = _KNOWN[bare]
        return Metric(family, name, gpu, level, load, save, warm, noise, drift, unlike)
    if bare in _RATES or any(word in name for word in _COUNTING):
        return Metric(family, name, gpu, rate=_RATES.get(bare, 1e-5))
    draw = stream(504, "metric", family, name)
    level = float(10 ** draw.uniform(0, 6))
    if any(word in name for word in _SETTLED) or draw.random() < 0.15:
        return Metric(family, name, gpu, level=round(level))
    load, save = (float(draw.choice([0.0, 1.0, -0.3]) * draw.uniform(0.2, 2.0) * level) for _ in range(2))
    if family not in ("nfs", "host"):
        save *= 0.1
    noise = float(level * draw.uniform(0.01, 0.08))
    heavy = bool(draw.random() < 0.25)
    return Metric(family, name, gpu, level, load, save, 0.0, noise, noise * 0.4, noise * 1.5, heavy=heavy)


def _all() -> list[Metric]:
    each: list[Metric] = []
    for family, names in (
        ("gpu", [f"DCGM_FI_DEV_{n}" for n in _GPU] + [f"DCGM_FI_PROF_{n}" for n in _PROF]),
        ("ecc", [f"DCGM_FI_DEV_{n}" for n in _ECC]),
        ("nvlink", [f"DCGM_FI_DEV_{n}" for n in _NVLINK] + [f'nvlink_bytes{{link="{i}"}}' for i in range(11)]),
        ("pcie", [f"DCGM_FI_DEV_{n}" for n in _PCIE]),
    ):
        each += [_metric(family, name, gpu) for name in names for gpu in range(GPUS)]
    modes = "user system iowait irq softirq steal nice idle".split()
    host = [f'node_cpu_seconds{{mode="{m}"}}' for m in modes] + ["node_load1", "node_load5", "node_load15"]
    host += [f"node_memory_{n}_bytes" for n in _MEMORY] + [f"node_vmstat_{n}" for n in _VMSTAT]
    host += [f"node_disk_{n}" for n in _DISK] + [f"node_filesystem_{n}" for n in _FILES] + [f"node_{n}" for n in _HOST]
    host += [f'node_hwmon_temp_celsius{{sensor="{i}"}}' for i in range(8)]
    host += [f'ipmi_fan_speed_rpm{{fan="{i}"}}' for i in range(8)]
    nic = [f'node_infiniband_port_{n}{{device="mlx5_{i}"}}' for n in _NIC for i in range(8)]
    nfs = [f'node_nfs_requests{{method="{m}"}}' for m in _METHODS] + [f"node_nfs_rpc_{n}" for n in _RPC]
    nfs += [f"node_nfs_xprt_{n}" for n in _XPRT]
    for family, names in (("host", host), ("nic", nic), ("nfs", nfs), ("scheduler", _SCHEDULER)):
        each += [_metric(family, name) for name in names]
    return each


METRICS: tuple[Metric, ...] = tuple(_all())
COLUMN: dict[tuple[str, int], int] = {(metric.name, metric.gpu): i for i, metric in enumerate(METRICS)}
"""Where a metric of a GPU (or -1) stands."""
