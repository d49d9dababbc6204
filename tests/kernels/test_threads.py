"""Every public function of the room, from eight threads at once, and from a process forked after use."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from assay import kernels
from assay.kernels.fractalsort.sorting import SMALL

THREADS = 8
NOT_COMPUTING = {"read_cloud"}  # reads a file


def _random(seed):
    return np.random.default_rng(seed)


def gemm(seed, tmp_path):
    a, b = _random(seed).random((2, 520 + 8 * seed, 520 + 8 * seed))
    return np.allclose(kernels.gemm(a, b, ("winograd", "2x3x3", "strassen")[seed % 3]), a @ b, 1e-9), True


def gemm_weights(seed, tmp_path):
    a, b = _random(seed).random((2, 520, 520)).astype(np.float32)
    made = kernels.gemm_weights(b, 520, "winograd")
    return np.allclose(kernels.gemm(a, made), a @ b, 1e-3), True


def decide_gemm(seed, tmp_path):
    return kernels.decide_gemm((64, 64, 64)).scheme, None


def sort(seed, tmp_path):
    keys = _random(seed).integers(-(2**31), 2**31, SMALL + 1000 * seed).astype(("i4", "f4", "i8")[seed % 3])
    return kernels.sort(keys).tolist(), np.sort(keys).tolist()


def sort_file(seed, tmp_path):
    keys = _random(seed).integers(0, 2**32, 30_000, dtype=np.uint32)
    source, target = tmp_path / f"{seed}.npy", tmp_path / f"{seed}-sorted.npy"
    np.save(source, keys)
    kernels.sort_file(source, target, memory=1 << 17)
    return np.load(target).tolist(), np.sort(keys).tolist()


def _matrix(seed):
    return scipy.sparse.random_array((900, 700), density=0.02, rng=_random(seed), format="csr")


def spmv(seed, tmp_path):
    a, x = _matrix(seed), _random(seed).random(700)
    return kernels.spmv(a, where="cpu") @ x, pytest.approx(a @ x, rel=1e-12)


def pagerank(seed, tmp_path):
    links = _matrix(seed)[:700]
    found, _ = kernels.pagerank(links)
    right, _ = kernels.pagerank(links, product=lambda scaled: scaled.__matmul__)
    return found, pytest.approx(right, abs=1e-12)


def goldbach_up_to(seed, tmp_path):
    limit = 300_000 + 1000 * seed
    return kernels.goldbach_up_to(limit).checked, limit // 2 - 1


def mla_decode(seed, tmp_path):
    query, latent = _random(seed).standard_normal((1, 2, 576)), _random(seed + 50).standard_normal((1, 70, 576))
    score = query[0] @ latent[0].T / 24
    weight = np.exp(score - score.max(1, keepdims=True))
    right = weight @ latent[0, :, :512] / weight.sum(1, keepdims=True)
    return kernels.mla_decode(query, latent)[0], pytest.approx(right, abs=1e-4)


def allocate(seed, tmp_path):
    recall = [[0.9, 0.2, 0.1, 0.1], [0.9, 0.9, 0.9, 0.9]]
    return kernels.allocate(recall, (8, 16, 32, 64), 16).tolist(), [16, 64]


def _cache(seed):
    keys, values = _random(seed).standard_normal((2, 1, 2, 300, 16))
    return keys, values, _random(seed).standard_normal((1, 4, 16))


def sparse_decode(seed, tmp_path):  # a budget for every block: then it is plain attention
    keys, values, query = _cache(seed)
    found = kernels.sparse_decode(kernels.summarise_kv(keys, values, [8, 64]), query, 1 << 20)
    score = np.einsum("chgw,chtw->chgt", query.reshape(1, 2, 2, 16), keys) / 4
    weight = np.exp(score)
    right = np.einsum("chgt,chtw->chgw", weight / weight.sum(-1, keepdims=True), values).reshape(1, 4, 16)
    return found, pytest.approx(right, abs=1e-4)


def summarise_kv(seed, tmp_path):
    keys, values, _ = _cache(seed)
    made = kernels.summarise_kv(keys, values, [8, 64], bits=32)
    corners = made.summaries[0, 0]
    cut = keys[0, 0, made.where.sink : made.where.sink + 8].astype(np.float32)
    return corners, pytest.approx(np.stack([cut.min(0), cut.max(0)]))


def _number(seed, bits):
    return int.from_bytes(_random(seed).bytes(bits // 8), "little") | 1


def divide(seed, tmp_path):
    u, v = _number(seed, 40_000), _number(seed + 50, 20_000)
    return kernels.divide([u, -u], [v, v], device="cpu"), ([u // v, -u // v], [u % v, -u % v])


def divide_limbs(seed, tmp_path):
    u, v = _random(seed).integers(1, 2**32, (2, 3, 40), dtype=np.uint32)
    found = kernels.divide_limbs(u, v[:, :20].copy(), "cpu")

    def whole(row):
        return int.from_bytes(row.tobytes(), "little")

    return [whole(q) for q in found.q], [whole(a) // whole(b[:20]) for a, b in zip(u, v, strict=True)]


def gcd(seed, tmp_path):
    common = _number(seed, 512) | 1
    return kernels.gcd([common * 6], [common * 35]), [common]


def mulmod(seed, tmp_path):
    a, b, m = (_number(seed + 50 * i, 20_000) for i in range(3))
    return kernels.mulmod([a], [b], m), [a * b % m]


def radius(seed, tmp_path):
    points = _random(seed).integers(0, 50, (300, 3)).astype(np.float32)
    chosen = [0]
    far = np.full(len(points), np.inf)
    for _ in range(39):
        far = np.minimum(far, ((points - points[chosen[-1]]).astype(float) ** 2).sum(1))
        far[chosen] = -1.0
        chosen.append(int(np.argmax(far)))
    return kernels.radius(points, 40).tolist(), chosen


CALLS = {name: call for name, call in globals().items() if name in dir(kernels) and callable(call)}


def test_every_public_function_is_called_here():
    public = {name for name in dir(kernels) if not name.startswith("_")} - {"annotations"}
    assert public - NOT_COMPUTING == set(CALLS)


def ask(name, seed, folder):
    found, right = CALLS[name](seed, folder)
    assert found == right, name


def eight(name, folder):
    """Eight different questions at the same moment."""
    together = threading.Barrier(THREADS)

    def answer(seed):
        together.wait()
        ask(name, seed, folder)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(answer, range(THREADS)))


@pytest.mark.parametrize("name", sorted(CALLS))
def test_eight_threads_get_the_answers_that_one_gets(name, tmp_path):
    eight(name, tmp_path)


FORKING = """
import os, sys, warnings
from pathlib import Path
from tests.kernels.test_threads import CALLS, ask
names, folder = sys.argv[2:], Path(sys.argv[1])
if "threads" in names:
    from tests.kernels.test_threads import eight
    names.remove("threads")
    for name in names:
        eight(name, folder)
for name in names:
    ask(name, 0, folder)
children = []
for seed in (1, 2):
    if not (child := os.fork()):
        try:
            for name in names:
                ask(name, seed, folder)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    children.append(child)
print([os.waitpid(child, 0)[1] for child in children])
"""
COMPILED = ("gemm", "sort", "spmv", "divide_limbs", "goldbach_up_to", "mla_decode")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
@pytest.mark.parametrize(("layer", "how"), [("default", []), ("workqueue", ["threads"])])
def test_a_process_forked_after_use_gets_its_answers_too(layer, how, tmp_path):
    """GNU OpenMP's threads are not in the child: it was killed. Numba's own would abort at a second caller."""
    run = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path), *how, *COMPILED],
        env=os.environ | {"NUMBA_THREADING_LAYER": layer}, cwd=Path(__file__).parents[2], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stdout.split("\n")[-2:]) == (0, ["[0, 0]", ""]), run.stderr
