"""Scikit-learn's handwritten digits as images of 8 x 8 pixels: what is learned if no data set can be fetched."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

_TRAINING = 1437  # of 1,797


class DigitImages(TensorDataset):
    """Items are an image float32 [1, 8, 8] and its digit."""

    num_classes = 10
    facts = {"image_size": 8, "in_channels": 1}


def digits(split: str) -> DigitImages:
    """Return the split "train" or "test"."""
    digits_set = load_digits()
    part = slice(None, _TRAINING) if split == "train" else slice(_TRAINING, None)
    images = torch.from_numpy(digits_set.images).float()[:, None] / 16
    return DigitImages(images[part], torch.from_numpy(digits_set.target).long()[part])
