"""A module with three branches, for `assay compare doppler --module`."""

from torch import Tensor, nn


class Towers(nn.Module):
    """Three stacks of layers that read the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)) for _ in range(3)
        )
        self.last = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of all branches."""
        total = self.towers[0](x)
        for tower in list(self.towers)[1:]:
            total = total + tower(x)
        return self.last(total)
