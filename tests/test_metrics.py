"""Metrics that are no means: equal to scikit-learn's and to closed forms, and the same however rows are shared out."""

from threading import Barrier, Thread

import numpy as np
import pytest
import torch
from coded import raises
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe.data import IGNORED
from sparsepipe.networks.losses.metrics import Measures

NAMES = ("f1", "mean_iou", "auc", "confusion")


def _rows(seed: int, count: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores, some of them equal, and labels, some of them unknown."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 4, (count, classes), generator=draw).float()
    labels = torch.randint(0, max(2, classes), (count,), generator=draw)
    labels[torch.rand(count, generator=draw) < 0.1] = IGNORED
    return scores, labels


def _of_ranks(names, minibatches, ranks: int) -> Measures:
    """The metrics of minibatches shared out to ranks in turn: threads, whose sums meet as those of processes do."""
    each, meet, parts = [Measures(names) for _ in range(ranks)], Barrier(ranks), {}
    for m, (output, target) in enumerate(minibatches):
        each[m % ranks].add(m, output, target)

    def work(rank: int) -> None:
        def add_up(values: torch.Tensor) -> torch.Tensor:
            parts[rank] = values.clone()
            meet.wait()
            total = sum(parts[k] for k in range(ranks))
            meet.wait()
            return values.copy_(total)

        each[rank].gather(rank=rank, world_size=ranks, add_up=add_up)

    threads = [Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one.report() == each[0].report() and one.tables() == each[0].tables() for one in each)
    return each[0]


def _cut(scores: torch.Tensor, labels: torch.Tensor, size: int = 7):
    return list(zip(scores.split(size), labels.split(size), strict=True))


@pytest.fixture(scope="session")
def oracle():
    """scikit-learn's metrics, which whoever only collects tests need not wait for."""
    from sklearn import metrics

    return metrics


@given(seed=st.integers(0, 10**6), count=st.integers(1, 60), classes=st.integers(2, 5), ranks=st.integers(1, 4))
def test_metrics_equal_scikit_learns_however_rows_are_shared_out(oracle, seed, count, classes, ranks):
    scores, labels = _rows(seed, count, classes)
    found = _of_ranks(NAMES, _cut(scores, labels), ranks)
    alone = _of_ranks(NAMES, [(scores, labels)], 1)
    assert found.report() == alone.report() and found.tables() == alone.tables(), "to the bit"
    known = labels != IGNORED
    truth, chosen = labels[known].numpy(), scores[known].argmax(dim=1).numpy()
    report = found.report()
    if not len(truth):
        return
    every = list(range(classes))
    assert found.tables()["confusion"] == oracle.confusion_matrix(truth, chosen, labels=every).tolist()
    for name, function in (("f1", oracle.f1_score), ("precision", oracle.precision_score)):
        assert report[name] == pytest.approx(function(truth, chosen, average="macro", zero_division=0))
    assert report["mean_iou"] == pytest.approx(oracle.jaccard_score(truth, chosen, average="macro"))
    shares = scores[known].double().softmax(dim=1).numpy()
    areas = [oracle.roc_auc_score(truth == k, shares[:, k]) for k in every if 0 < (truth == k).sum() < len(truth)]
    assert report["auc"] == (pytest.approx(np.mean(areas)) if areas else None)


def test_one_column_is_a_logit_and_images_have_classes_second(oracle):
    scores, labels = _rows(1, 40, 1)
    known, found = labels != IGNORED, _of_ranks(("f1", "auc"), [(scores[:, 0], labels)], 1).report()
    truth, row = labels[known].numpy(), scores[known, 0].numpy()
    assert found["f1"] == pytest.approx(oracle.f1_score(truth, row > 0))
    assert found["auc"] == pytest.approx(oracle.roc_auc_score(truth, row))
    scores, labels = _rows(2, 24, 3)
    image = scores.view(2, 3, 4, 3).permute(0, 3, 1, 2)
    as_image = _of_ranks(NAMES, [({"out": image}, labels.view(2, 3, 4))], 1)
    assert as_image.report() == _of_ranks(NAMES, [(scores, labels)], 1).report()


def _boxes(*rows, scored: bool = True):
    table = torch.tensor(rows, dtype=torch.float32).reshape(len(rows), -1)
    found = {"boxes": table[:, 2:], "labels": table[:, 0].long()}
    return found | ({"scores": table[:, 1]} if scored else {})


def test_average_precision_of_boxes_by_closed_forms():
    """A hit, a miss and a late hit: precisions 1 up to recall 1/2, then 2/3; one box overlaps by 0.6 alone."""
    truth = _boxes((1, 0, 0, 0, 10, 10), (1, 0, 20, 20, 30, 30), scored=False)
    given_boxes = _boxes((1, 0.9, 0, 0, 10, 10), (1, 0.8, 50, 50, 60, 60), (1, 0.7, 20, 20, 30, 30))
    perfect = _of_ranks(("map",), [([_boxes((1, 0.5, 0, 0, 10, 10), (1, 0.4, 20, 20, 30, 30))], [truth])], 1)
    assert perfect.report() == {"map": 1.0, "map_50": 1.0, "map_75": 1.0}
    found = _of_ranks(("map",), [([given_boxes], [truth])], 1).report()
    assert found["map"] == found["map_50"] == pytest.approx((51 * 1 + 50 * 2 / 3) / 101)
    loose = _boxes((2, 0.9, 0, 0, 10, 6))  # of 10 by 10: overlaps by 0.6, so at 0.5, 0.55 and 0.6
    one = _of_ranks(("map",), [([loose], [_boxes((2, 0, 0, 0, 10, 10), scored=False)])], 1).report()
    assert one["map_50"] == 1.0 and one["map_75"] == 0.0 and one["map"] in (0.2, 0.3)
    space = _of_ranks(
        ("map",), [([_boxes((3, 1, 0, 0, 0, 2, 2, 2))], [_boxes((3, 0, 0, 0, 0, 2, 2, 4), scored=False)])], 1
    ).report()
    assert (space["map_50"], space["map"]) == (1.0, 0.1), "half of a box in space"
    nothing = _of_ranks(
        ("map",), [([_boxes((1, 0.5, 0, 0, 1, 1))], [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0)}])], 1
    )
    assert nothing.report() == {"map": None, "map_50": None, "map_75": None}


def test_boxes_shared_out_to_ranks_have_the_precision_of_one_process():
    draw = torch.Generator().manual_seed(3)
    minibatches = []
    for _ in range(6):
        low = torch.rand(2, 5, 2, generator=draw) * 10
        whole = torch.cat([low, low + 2 + torch.rand(2, 5, 2, generator=draw)], dim=2)
        moved = whole + torch.randn(2, 5, 4, generator=draw) * 0.2
        labels = torch.randint(0, 2, (2, 5), generator=draw)
        scores = torch.randint(0, 4, (2, 5), generator=draw) / 4  # many are equal
        output = [{"boxes": moved[k], "labels": labels[k], "scores": scores[k]} for k in range(2)]
        minibatches.append((output, [{"boxes": whole[k], "labels": labels[k]} for k in range(2)]))
    alone = _of_ranks(("map",), minibatches, 1).report()
    assert 0 < alone["map"] < alone["map_50"] <= 1
    assert all(_of_ranks(("map",), minibatches, ranks).report() == alone for ranks in (2, 3, 5))


def test_a_function_of_ones_own_sees_the_whole_split(oracle, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        "def kappa(scores, labels):\n    from sklearn.metrics import cohen_kappa_score as k\n"
        "    return {'kappa': k(labels.numpy(), scores.argmax(1).numpy())}\n"
        "def bad(scores, labels):\n    raise KeyError('no')\n"
    )
    scores, labels = _rows(5, 50, 3)
    found = _of_ranks((f"{path}:kappa",), _cut(scores, labels), 3).report()
    known = labels != IGNORED
    assert found["kappa"] == pytest.approx(oracle.cohen_kappa_score(labels[known], scores[known].argmax(1)))
    with raises("metric.raises", kind="KeyError"):
        _of_ranks((f"{path}:bad",), _cut(scores, labels), 1)
    with raises("metric.output_malformed", name="f1"):
        Measures(["f1"]).add(0, torch.zeros(3, 2), torch.tensor([0, 1]))
    with raises("metric.boxes_malformed"):
        Measures(["map"]).add(0, [{"boxes": torch.zeros(1, 5)}], [{}])
