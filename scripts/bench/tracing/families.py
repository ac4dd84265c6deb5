"""Networks as people bring them, tiny and with random weights: name → a module and three minibatches of other sizes.

Language models of transformers have their default settings, so they return caches. The others write in Python what no
graph of operations says: checks, counts of rows, experts chosen by numbers, sets of voxels that the network makes.
"""

import importlib.util
import random
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from scripts.bench.tracing.networks import of_graphs, of_images, of_points, of_python, of_transformers
from sparsepipe import engines
from sparsepipe.engines.plain import PlainEngine
from sparsepipe.networks.traced.inputs import ForwardInputs
from sparsepipe.networks.traced.recording import put_back

Family = tuple[nn.Module, list[Any]]

_SIZES = ((2, 6), (3, 9), (1, 5))  # samples and words of each minibatch
_VOCABULARY = 60


def _words(samples: int, length: int, *, low: int = 3) -> Tensor:
    return torch.randint(low, _VOCABULARY, (samples, length))


def language_model(kind: str, *, labels: bool = False, mask: bool = False, **sizes: Any) -> Callable[[], Family]:
    """Return a builder of a causal language model of transformers with default settings but its sizes."""

    def build() -> Family:
        from transformers import AutoConfig, AutoModelForCausalLM

        ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
        config = AutoConfig.for_model(kind, vocab_size=_VOCABULARY, **ends, **sizes)
        minibatches = []
        for samples, length in _SIZES:
            words = _words(samples, length)
            given = {"input_ids": words}
            if mask:
                given["attention_mask"] = torch.ones_like(words)
                given["attention_mask"][0, -2:] = 0
            if labels:
                given["labels"] = words
            minibatches.append(given)
        return AutoModelForCausalLM.from_config(config), minibatches

    return build


_LLAMA = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
_HEADS = _LLAMA | {"head_dim": 8}


def encoder_decoder(kind: str, **sizes: Any) -> Callable[[], Family]:
    """Return a builder of a translator of transformers."""

    def build() -> Family:
        from transformers import AutoConfig, AutoModelForSeq2SeqLM

        ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "decoder_start_token_id": 0}
        config = AutoConfig.for_model(kind, vocab_size=_VOCABULARY, **ends, **sizes)
        minibatches = [
            {"input_ids": _words(samples, length), "labels": _words(samples, length - 1)} for samples, length in _SIZES
        ]
        return AutoModelForSeq2SeqLM.from_config(config), minibatches

    return build


def _bart_sizes() -> dict[str, Any]:
    sides = ("encoder", "decoder")
    sizes = {"d_model": 16, "max_position_embeddings": 32}
    for side in sides:
        sizes |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 32}
    return sizes


def whisper() -> Family:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sides = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("ffn_dim", 32))}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "decoder_start_token_id": 0}
    config = WhisperConfig(
        vocab_size=_VOCABULARY, d_model=16, num_mel_bins=8, max_source_positions=16, max_target_positions=32,
        **sides, **heads, **ends,
    )  # fmt: skip
    minibatches = [
        {"input_features": torch.randn(samples, 8, 32), "labels": _words(samples, length)} for samples, length in _SIZES
    ]
    return WhisperForConditionalGeneration(config), minibatches


def deberta() -> Family:
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    config = DebertaV2Config(
        vocab_size=_VOCABULARY, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8,
        norm_rel_ebd="layer_norm", share_att_key=True,
    )  # fmt: skip
    minibatches = [{"input_ids": _words(*size), "labels": torch.zeros(size[0], dtype=torch.long)} for size in _SIZES]
    return DebertaV2ForSequenceClassification(config), minibatches


def wav2vec2() -> Family:
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32, conv_dim=[8, 8],
        conv_stride=[4, 2], conv_kernel=[8, 4], num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
        classifier_proj_size=8, mask_time_length=2,
    )  # fmt: skip
    minibatches = [
        {"input_values": torch.randn(samples, 40 * length), "labels": torch.zeros(samples, dtype=torch.long)}
        for samples, length in _SIZES
    ]
    return Wav2Vec2ForSequenceClassification(config), minibatches


def dpt() -> Family:
    from transformers import DPTConfig, DPTForSemanticSegmentation

    config = DPTConfig(
        hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
        backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8,
        reassemble_factors=[4, 2, 1, 0.5], num_labels=4, use_auxiliary_head=False,
    )  # fmt: skip
    return DPTForSemanticSegmentation(config), [{"pixel_values": torch.randn(n, 3, 32, 32)} for n in (2, 3, 1)]


class _Root(nn.Module):
    """Four blocks; forwards of its subclasses do something between them that no graph of operations says."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width))
            for _ in range(4)
        )
        self.head = nn.Linear(width, 3)


class Asserts(_Root):
    """Asserts that its numbers are finite, between blocks."""

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
            assert torch.isfinite(x).all(), "numbers are finite"
        return self.head(x)


class Warns(_Root):
    """Raises for what it cannot take, as it reads numbers."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[1](self.blocks[0](x))
        if x.isnan().any():
            raise ValueError("a number is missing")
        return self.head(self.blocks[3](self.blocks[2](x)))


class Prints(_Root):
    """Prints a mean each time."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[1](self.blocks[0](x))
        _ = f"mean {x.mean().item():.3f}"
        return self.head(self.blocks[3](self.blocks[2](x)))


class Scales(_Root):
    """Scales by a number that Python reads, if that is large."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[1](self.blocks[0](x))
        if x.abs().max() > 1.0:
            x = x / float(x.abs().max().detach())
        return self.head(self.blocks[3](self.blocks[2](x)))


class CountsRows(_Root):
    """Counts rows with len() and loops over them."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[1](self.blocks[0](x))
        rows = [x[i] * (i + 1) / len(x) for i in range(len(x))]
        x = torch.stack(rows)
        return self.head(self.blocks[3](self.blocks[2](x)))


class LeavesEarly(_Root):
    """Returns early where its numbers are small."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[2](self.blocks[1](self.blocks[0](x)))
        if x.abs().max() < 1e-6:
            return self.head(x)
        return self.head(self.blocks[3](x))


class HardExperts(_Root):
    """Rows go to the block that a gate chooses, written at the root."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.first, self.last = nn.Linear(12, 4), nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        gates = self.gate(x).softmax(-1)
        chosen = gates.argmax(-1)
        y = torch.zeros_like(x)
        for i, block in enumerate(self.blocks):
            rows = (chosen == i).nonzero()[:, 0]
            if len(rows):
                y = y.index_add(0, rows, block(x[rows]) * gates[rows, i : i + 1])
        return self.head(torch.tanh(self.last(y)))


class StochasticDepth(_Root):
    """Leaves out a block by chance, drawn with torch, as it trains."""

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            if self.training and torch.rand(()) < 0.1 * i:
                continue
            x = x + block(x)
        return self.head(x)


class PythonDepth(_Root):
    """Leaves out a block by chance, drawn with Python, as it trains."""

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            if self.training and random.random() < 0.1 * i:
                continue
            x = x + block(x)
        return self.head(x)


class Helper(_Root):
    """The statement that reads numbers is in a method of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        x = self.blocks[1](self.blocks[0](x))
        if x.abs().max() > 1.0:
            x = x / x.abs().max().detach()
        return self.blocks[3](self.blocks[2](x))


def rows(kind: type[nn.Module]) -> Callable[[], Family]:
    return lambda: (kind(), [torch.randn(n, 12) for n in (4, 5, 3)])


def _clouds(library: Any, sizes: tuple[int, ...] = (60, 90, 40)) -> list[Any]:
    made = []
    for samples, number in zip((2, 3, 1), sizes, strict=True):
        places = torch.cat([torch.randint(0, samples, (number, 1)), torch.randint(0, 6, (number, 3))], 1)
        places = places.unique(dim=0).int()
        made.append(library.SparseTensor(torch.rand(len(places), 3, dtype=torch.float64), places))
    return made


def stack_sum() -> Family:
    """MinkowskiStackSum of several convolutions, as in MinkowskiEngine's ResNet examples of group convolutions."""
    from sparsepipe.engines.minkowski import ME

    def branch(a: int, b: int) -> nn.Module:
        return nn.Sequential(ME.MinkowskiConvolution(a, b, kernel_size=3, dimension=3), ME.MinkowskiReLU())

    return nn.Sequential(
        ME.MinkowskiConvolution(3, 8, kernel_size=3, dimension=3),
        ME.MinkowskiStackSum(branch(8, 8), ME.MinkowskiConvolution(8, 8, kernel_size=1, dimension=3)),
        ME.MinkowskiBatchNorm(8),
        ME.MinkowskiStackSum(branch(8, 8), branch(8, 8)),
        ME.MinkowskiGlobalAvgPooling(),
        ME.MinkowskiLinear(8, 4),
    ), _clouds(ME)


def tensor_field() -> Family:
    """A TensorField made of a sparse tensor's rows, quantised in the forward, sliced at the end."""
    from sparsepipe.engines.minkowski import ME

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.point = nn.Sequential(ME.MinkowskiLinear(3, 8), ME.MinkowskiReLU())
            self.a = ME.MinkowskiConvolution(8, 8, kernel_size=3, dimension=3)
            self.b = ME.MinkowskiConvolution(8, 8, kernel_size=3, dimension=3)
            self.head = ME.MinkowskiLinear(16, 4)

        def forward(self, coordinates: Tensor, features: Tensor) -> Tensor:
            field = ME.TensorField(features, coordinates)
            points = self.point(field)
            voxels = self.b(self.a(points.sparse()))
            return self.head(ME.cat(points, voxels.slice(points))).F

    minibatches = []
    for samples, number in zip((2, 3, 1), (60, 90, 40), strict=True):
        places = torch.cat([torch.randint(0, samples, (number, 1)).double(), torch.rand(number, 3).double() * 6], 1)
        minibatches.append((places[places[:, 0].argsort()], torch.rand(number, 3, dtype=torch.float64)))
    return Net(), minibatches


def generative() -> Family:
    """An autoencoder that makes voxels and prunes them, as MinkowskiEngine's completion example."""
    from sparsepipe.engines.minkowski import ME

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = ME.MinkowskiConvolution(3, 8, kernel_size=3, dimension=3)
            self.down = ME.MinkowskiConvolution(8, 8, kernel_size=2, stride=2, dimension=3)
            self.deep = ME.MinkowskiConvolution(8, 8, kernel_size=3, dimension=3)
            self.up = ME.MinkowskiGenerativeConvolutionTranspose(8, 8, kernel_size=2, stride=2, dimension=3)
            self.classes = ME.MinkowskiConvolution(8, 1, kernel_size=1, dimension=3)
            self.prune, self.last = ME.MinkowskiPruning(), ME.MinkowskiConvolution(8, 4, kernel_size=3, dimension=3)

        def forward(self, x: Any) -> tuple[Tensor, Tensor]:
            y = self.up(self.deep(self.down(self.stem(x))))
            scores = self.classes(y)
            kept = (scores.F - scores.F.mean() > 0).squeeze(1)
            return scores.F, self.last(self.prune(y, kept)).F

    return Net(), _clouds(ME)


def of_spconv(name: str) -> Callable[[], Family]:
    """Return a builder of a network of spconv's modules; tests have these in the forms in which they are published."""

    def build() -> Family:
        engines.engine("spconv")  # which repairs the library
        from tests import spconv_networks

        return spconv_networks.FAMILIES[name]()

    return build


_OF_TRANSFORMERS: Mapping[str, Callable[[], Family]] = {
    "gpt2": language_model("gpt2", n_layer=4, n_embd=16, n_head=2, n_positions=32),
    "gpt2, labels": language_model("gpt2", labels=True, mask=True, n_layer=4, n_embd=16, n_head=2, n_positions=32),
    "llama": language_model("llama", **_LLAMA),
    "llama, labels": language_model("llama", labels=True, mask=True, **_LLAMA),
    "mistral": language_model("mistral", **_LLAMA),
    "qwen2": language_model("qwen2", **_LLAMA),
    "qwen3": language_model("qwen3", **_HEADS),
    "gemma2": language_model("gemma2", **_HEADS),
    "phi3": language_model("phi3", **_LLAMA),
    "mixtral": language_model("mixtral", num_local_experts=3, **_LLAMA),
    "opt": language_model(
        "opt", hidden_size=16, ffn_dim=32, num_hidden_layers=4, num_attention_heads=2, max_position_embeddings=32,
        word_embed_proj_dim=16,
    ),
    "gpt_neox": language_model(
        "gpt_neox", hidden_size=16, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2
    ),
    "mamba": language_model("mamba", hidden_size=16, num_hidden_layers=4, state_size=4, time_step_rank=2),
    "t5": encoder_decoder("t5", d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2),
    "bart": encoder_decoder("bart", **_bart_sizes()),
    "whisper": whisper,
    "deberta": deberta,
    "wav2vec2": wav2vec2,
    "dpt": dpt,
}  # fmt: skip
_OF_MINKOWSKI = {"stack sum": stack_sum, "tensor field": tensor_field, "generative decoder": generative}
_OF_SPCONV = {name: of_spconv(name) for name in ("SpUNet", "SECOND", "VoxelNeXt")}

FAMILIES: Mapping[str, Callable[[], Family]] = {
    **_OF_TRANSFORMERS,
    "assert at the root": rows(Asserts),
    "raise at the root": rows(Warns),
    "print at the root": rows(Prints),
    "if at the root": rows(Scales),
    "row count at the root": rows(CountsRows),
    "early return": rows(LeavesEarly),
    "hard experts at the root": rows(HardExperts),
    "stochastic depth": rows(StochasticDepth),
    "stochastic depth of Python": rows(PythonDepth),
    "if in a method": rows(Helper),
    **_OF_MINKOWSKI,
    **_OF_SPCONV,
    **of_transformers.NETWORKS,
    **of_images.OF_TORCHVISION,
    **of_images.OF_TIMM,
    **of_graphs.NETWORKS,
    **of_python.NETWORKS,
    **of_points.NETWORKS,
    **of_points.OF_MINKOWSKI,
    **of_points.OF_SPCONV,
}


_PACKAGES: Mapping[str, Mapping[str, Callable[[], Family]]] = {
    "transformers": {**_OF_TRANSFORMERS, **of_transformers.NETWORKS},
    "torchvision": of_images.OF_TORCHVISION,
    "timm": of_images.OF_TIMM,
    "torch_geometric": of_graphs.NETWORKS,
    "MinkowskiEngine": {**_OF_MINKOWSKI, **of_points.OF_MINKOWSKI},
    "spconv": {**_OF_SPCONV, **of_points.OF_SPCONV},
}


_ENGINES = {"MinkowskiEngine": "minkowski", "spconv": "spconv"}


def _package(name: str) -> str:
    return next((package for package, names in _PACKAGES.items() if name in names), "")


def absent(name: str) -> str:
    """Return the package that a network needs and that is not installed; "" if all are."""
    package = _package(name)
    return package if package and importlib.util.find_spec(package) is None else ""


def import_package(name: str) -> None:
    """Import what a network needs, and what all traces need; our engines import sparse libraries, repaired."""
    package = _package(name)
    for module in ("torch.export", *([package] if package and package not in _ENGINES else [])):
        importlib.import_module(module)
    if package == "transformers":
        from transformers import AutoConfig, AutoModel, PreTrainedModel  # noqa: F401 - each is imported when asked for


def engine(name: str) -> Any:
    """Return the engine that a network's values cross boundaries with."""
    kind = _ENGINES.get(_package(name))
    return engines.engine(kind) if kind else PlainEngine()


def build(name: str) -> Family:
    """Return a module and its minibatches, the same each time, in float64 if it runs so."""
    module, minibatches = _built(name)
    wide = module.double(), [pytree.tree_map(_wide, each) for each in minibatches]
    return wide if _runs(*wide) else _built(name)


def _built(name: str) -> Family:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FAMILIES[name]()


def _wide(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _runs(module: nn.Module, minibatches: list[Any]) -> bool:
    """Return whether a module takes float64: some make numbers of float32, or have kernels for these alone."""
    inputs = ForwardInputs.of("", minibatches[0], module.forward)
    args, kwargs = inputs.arguments({})
    with put_back(module), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module.train()(*args, **kwargs)
        except Exception:  # of any kind: what it raises on float32, tracing says
            return False
    return True
