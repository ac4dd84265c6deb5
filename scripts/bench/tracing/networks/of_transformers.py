"""Networks of transformers with default settings but for their sizes, with the labels that training gives them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Family = tuple[nn.Module, list[Any]]

VOCABULARY = 60
SIZES = ((2, 6), (3, 9), (1, 5))  # samples and words of each minibatch
_ENDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "decoder_start_token_id": 0}
_WIDTH, _INNER, _LAYERS, _HEADS = 16, 32, 3, 2
_SMALL: Mapping[str, Any] = {
    **_ENDS,
    "vocab_size": VOCABULARY,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size", "n_embed"), _WIDTH),
    **dict.fromkeys(("attention_hidden_size", "lru_width", "word_embed_proj_dim", "shared_intermediate_size"), _WIDTH),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "classifier_proj_size"), _WIDTH),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "hidden_dim", "d_ff", "d_inner", "dff", "ffn_hidden_size"), _INNER
    ),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), _INNER),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), _LAYERS),
    **dict.fromkeys(("num_decoder_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_encoder_layers", "decoder_num_hidden_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), _HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "decoder_num_attention_heads"), _HEADS),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), _HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 1),
    **dict.fromkeys(("head_dim", "d_kv", "q_lora_rank", "kv_lora_rank"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_position", "max_seq_len"), 64),
    **dict.fromkeys(("max_sequence_length", "max_encoder_position_embeddings"), 64),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 4),
    "num_experts_per_tok": 2,
    "state_size": 4,
    "time_step_rank": 2,
    "rotary_dim": 4,
    "image_size": 32,
    "patch_size": 8,
    "drop_path_rate": 0.0,
}


def config(kind: str, **sizes: Any) -> Any:
    """Return a model's configuration: its defaults, each known size made small, and `sizes`."""
    from transformers import AutoConfig

    defaults = AutoConfig.for_model(kind).to_dict()
    small = {key: value for key, value in _SMALL.items() if key in defaults}
    return AutoConfig.for_model(kind, **(small | sizes))


def of_class(name: str, kind: str, minibatches: Callable[[], list[Any]], **sizes: Any) -> Callable[[], Family]:
    """Return a builder of a model of a class of transformers, such as an AutoModel."""

    def build() -> Family:
        import transformers

        model, settings = getattr(transformers, name), config(kind, **sizes)
        make = model.from_config if name.startswith("AutoModel") else model
        return make(settings), minibatches()

    return build


def words(samples: int, length: int) -> Tensor:
    return torch.randint(3, VOCABULARY, (samples, length))


def texts(*, labels: str = "words", padded: bool = False, multiple: int = 1) -> Callable[[], list[Any]]:
    """`labels`: a word each ("words"), a class for each text ("texts"), or none ("").

    `multiple`: lengths are multiples of it.
    """

    def build() -> list[Any]:
        minibatches = []
        for samples, length in SIZES:
            given = {"input_ids": words(samples, length * multiple)}
            if padded:
                given["attention_mask"] = torch.ones_like(given["input_ids"])
                given["attention_mask"][0, -2:] = 0
            if labels:
                given["labels"] = given["input_ids"] if labels == "words" else torch.zeros(samples, dtype=torch.long)
            minibatches.append(given)
        return minibatches

    return build


def translations() -> list[Any]:
    return [{"input_ids": words(n, length), "labels": words(n, length - 1)} for n, length in SIZES]


def pictures(size: int = 32, *, labels: str = "pictures", channels: int = 3) -> Callable[[], list[Any]]:
    """`labels`: a class for each picture, for each pixel ("pixels"), or none ("")."""

    def build() -> list[Any]:
        minibatches = []
        for samples in (2, 3, 1):
            given = {"pixel_values": torch.randn(samples, channels, size, size)}
            if labels:
                shape = (samples, size, size) if labels == "pixels" else (samples,)
                given["labels"] = torch.randint(0, 2, shape)
            minibatches.append(given)
        return minibatches

    return build


def sounds() -> list[Any]:
    return [
        {"input_values": torch.randn(n, 60 * length), "labels": torch.zeros(n, dtype=torch.long)} for n, length in SIZES
    ]


def videos(frames: int) -> Callable[[], list[Any]]:
    return lambda: [
        {"pixel_values": torch.randn(n, frames, 3, 32, 32), "labels": torch.zeros(n, dtype=torch.long)}
        for n in (2, 3, 1)
    ]


def causal(kind: str, *, padded: bool = False, **sizes: Any) -> Callable[[], Family]:
    return of_class("AutoModelForCausalLM", kind, texts(padded=padded), **sizes)


def masked(kind: str, *, padded: bool = True, multiple: int = 1, **sizes: Any) -> Callable[[], Family]:
    return of_class("AutoModelForMaskedLM", kind, texts(padded=padded, multiple=multiple), **sizes)


def translator(kind: str, **sizes: Any) -> Callable[[], Family]:
    return of_class("AutoModelForSeq2SeqLM", kind, translations, **sizes)


def pictured(kind: str, *, size: int = 32, **sizes: Any) -> Callable[[], Family]:
    return of_class("AutoModelForImageClassification", kind, pictures(size), num_labels=4, **sizes)


_CONVOLVED = {
    "conv_dim": [8, 8],
    "conv_stride": [4, 2],
    "conv_kernel": [8, 4],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_length": 2,
}


def heard(kind: str, **sizes: Any) -> Callable[[], Family]:
    return of_class("AutoModelForAudioClassification", kind, sounds, **(_CONVOLVED | sizes))


def two_towers(kind: str) -> Callable[[], Family]:
    """Return a builder of a model of texts and pictures with its contrastive loss."""

    def build() -> Family:
        from transformers import AutoConfig, AutoModel

        of_texts = config(f"{kind}_text_model").to_dict() | {"projection_dim": 8}
        of_pictures = config(f"{kind}_vision_model").to_dict() | {"projection_dim": 8}
        settings = AutoConfig.for_model(kind, text_config=of_texts, vision_config=of_pictures)
        if hasattr(settings, "projection_dim"):
            settings.projection_dim = 8
        minibatches = [
            {"input_ids": words(n, length), "pixel_values": torch.randn(n, 3, 32, 32), "return_loss": True}
            for n, length in ((2, 6), (3, 9), (4, 5))
        ]
        return AutoModel.from_config(settings), minibatches

    return build


def series(kind: str, **sizes: Any) -> Callable[[], Family]:
    """Return a builder of a model that forecasts series of numbers."""

    def build() -> Family:
        import transformers

        settings = config(kind, context_length=16, prediction_length=4, patch_length=4, num_input_channels=2, **sizes)
        model = getattr(transformers, f"{type(settings).__name__.removesuffix('Config')}ForPrediction")
        minibatches = [{"past_values": torch.randn(n, 16, 2), "future_values": torch.randn(n, 4, 2)} for n in (2, 3, 1)]
        return model(settings), minibatches

    return build


_STAGED = {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}
_WINDOWED = {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4, "patch_size": 4}

NETWORKS: Mapping[str, Callable[[], Family]] = {
    "gemma": causal("gemma"),
    "gemma3": causal("gemma3_text", padded=True),
    "phi": causal("phi"),
    "olmo": causal("olmo"),
    "olmo2": causal("olmo2", padded=True),
    "olmo3": causal("olmo3"),
    "olmoe": causal("olmoe"),
    "stablelm": causal("stablelm", padded=True),
    "starcoder2": causal("starcoder2"),
    "cohere": causal("cohere"),
    "cohere2": causal("cohere2"),
    "granite": causal("granite", padded=True),
    "granitemoe": causal("granitemoe"),
    "granitemoeshared": causal("granitemoeshared"),
    "bloom": causal("bloom", padded=True),
    "falcon": causal("falcon"),
    "gptj": causal("gptj", n_inner=None),
    "gpt_neo": causal("gpt_neo", num_layers=4, attention_types=[[["global", "local"], 2]], window_size=4),
    "gpt_bigcode": causal("gpt_bigcode"),
    "codegen": causal("codegen", n_head=4),
    "openai-gpt": causal("openai-gpt"),
    "ctrl": causal("ctrl"),
    "persimmon": causal("persimmon"),
    "nemotron": causal("nemotron"),
    "glm": causal("glm"),
    "glm4": causal("glm4"),
    "smollm3": causal("smollm3", padded=True),
    "seed_oss": causal("seed_oss"),
    "exaone4": causal("exaone4"),
    "ernie4_5": causal("ernie4_5"),
    "ernie4_5_moe": causal("ernie4_5_moe"),
    "hunyuan": causal("hunyuan_v1_dense"),
    "helium": causal("helium"),
    "arcee": causal("arcee"),
    "apertus": causal("apertus"),
    "diffllama": causal("diffllama", num_key_value_heads=2),
    "bitnet": causal("bitnet"),
    "doge": causal("doge"),
    "qwen2_moe": causal("qwen2_moe"),
    "qwen3_moe": causal("qwen3_moe"),
    "qwen3_next": causal("qwen3_next", num_hidden_layers=4),
    "mamba2": causal("mamba2", num_heads=4, head_dim=8, n_groups=2),
    "falcon_mamba": causal("falcon_mamba"),
    "rwkv": causal("rwkv"),
    "biogpt": causal("biogpt", padded=True),
    "xglm": causal("xglm", attention_heads=2),
    "jamba": causal("jamba", mamba_dt_rank=2, attn_layer_period=2, attn_layer_offset=1),
    "recurrent_gemma": causal("recurrent_gemma"),
    "deepseek_v2": causal("deepseek_v2", num_key_value_heads=2, head_dim=8),
    "deepseek_v3": causal("deepseek_v3", n_group=2, topk_group=1, num_key_value_heads=2),
    "minimax": causal("minimax"),
    "gpt_oss": causal("gpt_oss"),
    "lfm2": causal("lfm2"),
    "nanochat": causal("nanochat"),
    "vaultgemma": causal("vaultgemma"),
    "mpt": causal("mpt"),
    "modernbert-decoder": causal("modernbert-decoder"),
    "jetmoe": causal("jetmoe"),
    "phimoe": causal("phimoe"),
    "ministral": causal("ministral"),
    "xlnet": causal("xlnet"),
    "bert": masked("bert"),
    "roberta": masked("roberta"),
    "albert": masked("albert"),
    "distilbert": masked("distilbert"),
    "electra": masked("electra"),
    "mobilebert": masked("mobilebert", intra_bottleneck_size=16, true_hidden_size=16),
    "mpnet": masked("mpnet"),
    "squeezebert": masked("squeezebert"),
    "convbert": masked("convbert"),
    "xlm": masked("xlm"),
    "flaubert": masked("flaubert"),
    "funnel": masked("funnel", block_sizes=[1, 1], n_head=2, d_head=8),
    "fnet": masked("fnet", padded=False),
    "ibert": masked("ibert"),
    "layoutlm": masked("layoutlm"),
    "longformer": masked("longformer", attention_window=4),
    "big_bird": masked("big_bird", attention_type="original_full"),
    "nystromformer": masked("nystromformer", num_landmarks=64, segment_means_seq_len=64),
    "yoso": masked("yoso", use_expectation=True),
    "roformer": masked("roformer"),
    "rembert": masked("rembert", input_embedding_size=8, output_embedding_size=8),
    "megatron-bert": masked("megatron-bert"),
    "modernbert": masked("modernbert"),
    "esm": masked("esm", mask_token_id=4),
    "eurobert": masked("eurobert"),
    "nomic_bert": masked("nomic_bert"),
    "deberta": of_class("AutoModelForSequenceClassification", "deberta", texts(labels="texts", padded=True)),
    "deberta, relative": masked("deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "canine": of_class("CanineForSequenceClassification", "canine", texts(labels="texts", multiple=4)),
    "roberta-prelayernorm": masked("roberta-prelayernorm"),
    "luke": masked("luke", entity_vocab_size=8, entity_emb_size=8),
    "mbart": translator("mbart"),
    "pegasus": translator("pegasus"),
    "marian": translator("marian"),
    "blenderbot": translator("blenderbot"),
    "mt5": translator("mt5"),
    "umt5": translator("umt5"),
    "switch_transformers": translator("switch_transformers"),
    "longt5": translator("longt5", local_radius=4),
    "m2m_100": translator("m2m_100"),
    "plbart": translator("plbart"),
    "fsmt": translator("fsmt", src_vocab_size=60, tgt_vocab_size=60, langs=["en", "de"]),
    "prophetnet": translator("prophetnet", num_encoder_layers=2, num_decoder_layers=2),
    "nllb-moe": translator("nllb-moe", encoder_sparse_step=2, decoder_sparse_step=2),
    "led": translator("led", attention_window=4),
    "vit": pictured("vit"),
    "deit": pictured("deit"),
    "beit": pictured("beit"),
    "convnext": pictured("convnext", patch_size=4, **_STAGED),
    "convnextv2": pictured("convnextv2", patch_size=4, **_STAGED),
    "swin": pictured("swin", **_WINDOWED),
    "swinv2": pictured("swinv2", **_WINDOWED),
    "resnet": pictured("resnet", embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1]),
    "regnet": pictured("regnet", embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], groups_width=8),
    "mobilenet_v2": pictured("mobilenet_v2", depth_multiplier=0.25),
    "mobilevit": pictured("mobilevit", patch_size=2, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8] * 7),
    "mobilevitv2": pictured("mobilevitv2", patch_size=2, width_multiplier=0.25),
    "poolformer": pictured("poolformer", **_STAGED),
    "pvt": pictured("pvt", hidden_sizes=[8, 16, 16, 16], depths=[1] * 4, num_attention_heads=[1, 2, 2, 2]),
    "pvt_v2": pictured("pvt_v2", hidden_sizes=[8, 16, 16, 16], depths=[1] * 4, num_attention_heads=[1, 2, 2, 2]),
    "segformer": pictured("segformer", hidden_sizes=[8, 16, 16, 16], depths=[1] * 4, num_attention_heads=[1, 2, 2, 2]),
    "segformer, pixels": of_class(
        "AutoModelForSemanticSegmentation", "segformer", pictures(64, labels="pixels"), hidden_sizes=[8, 16, 16, 16],
        depths=[1] * 4, num_attention_heads=[1, 2, 2, 2], decoder_hidden_size=16, num_labels=4,
    ),
    "cvt": pictured("cvt", embed_dim=[8, 16, 16], depth=[1, 1, 1], num_heads=[1, 2, 2], drop_path_rate=[0.0] * 3),
    "levit": pictured(
        "levit", size=64, image_size=64, patch_size=16, hidden_sizes=[16, 16, 16], depths=[1] * 3,
        num_attention_heads=[2, 2, 2], key_dim=[8] * 3,
    ),
    "efficientnet": pictured("efficientnet", width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320),
    "dinov2": pictured("dinov2"),
    "dinov2_with_registers": pictured("dinov2_with_registers"),
    "focalnet": pictured(
        "focalnet", embed_dim=8, depths=[1, 1], focal_levels=[2, 2], focal_windows=[3, 3], patch_size=4
    ),
    "hiera": pictured(
        "hiera", embed_dim=8, depths=[1, 1, 1], num_heads=[1, 2, 2], image_size=[32, 32], num_query_pool=2,
        patch_size=[7, 7],
    ),
    "swiftformer": pictured("swiftformer", embed_dims=[8, 16, 16, 16], depths=[1] * 4),
    "textnet": pictured("textnet"),
    "bit": pictured("bit", embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1] * 4, num_groups=4),
    "vit_msn": pictured("vit_msn"),
    "upernet": of_class(
        "UperNetForSemanticSegmentation", "upernet", pictures(64, labels="pixels"), hidden_size=16, num_labels=4,
        auxiliary_in_channels=16, auxiliary_channels=8, backbone_config={
            "model_type": "convnext", **_STAGED, "out_features": ["stage1", "stage2", "stage3", "stage4"],
        },
    ),
    "vit_mae": of_class(
        "ViTMAEForPreTraining", "vit_mae", pictures(labels=""), decoder_hidden_size=16, decoder_intermediate_size=32
    ),
    "hubert": heard("hubert"),
    "wavlm": heard("wavlm"),
    "sew": heard("sew", squeeze_factor=2),
    "unispeech": heard("unispeech"),
    "unispeech-sat": heard("unispeech-sat"),
    "data2vec-audio": heard("data2vec-audio", conv_pos_kernel_size=3, num_conv_pos_embeddings=2),
    "wav2vec2-conformer": heard("wav2vec2-conformer"),
    "videomae": of_class("VideoMAEForVideoClassification", "videomae", videos(4), num_frames=4),
    "timesformer": of_class("TimesformerForVideoClassification", "timesformer", videos(4), num_frames=4),
    "vivit": of_class("VivitForVideoClassification", "vivit", videos(4), num_frames=4, tubelet_size=[2, 8, 8]),
    "clip": two_towers("clip"),
    "siglip": two_towers("siglip"),
    "patchtst": series("patchtst", patch_stride=4),
    "patchtsmixer": series("patchtsmixer", patch_stride=4),
}  # fmt: skip
