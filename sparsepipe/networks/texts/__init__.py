"""Networks that read texts, by name: GNMT translates sentences, BERT fills in masked words. One family a file.

Each is an nn.Module in plain torch that torch.fx can trace, and what stands in padding never changes the rest.
"""

from ..rows import ModuleNetwork

__all__ = ["TEXT_NETWORKS"]


def _gnmt(num_layers: int, hidden: int = 1024, **more: float) -> ModuleNetwork:
    args = {"num_layers": num_layers, "hidden": hidden, **more}
    summary = f"translation: {num_layers} + {num_layers} LSTM layers of {hidden}, attention"
    return ModuleNetwork("texts.gnmt", "gnmt", args, summary, takes="pairs of sentences")


def _bert(num_layers: int, hidden: int, num_heads: int) -> ModuleNetwork:
    args = {"num_layers": num_layers, "hidden": hidden, "num_heads": num_heads}
    return ModuleNetwork("texts.bert", "bert", args, f"masked words: {num_layers} layers of {hidden}", takes="texts")


TEXT_NETWORKS: dict[str, ModuleNetwork] = {
    "gnmt": _gnmt(8),
    "gnmt4": _gnmt(4),
    "gnmt-small": _gnmt(3, hidden=128, spread=0.2),
    "bert-base": _bert(12, hidden=768, num_heads=12),
    "bert-large": _bert(24, hidden=1024, num_heads=16),
    "bert-small": _bert(4, hidden=128, num_heads=4),
}
