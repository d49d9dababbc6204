"""Request traces that are published: what each is called here, its file, and where it is to be had."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from assay.record import traces
from assay.record.types import NotMeasured


class Public(NamedTuple):
    """A published trace; `file` is the name under which it is published."""

    name: str
    file: str
    format: str
    what: str
    published: str
    licence: str

    @property
    def path(self) -> Path | None:
        """Where it lies on this machine; None where it does not."""
        try:
            return traces.find(self.file)
        except NotMeasured:
            return None


_MOONCAKE = "github.com/kvcache-ai/Mooncake, FAST25-release/traces"
_BAILIAN = "github.com/alibaba-edu/qwen-bailian-usagetraces-anon"
_AZURE = "github.com/Azure/AzurePublicDataset"
_BURST = "github.com/HPMLL/BurstGPT, data"
_VIDUR = "github.com/microsoft/vidur, data/processed_traces"

PUBLIC = (
    Public("mooncake-conversation", "mooncake_conversation_trace.jsonl", "mooncake",
           "12,031 chat requests in an hour, blocks of 512", f"{_MOONCAKE}/conversation_trace.jsonl", "Apache 2.0"),
    Public("mooncake-toolagent", "mooncake_toolagent_trace.jsonl", "mooncake",
           "23,608 tool and agent requests in an hour", f"{_MOONCAKE}/toolagent_trace.jsonl", "Apache 2.0"),
    Public("mooncake-synthetic", "mooncake_synthetic_trace.jsonl", "mooncake",
           "3,993 requests in 17 minutes, 64 % of blocks reused", f"{_MOONCAKE}/synthetic_trace.jsonl", "Apache 2.0"),
    Public("bailian-chat", "qwen_traceA_blksz_16.jsonl", "bailian",
           "two hours of consumer chat, content blocks of 16, sessions", _BAILIAN, "Apache 2.0"),
    Public("bailian-api", "qwen_traceB_blksz_16.jsonl", "bailian",
           "two hours of business API calls", _BAILIAN, "Apache 2.0"),
    Public("bailian-coder", "qwen_coder_blksz_16.jsonl", "bailian",
           "coding requests", _BAILIAN, "Apache 2.0"),
    Public("bailian-thinking", "qwen_thinking_blksz_16.jsonl", "bailian",
           "requests to a reasoning model", _BAILIAN, "Apache 2.0"),
    Public("azure-2023-conv", "AzureLLMInferenceTrace_conv.csv", "azure",
           "19,366 chat requests, an hour of November 2023", f"{_AZURE}, data", "CC-BY 4.0"),
    Public("azure-2023-code", "AzureLLMInferenceTrace_code.csv", "azure",
           "code completion, an hour of November 2023", f"{_AZURE}, data", "CC-BY 4.0"),
    Public("azure-2024-conv", "AzureLLMInferenceTrace_conv_1week.csv", "azure",
           "chat, a week of May 2024", f"{_AZURE}, AzureLLMInferenceDataset2024.md", "CC-BY 4.0"),
    Public("azure-2024-code", "AzureLLMInferenceTrace_code_1week.csv", "azure",
           "code completion, a week of May 2024", f"{_AZURE}, AzureLLMInferenceDataset2024.md", "CC-BY 4.0"),
    Public("burstgpt-1", "BurstGPT_1.csv", "burstgpt",
           "1.4 million ChatGPT and GPT-4 requests of a campus, with failures", _BURST, "see there"),
    Public("burstgpt-2", "BurstGPT_2.csv", "burstgpt",
           "3.9 million more of them", _BURST, "see there"),
    Public("vidur-splitwise-conv", "vidur_splitwise_conv.csv", "vidur",
           "azure-2023-conv as the Vidur simulator reads it", f"{_VIDUR}/splitwise_conv.csv", "MIT"),
)  # fmt: skip


def named(name: str) -> Public | None:
    """The published trace of this name.

    >>> named("azure-2023-conv").file
    'AzureLLMInferenceTrace_conv.csv'
    """
    return next((trace for trace in PUBLIC if trace.name == name), None)
