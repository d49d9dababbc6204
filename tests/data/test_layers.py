"""Nothing acknowledged is lost and nothing comes twice, whatever is done to files, outputs and names between runs."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.data.layers import Layers

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def explored(
    number: int, sequences: int, steps: int, machine: type[RuleBasedStateMachine] = Layers, *, shrink: bool = True
) -> None:
    """So many random sequences from a seed."""
    some = settings(
        max_examples=sequences, stateful_step_count=steps, deadline=None, database=None, derandomize=False,
        suppress_health_check=QUIET, phases=(Phase.generate, Phase.shrink)[: 1 + shrink], print_blob=True,
    )  # fmt: skip
    with patch("os.fsync"):  # nobody's power is cut here
        run_state_machine_as_test(seed(number)(machine), settings=some)


def test_twenty_sequences_lose_nothing() -> None:
    explored(37, 20, 8)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_two_thousand_sequences_lose_nothing(number: int) -> None:
    explored(number, 500, 12)


@pytest.mark.slow
def test_what_follows_from_an_input_is_the_answer_to_the_last_one() -> None:
    """Processes begin and end in every step: forty sequences, and one that fails is not made shorter."""
    from tests.data.answers import Answers  # brings torch

    explored(2, 40, 12, Answers, shrink=False)
