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

    @property
    def missing(self) -> list[str]:
        """The modules of this extra that cannot be imported here; nothing is imported to find out."""
        return [module for module in self.modules if not _importable(module)]


EXTRAS = (
    Extra("torch", ("torch", "sklearn", "safetensors"), "studies that train or run a model"),
    Extra("ray", ("ray",), "studies on a cluster: assay run KEY --on ray"),
    Extra(
        "gateway",
        ("uvloop", "zmq", "prometheus_client", "tokenizers", "opentelemetry"),
        "the live gateway and the mock engine",
    ),
    Extra("protocols", ("z3", "dd", "cryptography"), "signatures and the proofs of `assay verify`"),
    Extra(
        "observe",
        ("google.protobuf", "opentelemetry.proto", "statsmodels", "statsforecast", "ruptures", "yaml"),
        "OTLP in protobuf, workload cards, and the peers that forecasts are compared with",
    ),
    Extra(
        "data",
        (
            "obstore",
            "fsspec",
            "s3fs",
            "blake3",
            "xxhash",
            "cryptography",
            "pymetis",
            "nats",
            "redis",
            "confluent_kafka",
        ),
        "object stores, digests of what they keep, and brokers",
    ),
    Extra("solvers", ("highspy", "ortools", "cvxpy", "optuna"), "planners that solve integer programmes"),
    Extra("web", ("starlette", "uvicorn"), "the workbench in the browser: assay web"),
    Extra("codecs", ("pysz", "zfpy"), "SZ3 and ZFP beside compressing collectives"),
    Extra("mpi", ("mpi4py",), "jobs over MPI that survive the death of ranks (ULFM)"),
    Extra("gpu", ("cupy", "pynvml"), "GPU kernels and GPU power"),
)


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def install_command(extra: str) -> str:
    """The command that adds an extra to the running installation, a checkout or not."""
    from importlib import metadata  # imported here: `assay list` must not wait for it
    from urllib.parse import unquote, urlparse

    pip = f"{sys.executable} -m pip install"
    try:
        origin = metadata.distribution("assay").read_text("direct_url.json")
        url = urlparse(json.loads(origin or "{}").get("url", ""))
    except (metadata.PackageNotFoundError, ValueError):
        return f"{pip} 'assay[{extra}]'"
    if url.scheme != "file":
        return f"{pip} 'assay[{extra}]'"
    checkout = Path(unquote(url.path))
    return f"{pip} -e '{checkout}[{extra}]' -c {checkout / 'constraints.txt'}"


def missing_module(key: str, error: ModuleNotFoundError) -> str:
    """One line for a paper that needs what is not installed."""
    name = (error.name or str(error)).split(".")[0]
    extra = next((e.name for e in EXTRAS if name in e.modules), None)
    cure = install_command(extra) if extra else f"{sys.executable} -m pip install {name}"
    return f"{key} needs '{name}', which is not installed; run: {cure}"
