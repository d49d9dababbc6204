"""Samples of images and text: drawn, mixed, and read from the user's file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.workloads.multimodal import SOURCES, draw, mixed, read


@pytest.mark.parametrize("name", [*SOURCES, "blend"])
def test_a_set_is_the_same_for_the_same_seed_and_has_images_and_texts_everywhere(name: str) -> None:
    one, same, other = draw(name, 500, 3), draw(name, 500, 3), draw(name, 500, 4)
    assert (one.image == same.image).all() and (one.text == same.text).all()
    assert (one.image != other.image).any()
    assert one.image.min() >= 1 and one.text.min() >= 1


def test_charts_vary_and_photographs_do_not() -> None:
    spread = {name: float(np.std(np.log(draw(name, 4000, 0).image))) for name in SOURCES}
    assert spread["synthchartnet"] > 1.3 * spread["chartqa"] > 2.5 * spread["cocoqa"]


@given(st.floats(0.1, 9), st.floats(0.1, 9), st.integers(1, 3_000_000), st.integers(0, 99))
def test_a_mixture_has_as_many_tokens_as_asked(image: float, text: float, tokens: int, seed: int) -> None:
    found = mixed(image, text, tokens, seed)
    assert found.tokens.sum() == tokens
    assert found.image.min() >= 0 <= found.text.min() and found.tokens.min() >= 1
    assert ((found.image == 0) | (found.text == 0)).all()


@pytest.mark.parametrize("ratio", [(1, 9), (1, 1), (9, 1), (1, 0), (0, 1)])
def test_a_mixture_has_images_and_texts_in_proportion(ratio: tuple[int, int]) -> None:
    found = mixed(*ratio, 30_000_000, seed=0)
    assert found.image.sum() / 30_000_000 == pytest.approx(ratio[0] / sum(ratio), abs=0.03)


def test_a_mixture_of_nothing_is_refused() -> None:
    for image, text in ((0, 0), (-1, 2), (float("nan"), 1), (float("inf"), 1)):
        with pytest.raises(BadInput, match="two numbers from 0 on"):
            mixed(image, text, 10, 0)


def test_the_users_samples_are_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"image_tokens": 600, "text_tokens": 40}\n\n{"text_tokens": 7, "id": "x"}\n')
    found = read(file)
    assert found.image.tolist() == [600, 0]
    assert found.text.tolist() == [40, 7]
    assert found[np.array([1])].tokens.tolist() == [7]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("12", "line 2: should be"),
        ("{", "line 2: not JSON"),
        ('{"image": 3}', "line 2: should be"),
        ('{"image_tokens": 1.5}', "line 2: image_tokens should be a whole number"),
        ('{"text_tokens": true}', "line 2: text_tokens should be"),
        ('{"text_tokens": -1}', "line 2: text_tokens should be"),
        ('{"text_tokens": 1e99}', "line 2: text_tokens should be"),
        ('{"text_tokens": 0, "image_tokens": 0}', "line 2: a sample without tokens"),
        ("[" * 100_000, "line 2: not JSON"),
        ('{"text_tokens": ' + "9" * 5000 + "}", "line 2: not JSON"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"text_tokens": 1}\n' + line)
    with pytest.raises(BadInput, match=says) as error:
        read(file)
    assert "\n" not in str(error.value)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, says in (("empty", "no samples"), ("binary", "not text"), ("absent", "absent")):
        with pytest.raises(BadInput, match=says):
            read(tmp_path / name)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode("utf-8", "ignore"))))
def test_any_bytes_are_read_or_refused_in_one_line(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "any")
        file.write_bytes(content)
        try:
            assert len(read(file)) > 0
        except BadInput as error:
            assert "\n" not in str(error).replace(str(file), "")
