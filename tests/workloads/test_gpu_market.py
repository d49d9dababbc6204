"""Markets of GPU nodes: generated ones do what markets do, a user's own file is read or refused in one line."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.workloads import gpu_market
from assay.workloads.gpu_market import Config

KINDS = ("1xl4@us", "4xl40s@us", "4xl40s@eu", "8xh100@eu")


@given(seed=st.integers(0, 10_000), gpus=st.floats(0, 200), churn=st.floats(0, 2), sold_out=st.floats(0, 0.7))
@settings(max_examples=40, deadline=None)
def test_a_generated_market_has_prices_above_zero_and_whole_nodes(
    seed: int, gpus: float, churn: float, sold_out: float
) -> None:
    market = gpu_market.generate(KINDS, seed=seed, gpus=gpus, churn=churn, sold_out=sold_out)
    assert market.price.shape == market.available.shape == (12, 4)
    assert (market.price > 0).all()
    assert (market.available >= 0).all()


def test_prices_and_availability_move_and_come_back() -> None:
    market = gpu_market.generate(KINDS, seconds=300 * 20_000, seed=3, gpus=64, sold_out=0.05)
    relative = market.price / np.array([config.list_price for config in market.configs])
    assert np.abs(relative.mean(axis=0) - 1).max() < gpu_market.REGIONAL + 0.05
    assert relative.std(axis=0).min() > 0.1
    gone = (market.available == 0).mean(axis=0)
    assert np.abs(gone - 0.05).max() < 0.03
    first, second = market.available[:, 1].astype(float), market.available[:, 2].astype(float)
    assert np.corrcoef(first, second)[0, 1] > 0.15  # one device in two regions: what is scarce is scarce everywhere


def test_the_same_seed_gives_the_same_market_whatever_else_is_offered() -> None:
    alone, among = gpu_market.generate(["4xl40s@us"], seed=5), gpu_market.generate(KINDS, seed=5)
    assert (alone.price[:, 0] == among.price[:, 1]).all()
    assert (alone.available[:, 0] == among.available[:, 1]).all()


def test_a_market_written_as_csv_reads_back(tmp_path: Path) -> None:
    market = gpu_market.generate(KINDS, seed=2)
    market.table().write_csv(tmp_path / "market.csv")
    again = gpu_market.read(tmp_path / "market.csv")
    assert again.configs == market.configs
    assert again.price == pytest.approx(market.price)
    assert (again.available == market.available).all()


def test_a_configuration_is_not_offered_before_its_first_row(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("config,available,time,price\n1xl4,3,0,0.5\n4xh100@us,2,600,12\n")
    market = gpu_market.read(file)
    assert market.at(599).available.tolist() == [3, 0]
    assert market.at(600).available.tolist() == [3, 2]
    assert market.at(600).price.tolist() == [0.5, 12.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("time,config,price\n0,1xl4,1\n", "no column available"),
        ("time,config,price,available\n", "no rows"),
        ("time,config,price,available\n0,1xl4,1,2.5\n", "line 2"),
        ("time,config,price,available\n0,1xl4,1,2\n5,1xl4,-1,2\n", "line 3"),
        ("time,config,price,available\n0,l4,1,2\n", "4xh100@us-east"),
        ("time,config,price,available\n0,1xnothing,1,2\n", "unknown device"),
        ("time,config,price,available\nsoon,1xl4,1,2\n", "should be numbers"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(BadInput, match=says):
        gpu_market.read(file)
    with pytest.raises(BadInput, match="cannot read"):
        gpu_market.read(tmp_path / "none.csv")


def test_names() -> None:
    assert Config.read(" 4xH100@us ").name == "4xh100@us"
    assert Config("l4", 2).list_price == pytest.approx(1.4)
    with pytest.raises(BadInput, match="each once"):
        gpu_market.generate(["1xl4", "1xl4"])
