"""A model of your own for `assay compare shardtensor`: plain torch, and one sample for it.

assay compare shardtensor --model examples/field_model.py:job --shares 37,27,36
"""

import torch
from torch import nn


class Field(nn.Module):
    """A field on a grid that is periodic in longitude: coarser, a few layers of attention, finer again."""

    def __init__(self, channels: int = 3, width: int = 16) -> None:
        super().__init__()
        self.inside = nn.Conv2d(channels, width, 5, padding=2, padding_mode="circular")
        self.down = nn.Sequential(nn.GELU(), nn.Conv2d(width, width, 3, stride=2, padding=1), nn.GroupNorm(4, width))
        self.mix = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.up = nn.ConvTranspose2d(width, width, 4, stride=2, padding=1)
        self.out = nn.Conv2d(2 * width, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A field of the same size."""
        fine = self.inside(x)
        coarse = self.down(fine)
        rows, columns = coarse.shape[2:]
        tokens = self.mix(coarse.flatten(2).transpose(1, 2))
        coarse = tokens.transpose(1, 2).reshape(-1, coarse.shape[1], rows, columns)
        return x + self.out(torch.cat([fine, self.up(coarse)], dim=1))


def job() -> tuple[nn.Module, torch.Tensor]:
    """The model and a sample."""
    torch.manual_seed(0)
    return Field(), torch.randn(1, 3, 100, 32)


def spectral() -> tuple[nn.Module, torch.Tensor]:
    """One that calls what has no version in stretches."""

    class Spectrum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.rfft2(x).abs()

    return Spectrum(), torch.randn(1, 3, 100, 32)
