"""Request traces that are published: those of the record's traces that hold requests to language models."""

from __future__ import annotations

from assay.record import traces

PUBLIC = tuple(trace for trace in traces.published() if trace.format)


def named(name: str) -> traces.Trace | None:
    """The published trace of this name.

    >>> named("azure-2023-conv").file
    'AzureLLMInferenceTrace_conv.csv'
    """
    return next((trace for trace in PUBLIC if trace.name == name), None)
