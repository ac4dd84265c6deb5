"""BERT (Devlin et al. 2018, arXiv:1810.04805) with both heads that it is trained by: masked words, next sentence."""

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...util.text.numbers import number_of
from .gnmt import attention_weights

_EPSILON = 1e-12  # of layer norms
_SPREAD = 0.02  # standard deviation of the first weights


class Embeddings(nn.Module):
    """The vectors of words, of their places and of the sentence that each is in, added up."""

    def __init__(self, vocabulary_size: int, *, hidden: int, places: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary_size, hidden)
        self.places, self.token_types = nn.Embedding(places, hidden), nn.Embedding(2, hidden)
        self.norm, self.dropout = nn.LayerNorm(hidden, eps=_EPSILON), nn.Dropout(dropout)

    def forward(self, words: Tensor, token_types: Tensor) -> Tensor:
        """Return [B, S, H] for ids [B, S]."""
        place = torch.ones_like(words).cumsum(1) - 1
        return self.dropout(self.norm(self.words(words) + self.token_types(token_types) + self.places(place)))


class AttentionWeights(nn.Module):
    """Attention weights between all positions, in several heads."""

    def __init__(self, hidden: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.scale = num_heads, (hidden // num_heads) ** -0.5

    def forward(self, query: Tensor, key: Tensor, attention_mask: Tensor) -> Tensor:
        """Return [B, heads, S, S] for `query` and `key` [B, S, H]."""
        asked, told = _in_heads(query, self.num_heads), _in_heads(key, self.num_heads)
        scores = asked @ told.transpose(-1, -2) * self.scale
        return attention_weights(scores, attention_mask[:, None, None])


class AttentionMean(nn.Module):
    """The means of values by weight, the heads put side by side."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(self, weights: Tensor, value: Tensor) -> Tensor:
        """Return [B, S, H] for `weights` [B, heads, S, S] and `value` [B, S, H]."""
        return (weights @ _in_heads(value, self.num_heads)).transpose(1, 2).flatten(-2)


class SelfAttention(nn.Module):
    """Each place asks all others (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, hidden: int, *, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.weights, self.mean = AttentionWeights(hidden, num_heads), AttentionMean(num_heads)
        self.dropout, self.output = nn.Dropout(dropout), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        """Return [B, S, H] for `x` [B, S, H]."""
        weights = self.weights(self.query(x), self.key(x), attention_mask)
        return self.output(self.mean(self.dropout(weights), self.value(x)))


class Layer(nn.Module):
    """Self-attention and two linear layers, each followed by dropout, a residual and a layer norm."""

    def __init__(self, hidden: int, *, num_heads: int, intermediate: int, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(hidden, num_heads=num_heads, dropout=dropout)
        self.attention_dropout, self.attention_norm = nn.Dropout(dropout), nn.LayerNorm(hidden, eps=_EPSILON)
        self.wide, self.activation, self.narrow = (
            nn.Linear(hidden, intermediate),
            nn.GELU(),
            nn.Linear(intermediate, hidden),
        )
        self.dropout, self.norm = nn.Dropout(dropout), nn.LayerNorm(hidden, eps=_EPSILON)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention_dropout(self.attention(x, attention_mask)))
        return self.norm(x + self.dropout(self.narrow(self.activation(self.wide(x)))))


class WordHead(nn.Module):
    """Predicts the word at each place. Its last layer has the weights of the words' embedding, and its own bias."""

    def __init__(self, words: nn.Embedding) -> None:
        super().__init__()
        hidden = words.embedding_dim
        self.dense, self.activation, self.norm = (
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.LayerNorm(hidden, eps=_EPSILON),
        )
        self.decoder = nn.Linear(hidden, words.num_embeddings)
        self.decoder.weight = words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.norm(self.activation(self.dense(x))))


class SentenceHead(nn.Module):
    """Tells from the first place whether the second sentence follows the first one."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.pooler, self.activation, self.classifier = nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.activation(self.pooler(x[:, 0])))


class BERT(nn.Module):
    """Reads two sentences at once, some words of them masked."""

    def __init__(
        self, embeddings: Embeddings, *, num_layers: int, num_heads: int, intermediate: int, dropout: float
    ) -> None:
        super().__init__()
        hidden = embeddings.words.embedding_dim
        self.embeddings = embeddings
        self.layers = nn.ModuleList(
            Layer(hidden, num_heads=num_heads, intermediate=intermediate, dropout=dropout) for _ in range(num_layers)
        )
        self.word_head, self.sentence_head = WordHead(embeddings.words), SentenceHead(hidden)
        self.apply(_initialise)

    def forward(self, words: Tensor, token_types: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of the word at each place [B, S, V], and of whether the sentences follow each other [B, 2].

        `words` int64 [B, S]; `token_types` [B, S]: 0 in the first sentence, 1 in the second; `attention_mask` [B, S]:
        false in padding. Class 0 of the second output: the second sentence follows the first.
        """
        x = self.embeddings(words, token_types)
        for layer in self.layers:
            x = layer(x, attention_mask)
        return self.word_head(x), self.sentence_head(x)


def bert(
    *,
    vocabulary_size: int = 30522,
    sequence_length: int = 512,
    num_layers: int = 12,
    hidden: int = 768,
    num_heads: int = 12,
    intermediate: int | None = None,
    dropout: float = 0.1,
) -> BERT:
    """Build a BERT for sentences of at most `sequence_length` words, both together.

    `intermediate`: width between the two linear layers of a layer, 4 times `hidden` unless told. Raises InputError for
    sizes that do not go together.
    """
    if min(num_layers, hidden, num_heads, vocabulary_size, sequence_length) < 1 or hidden % num_heads:
        raise InputError(
            "model.sizes_malformed",
            f"BERT of {number_of(num_layers, 'layer')} of {hidden} in {number_of(num_heads, 'head')}, "
            f"{number_of(vocabulary_size, 'word')}, sequences of {sequence_length}: expected each size to be at "
            "least 1, and hidden to be a multiple of num_heads",
        )
    embeddings = Embeddings(vocabulary_size, hidden=hidden, places=sequence_length, dropout=dropout)
    return BERT(
        embeddings,
        num_layers=num_layers,
        num_heads=num_heads,
        intermediate=intermediate or 4 * hidden,
        dropout=dropout,
    )


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_SPREAD)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def _in_heads(x: Tensor, num_heads: int) -> Tensor:
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)  # [B, heads, S, H / heads]
