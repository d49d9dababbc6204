"""What the study asks: who notices, what a repaired plan is worth, and whether real processes are seen to stop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from assay.sim.random import stream
from assay.training.interface import Floats, Layout
from assay.training.resihp import detector as detectors
from assay.training.resihp import job
from assay.training.resihp.beats import stops as stops
from assay.training.resihp.hybrid import step, whole
from assay.training.resihp.iterations import Profile, Training, iterations, lengths, passes, slowed
from assay.training.resihp.mending import HORIZON, LEVELS, Repaired, repair
from assay.training.resihp.rivals import RIVALS

SETTINGS = {
    "long": Training("llama-2-7b", "64xa100:ib200", Layout(tp=4, pp=4, dp=4), microbatches=8, tokens=65536),
    "large": Training("llama-2-70b", "256xa100:ib200", Layout(tp=4, pp=16, dp=4), microbatches=32, tokens=8192),
}
REPAIRS = {"small": replace(SETTINGS["long"], microbatches=16, tokens=8192), "large": SETTINGS["large"]}
WARM_UP, BEFORE, AFTER = 60, 4, 5  # iterations that teach; of an episode healthy ones, and with the fault
SLOWEST = 3.0  # times as long; the least is 1.2
MEASURED = 0.02  # how exact a benchmark says a device's speed (assumed)
SEQUENCES = 5  # of a live rank's step
DETECTORS = tuple(detectors.GRIDS)


def noticed(setting: str, healthy: int, faults: int, seed: int) -> dict[str, dict[str, Any]]:
    """Every detector, tuned on one stretch of the job, on another: healthy iterations, and slowdowns."""
    training = SETTINGS[setting]
    squares = lengths(training, WARM_UP, seed, "warm-up")
    profile = Profile.learned(training, squares[..., :20], seed)
    history = iterations(training, squares, seed, None, "warm-up"), profile.iterations(squares)
    tuning = _stretch(profile, history, healthy // 2, faults // 2, seed, "tuning", 1.2)
    again = _stretch(profile, history, healthy, faults, seed, "test", 1.2)
    drawn = _stretch(profile, history, 0, faults, seed, "drawn", SLOWEST)
    onset, found = WARM_UP + BEFORE, {}
    for name in DETECTORS:
        own = detectors.tuned(name, tuning[0][name], tuning[1][name], onset, WARM_UP)
        rule = own.threshold, own.run
        twenty, mixed = (detectors.caught(some[1][name], *rule, onset, AFTER) for some in (again, drawn))
        found[name] = {
            "false_alarms": len(detectors.alarms(again[0][name], *rule, WARM_UP)), "iterations": healthy,
            "found_twenty": round(twenty * faults), "found": round(mixed * faults), "faults": faults,
            "threshold": own.threshold, "in_a_row": own.run, "tuned_recall": own.recall,
            "off_iteration": again[2], "off_microbatch": _microbatches(profile, seed), "scatter": again[3],
        }  # fmt: skip
    return found


Stretch = tuple[dict[str, Floats], dict[str, Floats], float, float]


def _stretch(
    profile: Profile, history: tuple[Floats, Floats], healthy: int, faults: int, seed: int, name: str, most: float
) -> Stretch:
    """Scores of healthy iterations and of episodes with a slow group, each behind the same history; how far predictions
    of the healthy ones were off, and how far these scatter."""
    training, random = profile.training, stream(seed, "resihp", "faults", name)
    each = BEFORE + AFTER
    squares = lengths(training, healthy + faults * each, seed, name)
    slow = [np.ones((training.layout.pp, training.layout.dp, healthy))] + [
        slowed(training, each, BEFORE, int(random.integers(training.layout.pp)),
               int(random.integers(training.layout.dp)), float(1.2 * (most / 1.2) ** random.random()))
        for _ in range(faults)
    ]  # fmt: skip
    seconds = iterations(training, squares, seed, np.concatenate(slow, axis=2), name)
    predicted = profile.iterations(squares)
    tokens = float(training.tokens * training.microbatches)

    def scored(name: str, took: Floats, should: Floats) -> Floats:
        """Of iterations behind the history, [..., replicas, iterations]."""
        took, should = (
            np.concatenate([np.broadcast_to(past, (*now.shape[:-1], past.shape[-1])), now], axis=-1)
            for past, now in zip(history, (took, should), strict=True)
        )
        return detectors.scores(name, took, should, np.full_like(took, tokens), WARM_UP)

    def cut(values: Floats) -> Floats:
        """[episodes, replicas, iterations]."""
        return values[:, healthy:].reshape(len(values), faults, each).swapaxes(0, 1)

    episodes = {name: scored(name, cut(seconds), cut(predicted)) for name in DETECTORS}
    calm = {name: scored(name, seconds[:, :healthy], predicted[:, :healthy]) for name in DETECTORS} if healthy else {}
    some = slice(0, healthy)
    off = float(np.abs(predicted[:, some] / seconds[:, some] - 1).mean()) if healthy else 0.0
    return calm, episodes, off, float(np.log(seconds[:, some]).std()) if healthy else 0.0


def _microbatches(profile: Profile, seed: int) -> float:
    """How far predictions of single microbatches are off, in the mean."""
    training = profile.training
    squares = lengths(training, 8, seed, "microbatches")
    real, said = passes(training, squares, seed, None, "microbatches"), profile.predicted(squares)
    return float(np.abs((said.forward + said.backward) / (real.forward + real.backward) - 1).mean())


# ------------------------------------------------------------------------------------------------ repair


def speeds(training: Training, kind: str, faults: int, seed: int) -> Floats:
    """How fast every device is, [replica, stage, member]: some are gone, some slow; of mixed faults every other."""
    random, cut = stream(seed, "resihp", "speeds", kind, faults), training.layout
    found = np.ones(cut.dp * cut.pp * cut.tp)
    for number, at in enumerate(random.permutation(len(found))[:faults]):
        gone = kind == "fail-stop" or (kind == "mixed" and number % 2 == 0)
        found[at] = 0.0 if gone else 1 / (1.2 * (SLOWEST / 1.2) ** random.random())
    return found.reshape(cut.dp, cut.pp, cut.tp)


def estimated(speed: Floats, seed: int) -> Floats:
    """What benchmarks say of it: a little off, and who is hardly slower counts as healthy."""
    random = stream(seed, "resihp", "estimates")
    said = speed * np.exp(MEASURED * random.standard_normal(speed.shape))
    return np.where(said > 1 / detectors.NOTICED, 1.0, said)


def repaired(setting: str, kind: str, faults: int, ablate: bool, seed: int) -> dict[str, dict[str, Any]]:
    """Steps a second over the horizon, of the healthy job's: by ResiHP, without one of its levels, and by others."""
    training = REPAIRS[setting]
    squares = lengths(training, 1, seed, "repair", setting)[..., 0].ravel()
    speed = speeds(training, kind, faults, seed)
    seen = estimated(speed, seed)
    healthy = step(training, whole(training), np.ones_like(speed), squares)
    found: dict[str, Repaired | None] = {"resihp": repair(training, seen, squares)}
    for level in LEVELS if ablate else ():
        found[f"without {level}"] = repair(training, seen, squares, levels=tuple(one for one in LEVELS if one != level))
    found |= {name: rival(training, seen, squares) for name, rival in RIVALS.items()}
    return {name: _row(training, one, speed, squares, healthy) for name, one in found.items()}


def _row(training: Training, one: Repaired | None, speed: Floats, squares: Floats, healthy: float) -> dict[str, Any]:
    real = float("inf") if one is None else step(training, one.plan, speed, squares)
    return {
        "kept": 0.0 if one is None else one.throughput(real, HORIZON) * healthy,
        "step": None if np.isinf(real) else real, "healthy": healthy,
        "taken": "" if one is None else " ".join(one.taken), "cost": None if one is None else one.cost,
        "replicas": 0 if one is None else int(one.plan.alive.sum()),
        "microbatches": 0 if one is None else len(one.plan.owner),
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------ real processes


def lived(warm_up: int, healthy: int, episodes: int, seed: int) -> dict[str, Any]:
    """Two torch processes, one of which gets 20 % slower in every episode, and whether the watcher says so in time.

    An episode counts if 20 % can be told before it begins: the rank's healthy steps scatter by no more than that asks
    for, and nothing else made it slow, which would have raised an alarm. Others are told apart as disturbed. It takes
    one more step to ask who it is.
    """
    live = job.Live(warm_up=warm_up, healthy=healthy, faulty=AFTER + 1, seed=seed, slow=seed % 2, sequences=SEQUENCES,
                    episodes=episodes)  # fmt: skip
    seen, delays, named = job.run(live), [], 0
    for episode, scatter in enumerate(seen.scatter):
        victim, first = live.victim(episode), episode * live.episode + live.onset
        own = [at - first + 1 for rank, at in seen.alarms if rank == victim and at // live.episode == episode]
        if scatter <= detectors.discernible(live.times) and min(own, default=1) >= 1:
            delays.append(min(own, default=live.faulty + 1))
            named += sorted(seen.named[episode]) == [victim]
    return {
        "faults": len(delays), "found": sum(one <= AFTER for one in delays), "delay": max(delays, default=None),
        "disturbed": episodes - len(delays), "named": named, "planted": float(np.median(seen.planted)),
        "false_alarms": sum(at % live.episode < live.onset for _, at in seen.alarms), "free_cores": seen.free,
        "scatter": float(np.median(seen.scatter)), "loss_first": float(seen.losses[0].mean()),
        "loss_last": float(seen.losses[-1].mean()),
    }  # fmt: skip
