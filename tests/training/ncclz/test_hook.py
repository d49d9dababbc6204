"""The hook averages over the group of its own model, whatever that is, and refuses what is no model of DDP's."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from assay.record.errors import BadInput  # noqa: E402
from assay.sim import gloo_ranks  # noqa: E402
from assay.sim.ranks import Rank, Ranks  # noqa: E402
from assay.sim.scratch import scratch  # noqa: E402
from assay.training.ncclz import Compression, Port, all_reduce, hook, race_job  # noqa: E402
from assay.training.ncclz.links import probed  # noqa: E402

WAYS = ({"eps": 1e-6}, {"bits": 16}, {"eps": 1e-6, "always": True}, {"bits": 16, "always": True})


def on_ranks(n: int, work: Any, *arguments: Any) -> list[Any]:
    with scratch() as where, Ranks(n, work, str(where), *arguments, imports=race_job.IMPORTS) as ranks:
        return ranks.wait(240.0)


def _averaged(rank: Rank, model: Any, how: dict[str, Any] | None, scale: float = 1.0) -> Any:
    """A gradient that tells whose it is, averaged by the hook, or as torch does it."""
    state = how and Compression(links="1gbit", **how)
    if state:
        model.register_comm_hook(state, hook)
    random = torch.Generator().manual_seed(rank.index)
    x = scale * torch.rand(8, 200, generator=random).to(next(model.parameters()).dtype)
    model(x).square().mean().backward()
    return [p.grad for p in model._module_parameters]  # beside tensor parallelism the model itself has none for a while


def _wide(dtype: Any = torch.float32) -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(200, 200, dtype=dtype)


def _in_groups(rank: Rank, where: str) -> list[float]:
    from torch.nn.parallel import DistributedDataParallel

    worst = []
    with gloo_ranks.joined(rank, where) as dist:
        groups = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "domain"))
        places = [{"process_group": groups[rank.index % 2]}, {"device_mesh": mesh["data"]}, {}]
        for place in places:
            truth = _averaged(rank, DistributedDataParallel(_wide(), **place), None)
            for how in WAYS:
                found = _averaged(rank, DistributedDataParallel(_wide(), **place), how)
                worst.append(max(float((a - b).abs().max()) for a, b in zip(found, truth, strict=True)))
    return worst


def test_two_models_in_two_groups_get_their_own_gradients() -> None:
    for worst in on_ranks(4, _in_groups):
        assert max(worst) < 3e-6, worst


def _beside_tensor_parallel(rank: Rank, where: str) -> tuple[list[float], int]:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel

    with gloo_ranks.joined(rank, where):
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        ways = []
        for how in (None, WAYS[0], WAYS[3]):
            inner = torch.nn.Sequential(_wide(), torch.nn.Tanh())
            model = parallelize_module(inner, mesh["tensor"], {"0": ColwiseParallel()})
            ways.append(_averaged(rank, DistributedDataParallel(model, device_mesh=mesh["data"]), how))
        truth, *found = ways
        return [max(float((a - b).abs().max()) for a, b in zip(one, truth, strict=True)) for one in found], len(truth)


def test_beside_tensor_parallelism_the_hook_sums_over_the_dimension_of_data() -> None:
    for worst, parameters in on_ranks(4, _beside_tensor_parallel):
        assert parameters == 2
        assert max(worst) < 3e-6, worst


def _one_state_two_models(rank: Rank, where: str) -> list[float]:
    from torch.nn.parallel import DistributedDataParallel

    with gloo_ranks.joined(rank, where) as dist:
        alone = [dist.new_group([one]) for one in (0, 1)][rank.index]
        both = DistributedDataParallel(_wide()), DistributedDataParallel(_wide(), process_group=alone)
        state = Compression(eps=1e-6, links="1gbit", always=True)
        worst = []
        for model, place in zip(both, ({}, {"process_group": alone}), strict=True):
            truth = _averaged(rank, DistributedDataParallel(_wide(), **place), None)
            model.register_comm_hook(state, hook)
            found = _averaged(rank, model, None)
            worst.append(max(float((a - b).abs().max()) for a, b in zip(found, truth, strict=True)))
        return worst


def test_one_compression_serves_two_models_of_different_groups() -> None:
    for worst in on_ranks(2, _one_state_two_models):
        assert max(worst) < 3e-6, worst


def _wrapped_twice(rank: Rank, where: str) -> tuple[float, list[str]]:
    from torch.nn.parallel import DistributedDataParallel

    with gloo_ranks.joined(rank, where) as dist:
        alone = [dist.new_group([one]) for one in (0, 1)][rank.index]
        inner = _wide()
        truth = _averaged(rank, DistributedDataParallel(_wide(), process_group=alone), None)
        states = [Compression(eps=1e-6, links="1gbit", always=True) for _ in range(2)]
        first, second = DistributedDataParallel(inner), DistributedDataParallel(inner, process_group=alone)
        first.register_comm_hook(states[0], hook)
        second.register_comm_hook(states[1], hook)
        _averaged(rank, first, None)
        inner.zero_grad()
        found = _averaged(rank, second, None)
        worst = max(float((a - b).abs().max()) for a, b in zip(found, truth, strict=True))
        third, said = DistributedDataParallel(inner, process_group=alone), list[str]()
        third.register_comm_hook(states[0], hook)
        for model in (third, DistributedDataParallel(_wide())):
            if model is not third:
                model.register_comm_hook(Compression(links="1gbit", always=bool(rank.index)), hook)
            try:
                _averaged(rank, model, None)
            except BadInput as error:
                said.append(str(error))
        return worst, said


def test_a_module_wrapped_for_two_groups_is_told_apart_or_refused_and_unalike_compressions_are() -> None:
    for worst, said in on_ranks(2, _wrapped_twice):
        assert worst < 3e-6
        twice, unalike = said
        assert "wrapped in DistributedDataParallel twice, for different groups" in twice
        assert "ranks differ in their Compression" in unalike


def _double(rank: Rank, where: str) -> list[float]:
    from torch.nn.parallel import DistributedDataParallel

    with gloo_ranks.joined(rank, where):
        worst = []
        for eps in (1e-10, 1e-4):
            truth = _averaged(rank, DistributedDataParallel(_wide(torch.float64)), None)
            how = {"eps": eps, "always": True}
            found = _averaged(rank, DistributedDataParallel(_wide(torch.float64)), how)
            worst.append(max(float((a - b).abs().max()) for a, b in zip(found, truth, strict=True)) / eps)
    return worst


def test_gradients_in_double_precision_keep_a_bound_that_single_precision_cannot() -> None:
    for worst in on_ranks(2, _double):
        assert max(worst) <= 1.0, worst


def _not_a_number(rank: Rank, where: str) -> tuple[int, bool]:
    from torch.nn.parallel import DistributedDataParallel

    with gloo_ranks.joined(rank, where):
        model = DistributedDataParallel(torch.nn.Embedding(100, 300))
        model.register_comm_hook(Compression(bits=8, links="1gbit", always=True), hook)
        model(torch.tensor([3, 50])).mul(torch.tensor([[float("nan") if rank.index else 1.0], [1.0]])).sum().backward()
        gradient = model.module.weight.grad
        return int(gradient.isnan().sum()), bool(gradient[3].isnan().all())


def test_a_row_that_is_no_number_leaves_its_neighbours_alone() -> None:
    assert on_ranks(2, _not_a_number) == [(300, True)] * 2


def _fully_sharded(rank: Rank, where: str) -> str:
    from torch.distributed.fsdp import FullyShardedDataParallel

    with gloo_ranks.joined(rank, where):
        model = FullyShardedDataParallel(_wide(), device_id=torch.device("cpu"))
        model.register_comm_hook(Compression(), hook)
        try:
            model(torch.ones(2, 200)).sum().backward()
        except Exception as error:
            return str(error)
        return ""


def test_fully_sharded_data_parallelism_is_refused_by_name() -> None:
    for said in on_ranks(2, _fully_sharded):
        assert "FullyShardedDataParallel's gradients do not come in any" in said


def _unequal(rank: Rank, where: str) -> list[str]:
    import numpy as np

    said = []
    with gloo_ranks.joined(rank, where) as dist:
        port = Port(dist, probed(dist))
        rooms = [np.ones(count + (count % 7 if rank.index else 0), np.float32) for count in (16_384, 40_000, 16_384)]
        for room in (*rooms, np.ones(16_384, np.float32), *rooms):
            try:
                total, _ = all_reduce(port, room, 1e-3)
                said.append(f"summed to {total.max():g}")
            except ValueError as error:
                said.append(str(error)[:15])
    return said


def test_sizes_on_either_side_of_64_kib_neither_hang_nor_abort() -> None:
    assert on_ranks(2, _unequal) == [["ranks differ in"] * 3 + ["summed to 2"] + ["ranks differ in"] * 3] * 2
