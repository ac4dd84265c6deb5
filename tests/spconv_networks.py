"""Networks of spconv's modules in the forms in which they are published, with minibatches of changing size for them."""

from collections import OrderedDict
from functools import partial
from typing import Any

import spconv.pytorch as spconv
import torch
from torch import Tensor, nn

norm = partial(nn.BatchNorm1d, eps=1e-3, momentum=0.01)


def cloud(samples: int, number: int, *, extent: int = 24, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return coordinates int32 [N, 4], the sample first, and features [N, 4]: about `number` voxels on two planes."""
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for sample in range(samples):
        places = torch.randint(0, extent, (number, 3), generator=draw)
        places[: number // 2, 2] = 3
        places[number // 2 :, 0] = 5
        rows.append(torch.cat([torch.full((number, 1), sample), places], 1).unique(dim=0))
    coordinates = torch.cat(rows).int()
    return coordinates, torch.randn(len(coordinates), 4, generator=draw)


SIZES = ((2, 200), (3, 300), (1, 120))  # samples and voxels of three minibatches


class Residual(spconv.SparseModule):
    """Two SubM convolutions around which the input goes; one of kernel 1 if the width changes."""

    def __init__(self, inside: int, outside: int, key: str) -> None:
        super().__init__()
        if inside == outside:
            self.proj = spconv.SparseSequential(nn.Identity())
        else:
            point = spconv.SubMConv3d(inside, outside, kernel_size=1, bias=False)
            self.proj = spconv.SparseSequential(point, norm(outside))
        options: dict[str, Any] = {"kernel_size": 3, "padding": 1, "bias": False, "indice_key": key}
        self.conv1, self.bn1 = spconv.SubMConv3d(inside, outside, **options), norm(outside)
        self.conv2, self.bn2 = spconv.SubMConv3d(outside, outside, **options), norm(outside)
        self.relu = nn.ReLU()

    def forward(self, x: Any) -> Any:
        out = self.conv1(x)
        out = out.replace_feature(self.bn1(out.features))
        out = out.replace_feature(self.relu(out.features))
        out = self.conv2(out)
        out = out.replace_feature(self.bn2(out.features))
        out = out.replace_feature(out.features + self.proj(x).features)
        return out.replace_feature(self.relu(out.features))


def blocks(count: int, inside: int, outside: int, key: str) -> nn.Module:
    widths = [inside, *[outside] * count]
    named = [(f"block{i}", Residual(widths[i], widths[i + 1], key)) for i in range(count)]
    return spconv.SparseSequential(OrderedDict(named))


class SpUNet(nn.Module):
    """The U-Net of Pointcept: from a dictionary of points in a grid to a row of scores for each."""

    def __init__(self, in_channels: int = 4, num_classes: int = 5, widths: tuple[int, ...] = (8, 16, 24)) -> None:
        super().__init__()
        stem = spconv.SubMConv3d(in_channels, widths[0], 5, padding=1, bias=False, indice_key="stem")
        self.conv_input = spconv.SparseSequential(stem, norm(widths[0]), nn.ReLU())
        self.down, self.enc, self.up, self.dec = (nn.ModuleList() for _ in range(4))
        for s, (fine, coarse) in enumerate(zip(widths, widths[1:], strict=False)):
            down = spconv.SparseConv3d(fine, coarse, 2, stride=2, bias=False, indice_key=f"spconv{s + 1}")
            up = spconv.SparseInverseConv3d(coarse, fine, 2, bias=False, indice_key=f"spconv{s + 1}")
            self.down.append(spconv.SparseSequential(down, norm(coarse), nn.ReLU()))
            self.enc.append(blocks(1, coarse, coarse, f"subm{s + 1}"))
            self.up.append(spconv.SparseSequential(up, norm(fine), nn.ReLU()))
            self.dec.append(blocks(1, 2 * fine, fine, f"subm{s}"))
        self.final = spconv.SubMConv3d(widths[0], num_classes, kernel_size=1, padding=1, bias=True)

    def forward(self, input_dict: dict[str, Tensor]) -> Tensor:
        coordinates, features, offset = (input_dict[name] for name in ("grid_coord", "feat", "offset"))
        counts = torch.diff(offset, prepend=torch.tensor([0], device=offset.device))
        batch = torch.arange(len(counts), device=offset.device).repeat_interleave(counts)
        x = spconv.SparseConvTensor(
            features=features,
            indices=torch.cat([batch.unsqueeze(-1).int(), coordinates.int()], dim=1).contiguous(),
            spatial_shape=torch.add(torch.max(coordinates, dim=0).values, 96).tolist(),
            batch_size=batch[-1].tolist() + 1,
        )
        x = self.conv_input(x)
        skips = [x]
        for down, enc in zip(self.down, self.enc, strict=True):
            x = enc(down(x))
            skips.append(x)
        x = skips.pop(-1)
        for s in reversed(range(len(self.up))):
            x = self.up[s](x)
            x = x.replace_feature(torch.cat((x.features, skips.pop(-1).features), dim=1))
            x = self.dec[s](x)
        return self.final(x).features


def spunet() -> tuple[nn.Module, list[Any]]:
    minibatches = []
    for seed, (samples, number) in enumerate(SIZES):
        places, features = cloud(samples, number, seed=seed)
        offset = torch.bincount(places[:, 0].long()).cumsum(0)
        minibatches.append({"input_dict": {"grid_coord": places[:, 1:].long(), "feat": features, "offset": offset}})
    return SpUNet(), minibatches


def post_act(inside: int, outside: int, kernel: Any, key: str, *, stride: Any = 1, padding: Any = 0) -> nn.Module:
    """Return convolution, norm and ReLU: SubM if `stride` is 1."""
    if stride == 1:
        convolution = spconv.SubMConv3d(inside, outside, kernel, bias=False, indice_key=key)
    else:
        convolution = spconv.SparseConv3d(
            inside, outside, kernel, stride=stride, padding=padding, bias=False, indice_key=key
        )
    return spconv.SparseSequential(convolution, norm(outside), nn.ReLU())


class Second(nn.Module):
    """The sparse backbone of SECOND in the form of OpenPCDet, its bird's-eye view, dense convolutions on that."""

    def __init__(self, widths: tuple[int, ...] = (8, 16, 24, 24)) -> None:
        super().__init__()
        self.sparse_shape = [25, 24, 24]
        first = spconv.SubMConv3d(4, widths[0], 3, padding=1, bias=False, indice_key="subm1")
        self.conv_input = spconv.SparseSequential(first, norm(widths[0]), nn.ReLU())
        self.conv1 = spconv.SparseSequential(post_act(widths[0], widths[0], 3, "subm1"))
        for i in range(1, 4):
            inside, outside, key = widths[i - 1], widths[i], f"subm{i + 1}"
            down = post_act(inside, outside, 3, f"spconv{i + 1}", stride=2, padding=1)
            same = [post_act(outside, outside, 3, key) for _ in range(2)]
            setattr(self, f"conv{i + 1}", spconv.SparseSequential(down, *same))
        last = spconv.SparseConv3d(widths[-1], 32, (3, 1, 1), stride=(2, 1, 1), bias=False, indice_key="spconv_down2")
        self.conv_out = spconv.SparseSequential(last, norm(32), nn.ReLU())
        self.bev = nn.Sequential(nn.Conv2d(32, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 7, 1))

    def forward(self, voxel_features: Tensor, voxel_coords: Tensor) -> Tensor:
        x = spconv.SparseConvTensor(
            features=voxel_features,
            indices=voxel_coords.int(),
            spatial_shape=self.sparse_shape,
            batch_size=voxel_coords[-1, 0].item() + 1,
        )
        x = self.conv1(self.conv_input(x))
        x = self.conv4(self.conv3(self.conv2(x)))
        dense = self.conv_out(x).dense()
        samples, channels, depth, height, width = dense.shape
        return self.bev(dense.view(samples, channels * depth, height, width))


class VoxelNeXt(nn.Module):
    """Like VoxelNeXt: three coarser grids are joined with a finer one and flattened, and heads stay sparse."""

    def __init__(self, widths: tuple[int, ...] = (8, 16, 24)) -> None:
        super().__init__()
        self.sparse_shape = [24, 24, 24]
        self.conv_input = spconv.SparseSequential(
            spconv.SubMConv3d(4, widths[0], 3, padding=1, bias=False, indice_key="subm1"), norm(widths[0]), nn.ReLU()
        )
        self.conv1 = blocks(1, widths[0], widths[0], "res1")
        for i, (inside, outside) in enumerate(((0, 1), (1, 2), (2, 2), (2, 2)), 2):
            down = post_act(widths[inside], widths[outside], 3, f"spconv{i}", stride=2, padding=1)
            same = blocks(1, widths[outside], widths[outside], f"res{i}")
            setattr(self, f"conv{i}", spconv.SparseSequential(down, same))
        flat = spconv.SparseConv2d(widths[-1], 16, 3, stride=1, padding=1, bias=False, indice_key="spconv_down2")
        self.conv_out = spconv.SparseSequential(flat, norm(16), nn.ReLU())
        self.shared_conv = spconv.SparseSequential(
            spconv.SubMConv2d(16, 16, 3, padding=1, bias=True, indice_key="shared"), norm(16), nn.ReLU(True)
        )
        self.heat, self.size = (spconv.SubMConv2d(16, n, 3, padding=1, bias=True, indice_key="out") for n in (2, 3))

    def forward(self, voxel_features: Tensor, voxel_coords: Tensor) -> tuple[Tensor, Tensor]:
        x = spconv.SparseConvTensor(
            voxel_features, voxel_coords.int(), self.sparse_shape, voxel_coords[-1, 0].item() + 1
        )
        x3 = self.conv3(self.conv2(self.conv1(self.conv_input(x))))
        x4 = self.conv4(x3)
        x5 = self.conv5(x4)
        x4.indices[:, 1:] *= 2
        x5.indices[:, 1:] *= 4
        x3 = x3.replace_feature(torch.cat([x3.features, x4.features, x5.features]))
        x3.indices = torch.cat([x3.indices, x4.indices, x5.indices])
        bev = self.bev_out(x3)
        bev = self.shared_conv(self.conv_out(bev))
        return self.heat(bev).features, self.size(bev).features

    def bev_out(self, x: Any) -> Any:
        """Sum the voxels of a column."""
        flat, inverse = torch.unique(x.indices[:, [0, 2, 3]], dim=0, return_inverse=True)
        summed = x.features.new_zeros((flat.shape[0], x.features.shape[1]))
        summed.index_add_(0, inverse, x.features)
        return spconv.SparseConvTensor(summed, flat.contiguous(), x.spatial_shape[1:], x.batch_size)


def of_voxels(kind: type[nn.Module]) -> tuple[nn.Module, list[Any]]:
    minibatches = []
    for seed, (samples, number) in enumerate(SIZES):
        places, features = cloud(samples, number, seed=seed)
        minibatches.append({"voxel_features": features, "voxel_coords": places})
    return kind(), minibatches


FAMILIES = {"SpUNet": spunet, "SECOND": lambda: of_voxels(Second), "VoxelNeXt": lambda: of_voxels(VoxelNeXt)}
