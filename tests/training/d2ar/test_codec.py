"""Files that are as small as they say, pictures that come out of them, and when an archive helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.training import d2ar
from assay.training.d2ar import coder, judge, planet, trial, wavelet
from assay.training.d2ar import model as codec
from assay.training.d2ar.archive import Archive
from tests.oracles import exact_coder

SIZE = 64
NUMBERS = st.lists(st.tuples(st.integers(-70_000, 70_000) | st.integers(-2, 2), st.integers(0, 2)), max_size=60)


@cache
def learnt() -> tuple[planet.Region, Archive, codec.Model, object]:
    torch.set_num_threads(1)
    region, archive, labels = trial.archived(SIZE, seed=2, a_year=6)
    return region, archive, codec.train(archive, steps=6, seed=2, batch=8), labels


@cache
def rows() -> dict[str, dict[str, float]]:
    return trial.held_out(96, 2, 6, 8, seed=4, batch=8, ratios=(100, 1_000))


@given(NUMBERS)
def test_numbers_come_back(pairs: list[tuple[int, int]]) -> None:
    values, contexts = (np.array([pair[k] for pair in pairs], np.int64) for k in (0, 1))
    told = coder.encode(values, contexts, coder.fresh(3))
    assert coder.decode(told, contexts, coder.fresh(3)).tolist() == values.tolist()


@given(st.lists(st.tuples(st.integers(64, coder.ONE - 64), st.booleans()), min_size=1, max_size=120))
def test_the_coder_takes_hardly_more_than_the_information_of_what_it_tells(decisions: list[tuple[int, bool]]) -> None:
    out, state = np.zeros(1024, np.uint8), np.array([0, (1 << 32) - 1, 0], np.int64)
    for share, bit in decisions:
        coder.put(out, state, np.array([[share]], np.int64), 0, 0, int(bit))
    size = coder.finish(out, state)
    data, state = out[:size], np.zeros(3, np.int64)
    coder.start(data, state)
    assert [coder.get(data, state, np.array([[s]], np.int64), 0, 0) for s, _ in decisions] == [b for _, b in decisions]
    assert 8 * size <= exact_coder.information([(share, int(bit)) for share, bit in decisions]) + 12


@given(st.lists(st.floats(-10, 10), min_size=16, max_size=16))
def test_lifting_is_the_filter_bank(row: list[float]) -> None:
    even, odd = wavelet._lift(np.array([row]))
    low, high = exact_coder.lifted(row)
    assert even[0] == pytest.approx(low, abs=1e-5) and odd[0] == pytest.approx(high, abs=1e-5)


def test_wavelets_fill_their_budget_and_get_better_with_it() -> None:
    _, archive, _, _ = learnt()
    axes, mean = codec.spectra(archive)
    image = archive.images[3]
    assert wavelet.synthesised(wavelet.analysed(image, 5), 5) == pytest.approx(image, abs=1e-6)
    found = []
    for budget in (30, 300, 3_000):
        data = wavelet.encode(image, budget, axes, mean)
        assert 0.6 * budget < len(data) <= budget
        found.append(judge.psnr(wavelet.decode(data, image.shape, axes, mean), image))
    assert found[0] < found[1] < found[2]


def test_a_file_on_disk_has_the_ratio_and_decoding_needs_only_it_the_archive_and_the_model(tmp_path: Path) -> None:
    region, _, model, _ = learnt()
    scene = trial.scenes(region, 1, seed=9)[0]
    raw = 2 * scene.image.size
    for ratio in (100, 1_000, 3_000):
        path = tmp_path / f"{ratio}.d2"
        path.write_bytes(codec.encode(model, scene.image, scene.day, raw // ratio))
        assert raw / path.stat().st_size >= ratio
        picture = codec.decode(model, path.read_bytes())
        assert picture.shape == scene.image.shape and np.isfinite(picture).all()
        assert np.array_equal(picture, codec.decode(model, path.read_bytes()))
    told = codec.tokens(model, scene.image, scene.day)
    data, seen = codec.pack(told, model.scale, 4, model.options.token, 60)
    assert codec.unpack(data, told.shape, model.scale, 4, model.options.token, 60) == pytest.approx(seen, abs=1e-4)


def test_files_of_others_are_refused() -> None:
    _, archive, model, _ = learnt()
    data = codec.encode(model, archive.images[0], int(archive.days[0]), 60)
    with pytest.raises(ValueError, match="another model"):
        codec.decode(replace(model, name=model.name ^ 1), data)
    with pytest.raises(ValueError, match="not a file"):
        codec.decode(model, b"PNG" + data)
    with pytest.raises(ValueError, match="header alone"):
        codec.encode(model, archive.images[0], int(archive.days[0]), 3)
    with pytest.raises(ValueError, match="the archive has"):
        codec.encode(model, archive.images[0][:3], int(archive.days[0]), 60)


def test_training_days_never_meet_what_is_held_out_and_priors_leave_out_their_own_year() -> None:
    region, archive, _, _ = learnt()
    held = [scene.day for scene in trial.scenes(region, 3, seed=2)]
    assert min(held) // planet.YEAR > max(archive.days) // planet.YEAR
    day = int(archive.days[0])
    changed = replace(archive, images=archive.images.copy())
    changed.images[archive.days // planet.YEAR == day // planet.YEAR] *= 0.5
    rest = archive.days // planet.YEAR != day // planet.YEAR
    alone = replace(archive, images=archive.images[rest], days=archive.days[rest])
    with_clouds_known = changed.seasonal([day], others=True)
    assert np.abs(with_clouds_known - alone.seasonal([day])).mean() < 0.01
    assert np.abs(changed.seasonal([day]) - archive.seasonal([day])).mean() > 0.01


def test_with_its_archive_it_beats_codec_and_ablation_and_without_one_nothing_is_left() -> None:
    found = rows()
    ours, none = found["d2ar at 1000"], found["no prior at 1000"]
    for measure in ("psnr", "ssim", "accuracy"):
        assert ours[measure] > found["wavelet at 1000"][measure] and ours[measure] > none[measure]
    assert found["unseen at 1000"]["psnr"] - found["unseen wavelet at 1000"]["psnr"] < 1.0
    assert ours["ratio"] >= 1_000 and found["wavelet at 1000"]["ratio"] >= 1_000


def test_new_halls_are_found_where_bytes_tell_of_them_and_never_in_the_season_alone() -> None:
    found = rows()
    assert found["season at 1000"]["missed"] == 1.0 and found["d2ar at 100"]["missed_as_taken"] == 0.0
    assert found["d2ar at 100"]["missed"] <= 0.2
    assert 0 <= found["d2ar at 1000"]["missed"] <= 1


def test_turned_latents_decode_to_turned_pictures_better_where_that_was_trained() -> None:
    found = rows()
    assert found["equal"]["unequal"] < found["not equal"]["unequal"]


def test_measures_know_the_same_picture_and_a_wrong_one() -> None:
    _, archive, _, labels = learnt()
    image = archive.images[1]
    assert judge.ssim(image, image) == pytest.approx(1.0) and judge.ssim(image, image[:, ::-1].copy()) < 0.9
    cover = judge.learn_cover(archive.images, labels)
    assert (cover.of(image) == np.asarray(labels)[1]).mean() > 0.6


def test_the_machine_loses_little_and_says_how_far_it_is_off() -> None:
    from assay.training.d2ar import scaling

    found = [scaling.weak(nodes, seed=1) for nodes in scaling.NODES]
    assert all(0.5 < one["efficiency"] < 1.05 for one in found)  # more nodes also hold less of the optimizer each
    assert all(a["flops"] < b["flops"] for a, b in pairwise(found))
    assert found[-1]["peak"] >= found[-1]["flops"] > 1e17


def test_its_gpu_rows_are_judged_only_where_there_are_some(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(d2ar, "STORED", tmp_path / "none.json")
    assert d2ar.stored(0) == {}


@pytest.mark.parametrize("words", [["--ratio", "100000"], ["--held", "12"]])
def test_what_cannot_be_is_said_in_a_line(words: list[str], refused: Callable[..., str]) -> None:
    tiles = Path(__file__).parents[3] / "examples" / "tiles.npz"
    assert "should be" in (told := refused("compare", "d2ar", "--tiles", str(tiles), *words)) or "at most" in told
