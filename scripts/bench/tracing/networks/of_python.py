"""Networks in plain torch with the habits of research code: what their forwards do is no graph of operations."""

import math
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

Family = tuple[nn.Module, list[Any]]

N = 12  # features of a row
_ROWS = (4, 5, 3)
_SIZES = ((2, 6), (3, 9), (4, 5))  # samples and words


def perceptron(width: int = N, depth: int = 1) -> nn.Module:
    steps = [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width)]
    return nn.Sequential(*steps * depth) if depth == 1 else nn.Sequential(*(perceptron(width) for _ in range(depth)))


class Blocks(nn.Module):
    """Four blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(perceptron() for _ in range(4))
        self.head = nn.Linear(N, 3)

    def forward(self, x: Tensor) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class CountsSteps(Blocks):
    """A buffer counts minibatches, and scales the noise of the first ones."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        x = self.blocks[1](self.blocks[0](x)) / (1 + 1 / (1 + self.steps))
        return self.head(self.blocks[3](self.blocks[2](x)))


class Normalizes(Blocks):
    """Keeps running means of its own in training, and uses them in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(N))

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[1](self.blocks[0](x))
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
            x = x - x.mean(0)
        else:
            x = x - self.mean
        return self.head(self.blocks[3](self.blocks[2](x)))


class TryExcept(Blocks):
    """Tries an addition that fails for a bias of another width."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[1](self.blocks[0](x))
        try:
            x = x + torch.zeros(N + 1, dtype=x.dtype)
        except RuntimeError:
            x = x + 1
        return self.head(self.blocks[3](self.blocks[2](x)))


class Filters(Blocks):
    """Leaves out rows by a mask in the middle, and puts scores back."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[1](self.blocks[0](x))
        kept = x.mean(1) > x.mean()
        y = self.blocks[3](self.blocks[2](x[kept]))
        out = x.new_zeros(len(x), 3)
        out[kept] = self.head(y)
        return out


class While(Blocks):
    """Repeats a block until a norm is small, at most five times."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[1](self.blocks[0](x))
        count = 0
        while x.norm() > 3.0 and count < 5:
            x = x * 0.7
            count += 1
        return self.head(self.blocks[3](self.blocks[2](x)))


class Sorts(Blocks):
    """Sorts rows by a number of each, and puts them back in order."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[1](self.blocks[0](x))
        order = x.sum(1).argsort()
        y = self.blocks[2](x[order])
        y = y + y.roll(1, 0)
        return self.head(self.blocks[3](y[order.argsort()]))


class Unique(Blocks):
    """Means over groups that a number of each row names."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[1](self.blocks[0](x))
        names = (x.detach().sum(1) > 0).long()
        groups, inverse, counts = names.unique(return_inverse=True, return_counts=True)
        means = x.new_zeros(len(groups), N).index_add_(0, inverse, x) / counts[:, None]
        return self.head(self.blocks[3](self.blocks[2](x + means[inverse])))


class Lists(Blocks):
    """Gathers hidden values in lists and dictionaries, and joins them at the end."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        seen: dict[str, list[Tensor]] = {"hidden": []}
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i % 2:
                seen["hidden"].append(x)
            seen.setdefault("norms", []).append(x.norm(dim=1))
        return {"scores": self.head(torch.stack(seen["hidden"]).mean(0)), "aux": {"norms": torch.stack(seen["norms"])}}


@dataclass
class Result:
    scores: Tensor
    hidden: tuple[Tensor, ...]
    name: str = "result"
    extra: Tensor | None = None


class DataclassOutput(Blocks):
    """Returns a dataclass with a text and None in it."""

    def forward(self, x: Tensor) -> Result:
        hidden = []
        for block in self.blocks:
            x = block(x)
            hidden.append(x)
        return Result(self.head(x), tuple(hidden))


class Pair(NamedTuple):
    scores: Tensor
    feature: Tensor


class NamedOutput(Blocks):
    """Returns a typed named tuple, and takes its first block's input by keyword with a default."""

    def forward(self, x: Tensor, *, scale: float = 0.5, bias: Tensor | None = None) -> Pair:
        for block in self.blocks:
            x = block(x) * scale
            if bias is not None:
                x = x + bias
        return Pair(self.head(x), x)


Several = namedtuple("Several", "x y")


class NestedInput(nn.Module):
    """Takes a dictionary with a list and a tuple in it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = perceptron(), perceptron(), perceptron()
        self.head = nn.Linear(2 * N, 3)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        first, (second, mask) = batch["views"][0], batch["pair"]
        x = self.b(self.a(first)) * mask
        y = self.c(second + batch["views"][1])
        return self.head(torch.cat([x, y], -1))


def nested() -> Family:
    def one(rows: int) -> dict[str, Any]:
        x, y, z = torch.randn(3, rows, N).unbind(0)
        return {"batch": {"views": [x, y], "pair": (z, (torch.rand(rows, 1) > 0.3).double()), "id": "scene"}}

    return NestedInput(), [one(n) for n in _ROWS]


class SharedBlock(nn.Module):
    """One block is called three times, and one weight is used by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(N, N), perceptron(), nn.Linear(N, N, bias=False)
        self.head.weight = self.stem.weight
        self.out = nn.Linear(N, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(3):
            x = x + self.block(x)
        return self.out(self.head(x).tanh())


class Siamese(nn.Module):
    """Two inputs through the same encoder, and a loss of both inside."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = perceptron(depth=3)
        self.head = nn.Linear(N, 4)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        a, b = (F.normalize(self.head(self.encoder(each)), dim=-1) for each in (x, y))
        scores = a @ b.t() / 0.1
        return {"loss": F.cross_entropy(scores, torch.arange(len(a), device=a.device)), "scores": scores}


class Momentum(nn.Module):
    """A second encoder follows the first one's weights in training, as MoCo and BYOL do."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = perceptron(depth=2), perceptron(depth=2)
        self.predict = perceptron()
        self.target.load_state_dict(self.online.state_dict())
        for p in self.target.parameters():
            p.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            z = self.target(y)
        return (self.predict(self.online(x)) - z).square().sum(-1)


class Packed(nn.Module):
    """Sequences of several lengths, packed for an LSTM and padded again."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(20, N), nn.LSTM(N, N, batch_first=True, bidirectional=True)
        self.mix, self.head = perceptron(2 * N), nn.Linear(2 * N, 3)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        x = pack_padded_sequence(self.embed(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.lstm(x)[0], batch_first=True, total_length=tokens.shape[1])
        return self.head(self.mix(y).mean(1))


def packed() -> Family:
    def one(samples: int, length: int) -> tuple[Tensor, Tensor]:
        return torch.randint(0, 20, (samples, length)), torch.randint(2, length + 1, (samples,))

    return Packed(), [one(*size) for size in _SIZES]


class CellLoop(nn.Module):
    """A cell is stepped over time in Python, and its states are stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.second, self.head = nn.LSTMCell(N, N), nn.GRUCell(N, N), nn.Linear(N, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, c, g = (x.new_zeros(len(x), N) for _ in range(3))
        out = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            g = self.second(h, g)
            out.append(g)
        return self.head(torch.stack(out, 1))


class Seq2Seq(nn.Module):
    """A decoder with attention is fed the last right word half of the time, drawn with torch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.encoder = nn.Embedding(20, N), nn.GRU(N, N, batch_first=True)
        self.cell, self.attend, self.out = nn.GRUCell(2 * N, N), nn.Linear(N, N), nn.Linear(N, 20)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, h = self.encoder(self.embed(source))
        h, word, out = h[0], target[:, 0], []
        for t in range(target.shape[1]):
            weights = (memory @ self.attend(h)[:, :, None]).softmax(1)
            h = self.cell(torch.cat([self.embed(word), (weights * memory).sum(1)], -1), h)
            out.append(self.out(h))
            word = target[:, t] if torch.rand(()) < 0.5 else out[-1].argmax(-1)
        return torch.stack(out, 1)


class Convolutions(nn.Module):
    """Dilated causal convolutions with gates and skips, as WaveNet has."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(3, N, 1)
        self.gates = nn.ModuleList(
            parametrizations.weight_norm(nn.Conv1d(N, 2 * N, 2, dilation=2**i)) for i in range(4)
        )
        self.skips, self.head = nn.ModuleList(nn.Conv1d(N, N, 1) for _ in range(4)), nn.Conv1d(N, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, skip = self.stem(x), 0
        for gate, mix in zip(self.gates, self.skips, strict=True):
            pad = gate.dilation[0] * (gate.kernel_size[0] - 1)
            a, b = gate(F.pad(x, (pad, 0))).chunk(2, 1)
            y = a.tanh() * b.sigmoid()
            skip = skip + mix(y)
            x = x + y
        return self.head(F.relu(skip))


class SwitchExperts(nn.Module):
    """Each word goes to one of four experts by index_add, with a loss that balances them."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.gate = perceptron(), nn.Linear(N, 4)
        self.experts, self.after = nn.ModuleList(perceptron() for _ in range(4)), perceptron()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.before(x)
        rows = x.reshape(-1, N)
        p = self.gate(rows).softmax(-1)
        best, chosen = p.max(-1)
        y = torch.zeros_like(rows)
        for i, expert in enumerate(self.experts):
            (where,) = torch.where(chosen == i)
            y[where] = expert(rows[where]) * best[where, None]
        share = F.one_hot(chosen, 4).to(p).mean(0)
        return self.after(x + y.view_as(x)), 4 * (share * p.mean(0)).sum()


class SoftExperts(nn.Module):
    """Experts as one batched product, chosen two by two with a capacity."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.gate, self.after = perceptron(), nn.Linear(N, 4), perceptron()
        self.w1, self.w2 = (nn.Parameter(torch.randn(4, N, N) / math.sqrt(N)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        mask = torch.zeros(len(x), 4, dtype=x.dtype).scatter_(1, chosen, weights)
        hidden = torch.einsum("nd,edh->neh", x, self.w1).relu()
        y = torch.einsum("neh,ehd,ne->nd", hidden, self.w2, mask)
        return self.after(x + y)


class UNet(nn.Module):
    """Skips in a list that is popped, crops to the smaller picture, deep supervision in training alone."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 8, 12, 16)
        self.down = nn.ModuleList(self._double(a, b) for a, b in zip(widths, widths[1:], strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in ((12, 16), (8, 12)))
        self.merge = nn.ModuleList(self._double(2 * a, a) for a in (12, 8))
        self.aux, self.head = nn.Conv2d(12, 2, 1), nn.Conv2d(8, 2, 1)

    @staticmethod
    def _double(a: int, b: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(a, b, 3, padding=1),
            nn.BatchNorm2d(b),
            nn.ReLU(True),
            nn.Conv2d(b, b, 3, padding=1),
            nn.ReLU(True),
        )

    def forward(self, x: Tensor) -> Any:
        skips, outs = [], []
        for i, down in enumerate(self.down):
            x = down(x)
            if i < len(self.down) - 1:
                skips.append(x)
                x = F.max_pool2d(x, 2)
        for up, merge in zip(self.up, self.merge, strict=True):
            skip, x = skips.pop(), up(x)
            skip = skip[..., : x.shape[-2], : x.shape[-1]]
            x = merge(torch.cat([skip, x], 1))
            outs.append(x)
        if self.training:
            return self.head(x), self.aux(outs[0])
        return self.head(x)


class Checkpoints(Blocks):
    """Recomputes its blocks in the backward, as it trains."""

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        return self.head(x)


class Hooked(Blocks):
    """Forward hooks keep the blocks' outputs, and the head reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Tensor] = {}
        for i, block in enumerate(self.blocks):
            block.register_forward_hook(lambda _, __, y, i=i: self.seen.__setitem__(str(i), y))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x + self.seen["1"])


class Spectral(nn.Module):
    """Spectral norms, orthogonal weights, complex numbers of a Fourier transform."""

    def __init__(self) -> None:
        super().__init__()
        self.a = parametrizations.spectral_norm(nn.Linear(N, N))
        self.b = parametrizations.orthogonal(nn.Linear(N, N))
        self.filter = nn.Parameter(torch.randn(N // 2 + 1, 2, dtype=torch.double) * 0.3)
        self.head = nn.Linear(N, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(self.a(x).relu())
        spectrum = torch.fft.rfft(x, norm="ortho") * torch.view_as_complex(self.filter)
        return self.head(torch.fft.irfft(spectrum, n=N, norm="ortho") + x)


class Straight(Blocks):
    """Quantises to a codebook with a straight-through gradient, and returns its losses, as VQ-VAE does."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(16, N)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        z = self.blocks[1](self.blocks[0](x))
        nearest = torch.cdist(z, self.codes.weight).argmin(1)
        q = self.codes(nearest)
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        y = z + (q - z).detach()
        out = self.blocks[3](self.blocks[2](y))
        return {"loss": F.mse_loss(out, x) + loss, "out": out, "codes": nearest}


class Variational(Blocks):
    """Draws a latent as it trains, with torch, and adds a divergence."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.scale = nn.Linear(N, N), nn.Linear(N, N)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.blocks[1](self.blocks[0](x))
        mean, log = self.mean(h), self.scale(h)
        z = mean + torch.randn_like(mean) * (0.5 * log).exp() if self.training else mean
        return self.blocks[3](self.blocks[2](z)), -0.5 * (1 + log - mean**2 - log.exp()).sum(1).mean()


class GlobalConfig(Blocks):
    """Looks its layers up by name from a dictionary of text, and calls methods with getattr."""

    plan = OrderedDict(first="gelu", second="relu", third="tanh")

    def forward(self, x: Tensor) -> Tensor:
        for i, (name, act) in enumerate(self.plan.items()):
            x = getattr(F, act)(getattr(self, f"_{name}", self.blocks[i])(x))
        assert x.ndim == 2, f"rows, not {x.shape}"
        return self.head(self.blocks[3](x))


class TimeStep(nn.Module):
    """A diffusion model's denoiser: embeddings of time scale and shift each block."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(N, N), nn.SiLU(), nn.Linear(N, N))
        self.blocks = nn.ModuleList(nn.ModuleList([perceptron(), nn.Linear(N, 2 * N)]) for _ in range(3))
        self.out = nn.Linear(N, N)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        frequencies = torch.exp(torch.arange(N // 2, device=x.device, dtype=x.dtype) * (-math.log(1e4) / (N // 2)))
        angles = t[:, None] * frequencies
        e = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        for block, film in self.blocks:
            scale, shift = film(F.silu(e)).chunk(2, -1)
            x = x + block(x) * (1 + scale) + shift
        return self.out(x)


class Hyper(nn.Module):
    """One network writes the weights of another."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.writer, self.head = perceptron(depth=2), nn.Linear(N, N * N), nn.Linear(N, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        weights = self.writer(h).view(-1, N, N)
        return self.head(torch.bmm(weights, h[:, :, None]).squeeze(-1).tanh())


class Halting(nn.Module):
    """Stops each row by a score of its own, as adaptive computation does."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.step, self.stop = perceptron(), perceptron(), nn.Linear(N, 1)
        self.tail, self.head = perceptron(), nn.Linear(N, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        left, y = torch.ones(len(x), 1, dtype=x.dtype), torch.zeros_like(x)
        for i in range(4):
            x = x + self.step(x)
            p = torch.sigmoid(self.stop(x)) * left if i < 3 else left
            y, left = y + p * x, left - p
            if (left < 0.01).all():
                break
        return self.head(self.tail(y))


class Memory(nn.Module):
    """Reads the nearest rows of a buffer that it fills as it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = perceptron(), perceptron(), nn.Linear(N, 3)
        self.register_buffer("bank", torch.randn(16, N))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        bank = self.bank.clone()  # the backward reads it
        y = self.b(x + (x @ bank.t()).softmax(-1) @ bank)
        if self.training:
            with torch.no_grad():
                where = (self.cursor + torch.arange(len(x))) % 16
                self.bank[where] = x.detach()
                self.cursor.add_(len(x)).remainder_(16)
        return self.head(y)


class Augments(Blocks):
    """Mixes samples of a minibatch and hides features, drawn with torch, as it trains."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            share = torch.distributions.Beta(0.4, 0.4).sample().to(x)
            x = share * x + (1 - share) * x[torch.randperm(len(x))]
            x = x.masked_fill(torch.rand_like(x) < 0.1, 0)
        return super().forward(x)


class Gathers(nn.Module):
    """Attention over neighbours that a distance chooses, with scatter of their sums."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.q, self.k, self.v = nn.Linear(3, N), nn.Linear(N, N), nn.Linear(N, N), nn.Linear(N, N)
        self.tail, self.head = perceptron(depth=2), nn.Linear(N, 3)

    def forward(self, places: Tensor) -> Tensor:
        x = self.stem(places)
        near = torch.cdist(places, places).topk(3, largest=False).indices
        source, target = near.flatten(), torch.arange(len(x)).repeat_interleave(3)
        scores = (self.q(x)[target] * self.k(x)[source]).sum(-1)
        top = torch.full((len(x),), -1e9, dtype=x.dtype).scatter_reduce(0, target, scores, "amax")
        e = (scores - top[target]).exp()
        total = torch.zeros(len(x), dtype=x.dtype).scatter_add(0, target, e)
        message = torch.zeros_like(x).index_add(0, target, self.v(x)[source] * (e / total[target])[:, None])
        return self.head(self.tail(x + message))


class Typed(Blocks):
    """Works in float32 inside, and gives what it was given."""

    def forward(self, x: Tensor) -> Tensor:
        kind = x.dtype
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i == 1:
                x = F.softmax(x.float(), dim=-1).type_as(x).to(kind)
        return self.head(x)


class InPlace(Blocks):
    """Writes into slices, and into what a block returned."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.empty(len(x), 2 * N, dtype=x.dtype, device=x.device)
        y[:, :N] = self.blocks[0](x)
        y[:, N:] = self.blocks[1](x)
        z = self.blocks[2](y.view(len(x), 2, N).sum(1))
        z.mul_(0.5).add_(x)
        z[:, 0] = 0
        return self.head(self.blocks[3](z))


class Lambda(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def sequential() -> nn.Module:
    """A Sequential of lambdas, a Softmax over an implicit axis, and nested Sequentials by name."""
    named = OrderedDict(a=perceptron(), b=Lambda(lambda x: x * torch.sigmoid(x)), c=perceptron())
    return nn.Sequential(nn.Sequential(named), Lambda(torch.sin), perceptron(), nn.Linear(N, 3))


def rows(kind: Callable[[], nn.Module]) -> Callable[[], Family]:
    return lambda: (kind(), [torch.randn(n, N) for n in _ROWS])


def sequences(kind: Callable[[], nn.Module]) -> Callable[[], Family]:
    return lambda: (kind(), [torch.randn(*size, N) for size in _SIZES])


def pairs(kind: Callable[[], nn.Module]) -> Callable[[], Family]:
    return lambda: (kind(), [(torch.randn(n, N), torch.randn(n, N)) for n in _ROWS])


NETWORKS: Mapping[str, Callable[[], Family]] = {
    "counter in a buffer": rows(CountsSteps),
    "running mean of its own": rows(Normalizes),
    "try and except": rows(TryExcept),
    "rows left out by a mask": rows(Filters),
    "while at the root": rows(While),
    "rows sorted": rows(Sorts),
    "groups by unique": rows(Unique),
    "lists and dictionaries": rows(Lists),
    "dataclass out": rows(DataclassOutput),
    "named tuple out": lambda: (
        NamedOutput(),
        [{"x": torch.randn(n, N), "scale": 0.5, "bias": torch.randn(N)} for n in _ROWS],
    ),
    "nested dictionary in": nested,
    "shared block and weight": rows(SharedBlock),
    "siamese with a loss": pairs(Siamese),
    "momentum encoder": pairs(Momentum),
    "packed sequences": packed,
    "cell in a loop": sequences(CellLoop),
    "words fed by chance": lambda: (
        Seq2Seq(),
        [(torch.randint(0, 20, size), torch.randint(0, 20, (size[0], 4))) for size in _SIZES],
    ),
    "gated convolutions": lambda: (Convolutions(), [torch.randn(n, 3, 10 * n) for n in _ROWS]),
    "switch of experts": sequences(SwitchExperts),
    "experts by einsum": rows(SoftExperts),
    "u-net of a popped list": lambda: (UNet(), [torch.randn(n, 3, 16, 16) for n in _ROWS]),
    "checkpoints": rows(Checkpoints),
    "hooks keep outputs": rows(Hooked),
    "spectral": rows(Spectral),
    "straight-through codes": rows(Straight),
    "variational": rows(Variational),
    "layers by name": rows(GlobalConfig),
    "diffusion": lambda: (TimeStep(), [(torch.randn(n, N), torch.rand(n) * 100) for n in _ROWS]),
    "hypernetwork": rows(Hyper),
    "adaptive halting": rows(Halting),
    "memory bank": rows(Memory),
    "mixup inside": rows(Augments),
    "attention by scatter": lambda: (Gathers(), [torch.randn(5 * n, 3) for n in _ROWS]),
    "float32 inside": rows(Typed),
    "slices written": rows(InPlace),
    "lambdas": rows(sequential),
}
