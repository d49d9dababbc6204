"""MLA decode on one Hopper GPU: the transposed form beside the padded one, checked and timed.

    python3 benchmarks/h200_etap_mla.py                 # torch, Triton and CuPy; no assay
    python3 benchmarks/h200_etap_mla.py contexts few    # some parts: machine, contexts, accuracy, heads, few, ragged
    QUICK=1 python3 benchmarks/h200_etap_mla.py contexts    # the likeliest settings alone: under a minute

Kernels and plans are read from the package's files. First every setting of every form is compiled and tried on a small
poisoned problem, in processes of their own, so that one that crashes or never ends takes nothing with it. What was
right there is tuned; each form then goes with its fastest settings, anew for every case. Writes h200_etap_mla.jsonl to
$OUT, or here: a line a measurement, as it comes. Times are CUDA events around a replayed graph (both kernels),
interleaved over rounds, with the L2 cache overwritten before each. Ends by itself within three minutes.
"""

# mypy: ignore-errors
# ruff: noqa: B023, D102, E731

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

STARTED = time.monotonic()
COMPILED, ENDS = 80.0, 165.0  # seconds after the start: what is not compiled by then is left out; no new case begins
os.environ.setdefault("TRITON_CACHE_DIR", f"/tmp/triton-etap-{os.getuid()}")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import h200_common as common  # noqa: E402
from h200_common import captured  # noqa: E402

common.packages("assay.kernels.etap_mla")

from assay.kernels.etap_mla import by_hand, gpu  # noqa: E402
from assay.kernels.etap_mla import plan as plans  # noqa: E402

OUT = Path(os.environ.get("OUT", "."))
QUICK = bool(os.environ.get("QUICK"))  # only settings that were fast before, and new ones
WORKERS, PAGE, WIDTH, CLOSE = 14, 64, 576, 2e-5
ROUNDS, FEW_ROUNDS, KEPT = 15, 4, 6
SCALE = WIDTH**-0.5
SETTINGS = gpu.SETTINGS | {by_hand.FORM: by_hand.SETTINGS}
tell = None


def passed():
    return time.monotonic() - STARTED


def timed(contenders, rounds=ROUNDS):
    """Seconds of each contender in each round, by torch's events."""
    return common.timed(contenders, rounds, common.TorchClock)


# --------------------------------------------------------------------------------------------- problems and references


class Cache:
    """A paged cache of random latents with shuffled pages; every problem takes its first tokens."""

    def __init__(self, batch, longest, seed, poison=None):
        random = torch.Generator("cuda").manual_seed(seed)
        each = -(-longest // PAGE)
        self.pages = torch.randn(batch * each, PAGE, WIDTH, device="cuda", dtype=torch.bfloat16, generator=random)
        self.table = torch.randperm(batch * each, device="cuda", generator=random).int().view(batch, each)
        self.random, self.poison = random, poison

    def problem(self, lengths, heads):
        query = torch.randn(len(lengths), heads, WIDTH, device="cuda", dtype=torch.bfloat16, generator=self.random)
        each = max(1, -(-max(lengths) // PAGE))
        table = self.table[: len(lengths), :each].contiguous()
        if self.poison is not None:
            for row, length in zip(table, lengths, strict=True):
                for page in range(each):
                    self.pages[row[page], max(0, length - page * PAGE) :] = self.poison
        return Problem(query, self.pages, table, list(map(int, lengths)))


class Problem:
    """One step of decoding."""

    def __init__(self, query, pages, table, lengths):
        self.query, self.pages, self.table, self.lengths = query, pages, table, lengths
        self.on_gpu = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        self.heads = query.shape[1]

    def latents(self, i):
        return self.pages[self.table[i].long()].reshape(-1, WIDTH)[: self.lengths[i]]

    def decoder(self, form, setting, workers=None, dtype=None):
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        plan = plans.plan(self.lengths, workers or sms * setting.on_each, setting.block, setting.whole)
        given = self.query, self.pages, self.table, self.on_gpu, plan, SCALE, dtype or torch.bfloat16
        return by_hand.Decoder(*given) if form == by_hand.FORM else gpu.Decoder(form, setting, *given)

    def exact(self):
        """Attention in double precision, one sequence after the other."""
        out = torch.zeros(*self.query.shape[:2], 512, dtype=torch.float64, device="cuda")
        for i, length in enumerate(self.lengths):
            if length:
                x = self.latents(i).double()
                out[i] = torch.softmax(self.query[i].double() @ x.T * SCALE, dim=-1) @ x[:, :512]
        return out

    @property
    def bytes(self):
        """The least that moves: latents once, queries, results."""
        return sum(self.lengths) * WIDTH * 2 + self.query.numel() * 2 + len(self.lengths) * self.heads * 512 * 2

    @property
    def flops(self):
        return 2.0 * sum(self.lengths) * self.heads * (WIDTH + 512)


def off(out, right):
    """The worst cosine distance of any head, and the root-mean-square error."""
    if not torch.isfinite(out).all():
        return float("inf"), float("inf")
    out = out.double()
    sizes = out.norm(dim=-1) * right.norm(dim=-1)
    nothing = (out.norm(dim=-1) == 0) & (right.norm(dim=-1) == 0)
    cosine = torch.where(nothing, 1.0, (out * right).sum(-1) / sizes.clamp_min(1e-300))
    return float((1 - cosine).max().clamp_min(0)), float(((out - right) ** 2).mean().sqrt())


# ----------------------------------------------------------------------------------------------------------- timing


def fastest(problem, form, settings, workers=None, keep=1):
    """The fastest settings of a form on a problem, with the median of a few rounds."""
    runs = {}
    for setting in settings:
        with contextlib.suppress(Exception):  # what does not fit here is not a candidate here
            runs[setting] = captured(problem.decoder(form, setting, workers).run)
    taken = {setting: statistics.median(s) for setting, s in timed(runs, FEW_ROUNDS).items()} if runs else {}
    return sorted(taken.items(), key=lambda pair: pair[1])[:keep]


def case(what, problem, good, rivals=None, workers=None, **told):
    """Every form with its fastest setting here; rivals beside; checked, timed in turns."""
    right, runs, facts = problem.exact(), {}, {}
    for form in SETTINGS:
        best = fastest(problem, form, good.get(form, [])[:KEPT], workers)
        if not best:
            continue
        decoder = problem.decoder(form, best[0][0], workers)
        cosine, rmse = off(decoder.run(), right)
        runs[form], facts[form] = captured(decoder.run), {"setting": str(best[0][0]), "cosine": cosine, "rmse": rmse}
    for name, run in (rivals or {}).items():
        try:
            cosine, rmse = off(run(), right)
            runs[name], facts[name] = captured(run), {"setting": "", "cosine": cosine, "rmse": rmse}
        except Exception as error:
            tell("absent", name=name, why=str(error).splitlines()[0][:200], **told)
    for form, seconds in timed(runs).items():
        tell(what, form=form, heads=problem.heads, batch=len(problem.lengths), tokens=sum(problem.lengths),
             bytes=problem.bytes, flops=problem.flops, seconds=seconds, **facts[form], **told)  # fmt: skip


def rivals(problem, with_sdpa=True):
    """torch on latents that lie side by side: two batched products and a softmax, and its fused attention."""
    x = torch.stack([problem.latents(i) for i in range(len(problem.lengths))])
    q, v = problem.query, x[..., :512]

    def matmul():
        return torch.softmax(torch.bmm(q, x.mT).float() * SCALE, -1).to(q.dtype) @ v

    def turned():
        weight = torch.softmax(torch.bmm(x, q.mT).float() * SCALE, 1).to(q.dtype)
        return (v.mT @ weight).mT

    def sdpa():
        return torch.nn.functional.scaled_dot_product_attention(q[:, None], x[:, None], v[:, None], scale=SCALE)[:, 0]

    return {"torch matmul": matmul, "torch matmul, transposed": turned} | ({"torch sdpa": sdpa} if with_sdpa else {})


# ----------------------------------------------------------------------------- settings, compiled and tried elsewhere


def wanted():
    """Every setting with 16 heads; for 8, 32 and 64 heads those that suit; the likeliest first."""
    if QUICK:
        likely = {"transposed": ("async b64 w4",), by_hand.FORM: ("thirds",),
                  "padded": ("bulk b64 w8 s2", "async b64 w8 s2"),
                  "narrow": ("async b64 w4 s2 x2", "async b64 w4 s3 x2", "async b32 w4 s3 x2")}  # fmt: skip
        return [(form, setting, 16) for form, names in likely.items() for setting in SETTINGS[form]
                if str(setting).startswith(names)]  # fmt: skip
    items = [(form, setting, 16) for place in range(40) for form, all_ in SETTINGS.items()
             for setting in all_[place : place + 1]]  # fmt: skip
    items += [(by_hand.FORM, setting, 8) for setting in by_hand.SETTINGS]
    for heads in (8, 64, 32):
        for setting in gpu.SETTINGS["transposed"][:9]:
            if heads == 64 and (setting.warps == 4 or setting.registers):
                continue  # sums of 64 heads fill the registers
            items.append(("transposed", setting, heads))
            if heads == 8:
                items.append(("transposed", dataclasses.replace(setting, columns=16), heads))
    return items


def broken():
    """Whether a kernel has spoilt this process's GPU context."""
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def worker(first, step):
    """Compile and try every `step`-th setting; after a crash go on behind it in a fresh process."""
    items = wanted()
    for at in range(first, len(items), step):
        form, setting, heads = items[at]
        row, dead = {"at": at}, False
        begin = time.monotonic()
        try:
            worst = 0.0
            for poison in (float("nan"), float("inf")):
                problem = Cache(9, 1024, at, poison).problem([1, 63, 64, 65, 127, 200, 640, 1000, 0], heads)
                out = problem.decoder(form, setting, 20, torch.float32).run()
                torch.cuda.synchronize()
                worst = max(worst, off(out, problem.exact())[0])
            again = captured(Cache(16, 16384, at).problem([16384] * 16, heads).decoder(form, setting).run)
            for _ in range(3):
                again()
            torch.cuda.synchronize()
            row |= {"cosine": worst, "seconds": time.monotonic() - begin}
        except Exception as error:
            row |= {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"}
            dead = broken()
        print(json.dumps(row), flush=True)
        if dead:
            os.execv(sys.executable, [sys.executable, __file__, "--worker", str(at + step), str(step)])


def tried():
    """The settings of each form and number of heads that compiled in time and gave the right result."""
    command = [sys.executable, __file__, "--worker"]
    logs = [OUT / f"etap-worker-{i}.log" for i in range(WORKERS)]
    running = []
    for i, log in enumerate(logs):
        with log.open("w") as file:
            running.append(subprocess.Popen([*command, str(i), str(WORKERS)], stdout=file, stderr=subprocess.DEVNULL))
    while any(one.poll() is None for one in running) and passed() < COMPILED:
        time.sleep(0.5)
    for one in running:
        one.kill()
        one.wait()
    items, good, answers = wanted(), {}, {}
    for log in logs:
        for line in log.read_text().splitlines():
            with contextlib.suppress(ValueError):  # a line that was cut off
                answer = json.loads(line)
                answers[answer.pop("at")] = answer
        log.unlink()
    for at, (form, setting, heads) in enumerate(items):
        answer = answers.get(at, {"error": "not compiled in time"})
        tell("setting", form=form, setting=str(setting), heads=heads, **answer)
        if answer.get("cosine", 1.0) <= CLOSE:
            good.setdefault((form, heads), []).append(setting)
    tell("compiled", seconds=passed(), tried=len(answers), right=sum(map(len, good.values())))
    return good


def tuned(good, cache):
    """Each form's settings by their time at 16 heads and 16 K tokens; those for other heads as they come."""
    problem = cache.problem([16384] * 16, 16)
    ranked = {}
    for (form, heads), settings in good.items():
        if heads != 16:
            ranked[form, heads] = settings
            continue
        both = list(dict.fromkeys(one for s in settings for one in (s, dataclasses.replace(s, whole=True))))
        order = fastest(problem, form, both, keep=len(both))
        for setting, seconds in order:
            tell("tuned", form=form, setting=str(setting), heads=16, seconds=seconds, bytes=problem.bytes)
        ranked[form, 16] = [setting for setting, _ in order]
    return ranked


def forms(ranked, heads):
    """Settings by form for so many heads. Padded tiles hold 64 heads, narrow ones 16 at least, whatever the number."""
    found = {"transposed": ranked.get(("transposed", min(heads, 64)), []), "padded": ranked.get(("padded", 16), [])}
    few = {form: ranked.get((form, 16), []) for form in ("narrow", by_hand.FORM)}
    return found | (few if heads <= 16 else {})


# -------------------------------------------------------------------------------------------------------------- parts


@triton.jit
def _read(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.range(at, n, step, num_stages=3):
        total += tl.load(x + i + tl.arange(0, BLOCK))
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


def machine(cache, ranked):
    """What the machine can do: reads by all and by few multiprocessors, a large matrix product."""
    props = torch.cuda.get_device_properties(0)
    tell("facts", gpu=props.name, sms=props.multi_processor_count, torch=torch.__version__, triton=triton.__version__)
    n = 1 << 28
    x, out = torch.ones(n, device="cuda"), torch.empty(4096, device="cuda")
    for workers in (props.multi_processor_count * 8, props.multi_processor_count, 66, 33, 16, 8):
        part = n if workers > 66 else n // 8
        each = {w: (lambda w=w: _read[(workers,)](x, out, part, BLOCK=16384, num_warps=w)) for w in (8, 16)}
        best = min(statistics.median(seconds) for seconds in timed(each, 5).values())
        tell("read", workers=workers, value=4 * part / best)
    p, q = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    tell("gemm", value=2 * 8192**3 / statistics.median(timed({"gemm": lambda: p @ q}, 7)["gemm"]))


def contexts(cache, ranked):
    """The paper's cases: 16 sequences, 16 heads, 512 to 64 K tokens each."""
    good = forms(ranked, 16)
    for context in (65536, 16384, 32768, 4096, 512, 1024, 2048, 8192):
        if passed() < ENDS:
            problem = cache.problem([context] * 16, 16)
            case("context", problem, good, rivals(problem, context <= 16384), context=context)
            torch.cuda.empty_cache()


def accuracy(cache, ranked):
    """The error of half precision at 64 K tokens, three draws."""
    for seed in (1, 2, 3):
        if passed() < ENDS:
            cache.random.manual_seed(1000 + seed)
            cache.pages.normal_(generator=cache.random)
            problem = cache.problem([65536] * 16, 16)
            right = problem.exact()
            for form, settings in forms(ranked, 16).items():
                for setting in settings[:1]:
                    cosine, rmse = off(problem.decoder(form, setting).run(), right)
                    tell("accuracy", form=form, setting=str(setting), seed=seed, cosine=cosine, rmse=rmse)


def heads(cache, ranked):
    """Other numbers of heads at 16 K tokens."""
    for count in (8, 32, 64, 128):
        if passed() < ENDS:
            case("heads", cache.problem([16384] * 16, count), forms(ranked, count), context=16384)


def few(cache, ranked):
    """Few multiprocessors with all of the memory: more bytes for each operation, as on an H20."""
    good = forms(ranked, 16)
    for workers in (16, 33, 66, 8):
        if passed() < ENDS:
            case("few", cache.problem([16384] * 4, 16), good, workers=workers, sms=workers, context=16384)


def ragged(cache, ranked):
    """Lengths that differ by a factor of 256, and one long sequence."""
    random = np.random.default_rng(5)
    lengths = np.exp(random.uniform(np.log(256), np.log(65536), 16)).astype(int).tolist()
    for name, some in (("ragged", lengths), ("one", [65536]), ("odd", [16383] * 16)):
        if passed() < ENDS:
            case("ragged", cache.problem(some, 16), forms(ranked, 16), lengths=name)


def main(parts):
    global tell
    answers = common.Answers("h200_etap_mla")
    tell = lambda what, **row: answers("etap-mla", what=what, **row)
    good = tried()
    cache = Cache(16, 65536, 0)
    ranked = tuned(good, cache)
    chosen = {name: globals()[name] for name in parts or ("machine", "contexts", "accuracy", "heads", "few", "ragged")}
    answers.run({name: functools.partial(part, cache, ranked) for name, part in chosen.items()})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main(sys.argv[1:])
