"""GNMT (Wu et al. 2016, arXiv:1609.08144), laid out as NVIDIA's and PipeDream's translation networks are.

    source -> embedding -> both ways -> LSTM -> LSTM + residual -> ...            encoded [B, S, H]
                                                                                     |
    target -> embedding -> LSTM -> attention <---------------------------------------+
                            |         | context
                            v         v
                          LSTM of [x, context] -> LSTM of [x, context] + residual -> ... -> classifier

The first decoder layer asks the attention; its answer goes into every later one. Sentences are padded at their end.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...util.text.numbers import number_of

State = tuple[Tensor, Tensor]  # an LSTM's: hidden and cell, each [1, B, H]


# A score so low that its weight is exactly 0, in half precision too; infinity would make a row of padding alone NaN.
_LEFT_OUT = -1e4


def attention_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """Return weights that add up to 1 along the last axis of `scores`.

    `mask`, of a shape that broadcasts to theirs, is false (or 0) for padding: the weight there is 0.
    """
    return scores.masked_fill(mask == 0, _LEFT_OUT).softmax(-1)


class Mirror(nn.Module):
    """Turns each sentence around, its last word first; padding stays where it is, behind the words. Its own inverse."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return [B, S, H] for `x` [B, S, H] and `mask` [B, S], false in padding."""
        place = torch.ones_like(mask, dtype=torch.int64).cumsum(1) - 1
        last = (mask != 0).sum(1, keepdim=True) - 1
        return torch.take_along_dim(x, torch.where(mask == 0, place, last - place).unsqueeze(-1), 1)


class BothWays(nn.Module):
    """Two LSTMs side by side: one reads sentences forwards, the other each from its own last word backwards."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(hidden, hidden, batch_first=True)
        self.backwards = nn.LSTM(hidden, hidden, batch_first=True)
        self.mirror = Mirror()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return [B, S, 2 H] for `x` [B, S, H]."""
        ahead, _ = self.forwards(x)
        back, _ = self.backwards(self.mirror(x, mask))
        return torch.cat([ahead, self.mirror(back, mask)], -1)


class Encoder(nn.Module):
    """Turns source words into a vector each: the first layer reads both ways, residuals begin with the third."""

    def __init__(self, embedding: nn.Embedding, *, num_layers: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.embedding, self.first = embedding, BothWays(hidden)
        sizes = [2 * hidden, *[hidden] * (num_layers - 2)]
        self.layers = nn.ModuleList(nn.LSTM(size, hidden, batch_first=True) for size in sizes)
        self.dropouts = nn.ModuleList(nn.Dropout(dropout) for _ in sizes)

    def forward(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """Return [B, S, H] for word ids [B, S]."""
        x: Tensor = self.first(self.embedding(source), source_mask)
        for i, (dropout, layer) in enumerate(zip(self.dropouts, self.layers, strict=True)):
            y, _ = layer(dropout(x))
            x = y + x if i else y
        return x


class NormalisedScores(nn.Module):
    """Attention scores over source words, with a normalized vector (Salimans and Kingma 2016, section 2).

    score = g v/|v| . tanh(query + key + b)
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.vector, self.bias = nn.Parameter(torch.empty(hidden)), nn.Parameter(torch.zeros(hidden))
        self.scale = nn.Parameter(torch.tensor([hidden**-0.5]))  # g

    def forward(self, queries: Tensor, keys: Tensor, source_mask: Tensor) -> Tensor:
        """Return weights [B, T, S] for `queries` [B, T, H] and `keys` [B, S, H]."""
        energies = torch.tanh(queries.unsqueeze(2) + (keys + self.bias).unsqueeze(1))  # [B, T, S, H]
        scores = energies @ (self.vector * (self.scale / self.vector.norm()))
        return attention_weights(scores, source_mask.unsqueeze(1))


class Attention(nn.Module):
    """Bahdanau's (Bahdanau et al. 2015, section A.1.2)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.scores = NormalisedScores(hidden)

    def forward(self, queries: Tensor, encoded: Tensor, source_mask: Tensor) -> Tensor:
        """Return for each query [B, T, H] the mean of `encoded` [B, S, H] by weight: [B, T, H]."""
        return self.scores(self.query(queries), self.key(encoded), source_mask) @ encoded


class Decoder(nn.Module):
    """Predicts the next word from the words before it and the encoded source; residuals begin with the third layer."""

    def __init__(self, embedding: nn.Embedding, *, num_layers: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.embedding = embedding
        self.first_dropout, self.first = nn.Dropout(dropout), nn.LSTM(hidden, hidden, batch_first=True)
        self.attention = Attention(hidden)
        count = range(num_layers - 1)
        self.dropouts = nn.ModuleList(nn.Dropout(dropout) for _ in count)
        self.layers = nn.ModuleList(nn.LSTM(2 * hidden, hidden, batch_first=True) for _ in count)
        self.classifier = nn.Linear(hidden, embedding.num_embeddings)

    def forward(self, target: Tensor, encoded: Tensor, source_mask: Tensor) -> Tensor:
        """Return logits [B, T, V] of the word that follows each of `target` [B, T]."""
        return self.go_on(target, encoded, source_mask)[0]

    def go_on(
        self, target: Tensor, encoded: Tensor, source_mask: Tensor, states: list[State] | None = None
    ) -> tuple[Tensor, list[State]]:
        """As `forward`, with what the LSTMs know: `states` after the words before, returned after these too."""
        before: Sequence[State | None] = states or [None] * (1 + len(self.layers))
        x, state = self.first(self.first_dropout(self.embedding(target)), before[0])
        after = [state]
        context = self.attention(x, encoded, source_mask)
        for i, (dropout, layer) in enumerate(zip(self.dropouts, self.layers, strict=True)):
            y, state = layer(torch.cat([dropout(x), context], -1), before[i + 1])
            x = y + x if i else y
            after.append(state)
        return self.classifier(x), after


class GNMT(nn.Module):
    """Translates: source words and the target words so far give the next target word."""

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        *,
        num_layers: int,
        hidden: int,
        dropout: float,
        spread: float,
        shared_embedding: bool,
    ) -> None:
        super().__init__()
        source = nn.Embedding(source_vocabulary_size, hidden)
        target = source if shared_embedding else nn.Embedding(target_vocabulary_size, hidden)
        self.encoder = Encoder(source, num_layers=num_layers, hidden=hidden, dropout=dropout)
        self.decoder = Decoder(target, num_layers=num_layers, hidden=hidden, dropout=dropout)
        self.apply(partial(_initialise, spread=spread))

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Return logits [B, T, target vocabulary].

        `source` int64 [B, S], `source_mask` [B, S] false in padding, `target` int64 [B, T] from begin-of-sentence on.
        """
        return self.decoder(target, self.encoder(source, source_mask), source_mask)


def gnmt(
    *,
    vocabulary_size: int = 32320,
    source_vocabulary_size: int | None = None,
    target_vocabulary_size: int | None = None,
    num_layers: int = 8,
    hidden: int = 1024,
    dropout: float = 0.2,
    spread: float = 0.1,
    shared_embedding: bool = False,
) -> GNMT:
    """Build a GNMT of as many encoder as decoder layers.

    `source_vocabulary_size` and `target_vocabulary_size`: words of each language, if they are not `vocabulary_size`.
    `spread`: weights begin uniformly within plus and minus so much; NVIDIA's 0.1 is for wide networks, narrow ones
    learn sooner from more. `shared_embedding`: both languages are of one vocabulary and have one embedding, as in
    NVIDIA's; PipeDream's, and here by default, have two. Raises InputError for fewer than two layers and for sizes
    that cannot be.
    """
    source = source_vocabulary_size or vocabulary_size
    target = target_vocabulary_size or vocabulary_size
    if num_layers < 2 or min(hidden, source, target) < 1:
        raise InputError(
            "model.sizes_malformed",
            f"GNMT of {number_of(num_layers, 'layer')} of {hidden} for {source} source and {target} target words: "
            "expected num_layers of at least 2, and at least 1 for the others",
        )
    if shared_embedding and source != target:
        raise InputError(
            "model.vocabularies_differ",
            f"GNMT: shared_embedding needs a shared vocabulary, but the vocabularies have {source} and {target} words",
        )
    return GNMT(
        source,
        target,
        num_layers=num_layers,
        hidden=hidden,
        dropout=dropout,
        spread=spread,
        shared_embedding=shared_embedding,
    )


def _initialise(module: nn.Module, *, spread: float) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        if name.startswith("bias_hh"):  # an LSTM adds up two biases: one is enough
            nn.init.zeros_(parameter)
        elif not isinstance(module, NormalisedScores) or name == "vector":
            nn.init.uniform_(parameter, -spread, spread)
