"""How long judges take: 100,000 register operations, the weaker models, thousands of concurrent bank operations.

.venv/bin/python benchmarks/judges.py
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

from assay.protocols.judges import causal, linearizable, list_append, sequential, sessions
from assay.protocols.judges.judgement import Judgement
from assay.record.timing import interleave, median
from assay.workloads import planted_histories as planted
from assay.workloads.histories import Operation


def line(name: str, judge: Callable[[], Judgement], rounds: int = 3) -> None:
    verdicts: list[str] = []
    cpu = time.process_time()
    seconds = median(interleave({name: lambda: verdicts.append(judge().verdict)}, rounds=rounds)[name])
    cpu = (time.process_time() - cpu) / len(verdicts)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name:<58}{verdicts[-1]:>10}{seconds:>9.2f} s{cpu:>9.2f} s{memory:>8.0f} MB", flush=True)


def registers(history: list[Operation]) -> None:
    count = f"{len(history):,} register operations"
    line(f"{count}, linearizable", lambda: linearizable.judge(history))
    line(f"{count}, sequential", lambda: sequential.judge(history))
    for model in causal.MODELS:
        line(f"{count}, {model}", lambda model=model: causal.judge(history, model))  # type: ignore[misc]
    for model in sessions.MODELS:
        line(f"{count}, {model}", lambda model=model: sessions.judge(history, model))  # type: ignore[misc]


def main() -> None:
    print(f"{'':<58}{'verdict':>10}{'wall':>11}{'CPU':>11}{'peak':>11}")
    warm = planted.registers(1_000)
    for model in causal.MODELS:  # compiles
        causal.judge(warm, model)
    for model in sessions.MODELS:
        sessions.judge(warm, model)
    history = planted.registers(100_000, processes=10, keys=10)
    registers(history)
    stale = planted.stale(history, seed=1)
    if stale is not None:
        line("the same with one stale read: explained, with prefix", lambda: linearizable.judge(stale[0]), rounds=1)
    spoiled = planted.plant(history, "lost-cause")[0]
    for name in ("causal-memory", "causal"):
        line(f"the same with a lost cause, {name}", lambda name=name: causal.judge(spoiled, name), rounds=1)  # type: ignore[misc]
    transactions = planted.transactions(20_000, keys=400)
    line("20,000 transactions on lists, strict-serializable",
         lambda: list_append.judge(transactions, "strict-serializable"), rounds=1)  # fmt: skip
    for processes in (10, 25, 50, 100):
        bank = planted.bank(5_000, processes=processes)
        line(f"5,000 bank operations of {processes} processes, linearizable",
             lambda bank=bank: linearizable.judge(bank), rounds=1)  # type: ignore[misc] # fmt: skip


if __name__ == "__main__":
    main()
