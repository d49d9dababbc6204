"""A canary: a share of real traffic, and which policy serves better, with an interval that means what it says."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("uvloop")

from assay.live.canary import GROUPS, Canary, difference, ratio, read, student
from assay.live.serve import Running
from assay.record.errors import BadInput
from tests.live.fake_engines import ask, balanced, chat, engines, run, settings

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("wrong", ["vllm-v1", "vllm-v1=10", "vllm-v1=0%", "=10%", "vllm-v1=100%"])
def test_a_share_is_a_policy_and_a_percentage(wrong):
    with pytest.raises(BadInput, match="canary"):
        read(wrong)


def test_a_policy_that_wants_a_pool_is_no_canary():
    with pytest.raises(BadInput, match="pool"):
        Running(settings([], canary="balanceroute=10%"))


@pytest.mark.parametrize("freedom", [4, 5, 8, 20, 100])
def test_the_quantile_is_student_s(freedom):
    assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=0.01)


def test_equal_groups_give_welch_s_interval():
    draw = np.random.default_rng(0)
    one, two = draw.normal(1.0, 0.3, 12), draw.normal(0.8, 0.5, 20)
    found = difference(ratio([(y, 1.0) for y in one]), ratio([(y, 1.0) for y in two]))
    truth = stats.ttest_ind(one, two, equal_var=False).confidence_interval()
    assert (found["low"], found["high"]) == pytest.approx((truth.low, truth.high), rel=0.01)


def served(canary: Canary, session: str, ttft: float) -> None:
    request = SimpleNamespace(session=session, id=0, prompt=100)
    relay = SimpleNamespace(
        request=request, endpoint="chat", status=200, sent=0.0, streaming=True, first=ttft, arrival=0.0, usage=None,
        matched=50,
    )  # fmt: skip
    canary.ended(relay, 1.0)


@pytest.mark.parametrize(("better", "said"), [(0.0, None), (0.1, "serves better"), (-0.1, "serves worse")])
def test_of_equal_policies_one_in_twenty_intervals_misses_and_a_difference_is_found(better, said):
    """Turns of a conversation are alike: as many requests as they are, they are not that many observations."""
    misses, words = 0, []
    for trial in range(60):
        draw = np.random.default_rng(trial)
        canary = Canary("new", 0.3, None, "old")
        canary._salt = trial
        for conversation in range(600):
            session = f"{trial}-{conversation}"
            mood = draw.gamma(4.0, 0.05)
            mine = canary._group(SimpleNamespace(request=SimpleNamespace(session=session, id=0))) < 0.3 * GROUPS
            for _ in range(int(draw.integers(1, 12))):
                served(canary, session, mood + draw.exponential(0.02) + 0.2 - (better if mine else 0.0))
        report = canary.report()
        misses += not report["ttft"]["low"] <= -better <= report["ttft"]["high"]
        words.append(report["verdict"])
    assert misses <= 9  # 3 in 60 are meant; 9 or more of 60 have a probability of 0.4 %
    if said:
        assert sum(said in word for word in words) >= 58, words[:3]


def test_conversations_keep_their_policy_and_the_share_is_kept():
    canary = Canary("new", 0.1, None, "old")
    relays = [SimpleNamespace(request=SimpleNamespace(session=f"s{n}", id=n)) for n in range(4000)]
    first = [canary.takes(relay) for relay in relays]
    assert first == [canary.takes(relay) for relay in relays]
    assert 0.07 < np.mean(first) < 0.13


def test_a_share_of_real_traffic_is_decided_by_the_other_policy(tmp_path):
    for name, choice in (("Last", "len(fleet) - 1"), ("First", "0")):
        policy = f"class {name}:\n    def route(self, request, fleet):\n        return {choice}\n"
        (tmp_path / f"{name.lower()}.py").write_text(policy)
    log = tmp_path / "log"

    async def test():
        told = {"policy": f"{tmp_path}/first.py:First", "canary": f"{tmp_path}/last.py:Last=30%", "log": str(log)}
        async with engines("a", "b") as made, Running(settings(made, **told)) as running:
            for n in range(120):
                await ask(running.port, "POST", CHAT, chat("hi", stream=n % 2 == 0), x_session_id=f"{n // 2}")
            report = json.loads((await ask(running.port, "GET", "/engines"))[2])["canary"]
            assert report["requests"] + report["requests_usual"] == 120 and report["requests"] > 0
            assert report["ttft"]["usual"] > 0 and report["share"] == 0.3 and report["verdict"]
            assert balanced(running)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert {(line["engine"], line.get("canary", False)) for line in lines} == {("a", False), ("b", True)}
        by_session: dict[str, set] = {}
        for line in lines:
            by_session.setdefault(line["session"], set()).add(line["engine"])
        assert all(len(found) == 1 for found in by_session.values())

    run(test())
