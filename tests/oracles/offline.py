"""An offline batch, one iteration at a time in plain Python: the reference for `assay.serving.sidp.offline`."""

from __future__ import annotations

from dataclasses import dataclass

from assay.serving.sidp.offline import Pace


@dataclass
class Sequence:
    """One request under way."""

    prompt_left: int
    output_left: int
    reserved: int
    context: int = 0


def makespan(pace: Pace, prompt: list[int], output: list[int], max_seqs: int, max_tokens: int, block: int) -> float:
    """Seconds until the last request is done; weights at hand or streamed, activations never sent."""
    waiting = [Sequence(p, o, -(-(p + o) // block) * block) for p, o in zip(prompt, output, strict=True)]
    running: list[Sequence] = []
    seconds = 0.0
    while waiting or running:
        while (
            waiting
            and len(running) < max_seqs
            and sum(s.reserved for s in running) + waiting[0].reserved <= pace.kv_tokens
        ):
            running.append(waiting.pop(0))
        decoding = [s for s in running if not s.prompt_left]
        budget = max_tokens - len(decoding)
        tokens, pairs = len(decoding), 0.0
        context = sum(s.context for s in decoding)
        chunks = []
        for s in running:
            if s.prompt_left and budget:
                chunk = min(s.prompt_left, budget)
                chunks.append((s, chunk))
                budget -= chunk
                tokens += chunk
                pairs += chunk * (s.context + chunk / 2)
        attention = pace.seq * len(decoding) + pace.kv * context + pace.pair * pairs
        seconds += pace.ends + max(
            float(pace.layers[tokens]) + attention, pace.fetch, pace.memory + pace.kv_memory * context
        )
        for s in decoding:
            s.output_left -= 1
            s.context += 1
        for s, chunk in chunks:
            s.prompt_left -= chunk
            s.context += chunk
            if not s.prompt_left:
                s.output_left -= 1
                s.context += 1
        running = [s for s in running if s.prompt_left or s.output_left]
    return seconds
