"""The record: papers, claims, studies and their verdicts."""

from assay.record.types import (
    Answer,
    Claim,
    Estimate,
    Evidence,
    Kind,
    NotMeasured,
    Paper,
    Result,
    Stated,
    Study,
    Verdict,
)

__all__ = [
    "Answer",
    "Claim",
    "Estimate",
    "Evidence",
    "Kind",
    "NotMeasured",
    "Paper",
    "Result",
    "Stated",
    "Study",
    "Verdict",
]
