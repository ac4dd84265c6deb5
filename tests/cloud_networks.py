"""Networks in Pointcept's interface, and data: one dict of a minibatch in, `{loss, seg_logits}` out.

Between their modules goes a dict with methods, as Pointcept's Point: modules read its entries, replace and add some.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class Cloud(dict[str, Any]):
    """A batch of clouds: entries are attributes, too."""

    def __init__(self, *entries: Any, **more: Any) -> None:
        super().__init__(*entries, **more)
        if "batch" not in self:
            counts = torch.diff(self.offset, prepend=self.offset.new_zeros(1))
            self["batch"] = torch.arange(len(counts), device=self.offset.device).repeat_interleave(counts)
        elif "offset" not in self:
            self["offset"] = self.batch.bincount().cumsum(0)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def serialize(self, axes: tuple[str, ...], *, shuffled: bool) -> None:
        """Order the points of each cloud along some axes: one order a name such as "xyz"."""
        self["axes"], self["depth"] = axes, int(self.cell.max() + 1).bit_length()
        assert self.depth < 16
        codes = []
        for name in axes:
            code = self.batch.clone()
            for axis in name:
                code = code * 2**self.depth + self.cell[:, "xyz".index(axis)]
            codes.append(code)
        code = torch.stack(codes)
        if shuffled:
            code = code[torch.randperm(len(axes))]
        self["order"] = torch.argsort(code)
        self["inverse"] = torch.argsort(self.order)


class Chain(nn.Module):
    """Modules one after the other: those of this file take clouds, others the features in them."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        for number, part in enumerate(parts):
            self.add_module(str(number), part)

    def forward(self, cloud: Any) -> Any:
        for part in self._modules.values():
            assert part is not None
            if isinstance(part, Chain | Attention | Block | Pool | Unpool):
                cloud = part(cloud)
            else:
                cloud.feat = part(cloud.feat)
        return cloud


class Attention(nn.Module):
    """Attention within windows of points that follow each other in an order; the last window of a cloud overlaps."""

    def __init__(self, width: int, heads: int, *, window: int, which: int) -> None:
        super().__init__()
        self.heads, self.most, self.window, self.which = heads, window, 0, which
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def windows(self, cloud: Cloud) -> Tensor:
        """The rows of each window, int64 [windows, points]."""
        if "windows" not in cloud:
            rows, first = [], 0
            for last in cloud.offset.tolist():
                starts = [*range(first, last - self.window, self.window), last - self.window]
                rows += [torch.arange(start, start + self.window) for start in starts]
                first = last
            cloud["windows"] = torch.stack(rows)
        return cloud["windows"]

    def forward(self, cloud: Cloud) -> Cloud:
        self.window = min(torch.diff(cloud.offset, prepend=cloud.offset.new_zeros(1)).min().tolist(), self.most)
        rows = cloud.order[self.which][self.windows(cloud)]
        heads = self.qkv(cloud.feat)[rows].unflatten(-1, (3, self.heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).flatten(0, 1)
        summed = torch.zeros_like(cloud.feat).index_add(0, rows.flatten(), mixed)
        times = torch.bincount(rows.flatten(), minlength=len(cloud.feat))
        cloud.feat = self.out(summed / times[:, None])
        return cloud


class Block(nn.Module):
    def __init__(self, width: int, *, window: int, which: int) -> None:
        super().__init__()
        self.norm, self.attention = Chain(nn.LayerNorm(width)), Attention(width, 2, window=window, which=which)
        hidden = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp = Chain(nn.LayerNorm(width), hidden)

    def forward(self, cloud: Cloud) -> Cloud:
        before = cloud.feat
        cloud = self.attention(self.norm(cloud))
        cloud.feat = before + cloud.feat
        before = cloud.feat
        cloud = self.mlp(cloud)
        cloud.feat = before + cloud.feat
        return cloud


class Pool(nn.Module):
    """Points of a cell of twice the edge become one; it knows the cloud that it was made of."""

    def __init__(self, width: int, wider: int) -> None:
        super().__init__()
        self.proj, self.norm = nn.Linear(width, wider), Chain(nn.BatchNorm1d(wider), nn.GELU())

    def forward(self, cloud: Cloud) -> Cloud:
        assert {"cell", "batch", "depth"}.issubset(cloud)
        if cloud.depth < 1:
            raise ValueError("nothing to pool")
        cells = torch.cat([cloud.batch[:, None], cloud.cell >> 1], dim=1)
        cells, inverse = torch.unique(cells, dim=0, return_inverse=True)
        feat = self.proj(cloud.feat)
        feat = feat.new_full((len(cells), feat.shape[1]), -1e9).index_reduce(0, inverse, feat, "amax")
        made = Cloud(feat=feat, cell=cells[:, 1:], batch=cells[:, 0], parent=cloud, rows=inverse)
        made.serialize(cloud.axes, shuffled=False)
        return self.norm(made)


class Unpool(nn.Module):
    def __init__(self, wider: int, width: int) -> None:
        super().__init__()
        self.proj, self.skip = Chain(nn.Linear(wider, width)), Chain(nn.Linear(width, width))

    def forward(self, cloud: Cloud) -> Cloud:
        assert "parent" in cloud
        parent, rows = cloud.pop("parent"), cloud.pop("rows")
        cloud, parent = self.proj(cloud), self.skip(parent)
        parent.feat = parent.feat + cloud.feat[rows]
        return parent


class Transformer(nn.Module):
    def __init__(self, channels: int, width: int, *, window: int = 16, shuffled: bool = True) -> None:
        super().__init__()
        self.axes, self.shuffled = ("xyz", "zyx"), shuffled
        self.stem = Chain(nn.Linear(channels, width), nn.BatchNorm1d(width))
        self.down = Chain(
            Block(width, window=window, which=0),
            Pool(width, 2 * width),
            Block(2 * width, window=window, which=1),
            Block(2 * width, window=window, which=0),
        )
        self.up = Chain(Unpool(2 * width, width), Block(width, window=window, which=1))

    def forward(self, minibatch: dict[str, Tensor]) -> Cloud:
        cloud = Cloud(minibatch)
        cloud.serialize(self.axes, shuffled=self.shuffled)
        return self.up(self.down(self.stem(cloud)))


class Criteria:
    """No module: losses that are added up."""

    def __init__(self) -> None:
        self.losses = [nn.CrossEntropyLoss(ignore_index=-1)]

    def __call__(self, logits: Tensor, labels: Tensor) -> Any:
        return sum(loss(logits, labels) for loss in self.losses)


class Segmentor(nn.Module):
    def __init__(self, backbone: nn.Module, width: int, num_classes: int) -> None:
        super().__init__()
        self.head, self.backbone, self.criteria = nn.Linear(width, num_classes), backbone, Criteria()

    def forward(self, input_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        cloud = Cloud(input_dict)
        cloud = self.backbone(cloud)
        logits = self.head(cloud.feat)
        made = {}
        if self.training:
            made["loss"] = self.criteria(logits, input_dict["segment"])
        elif "segment" in input_dict:
            made["loss"] = self.criteria(logits, input_dict["segment"])
            made["seg_logits"] = logits
        else:
            made["seg_logits"] = logits
        return made


def segmentor(num_classes: int = 4, width: int = 16) -> Segmentor:
    return Segmentor(Transformer(6, width), width, num_classes)


def minibatch(*counts: int, seed: int = 0) -> dict[str, Tensor]:
    """Return clouds of these numbers of points, joined: cells of a grid, features, classes; some are not known."""
    drawn = torch.Generator().manual_seed(seed)
    cells = torch.cat([torch.randperm(20**3, generator=drawn)[:count] for count in counts])
    cell = torch.stack([cells // 400, cells // 20 % 20, cells % 20], dim=1)
    labels = cell[:, 2] // 5
    labels[torch.rand(len(cells), generator=drawn) < 0.1] = -1
    feat = torch.cat([cell / 20, torch.randn(len(cells), 3, generator=drawn)], dim=1)
    offset = torch.tensor(counts).cumsum(0)
    return {"coord": cell / 20, "cell": cell, "feat": feat, "segment": labels, "offset": offset}


class Clouds(Dataset[dict[str, Tensor]]):
    """Items as Pointcept's data sets have them: dicts of single clouds."""

    num_classes, loss = 4, "output"

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        item = minibatch(30 + 7 * (index % 4), seed=self.seed + index)
        return {name: entry for name, entry in item.items() if name != "offset"}


def clouds(split: str) -> Clouds:
    return Clouds(12, 0) if split == "train" else Clouds(4, 100)
