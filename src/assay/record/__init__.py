"""The record: papers, claims, studies and their verdicts."""

from assay.record.types import (
    Answer,
    Claim,
    Estimate,
    Evidence,
    NotMeasured,
    Paper,
    Result,
    Study,
    Verdict,
    at_least,
    at_most,
    between,
    exactly,
)

__all__ = [
    "Answer",
    "Claim",
    "Estimate",
    "Evidence",
    "NotMeasured",
    "Paper",
    "Result",
    "Study",
    "Verdict",
    "at_least",
    "at_most",
    "between",
    "exactly",
]
