"""Networks of transformers and their data, as scripts for torch import them: they need nothing of sparsepipe."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    ResNetConfig,
    ResNetForImageClassification,
)

WORDS, CLASSES = 61, 5


class Logits(nn.Module):
    """The logits alone of a model of transformers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x, return_dict=False)[0]
        return logits


def gpt(hidden: int = 32, blocks: int = 3) -> nn.Module:
    """A GPT, whose head and word table are one parameter."""
    sizes: dict[str, Any] = {"n_embd": hidden, "n_layer": blocks, "n_head": 2, "n_positions": 512}
    words: dict[str, Any] = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2}
    drops: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return Logits(GPT2LMHeadModel(GPT2Config(**sizes, **words, **drops, use_cache=False)))


def bert(hidden: int = 32, blocks: int = 3) -> nn.Module:
    """A BERT, whose blocks all read one mask."""
    sizes: dict[str, Any] = {"hidden_size": hidden, "num_hidden_layers": blocks, "num_attention_heads": 2}
    words: dict[str, Any] = {"vocab_size": WORDS, "intermediate_size": 4 * hidden}
    drops: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return Logits(BertForMaskedLM(BertConfig(**sizes, **words, **drops)))


def resnet(hidden: int = 8, blocks: int = 4) -> nn.Module:
    """A ResNet with two stages of half the blocks each, and batch norms."""
    sizes: dict[str, Any] = {"embedding_size": hidden, "hidden_sizes": [hidden, 2 * hidden], "num_labels": CLASSES}
    depths: dict[str, Any] = {"depths": [blocks // 2, blocks - blocks // 2], "layer_type": "basic"}
    return Logits(ResNetForImageClassification(ResNetConfig(**sizes, **depths)))


def words(split: str, samples: int = 48, length: int = 12) -> TensorDataset:
    """Random words, each with the one before it as its target."""
    x = torch.randint(0, WORDS, (samples, length), generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.roll(-1, 1))


def images(split: str, samples: int = 48, size: int = 32) -> TensorDataset:
    """Random images and classes."""
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randn(samples, 3, size, size, generator=draw)
    return TensorDataset(pixels, torch.randint(0, CLASSES, (samples,), generator=draw))
