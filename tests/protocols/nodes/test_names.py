"""The library's nodes go by their names alone."""

from __future__ import annotations

import pytest

from assay.protocols import nodes
from assay.protocols.interface import Node
from assay.protocols.kernel.launch import own


@pytest.mark.parametrize("name", nodes.__all__)
def test_every_name_is_a_node(name: str) -> None:
    assert issubclass(getattr(nodes, name), Node)


def test_a_node_is_made_from_its_name() -> None:
    assert type(own("assay.protocols.nodes:Bracha")(0)).__name__ == "Bracha"


def test_a_name_that_is_not_there_is_told_those_that_are() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Brahca'; there are ABA"):
        nodes.Brahca  # noqa: B018
