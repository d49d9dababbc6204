"""Training by blocks: the mixed model is PipeDream's stash, live processes are the simulator, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from assay.cli.compare import command  # noqa: E402
from assay.record.errors import BadInput  # noqa: E402
from assay.training.rpd import methods, objectives, train  # noqa: E402
from assay.training.rpd.live import example  # noqa: E402
from assay.training.rpd.slots import timeline  # noqa: E402
from assay.training.rpd.stages import Stage, simulated, split  # noqa: E402

EXAMPLE = Path(__file__).parents[3] / "examples" / "sequential.py"
RATES = np.array([0.01, 0.05])


def test_live_processes_give_the_simulators_weights_to_the_last_bit() -> None:
    model, batches, loss = example(3, 12, seed=4)
    live, simulator = model(), model()
    found = [train(one, batches, loss, stages=3, rate=0.05, live=at == 0) for at, one in enumerate((live, simulator))]
    for mine, theirs, before in zip(live.parameters(), simulator.parameters(), model().parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert not torch.equal(mine, before)
    assert found[0].losses == found[1].losses
    assert found[0].oldest == found[1].oldest
    assert (max(found[0].oldest), found[0].oldest[-1]) == (2, 0)


def test_stage_by_stage_with_stashes_is_the_gradient_at_the_mixed_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    batches = [(torch.randn(6, 4).double(), torch.randn(6, 1).double()) for _ in range(8)]
    parts, loss = split(model, 3), nn.functional.mse_loss
    stages = simulated(parts, timeline(3, 8), batches, 0.05, loss)
    by_stage = np.concatenate([w.detach().numpy().ravel() for stage in stages for w in stage.weights])
    problem = objectives.modules(parts, batches, loss)
    mixed = {}
    w = torch.from_numpy(problem.start)
    cuts = [0, *problem.cuts, len(w)]
    for row in timeline(3, 8):
        for s, op in enumerate(row.tolist()):
            block = slice(cuts[s], cuts[s + 1])
            if op > 0:
                mixed.setdefault(op, w.clone())[block] = w[block]
            elif op < 0:
                at = mixed[-op].clone().requires_grad_()
                w[block] -= 0.05 * torch.autograd.grad(problem.call(at, *batches[-op - 1]), at)[0][block]
    assert np.allclose(by_stage, w.numpy(), rtol=1e-12)


def test_forward_and_backward_use_the_same_version_whatever_happens_between() -> None:
    stage = Stage(nn.Linear(2, 1, bias=False), 0.5, nn.functional.mse_loss)
    x, y = torch.ones(1, 2), torch.zeros(1, 1)
    first = stage.weights[0].detach().clone()
    stage.forward(0, x, y)
    stage.forward(1, x, y)
    stage.backward(0, None)
    _, age = stage.backward(1, None)
    assert age == 1
    gradient = 2 * (first @ x.T) * x  # both at the first weights
    assert torch.allclose(stage.weights[0], first - 2 * 0.5 * gradient)


def test_with_one_stage_every_method_but_the_averages_is_plain_sgd() -> None:
    problem = objectives.linear("quadratic", 1, 0, weights=8, microbatches=6, batch=3)
    expected = np.zeros((2, 8))
    for m in methods._order(problem, 10, 0):
        expected = expected - RATES[:, None] * problem.gradient(expected, int(m))
    for method in (methods.pipedream, methods.synchronous):
        assert np.allclose(method(problem, RATES, 20, 0), expected)
    assert np.allclose(methods.local(problem, RATES, 20, 0, steps=10), expected)


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
def test_gradients_are_slopes_of_the_loss(kind: str) -> None:
    problem = objectives.linear(kind, 2, 1, weights=6, microbatches=4, batch=5)
    w = np.random.default_rng(0).normal(size=(1, 6))
    whole = np.mean([problem.gradient(w, m) for m in range(4)], axis=0)
    for at in range(6):
        up, down = w.copy(), w.copy()
        up[0, at] += 1e-5
        down[0, at] -= 1e-5
        assert whole[0, at] == pytest.approx(
            float((problem.loss(up) - problem.loss(down))[0]) / 2e-5, rel=1e-4, abs=1e-7
        )


def test_without_delay_the_randomised_twin_reads_what_is_there() -> None:
    problem = objectives.linear("quadratic", 4, 0, weights=16, microbatches=6, batch=3)
    start = problem.loss(problem.start[None])[0]
    fresh, stale = (problem.loss(methods.randomised(problem, RATES, 80, 0, delta)) for delta in (0, 60))
    assert (fresh < start).all()
    assert not np.array_equal(fresh, stale)


def test_a_step_size_that_diverges_never_wins() -> None:
    problem = objectives.linear("quadratic", 2, 0, weights=16, microbatches=6, batch=3)
    loss, rate = methods.best("synchronous", problem, 400, 0, problem.smoothness)
    assert np.isfinite(loss)
    assert rate < max(methods.GRID) / problem.smoothness


def test_a_sequential_is_cut_where_parameters_are_and_no_finer() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    for stages in (1, 2, 3):
        parts = split(layers, stages)
        assert len(parts) == stages
        assert [layer for part in parts for layer in part] == list(layers)
        assert all(any(True for _ in part.parameters()) for part in parts)
    with pytest.raises(BadInput, match="3 modules that have parameters"):
        split(layers, 4)


def test_the_users_own_model_is_raced_and_the_answer_says_who_wins(tmp_path: Path) -> None:
    asked = ["rpd", "--model", f"{EXAMPLE}:job", "--stages", "3", "--slots", "24", "--json"]
    found = CliRunner().invoke(command, asked)
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert {row["method"] for row in answer["table"]} == {"pipedream", "local-sgd", "gpipe", "synchronous"}
    assert answer["table"][0]["method"] in answer["why"]


def test_what_is_no_job_is_said_in_one_line(refused: Any, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def job():\n    return 3\n")
    assert "should give (nn.Sequential" in refused("compare", "rpd", "--model", f"{wrong}:job")
    assert "at most so many" in refused("compare", "rpd", "--model", f"{EXAMPLE}:job", "--stages", "40")
