"""Three plain models that know nothing of shards: a vision transformer, a U-Net, and a point transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """A transformer's layer over tokens `[batch, token, width]`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then each token alone."""
        batch, tokens, width = x.shape
        qkv = self.qkv(self.before(x)).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.after(x))  # type: ignore[no-any-return]


class ViT(nn.Module):
    """A vision transformer with a class token, from an image to an image: patches, layers, patches put together."""

    def __init__(self, channels: int = 2, width: int = 32, heads: int = 4, layers: int = 2, patch: int = 2,
                 grid: tuple[int, int] = (16, 8)) -> None:  # fmt: skip
        super().__init__()
        self.patch = patch
        self.embed = nn.Conv2d(channels, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) / 4)
        self.position = nn.Parameter(torch.randn(1, grid[0] * grid[1], width) / 4)
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head, self.judge = nn.Linear(width, channels * patch**2), nn.Linear(width, 3)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """A picture of the same size, and three numbers from the class token."""
        x = self.embed(image)
        batch, _width, rows, columns = x.shape
        x = x.flatten(2).transpose(1, 2) + self.position
        x = torch.cat([self.token.expand(batch, -1, -1), x], dim=1)
        x = self.norm(self.layers(x))
        pixels = self.head(x[:, 1:]).transpose(1, 2).reshape(batch, -1, rows, columns)
        return functional.pixel_shuffle(pixels, self.patch), self.judge(x[:, 0])


class Twice(nn.Module):
    """Two convolutions with group norms."""

    def __init__(self, old: int, new: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(old, new, 3, padding=1), nn.GroupNorm(4, new), nn.SiLU(),
            nn.Conv2d(new, new, 3, padding=2, dilation=2), nn.GroupNorm(4, new), nn.SiLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Of the same size."""
        return self.layers(x)  # type: ignore[no-any-return]


class UNet(nn.Module):
    """Down by strides, up by transposed convolutions, with bridges between equal sizes."""

    def __init__(self, channels: int = 2, width: int = 8) -> None:
        super().__init__()
        self.inner, self.middle, self.deep = Twice(channels, width), Twice(2 * width, 2 * width), Twice(32, 32)
        self.down, self.lower = nn.Conv2d(width, 2 * width, 3, 2, 1), nn.Conv2d(2 * width, 32, 3, 2, 1)
        self.raise_, self.up = nn.ConvTranspose2d(32, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.joint, self.last = Twice(4 * width, 2 * width), Twice(2 * width, width)
        self.out = nn.Conv2d(width, channels, 1)

    def forward(self, image: Tensor) -> Tensor:
        """A picture of the same size."""
        one = self.inner(image)
        two = self.middle(self.down(one))
        three = self.raise_(self.deep(self.lower(two)))
        two = self.joint(torch.cat([two, three], dim=1))
        return self.out(self.last(torch.cat([one, self.up(two)], dim=1)))  # type: ignore[no-any-return]


class Neighbours(nn.Module):
    """Vector attention of each point to its nearest ones (Zhao et al., Point Transformer, ICCV 2021)."""

    def __init__(self, width: int, nearest: int) -> None:
        super().__init__()
        self.nearest = nearest
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.place = nn.Sequential(nn.Linear(3, width), nn.ReLU(inplace=True), nn.Linear(width, width))
        self.weigh = nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width))

    def forward(self, x: Tensor, points: Tensor) -> Tensor:
        """Features after a look around."""
        near = torch.cdist(points, points).topk(self.nearest, largest=False).indices
        batch = torch.arange(x.shape[0], device=x.device)[:, None, None]
        shift = self.place(points[:, :, None] - points[batch, near])
        weights = self.weigh(self.q(x)[:, :, None] - self.k(x)[batch, near] + shift).softmax(dim=2)
        seen: Tensor = (weights * (self.v(x)[batch, near] + shift)).sum(dim=2)
        return x + seen


class PointTransformer(nn.Module):
    """Points with features: neighbourhoods, attention to all, and what they all have in common."""

    def __init__(self, features: int = 4, width: int = 16, nearest: int = 6) -> None:
        super().__init__()
        self.embed = nn.Linear(3 + features, width)
        self.near, self.far = Neighbours(width, nearest), Block(width, 2)
        self.common = nn.Linear(2 * width, width)
        self.out = nn.Linear(2 * width, 1)

    def forward(self, cloud: Tensor) -> Tensor:
        """A number for each point of `[batch, point, 3 + features]`."""
        points = cloud[..., :3]
        x = self.far(self.near(self.embed(cloud), points))
        common = torch.cat([x.amax(dim=1), x.mean(dim=1)], dim=-1)
        common = torch.tanh(self.common(common))[:, None].expand(-1, x.shape[1], -1)
        return self.out(torch.cat([x, common * x], dim=-1))  # type: ignore[no-any-return]
