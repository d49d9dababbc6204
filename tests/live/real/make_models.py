"""Two tiny random models that real engines can serve: `python make_models.py llama DIR` or `... gguf FILE`.

It runs in the engines' own environment (transformers, gguf), and imports nothing of this project. The weights are
noise: what the models say means nothing, but the engines compute, cache, batch and stream it as they do any other.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

WIDTH, HEADS, LAYERS, HIDDEN, CONTEXT = 128, 2, 2, 256, 4096  # vLLM has no kernel for heads of 16 on a CPU
SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
# Tools are written and called as Hermes does it, which both engines know.
TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n<tools>\\n' }}{% for tool in tools %}{{ (tool | tojson) + '\\n' }}{% endfor %}\
{{ '</tools><|im_end|>\\n' }}{% endif -%}
{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + (m['content'] or '') }}\
{%- for call in m['tool_calls'] or [] %}\
{{ '\\n<tool_call>\\n{"name": "' + call['function']['name'] + '", "arguments": ' }}\
{%- set given = call['function']['arguments'] %}{{ given if given is string else given | tojson }}\
{{ '}\\n</tool_call>' }}{% endfor %}\
{{ '<|im_end|>\\n' }}{% endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""


def byte_letters() -> list[str]:
    """The letter that byte-level tokenizers write for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    letters = {byte: chr(byte) for byte in kept} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def llama(folder: Path) -> None:
    """A Llama as Hugging Face lays it out, with a tokenizer of bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *byte_letters()])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>",
        chat_template=TEMPLATE, model_max_length=CONTEXT,
    )  # fmt: skip
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, max_position_embeddings=CONTEXT, bos_token_id=1,
        eos_token_id=2, pad_token_id=2, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def gguf(path: Path) -> None:
    """The same shape as llama.cpp reads it."""
    import numpy as np
    from gguf import GGUFWriter, TokenType

    random = np.random.default_rng(0)
    tokens = [*SPECIAL, *byte_letters()]
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * 256)
    letters = tokens[len(SPECIAL) :]
    writer.add_token_merges([f"{letters[32]} {letters[32]}"])  # at least one is wanted
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

    def noise(name: str, *shape: int) -> None:
        writer.add_tensor(name, random.normal(0.0, 0.02, shape).astype(np.float32))

    noise("token_embd.weight", len(tokens), WIDTH)
    noise("output.weight", len(tokens), WIDTH)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for i in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            noise(f"blk.{i}.{name}.weight", WIDTH, WIDTH)
        noise(f"blk.{i}.ffn_gate.weight", HIDDEN, WIDTH)
        noise(f"blk.{i}.ffn_up.weight", HIDDEN, WIDTH)
        noise(f"blk.{i}.ffn_down.weight", WIDTH, HIDDEN)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    print(json.dumps({"made": sys.argv[2]}))
    {"llama": llama, "gguf": gguf}[sys.argv[1]](Path(sys.argv[2]))
