"""The deep baseline: one LSTM over all series at hand, from two weeks to the whole horizon at once.

Trained on windows of every series before the origin, each standardised by its own past; the hour and the weekday come
as inputs beside the value. One network for all series sees more than one for each. The last windows before the origin
choose when to stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.observe.series.backtest import DAY
from assay.observe.series.baselines import WEEK, filled
from assay.sim.random import stream
from assay.workloads.long_series import Grid

Floats = NDArray[np.float64]
STEPS = 84  # of the window the network reads
HIDDEN = 24
BATCH = 48


def forecast_all(grids: Sequence[Grid], horizon: int, *, rounds: int = 120, seed: int = 0) -> list[Floats]:
    """Forecasts of all series (of one step) by one network trained on all of them. Needs torch."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    random = stream(seed, "lstm", horizon)
    stride = max(1, round(14 * DAY / grids[0].step / STEPS))  # the window spans two weeks, thinned to STEPS
    series = [_prepared(grid, stride) for grid in grids]
    network = _network(torch, horizon // stride + 1)
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
    best, state, patience = np.inf, network.state_dict(), 0
    for step in range(rounds):
        inputs, targets = _batch(series, horizon, stride, random, BATCH, newest=False)
        loss = torch.nn.functional.l1_loss(network(torch.tensor(inputs)), torch.tensor(targets))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        if step % 10 == 9:
            score = _score(torch, network, series, horizon, stride)
            if score < best:
                best, patience = score, 0
                state = {name: value.clone() for name, value in network.state_dict().items()}
            elif (patience := patience + 1) >= 4:
                break
    network.load_state_dict(state)
    return [_ahead(torch, network, grid, part, horizon, stride) for grid, part in zip(grids, series, strict=True)]


def _network(torch: Any, leads: int) -> Any:
    class Reader(torch.nn.Module):  # type: ignore[misc]
        """An LSTM whose last state is read out as all leads at once, added to the recent mean."""

        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(5, HIDDEN, batch_first=True)
            self.out = torch.nn.Linear(HIDDEN, leads)
            torch.nn.init.zeros_(self.out.weight)
            torch.nn.init.zeros_(self.out.bias)

        def forward(self, window: Any) -> Any:
            states, _ = self.lstm(window)
            return self.out(states[:, -1]) + window[:, :, 0].mean(1, keepdim=True)

    return Reader()


def _prepared(grid: Grid, stride: int) -> tuple[NDArray[np.float32], float, float]:
    """Value, hour and weekday (as circles) at every stride-th mean, and the centre and spread taken out."""
    values = filled(grid)
    count = len(values) // stride
    thin = values[len(values) - count * stride :].reshape(count, stride).mean(axis=1)
    centre, size = float(np.median(thin)), float(thin.std()) or 1.0
    times = grid.times[len(values) - count * stride :: stride]
    turns = [f(2 * np.pi * times / period) for period in (DAY, WEEK) for f in (np.sin, np.cos)]
    return np.stack([np.clip((thin - centre) / size, -6, 6), *turns], axis=1).astype(np.float32), centre, size


def _batch(
    series: Sequence[Any], horizon: int, stride: int, random: np.random.Generator, size: int, newest: bool
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Windows and what followed; the newest of each series are kept for judging, never trained on."""
    leads = horizon // stride + 1
    inputs, targets = [], []
    for _ in range(size):
        part = series[int(random.integers(len(series)))][0]
        last = len(part) - STEPS - leads
        held = max(1, min(leads, last // 4))
        begin = int(random.integers(max(0, last - held), last + 1)) if newest else int(
            random.integers(0, max(1, last - held - leads))
        )  # fmt: skip
        inputs.append(part[begin : begin + STEPS])
        targets.append(part[begin + STEPS : begin + STEPS + leads, 0])
    return np.stack(inputs), np.stack(targets)


def _score(torch: Any, network: Any, series: Sequence[Any], horizon: int, stride: int) -> float:
    inputs, targets = _batch(series, horizon, stride, stream(0, "lstm judged"), 32, newest=True)
    with torch.no_grad():
        return float(torch.nn.functional.l1_loss(network(torch.tensor(inputs)), torch.tensor(targets)))


def _ahead(torch: Any, network: Any, grid: Grid, prepared: Any, horizon: int, stride: int) -> Floats:
    part, centre, size = prepared
    with torch.no_grad():
        leads = network(torch.tensor(part[None, -STEPS:]))[0].numpy() * size + centre
    middles = (np.arange(len(leads)) + 0.5) * stride - 0.5
    return np.asarray(np.interp(np.arange(horizon), middles, leads.astype(float)))
