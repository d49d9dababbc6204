"""The baselines that several papers are compared with."""
