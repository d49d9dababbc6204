"""Collectives over sockets with a probe in every rank, and what reads which rank hangs or drags."""
