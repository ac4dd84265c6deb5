"""Networks on images, by name: plain torch modules, a file for each kind. This file brings no torch."""

from ..rows import ModuleNetwork

__all__ = ["IMAGE_NETWORKS"]

_SMALL = {"small_images": True}
_RESNEXT = {"groups": 32, "group_channels": 4}


def _named(home: str, function: str, takes: str, summary: str, **args: object) -> ModuleNetwork:
    return ModuleNetwork(f"images.{home}", function, args, summary, takes=f"images {takes}")


IMAGE_NETWORKS: dict[str, ModuleNetwork] = {
    "mnist-convnet": _named("chains", "convnet", "28 x 28", "three convolutions and a linear layer, for digits"),
    "alexnet": _named("chains", "alexnet", "224 x 224", "AlexNet"),
    # vgg16 alone is a table of rows, on grids made of clouds
    "vgg16-images": _named("chains", "vgg", "224 x 224", "VGG16", depth=16),
    "vgg16-images-32": _named("chains", "vgg", "32 x 32", "VGG16, its last grid a single cell", depth=16, grid=1),
    "squeezenet1.0": _named("chains", "squeezenet", "224 x 224", "SqueezeNet 1.0", version="1.0"),
    "squeezenet1.1": _named("chains", "squeezenet", "224 x 224", "SqueezeNet 1.1", version="1.1"),
    "resnet18": _named("resnet", "resnet", "224 x 224", "ResNet-18", depth=18),
    "resnet50": _named("resnet", "resnet", "224 x 224", "ResNet-50", depth=50),
    "resnet101": _named("resnet", "resnet", "224 x 224", "ResNet-101", depth=101),
    "resnet18-32": _named("resnet", "resnet", "32 x 32", "ResNet-18, stem without strides", depth=18, **_SMALL),
    "resnet50-32": _named("resnet", "resnet", "32 x 32", "ResNet-50, stem without strides", depth=50, **_SMALL),
    "resnext50": _named("resnet", "resnet", "224 x 224", "ResNeXt-50 32x4d", depth=50, **_RESNEXT),
    "resnext101": _named("resnet", "resnet", "224 x 224", "ResNeXt-101 32x4d", depth=101, **_RESNEXT),
    "densenet121": _named("resnet", "densenet", "224 x 224", "DenseNet-121", depth=121),
    "inception_v3": _named(
        "inception", "inception", "299 x 299", "Inception v3, with its auxiliary classifier in training"
    ),
    "nasnetamobile": _named("nasnet", "nasnet", "224 x 224", "NASNet-A mobile"),
}
