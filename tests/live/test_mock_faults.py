"""Faults: written down in one way, and met by the same requests every time."""

from __future__ import annotations

import pytest

from assay.live.mock_faults import Faults, parse
from assay.record.errors import BadInput


@pytest.mark.parametrize(
    "text",
    [
        "", "crash", "crash:", "crash:2", "crash:-0.1", "crash:0.1:3", "crash@", "crash@x", "crash@-1", "crash@inf",
        "hang@5", "slow:0.1:0.5", "slow:0.1:nan", "error:0.1:200", "error:0.1:999", "error:0.1:x", "melt:0.1",
        "disconnect:nan", "refuse:0.1:1",
    ],
)  # fmt: skip
def test_a_wrong_specification_is_one_line_that_says_what_is_right(text: str):
    with pytest.raises(BadInput, match=r"fault .*crash:0\.01.*refuse:0\.1") as refused:
        parse(text)
    assert "\n" not in str(refused.value)


def test_defaults_are_three_times_and_503():
    assert parse("slow:1").value == 3.0
    assert parse("error:1").value == 503.0


def test_the_share_of_requests_is_met_and_the_same_ones_every_time():
    met = [[bool(faults.next()) for _ in range(4000)] for faults in (Faults(["hang:0.05"], 1) for _ in range(2))]
    assert met[0] == met[1]
    assert 150 < sum(met[0]) < 250
    assert met[0] != [bool(f) for faults in (Faults(["hang:0.05"], 2),) for f in (faults.next() for _ in range(4000))]


def test_the_first_of_several_faults_that_befalls_a_request_counts():
    faults = Faults(["refuse:0.5", "error:1.0"], 0)
    kinds = [fault.kind for _ in range(100) if (fault := faults.next())]
    assert len(kinds) == 100 and set(kinds) == {"refuse", "error"}


def test_a_wrong_list_changes_nothing():
    faults = Faults(["error:1"], 0)
    with pytest.raises(BadInput):
        faults.set(["hang:1", "nonsense"])
    assert faults.texts == ["error:1"] and (met := faults.next()) and met.kind == "error"
    faults.set(["crash@9", "crash@5"])
    assert faults.crash_after == 5.0 and faults.next() is None
