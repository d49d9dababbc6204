"""The generative codec: an autoencoder, a light encoder to tokens, and a flow-matching decoder that knows the archive.

An observation becomes latents on a grid; what is coded is how they differ from the season's latents of the same
place. The encoder projects that onto up to 16 tokens of sixteen numbers, ordered by what they are worth, quantised, and
written with :mod:`coder`: first the mean over the scene, which holds the weather, then each tile's deviations. The
decoder, a transformer, predicts where the flow from noise to the observation's latents ends (and so its velocity),
given tokens, the archive's latents before, on and after that day of the year, place and day. Euler's steps follow it.

Inferred, not printed in what was at hand, and therefore options: that the encoder sees the season's latents (`sees`),
the sizes, the parameterisation by the flow's end, and that pixels start from the archive's mean picture.

Needs numpy and torch only.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from assay.sim.adam import Adam
from assay.training.d2ar import coder
from assay.training.d2ar.archive import YEAR, Archive, Floats, Ints, tiles, whole

HEAD = struct.Struct("<BHHBB")  # magic, model, day, tokens, step
MAGIC = 0xD2
COUNTS = (1, 2, 4, 8, 16)  # tokens that a scene may have per tile
FINE = 4.0  # the scene's mean is told in finer steps: it stands for all tiles
ROUND = 0.35  # below a half: zeros are cheap
ASIDE = (-20, 0, 20)  # days around the observation's at which the decoder sees the archive


@dataclass(frozen=True)
class Options:
    """Sizes, and what the decoder is told; `flow=False` is a plain learned codec."""

    prior: bool = True
    place: bool = True
    flow: bool = True
    sees: bool = True  # the encoder too has the archive's latents
    tile: int = 32
    patch: int = 8
    latent: int = 32
    token: int = 16
    width: int = 64
    blocks: int = 2
    euler: int = 10

    @property
    def grid(self) -> int:
        """Latents of a tile."""
        return (self.tile // self.patch) ** 2


def _silence(layer: nn.Module) -> None:
    """Let a layer begin by adding nothing."""
    for weight in layer.parameters():
        nn.init.zeros_(weight)


class Autoencoder(nn.Module):
    """Patches to latents and back: their principal axes, and a small network that adds what axes cannot say."""

    def __init__(self, bands: int, options: Options) -> None:
        super().__init__()
        self.patch, size, o = options.patch, bands * options.patch**2, options
        self.into, self.out = nn.Linear(size, o.latent), nn.Linear(o.latent, size)
        self.more = nn.Sequential(nn.Linear(size, o.width), nn.GELU(), nn.Linear(o.width, o.latent))
        self.finer = nn.Sequential(nn.Linear(o.latent, o.width), nn.GELU(), nn.Linear(o.width, size))
        for last in (self.more[-1], self.finer[-1]):
            _silence(last)

    def begin(self, images: Tensor) -> None:
        """Start from the principal axes of the patches, latents scaled to spread 1 together."""
        rows = functional.pixel_unshuffle(images[:1000], self.patch).movedim(1, -1).flatten(0, 2)
        mean = rows.mean(0)
        values, axes = torch.linalg.eigh(torch.cov((rows - mean).T))
        axes = axes.flip(1)[:, : self.into.out_features].T
        scale = float(values.flip(0)[: len(axes)].mean().sqrt())
        with torch.no_grad():
            self.into.weight.copy_(axes / scale)
            self.into.bias.copy_(-(axes / scale) @ mean)
            self.out.weight.copy_((axes * scale).T)
            self.out.bias.copy_(mean)

    def encode(self, x: Tensor) -> Tensor:
        """[n, band, y, x] to [n, latent, y/patch, x/patch]."""
        rows = functional.pixel_unshuffle(x, self.patch).movedim(1, -1)
        found: Tensor = (self.into(rows) + self.more(rows)).movedim(-1, 1)
        return found

    def decode(self, z: Tensor) -> Tensor:
        """And back."""
        rows = z.movedim(1, -1)
        return functional.pixel_shuffle((self.out(rows) + self.finer(rows)).movedim(-1, 1), self.patch)


def turned(x: Tensor, kind: int) -> Tensor:
    """As it is (0), quarter turns (1 to 3), a mirror (4), or half the size (5), of pictures and of latents alike."""
    if kind == 0:
        return x
    if kind == 5:
        return functional.avg_pool2d(x, 2)
    return x.flip(-1) if kind == 4 else torch.rot90(x, kind, (-2, -1))


def unequal(model: Autoencoder, x: Tensor) -> float:
    """How far decoding turned latents is off the turned picture: root mean square over turns, mirror and scale."""
    with torch.no_grad():
        z = model.encode(x)
        errors = [float(((model.decode(turned(z, k)) - turned(x, k)) ** 2).mean()) for k in range(1, 6)]
    return float(np.mean(errors) ** 0.5)


def train_autoencoder(
    images: Tensor, options: Options, steps: int, seed: int, equal: float = 0.25, batch: int = 32
) -> Autoencoder:
    """Reconstruction, and (weight `equal`) that decoding commutes with turns and scale."""
    torch.manual_seed(seed)
    model = Autoencoder(images.shape[1], options).to(images.device)
    model.begin(images)
    draw = np.random.default_rng((seed, 11))
    descent = Descent(model, ("into", "out"), 1e-3, steps)
    for _ in range(steps):
        x = images[draw.integers(0, len(images), batch)]
        z = model.encode(x)
        loss = ((model.decode(z) - x) ** 2).mean()
        if equal:
            kind = int(draw.integers(1, 6))
            loss = loss + equal * ((model.decode(turned(z, kind)) - turned(x, kind)) ** 2).mean()
        descent.learn(1e3 * loss)
    return model


class Descent:
    """Adam with a warm-up and half a cosine. What starts as principal axes moves at a twentieth of the rate."""

    def __init__(self, model: nn.Module, careful: tuple[str, ...], rate: float, steps: int) -> None:
        parts: dict[float, list[Tensor]] = {rate / 20: [], rate: []}
        for name, weight in model.named_parameters():
            parts[rate / 20 if name.split(".")[0] in careful else rate].append(weight)
        self.adams = {rate: Adam(weights, rate, betas=(0.9, 0.99)) for rate, weights in parts.items()}
        self.step, self.steps = 0, steps

    def learn(self, loss: Tensor) -> None:
        """One step down this loss, its gradient no longer than 1."""
        loss.backward()
        nn.utils.clip_grad_norm_((w for adam in self.adams.values() for w in adam.parameters), 1.0)
        pace = min(1, (self.step + 1) / 10) * (0.5 + 0.5 * np.cos(np.pi * self.step / self.steps))
        self.step += 1
        for rate, adam in self.adams.items():
            adam.rate = pace * rate
            adam.step()
            adam.zero_grad()


class Block(nn.Module):
    """Attention over latents and tokens together, then each for itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape again."""
        n, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.join(seen.transpose(1, 2).reshape(n, length, width))
        found: Tensor = x + self.mlp(self.second(x))
        return found


class Network(nn.Module):
    """The light encoder and the heavy decoder, on latents [n, cell, latent] with the season's taken off."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        o, size, told = options, options.grid * options.latent, COUNTS[-1] * options.token
        self.options = o
        self.project = nn.Linear(size, told)
        self.bend = nn.Sequential(nn.Linear(2 * size, 64), nn.GELU(), nn.Linear(64, told))
        self.back = nn.Linear(told, size, bias=False)
        self.cells, self.names = (nn.Parameter(0.02 * torch.randn(n, o.width)) for n in (o.grid, COUNTS[-1]))
        self.noisy, self.history = nn.Linear(o.latent, o.width), nn.Linear(len(ASIDE) * o.latent, o.width)
        self.tokens = nn.Linear(o.token, o.width)
        self.where = nn.Sequential(nn.Linear(PLACE + 2 * 8, o.width), nn.GELU(), nn.Linear(o.width, o.width))
        self.blocks = nn.Sequential(*(Block(o.width, o.width // 16) for _ in range(o.blocks)))
        self.norm, self.out = nn.LayerNorm(o.width), nn.Linear(o.width, o.latent)
        for last in (self.bend[-1], self.out):
            _silence(last)

    def begin(self, y: Tensor) -> None:
        """Tokens start as the principal axes of what is to be told."""
        rows = y.reshape(len(y), -1)
        _, axes = torch.linalg.eigh(rows.T @ (rows * _worth(y)[:, None]))
        axes = axes.flip(1)[:, : self.project.out_features].T
        with torch.no_grad():
            self.project.weight.copy_(axes)
            self.project.bias.zero_()
            self.back.weight.copy_(axes.T)

    def encode(self, y: Tensor, season: Tensor) -> Tensor:
        """[n, cell, latent] to [n, tokens * numbers]; the season on the day itself, or zeros, beside it."""
        flat = y.flatten(1)
        found: Tensor = self.project(flat) + self.bend(torch.cat([flat, season.flatten(1)], 1))
        return found

    def end(self, x: Tensor, time: Tensor, told: Tensor, count: int, history: Tensor, where: Tensor) -> Tensor:
        """Where the flow that is at `x` at this time will end."""
        o = self.options
        waves = time[:, None] * torch.pi * 2.0 ** torch.arange(8, device=x.device) / 8
        about = self.where(torch.cat([where, waves.sin(), waves.cos()], 1))[:, None]
        cells = self.noisy(x) + self.history(history) + self.cells + about
        tokens = self.tokens(told.reshape(len(x), -1, o.token)[:, :count]) + self.names[:count] + about
        h = self.blocks(torch.cat([cells, tokens], 1))[:, : o.grid]
        found: Tensor = self.back(told).reshape(x.shape) + self.out(self.norm(h))
        return found


DEFAULT = Options()
PLACE = 14  # numbers that say where and when


def placed(day: Any, lat: Any, lon: Any) -> Floats:
    """Where on Earth and when in the year, as waves."""
    day, lat, lon = np.broadcast_arrays(np.asarray(day, float), np.asarray(lat, float), np.asarray(lon, float))
    turn = 2 * np.pi * (day % YEAR) / YEAR
    waves = [turn, 2 * turn, *(np.radians(angle) * rate for angle in (lat, lon) for rate in (1.0, 60.0)), lat + lon]
    return np.stack([f(wave) for wave in waves for f in (np.sin, np.cos)], -1).astype(np.float32)


@dataclass
class Model:
    """A trained codec of one place. It and the archive are all that decoding needs besides the file."""

    autoencoder: Autoencoder
    network: Network
    options: Options
    archive: Archive
    spread: float  # of what is told, in latents
    scale: Floats  # how large each number usually is: of tiles' deviations, of scenes' means
    name: int = 0  # so that a file is not read with another model

    @property
    def down(self) -> int:
        """Rows of tiles."""
        return int(self.archive.images.shape[-2]) // self.options.tile

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.network.cells.device


def _latents(autoencoder: Autoencoder, cut: Tensor) -> Tensor:
    return autoencoder.encode(cut).flatten(2).transpose(1, 2)


def _spots(archive: Archive, options: Options, days: Any) -> Floats:
    """Place and day of every tile of scenes of these days; a tile is some hundredths of a degree."""
    size = options.tile
    down, across = archive.images.shape[-2] // size, archive.images.shape[-1] // size
    y, x = (axis.ravel() * size * 1e-4 for axis in np.mgrid[:down, :across])
    return placed(np.asarray(days)[:, None], archive.lat - y[None], archive.lon + x[None])


@dataclass(frozen=True)
class Prepared:
    """What training and decoding see of scenes: by tile, the season's latents and pictures, and where."""

    season: Tensor  # pictures [tile, band, y, x]; zeros without a prior
    latents: Tensor  # of the season on the day
    history: Tensor  # before, on and after it, side by side
    where: Tensor


def prepare(
    autoencoder: Autoencoder, archive: Archive, options: Options, days: Any, others: bool, turn: int = 0
) -> Prepared:
    """The archive's side of scenes of these days, perhaps turned."""
    days, device = np.asarray(days, np.int64), next(autoencoder.parameters()).device
    where = torch.from_numpy(_spots(archive, options, days).reshape(-1, PLACE)).to(device)
    pictures = []
    for aside in ASIDE:
        shape = (len(days), *archive.images.shape[1:])
        shown = archive.seasonal(days + aside, others=others) if options.prior else np.zeros(shape, np.float32)
        pictures.append(torch.from_numpy(np.concatenate(tiles(shown, options.tile))).to(device))
    with torch.no_grad():
        history = [_latents(autoencoder, turned(one, turn)) * float(options.prior) for one in pictures]
    middle = ASIDE.index(0)
    return Prepared(pictures[middle], history[middle], torch.cat(history, -1), where * float(options.place))


TURNS = (0, 1, 4)  # in which an archive is learnt: a season has no sense of north


@dataclass(frozen=True)
class Lessons:
    """An archive as training sees it, by tile and turn: latents, the season's, history, and where."""

    autoencoder: Autoencoder
    z: Tensor
    latents: Tensor
    history: Tensor
    where: Tensor


def lessons(
    archive: Archive, options: Options, steps: int, seed: int, *, device: str = "cpu", equal: float = 0.25
) -> Lessons:
    """Learn the autoencoder, and lay out what the codec learns from; variants of a codec share them."""
    cut = torch.from_numpy(np.concatenate(tiles(archive.images, options.tile))).to(device)
    auto = train_autoencoder(cut, options, steps, seed, equal)
    every = replace(options, prior=True, place=True)
    with torch.no_grad():
        seen = [prepare(auto, archive, every, archive.days, others=True, turn=turn) for turn in TURNS]
        z = torch.cat([_latents(auto, turned(cut, turn)) for turn in TURNS])
    parts = [torch.cat([getattr(one, name) for one in seen]) for name in ("latents", "history", "where")]
    return Lessons(auto, z, *parts)


def train(
    archive: Archive, options: Options = DEFAULT, steps: int = 200, seed: int = 0, *, batch: int = 32,
    learnt: Lessons | None = None, device: str = "cpu", rate: float = 0.0,
) -> Model:  # fmt: skip
    """Learn a place: tokens, and the flow from noise to what is to be told, at all numbers of tokens and steps."""
    torch.manual_seed(seed)
    given = learnt or lessons(archive, options, steps, seed, device=device)
    latents, history = (part * float(options.prior) for part in (given.latents, given.history))
    where = given.where * float(options.place)
    spread = float((given.z - latents).std())
    y = (given.z - latents) / spread
    network = Network(options).to(device)
    network.begin(y)
    season = latents * float(options.sees)
    draw = np.random.default_rng((seed, 12))
    descent = Descent(network, ("project", "back"), rate or 2e-3 * (64 / options.width) ** 0.5, steps)
    for _ in range(steps):
        at = torch.from_numpy(draw.integers(0, len(y), batch)).to(device)
        count, fine = int(draw.choice(COUNTS)), float(2.0 ** draw.uniform(-2, 3))
        descent.learn(_loss(network, y[at], season[at], history[at], where[at], count, fine))
    found = Model(given.autoencoder, network, options, archive, spread, np.zeros(0, np.float32))
    own = len(y) // len(TURNS)  # as they are, not turned
    return _finished(found, y[:own], season[:own])


def _loss(
    network: Network, y: Tensor, season: Tensor, history: Tensor, where: Tensor, count: int, fine: float
) -> Tensor:
    """What the flow's end is off, and the bits of the tokens at the price that this step of quantisation implies."""
    told = network.encode(y, season)
    usual = told.detach().abs().mean(0).clamp_min(1e-4) + 0.3 * fine
    bits = (told.abs() / usual)[:, : count * network.options.token].sum(1) / np.log(2)
    rough = told + fine * (torch.rand_like(told) - 0.5)
    keep = torch.arange(told.shape[1], device=y.device) < count * network.options.token
    rough = torch.where(keep & (told.detach().abs() > 0.5 * fine), rough, told * 0)
    x, time = torch.zeros_like(y), torch.zeros(len(y), device=y.device)
    if network.options.flow:
        time = torch.rand(len(y), device=y.device)
        x = torch.randn_like(y) * (1 - time)[:, None, None] + time[:, None, None] * y
    off = ((network.end(x, time, rough, count, history, where) - y) ** 2).flatten(1).sum(1)
    loss: Tensor = ((off + 0.1155 * fine**2 * bits) * _worth(y)).mean()
    return loss


def _worth(y: Tensor) -> Tensor:
    """Weights of tiles: one under clouds has a hundred times the energy of others."""
    energy = (y**2).flatten(1).sum(1)
    return 1 / (energy + energy.median())


def spectra(archive: Archive) -> tuple[Floats, Floats]:
    """The axes, a row each, and the mean of the archive's spectra."""
    flat = archive.images.transpose(1, 0, 2, 3).reshape(archive.images.shape[1], -1)[:, ::7]
    _, axes = np.linalg.eigh(np.cov(flat))
    return np.ascontiguousarray(axes.T[::-1], np.float32), flat.mean(1).astype(np.float32)


def _finished(model: Model, y: Tensor, season: Tensor) -> Model:
    """How large tokens usually are, and a name by the weights."""
    with torch.no_grad():
        flat = model.network.encode(y, season).cpu().numpy()
    told = flat.reshape(len(model.archive.days), -1, flat.shape[1])
    mean = told.mean(1, keepdims=True)
    usual = np.stack([np.abs(told - mean).mean((0, 1)), np.abs(mean).mean((0, 1))]) + 1e-3
    model.scale = usual.astype(np.float32)
    weights = b"".join(w.detach().cpu().numpy().tobytes() for w in model.network.parameters())
    model.name = zlib.crc32(weights + str(asdict(model.options)).encode()) & 0xFFFF
    return model


# --------------------------------------------------------------------------------------------- files


def _step(index: int) -> float:
    return float(64.0 * 2.0 ** (-index / 12))


def _likely(scale: Floats, step: float) -> Ints:
    """Probabilities of numbers as Laplace's law has them at this step."""
    found = coder.fresh(len(scale))
    ratio = step / np.maximum(scale, 1e-6)
    share = lambda x: np.clip(coder.ONE * x, 64, coder.ONE - 64).astype(np.int64)  # noqa: E731
    found[:, 0] = share(np.exp(-(1 - ROUND) * ratio))
    found[:, 2:] = share(np.exp(-ratio))[:, None]
    found[:, 1] = found[:, -1] = coder.ONE // 2
    return found


def _rounded(x: Floats, step: Any) -> Ints:
    found: Ints = (np.sign(x) * np.floor(np.abs(x) / step + ROUND)).astype(np.int64)
    return found


def _plan(scale: Floats, used: int, count: int, step: float) -> tuple[Ints, Ints]:
    """The contexts of a scene's numbers in their order, and what is likely in each."""
    order = np.concatenate([np.arange(used), used + np.repeat(np.arange(used), count)])
    likely = np.concatenate([_likely(scale[1, :used], step / FINE), _likely(scale[0, :used], step)])
    return order, likely


def pack(told: Floats, scale: Floats, count: int, token: int, index: int) -> tuple[bytes, Floats]:
    """Tokens of a scene [tile, number] as bytes, and as the reader will see them."""
    used, step = count * token, _step(index)
    middle, rest = _numbers(told, used, step)
    order, likely = _plan(scale, used, len(told), step)
    data = coder.encode(np.concatenate([middle, rest.T.ravel()]), order, likely)
    seen = np.zeros_like(told)
    seen[:, :used] = middle * (step / FINE) + rest * step
    return data, seen


def unpack(data: bytes, shape: tuple[int, int], scale: Floats, count: int, token: int, index: int) -> Floats:
    """Tokens out of bytes."""
    used, step = count * token, _step(index)
    order, likely = _plan(scale, used, shape[0], step)
    numbers = coder.decode(data, order, likely)
    seen = np.zeros(shape, np.float32)
    seen[:, :used] = numbers[:used] * (step / FINE) + numbers[used:].reshape(used, -1).T * step
    return seen


def encode(model: Model, image: Floats, day: int, budget: int, counts: tuple[int, ...] = COUNTS) -> bytes:
    """A file of an observation, at most so many bytes, with as many tokens as tell most within them.

    Raises:
        ValueError: not the archive's shape, or not even the header fits.
    """
    if image.shape != model.archive.images.shape[1:]:
        raise ValueError(f"an observation of {image.shape}, where the archive has {model.archive.images.shape[1:]}")
    told, size, room = tokens(model, image, day), model.options.token, budget - HEAD.size
    if room < 0:
        raise ValueError(f"{budget} bytes are too few: the header alone takes {HEAD.size}")
    count, index = min((_fitting(told, model.scale, count, size, room) for count in counts), key=lambda one: one[1])[0]
    data = pack(told, model.scale, count, size, index)[0]
    while len(data) > room and index > 0:  # the estimate was too low
        index -= 1
        data = pack(told, model.scale, count, size, index)[0]
    while index < 255 and len(finer := pack(told, model.scale, count, size, index + 1)[0]) <= room:
        index, data = index + 1, finer  # or too high, as probabilities adapt
    return HEAD.pack(MAGIC, model.name, day, count, index) + (data if len(data) <= room else b"")


def _fitting(told: Floats, scale: Floats, count: int, token: int, room: int) -> tuple[tuple[int, int], float]:
    """The finest step at which so many tokens should fit, and how far the numbers are then off."""
    low, high, found = 0, 255, (0, float((told**2).sum()))
    while low <= high:
        middle = (low + high) // 2
        bits, off = _estimate(told, scale, count * token, _step(middle))
        if bits <= 8 * room:
            low, found = middle + 1, (middle, off)
        else:
            high = middle - 1
    return (count, found[0]), found[1]


def _estimate(told: Floats, scale: Floats, used: int, step: float) -> tuple[float, float]:
    """Bits by Laplace's law, without coding, and the squared error."""
    middle, rest = _numbers(told, used, step)
    bits = 0.0
    for numbers, likely in (
        (middle[None], _likely(scale[1, :used], step / FINE)),
        (rest, _likely(scale[0, :used], step)),
    ):
        some, more = (-np.log2(likely[:, slot] / coder.ONE) for slot in (0, 2))
        none, last = (-np.log2(1 - likely[:, slot] / coder.ONE) for slot in (0, 2))
        size = np.abs(numbers)
        bits += float(np.where(size == 0, none, some + 1 + last + (size - 1) * more).sum())
    off = ((told[:, :used] - middle * (step / FINE) - rest * step) ** 2).sum() + (told[:, used:] ** 2).sum()
    return bits, float(off)


def _numbers(told: Floats, used: int, step: float) -> tuple[Ints, Ints]:
    """The scene's mean and the tiles' deviations from it, rounded."""
    middle = _rounded(told[:, :used].mean(0), step / FINE)
    return middle, _rounded(told[:, :used] - middle * (step / FINE), step)


def tokens(model: Model, image: Floats, day: int) -> Floats:
    """What the encoder has to tell of an observation: [tile, number]."""
    cut = torch.from_numpy(tiles(np.asarray(image, np.float32)[None], model.options.tile)[0]).to(model.device)
    seen = prepare(model.autoencoder, model.archive, model.options, [day], others=False)
    with torch.no_grad():
        y = (_latents(model.autoencoder, cut) - seen.latents) / model.spread
        season = seen.latents if model.options.sees else torch.zeros_like(seen.latents)
        return np.asarray(model.network.encode(y, season).cpu().numpy())


def decode(model: Model, data: bytes, *, heat: float = 0.0, euler: int | None = None, seed: int = 0) -> Floats:
    """The observation out of a file, the archive and the model. `heat` 1 draws one of the pictures that the tokens
    allow, 0 follows the flow from the middle of the noise: the likeliest.

    Raises:
        ValueError: not such a file, or written with another model.
    """
    if len(data) < HEAD.size or data[0] != MAGIC:
        raise ValueError("not a file of this codec")
    _, name, day, count, index = HEAD.unpack(data[: HEAD.size])
    if name != model.name or count not in COUNTS:
        raise ValueError("written with another model or for another place")
    o = model.options
    seen = prepare(model.autoencoder, model.archive, o, [day], others=False)
    told = unpack(data[HEAD.size :], (len(seen.season), COUNTS[-1] * o.token), model.scale, count, o.token, index)
    with torch.no_grad():
        y = flow(model, torch.from_numpy(told).to(model.device), count, seen, heat, euler or o.euler, seed)
        z = seen.latents + model.spread * y
        side = int(o.grid**0.5)
        shaped = [one.transpose(1, 2).reshape(len(one), -1, side, side) for one in (z, seen.latents)]
        cut = model.autoencoder.decode(shaped[0])
        if o.prior:  # pixels of the archive stay sharp: latents only say what differs
            cut = seen.season + cut - model.autoencoder.decode(shaped[1])
    return np.asarray(whole(cut.cpu().numpy(), model.down), np.float32)


def flow(model: Model, told: Tensor, count: int, seen: Prepared, heat: float, euler: int, seed: int) -> Tensor:
    """Euler's steps along the velocity from noise to the observation's latents."""
    o = model.options
    shape = (len(told), o.grid, o.latent)
    noise = torch.from_numpy(np.random.default_rng((seed, 13)).standard_normal(shape).astype(np.float32))
    x = heat * noise.to(told.device)
    steps = euler if o.flow else 1
    for k in range(steps):
        time = torch.full((len(x),), k / steps, device=x.device)
        velocity = (model.network.end(x, time, told, count, seen.history, seen.where) - x) / (1 - k / steps)
        x = x + velocity / steps
    return x


def without(options: Options, what: str) -> Options:
    """The same codec without the archive, without place and day, or as a plain learned one."""
    if what == "flow":
        return replace(options, prior=False, place=False, flow=False)
    changed: dict[str, Any] = {what: False}
    return replace(options, **changed)
