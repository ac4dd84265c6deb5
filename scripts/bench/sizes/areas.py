"""Pictures of several sizes, and two networks that take them: own code, as a user would write it."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


class Pictures(torch.utils.data.Dataset):
    """Noise of 24 to 200 pixels a side, brighter in one of four quarters, which is the class."""

    size_unit = "pixels"
    classes = tuple("abcd")

    def __init__(self, count: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._sides = np.clip(64 * np.exp(0.5 * random.standard_normal((count, 2))), 24, 200).astype(int)

    def __len__(self) -> int:
        return len(self._sides)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        height, width = self._sides[index].tolist()
        picture, quarter = torch.rand(3, height, width), index % 4
        rows, columns = (
            slice(None, side // 2) if low else slice(side // 2, None)
            for side, low in ((height, quarter < 2), (width, quarter % 2 == 0))
        )
        picture[:, rows, columns] += 1
        return picture, quarter


def pictures(split: str) -> Pictures:
    return Pictures(160 if split == "train" else 16, 1 if split == "train" else 2)


class Residual(nn.Module):
    """Two convolutions and what they are added to."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(y)) + x)


def residual(num_classes: int) -> nn.Module:
    ends = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))
    middle = (Residual(32), nn.Conv2d(32, 64, 3, stride=2, padding=1), Residual(64), Residual(64))
    return nn.Sequential(nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU(), *middle, *ends)


def plain(num_classes: int) -> nn.Module:
    layers = list[nn.Module]()
    for before, after in ((3, 16), (16, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, num_classes))
