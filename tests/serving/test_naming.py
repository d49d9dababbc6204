"""Every built serving paper can be tried on a user's own input, by its key, and nobody keeps a list of them."""

from __future__ import annotations

import click
import pytest

from assay.cli.compare import command as group
from assay.record import catalogue

BUILT = [key for key, paper in catalogue.papers().items() if paper.room == "serving" and catalogue.is_built(paper)]


@pytest.mark.parametrize("key", BUILT)
def test_its_key_names_a_comparison_that_takes_the_users_input(key: str) -> None:
    pytest.importorskip("torch")
    module = catalogue.comparisons("serving").get(key)
    assert module or catalogue.offers(key), f"{key}: declare `offers`, or write {key}/compare.py with a `command`"
    found = group.get_command(click.Context(group), key)  # type: ignore[attr-defined]
    assert isinstance(found, click.Command)
    assert {"as_json", "wide"} < {param.name for param in found.params}
    if module:
        assert any(param.required for param in found.params) or key == "powercap", "an own input is asked for"


@pytest.mark.parametrize("key", BUILT)
def test_its_own_input_is_that_command_on_an_example(key: str) -> None:
    study = catalogue.study(key) if key not in ("dooly", "rcllm", "irminsul") or pytest.importorskip("torch") else None
    assert study is not None
    assert study.own_input.startswith("assay compare "), study.own_input
    assert "examples/" in study.own_input
