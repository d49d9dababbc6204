"""Two plain models that know nothing of shards: a vision transformer and a U-Net."""

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
