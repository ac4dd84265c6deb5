"""Networks for points in the interface of Pointcept, and more of MinkowskiEngine's and spconv's kinds."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Family = tuple[nn.Module, list[Any]]

_CLOUDS = ((2, 40), (3, 50), (1, 30))  # samples and points of each
_CLASSES = 5


def scenes() -> list[Any]:
    """Return minibatches as Pointcept joins them."""
    minibatches = []
    for samples, number in _CLOUDS:
        counts = [number + 3 * i for i in range(samples)]
        total = sum(counts)
        grid = torch.randint(0, 8, (total, 3))
        coord = grid.double() + torch.rand(total, 3, dtype=torch.double)
        minibatches.append(
            {
                "coord": coord,
                "grid_coord": grid,
                "feat": torch.cat([coord / 8, torch.rand(total, 1)], 1),
                "offset": torch.tensor(counts).cumsum(0),
                "segment": torch.randint(0, _CLASSES, (total,)),
            }
        )
    return minibatches


def samples_of(offset: Tensor) -> Tensor:
    """Return each point's sample."""
    counts = torch.diff(offset, prepend=offset.new_zeros(1))
    return torch.arange(len(counts), device=offset.device).repeat_interleave(counts)


def nearest(coord: Tensor, sample: Tensor, count: int) -> Tensor:
    """Return the nearest points of each point's sample."""
    apart = torch.cdist(coord, coord).masked_fill(sample[:, None] != sample, float("inf"))
    return apart.topk(count, largest=False).indices


def block(a: int, b: int) -> nn.Module:
    return nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(inplace=True))


class Segmentor(nn.Module):
    """A backbone and a criterion: a loss in training, scores too in evaluation, as DefaultSegmentor."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone, self.criteria = backbone, nn.CrossEntropyLoss(ignore_index=-1)

    def forward(self, input_dict: dict[str, Any]) -> dict[str, Tensor]:
        scores = self.backbone(input_dict)
        if self.training:
            return {"loss": self.criteria(scores, input_dict["segment"])}
        if "segment" in input_dict:
            return {"loss": self.criteria(scores, input_dict["segment"]), "seg_logits": scores}
        return {"seg_logits": scores}


class PointNet(nn.Module):
    """Features of each point, and the largest of its sample, by a loop over samples."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Sequential(block(4, 16), block(16, 16)), block(16, 32)
        self.head = nn.Sequential(block(48, 16), nn.Dropout(0.3), nn.Linear(16, _CLASSES))

    def forward(self, data: dict[str, Any]) -> Tensor:
        x = self.a(data["feat"])
        y = self.b(x)
        pooled, start = [], 0
        for end in data["offset"].tolist():
            pooled.append(y[start:end].max(0, keepdim=True).values.expand(end - start, -1))
            start = end
        return self.head(torch.cat([x, torch.cat(pooled)], 1))


class EdgeNet(nn.Module):
    """Dynamic graphs of features, as DGCNN."""

    def __init__(self) -> None:
        super().__init__()
        self.edges = nn.ModuleList(block(2 * a, 16) for a in (4, 16, 16))
        self.head = nn.Sequential(block(48, 16), nn.Linear(16, _CLASSES))

    def forward(self, data: dict[str, Any]) -> Tensor:
        x, sample, seen = data["feat"], samples_of(data["offset"]), []
        for edge in self.edges:
            near = nearest(x, sample, 6)
            pairs = torch.cat([x[near] - x[:, None], x[:, None].expand(-1, 6, -1)], -1)
            x = edge(pairs.flatten(0, 1)).view(*near.shape, -1).amax(1)
            seen.append(x)
        return self.head(torch.cat(seen, 1))


class VectorAttention(nn.Module):
    """One layer of Point Transformer's attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.place = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        self.weigh = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.norm = nn.BatchNorm1d(width)

    def forward(self, pxo: list[Tensor]) -> list[Tensor]:
        p, x, o = pxo
        near = nearest(p, samples_of(o), 5)
        place = self.place(p[near] - p[:, None])
        weights = self.weigh(self.q(x)[:, None] - self.k(x)[near] + place).softmax(1)
        y = (weights * (self.v(x)[near] + place)).sum(1)
        return [p, x + F.relu(self.norm(y)), o]


class PointTransformer(nn.Module):
    """Lists of places, features and offsets from layer to layer, as Point Transformer's code has them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = block(4, 16)
        self.layers = nn.Sequential(*(VectorAttention(16) for _ in range(3)))
        self.head = nn.Linear(16, _CLASSES)

    def forward(self, data: dict[str, Any]) -> Tensor:
        _, x, _ = self.layers([data["coord"], self.stem(data["feat"]), data["offset"].int()])
        return self.head(x)


class GridPools(nn.Module):
    """Pools points of a cell and puts the cells' features back, as PTv2 does."""

    def __init__(self, stages: int = 2) -> None:
        super().__init__()
        self.stem = block(4, 16)
        self.down = nn.ModuleList(block(16, 16) for _ in range(stages))
        self.up = nn.ModuleList(block(32, 16) for _ in range(stages))
        self.head = nn.Linear(16, _CLASSES)

    def forward(self, data: dict[str, Any]) -> Tensor:
        x, cells, sample = self.stem(data["feat"]), data["grid_coord"], samples_of(data["offset"])
        skips = []
        for down in self.down:
            keys, inverse = torch.cat([sample[:, None], cells // 2], 1).unique(dim=0, return_inverse=True)
            skips.append((x, inverse))
            pooled = x.new_full((len(keys), x.shape[1]), float("-inf"))
            x = down(pooled.scatter_reduce(0, inverse[:, None].expand_as(x), x, "amax"))
            sample, cells = keys[:, 0], keys[:, 1:]
        for up in self.up:
            skip, inverse = skips.pop()
            x = up(torch.cat([skip, x[inverse]], 1))
        return self.head(x)


class SampledPoints(nn.Module):
    """Farthest points in a Python loop, balls around them and interpolation back, as PointNet++."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.ball = block(4, 16), block(19, 16)
        self.mid, self.back = block(16, 16), block(32, 16)
        self.head = nn.Linear(16, _CLASSES)

    @staticmethod
    def farthest(coord: Tensor, offset: Tensor) -> Tensor:
        chosen, start = [], 0
        for end in offset.tolist():
            points = coord[start:end]
            apart, at = points.new_full((len(points),), float("inf")), 0
            for _ in range(max(1, len(points) // 4)):
                chosen.append(start + at)
                apart = torch.minimum(apart, (points - points[at]).square().sum(1))
                at = int(apart.argmax())
            start = end
        return torch.tensor(chosen, device=coord.device)

    def forward(self, data: dict[str, Any]) -> Tensor:
        p, x = data["coord"], self.stem(data["feat"])
        sample = samples_of(data["offset"])
        centres = self.farthest(p, data["offset"])
        apart = torch.cdist(p[centres], p).masked_fill(sample[centres, None] != sample, float("inf"))
        near = apart.topk(6, largest=False).indices
        around = torch.cat([p[near] - p[centres, None], x[near]], -1)
        y = self.mid(self.ball(around.flatten(0, 1)).view(*near.shape, -1).amax(1))
        back = torch.cdist(p, p[centres]).masked_fill(sample[:, None] != sample[centres], float("inf"))
        d, i = back.topk(3, largest=False)
        w = 1 / (d + 1e-8)
        w = w / w.sum(1, keepdim=True)
        return self.head(self.back(torch.cat([x, (y[i] * w[..., None]).sum(1)], 1)))


class KernelPoints(nn.Module):
    """Convolution by kernel points with linear influence, as KPConv."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("points", torch.randn(7, 3))
        self.stem = block(4, 16)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(7, 16, 16) / 10) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(16) for _ in range(3))
        self.head = nn.Linear(16, _CLASSES)

    def forward(self, data: dict[str, Any]) -> Tensor:
        p, x = data["coord"], self.stem(data["feat"])
        near = nearest(p, samples_of(data["offset"]), 6)
        offsets = p[near] - p[:, None]
        influence = (1 - torch.cdist(offsets, self.points.expand(len(p), -1, -1)) / 2).clamp(min=0)
        for weight, norm in zip(self.weights, self.norms, strict=True):
            gathered = torch.einsum("nmk,nmc->nkc", influence, x[near])
            x = x + F.leaky_relu(norm(torch.einsum("nkc,kcd->nd", gathered, weight)), 0.1)
        return self.head(x)


class Windows(nn.Module):
    """Attention within cells, padded to the longest cell, as window transformers for points."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = block(4, 16)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True) for _ in range(2))
        self.head = nn.Linear(16, _CLASSES)

    def forward(self, data: dict[str, Any]) -> Tensor:
        x, sample = self.stem(data["feat"]), samples_of(data["offset"])
        for i, layer in enumerate(self.layers):
            keys = torch.cat([sample[:, None], (data["grid_coord"] + 2 * i) // 4], 1)
            _, window, counts = keys.unique(dim=0, return_inverse=True, return_counts=True)
            order = window.argsort(stable=True)
            starts = counts.cumsum(0) - counts
            rank = torch.empty_like(window)
            rank[order] = torch.arange(len(x)) - starts[window[order]]
            padded = x.new_zeros(len(counts), int(counts.max()), x.shape[1])
            padded[window, rank] = x
            empty = torch.arange(padded.shape[1]) >= counts[:, None]
            x = layer(padded, src_key_padding_mask=empty)[window, rank]
        return self.head(x)


class Pillars(nn.Module):
    """Points of a column pooled to a picture, convolved, and read back, as PointPillars."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = block(4, 16)
        self.body = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)
        )
        self.head = nn.Sequential(block(32, 16), nn.Linear(16, _CLASSES))

    def forward(self, data: dict[str, Any]) -> Tensor:
        x, sample = self.stem(data["feat"]), samples_of(data["offset"])
        n = len(data["offset"])
        u, v = data["grid_coord"][:, 0], data["grid_coord"][:, 1]
        flat = (sample * 8 + u) * 8 + v
        canvas = x.new_zeros(n * 64, 16).scatter_reduce(0, flat[:, None].expand_as(x), x, "amax", include_self=True)
        picture = self.body(canvas.view(n, 8, 8, 16).permute(0, 3, 1, 2))
        return self.head(torch.cat([x, picture[sample, :, u, v]], 1))


def segmentor(backbone: Callable[[], nn.Module]) -> Callable[[], Family]:
    return lambda: (Segmentor(backbone()), scenes())


NETWORKS: Mapping[str, Callable[[], Family]] = {
    "points: PointNet": segmentor(PointNet),
    "points: DGCNN": segmentor(EdgeNet),
    "points: Point Transformer": segmentor(PointTransformer),
    "points: grid pooling": segmentor(GridPools),
    "points: PointNet++": segmentor(SampledPoints),
    "points: KPConv": segmentor(KernelPoints),
    "points: windows": segmentor(Windows),
    "points: pillars": segmentor(Pillars),
}


def voxels(library: Any, sizes: tuple[int, ...] = (60, 90, 40)) -> list[Any]:
    """Return sparse tensors of MinkowskiEngine."""
    made = []
    for samples, number in zip((2, 3, 2), sizes, strict=True):
        places = torch.cat([torch.randint(0, samples, (number, 1)), torch.randint(0, 6, (number, 3))], 1)
        places = places.unique(dim=0).int()
        made.append(library.SparseTensor(torch.rand(len(places), 3, dtype=torch.float64), places))
    return made


def minkowski(build: Callable[[Any, Any, Any], nn.Module]) -> Callable[[], Family]:
    """Return a builder of a network of `build`, which gets the library, a convolution and a norm with ReLU."""

    def made() -> Family:
        from sparsepipe.engines.minkowski import ME

        def conv(a: int, b: int, size: int = 3, stride: int = 1, **options: Any) -> nn.Module:
            return ME.MinkowskiConvolution(a, b, kernel_size=size, stride=stride, dimension=3, **options)

        def norm(a: int) -> nn.Module:
            return nn.Sequential(ME.MinkowskiBatchNorm(a), ME.MinkowskiReLU(inplace=True))

        return build(ME, conv, norm), voxels(ME)

    return made


def _squeeze(ME: Any, conv: Any, norm: Any) -> nn.Module:
    """Squeeze and excitation with a broadcast product, as MinkowskiEngine's SENet."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.a, self.n = conv(width, width), norm(width)
            self.pool, self.times = ME.MinkowskiGlobalPooling(), ME.MinkowskiBroadcastMultiplication()
            self.gate = nn.Sequential(
                ME.MinkowskiLinear(width, 4), ME.MinkowskiReLU(), ME.MinkowskiLinear(4, width), ME.MinkowskiSigmoid()
            )

        def forward(self, x: Any) -> Any:
            y = self.n(self.a(x))
            y = self.times(y, self.gate(self.pool(y)))
            y += x
            return y

    return nn.Sequential(
        conv(3, 8, 5), Block(8), conv(8, 8, 2, 2), Block(8), ME.MinkowskiGlobalMaxPooling(), ME.MinkowskiLinear(8, 4)
    )


def _instances(ME: Any, conv: Any, norm: Any) -> nn.Module:
    """A U-Net with two heads and instance norms, returned as a tuple of dense tensors."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(conv(3, 8), ME.MinkowskiInstanceNorm(8), ME.MinkowskiReLU())
            self.down = nn.Sequential(conv(8, 16, 2, 2), norm(16), conv(16, 16), norm(16))
            self.up = ME.MinkowskiConvolutionTranspose(16, 8, kernel_size=2, stride=2, dimension=3)
            self.mix = nn.Sequential(conv(16, 8), norm(8))
            self.scores, self.shifts = ME.MinkowskiLinear(8, 4), ME.MinkowskiLinear(8, 3)

        def forward(self, x: Any) -> tuple[Tensor, Tensor]:
            a = self.stem(x)
            y = self.mix(ME.cat(self.up(self.down(a)), a))
            return self.scores(y).F, self.shifts(y).F

    return Net()


def _functional(ME: Any, conv: Any, norm: Any) -> nn.Module:
    """Functional calls, sums of tensors and a new tensor of changed features on the same coordinates."""
    import MinkowskiEngine.MinkowskiFunctional as MF

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = conv(3, 8), conv(8, 8), conv(8, 8)
            self.scale, self.head = nn.Parameter(torch.ones(8)), ME.MinkowskiLinear(8, 4)

        def forward(self, x: Any) -> Tensor:
            y = MF.relu(self.a(x))
            z = ME.SparseTensor(
                y.F * self.scale, coordinate_map_key=y.coordinate_map_key, coordinate_manager=y.coordinate_manager
            )
            z = MF.dropout(MF.elu(self.b(z)) + y, 0.2, self.training)
            return self.head(MF.leaky_relu(self.c(z) * y)).F

    return Net()


def _pyramid(ME: Any, conv: Any, norm: Any) -> nn.Module:
    """Pools and unpools, with features of three levels joined after a broadcast."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Sequential(conv(3, 8), norm(8)), nn.Sequential(conv(8, 8), norm(8))
            self.pool = ME.MinkowskiMaxPooling(kernel_size=2, stride=2, dimension=3)
            self.unpool = ME.MinkowskiPoolingTranspose(kernel_size=2, stride=2, dimension=3)
            self.whole, self.join = ME.MinkowskiGlobalAvgPooling(), ME.MinkowskiBroadcastConcatenation()
            self.last, self.head = nn.Sequential(conv(24, 8), norm(8)), ME.MinkowskiLinear(8, 4)

        def forward(self, x: Any) -> Tensor:
            x = self.a(x)
            y = self.unpool(self.b(self.pool(x)))
            y = ME.cat(x, y)
            return self.head(self.last(self.join(y, self.whole(x)))).F

    return Net()


def _channelwise(ME: Any, conv: Any, norm: Any) -> nn.Module:
    """Channelwise convolutions between linear layers, with a residual and an expansion, as MobileNet."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = ME.MinkowskiLinear(8, 16), ME.MinkowskiLinear(16, 8)
            self.depth = ME.MinkowskiChannelwiseConvolution(16, kernel_size=3, dimension=3)
            self.n, self.m = norm(16), ME.MinkowskiBatchNorm(8)

        def forward(self, x: Any) -> Any:
            return x + self.m(self.b(self.n(self.depth(self.a(x)))))

    return nn.Sequential(conv(3, 8), Block(), Block(), ME.MinkowskiGlobalSumPooling(), ME.MinkowskiLinear(8, 4))


OF_MINKOWSKI: Mapping[str, Callable[[], Family]] = {
    "Minkowski: squeeze and excitation": minkowski(_squeeze),
    "Minkowski: two heads": minkowski(_instances),
    "Minkowski: functional": minkowski(_functional),
    "Minkowski: pyramid": minkowski(_pyramid),
    "Minkowski: channelwise": minkowski(_channelwise),
}


def spconv_network(build: Callable[[Any], nn.Module]) -> Callable[[], Family]:
    def made() -> Family:
        from sparsepipe import engines

        engines.engine("spconv")  # which repairs the library
        import spconv.pytorch as spconv

        from tests.spconv_networks import SIZES, cloud

        return build(spconv), [tuple(reversed(cloud(*size, seed=i))) for i, size in enumerate(SIZES)]

    return made


class _OfSpconv(nn.Module):
    """Makes the sparse tensor of features and coordinates."""

    def __init__(self, spconv: Any, body: nn.Module, head: nn.Module, *, dense: bool) -> None:
        super().__init__()
        self.make, self.body, self.head, self.dense = spconv.SparseConvTensor, body, head, dense

    def forward(self, features: Tensor, indices: Tensor) -> Tensor:
        x = self.body(self.make(features, indices, [24, 24, 24], indices[-1, 0].item() + 1))
        return self.head(x.dense().flatten(2).mean(2)) if self.dense else self.head(x.features)


def _submanifold(spconv: Any) -> nn.Module:
    steps: list[nn.Module] = []
    for a, b in ((4, 8), (8, 8), (8, 8)):
        steps += [spconv.SubMConv3d(a, b, 3, bias=False, indice_key="a"), nn.BatchNorm1d(b), nn.ReLU()]
    return _OfSpconv(spconv, spconv.SparseSequential(*steps), nn.Linear(8, _CLASSES), dense=False)


def _strided(spconv: Any) -> nn.Module:
    steps: list[nn.Module] = []
    for a, b in ((4, 8), (8, 16), (16, 16)):
        steps += [spconv.SparseConv3d(a, b, 3, stride=2, padding=1, bias=False), nn.BatchNorm1d(b), nn.ReLU()]
        steps += [spconv.SubMConv3d(b, b, 3, padding=1, bias=False), nn.BatchNorm1d(b), nn.ReLU()]
    return _OfSpconv(spconv, spconv.SparseSequential(*steps), nn.Linear(16, _CLASSES), dense=True)


def _pooled(spconv: Any) -> nn.Module:
    body = spconv.SparseSequential(
        spconv.SubMConv3d(4, 8, 3, indice_key="a"), nn.ReLU(), spconv.SparseMaxPool3d(2, 2, indice_key="p"),
        spconv.SubMConv3d(8, 8, 3, indice_key="b"), nn.BatchNorm1d(8), nn.ReLU(),
        spconv.SparseInverseConv3d(8, 8, 2, indice_key="p", bias=False), nn.ReLU(),
    )  # fmt: skip
    return _OfSpconv(spconv, body, nn.Linear(8, _CLASSES), dense=False)


OF_SPCONV: Mapping[str, Callable[[], Family]] = {
    "spconv: submanifold": spconv_network(_submanifold),
    "spconv: strided": spconv_network(_strided),
    "spconv: pooled and inverted": spconv_network(_pooled),
}
