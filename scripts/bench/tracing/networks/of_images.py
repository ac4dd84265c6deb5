"""Networks for images of torchvision and timm, the smallest of each kind."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

Family = tuple[nn.Module, list[Any]]

_SAMPLES = (2, 3, 4)  # of each minibatch: a batch norm over one picture's pooled pixels has nothing to normalize


def _pictures(size: int) -> list[Any]:
    return [torch.randn(n, 3, size, size) for n in _SAMPLES]


def of_timm(name: str, size: int = 64, **options: Any) -> Callable[[], Family]:
    """Return a builder of a model of timm; `options` are those of its class."""

    def build() -> Family:
        import timm

        return timm.create_model(name, num_classes=4, **options), _pictures(size)

    return build


def of_torchvision(name: str, size: int = 64, **options: Any) -> Callable[[], Family]:
    """Return a builder of a model by torchvision's function."""

    def build() -> Family:
        from torchvision import models

        return models.get_model(name, weights=None, num_classes=4, **options), _pictures(size)

    return build


def resnet(blocks: tuple[int, ...] = (1, 1, 1, 1), *, deep: bool = False, size: int = 64, **options: Any) -> Any:
    """Return a builder of a narrow ResNet."""

    def build() -> Family:
        from torchvision.models import resnet as residual

        block = residual.Bottleneck if deep else residual.BasicBlock
        return residual.ResNet(block, list(blocks), num_classes=4, width_per_group=64, **options), _pictures(size)

    return build


def convnext() -> Family:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, 16, 2), CNBlockConfig(16, None, 1)]
    return ConvNeXt(blocks, num_classes=4, stochastic_depth_prob=0.2), _pictures(32)


def swin(version: int) -> Callable[[], Family]:
    def build() -> Family:
        from torchvision.models import swin_transformer as swins

        parts = (
            {"block": swins.SwinTransformerBlockV2, "downsample_layer": swins.PatchMergingV2} if version == 2 else {}
        )
        sizes = {"embed_dim": 8, "depths": [2, 2], "num_heads": [1, 2], "window_size": [4, 4]}
        return swins.SwinTransformer(patch_size=[4, 4], num_classes=4, **sizes, **parts), _pictures(32)

    return build


def vit() -> Family:
    from torchvision.models.vision_transformer import VisionTransformer

    sizes = {"num_layers": 3, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    return VisionTransformer(image_size=32, patch_size=8, num_classes=4, **sizes), _pictures(32)


def maxvit() -> Family:
    from torchvision.models.maxvit import MaxVit

    sizes: dict[str, Any] = {"stem_channels": 8, "block_channels": [8, 16], "block_layers": [1, 1], "head_dim": 8}
    return MaxVit((64, 64), partition_size=4, stochastic_depth_prob=0.1, num_classes=4, **sizes), _pictures(64)


def densenet() -> Family:
    from torchvision.models import DenseNet

    return DenseNet(growth_rate=4, block_config=(2, 2, 2), num_init_features=8, num_classes=4), _pictures(64)


def _segmentor(kind: str) -> Callable[[], Family]:
    """Return a builder of a segmentor on a narrow backbone, with its auxiliary head if it has one."""

    def build() -> Family:
        from torchvision.models import resnet as residual
        from torchvision.models import segmentation
        from torchvision.models._utils import IntermediateLayerGetter

        whole = residual.ResNet(residual.BasicBlock, [1, 1, 1, 1])
        backbone = IntermediateLayerGetter(whole, {"layer4": "out", "layer3": "aux"})
        if kind == "fcn":
            head: nn.Module = segmentation.fcn.FCNHead(512, 4)
            return segmentation.FCN(backbone, head, segmentation.fcn.FCNHead(256, 4)), _pictures(64)
        head = segmentation.deeplabv3.DeepLabHead(512, 4, (2, 3))
        return segmentation.DeepLabV3(backbone, head), _pictures(64)

    return build


def lraspp() -> Family:
    from torchvision.models import mobilenet_v3_small
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.segmentation import LRASPP

    backbone = IntermediateLayerGetter(mobilenet_v3_small().features, {"3": "low", "12": "high"})
    return LRASPP(backbone, 24, 576, 4, inter_channels=16), _pictures(64)


def feature_pyramid() -> Family:
    """A pyramid of features with a head that all levels share, as detectors have."""
    from torchvision.models import resnet as residual
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.ops import FeaturePyramidNetwork

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = residual.ResNet(residual.BasicBlock, [1, 1, 1, 1])
            self.body = IntermediateLayerGetter(whole, {f"layer{i}": str(i) for i in (2, 3, 4)})
            self.pyramid = FeaturePyramidNetwork([128, 256, 512], 16)
            self.head = nn.Conv2d(16, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            levels = self.pyramid(self.body(x))
            return {name: self.head(level) for name, level in levels.items()}

    return Net(), _pictures(64)


def detector() -> Family:
    """RetinaNet: pictures of several sizes and boxes in, losses out in training."""
    from torchvision.models import resnet as residual
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.detection import RetinaNet
    from torchvision.ops import FeaturePyramidNetwork

    class Body(nn.Module):
        out_channels = 16

        def __init__(self) -> None:
            super().__init__()
            whole = residual.ResNet(residual.BasicBlock, [1, 1, 1, 1])
            self.body = IntermediateLayerGetter(whole, {f"layer{i}": str(i) for i in (2, 3, 4)})
            self.pyramid = FeaturePyramidNetwork([128, 256, 512], 16)

        def forward(self, x: torch.Tensor) -> Any:
            return self.pyramid(self.body(x))

    from torchvision.models.detection.anchor_utils import AnchorGenerator

    anchors = AnchorGenerator(((8,), (16,), (32,)), ((1.0,),) * 3)
    model = RetinaNet(Body(), 4, min_size=64, max_size=64, anchor_generator=anchors)
    box = torch.tensor([[4.0, 4.0, 30.0, 40.0]])
    minibatches = [
        (
            [torch.rand(3, 64, 64 - 8 * i) for i in range(n)],
            [{"boxes": box, "labels": torch.tensor([1])} for _ in range(n)],
        )
        for n in _SAMPLES
    ]
    return model, minibatches


def video(name: str) -> Callable[[], Family]:
    def build() -> Family:
        from torchvision.models import video as videos

        sizes = (2, 3, 1)
        if name == "mvit":
            from torchvision.models.video.mvit import MSBlockConfig, MViT

            plain: dict[str, Any] = {"kernel_q": [3, 3, 3], "kernel_kv": [3, 3, 3], "stride_kv": [1, 2, 2]}
            blocks = [
                MSBlockConfig(1, 8, 8, stride_q=[], **plain),
                MSBlockConfig(2, 8, 16, stride_q=[1, 2, 2], **plain),
                MSBlockConfig(2, 16, 16, stride_q=[1, 1, 1], **plain),
            ]
            model: nn.Module = MViT((32, 32), 4, blocks, True, False, False, num_classes=4)
            return model, [torch.randn(n, 3, 4, 32, 32) for n in sizes]
        block, conv = videos.resnet.BasicBlock, videos.resnet.Conv3DSimple
        stem = videos.resnet.BasicStem
        model = videos.resnet.VideoResNet(block, [conv] * 4, [1, 1, 1, 1], stem, num_classes=4)
        return model, [torch.randn(n, 3, 4, 32, 32) for n in (2, 3, 2)]

    return build


def deformable() -> Family:
    from torchvision.ops import DeformConv2d

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.offsets = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 18, 3, padding=1)
            self.deform, self.head = DeformConv2d(8, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x).relu()
            return self.head(self.deform(x, self.offsets(x)).relu()).mean((2, 3))

    return Net(), _pictures(32)


_NORM = partial(nn.GroupNorm, 4)

OF_TORCHVISION: Mapping[str, Callable[[], Family]] = {
    "torchvision resnet": resnet(),
    "torchvision resnet, deep stem of groups": resnet(deep=True, groups=2),
    "torchvision resnet, group norm": resnet(norm_layer=_NORM),
    "torchvision mobilenet_v2": of_torchvision("mobilenet_v2", width_mult=0.25),
    "torchvision mobilenet_v3": of_torchvision("mobilenet_v3_small"),
    "torchvision shufflenet": of_torchvision("shufflenet_v2_x0_5"),
    "torchvision squeezenet": of_torchvision("squeezenet1_1"),
    "torchvision mnasnet": of_torchvision("mnasnet0_5"),
    "torchvision regnet": of_torchvision("regnet_y_400mf"),
    "torchvision googlenet": of_torchvision("googlenet", init_weights=False),
    "torchvision densenet": densenet,
    "torchvision convnext": convnext,
    "torchvision swin": swin(1),
    "torchvision swin_v2": swin(2),
    "torchvision vit": vit,
    "torchvision maxvit": maxvit,
    "torchvision fcn": _segmentor("fcn"),
    "torchvision deeplabv3": _segmentor("deeplab"),
    "torchvision lraspp": lraspp,
    "torchvision pyramid": feature_pyramid,
    "torchvision retinanet": detector,
    "torchvision r3d": video("r3d"),
    "torchvision mvit": video("mvit"),
    "torchvision deformable": deformable,
}

_SMALL_VIT = {"img_size": 64, "embed_dim": 32, "depth": 3, "num_heads": 2}

OF_TIMM: Mapping[str, Callable[[], Family]] = {
    "timm byobnet": of_timm("test_byobnet"),
    "timm convnext": of_timm("test_convnext"),
    "timm convnext2": of_timm("test_convnext3"),
    "timm efficientnet": of_timm("test_efficientnet"),
    "timm efficientnet, layer norm": of_timm("test_efficientnet_ln"),
    "timm mambaout": of_timm("test_mambaout"),
    "timm nfnet": of_timm("test_nfnet"),
    "timm resnet": of_timm("test_resnet"),
    "timm vit": of_timm("test_vit", img_size=64),
    "timm vit3": of_timm("test_vit3", img_size=64),
    "timm maxvit": of_timm("test_maxvit", img_size=64),
    "timm coatnet": of_timm("test_coatnet", img_size=64),
    "timm mixer": of_timm("mixer_s32_224", img_size=64),
    "timm gmlp": of_timm("gmlp_ti16_224", img_size=64),
    "timm resmlp": of_timm("resmlp_12_224", img_size=64),
    "timm deit, distilled": of_timm("deit_tiny_distilled_patch16_224", **_SMALL_VIT),
    "timm beit": of_timm("beit_base_patch16_224", **_SMALL_VIT),
    "timm cait": of_timm("cait_xxs24_224", **_SMALL_VIT),
    "timm xcit": of_timm("xcit_nano_12_p16_224", **_SMALL_VIT),
    "timm eva02": of_timm("eva02_tiny_patch14_224", patch_size=16, **_SMALL_VIT),
    "timm repvgg": of_timm("repvgg_a0"),
    "timm ghostnet": of_timm("ghostnet_050"),
    "timm hrnet": of_timm("hrnet_w18_small"),
    "timm dla": of_timm("dla46_c"),
    "timm res2net": of_timm("dla60_res2net"),
    "timm rexnet": of_timm("rexnet_100"),
    "timm poolformer": of_timm("poolformer_s12"),
    "timm efficientvit": of_timm("efficientvit_b0"),
    "timm edgenext": of_timm("edgenext_xx_small"),
    "timm lcnet": of_timm("lcnet_035"),
    "timm halonet": of_timm("halonet26t", size=256),
    "timm fastvit": of_timm("fastvit_t8"),
}
