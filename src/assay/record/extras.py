"""The optional parts of assay: what each extra holds, what it enables, and the one command that gets it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra of `pyproject.toml`, by the modules it brings."""

    name: str
    modules: tuple[str, ...]
    enables: str
    compiled: tuple[str, ...] = ()  # what of it has no wheel for Pythons newer than `WHEELS_UNTIL`

    @property
    def missing(self) -> list[str]:
        """The modules of this extra that cannot be imported here; nothing is imported to find out."""
        return [module for module in self.modules if not _importable(module)]


WHEELS_UNTIL = (3, 13)  # all extras have wheels up to this Python, as of 2026-11

EXTRAS = (
    Extra("torch", ("torch", "sklearn", "safetensors"), "studies that train or run a model"),
    Extra("ray", ("ray",), "studies on a cluster: assay run KEY --on ray"),
    Extra(
        "gateway",
        ("uvloop", "zmq", "prometheus_client", "tokenizers", "opentelemetry"),
        "the live gateway and the mock engine",
    ),
    Extra("protocols", ("z3", "dd", "cryptography"), "signatures and the proofs of `assay verify`", ("dd",)),
    Extra(
        "observe",
        (
            *("google.protobuf", "opentelemetry.proto", "prometheus_client", "yaml"),
            *("statsmodels", "statsforecast", "ruptures"),
        ),
        "OTLP in protobuf, workload cards, and the peers that forecasts are compared with",
        ("ruptures",),
    ),
    Extra(
        "data",
        (
            *("obstore", "fsspec", "s3fs", "blake3", "xxhash", "cryptography", "pyarrow", "safetensors"),
            *("pymetis", "usearch", "nats", "redis", "confluent_kafka"),
        ),
        "object stores, digests of what they keep, and brokers",
    ),
    Extra("solvers", ("highspy", "ortools", "cvxpy", "optuna"), "planners that solve integer programmes"),
    Extra("web", ("starlette", "uvicorn"), "the workbench in the browser: assay web"),
    Extra("orbax", ("tensorstore",), "Orbax's own checkpoints: assay data ckpt"),
    Extra("mpi", ("mpi4py",), "jobs over MPI that survive the death of ranks (ULFM)"),
    Extra("gpu", ("cupy", "pynvml"), "GPU kernels and GPU power"),
)


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def install_command(extra: str) -> str:
    """The command that adds an extra to the running installation: a checkout that is edited, or what a wheel brought.

    Of an installed assay pip keeps the version that is here and adds what the extra needs.
    """
    from importlib import metadata  # imported here: `assay list` must not wait for it
    from urllib.parse import unquote, urlparse

    pip = f"{sys.executable} -m pip install"
    try:
        origin = json.loads(metadata.distribution("assay").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    checkout = Path(unquote(urlparse(origin.get("url", "")).path))
    if origin.get("dir_info", {}).get("editable") and (checkout / "constraints.txt").is_file():
        return f"{pip} -e '{checkout}[{extra}]' -c '{checkout / 'constraints.txt'}'"
    return f"{pip} 'assay[{extra}]'"


def missing_module(key: str, error: ModuleNotFoundError) -> str:
    """One line for a paper that needs what is not installed."""
    name = (error.name or str(error)).split(".")[0]
    extra = next((e.name for e in EXTRAS if name in e.modules), None)
    cure = install_command(extra) if extra else f"{sys.executable} -m pip install {name}"
    return f"{key} needs '{name}', which is not installed; run: {cure}"
