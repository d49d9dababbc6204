"""The record: papers, claims, studies and their verdicts."""
