"""Small files of the user's: what cannot be read is told with the file, the place and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.record import reading
from assay.record.errors import BadInput


def test_text_with_and_without_a_byte_order_mark(tmp_path: Path) -> None:
    for content in (b"a\nb", b"\xef\xbb\xbfa\nb"):
        (tmp_path / "x").write_bytes(content)
        assert reading.text(tmp_path / "x") == "a\nb"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"ab\xff", "not text (byte 2 is no UTF-8); a poem"),
        (b"x" * 11, "larger than 10 bytes; a poem"),
        (None, "No such file or directory; a poem"),
    ],
)
def test_what_is_no_text_is_told(tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    with pytest.raises(BadInput) as told:
        reading.text(tmp_path / "x", "a poem", largest=10)
    assert str(told.value).endswith(said) and str(tmp_path / "x") in str(told.value)


def test_a_directory_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Is a directory"):
        reading.text(tmp_path)


@pytest.mark.parametrize("content", ["a = ", "a = " + "[" * 2000])
def test_what_is_no_toml_is_told_in_a_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "x").write_text(content)
    with pytest.raises(BadInput, match="x: not TOML") as told:
        reading.toml(tmp_path / "x")
    assert "\n" not in str(told.value)
