"""Torch calls and modules in stretches beside themselves in one piece, in double precision; ranks import this file."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

from assay.training.shardtensor import models
from assay.training.shardtensor.dispatch import Domain, shard
from assay.training.shardtensor.job import compared


class Call(nn.Module):
    """A function of a tensor and a few weights of given shapes."""

    def __init__(self, call: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.call = call
        self.weights = nn.ParameterList(torch.randn(shape) for shape in shapes)

    def forward(self, *x: Tensor) -> Any:
        return self.call(*x, *self.weights)


class Handmade(nn.Module):
    """Attention as people write it out."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return ((q @ k.transpose(-2, -1)) * 8**-0.5).softmax(dim=-1) @ v


class Slices(nn.Module):
    """Transolver's attention: points are pooled into a few slices, which talk, and are handed back."""

    def __init__(self) -> None:
        super().__init__()
        self.weigh, self.mix = nn.Linear(8, 4), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.weigh(x).softmax(dim=-1)
        slices = torch.einsum("bnc,bng->bgc", x, weights) / (weights.sum(dim=1) + 1e-5)[..., None]
        slices = F.scaled_dot_product_attention(slices, slices, self.mix(slices))
        return torch.einsum("bgc,bng->bnc", slices, weights)


class Perceiver(nn.Module):
    """A few latents look at all tokens, and all tokens at them."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, 5, 8))

    def forward(self, x: Tensor) -> Tensor:
        found = F.scaled_dot_product_attention(self.latents.expand(x.shape[0], -1, -1), x, x)
        return F.scaled_dot_product_attention(x, found, found)


class Windows(nn.Module):
    """Shifted windows: roll, partition, attention within, back."""

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        x = x.roll((-1, -2), (1, 2)).reshape(b, h // 3, 3, w // 3, 3, c)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(b, -1, 9, c)
        x = F.scaled_dot_product_attention(x, x, x)
        x = x.reshape(b, h // 3, w // 3, 3, 3, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return x.roll((1, 2), (1, 2))


def multi_head(**options: Any) -> nn.Module:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    call = Call(lambda x: [y for y in attention(x, x, x, **options) if y is not None])
    call.attention = attention
    return call


N = 23  # elements along the cut dimension
IMAGE, TOKENS = (2, 4, N, 10), (2, N, 8)
Case = tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...], int]


def on(shape: tuple[int, ...], dim: int, call: Callable[..., Any], *weights: tuple[int, ...]) -> Case:
    return (lambda: Call(call, *weights)), (shape,), dim


def of(module: Callable[[], nn.Module], shape: tuple[int, ...] = IMAGE, dim: int = 2) -> Case:
    return module, (shape,), dim


def two(shape: tuple[int, ...], dim: int, call: Callable[..., Any]) -> Case:
    return (lambda: Call(call)), (shape, shape), dim


CALLS: dict[str, Case] = {
    "vit": of(models.ViT, (2, 2, 32, 16)),
    "vit along columns": of(lambda: models.ViT(grid=(8, 16)), (2, 2, 16, 32), 3),
    "unet": of(models.UNet, (1, 2, 36, 12)),
    "unet along columns": of(models.UNet, (1, 2, 8, 36), 3),
    "conv": of(lambda: nn.Conv2d(4, 6, 3, padding=1)),
    "conv, stride 2": of(lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1)),
    "conv, stride 3 without padding": of(lambda: nn.Conv2d(4, 6, 3, stride=3)),
    "conv, kernel 2": of(lambda: nn.Conv2d(4, 6, 2, stride=2)),
    "conv, dilated in groups": of(lambda: nn.Conv2d(4, 6, 3, dilation=3, padding=2, groups=2)),
    "conv, kernel over several ranks": of(lambda: nn.Conv2d(4, 2, (15, 3), padding=(7, 1))),
    "conv, wide padding": of(lambda: nn.Conv2d(4, 2, 3, padding=5, stride=2)),
    "conv, stride over kernel": of(lambda: nn.Conv2d(4, 2, 2, stride=5)),
    "conv, same": of(lambda: nn.Conv2d(4, 2, 4, padding="same", dilation=2)),
    "conv, circular": of(lambda: nn.Conv2d(4, 2, 5, padding=2, padding_mode="circular")),
    "conv, reflect": of(lambda: nn.Conv2d(4, 2, 5, padding=2, padding_mode="reflect")),
    "conv, replicate": of(lambda: nn.Conv2d(4, 2, 5, padding=2, padding_mode="replicate")),
    "conv, no bias, cut in samples": of(lambda: nn.Conv2d(4, 2, 3, bias=False), (N, 4, 5, 6), 0),
    "conv1d": of(lambda: nn.Conv1d(4, 3, 5, stride=2, padding=2), (2, 4, N), 2),
    "conv3d": of(lambda: nn.Conv3d(2, 3, 3, padding=1, stride=(1, 2, 1)), (1, 2, 4, N, 5), 3),
    "transposed": of(lambda: nn.ConvTranspose2d(4, 3, 2, stride=2)),
    "transposed, overlapping": of(lambda: nn.ConvTranspose2d(4, 3, 4, stride=2, padding=1)),
    "transposed, output padding": of(lambda: nn.ConvTranspose2d(4, 3, 3, 3, padding=1, output_padding=2)),
    "transposed, dilated in groups": of(lambda: nn.ConvTranspose2d(4, 6, 3, 2, 2, 1, groups=2, dilation=2)),
    "transposed, stride 1": of(lambda: nn.ConvTranspose2d(4, 3, 5, padding=2)),
    "transposed3d": of(lambda: nn.ConvTranspose3d(2, 3, 3, stride=2), (1, 2, 3, N, 4), 3),
    "max pool": of(lambda: nn.MaxPool2d(3, 2, 1)),
    "max pool 2": of(lambda: nn.MaxPool2d(2)),
    "average pool": of(lambda: nn.AvgPool2d(3, 2, 1)),
    "pool to one": of(lambda: nn.AdaptiveAvgPool2d(1)),
    "pool to the largest": of(lambda: nn.AdaptiveMaxPool2d(1)),
    "pool to some": of(lambda: nn.AdaptiveAvgPool2d((8, 5)), (2, 4, 24, 10)),
    "nearest": of(lambda: nn.Upsample(scale_factor=2)),
    "nearest, to a size": of(lambda: nn.Upsample(size=(31, 7))),
    "bilinear": of(lambda: nn.Upsample(scale_factor=2, mode="bilinear")),
    "bilinear, corners": of(lambda: nn.Upsample(size=(37, 9), mode="bilinear", align_corners=True)),
    "bilinear, smaller": of(lambda: nn.Upsample(size=(9, 4), mode="bilinear", align_corners=False)),
    "trilinear": of(lambda: nn.Upsample(scale_factor=1.5, mode="trilinear"), (1, 2, 4, N, 4), 3),
    "pad": on(IMAGE, 2, lambda x: F.pad(x, (1, 2, 3, 4), value=0.5)),
    "pad, negative": on(IMAGE, 2, lambda x: F.pad(x, (0, 0, -2, 3))),
    "pixel shuffle": of(lambda: nn.PixelShuffle(2)),
    "group norm": of(lambda: nn.GroupNorm(2, 4)),
    "batch norm": of(lambda: nn.BatchNorm2d(4)),
    "batch norm, at work": of(lambda: nn.BatchNorm2d(4).eval()),
    "instance norm": of(lambda: nn.InstanceNorm2d(4, affine=True)),
    "layer norm": of(lambda: nn.LayerNorm(8), TOKENS, 1),
    "layer norm over the cut": of(lambda: nn.LayerNorm([4, N, 10])),
    "rms norm": of(lambda: nn.RMSNorm([N, 10])),
    "largest so far, beside the cut": on(TOKENS, 1, lambda x: x.cummax(2).values + x.logcumsumexp(2)),
    "softmax over the cut": on(TOKENS, 1, lambda x: x.softmax(1) * x),
    "log softmax over the cut": on(TOKENS, 1, lambda x: F.log_softmax(x, dim=1)),
    "sums": on(IMAGE, 2, lambda x: (x.sum(), x.sum((0, 2)), x.mean(dim=2, keepdim=True), x.sum(1))),
    "spread": on(IMAGE, 2, lambda x: (x.var(dim=(2, 3)), x.std(dim=2, keepdim=True), x.var(dim=1), x.var())),
    "norms": on(IMAGE, 2, lambda x: (x.norm(), torch.linalg.vector_norm(x, dim=2), x.norm(dim=(1, 2)))),
    "extremes": on(IMAGE, 2, lambda x: (x.amax((1, 2)), x.max(), x.amin(dim=2), x.max(dim=1)[0])),
    "linear over the cut": of(lambda: nn.Linear(N, 5), (2, 3, N), 2),
    "flatten, then linear": of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4 * N * 10, 3))),
    "attention": two(TOKENS, 1, lambda x, y: F.scaled_dot_product_attention(x, y, x)),
    "attention, causal": on((2, 2, N, 8), 2, lambda x: F.scaled_dot_product_attention(x, x.tanh(), x, is_causal=True)),
    "attention, unequal widths": on((2, 2, N, 8), 2, lambda x: F.scaled_dot_product_attention(x, x, x[..., :3])),
    "attention, unequal widths, causal": on(
        (1, 2, N, 8), 2, lambda x: F.scaled_dot_product_attention(x, x, x[..., :3], is_causal=True)
    ),
    "attention, learned bias": on(
        (2, 2, N, 8), 2, lambda x, b: F.scaled_dot_product_attention(x, x, x, attn_mask=b), (2, N, N)
    ),
    "attention, heads cut": on((2, N, 5, 8), 1, lambda x: F.scaled_dot_product_attention(x, x, x)),
    "attention, grouped": on(
        (1, 4, N, 8), 2, lambda x: F.scaled_dot_product_attention(x, x[:, :2], x[:, 2:], enable_gqa=True)
    ),
    "attention by hand": of(Handmade, TOKENS, 1),
    "slices": of(Slices, TOKENS, 1),
    "perceiver": of(Perceiver, TOKENS, 1),
    "windows": of(Windows, (2, 24, 9, 4), 1),
    "multi-head": of(multi_head, TOKENS, 1),
    "multi-head without weights": of(lambda: multi_head(need_weights=False), TOKENS, 1),
    "encoder layer": of(lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), TOKENS, 1),
    "encoder layer, tokens first": of(lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0), (N, 2, 8), 0),
    "encoder layer, at work": of(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), TOKENS, 1),
    "einsum of pairs": on(TOKENS, 1, lambda x: torch.einsum("bid,bjd->bij", x, x.tanh())),
    "einsum, transposed pairs": on(TOKENS, 1, lambda x: torch.einsum("bid,bjd->bji", x, x.tanh())),
    "einsum with dots": on(TOKENS, 1, lambda x, w: torch.einsum("...nc,cd->...nd", x, w), (8, 3)),
    "matmul on the left": on((2, 8, N), 2, lambda x, w: w @ x, (5, 8)),
    "matmul, contracted": on(TOKENS, 1, lambda x: x.mT @ x),
    "matmul, columns by columns": on((2, N, N), 2, lambda x: x @ x.tanh()),
    "matmul, rows by rows": on((2, N, N), 1, lambda x: x @ x.tanh()),
    "gather": on(TOKENS, 1, lambda x: x.gather(2, x.detach().argsort(dim=2)[:, :, :3])),
    "by numbers, another dimension": on(TOKENS, 1, lambda x: x[:, :, torch.tensor([1, 1, 7])]),
    "one row": on(TOKENS, 1, lambda x: (x[:, 0], x[:, -1], x[0], x[..., 3])),
    "slices of rows": on(TOKENS, 1, lambda x: (x[:, 1:], x[:, ::2], x[:, 5:-3:3, None], x[:, :2] * 2)),
    "split": on(TOKENS, 1, lambda x: (*x.split(9, dim=1), *x.chunk(2, dim=2), *x.unbind(0))),
    "cat along the cut": on(TOKENS, 1, lambda x, w: torch.cat([w, x, x.tanh(), w], dim=1), (2, 3, 8)),
    "cat beside the cut": on(TOKENS, 1, lambda x, w: torch.cat([x, w], dim=2), (2, N, 1)),
    "stack": on(TOKENS, 1, lambda x: torch.stack([x, x.tanh()], dim=1)),
    "flip and roll": on(TOKENS, 1, lambda x: x.flip(2) * x + x.roll(4, 1) + x.roll(-1, 2)),
    "merge and split": on((2, 24, 6, 4), 1, lambda x: x.reshape(2, 144, 4).reshape(2, 8, 18, 4)),
    "merge behind others": on((1, 6, N), 2, lambda x: x.reshape(1, 6 * N)),
    "repeat": on(TOKENS, 1, lambda x: x.repeat(2, 1, 1).repeat_interleave(3, dim=1)),
    "broadcast": on(TOKENS, 1, lambda x, w, b: x * w + b, (N, 1), (8,)),
    "more dimensions": on((N, 8), 0, lambda x, w: x + w, (3, 1, 8)),
    "in place": on(TOKENS, 1, lambda x: F.relu((x * 2).add_(x).mul_(3).sub_(0.5), inplace=True)),
    "losses": two(TOKENS, 1, lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y, reduction="sum"), F.smooth_l1_loss(x, y))),
    "classes": on((2, 5, N), 2, lambda x: F.cross_entropy(x, torch.arange(2 * N).reshape(2, N) % 5)),
    "activations": on(TOKENS, 1, lambda x: F.gelu(x) + F.softplus(x) + torch.where(x > 0, x, x.exp()) - x.clamp(-1, 1)),
    "another cut of a result": two(TOKENS, 1, lambda x, y: x * y.roll(1, 1)[:, :, :1] + y[:, 1:].sum(1, keepdim=True)),
}  # fmt: skip


def sizes_for(length: int, ranks: int, seed: int) -> tuple[int, ...]:
    """Stretches of any lengths, some of them empty."""
    random = torch.Generator().manual_seed(seed)
    cuts = sorted(int(n) for n in torch.randint(0, length + 1, (ranks - 1,), generator=random))
    return tuple(b - a for a, b in zip([0, *cuts], [*cuts, length], strict=True))


def all_of(names: list[str], seeds: list[int]) -> dict[tuple[str, int], tuple[float, ...]]:
    """On this rank: every case, in the thirds of the seed; the default stretches for seed 0."""
    torch.set_default_dtype(torch.float64)
    domain, found = Domain(), {}
    for name in names:
        build, shapes, dim = CALLS[name]
        for seed in seeds:
            torch.manual_seed(seed)
            model, inputs = build(), [torch.randn(shape) for shape in shapes]
            length = shapes[0][dim]
            sizes = sizes_for(length, domain.size, seed) if seed else (length // 3 + 2, length // 4, 0)
            sizes = sizes if seed else (*sizes[:2], length - sum(sizes[:2]))
            try:
                found[name, seed] = compared(model, inputs, dim, sizes, domain)
            except Exception as error:
                # The others may wait for this rank: it says why and leaves the group, which ends their waiting.
                raise RuntimeError(f"{name} in {sizes}: {type(error).__name__}: {error}") from error
    return found


class Sorts(nn.Module):
    """Calls what has no version across ranks."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sort(dim=1).values


def on_a_grid() -> float:
    """Two samples on two pairs of ranks: each pair shares a sample, DDP averages over the pairs."""
    torch.set_default_dtype(torch.float64)
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    domain = Domain(pairs[rank // 2])
    torch.manual_seed(0)
    model, x = models.UNet(), torch.randn(2, 2, 20, 8)
    truth = copy.deepcopy(model)
    truth(x).square().mean().backward()
    together = nn.parallel.DistributedDataParallel(model, process_group=across[rank % 2])
    together(shard(x[rank // 2 : rank // 2 + 1], 2, domain, [13, 7])).square().mean().backward()
    pairs_of = zip(model.parameters(), truth.parameters(), strict=True)
    return max(float((a.grad - b.grad).abs().max()) for a, b in pairs_of)


def running() -> float:
    """How far the running statistics of a batch norm are from those of one process."""
    torch.manual_seed(0)
    whole, cut, x = nn.BatchNorm2d(3).double(), nn.BatchNorm2d(3).double(), torch.randn(2, 3, 9, 4).double()
    whole(x)
    cut(shard(x, 2, Domain(), [2, 7]))
    return max(float((a - b).abs().max()) for a, b in zip(whole.buffers(), cut.buffers(), strict=True))


def sent_by_a_convolution() -> int:
    """Bytes that this rank sends, forward and backward."""
    domain = Domain()
    model = nn.Conv2d(2, 2, 3, padding=1, bias=False)
    x = shard(torch.randn(1, 2, 30, 64), 2, domain, [7, 12, 11]).requires_grad_()
    model(x).local.sum().backward()
    return domain.sent
