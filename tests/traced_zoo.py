"""Networks such as users bring, ugly on purpose: name → a function that returns a module and what its forward takes.

Written from scratch, a few lines each; sizes are tiny. Each shows one thing that tracing stumbles over.
"""

import importlib.util
import warnings
from collections import namedtuple
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from sparsepipe import engines
from sparsepipe.engines.plain import PlainEngine

Heads = namedtuple("Heads", ["classes", "aux"])


@dataclass
class Scores:
    logits: Tensor
    hidden: Tensor


def plain():
    layers = [
        nn.Conv2d(3, 6, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(54, 8),
        nn.Linear(8, 4),
    ]
    return nn.Sequential(*layers), torch.randn(4, 3, 8, 8)


class Residual(nn.Module):
    def __init__(self, a, b, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Sequential(nn.Conv2d(a, b, 1, stride), nn.BatchNorm2d(b)) if a != b else None

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class ResNet(nn.Module):
    """Additions in place, a module called twice in a block, a function between modules."""

    def __init__(self):
        super().__init__()
        self.conv, self.layer1, self.layer2 = nn.Conv2d(3, 4, 3), Residual(4, 4), Residual(4, 8, 2)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(torch.flatten(self.pool(self.layer2(self.layer1(self.conv(x)))), 1))


class UNet(nn.Module):
    """Long skips, sizes read by interpolate."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(2, 4, 3, 1, 1), nn.Conv2d(4, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.up1, self.up2, self.out = nn.Conv2d(16, 8, 3, 1, 1), nn.Conv2d(12, 4, 3, 1, 1), nn.Conv2d(4, 3, 1)

    def forward(self, x):
        a = torch.relu(self.a(x))
        b = torch.relu(self.b(a))
        c = torch.relu(self.c(b))
        y = torch.cat([F.interpolate(c, size=b.shape[-2:]), b], 1)
        y = F.leaky_relu(self.up1(y))
        y = torch.cat([F.interpolate(y, size=a.shape[2:]), a], dim=1)
        return self.out(F.leaky_relu(self.up2(y)))


class Dense(nn.Module):
    """Each layer reads all before it: many values alive at once."""

    def __init__(self, depth=5):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4 + 3 * i, 3) for i in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(4 + 3 * i) for i in range(depth))

    def forward(self, x):
        found = [x]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            found.append(layer(F.relu(norm(torch.cat(found, 1)), inplace=True)))
        return torch.cat(found, 1)


class Inception(nn.Module):
    """Branches, an auxiliary head while it trains alone, a named tuple then and a tensor else."""

    def __init__(self):
        super().__init__()
        self.stem, self.one, self.two = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.aux, self.fc = nn.Linear(8, 3), nn.Linear(8, 3)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        x = F.relu(self.stem(x), True)
        x = torch.cat([self.one(x), self.two(x)], 1)
        aux = self.aux(x.mean((2, 3))) if self.training else None
        y = self.fc(self.dropout(F.max_pool2d(x, 2).amax((2, 3))))
        return Heads(y, aux) if self.training else y


class BothDropouts(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(6, 8), nn.Linear(8, 4), nn.Dropout(0.5, inplace=True)

    def forward(self, x):
        x = F.dropout(torch.tanh(self.a(x)), 0.4, self.training)
        return F.dropout(self.b(self.drop(x)), p=0.2, training=self.training)


class Attention(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.query, self.key = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)
        self.score = nn.Parameter(torch.randn(n) / n)

    def forward(self, queries, keys, mask):
        scores = torch.tanh(self.query(queries)[:, :, None] + self.key(keys)[:, None]) @ self.score
        return torch.softmax(scores.masked_fill(~mask[:, None], float("-inf")), -1) @ keys


class GNMT(nn.Module):
    """LSTMs both ways and with residuals; one attention for every decoder layer; a mask that is read late."""

    def __init__(self, vocabulary=30, n=6, depth=3):
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, n), nn.Embedding(vocabulary, n)
        self.both = nn.LSTM(n, n, batch_first=True, bidirectional=True)
        self.encoder = nn.ModuleList(nn.LSTM(n if i else 2 * n, n, batch_first=True) for i in range(depth))
        self.first, self.attention = nn.LSTM(n, n, batch_first=True), Attention(n)
        self.decoder = nn.ModuleList(nn.LSTM(2 * n, n, batch_first=True) for _ in range(depth))
        self.dropout, self.out = nn.Dropout(0.2), nn.Linear(n, vocabulary)

    def forward(self, source, target, mask):
        x, _ = self.both(self.dropout(self.source(source)))
        for i, lstm in enumerate(self.encoder):
            y, _ = lstm(self.dropout(x))
            x = y + x if i else y
        y, _ = self.first(self.dropout(self.target(target)))
        context = self.attention(y, x, mask)
        for i, lstm in enumerate(self.decoder):
            z, _ = lstm(torch.cat([self.dropout(y), context], -1))
            y = z + y if i else z
        return self.out(y)


def gnmt():
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1, 3:] = False
    return GNMT(), (torch.randint(0, 30, (3, 5)), torch.randint(0, 30, (3, 4)), mask)


class TiedLM(nn.Module):
    """First and last layer share a weight; a dict and a keyword in, a nested dict out."""

    def __init__(self, vocabulary=20, n=8):
        super().__init__()
        self.embed, self.norm = nn.Embedding(vocabulary, n), nn.LayerNorm(n)
        self.position = nn.Parameter(torch.randn(1, 12, n) * 0.1)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(n, 2, 16, batch_first=True) for _ in range(2))
        self.out = nn.Linear(n, vocabulary, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, batch, *, scale=1.0, bias=None):
        x = self.embed(batch["words"]) * scale
        x = x + self.position[:, : x.shape[1]]
        for block in self.blocks:
            x = block(x, src_key_padding_mask=batch["padding"])
        y = self.out(self.norm(x))
        return {"logits": y if bias is None else y + bias, "pair": (x.mean(), x)}


def tied():
    batch = {"words": torch.randint(0, 20, (2, 5)), "padding": torch.zeros(2, 5, dtype=torch.bool)}
    batch["padding"][1, 3:] = True
    return TiedLM(), {"batch": batch, "scale": 2.0, "bias": torch.randn(20)}


class ViT(nn.Module):
    """A class token expanded to the minibatch's size, positions that are parameters."""

    def __init__(self, n=8):
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, n, 4, 4), nn.Parameter(torch.randn(1, 1, n))
        self.positions, self.drop = nn.Parameter(torch.randn(1, 5, n)), nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(n, 2, 16, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(n, 4)

    def forward(self, x):
        batch, _, height, width = x.shape
        assert height % 4 == 0 and width % 4 == 0, "pictures of whole patches"
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(batch, -1, -1), x], 1) + self.positions
        return self.head(self.encoder(self.drop(x))[:, 0])


class OwnAttention(nn.Module):
    """Heads by view and chunk, sizes of tensors in between, a causal mask in a buffer, scaled_dot_product_attention."""

    def __init__(self, n=8, heads=2):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.register_buffer("causal", torch.ones(16, 16).tril().bool(), persistent=False)

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = (each.view(b, t, self.heads, c // self.heads).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        p = 0.2 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.causal[:t, :t], dropout_p=p)
        return self.out(y.transpose(1, 2).contiguous().view(b, t, c))


class GPT(nn.Module):
    def __init__(self, n=8, vocabulary=20):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, n), nn.Embedding(16, n)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(n),
                    "attention": OwnAttention(n),
                    "mlp": nn.Sequential(nn.Linear(n, 16), nn.GELU(), nn.Linear(16, n), nn.Dropout(0.1)),
                }
            )
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(n)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = x + block["attention"](block["norm"](x))
            x = x + block["mlp"](x)
        return self.norm(x) @ self.words.weight.t()  # tied without a module


class Multihead(nn.Module):
    """nn.MultiheadAttention: two outputs, one of them None or not, masks of two kinds."""

    def __init__(self, n=8):
        super().__init__()
        self.attend = nn.MultiheadAttention(n, 2, dropout=0.1, batch_first=True)
        self.again = nn.MultiheadAttention(n, 2, batch_first=True)
        self.norm, self.out = nn.LayerNorm(n), nn.Linear(n, 3)

    def forward(self, x, padding):
        y, weights = self.attend(x, x, x, key_padding_mask=padding)
        y = self.norm(x + y)
        z, nothing = self.again(y, x, x, need_weights=False, key_padding_mask=padding)
        assert nothing is None
        return self.out(y + z), weights


def multihead():
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 4] = True
    return Multihead(), (torch.randn(2, 5, 8), padding)


class EncoderDecoder(nn.Module):
    def __init__(self, n=8):
        super().__init__()
        self.embed = nn.Embedding(20, n)
        self.net = nn.Transformer(n, 2, 2, 2, 16, dropout=0.1, batch_first=True)
        self.out = nn.Linear(n, 20)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        return self.out(self.net(self.embed(source), self.embed(target), tgt_mask=mask.to(self.embed.weight.dtype)))


class Recurrent(nn.Module):
    """States of one recurrent layer start the next one: tuples of tensors between layers; an LSTM's own dropout."""

    def __init__(self):
        super().__init__()
        self.read = nn.LSTM(4, 6, num_layers=2, dropout=0.3, batch_first=True)
        self.write = nn.LSTM(4, 6, num_layers=2, batch_first=True)
        self.gate, self.cell, self.out = nn.GRU(6, 6), nn.GRUCell(6, 6), nn.Linear(6, 3)

    def forward(self, x, y):
        _, state = self.read(x)
        z, (h, _) = self.write(y, state)
        w, last = self.gate(z.transpose(0, 1))
        return self.out(self.cell(w[-1], last[0]) + h[-1])


class SoftExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)) for _ in range(3))

    def forward(self, x):
        gate = torch.softmax(self.gate(x), -1)
        return sum(gate[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class HardExperts(nn.Module):
    """Python looks at which rows go where."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        gate = torch.softmax(self.gate(x), -1)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (gate.argmax(-1) == i).nonzero()[:, 0]
            if len(rows):
                y[rows] = gate[rows, i : i + 1] * expert(x[rows])
        return y


def between(module, before=6, after=6):
    return nn.Sequential(nn.Linear(5, before), nn.Tanh(), module, nn.Linear(after, 4), nn.Tanh(), nn.Linear(4, 2))


class Packed(nn.Module):
    """Packed sequences go through an LSTM."""

    def __init__(self):
        super().__init__()
        self.embed, self.read, self.out = nn.Linear(4, 6), nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x, lengths):
        x = torch.relu(self.embed(x))
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, _ = nn.utils.rnn.pad_packed_sequence(self.read(packed)[0], batch_first=True)
        return self.out(y)


class Twice(nn.Module):
    """One module called three times, with weights and dropout; one of its calls early, one late."""

    def __init__(self):
        super().__init__()
        self.a, self.same, self.drop, self.b = nn.Linear(6, 6), nn.Linear(6, 6), nn.Dropout(0.3), nn.Linear(6, 2)

    def forward(self, x):
        x = self.drop(self.same(x))
        x = self.drop(torch.tanh(self.same(self.a(x))))
        return self.b(self.drop(self.same(x)))


class NormTwice(nn.Module):
    """One batch norm called twice: its statistics are written twice."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b, self.c, self.d = (
            nn.Linear(5, 6),
            nn.BatchNorm1d(6),
            nn.Linear(6, 6),
            nn.Linear(6, 6),
            nn.Linear(6, 2),
        )

    def forward(self, x):
        x = torch.relu(self.norm(self.a(x)))
        x = torch.relu(self.norm(self.b(x)))
        return self.d(torch.tanh(self.c(x)))


class Frozen(nn.Module):
    """A frozen trunk under torch.no_grad, a frozen weight that two layers share, a detached side output."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.tuned, self.fixed, self.other, self.head = (nn.Linear(6, 6) for _ in range(4))
        for module in (self.trunk, self.fixed):
            module.requires_grad_(False)
        self.other.weight = self.fixed.weight
        self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)

    def forward(self, x):
        with torch.no_grad():
            teacher = self.tuned(x) * self.scale
        x = self.tuned(self.trunk(x))
        y = self.other(torch.tanh(self.fixed(x))) + teacher
        return self.head(y), teacher.detach(), y.detach().argmax(-1)


class BareParameters(nn.Module):
    """Functions alone: no submodule at all."""

    def __init__(self):
        super().__init__()
        self.kernel, self.bias = nn.Parameter(torch.randn(4, 2, 3, 3) * 0.2), nn.Parameter(torch.zeros(4))
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(4, 4) * 0.5) for _ in range(3))
        self.named = nn.ParameterDict({"out": nn.Parameter(torch.randn(4, 3))})
        self.mix = nn.Parameter(torch.zeros(3))
        self.register_buffer("offset", torch.randn(4))

    def forward(self, x):
        x = F.conv2d(x, self.kernel, self.bias, padding=1).relu_().mean((2, 3)) + self.offset
        shares = torch.softmax(self.mix * 2, 0)
        x = sum(share * torch.tanh(x @ weight) for share, weight in zip(shares, self.weights, strict=True))
        return x @ self.named["out"].abs()


class Buffers(nn.Module):
    """Counters and running means that forward code keeps itself, next to parts that only read buffers."""

    class Keeper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(5, 5)
            self.register_buffer("seen", torch.zeros((), dtype=torch.long))
            self.register_buffer("mean", torch.zeros(5))

        def forward(self, x):
            if self.training:
                self.seen += 1
                self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return self.inner(x - self.mean)

    def __init__(self):
        super().__init__()
        self.a, self.keep, self.b = nn.Linear(5, 5), self.Keeper(), nn.Linear(5, 5)
        self.register_buffer("shift", torch.randn(5))

    def forward(self, x):
        x = self.keep(torch.tanh(self.a(x)))
        return self.b(torch.tanh(x + self.shift)) - self.shift


class LateMasks(nn.Module):
    """Integers and booleans that come in first and are read last."""

    def __init__(self):
        super().__init__()
        self.embed, self.kinds = nn.Embedding(10, 6), nn.Embedding(3, 6)
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, ids, kinds=None, keep=None):
        bias = (1.0 - (ids != 0).double().unsqueeze(-1)) * -5.0
        longest = (ids != 0).sum(-1)
        x = torch.tanh(self.a(self.embed(ids) + self.kinds(kinds)))
        x = torch.tanh(self.b(x + bias.to(x.dtype)))
        x = x.masked_fill(~keep.unsqueeze(-1), 0.0)
        return self.c(x.sum(1) / longest[:, None]), longest


def late_masks():
    ids = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0]])
    return LateMasks(), {"ids": ids, "kinds": ids % 3, "keep": ids > 1}


class Shapes(nn.Module):
    """Python decides by sizes: of channels, and whether one is divisible; numbers cross."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 2)

    def forward(self, x):
        if x.dim() != 4 or x.shape[1] != 3:
            raise ValueError(f"expected pictures of 3 channels, got {tuple(x.shape)}")
        height, width = x.shape[-2:]
        x = torch.relu(self.a(x))
        if height % 2 or width % 2:
            x = F.pad(x, (0, width % 2, 0, height % 2))
        area = x.shape[2] * x.shape[3]
        x = torch.relu(self.b(x))
        x = x.reshape(x.size(0), -1, area).sum(-1) / (height * width) ** 0.5
        return self.c(x) if isinstance(x, Tensor) else None


class Nested(nn.Module):
    """Containers in containers, a dict of lists between modules, keywords only, a dataclass out."""

    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleDict(
                {"left": nn.Linear(6, 4), "right": nn.ModuleList([nn.Linear(6, 4), nn.Linear(6, 4)])}
            )

        def forward(self, *, x):
            return {"left": self.parts["left"](x), "right": [part(x) for part in self.parts["right"]]}

    class Join(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.ModuleList([nn.Linear(4, 3)])

        def forward(self, given, *, weight=1.0):
            total = given["left"]
            for each in given["right"]:
                total = total + weight * torch.sigmoid(each)
            return Scores(self.out[0](total), total)

    def __init__(self):
        super().__init__()
        self.split, self.join = self.Split(), self.Join()

    def forward(self, *, x):
        return self.join(self.split(x=x), weight=0.5)


class Normed(nn.Module):
    """Weights made of others: weight norm, spectral norm (which writes buffers), an own parametrization."""

    class Symmetric(nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).transpose(-1, -2)

    def __init__(self):
        super().__init__()
        self.a = nn.utils.parametrizations.weight_norm(nn.Linear(5, 6))
        self.b = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
        self.c, self.d = nn.Linear(6, 6), nn.Linear(6, 2)
        nn.utils.parametrize.register_parametrization(self.c, "weight", self.Symmetric())

    def forward(self, x):
        return self.d(torch.tanh(self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))))


class WritesViews(nn.Module):
    """Writes into parts of a tensor that is read afterwards, in one of several modules."""

    class Writer(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(6, 2)

        def forward(self, x):
            y = torch.zeros_like(x)
            y[:, :2] = self.gate(x)
            y[:, 2:].add_(x[:, 2:])
            view = y.view(-1)
            view.mul_(2)
            return y

    def __init__(self):
        super().__init__()
        self.a, self.writer, self.b = nn.Linear(5, 6), self.Writer(), nn.Linear(6, 3)

    def forward(self, x):
        return self.b(torch.tanh(self.writer(torch.tanh(self.a(x)))))


class InPlace(nn.Module):
    """Every spelling of in place that can be written otherwise."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.elu = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 2), nn.ELU(inplace=True)

    def forward(self, x):
        x = self.a(x)
        x.mul_(0.5).add_(1)
        y = self.b(torch.relu_(self.b(x)))
        y += x
        y *= 2
        F.leaky_relu_(y, 0.1)
        y = F.silu(self.b(torch.sigmoid(y)), inplace=True)
        self.elu(y)
        return self.c(y)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2), nn.Tanh()) for _ in range(3))
        self.out = nn.Linear(6, 2)

    def forward(self, x):
        x = self.a(x)
        x = checkpoint(self.b, x, use_reentrant=False)
        x = checkpoint(lambda y: self.c(y) * 2, x, use_reentrant=True)
        return self.out(x)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.scale * gradient, None


class OwnFunction(nn.Module):
    """An autograd function of one's own: the gradient turns round."""

    def __init__(self):
        super().__init__()
        self.a, self.label, self.domain = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(6, 2)

    def forward(self, x):
        x = torch.tanh(self.a(x))
        return self.label(x), self.domain(Reverse.apply(x, 0.3))


class Noise(nn.Module):
    """Draws of its own: a latent (variational autoencoder), noise of plain sizes, stochastic depth."""

    def __init__(self):
        super().__init__()
        self.encode, self.mean, self.spread = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(6, 3)
        self.decode, self.out = nn.Linear(3, 6), nn.Linear(6, 5)

    def forward(self, x):
        h = torch.relu(self.encode(x))
        mean, spread = self.mean(h), self.spread(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        y = torch.relu(self.decode(z + 0.1 * torch.randn(3, dtype=z.dtype)))
        if self.training:
            y = y * (torch.rand(y.shape[0], 1, dtype=y.dtype) > 0.2)
        return self.out(y), mean, spread


class Unused(nn.Module):
    """Parts that no forward calls, and one whose output nobody reads."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.never, self.ignored = (nn.Linear(5, 5) for _ in range(4))
        self.spare = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))
        self.gain = nn.Parameter(torch.ones(5))

    def forward(self, x):
        x = torch.tanh(self.a(x))
        self.ignored(x)
        return self.b(x)


class Looping(nn.Module):
    """Loops over the steps of a sequence, as many as there are, in one of its modules."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = nn.GRUCell(6, 6)

        def forward(self, x):
            h, found = x.new_zeros(x.shape[0], 6), []
            for t in range(x.shape[1]):
                h = self.step(x[:, t], h)
                found.append(h)
            return torch.stack(found, 1), h

    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(10, 6), self.Cell(), nn.Linear(6, 4)

    def forward(self, ids):
        y, h = self.cell(self.embed(ids))
        return self.out(torch.tanh(y)), h


class RootLoops(nn.Module):
    """Its own forward does what no stand-in takes: a loop over sizes at the top."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm, self.drop = nn.Linear(6, 6), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.2)

    def forward(self, x):
        x = self.drop(self.norm(torch.tanh(self.a(x))))
        for i in range(x.shape[-1] // 3):
            x = torch.tanh(self.b(x)) * (i + 1)
        return x


class RootDecides(nn.Module):
    """Its own forward decides by a tensor's numbers: it cannot be cut."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        x = torch.tanh(self.a(x))
        return self.b(x) if x.sum() > 0 else self.c(x)


class Siamese(nn.Module):
    """One trunk for two inputs, with batch norm: all of it is one layer; the head is not."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 4))
        self.head, self.out = nn.Bilinear(4, 4, 6), nn.Linear(6, 2)

    def forward(self, pair):
        left, right = pair
        a, b = self.trunk(left), self.trunk(right)
        return self.out(self.head(a, b)), F.cosine_similarity(a, b)


class ConvNorms(nn.Module):
    """Norms of all kinds, a frozen batch norm that train() leaves alone, complex numbers in between."""

    def __init__(self):
        super().__init__()
        self.conv, self.group, self.instance = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)
        self.frozen, self.out = nn.BatchNorm2d(4), nn.Linear(4, 2)
        self.filter = nn.Parameter(torch.randn(4, 6, 4, dtype=torch.cdouble))

    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x):
        x = F.hardswish(self.group(self.conv(x)), inplace=True)
        x = torch.fft.irfft2(torch.fft.rfft2(x) * self.filter, s=x.shape[-2:])
        return self.out(F.selu(self.frozen(self.instance(x))).mean((-1, -2)))


class PointNet(nn.Module):
    """Points [B, N, 3]: transposes, a maximum with indices, repeat, integer gather."""

    def __init__(self):
        super().__init__()
        self.local, self.norm, self.deep = nn.Conv1d(3, 6, 1), nn.BatchNorm1d(6), nn.Conv1d(6, 8, 1)
        self.out = nn.Conv1d(14, 3, 1)

    def forward(self, points, pick):
        x = points.transpose(1, 2)
        x = torch.relu(self.norm(self.local(x)))
        top, where = self.deep(x).max(-1, keepdim=True)
        x = torch.cat([x, top.repeat(1, 1, x.shape[-1])], 1)
        y = self.out(x).transpose(1, 2)
        return y, y.gather(1, pick[:, :, None].expand(-1, -1, y.shape[-1])), where


def minkowski_unet():
    """Sparse voxels: strides, transposed convolutions, ME.cat, addition in place, a pooling that Python cannot copy."""
    from sparsepipe.engines.minkowski import ME  # which imports it so that it works

    class Block(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.conv, self.norm = ME.MinkowskiConvolution(a, b, kernel_size=3, dimension=3), ME.MinkowskiBatchNorm(b)
            self.skip = ME.MinkowskiConvolution(a, b, kernel_size=1, dimension=3)
            self.relu, self.drop = ME.MinkowskiReLU(inplace=True), ME.MinkowskiDropout(0.2)

        def forward(self, x):
            y = self.norm(self.conv(x))
            y += self.skip(x)
            return self.drop(self.relu(y))

    class SparseUNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.b1, self.b2, self.b3 = Block(3, 4), Block(8, 8), Block(8, 4)
            self.down = ME.MinkowskiConvolution(4, 8, kernel_size=2, stride=2, dimension=3)
            self.up = ME.MinkowskiConvolutionTranspose(8, 4, kernel_size=2, stride=2, dimension=3)
            self.head = ME.MinkowskiConvolution(4, 5, kernel_size=1, dimension=3)
            self.pool = ME.MinkowskiGlobalAvgPooling()

        def forward(self, x):
            a = self.b1(x)
            b = self.b2(self.down(a))
            up = ME.MinkowskiFunctional.relu(self.up(b))
            return self.head(self.b3(ME.cat(up, a))).F, self.pool(b).F

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates how its layers are made
        module = SparseUNet()
    places = torch.cat([torch.randint(0, 2, (120, 1)), torch.randint(0, 6, (120, 3))], 1).unique(dim=0).int()
    return module, ME.SparseTensor(torch.rand(len(places), 3, dtype=torch.float64), places)


def minkowski_points():
    """A dict of points: voxels are made of them in the forward, and their features go back to the points at its end."""
    from sparsepipe.engines.minkowski import ME

    class Points(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter = ME.MinkowskiConvolution(3, 4, kernel_size=3, dimension=3)
            self.down = ME.MinkowskiConvolution(4, 8, kernel_size=2, stride=2, dimension=3)
            self.up = ME.MinkowskiConvolutionTranspose(8, 4, kernel_size=2, stride=2, dimension=3)
            self.head = ME.MinkowskiConvolution(8, 5, kernel_size=1, dimension=3)

        def forward(self, points):
            sample = torch.cat([torch.full((n,), i) for i, n in enumerate(points["counts"].tolist())])
            places = torch.cat([sample[:, None].float(), points["places"]], dim=1)
            mode = ME.SparseTensorQuantizationMode.RANDOM_SUBSAMPLE  # torch deprecates how averages are made
            field = ME.TensorField(points["features"], places, quantization_mode=mode)
            fine = self.enter(field.sparse())
            return self.head(ME.cat(self.up(self.down(fine)), fine)).slice(field).F

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates how its layers are made
        module = Points()
    places = torch.rand(70, 3) * 5  # several points in a voxel
    return module, {"places": places, "features": torch.rand(70, 3), "counts": torch.tensor([40, 30])}


def minkowski_fields():
    """Fields of the same points with gradients, combined and sliced to; another of other points, with its voxels."""
    from sparsepipe.engines.minkowski import ME

    class Fields(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = ME.MinkowskiLinear(3, 4), ME.MinkowskiLinear(4, 4)
            self.enter, self.beside = (ME.MinkowskiConvolution(n, 4, kernel_size=3, dimension=3) for n in (4, 3))
            self.head, self.tail = ME.MinkowskiLinear(8, 5), ME.MinkowskiLinear(4, 2)

        def forward(self, points):
            mode = ME.SparseTensorQuantizationMode.RANDOM_SUBSAMPLE
            field = self.first(ME.TensorField(points["features"], points["places"], quantization_mode=mode))
            voxels = self.enter(field.sparse())
            derived = self.second(field)
            other = ME.TensorField(points["features"], points["others"], quantization_mode=mode)
            beside = self.beside(other.sparse())
            sliced = self.head(ME.cat(voxels.slice(derived), derived))
            return sliced.F, self.tail(beside.slice(other)).F

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates how its layers are made
        module = Fields()
    places = torch.cat([torch.zeros(70, 1), torch.rand(70, 3) * 5], dim=1)
    return module, {"places": places, "others": 2 * places, "features": torch.rand(70, 3)}


def transformers_bert():
    """A tied decoder, masks of masks, optional arguments, the loss inside, a ModelOutput out."""
    from transformers import BertConfig, BertForPreTraining

    sizes = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    words = torch.randint(0, 50, (2, 6))
    mask = torch.ones_like(words)
    mask[1, 4:] = 0
    inputs = {"input_ids": words, "attention_mask": mask, "labels": words}
    module = BertForPreTraining(BertConfig(num_hidden_layers=1, **sizes))
    return module, {**inputs, "next_sentence_label": torch.tensor([0, 1])}


def transformers_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 50, "n_positions": 16}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(use_cache=False, **sizes, **ends)), {"input_ids": torch.randint(0, 50, (2, 6))}


ZOO = {
    "plain": plain,
    "resnet": lambda: (ResNet(), torch.randn(3, 3, 8, 8)),
    "unet": lambda: (UNet(), torch.randn(2, 2, 9, 10)),
    "dense": lambda: (Dense(), torch.randn(5, 4)),
    "inception": lambda: (Inception(), torch.randn(2, 3, 8, 8)),
    "both dropouts": lambda: (BothDropouts(), torch.randn(4, 6)),
    "gnmt": gnmt,
    "tied language model": tied,
    "vit": lambda: (ViT(), torch.randn(2, 3, 8, 8)),
    "gpt": lambda: (GPT(), torch.randint(0, 20, (2, 6))),
    "multihead": multihead,
    "encoder decoder": lambda: (EncoderDecoder(), (torch.randint(0, 20, (2, 6)), torch.randint(0, 20, (2, 5)))),
    "recurrent": lambda: (Recurrent(), (torch.randn(3, 5, 4), torch.randn(3, 4, 4))),
    "soft experts": lambda: (between(SoftExperts()), torch.randn(6, 5)),
    "hard experts": lambda: (between(HardExperts()), torch.randn(6, 5)),
    "packed": lambda: (Packed(), (torch.randn(3, 5, 4), torch.tensor([5, 3, 2]))),
    "used twice": lambda: (Twice(), torch.randn(4, 6)),
    "norm used twice": lambda: (NormTwice(), torch.randn(4, 5)),
    "frozen": lambda: (Frozen(), torch.randn(4, 6)),
    "bare parameters": lambda: (BareParameters(), torch.randn(3, 2, 5, 5)),
    "buffers": lambda: (Buffers(), torch.randn(4, 5)),
    "late masks": late_masks,
    "shapes": lambda: (Shapes(), torch.randn(2, 3, 7, 6)),
    "nested": lambda: (Nested(), {"x": torch.randn(4, 6)}),
    "normed weights": lambda: (Normed(), torch.randn(4, 5)),
    "writes views": lambda: (WritesViews(), torch.randn(4, 5)),
    "in place": lambda: (InPlace(), torch.randn(4, 5)),
    "checkpointed": lambda: (Checkpointed(), torch.randn(4, 6)),
    "own function": lambda: (OwnFunction(), torch.randn(4, 5)),
    "noise": lambda: (Noise(), torch.randn(4, 5)),
    "unused": lambda: (Unused(), torch.randn(4, 5)),
    "looping": lambda: (Looping(), torch.randint(0, 10, (2, 4))),
    "root loops": lambda: (RootLoops(), torch.randn(4, 6)),
    "root decides": lambda: (RootDecides(), torch.randn(4, 6)),
    "siamese": lambda: (Siamese(), ((torch.randn(4, 5), torch.randn(4, 5)),)),
    "norms": lambda: (ConvNorms(), torch.randn(2, 3, 8, 8)),
    "minkowski unet": minkowski_unet,
    "minkowski points": minkowski_points,
    "minkowski fields": minkowski_fields,
    "transformers bert": transformers_bert,
    "transformers gpt2": transformers_gpt2,
    "pointnet": lambda: (PointNet(), (torch.randn(2, 6, 3), torch.randint(0, 6, (2, 2)))),
}


_OF_MINKOWSKI = {"minkowski unet", "minkowski points", "minkowski fields"}
NEEDS = dict.fromkeys(_OF_MINKOWSKI, "MinkowskiEngine") | {
    "transformers bert": "transformers",
    "transformers gpt2": "transformers",
}
EXACT = frozenset(ZOO) - _OF_MINKOWSKI


def missing(name):
    """Say what a network needs that is not installed; "" where nothing is missing."""
    package = NEEDS.get(name)
    return f"{package} is not installed" if package and importlib.util.find_spec(package) is None else ""


def engine(name):
    """Return the engine that a network's values cross boundaries with."""
    return engines.engine("minkowski") if name in _OF_MINKOWSKI else PlainEngine()


def doubled(value):
    """Return a structure with its floating tensors in float64."""
    return torch.utils._pytree.tree_map(
        lambda leaf: leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf, value
    )


def build(name, seed=0):
    """Return a module in float64 and its inputs, the same each time."""
    torch.manual_seed(seed)
    module, inputs = ZOO[name]()
    return module.double(), doubled(inputs)
