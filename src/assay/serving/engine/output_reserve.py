"""The room that SGLang's scheduler keeps for outputs when it admits a prompt.

It wants the whole output of the newcomer free, and for each output on board a share of what is left of it. The share
falls with every decode, and is measured anew where a sequence had to be retracted.
"""

# Compiled functions take whatever types Numba infers.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from assay.serving.engine import views as v
from assay.serving.engine.prefix_cache import JIT
from assay.sim.compiled import njit

# SGLang's admission: the room it keeps for each output on board is a share of what is left of it, at most CLIP tokens.
# The share falls with every decode, and is measured anew where a sequence had to be retracted (`NewTokenRatioTracker`).
KEPT, KEPT_LEAST, CLIP = 0.7, 0.7 * 0.14, 4096
KEPT_DECAY = (KEPT - KEPT_LEAST) / 600
RETRACTION = 20  # decodes ahead for which there is to be room after one


@njit(**JIT)
def share_kept(instance, k):
    """The share of what is left of an output that SGLang keeps room for, before decode iteration k."""
    steps = k - instance.ratio_k
    return instance.ratio if steps <= 0 else max(instance.ratio - KEPT_DECAY * steps, KEPT_LEAST)


@njit(**JIT)
def left_on_board(w, i):
    """Tokens that the decodes of an instance may still generate, as SGLang reckons: none of them more than CLIP."""
    instance, left = v.instances(w)[i], 0
    for slot in range(instance.decodes):
        left += min(v.finishing(w)[i][slot].end - instance.k, CLIP)
    return left


@njit(**JIT)
def promised_to_prompts(w, i):
    """Tokens that SGLang keeps for the prompts of this iteration: the whole output with a last chunk, and a block."""
    promised = 0
    for slot in range(v.instances(w)[i].prefills):
        request = v.requests(w)[v.chunks(w)[i, slot]]
        promised += w.block
        if request.pre + request.chunk == request.target:
            promised += min(request.output - request.emitted, CLIP)
    return promised


@njit(**JIT)
def asked(w, r, have):
    """Tokens that SGLang wants free for request r, which has `have` of them: its prompt, its output and a block."""
    request = v.requests(w)[r]
    return request.prompt + request.emitted - have + min(request.output - request.emitted, CLIP) + w.block


@njit(**JIT)
def measure_share(w, i):
    """After a retraction SGLang sets the share to what the decodes used of their outputs, and a little more."""
    instance, generated, asked = v.instances(w)[i], 0, 0
    for slot in range(instance.decodes):
        output = v.requests(w)[v.finishing(w)[i][slot].request % w.n_requests].output
        asked += output
        generated += output - (v.finishing(w)[i][slot].end - instance.k)
    instance.ratio = min((generated + RETRACTION * instance.decodes) / (asked + 1.0), 1.0)
    instance.ratio_k = instance.k + 1
