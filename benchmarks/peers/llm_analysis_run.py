"""llm-analysis on the layouts of standard input, a line `tp pp dp mbs` each: its seconds, then its step times.

Run by benchmarks/training_engine.py in an environment of its own: python llm_analysis_run.py < layouts
A GPT of 6.7B parameters on A100s of 80 GB, 512 sequences of 4,096 tokens a step, everything recomputed: what
the other side is asked.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

logging.disable(logging.CRITICAL)
BATCH, SEQ = 512, 4096


def main() -> None:
    from llm_analysis import config
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis

    shape: Any = config.ModelConfig(
        name="gpt", num_layers=32, n_head=32, hidden_dim=4096, vocab_size=51_200, max_seq_len=SEQ,
        num_key_value_heads=32, ffn_embed_dim=16_384,
    )  # fmt: skip
    gpu, dtype = config.get_gpu_config_by_name("a100-sxm-80gb"), config.get_dtype_config_by_name("w16a16e16")
    layouts = [tuple(map(int, line.split())) for line in sys.stdin if line.strip()]
    steps = []
    begin = time.process_time()
    for tp, pp, dp, mbs in layouts:
        cut = config.ParallelismConfig(tp_size=tp, pp_size=pp, dp_size=dp, sp_size=tp)
        analysis = LLMAnalysis(shape, gpu, dtype, cut, flops_efficiency=0.6)
        found = analysis.training(
            batch_size_per_gpu=mbs, gradient_accumulation_steps=BATCH // (dp * mbs), global_batch_size=BATCH,
            seq_len=SEQ, activation_recomputation=ActivationRecomputation.FULL, ds_zero=DSZeRO.STAGE_1,
        )  # fmt: skip
        steps.append(found["latency_per_iter"])
    print(time.process_time() - begin, *steps)


if __name__ == "__main__":
    main()
