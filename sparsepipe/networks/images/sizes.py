"""The size of the images that a network is built for, compared with the least that its strides leave something of."""

from ...errors import InputError


def check_size(network: str, image_size: int | tuple[int, int], *, least: int) -> None:
    """Raise InputError for images (a side, or height and width, in pixels) too small for a network's strides."""
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    if min(height, width) < least:
        raise InputError(
            "images.too_small",
            f"{network} needs images of at least {least} x {least} pixels, but these have {height} x {width}; "
            "enlarge them, or use resnet18-32 or vgg16-images-32 for small images",
        )
