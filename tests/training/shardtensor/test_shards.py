"""Plain modules and torch calls in unequal stretches on real processes: outputs and gradients are those of one."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from assay.record.errors import BadInput  # noqa: E402
from assay.training import Domain, ShardTensor, redistributed, shard  # noqa: E402
from assay.training.shardtensor import check  # noqa: E402
from assay.training.shardtensor.dispatch import Unsupported  # noqa: E402
from assay.training.shardtensor.job import on_ranks, sizes_of  # noqa: E402
from tests.training.shardtensor import calls  # noqa: E402

RANKS = 3
FEW = ("vit", "unet")


@cache
def outcomes() -> list[Any]:
    """All cases in one job: stretches chosen for seed 0, drawn for others, some of them empty."""
    return on_ranks(RANKS, calls.all_of, list(calls.CALLS), [0])


@cache
def drawn(seeds: tuple[int, ...], names: tuple[str, ...]) -> list[Any]:
    return on_ranks(RANKS, calls.all_of, list(names), list(seeds))


@pytest.mark.parametrize("name", calls.CALLS)
def test_a_call_in_stretches_is_the_call_in_one_piece(name: str) -> None:
    for found in outcomes():
        assert max(found[name, 0][:3]) < 1e-11, found[name, 0]


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_models_agree_in_drawn_stretches_also_where_a_rank_has_nothing(name: str) -> None:
    for found in drawn((3, 4), FEW):
        for seed in (3, 4):
            assert max(found[name, seed][:3]) < 1e-11


@pytest.mark.slow
def test_all_calls_agree_in_many_drawn_stretches() -> None:
    for found in drawn(tuple(range(1, 6)), tuple(calls.CALLS)):
        wrong = {case: answer for case, answer in found.items() if max(answer[:3]) > 1e-11}
        assert wrong == {}


@pytest.mark.slow
def test_shards_and_data_parallelism_compose() -> None:
    for apart in on_ranks(4, calls.on_a_grid):
        assert apart < 1e-12


def test_a_batch_norm_keeps_the_running_statistics_of_the_whole() -> None:
    for apart in on_ranks(2, calls.running):
        assert apart < 1e-12


def test_bytes_are_those_of_halos_not_of_the_whole() -> None:
    """A 3x3 convolution needs one row of each neighbour, there and back; its weights' gradients are summed."""
    sent = on_ranks(RANKS, calls.sent_by_a_convolution)
    row, weights = 4 * 2 * 64, 4 * 2 * 2 * 9
    assert sent == [n * 2 * row + 2 * (RANKS - 1) * weights // RANKS for n in (1, 2, 1)]


# --- one process: no ranks are needed to see what is refused


def test_what_is_not_supported_is_named_and_never_gathered() -> None:
    x = shard(torch.randn(2, 3, 8, 8), 2, Domain())
    for call, name in (
        (lambda: torch.fft.rfft2(x), "fft_rfft2"),
        (lambda: torch.linalg.svd(x), "svd"),
        (lambda: x[x > 0], "indexing by a mask"),
        (lambda: x.topk(2, dim=2), "topk"),
        (lambda: x.cummax(2), "cummax"),
        (lambda: x.cumsum(2), "cumsum"),
        (lambda: x.argmax(2), "argmax"),
        (lambda: x.logsumexp(2), "logsumexp"),
        (lambda: x.logsumexp((1, 2)), "logsumexp"),
        (lambda: x.logsumexp(()), "logsumexp"),
        (lambda: torch.cdist(x, x), "cdist"),
        (lambda: torch.linalg.norm(x, 2, (2, 3)), "by its singular values"),
        (lambda: x[:, :, torch.tensor([0, 5])], "indexing"),
        (lambda: x.gather(2, redistributed(x, 2).long()), "gather"),
        (lambda: torch.where(x > 0), "where without values"),
        (lambda: torch.hstack([x, x]), "hstack"),
        (lambda: torch.zeros(2, 3, 8, 8).index_add(2, torch.arange(8), x), "index_add"),
        (lambda: torch.tensordot(x, torch.ones(8, 3), dims=1), "tensordot"),
        (lambda: nn.functional.unfold(x, 3), "unfold"),
        (lambda: x.numpy(), "numpy"),
        (lambda: x.tolist(), "tolist"),
        (lambda: nn.MaxPool2d(2, ceil_mode=True)(x), "max_pool2d"),
        (lambda: nn.Upsample(scale_factor=2, mode="bicubic")(x), "bicubic"),
        (lambda: x.__setitem__(0, 1.0), "setitem"),
    ):
        with pytest.raises(Unsupported, match=name) as refused:
            call()
        assert "\n" not in str(refused.value)
        assert "cut along 2" in str(refused.value)


def test_a_call_that_would_be_local_along_another_dimension_says_how_to_cut_that() -> None:
    x = shard(torch.randn(2, 8), 1, Domain())
    with pytest.raises(Unsupported, match=r"sort .* redistributed\(x, dim\) to cut another dimension"):
        x.sort(dim=1)
    assert torch.equal(redistributed(x, 0).sort(dim=1).values.local, x.local.sort(dim=1).values)


def test_a_refusal_on_ranks_is_one_line_and_no_hang() -> None:
    with pytest.raises(Unsupported, match="does not support sort"):
        check(calls.Sorts(), torch.randn(1, 12), dim=1, shares=[1, 2])


def test_a_shard_is_a_tensor_with_the_shape_of_the_whole() -> None:
    x = shard(torch.randn(2, 5), 1, Domain())
    assert isinstance(x, torch.Tensor)
    assert isinstance(x * 2 + 1, ShardTensor)
    assert (x.shape, x.dim(), x.dtype, len(x), x.numel()) == ((2, 5), 2, torch.float32, 2, 10)
    assert torch.equal(x.full_tensor(), x.local)
    assert redistributed(x, 0).axis == 0
    assert not isinstance(x.mean(), ShardTensor)


def test_arguments_by_numpys_names_are_those_of_torch() -> None:
    x = torch.randn(4, 5, 6)
    part = shard(x, 1, Domain())
    assert torch.equal(torch.linalg.vector_norm(part, axis=0).local, torch.linalg.vector_norm(x, dim=0))
    assert torch.equal(torch.chunk(part, 2, axis=2)[1].local, x.chunk(2, 2)[1])
    assert torch.equal(torch.cat([part, part], axis=0).local, torch.cat([x, x]))
    for call in (torch.sort, torch.cummax, torch.cumprod):
        with pytest.raises(Unsupported, match="along the cut dimension"):
            call(part, axis=1)


def test_gradients_of_shards_by_autograd_grad() -> None:
    x = shard(torch.randn(2, 5), 1, Domain()).requires_grad_()
    (found,) = torch.autograd.grad((x * x).sum(), x)
    assert torch.equal(found.local, 2 * x.local)


def test_channels_are_dropped_whole() -> None:
    found = nn.Dropout2d(0.5)(shard(torch.ones(4, 8, 3, 3), 2, Domain())).local
    assert torch.equal(found.amin((2, 3)), found.amax((2, 3)))


def test_sizes_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(BadInput, match="1 that add up to 5"):
        shard(torch.randn(2, 5), 1, Domain(), [4])
    with pytest.raises(BadInput, match="one number above 0"):
        sizes_of(10, [-1, 2])


def test_dropout_keeps_the_mean_and_the_common_stream() -> None:
    torch.manual_seed(0)
    found = nn.Dropout(0.25)(shard(torch.ones(100, 100), 0, Domain()))
    assert found.local.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert float(found.mean()) == pytest.approx(1.0, abs=0.05)
