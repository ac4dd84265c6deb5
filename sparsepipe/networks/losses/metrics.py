"""Metrics that are no means over minibatches: F1, mean IoU, ROC AUC, confusion matrices, average precision of boxes.

A metric keeps rows of each minibatch of a validation. Ranks put their rows one below the other, in the order of
minibatches, and the metric is computed from all of them: never from a mean of parts. So any plan has the numbers of one
process, to the bit.

    output, target ──► rows of a minibatch, float64 [k, width] ──► rows of all ranks ──► numbers, tables

A new metric is a class here with the members of `Metric`, and a name in METRICS (networks/losses/__init__.py).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ...data.labels import IGNORED
from ...data.predicted_points import POINT_METRIC, PointVotes
from ...errors import CODE_FAILURES, InputError
from ...util.io.fields import complaint
from ...util.io.functions import UserFunction, is_function
from .base import Loss, Outcome, described, main_output, mean_of
from .classes import as_rows, class_ious

Sum = Callable[[Tensor], Tensor]  # adds a tensor up over the ranks, in place

REPORTED: Mapping[
    str, tuple[str, ...]
] = {  # metric → its numbers; those of a function are known once it has been called
    "f1": ("f1", "precision", "recall"),
    "mean_iou": ("mean_iou", "iou_classes"),
    POINT_METRIC: (POINT_METRIC, "point_iou_classes"),
    "auc": ("auc",),
    "map": ("map", "map_50", "map_75"),
}


class Metric(Protocol):
    """Says which rows it keeps of a minibatch, and what all rows together come to."""

    additive: bool  # rows are counts: their sum is enough, and takes the room of one row

    def rows(self, output: object, target: object, minibatch: int) -> Tensor:
        """Return the rows, float64 [k, width], of a minibatch. Raises InputError if output and target do not fit."""
        ...

    def report(self, rows: Tensor) -> dict[str, float | None]:
        """Return numbers by name, of the rows [k, width] of all minibatches in order; None: not defined for these."""
        ...

    def table(self, rows: Tensor) -> list[list[float]] | None:
        """Return a table to record, such as the confusion matrix; None: it has none."""
        ...


class Measures:
    """The metrics of a validation: rows by `add`, those of all ranks by `gather`, numbers by `report`.

    Example:
        >>> import torch
        >>> from sparsepipe.networks.losses.metrics import Measures
        >>> measures = Measures(["f1"])
        >>> measures.add(0, torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
        >>> measures.report()["f1"]
        1.0
    """

    def __init__(self, names: Sequence[str], votes: PointVotes | None = None) -> None:
        """`names` are of METRICS, or name functions. `votes`: for the metric of points, which its outputs go to.

        Raises InputError for a function that does not exist.
        """
        self.votes = votes
        names = [name for name in names if name != POINT_METRIC]
        kinds: Mapping[str, Callable[[str], Metric]] = {
            "auc": AreaUnderCurve,
            "map": AveragePrecision,
            **dict.fromkeys(("f1", "mean_iou", "confusion"), ConfusionMetric),
        }
        self._metrics = {name: (OwnMetric if is_function(name) else kinds[name])(name) for name in names}
        self._rows: dict[str, dict[int, Tensor]] = {name: {} for name in self._metrics}

    def add(self, minibatch: int, output: object, target: object) -> None:
        """Take the outputs and targets of a minibatch. Raises InputError if a metric cannot take them."""
        for name, metric in self._metrics.items():
            rows, of_metric = metric.rows(output, target, minibatch), self._rows[name]
            if metric.additive:
                counts = rows.sum(dim=0, keepdim=True)
                of_metric[0] = of_metric[0] + counts if 0 in of_metric else counts
            else:
                of_metric[minibatch] = rows

    def gather(self, *, rank: int, world_size: int, add_up: Sum) -> None:
        """Put the rows of all ranks together, on every rank: all come here, and `add_up` sums over them."""
        if self.votes:
            self.votes.gather(rank=rank, world_size=world_size, add_up=add_up)
        if not self._metrics:
            return
        shapes = torch.zeros(world_size, len(self._metrics), 2, dtype=torch.float64)
        for number, parts in enumerate(self._rows.values()):
            if parts:
                shapes[rank, number, 0] = sum(len(rows) for rows in parts.values())
                shapes[rank, number, 1] = next(iter(parts.values())).shape[1]
        add_up(shapes)
        for number, (name, metric) in enumerate(self._metrics.items()):
            counts, width = shapes[:, number, 0].long(), int(shapes[:, number, 1].max())
            table = torch.zeros(int(counts.sum()), 1 + width, dtype=torch.float64)
            start = int(counts[:rank].sum())
            for minibatch, rows in self._rows[name].items():
                table[start : start + len(rows), 0] = minibatch
                table[start : start + len(rows), 1:] = rows
                start += len(rows)
            add_up(table)
            if metric.additive:
                self._rows[name] = {0: table[:, 1:].sum(dim=0, keepdim=True)}
            else:
                self._rows[name] = {0: table[table[:, 0].sort(stable=True).indices, 1:]}

    def report(self) -> dict[str, float | None]:
        """Return the numbers of all metrics by name."""
        numbers = {key: value for name, metric in self._metrics.items() for key, value in self._reported(name, metric)}
        if self.votes:
            ious = class_ious(self.votes.confusion)
            numbers |= {POINT_METRIC: mean_of(float(ious.sum()), len(ious)), "point_iou_classes": len(ious)}
        return numbers

    def tables(self) -> dict[str, list[list[float]]]:
        """Return the tables of all metrics that have one, by the metric's name."""
        tables = {name: metric.table(self._joined(name)) for name, metric in self._metrics.items() if self._rows[name]}
        return {name: table for name, table in tables.items() if table is not None}

    def _reported(self, name: str, metric: Metric) -> list[tuple[str, float | None]]:
        if not any(len(rows) for rows in self._rows[name].values()):
            return []
        numbers = metric.report(self._joined(name)).items()
        return [(key, value if value is None or math.isfinite(value) else None) for key, value in numbers]

    def _joined(self, name: str) -> Tensor:
        parts = self._rows[name]
        return torch.cat([parts[minibatch] for minibatch in sorted(parts)])


def unknown_best(name: str, scores: Iterable[str]) -> InputError:
    """Return the error of a setting `best` that is none of the scores of a validation."""
    known = ", ".join(score for score in scores if score not in ("samples", "counted"))
    return InputError(
        "setting.best_unknown",
        f"{{best}} is {name!r}, but the validation reports {known}; name one of them, or add it by {{metrics}}",
        setting=dict.fromkeys(("best", "metrics")),
    )


class Tally:
    """Outcomes of a validation, added up: over minibatches by `add`, over ranks by summing `values`, float64 [n].

    `measures`: the metrics that are no means, if any are asked for.
    """

    def __init__(self, loss: Loss, measures: Measures | None = None) -> None:
        self._loss, self.measures = loss, measures
        self._names: tuple[str, ...] = ()
        self.values = torch.zeros(4 + loss.num_details, dtype=torch.float64)

    @property
    def counts_correct(self) -> bool:
        """Return whether there is an accuracy to report."""
        return self._loss.counts_correct

    def add(self, outcome: Outcome) -> None:
        counts = [(outcome.loss or 0.0) * outcome.counted, outcome.samples, outcome.counted, outcome.correct]
        self.values[:4] += torch.tensor(counts, dtype=torch.float64)
        if outcome.details is not None:
            self.values[4:] += outcome.details
            self._names = outcome.names

    def report(self) -> dict[str, float | None]:
        """Return the mean loss, the accuracy if the loss counts one, over how many samples and items ("counted") they
        are, and what the loss adds. Means are None if nothing counted.

        Details that outcomes have named are means over what was counted.
        """
        loss, samples, counted, correct = self.values[:4].tolist()
        scores = {"loss": mean_of(loss, counted)}
        if self._loss.counts_correct:
            scores["accuracy"] = mean_of(correct, counted)
        named = zip(self._names, self.values[4:].tolist(), strict=False)
        scores |= {"samples": int(samples), "counted": int(counted), **self._loss.report(self.values[4:], counted)}
        scores |= {name: mean_of(total, counted) for name, total in named}
        return scores | (self.measures.report() if self.measures else {})


class ConfusionMetric:
    """Metrics of the confusion matrix [C, C], label by row, of the items that have a label.

    F1, precision and recall are means over the classes that occur among labels or predictions (macro); of an output
    with one column, a logit, they are those of class 1.
    """

    additive = True

    def __init__(self, name: str) -> None:
        """`name`: which numbers to report: "f1", "mean_iou", or "confusion", whose matrix is recorded."""
        self._name = name

    def rows(self, output: object, target: object, minibatch: int) -> Tensor:
        scores, labels = known_items(output, target, self._name)
        classes = max(2, scores.shape[1])
        chosen = (scores[:, 0] > 0).long() if scores.shape[1] == 1 else scores.argmax(dim=1)
        counts = torch.bincount(labels * classes + chosen, minlength=classes**2).double()
        return torch.cat([counts, counts.new_tensor([len(scores) * (scores.shape[1] == 1)])])[None]

    def report(self, rows: Tensor) -> dict[str, float | None]:
        confusion, is_binary = _square(rows[0, :-1]), bool(rows[0, -1])
        if self._name == "confusion":
            return {}
        if self._name == "mean_iou":
            ious = class_ious(confusion)
            return {"mean_iou": mean_of(float(ious.sum()), len(ious)), "iou_classes": len(ious)}
        right, labelled, predicted = confusion.diagonal(), confusion.sum(dim=1), confusion.sum(dim=0)
        occurs = (labelled + predicted) > 0
        of_class = {
            "f1": 2 * right / (labelled + predicted).clamp(min=1),
            "precision": right / predicted.clamp(min=1),
            "recall": right / labelled.clamp(min=1),
        }
        if is_binary:
            return {name: float(values[1]) for name, values in of_class.items()}
        return {name: mean_of(float(values[occurs].sum()), int(occurs.sum())) for name, values in of_class.items()}

    def table(self, rows: Tensor) -> list[list[float]] | None:
        return _square(rows[0, :-1]).tolist() if self._name == "confusion" else None


class AreaUnderCurve:
    """The area under the ROC curve, the mean over classes that have items of their own and of others.

    A class is compared with all others by its softmax probability (Hand and Till 2001 call it one against the rest);
    of an output with one column its logit ranks. Equal scores count half.
    """

    additive = False

    def __init__(self, name: str) -> None:
        self._name = name

    def rows(self, output: object, target: object, minibatch: int) -> Tensor:
        scores, labels = known_items(output, target, self._name)
        scores = scores.double()
        ranked = scores if scores.shape[1] == 1 else scores.softmax(dim=1)
        return torch.cat([ranked, labels.double()[:, None]], dim=1)

    def report(self, rows: Tensor) -> dict[str, float | None]:
        scores, labels = rows[:, :-1], rows[:, -1]
        classes = range(scores.shape[1]) if scores.shape[1] > 1 else (0,)
        areas = [_area(scores[:, k], labels == (k if scores.shape[1] > 1 else 1)) for k in classes]
        defined = [area for area in areas if area is not None]
        return {"auc": mean_of(math.fsum(defined), len(defined))}

    def table(self, rows: Tensor) -> None:
        return None


class AveragePrecision:
    """The mean average precision of boxes, as COCO defines it, without its limits on sizes.

    The output is a list with a dict for each sample: `boxes` [n, 4] (two corners) or [n, 6] (two corners of a box in
    space, with its sides along the axes), `scores` [n], `labels` [n]. The target is a list of dicts with `boxes` and
    `labels`. Of a sample the 100 boxes with the highest scores count.
    """

    additive = False
    _THRESHOLDS = tuple(0.5 + 0.05 * k for k in range(10))
    _MOST = 100

    def __init__(self, name: str) -> None:
        self._name = name

    def rows(self, output: object, target: object, minibatch: int) -> Tensor:
        """A row is (minibatch, sample, 1 for a box of the target, label, score, six coordinates)."""
        if not isinstance(output, list | tuple) or not isinstance(target, list | tuple) or len(output) != len(target):
            raise InputError(
                "metric.boxes_malformed",
                f"metric map: output {described(output)}, target {described(target)}; expected two lists with a dict "
                "of boxes and labels per sample",
            )
        tables: list[Tensor] = []
        for sample, pair in enumerate(zip(output, target, strict=True)):
            for is_truth, boxes in enumerate(pair):
                tables.append(_box_rows(minibatch, sample, boxes, is_truth=bool(is_truth)))
        return torch.cat(tables)

    def report(self, rows: Tensor) -> dict[str, float | None]:
        _, sample = rows[:, :2].unique(dim=0, return_inverse=True)
        truth = rows[:, 2] > 0
        by_class = []
        for label in rows[truth, 3].unique():
            of_class = rows[:, 3] == label
            by_class.append(self._precisions(sample[of_class], truth[of_class], rows[of_class, 4], rows[of_class, 5:]))
        if not by_class:
            return dict.fromkeys(("map", "map_50", "map_75"))
        mean = torch.stack(by_class).mean(dim=0)
        return {"map": float(mean.mean()), "map_50": float(mean[0]), "map_75": float(mean[5])}

    def table(self, rows: Tensor) -> None:
        return None

    def _precisions(self, sample: Tensor, truth: Tensor, scores: Tensor, boxes: Tensor) -> Tensor:
        """Return the average precision of a class at each threshold, float64 [10]."""
        hits, ranked = [], []
        for number in sample.unique():
            here = sample == number
            wanted = boxes[here & truth]
            order = scores[here & ~truth].sort(descending=True, stable=True)
            given = boxes[here & ~truth][order.indices[: self._MOST]]
            hits.append(_matched(_overlaps(given, wanted), self._THRESHOLDS))
            ranked.append(order.values[: self._MOST])
        by_score = torch.cat(ranked).sort(descending=True, stable=True).indices
        right = torch.cat(hits)[by_score].cumsum(dim=0)
        recall = right / truth.sum()
        precision = right / torch.arange(1, len(right) + 1)[:, None]
        precision = precision.flip(0).cummax(dim=0).values.flip(0) if len(right) else precision
        points = torch.linspace(0, 1, 101, dtype=torch.float64)
        return torch.stack([_at_recalls(recall[:, k], precision[:, k], points) for k in range(len(self._THRESHOLDS))])


class OwnMetric:
    """A function of the user's own: (scores [N, C] float64, labels [N] int64) of the whole split → numbers by name."""

    additive = False

    def __init__(self, reference: str) -> None:
        """Raises InputError if there is no such function."""
        self._name, self._function = reference, UserFunction.parse(reference).load()

    def rows(self, output: object, target: object, minibatch: int) -> Tensor:
        scores, labels = known_items(output, target, self._name)
        return torch.cat([scores.double(), labels.double()[:, None]], dim=1)

    def report(self, rows: Tensor) -> dict[str, float | None]:
        scores, labels = rows[:, :-1], rows[:, -1].long()
        try:
            return {str(name): float(value) for name, value in dict(self._function(scores, labels)).items()}
        except CODE_FAILURES as error:  # whatever the user's function raises: it is told in a line
            raise InputError(
                "metric.raises",
                f"metric {self._name} raises {type(error).__name__} ({complaint(error, None)}); expected a dict "
                f"of numbers for scores {described(scores)} and labels {described(labels)}",
                kind=type(error).__name__,
            ) from error

    def table(self, rows: Tensor) -> None:
        return None


def known_items(output: object, target: object, name: str) -> tuple[Tensor, Tensor]:
    """Return scores [N, C] and labels int64 [N], on the CPU, of the items that have a label.

    Images are taken with classes second, words with classes last. Raises InputError unless there are scores for each
    label.
    """
    scores, labels = as_rows(main_output(output), target)
    if isinstance(labels, Tensor) and scores.shape == labels.shape:
        scores = scores[..., None]  # a logit for each item
    fits = isinstance(labels, Tensor) and scores.shape[:-1] == labels.shape and scores.dim() > 1
    if fits:
        scores, labels = scores.detach().flatten(0, -2).float().cpu(), labels.flatten().long().cpu()
        known = labels != IGNORED
        scores, labels = scores[known], labels[known]
        fits = not len(labels) or 0 <= int(labels.min()) <= int(labels.max()) < max(2, scores.shape[1])
    if not fits:
        raise InputError(
            "metric.output_malformed",
            f"metric {name}: output {described(output)}, target {described(target)}; expected one score per class "
            "(or one logit) for each label",
            name=name,
        )
    return scores, labels


def _square(counts: Tensor) -> Tensor:
    side = math.isqrt(len(counts))
    return counts.view(side, side)


def _area(scores: Tensor, positive: Tensor) -> float | None:
    """Return the share of pairs of a positive and another item whose positive one scores higher (Mann and Whitney)."""
    wins, losses = int(positive.sum()), int((~positive).sum())
    if not wins or not losses:
        return None
    _, inverse, counts = scores.unique(return_inverse=True, return_counts=True)
    middle = counts.cumsum(0).double() - (counts.double() - 1) / 2  # the mean rank of equal scores, from 1
    ranks = float(middle[inverse[positive]].sum())
    return (ranks - wins * (wins + 1) / 2) / (wins * losses)


def _box_rows(minibatch: int, sample: int, boxes_of_sample: object, *, is_truth: bool) -> Tensor:
    names = ("boxes", "labels") if is_truth else ("boxes", "labels", "scores")
    parts = [boxes_of_sample.get(name) if isinstance(boxes_of_sample, Mapping) else None for name in names]
    tensors = [part.detach().double().cpu() for part in parts if isinstance(part, Tensor)]
    boxes = tensors[0] if len(tensors) == len(names) else torch.zeros(0)
    if boxes.dim() != 2 or boxes.shape[1] not in (4, 6) or any(part.shape != boxes.shape[:1] for part in tensors[1:]):
        raise InputError(
            "metric.boxes_malformed",
            f"metric map: a sample has {described(boxes_of_sample)}, expected boxes [n, 4] or [n, 6] and "
            f"{', '.join(names[1:])} [n]",
        )
    if boxes.shape[1] == 4:  # of the plane: as thick as all others
        low, high = boxes[:, :2], boxes[:, 2:]
        edge = torch.zeros(len(boxes), 1, dtype=torch.float64)
        boxes = torch.cat([low, edge, high, edge + 1], dim=1)
    scores = torch.zeros(len(boxes), dtype=torch.float64) if is_truth else tensors[2]
    facts = [torch.full_like(scores, number) for number in (minibatch, sample, is_truth)]
    return torch.cat([torch.stack([*facts, tensors[1], scores], dim=1), boxes], dim=1)


def _overlaps(given: Tensor, wanted: Tensor) -> Tensor:
    """Return intersection over union, [n, m], of boxes [n, 6] and [m, 6]."""
    low = torch.maximum(given[:, None, :3], wanted[None, :, :3])
    high = torch.minimum(given[:, None, 3:], wanted[None, :, 3:])
    both = (high - low).clamp(min=0).prod(dim=2)
    volumes = [(boxes[:, 3:] - boxes[:, :3]).clamp(min=0).prod(dim=1) for boxes in (given, wanted)]
    return both / (volumes[0][:, None] + volumes[1][None] - both).clamp(min=torch.finfo(torch.float64).tiny)


def _matched(overlaps: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Return whether each given box, best first, meets a wanted box that none before it took: float64 [n, thresholds].

    It takes the one that it overlaps most.
    """
    hits = torch.zeros(len(overlaps), len(thresholds), dtype=torch.float64)
    for k, least in enumerate(thresholds):
        free = overlaps.clone()
        for row in range(len(free)):
            if free.shape[1] and float(free[row].max()) >= least:
                hits[row, k] = 1.0
                free[:, int(free[row].argmax())] = -1.0
    return hits


def _at_recalls(recall: Tensor, precision: Tensor, points: Tensor) -> Tensor:
    """Return the mean precision over recalls: at each the first that reaches it, 0 beyond the last."""
    places = torch.searchsorted(recall.contiguous(), points)
    return torch.cat([precision, precision.new_zeros(1)])[places].mean()
