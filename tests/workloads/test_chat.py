"""Made traffic looks like the traffic it was fitted to, and every prompt's path is one a cache could walk."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp, spearmanr

from assay.workloads.chat import Agents, Chat, Lengths, chat, day_curve, fit
from assay.workloads.prefixes import infinite_cache_hit, previous, shared_tokens, turns
from assay.workloads.request_files import read
from assay.workloads.request_summary import burstiness, counts
from assay.workloads.requests import Requests
from tests.workloads import request_fixtures as fx


def sound(trace: Requests) -> Requests:
    """Paths in the tree end to end, whole blocks, within the prompt; answers lie where the prompt ended."""
    tree = trace.prefixes
    assert tree is not None
    assert tree.block == 16
    assert not (tree.start % 16).any()
    assert not (tree.stop % 16).any()
    assert (tree.start < tree.stop).all()
    has = tree.parent >= 0
    assert (tree.parent[has] < np.flatnonzero(has)).all()
    assert np.array_equal(tree.start, np.where(has, tree.stop[tree.parent], 0))
    for r in range(len(trace)):
        path = tree.segments[tree.offsets[r] : tree.offsets[r + 1]]
        assert tree.parent[path].tolist() == [-1, *path[:-1]][: len(path)]
        assert len(path) == 0 or tree.stop[path[-1]] <= max(trace.prompt[r], tree.stop[path[0]])
        if tree.output[r] >= 0:
            answer = tree.output[r]
            assert tree.start[answer] == trace.prompt[r] // 16 * 16
            assert tree.stop[answer] == (trace.prompt[r] + trace.output[r]) // 16 * 16
    assert (np.diff(trace.arrival) >= 0).all()
    assert min(trace.prompt.min(), trace.output.min()) >= 1
    return trace


settings_of_chat = st.fixed_dictionaries({
    "burstiness": st.sampled_from([0.3, 1.0, 4.0]),
    "shared": st.sampled_from([0.0, 0.7, 1.0]),
    "root": st.sampled_from([0, 64]),
    "window": st.sampled_from([0, 2048]),
    "context": st.sampled_from([1500, 131_072]),
    "agents": st.sampled_from([None, Agents(share=0.5, volatile=0.3)]),
    "stay": st.sampled_from([np.array([0.0]), np.array([0.9])]),
})  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(settings_of_chat, st.integers(1, 300), st.integers(0, 2**32))
def test_any_settings_make_a_sound_trace(options: dict[str, object], n: int, seed: int) -> None:
    trace = sound(chat(n, rate=2.0, seed=seed, **options))
    assert len(trace) == n


def test_the_same_seed_makes_the_same_trace() -> None:
    one, same, other = (chat(500, rate=2.0, seed=seed, agents=Agents()) for seed in (1, 1, 2))
    for name in ("arrival", "prompt", "output", "session"):
        assert np.array_equal(getattr(one, name), getattr(same, name))
    assert not np.array_equal(one.prompt, other.prompt)


def test_a_turn_holds_the_turn_before_and_its_answer() -> None:
    trace = sound(chat(2000, rate=5.0, seed=3))
    assert trace.session is not None
    assert trace.prefixes is not None
    before = previous(trace.session)
    later = np.flatnonzero(before >= 0)
    assert len(later) > 500
    assert (trace.prompt[later] >= trace.prompt[before[later]] + trace.output[before[later]]).all()
    for r in later[:200]:
        assert shared_tokens(trace.prefixes, int(before[r]), int(r)) == trace.prompt[before[r]] // 16 * 16
    assert infinite_cache_hit(trace, answers=True) > infinite_cache_hit(trace)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.5])
def test_burstiness_is_what_was_asked(cv: float) -> None:
    trace = chat(20_000, rate=4.0, seed=1, burstiness=cv, curve=np.ones(1))
    assert burstiness(trace.arrival)["cv"] == pytest.approx(cv, rel=0.06)
    assert trace.rate == pytest.approx(4.0, rel=0.08)


def test_the_rate_follows_the_curve() -> None:
    trace = chat(100_000, rate=100_000 / 86_400, seed=1, stay=np.array([0.0]))
    hourly = counts(trace.arrival, 3600.0)[:24]
    assert np.corrcoef(hourly, day_curve())[0, 1] > 0.99
    assert chat(2000, rate=3.0, seed=1).rate == pytest.approx(3.0, rel=0.08)  # the mean, also of a part of the day


def test_system_prompts_have_zipf_popularity() -> None:
    model = Chat(rate=5.0, stay=np.array([0.0]), shared=1.0, pool=100, zipf=1.2)
    trace = model.generate(20_000, seed=1)
    assert trace.prefixes is not None
    heads = trace.prefixes.segments[trace.prefixes.offsets[:-1]]
    sizes = np.sort(np.unique(heads, return_counts=True)[1])[::-1]
    slope = np.polyfit(np.log(np.arange(1, 31)), np.log(sizes[:30]), 1)[0]
    assert slope == pytest.approx(-1.2, abs=0.1)


def test_agents_lose_what_they_change_and_forget() -> None:
    def hit(volatile: float = 0.0, window: int = 0) -> float:
        agents = Agents(share=1.0, volatile=volatile)
        return infinite_cache_hit(Chat(rate=5.0, agents=agents, window=window).generate(5000, seed=1))

    assert hit(volatile=0.5) < hit() - 0.1
    assert hit(window=2048) < hit() - 0.1
    short = Chat(rate=5.0, agents=Agents(share=1.0), window=2048).generate(5000, seed=1)
    assert short.prompt[previous(short.session) >= 0].max() <= 2048  # type: ignore[arg-type]


def test_tiers_and_tenants() -> None:
    trace = chat(5000, rate=5.0, seed=1, tiers=(("interactive", 0.7), ("batch", 0.3)), tenants=4)
    assert trace.tier is not None
    assert trace.session is not None
    assert trace.tenant is not None
    assert trace.tiers == ("interactive", "batch")
    first = previous(trace.session) < 0
    assert (trace.tier[first] == 0).mean() == pytest.approx(0.7, abs=0.04)
    assert set(trace.tenant.tolist()) == {0, 1, 2, 3}
    for column in (trace.tier, trace.tenant):  # a conversation stays what it is
        assert len(set(zip(trace.session.tolist(), column.tolist(), strict=True))) == trace.session.max() + 1


def test_the_copula_keeps_marginals_and_correlation() -> None:
    random = np.random.default_rng(1)
    x = random.lognormal(6, 1, 5000)
    y = x**0.5 * random.lognormal(0, 0.3, 5000)
    drawn = Lengths.of(x, y).draw(np.random.default_rng(2), 20_000)
    assert ks_2samp(x, drawn[0]).statistic < 0.02
    assert spearmanr(*drawn).statistic == pytest.approx(spearmanr(x, y).statistic, abs=0.02)


def test_a_million_requests() -> None:
    chat(10, rate=1.0, seed=1, agents=Agents(), tenants=3)  # compiled
    begin = time.process_time()
    tracemalloc.start()
    trace = chat(1_000_000, rate=50.0, seed=1, agents=Agents(), window=32_768, tenants=10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(trace) == 1_000_000
    assert time.process_time() - begin < 60
    assert peak < 1.5 * 2**30


# ---------------------------------------------------------------------------------- fitting


def growth(trace: Requests) -> np.ndarray:
    before = turns(trace)
    later = before >= 0
    return trace.prompt[later] - trace.prompt[before[later]]


def alike(trace: Requests, made: Requests) -> None:
    """What the generator must match."""
    assert ks_2samp(trace.prompt, made.prompt).statistic < 0.05
    assert ks_2samp(trace.output, made.output).statistic < 0.05
    assert made.rate == pytest.approx(trace.rate, rel=0.05)
    asked, got = burstiness(trace.arrival), burstiness(made.arrival)
    assert got["cv"] == pytest.approx(asked["cv"], rel=0.1)
    assert got["lag1"] == pytest.approx(asked["lag1"], abs=0.05)
    assert got["dispersion_1"] == pytest.approx(asked["dispersion_1"], rel=0.2)
    assert infinite_cache_hit(made) == pytest.approx(infinite_cache_hit(trace), abs=0.02)
    if trace.prefixes is not None or trace.session is not None:
        assert ks_2samp(growth(trace), growth(made)).statistic < 0.1
        assert np.median(growth(made)) == pytest.approx(np.median(growth(trace)), rel=0.1)
        assert (turns(made) >= 0).mean() == pytest.approx((turns(trace) >= 0).mean(), abs=0.02)


@pytest.mark.traces
@pytest.mark.parametrize("name", ["mooncake-conversation", "azure-2023-conv"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fitted_to_a_real_trace(name: str, seed: int) -> None:
    trace = read(name, dejitter=True)
    alike(trace, fit(trace).generate(len(trace), seed))


@pytest.mark.parametrize(
    "model",
    [
        Chat(rate=3.0, burstiness=2.0),
        Chat(rate=8.0, burstiness=0.6, shared=0.3, stay=np.array([0.3]), root=256),
        Chat(rate=4.0, curve=day_curve(0.2), period=2000.0, shared=0.0),
    ],
    ids=["bursty", "smooth", "waves"],
)
def test_fitted_to_what_was_made(model: Chat) -> None:
    trace = model.generate(12_000, seed=11)
    alike(trace, fit(trace).generate(len(trace), seed=5))


def test_sessions_need_not_be_in_the_trace() -> None:
    trace = replace(chat(8000, rate=4.0, seed=4), session=None)
    assert (turns(trace) >= 0).mean() == pytest.approx((turns(chat(8000, rate=4.0, seed=4)) >= 0).mean(), abs=0.05)


def test_fitted_to_a_fixture_in_a_published_format(tmp_path: Path) -> None:
    made = chat(6000, rate=3.0, seed=2)
    rows = [
        [a, "ChatGPT", p, o, p + o, "API log"] for a, p, o in zip(made.arrival, made.prompt, made.output, strict=True)
    ]
    trace = read(fx.put(tmp_path, fx.table(fx.BURST_COLUMNS, rows), "BurstGPT.csv"))
    alike(trace, fit(trace).generate(len(trace), seed=1))


def test_scaling() -> None:
    trace = chat(6000, rate=3.0, seed=2)
    model = fit(trace)
    more = model.scaled(rate=2.0, users=1.5)
    made = more.generate(6000, seed=1)
    assert made.rate == pytest.approx(9.0, rel=0.1)
    longer = model.scaled(length=2.0).generate(6000, seed=1)
    assert np.median(longer.prompt) == pytest.approx(2 * np.median(trace.prompt), rel=0.1)
    assert infinite_cache_hit(longer) == pytest.approx(infinite_cache_hit(trace), abs=0.05)
    with pytest.raises(ValueError, match="positive"):
        model.scaled(rate=0.0)
    with pytest.raises(ValueError, match="at least ten requests"):
        fit(Requests.of([0.0, 1.0], [5, 5], [5, 5]))
