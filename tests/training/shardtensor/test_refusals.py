"""What has no version is refused by name, always: in-place calls, writes through views, functions of autograd.

All of torch's own operators are tried with torch's own samples: each is what one process gives, or refused by all.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.checkpoint import checkpoint  # noqa: E402

from assay.cli.compare import command  # noqa: E402
from assay.record.errors import AssayError  # noqa: E402
from assay.training import Domain, shard  # noqa: E402
from assay.training.shardtensor.dispatch import ShardTensor, Unsupported  # noqa: E402
from assay.training.shardtensor.shards import mine  # noqa: E402
from tests.oracles.domain_of_threads import on_threads  # noqa: E402

SIZES = (4, 0, 3)
THIRTY = """
add mul cumsum squeeze unsqueeze transpose logsumexp softmax sum var norm cat stack split index_select gather roll flip
tril matmul einsum addmm where clamp sort nn.functional.pad nn.functional.conv2d nn.functional.interpolate
nn.functional.layer_norm nn.functional.scaled_dot_product_attention
""".split()


def on_shards(work: Callable[[Any], Any], *shape: int, dim: int = 0, sizes: tuple[int, ...] = SIZES) -> list[Any]:
    """`work(x)` on every rank, where x is a shard of the same numbers."""
    x = torch.arange(1.0, 1.0 + torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)
    return on_threads(len(sizes), lambda domain: work(shard(x, dim, domain, sizes)))


@pytest.mark.parametrize(
    "name", ["cumsum_", "unsqueeze_", "squeeze_", "transpose_", "swapaxes_", "tril_", "detach_", "t_"]
)
def test_what_cannot_be_done_in_place_is_refused_and_not_done_beside(name: str) -> None:
    given = {"cumsum_": (0,), "unsqueeze_": (0,), "transpose_": (0, 1), "swapaxes_": (0, 1)}.get(name, ())
    for found in on_shards(lambda x: getattr(x, name)(*given), 7, 7):
        assert isinstance(found, Unsupported)
        assert f"does not support {name.strip('_')}" in str(found)


WRITES: dict[str, Callable[[Any], Any]] = {
    "a narrowed stretch": lambda x: x[1:6].mul_(2),
    "every other row": lambda x: x[::2].zero_(),
    "columns": lambda x: x[:, 1:3].add_(1),
    "a transposed view": lambda x: x.t().mul_(torch.arange(7.0)),
    "an unsqueezed one": lambda x: x.unsqueeze(0).add_(1),
    "a view of rows": lambda x: x.view(7, 2, 2).mul_(3),
    "parts": lambda x: [part.mul_(n) for n, part in enumerate(x.split([2, 5]))],
    "a view of a view": lambda x: x[2:][:, 1:].neg_(),
    "an operator": lambda x: x.__iadd__(torch.ones(4)),
    "the first one, its view read later": lambda x: (x[1:], x.mul_(2))[0].sum(),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_through_views_arrive(name: str) -> None:
    truth = torch.arange(1.0, 29.0, dtype=torch.float64).reshape(7, 4)
    said = WRITES[name](truth)

    def work(x: Any) -> tuple[Any, Any]:
        return WRITES[name](x), x

    for rank, (back, x) in enumerate(on_shards(work, 7, 4)):
        assert torch.equal(x.local, mine(truth, 0, x.domain, SIZES)), rank
        if isinstance(said, torch.Tensor) and said.ndim == 0:
            assert torch.equal(back, said)


LOST: dict[str, Callable[[Any], Any]] = {
    "one row, which all ranks get": lambda x: (x[2], x.mul_(2)),
    "a view whose rows had to move": lambda x: x.view(2, 14).zero_(),
    "what it was a view of": lambda x: (x.view(2, 14), x.add_(1)),
    "what reshape may have copied": lambda x: x.t().reshape(28).mul_(2),
    "what contiguous may have copied": lambda x: x.contiguous().add_(1),
    "into a plain tensor": lambda x: torch.zeros(7, 4, dtype=torch.float64).add_(x),
    "wider than it is": lambda x: x.add_(torch.zeros(2, 7, 4, dtype=torch.float64)),
    "into out=": lambda x: torch.add(x, x, out=x),
}


@pytest.mark.parametrize("name", LOST)
def test_writes_that_would_be_lost_are_refused_on_every_rank(name: str) -> None:
    for found in on_shards(LOST[name], 7, 4):
        assert isinstance(found, Unsupported), found


def test_what_is_changed_in_place_is_cut_as_it_was_whatever_it_is_changed_by() -> None:
    truth = torch.ones(1, 7, dtype=torch.float64)
    truth.add_(torch.arange(7.0))

    def work(domain: Domain) -> Any:
        x = shard(torch.ones(1, 7, dtype=torch.float64), 1, domain, SIZES)
        return x.add_(shard(torch.arange(7.0), 0, domain, (1, 5, 1))), x, domain

    for back, x, domain in on_threads(3, work):
        assert back is x
        assert torch.equal(x.local, mine(truth, 1, domain, SIZES))


def test_a_query_that_may_see_nothing_gets_zeros_as_from_one_process() -> None:
    torch.manual_seed(0)
    q = torch.randn(1, 2, 7, 4, dtype=torch.float64)
    mask = torch.rand(7, 7) < 0.5
    mask[[1, 5]] = False
    added = torch.zeros(7, 7, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    for given in (mask, added):
        whole = q.clone().requires_grad_()
        truth = F.scaled_dot_product_attention(whole, whole, whole, attn_mask=given)
        truth.square().sum().backward()

        def work(domain: Domain, given: Any = given) -> Any:
            x = shard(q, 2, domain, SIZES).requires_grad_()
            found = F.scaled_dot_product_attention(x, x, x, attn_mask=given)
            found.square().sum().backward()
            return found.local, x.local.grad, domain

        for found, gradient, domain in on_threads(3, work):
            assert torch.allclose(found, mine(truth, 2, domain, SIZES))
            assert torch.allclose(gradient, mine(whole.grad, 2, domain, SIZES))


def test_a_reentrant_checkpoint_is_refused_and_the_other_kind_gives_the_gradient() -> None:
    layer = torch.nn.Linear(4, 4, dtype=torch.float64)
    x = torch.randn(7, 4, dtype=torch.float64)

    def work(domain: Domain, again: bool, scalar: bool) -> Any:
        part = shard(x, 0, domain, SIZES).requires_grad_()
        y = part * 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ends = (lambda t: layer(t).sum()) if scalar else layer
            found = checkpoint(ends, y, use_reentrant=again)
            found.sum().backward()
        return part.local.grad

    for scalar in (False, True):
        for found in on_threads(3, lambda domain, scalar=scalar: work(domain, True, scalar)):
            assert isinstance(found, Unsupported), found
            assert "use_reentrant=False" in str(found)
        for found in on_threads(3, lambda domain, scalar=scalar: work(domain, False, scalar)):
            assert torch.allclose(found, 2 * layer.weight.sum(0).expand(len(found), 4))


def test_rotated_queries_under_autocast_are_attended_to_in_its_precision() -> None:
    torch.manual_seed(0)
    x, angle = torch.randn(1, 7, 2, 8), torch.rand(7, 1, 4)

    def attend(x: Any) -> Any:
        a, b = x.chunk(2, -1)
        turned = torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).transpose(1, 2)
        values = (x @ torch.eye(8)).transpose(1, 2)  # lower precision than what was turned
        return F.scaled_dot_product_attention(turned, turned, values)

    with torch.autocast("cpu", torch.bfloat16):
        truth = attend(x)

    def work(domain: Domain) -> Any:
        part = shard(x, 1, domain, SIZES).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            found = attend(part)
        found.float().square().sum().backward()
        return found, part.local.grad, domain

    for found, gradient, domain in on_threads(3, work):
        assert found.dtype is truth.dtype
        assert torch.allclose(found.local.float(), mine(truth, 2, domain, SIZES).float(), atol=0.05)
        assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("kernel", [2, 4])
@pytest.mark.parametrize("padding", [0, 1, "same"])
@pytest.mark.parametrize("sizes", [(4, 0, 3), (0, 7, 0), (7, 0, 0), (1, 0, 6)])
def test_even_kernels_over_empty_stretches(kernel: int, padding: Any, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(2, 2, kernel, 3, dtype=torch.float64), torch.randn(1, 2, 7, 5, dtype=torch.float64)
    whole = x.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        truth = F.conv2d(whole, weight, padding=padding)
        truth.square().sum().backward()

        def work(domain: Domain) -> Any:
            part = shard(x, 2, domain, sizes).requires_grad_()
            found = F.conv2d(part, weight, padding=padding)
            found.square().sum().backward()
            return found, part.local.grad, domain

        for found, gradient, domain in on_threads(3, work):
            assert torch.allclose(found.local, mine(truth, 2, domain, found.sizes))
            assert torch.allclose(gradient, mine(whole.grad, 2, domain, sizes))


def test_a_function_of_ones_own_is_refused_instead_of_losing_its_gradient() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * 2

    x = shard(torch.ones(4), 0, Domain()).requires_grad_()
    with pytest.raises(Unsupported, match="function of autograd"):
        Twice.apply(x).sum().backward()
    assert isinstance(x, ShardTensor)


def test_a_model_that_differs_in_stretches_fails_the_comparison(tmp_path: Path) -> None:
    odd = tmp_path / "odd.py"
    odd.write_text(
        "import torch\n"
        "class Odd(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.w = torch.nn.Parameter(torch.ones(3))\n"
        "    def forward(self, x):\n"
        "        return 1e-6 * x * self.w * (1.001 if type(x) is torch.Tensor else 1.0)\n"
        "def job():\n"
        "    return Odd(), torch.ones(1, 2, 8, 3)\n"
    )
    found = CliRunner().invoke(command, ["shardtensor", "--model", f"{odd}:job", "--shares", "1,1", "--json"])
    assert isinstance(found.exception, AssayError)
    assert found.exception.exit_code == 1
    assert "differ by 0.001 of the largest, rounding explains" in str(found.exception)


def _wrong(names: list[str] | None, most: int, kinds: Any) -> tuple[dict[str, Any], Counter[str], Counter[str]]:
    """What is wrong; and how many calls, and how many operators, are equal, refused, or now this, now that."""
    from tests.training.shardtensor import samples

    fine = ("equal", "refused", "torch refuses")
    wrong, calls, said = dict[str, Any](), Counter[str](), dict[str, set[str]]()
    for kind in kinds:
        for name, row in samples.table(names, most, kind).items():
            calls += Counter({key: row[key] for key in fine if key in row})
            said.setdefault(name, set()).update(row.keys() - {"torch refuses"})
            if not row.keys() <= set(fine):
                wrong[f"{name}, {kind}"] = row
    operators = Counter(" or ".join(sorted(some)) or "nothing to cut" for some in said.values() if some <= set(fine))
    return wrong, calls, operators


def test_thirty_of_torchs_operators_are_what_one_process_gives_or_refused() -> None:
    wrong, calls, operators = _wrong(THIRTY, 1, [torch.float64])
    assert wrong == {}
    assert calls["equal"] > 250, calls
    assert operators["equal"] + operators["equal or refused"] > 20, operators


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.int64, torch.bool, torch.complex128], ids=str)
def test_every_operator_of_torch_is_what_one_process_gives_or_refused(kind: Any, record_property: Any) -> None:
    wrong, calls, operators = _wrong(None, 8, [kind])
    record_property("operators", operators)
    print(f"{kind}: operators: {dict(operators)}; calls: {dict(calls)}; wrong: {wrong}")
    assert wrong == {}
