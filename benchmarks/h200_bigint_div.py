"""Division of big integers on one GPU, checked and timed beside GMP on all cores: rows of `bigint-div` in h200.json.

    python3 benchmarks/h200_bigint_div.py                 # NVIDIA GPU with NumPy and CuPy; no assay; under 3 minutes
    python3 benchmarks/h200_bigint_div.py check times     # some parts: check, times, gmp, classical

Sources and layouts are read from the package's files. Writes h200_bigint_div.jsonl to $OUT, or here: a line a
measurement, as it comes. Times are CUDA events, interleaved over rounds, with the L2 cache overwritten before each.
GMP is gmpy2 where it can be imported (also from a folder .gmp beside benchmarks/, into which a wheel was unpacked), else
libgmp by ctypes, else Python's integers: each row says which. One process a core, started together.
"""

# mypy: ignore-errors
# ruff: noqa: D102, E501, PTH123, PTH207, RET503, SIM105

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np

import h200_common as common
from h200_common import STARTED, timed

common.packages("assay.kernels.bigint_div")

from assay.kernels.bigint_div import layout, pairs  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "src/assay/kernels/bigint_div"
LIMIT = float(os.environ.get("LIMIT", "172"))
tell = None
PAIRS, ROUNDS = 4096, 9
BITS = (1 << 15, 1 << 17, 1 << 16, 1 << 18)


Setting = layout.Setting
SETTINGS = {
    1 << 15: [Setting(64, 96, 3, 8), Setting(128, 64, 3, 6), Setting(128, 96, 3, 4)],
    1 << 16: [Setting(128, 96, 3, 4), Setting(256, 64, 3, 3), Setting(256, 96, 3, 2)],
    1 << 17: [Setting(256, 96, 3, 2), Setting(256, 96, 3, 3), Setting(512, 96, 3, 1)],
    1 << 18: [Setting(512, 96, 3, 1), Setting(1024, 96, 3, 1)],
}


def left():
    return LIMIT - (time.monotonic() - STARTED)


# ------------------------------------------------------------------------------------------------- the GPU


class Divider:
    """divide.cu for rows of nu and nv limbs with one setting."""

    def __init__(self, nu, nv, setting):
        self.nu, self.nv, self.at, self.setting = nu, nv, layout.room(nu, nv), setting
        options = ("--std=c++17", *(f"-D{key}={value}" for key, value in setting.defines(self.at).items()))
        self.module = cp.RawModule(code=(KERNELS / "divide.cu").read_text(), options=options)
        self.shared = setting.shared(self.at)
        self.kernels = {name: self.module.get_function(name) for name in ("divide", "multiply")}
        for kernel in self.kernels.values():
            kernel.max_dynamic_shared_size_bytes = self.shared
        sms = cp.cuda.runtime.getDeviceProperties(0)["multiProcessorCount"]
        self.grid = sms * max(setting.blocks, self.fit())
        self.roots, self.saved, self.work = layout.arguments(cp, self.at, self.grid)

    def fit(self):
        """Blocks that a multiprocessor holds, where CuPy can tell."""
        try:
            ask = cp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
            return int(ask(self.kernels["divide"].kernel.ptr, self.setting.threads, self.shared))
        except Exception:
            return 1

    def launch(self, name, count, *arguments):
        made = [np.int32(x) if isinstance(x, int) else x for x in arguments]
        self.kernels[name]((min(self.grid, count),), (self.setting.threads,), tuple(made), shared_mem=self.shared)

    def divide(self, u, v, q, r, fixes, counts):
        self.launch("divide", len(u), u, self.nu, v, self.nv, q, r, len(u), self.roots, self.saved, self.work,
                    self.at.words, self.at.most, fixes, counts)  # fmt: skip

    def multiply(self, a, b, out, counts):
        self.launch("multiply", len(a), a, a.shape[1], b, b.shape[1], out, len(a), self.roots, self.saved, self.work,
                    self.at.words, counts)  # fmt: skip

    def whole(self, u, v):
        """Quotients and remainders of rows on the host, the corrections and the counts."""
        u, v = cp.asarray(u), cp.asarray(v)
        q, r = cp.full(u.shape, 7, cp.uint32), cp.full(v.shape, 7, cp.uint32)
        fixes, counts = cp.zeros((len(u), 2), cp.int32), cp.zeros((len(u), 3), cp.uint64)
        self.divide(u, v, q, r, fixes, counts)
        return tuple(cp.asnumpy(part) for part in (q, r, fixes, counts))


def rows(seed, bits, count):
    """Dividends of so many bits and divisors of half as many, at random, as limbs."""
    random = np.random.default_rng([seed, bits])
    made = [random.integers(0, 1 << 32, (count, b // 32), np.uint32) for b in (bits, bits // 2)]
    for part in made:
        part[:, -1] |= np.uint32(1 << 31)
    return made


def right(u, v, q, r, which):
    """How many of the chosen rows have u = q v + r with r < v: that proves the division."""
    us, vs, qs, rs = (layout.numbers_of(part[which]) for part in (u, v, q, r))
    return sum(a == c * b + d and d < b for a, b, c, d in zip(us, vs, qs, rs, strict=True))


def check():
    """Random and adversarial pairs of every size on both kinds of multiplier."""
    for bits in sorted(BITS):
        if left() < 20:
            return
        random = np.random.default_rng(bits)
        count = 4_000_000 // bits * 2
        made = (
            pairs.adversarial(random, bits, count) + pairs.anyhow(random, bits, count) + pairs.halves(random, bits, 16)
        )
        u, v = layout.limbs_of([a for a, _ in made]), layout.limbs_of([b for _, b in made])
        divider = Divider(u.shape[1], v.shape[1], layout.usual(layout.room(u.shape[1], v.shape[1])))
        q, r, fixes, _ = divider.whole(u, v)
        found = list(zip(layout.numbers_of(q), layout.numbers_of(r), strict=True))
        good = sum(got == divmod(*pair) for got, pair in zip(found, made, strict=True))
        off = np.bincount(np.where(fixes[:, 0] < 0, fixes[:, 0], fixes[:, 1]) + 8, minlength=17)
        tell("bigint-div", method="check", bits=bits, pairs=len(made), right=good, seconds=0.0, setting=list(divider.setting),
             off={str(i - 8): int(n) for i, n in enumerate(off) if n})  # fmt: skip


def one_size(bits, settings, names=("division", "product"), count=PAIRS):
    """The fastest of some settings, then it and a full-length product in turn; then with copies from and to the host."""
    u, v = rows(1, bits, count)
    w = rows(2, bits, count)[1]
    gu, gv, gw = (cp.asarray(part) for part in (u, v, w))
    gq, gr, out = cp.empty_like(gu), cp.empty_like(gv), cp.empty((count, 2 * v.shape[1]), cp.uint32)
    fixes, counts, other = (
        cp.zeros((count, 2), cp.int32),
        cp.zeros((count, 3), cp.uint64),
        cp.zeros((count, 3), cp.uint64),
    )
    tried = {name: {} for name in names}  # the product has a setting of its own best
    for setting in settings:
        if tried[names[0]] and left() < 25:
            break
        try:
            began = time.monotonic()
            divider = Divider(u.shape[1], v.shape[1], setting)
            compiled = time.monotonic() - began
            both = timed({
                names[0]: lambda d=divider: d.divide(gu, gv, gq, gr, fixes, counts),
                names[1]: lambda d=divider: d.multiply(gv, gw, out, other),
            }, 3)  # fmt: skip
            tell("bigint-tune", bits=bits, pairs=count, seconds=both, setting=list(setting), grid=divider.grid,
                 compiled=compiled)  # fmt: skip
            for name, taken in both.items():
                tried[name][min(taken)] = divider
        except Exception as error:
            tell("bigint-tune", bits=bits, setting=list(setting), error=str(error)[:300])
    divider, multiplier = (tried[name][min(tried[name])] for name in names)
    counts.fill(0)
    divider.divide(gu, gv, gq, gr, fixes, counts)
    mean = [float(x) for x in cp.asnumpy(counts).mean(0)]
    q, r, off = cp.asnumpy(gq), cp.asnumpy(gr), cp.asnumpy(fixes)
    which = slice(None, None, max(1, bits // (1 << 15)))
    checked = len(u[which])
    good = right(u, v, q, r, which)
    ways = {
        names[0]: lambda: divider.divide(gu, gv, gq, gr, fixes, counts),
        names[1]: lambda: multiplier.multiply(gv, gw, out, other),
    }

    def with_copies():
        divider.divide(cp.asarray(u), cp.asarray(v), gq, gr, fixes, counts)
        cp.asnumpy(gq), cp.asnumpy(gr)

    if names[0] == "division":
        ways["division with copies"] = with_copies
    seconds = timed(ways, 5 if names[0] != "division" else ROUNDS)
    product = layout.numbers_of(cp.asnumpy(out[:64])) == [
        a * b for a, b in zip(layout.numbers_of(v[:64]), layout.numbers_of(w[:64]), strict=True)
    ]
    for name, taken in seconds.items():
        row = {"method": name, "bits": bits, "pairs": count, "seconds": taken}
        row["setting"] = list((multiplier if name == names[1] else divider).setting)
        if name == names[1]:
            row |= {"right": bool(product)}
        else:
            row |= {"right": good, "checked": checked, "counts": mean, "off": [int(off.min()), int(off.max())]}
        tell("bigint-div", **row)


def times():
    """Divisions and products by transforms, at the paper's sizes."""
    for bits in BITS:
        if left() < 15:
            tell("bigint-error", what=f"no time for {bits} bits")
            return
        one_size(bits, SETTINGS[bits])


def classical():
    """The same division by classical products alone."""
    for bits in (1 << 15, 1 << 16, 1 << 17):
        if left() < 15:
            return
        one_size(bits, [Setting(256, 1 << 14, 3, 2)], ("classical division", "classical product"), PAIRS)


# ---------------------------------------------------------------------------------- GMP, one process a core


def divider_here():
    """The best division of numbers that this machine's processor has, by name."""
    sys.path.insert(0, str(ROOT / ".gmp"))
    try:
        import gmpy2

        return (
            f"gmpy2 {gmpy2.version()}, GMP {gmpy2.mp_version()}",
            lambda made: [(gmpy2.mpz(a), gmpy2.mpz(b)) for a, b in made],
            gmpy2.t_divmod,
        )
    except ImportError:
        pass
    folders = ["/usr/lib*", "/usr/lib/*", "/usr/local/lib", f"{sys.prefix}/lib", str(ROOT / ".gmp" / "**")]
    names = [
        ctypes.util.find_library("gmp"),
        *(f for folder in folders for f in glob.glob(f"{folder}/libgmp*.so*", recursive=True)),
    ]
    for name in filter(None, names):
        try:
            library = ctypes.CDLL(name)
            return f"libgmp {ctypes.c_char_p.in_dll(library, '__gmp_version').value.decode()} by ctypes", *mpn(library)
        except (OSError, ValueError, AttributeError):
            continue
    return f"Python {sys.version.split()[0]} int", lambda made: made, divmod


def mpn(library):
    divide, pointer = library.__gmpn_tdiv_qr, ctypes.c_void_p
    divide.argtypes = [pointer, pointer, ctypes.c_long, pointer, ctypes.c_long, pointer, ctypes.c_long]

    def prepare(made):
        done = []
        for a, b in made:
            u, v = (np.frombuffer(x.to_bytes(-(-x.bit_length() // 64) * 8, "little"), np.uint64) for x in (a, b))
            q, r = np.empty(len(u) - len(v) + 1, np.uint64), np.empty(len(v), np.uint64)
            done.append(((q, r, u, v), (q.ctypes.data, r.ctypes.data, 0, u.ctypes.data, len(u), v.ctypes.data, len(v))))
        return [(kept, call) for kept, call in done]

    return prepare, lambda kept, call: divide(*call)


def worker(bits, count, seed, repeat, core):
    """A share of the pairs, again at every line that comes in; tells when it began and ended."""
    try:
        os.sched_setaffinity(0, {core})
    except OSError:
        pass
    name, prepare, divide = divider_here()
    u, v = rows(seed, bits, count)
    made = prepare(list(zip(layout.numbers_of(u), layout.numbers_of(v), strict=True)))
    print(name, flush=True)
    for _ in sys.stdin:
        begin = time.monotonic()
        for _ in range(repeat):
            for pair in made:
                divide(*pair)
        print(begin, time.monotonic(), flush=True)


def gmp():
    """Batches of pairs on all cores at once; each row says by what."""
    cores = sorted(os.sched_getaffinity(0))
    for bits, repeat in ((1 << 15, 12), (1 << 17, 2), (1 << 16, 5), (1 << 18, 1)):
        if left() < 10:
            return
        share = PAIRS // len(cores)
        command = [sys.executable, __file__, "--worker", str(bits), str(share)]
        team = [
            subprocess.Popen(
                [*command, str(10 + i), str(repeat), str(core)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for i, core in enumerate(cores)
        ]
        try:
            names = [one.stdout.readline().strip() for one in team]
            seconds = []
            for _ in range(5):
                for one in team:
                    one.stdin.write("go\n")
                    one.stdin.flush()
                marks = [tuple(map(float, one.stdout.readline().split())) for one in team]
                seconds.append((max(m[1] for m in marks) - min(m[0] for m in marks)) / repeat)
            tell(
                "bigint-div",
                method="gmp",
                bits=bits,
                pairs=share * len(cores),
                seconds=seconds,
                cores=len(cores),
                by=names[0],
                processor=processor(),
            )
        finally:
            for one in team:
                one.kill()
                one.wait()


def processor():
    try:
        return next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown"


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(*map(int, sys.argv[2:]))
    global cp, tell
    tell = common.Answers("h200_bigint_div")
    parts = {"check": check, "times": times, "gmp": gmp, "classical": classical}
    asked = sys.argv[1:] or ["times", "gmp", "check", "classical"]
    if set(asked) - {"gmp"}:
        import cupy as cp
    for name in asked:
        try:
            parts[name]()
        except Exception:
            tell("bigint-error", what=name, error=traceback.format_exc()[-1500:])


if __name__ == "__main__":
    main()
