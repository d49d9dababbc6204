"""One LLM instance in plain Python, one iteration and one KV block at a time: slow, and easy to be sure of."""

from __future__ import annotations

import math

from assay.serving.fleet import Instance
from assay.sim.llm_cost import StepCost
from tests.oracles.kv_memory import Memory, Sequence, blocks_of


def iteration_seconds(cost: StepCost, contexts: list[int], chunks: list[tuple[int, int]]) -> float:
    """One iteration: decodes with these contexts, and (chunk, tokens before it) of prompts."""
    b, total = len(contexts), sum(contexts)
    seconds = float(cost.tokens[b + sum(c for c, _ in chunks)])
    if b:
        seconds += cost.decode_fixed + cost.decode_seq * b + cost.decode_kv * total
        if cost.decode_window:
            seconds += cost.decode_window * min(total, cost.window * b)
    for c, before in chunks:
        seconds += cost.prefill_fixed + cost.prefill_token * c
        seconds += max(cost.prefill_pair * c * (before + c / 2), cost.prefill_kv * (before + c))
        if cost.prefill_pair_window:
            seconds += cost.prefill_pair_window * c * min(before + c / 2, cost.window)
    if chunks:
        seconds = max(seconds + cost.launch, cost.launch_mixed if b else cost.launch_alone)
    return seconds


class Engine:
    """One instance."""

    def __init__(self, number: int, spec: Instance, block: int, whole: bool, caching: bool) -> None:
        self.number, self.spec, self.block = number, spec, block
        self.memory = Memory(spec.room // block, block, whole, caching)
        self.share = Share()
        self.running: list[Sequence] = []  # in order of admission
        self.waiting: list[Sequence] = []
        self.decode_pause = False
        self.extra = 0.0
        self.uncomputed = 0
        self.handed: list[Sequence] = []
        self.finished: list[Sequence] = []
        self.told = 0  # of them, who follows is known
        self.gaps: list[tuple[str, float]] = []  # between two tokens of a sequence, and what lies between them
        self.decoded = self.prefilled = self.preemptions = 0
        self.kept_out = 0  # times that only the room kept for outputs was in the way

    # -------------------------------------------------------------------------------- what is going on

    @property
    def decodes(self) -> list[Sequence]:
        return [s for s in self.running if s.decoding]

    @property
    def prompts(self) -> list[Sequence]:
        return [s for s in self.running if not s.decoding]

    @property
    def unanswered(self) -> int:
        return sum(s.promised for s in self.running + self.waiting)

    def blocks_on_board(self, newcomer: Sequence) -> int:
        """Full blocks of the prompts on board and of one more: those with a name once, the others for each."""
        prompts = [*self.running, *self.waiting, newcomer]
        named = {key for s in prompts for key in s.path}
        return len(named) + sum(s.prompt // self.block - len(s.path) for s in prompts)

    def decode_need(self) -> int:
        return sum(s.have % self.block == 0 for s in self.decodes)

    # ---------------------------------------------------------------------------------------- queueing

    def accept(self, s: Sequence) -> None:
        s.instance = self.number
        s.expected = 0 if s.ready else self.to_compute(s)
        s.promised = 0 if s.emitted else s.prompt - self.memory.match(s.path) * self.block
        self.uncomputed += s.expected
        self.waiting.append(s)

    def to_compute(self, s: Sequence) -> int:
        found = self.memory.reach(s, self.memory.match(s.path))
        return s.prompt + s.emitted - s.ready if s.ready else max(s.prompt + s.emitted - found * self.block, 1)

    def preempt(self) -> Sequence:
        s = self.running.pop()
        if not s.decoding:
            self.uncomputed -= s.target - s.have
        swaps = s.decoding and self.spec.preemption == "swap"
        s.ready = s.have if swaps else 0
        if swaps:
            self.extra += s.ready * self.spec.cost.kv_bytes / self.spec.host_bandwidth
        computed = min(s.have, s.target) if self.spec.plan == "sglang" else s.have  # it frees what was generated
        self.memory.release(s, ended=False, computed=0 if swaps else computed)
        s.have, s.decoding, s.key, s.interruption = 0, False, -math.inf, "preempted"
        s.preemptions += 1
        self.preemptions += 1
        s.expected = self.to_compute(s)
        self.uncomputed += s.expected
        self.waiting.append(s)
        return s

    def fits(self, s: Sequence, hit: int, found: int, have: int, chunk: int) -> bool:
        """Whether a request may be admitted that finds so many blocks on its path, and with what it left itself."""
        memory, block = self.memory, self.block
        by_chunk = self.spec.plan == "vllm-v1" and self.spec.admission == "chunk"
        wanted = have + chunk if by_chunk else s.target
        room = memory.room - memory.idle(s.path[:hit]) - (found - hit)
        if blocks_of(wanted, block) - found > room - self.decode_need():
            return False
        if self.spec.plan != "sglang":
            return True
        kept = self.share.now * sum(min(d.output - d.emitted, 4096) for d in self.decodes)
        for other in self.prompts:
            whole = other.have + other.chunk == other.target
            kept += block + (min(other.output - other.emitted, 4096) if whole else 0)
        enough = s.target - have + min(s.output - s.emitted, 4096) + block <= room * block - kept
        self.kept_out += not enough
        return enough

    def admit(self, budget: int, now: float) -> int | None:
        s = min(self.waiting, key=lambda s: (s.key, s.number))
        memory, block = self.memory, self.block
        s.target = s.prompt + s.emitted
        hit = memory.match(s.path)
        if s.ready:
            found = hit = min(hit, s.ready // block)
            have, chunk = s.ready, 0
        else:
            hit = min(hit, (s.target - 1) // block)
            found = memory.reach(s, hit)
            have = found * block
            chunk = min(s.target - have, budget, self.spec.chunk_limit or self.spec.max_tokens)
        if not self.fits(s, hit, found, have, chunk):
            return None
        self.waiting.remove(s)
        self.running.append(s)
        memory.hold(s, hit)
        memory.reclaim(s, hit)
        memory.allocate(s, blocks_of(have + chunk, block) - found)
        if s.preemptions == 0 and not s.ready:
            s.admitted, s.cached = now, have
        self.uncomputed -= s.expected
        s.have, s.chunk = have, chunk
        memory.publish(s, have + chunk)
        if s.ready:
            if s.preemptions and self.spec.preemption == "swap":  # else nothing comes back from the host
                self.extra += s.ready * self.spec.cost.kv_bytes / self.spec.host_bandwidth
            s.ready, s.decoding = 0, True
            return 1
        self.uncomputed += s.target - have
        return chunk

    # ---------------------------------------------------------------------------------------- planning

    def continue_prompts(self, budget: int, reserve: bool) -> tuple[int, bool]:
        gave_way = False
        for s in self.prompts:
            if s not in self.running:
                continue
            chunk = min(s.target - s.have, budget, self.spec.chunk_limit or self.spec.max_tokens)
            need = blocks_of(s.have + chunk, self.block) - blocks_of(s.have, self.block)
            while s in self.running and need > self.memory.room - (self.decode_need() if reserve else 0):
                self.preempt()
                gave_way = True
            if s in self.running:
                s.chunk = chunk
                self.memory.allocate(s, need)
                self.memory.publish(s, s.have + chunk)
                budget -= chunk
        return budget, gave_way

    def admit_waiting(self, budget: int, now: float) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.spec.max_seqs:
            used = self.admit(budget, now)
            if used is None:
                break
            budget -= used

    def make_room_for_decodes(self) -> bool:
        gave_way = False
        while self.decode_need() > self.memory.room:
            self.preempt()
            gave_way = True
        return gave_way

    def plan(self, now: float) -> None:
        """What the next iteration computes; its blocks are taken."""
        self.decode_pause = False
        if self.spec.plan == "sglang":
            left, gave_way = self.continue_prompts(self.spec.max_tokens, reserve=False)
            if not gave_way:
                self.admit_waiting(left, now)
            self.decode_pause = bool(self.prompts)
            if not self.decode_pause and self.make_room_for_decodes():
                self.share.measure(self.decodes)
        else:
            short = self.make_room_for_decodes()
            left, gave_way = self.continue_prompts(self.spec.max_tokens - len(self.decodes), reserve=True)
            if not (short or gave_way) and (self.spec.plan != "static" or not self.running):
                self.admit_waiting(left, now)
            self.make_room_for_decodes()  # those that came with their KV decode at once
        if not self.decode_pause:
            for s in self.decodes:
                if s.have % self.block == 0:
                    self.memory.allocate(s, 1)

    def rest(self) -> None:
        """What happens where there is nothing to do."""
        if not self.running:
            self.share = Share()

    def seconds(self) -> float | None:
        """How long the planned iteration takes; None: there is nothing to compute."""
        contexts = [] if self.decode_pause else [s.have for s in self.decodes]
        chunks = [(s.chunk, s.have) for s in self.prompts if s.chunk]
        if not contexts and not chunks:
            return None
        return iteration_seconds(self.spec.cost, contexts, chunks) + self.extra

    # ----------------------------------------------------------------------------------------- booking

    def token(self, s: Sequence, now: float) -> None:
        s.emitted += 1
        if s.emitted == 1:
            s.first, s.promised = now, 0
        else:
            self.gaps.append((s.interruption, now - s.latest))
        s.latest, s.interruption = now, ""

    def settle(self, now: float) -> None:
        """The planned iteration is over."""
        if self.seconds() is None:
            return
        self.extra = 0.0
        decodes = [] if self.decode_pause else self.decodes
        prompts = self.prompts
        for s in self.decodes if self.decode_pause else []:
            s.interruption = s.interruption or "paused"
        if decodes:
            self.share.decode()
        for s in decodes:
            s.have += 1
            self.token(s, now)
            self.decoded += 1
        # Those that end in one iteration leave in the order of their numbers.
        for s in sorted((s for s in decodes if s.emitted == s.output), key=lambda s: s.number):
            self.end(s, now)
        for s in prompts:
            s.have += s.chunk
            self.uncomputed -= s.chunk
            self.prefilled += s.chunk
            if s.have < s.target:
                continue
            self.token(s, now)
            if s.emitted == s.output:
                self.end(s, now)
            elif self.spec.role == "prefill":
                self.running.remove(s)
                self.memory.release(s, ended=False)
                s.ready, s.source, s.interruption = s.have, self.number, "handed over"
                self.handed.append(s)
            else:
                s.decoding = True

    def end(self, s: Sequence, now: float) -> None:
        self.running.remove(s)
        self.memory.release(s, ended=True)
        s.finish, s.decoding = now, False
        s.finishes += 1
        self.finished.append(s)


class Share:
    """The share of what is left of outputs for which SGLang keeps room: less with every decode."""

    def __init__(self) -> None:
        self.begin, self.steps = 0.7, 0

    @property
    def now(self) -> float:
        if self.steps <= 0:
            return self.begin
        return max(self.begin - (0.7 - 0.7 * 0.14) / 600 * self.steps, 0.7 * 0.14)

    def decode(self) -> None:
        self.steps += 1

    def measure(self, decodes: list[Sequence]) -> None:
        """Somebody had to be retracted: the share that the others used, 20 tokens from now."""
        used = sum(s.emitted for s in decodes) + 20 * len(decodes)
        self.begin = min(used / (sum(s.output for s in decodes) + 1.0), 1.0)
        self.steps = -1
