"""The serving engine beside NVIDIA Dynamo's offline replay and beside Vidur, interleaved in one run.

.venv/bin/python benchmarks/serving_speed.py [--rounds 3] [--vidur 500] [--million]

The Mooncake conversation trace, and 4,000 requests with prompts of 15,000 tokens, on 16 instances with prefix caches:
by round robin, by Dynamo's own rule on both sides, and by the best rule of each. Peers live in environments of their
own under .cache/peers, which are made on first use. Every program is a process; the seconds are those of the whole
call, the file's reading included, and start-up is told apart. Programs take turns, and a ratio is the median over
turns of theirs to ours. --million generates a million requests for 64 instances and reports time and memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from assay.record import traces
from assay.sim.random import stream

HERE = Path(__file__).parent
PEERS = HERE.parent / ".cache" / "peers"


def environment(name: str) -> Path | None:
    """The interpreter of a peer's own environment; None, with the reason printed, where it cannot be made."""
    python = PEERS / name / "bin" / "python"
    if not (PEERS / name / "ready").exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", PEERS / name], check=True)
            listed = HERE / "envs" / f"{name}.txt"
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", listed], check=True)
        except subprocess.CalledProcessError as error:
            print(f"{name}: no environment ({error}); left out")
            return None
        (PEERS / name / "ready").touch()
    return python


def call(python: Path | str, script: str, *arguments: Any) -> dict[str, Any] | None:
    """The JSON line that a peer's script prints."""
    command = [str(python), str(HERE / "peers" / script), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        print(f"{script}: {ended.stderr.strip().splitlines()[-1] if ended.stderr.strip() else ended.returncode}")
        return None
    line: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return line


def long_prompts(path: Path) -> Path:
    """4,000 requests in the Mooncake format: prompts of 15,000 tokens, three quarters of them one of 200 beginnings."""
    random, now = stream(15, "long-prompts"), 0.0
    with path.open("w") as out:
        for r in range(4000):
            now += random.exponential(1 / 20)
            beginning, own = 1000 * (1 + int(random.integers(200))), 1_000_000 + 8 * r
            ids = [*range(beginning, beginning + 22), *range(own, own + 8)]
            row = {"timestamp": int(1e3 * now), "input_length": 15_000, "output_length": int(random.integers(50, 400))}
            out.write(json.dumps(row | {"hash_ids": ids}) + "\n")
    return path


def replay(title: str, trace: Path, rounds: int) -> None:
    """Three ways to route, ours and Dynamo's by turns."""
    dynamo = environment("dynamo")
    pairs = (
        ("round robin", "round-robin", "round_robin"),
        ("Dynamo's rule", "dynamo", "kv_router"),
        ("LMetric and Dynamo's rule", "lmetric", "kv_router"),
    )
    for way, ours, theirs in pairs:
        call(sys.executable, "assay_replay.py", trace, ours)  # compiles, where this version never ran
        runs: dict[str, list[dict[str, Any]]] = {"assay": [], "dynamo": []}
        for _ in range(rounds):
            for name, line in (
                ("assay", call(sys.executable, "assay_replay.py", trace, ours)),
                ("dynamo", call(dynamo, "dynamo_replay.py", trace, theirs) if dynamo else None),
            ):
                if line:
                    runs[name].append(line)
        print(f"\n{title}, {way}, 16 instances, medians of {rounds}")
        for name, lines in runs.items():
            if lines:
                middle = {
                    key: statistics.median(line[key] for line in lines)
                    for key in ("seconds", "cpu", "startup", "reuse")
                }
                print(f"  {name:<8}" + "  ".join(f"{key} {value:.4f}" for key, value in middle.items()))
        if all(runs.values()):
            for key in ("seconds", "cpu"):
                turns = zip(runs["dynamo"], runs["assay"], strict=False)
                ratio = statistics.median(peer[key] / own[key] for peer, own in turns)
                print(f"  Dynamo takes {ratio:.1f} times our {key}")


def beside_vidur(count: int) -> None:
    """Requests a second of simulation, on the trace in Vidur's own format."""
    python, profile = environment("vidur"), traces.find("vidur_profiles") / "a100_Llama-2-7b-hf_mlp.csv"
    trace = traces.find("vidur_splitwise_conv.csv")
    ours = call(sys.executable, "assay_replay.py", trace, "round-robin")
    line = call(python, "vidur_run.py", trace, "round_robin", "--mlp", profile, "--requests", count) if python else None
    if ours and line:
        rates = [found["requests"] / found["seconds"] for found in (ours, line)]
        print(f"\nAzure conversations: assay {rates[0]:,.0f} requests/s, Vidur {rates[1]:,.0f}")
        print(f"  {rates[0] / rates[1]:,.0f} times")


def million() -> None:
    """A million generated requests on 64 instances."""
    from assay.serving import LMetric, chat, parse, simulate, warm

    warm()
    start = time.perf_counter()
    trace = chat(1_000_000, rate=200.0, seed=0)
    made = time.perf_counter()
    outcome = simulate(trace, parse("64xh200:qwen3-32b"), LMetric(), record=False)
    done = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\n1,000,000 requests, 64 instances: {made - start:.1f} s to make, {done - made:.1f} s to serve")
    print(f"  {peak:.2f} GiB at most")
    print(f"  cached {outcome.cached_ratio:.3f}, mean time to first token {outcome.ttft.mean():.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vidur", type=int, default=500, help="requests of the Azure trace for Vidur; 0: leave it out")
    parser.add_argument("--million", action="store_true")
    asked = parser.parse_args()
    replay("conversations", traces.find("mooncake_conversation_trace.jsonl"), asked.rounds)
    with tempfile.TemporaryDirectory() as folder:
        replay("prompts of 15,000 tokens", long_prompts(Path(folder) / "long.jsonl"), asked.rounds)
    if asked.vidur:
        beside_vidur(asked.vidur)
    if asked.million:
        million()


if __name__ == "__main__":
    main()
