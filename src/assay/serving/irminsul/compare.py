"""`assay compare irminsul`: what each kind of cache would find in the user's own prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.record.wording import listed
from assay.serving import irminsul
from assay.serving.engine.standings import Measure, add_leads, in_stretches, why
from assay.workloads import agents
from assay.workloads.agents import Session

COMPUTED = Measure("computed_mean", "tokens computed a prompt", "sessions")
UNITS = {"computed_mean": "tokens/prompt", "joules_mean": "J/prompt"}
SESSIONS = 8  # from so many on they are resampled whole; of fewer, stretches of prompts
CLOSE = (
    "What was reused beyond a prefix gives answers close to an uncached run's, not equal ones, and only multi-head "
    "latent attention makes it cheap; an exact prefix is exact with any model."
)


@click.command(epilog="Example:  assay compare irminsul --transcripts examples/transcripts.jsonl --capacity 200000")
@click.option(
    "--transcripts", "path", required=True, type=click.Path(path_type=Path),
    help="OpenAI chats: JSON lines with 'messages', transcripts or requests as they were sent.",
)  # fmt: skip
@click.option(
    "--tokens", "unit", type=click.Choice(["words", "bytes"]), default="words", show_default=True,
    help="What stands for a token: no tokenizer is needed to see what repeats.",
)  # fmt: skip
@click.option("--capacity", type=click.IntRange(1), help="Tokens the cache has room for.  [all]")
@click.option("--methods", default=",".join(irminsul.FOUND_BY), show_default=True, help="Kinds of cache.")
def command(path: Path, unit: str, capacity: int | None, methods: str) -> dict[str, Any]:
    """Caches on your own prompts: what an exact prefix finds, and what repeats at other places."""
    many = agents.read_chats(path, unit)
    room = np.inf if capacity is None else float(capacity)
    answer = compare(many, listed(methods), capacity=room, progress=click.get_current_context().obj)
    answer["transcripts"]["tokens"] = unit
    return answer


def compare(
    many: Sequence[Session], methods: Sequence[str] = irminsul.FOUND_BY, *, capacity: float = np.inf,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """The caches on the same prompts in the order in which an endpoint gets them: a table, and who computes least.

    >>> answer = compare(agents.sessions("header", seed=0, count=8, turns=3), ["exact-prefix", "irminsul"])
    >>> answer["why"].startswith("irminsul wins")
    True
    """
    for name in methods:
        if name not in irminsul.FOUND_BY:
            raise BadInput(f"no cache '{name}'; there are {', '.join(irminsul.FOUND_BY)}")
    if not methods:
        raise BadInput(f"no cache given; choose among {', '.join(irminsul.FOUND_BY)}")
    table, samples = [], {}
    for done, name in enumerate(methods):
        progress(done, len(methods))
        found = irminsul.recovery(many, name, capacity)
        tokens = int(found["prompt_tokens"].sum())
        samples[name] = found["fresh"].to_numpy()
        table.append({
            "cache": name, "computed_mean": float(found["fresh"].mean()),  # type: ignore[arg-type]
            "computed_share": int(found["fresh"].sum()) / tokens, "prefix_share": int(found["prefix"].sum()) / tokens,
            "reused_share": int(found["reused"].sum()) / tokens, "joules_mean": float(found["joules"].mean()),  # type: ignore[arg-type]
        })  # fmt: skip
    sizes = [len(session) for session in many]
    turn = np.concatenate([np.arange(size) for size in sizes])
    session = np.repeat(np.arange(len(sizes)), sizes)
    received = session[np.lexsort((session, turn))]  # as `agents.in_turn` deals them
    enough = len(sizes) >= SESSIONS
    measure = COMPUTED if enough else COMPUTED._replace(over="stretches of prompts")
    add_leads(table, samples, measure, received if enough else in_stretches(sum(sizes)))
    said = f"{why(table, measure, 'irminsul')} {CLOSE}"
    return {
        "transcripts": {
            "sessions": len(sizes), "prompts": sum(sizes), "prompt_mean": tokens / sum(sizes),
            "room": "for all" if np.isinf(capacity) else f"for {capacity:,.0f} tokens",
        },
        "table": table, "units": UNITS, "why": said,
        "trust": f"Tokens are counted, so those are what your prompts hold. Joules: {irminsul.trust}",
    }  # fmt: skip
