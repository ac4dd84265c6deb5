"""Greedy decoding: a translation built word by word, each the likeliest after those before it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..models.texts.gnmt import GNMT, State
from .outputs import main_output


@torch.no_grad()
def greedy_decode(
    module: nn.Module, source: Tensor, source_mask: Tensor, *, begin: int, end: int, longest: int
) -> list[list[int]]:
    """Translate sentences, `source` int64 [B, S] with `source_mask` [B, S], false in padding.

    `module` is called as module(source=, source_mask=, target=) and returns logits [B, T, V] of the words that follow
    target's: of GNMT the encoder runs once and the decoder a word at a time, any other runs anew for each word, on
    what there is so far. It should be in eval mode. `begin` is the id that translations begin with, `end` that they end
    with; one of `longest` words ends there. Returns ids without either.
    """
    next_logits = (
        _by_states(module, source, source_mask) if isinstance(module, GNMT) else _anew(module, source, source_mask)
    )
    words = source.new_full((len(source), 1), begin)
    ended = torch.zeros(len(source), dtype=torch.bool, device=source.device)
    while words.shape[1] <= longest and not ended.all():
        following = next_logits(words).argmax(-1)
        words = torch.cat([words, following[:, None]], 1)
        ended = ended | (following == end)
    return [_before(end, row) for row in words[:, 1:].tolist()]


def _anew(module: nn.Module, source: Tensor, source_mask: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda words: main_output(module(source=source, source_mask=source_mask, target=words))[:, -1]


def _by_states(module: GNMT, source: Tensor, source_mask: Tensor) -> Callable[[Tensor], Tensor]:
    """As `_anew`, of words that grow by one a call: what the decoder knows of those before it has kept."""
    encoded = module.encoder(source, source_mask)
    states: list[State] | None = None

    def next_logits(words: Tensor) -> Tensor:
        nonlocal states
        logits, states = module.decoder.go_on(words[:, -1:], encoded, source_mask, states)
        return logits[:, -1]

    return next_logits


def _before(end: int, words: list[int]) -> list[int]:
    return words[: words.index(end)] if end in words else words
