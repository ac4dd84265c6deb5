"""Networks that read texts, by name: GNMT translates sentences, BERT fills in masked words. One family a file.

Each is an nn.Module in plain torch that torch.fx can trace, and what stands in padding never changes the rest.
"""

from ..modules import ModuleNetwork

__all__ = ["TEXT_NETWORKS"]

TEXT_NETWORKS: dict[str, ModuleNetwork] = {
    "gnmt": ModuleNetwork("texts.gnmt", "gnmt", {"num_layers": 8}, "translation: 8 + 8 LSTM layers of 1024, attention"),
    "gnmt4": ModuleNetwork(
        "texts.gnmt", "gnmt", {"num_layers": 4}, "translation: 4 + 4 LSTM layers of 1024, attention"
    ),
    "gnmt-small": ModuleNetwork(
        "texts.gnmt",
        "gnmt",
        {"num_layers": 3, "hidden": 128, "spread": 0.2},
        "translation: 3 + 3 LSTM layers of 128, attention",
    ),
    "bert-base": ModuleNetwork(
        "texts.bert", "bert", {"num_layers": 12, "hidden": 768, "num_heads": 12}, "masked words: 12 layers of 768"
    ),
    "bert-large": ModuleNetwork(
        "texts.bert", "bert", {"num_layers": 24, "hidden": 1024, "num_heads": 16}, "masked words: 24 layers of 1024"
    ),
    "bert-small": ModuleNetwork(
        "texts.bert", "bert", {"num_layers": 4, "hidden": 128, "num_heads": 4}, "masked words: 4 layers of 128"
    ),
}
