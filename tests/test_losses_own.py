"""Losses by name, of one's own and of the network's own; several heads; what must not be returned."""

from collections import namedtuple

import pytest
import torch
from coded import raises
from torch import nn

from sparsepipe.data import IGNORED
from sparsepipe.networks.losses import LOSSES, CrossEntropy, Loss, Segmentation, Tally, open_loss

FACTS = {"num_classes": 8, "image_size": 32}
OWN = """
import torch

def mean(output, target):
    return (output - target).square().mean()

def told(output, target, weight=1.0):
    off = (output - target).abs()
    return weight * off.mean(), {"worst": off.max(), "counted": off.numel(), "correct": (off < 0.5).sum()}

def rows(output, target):
    return (output - target).square()

def whole(output, target):
    return (output > target).sum()

def cut_off(output, target):
    return (output - target).detach().mean()

def number(output, target):
    return 0.5

def listed(output, target):
    return output.mean(), [1]

def text(output, target):
    return output.mean(), {"name": "x"}

def taken(output, target):
    return output.mean(), {"loss": 1.0}

def below_zero(output, target):
    return output.mean(), {"counted": -1}

def endless(output, target):
    return output.mean(), {"iou": float("nan")}

def changing(output, target):
    return output.mean(), {f"size_{len(output)}": 1}

def wordy(output, target):
    return output.mean(), {str(i): i for i in range(17)}
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "losses_of_mine.py"
    path.write_text(OWN)

    def opened(name: str, **args) -> Loss:
        return open_loss(f"{path}:{name}", facts=FACTS, args=args)

    return opened


def test_a_loss_is_opened_by_name_with_facts_of_the_data() -> None:
    assert open_loss("classes", facts=FACTS) == CrossEntropy(8)
    assert open_loss("classes", facts=FACTS, args={"auxiliary": 0.3}) == CrossEntropy(8, 0.3)
    assert open_loss("voxels", facts=FACTS) == Segmentation(8)
    assert open_loss("tokens", facts={}, args={"label_smoothing": 0}).label_smoothing == 0
    assert list(LOSSES) == ["classes", "voxels", "pixels", "tokens", "masked-words", "output"]


def test_facts_that_a_loss_does_not_ask_for_are_not_looked_up() -> None:
    """A vocabulary's size may cost the reading of a whole text."""

    class Dear(dict):
        def __getitem__(self, name: str) -> int:
            assert name == "num_classes"
            return 8

    assert open_loss("classes", facts=Dear(num_classes=None, vocabulary_size=None)) == CrossEntropy(8)


@pytest.mark.parametrize(
    ("name", "facts", "args", "error"),
    [
        ("crossentropy", FACTS, {}, ("loss.unknown", "crossentropy", "classes, voxels")),
        ("classes", {}, {}, ("loss.fact_missing", "classes", "num_classes")),
        (
            "tokens",
            FACTS,
            {"smoothing": 0.1},
            ("loss.setting_unknown", "tokens", "smoothing", "it has label_smoothing"),
        ),
        ("output", FACTS, {"weight": 1}, ("loss.setting_unknown", "output", "weight", "num_classes")),
        ("tokens", FACTS, {"label_smoothing": 1}, ("loss.label_smoothing_malformed", "1")),
        ("classes", FACTS, {"auxiliary": "much"}, ("loss.auxiliary_malformed", "much")),
        ("classes", FACTS, {"num_classes": "8"}, ("loss.num_classes_malformed", "8")),
        ("gone.py:loss", FACTS, {}, ("function.no_file", "gone.py")),
        ("no_such_package.losses:loss", FACTS, {}, ("function.not_importable",)),
    ],
)
def test_what_cannot_be_opened(name, facts, args, error) -> None:
    with raises(*error):
        open_loss(name, facts=facts, args=args)


def test_further_heads_count_for_less() -> None:
    torch.manual_seed(0)
    heads = namedtuple("InceptionOutputs", "logits aux_logits")(*torch.randn(2, 4, 8, requires_grad=True))
    labels = torch.tensor([0, 1, IGNORED, 3])
    main, side = (nn.functional.cross_entropy(head, labels, ignore_index=IGNORED) for head in heads)
    loss, outcome = CrossEntropy(8)(heads, labels, samples=4, detailed=True)
    assert loss.item() == pytest.approx((main + 0.4 * side).item()) == outcome.loss
    assert outcome.correct == int((heads.logits.argmax(1) == labels).sum())
    assert outcome.details is not None
    less, _ = CrossEntropy(8, auxiliary=0.3)(
        {"aux1": heads[1], "logits": heads[0], "features": None}, labels, samples=4
    )
    assert less.item() == pytest.approx((main + 0.3 * side).item())
    only, _ = CrossEntropy(8)((heads[0], None), labels, samples=4)  # as torchvision's in eval mode
    assert torch.equal(only, main)


@pytest.mark.parametrize(
    ("output", "target", "error"),
    [
        (torch.zeros(4, 5), torch.zeros(4).long(), ("loss.class_count", "float32 [4, 5]", "8 classes")),
        (torch.zeros(4, 8, 3), torch.zeros(4).long(), ("loss.class_count", "float32 [4, 8, 3]", "8 classes")),
        (torch.zeros(4, 8), torch.zeros(4, 8), ("loss.target_malformed", "float32 [4, 8]")),
        (torch.zeros(4, 8), torch.zeros(4, 1).long(), ("loss.shapes_differ", "float32 [4, 8]", "int64 [4, 1]")),
        (torch.zeros(4, 8), None, ("loss.target_malformed", "None")),
        (torch.zeros(4, 8), torch.tensor([0, 7, IGNORED, 255]), ("loss.class_count", "255", "8 outputs")),
        (torch.zeros(2, 8, 3), torch.full((2, 3), -1), ("loss.class_count", "-1", "8 outputs")),
        ((torch.zeros(4, 8), torch.zeros(4, 9)), torch.zeros(4).long(), ("loss.heads_differ", "float32 [4, 9]")),
        ("cat", torch.zeros(4).long(), ("loss.output_malformed", "a str")),
        ({}, torch.zeros(4).long(), ("loss.output_malformed", "{}")),
    ],
)
def test_outputs_that_do_not_fit_the_classes(output, target, error) -> None:
    with raises(*error):
        open_loss("classes", facts=FACTS)(output, target, samples=4)


def test_voxels_are_told_among_their_classes_alone() -> None:
    with raises("loss.class_count", "3 classes"):
        Segmentation(3)(torch.zeros(4, 5), torch.zeros(4).long(), samples=1)


def test_a_loss_of_ones_own_is_trained_on_and_reported(own) -> None:
    output, target = torch.tensor([[0.0, 1.0], [2.0, 3.0]], requires_grad=True), torch.tensor([[0.0, 2.0], [2.2, 3.0]])
    loss, outcome = own("mean")(output, target, samples=2)
    assert loss.item() == pytest.approx(1.04 / 4)
    assert (outcome.samples, outcome.counted, outcome.correct) == (2, 2, 0)
    loss.backward()
    assert output.grad[0, 1] == pytest.approx(-0.5)

    mine = own("told", weight=2.0)
    tally = Tally(mine)
    tally.add(mine(output, target, samples=2, detailed=True)[1])
    tally.add(mine(output[:1, 1:], target[:1, 1:], samples=1, detailed=True)[1])
    # Means over all five numbers that were counted, four of the first batch and one of the second.
    expected = {"loss": 2 * (1.2 + 1.0) / 5, "worst": (4 * 1.0 + 1.0) / 5, "accuracy": 3 / 5, "samples": 3}
    expected["counted"] = 5
    assert tally.report() == pytest.approx(expected)


def test_ranks_that_see_no_sample_add_up_all_the_same(own) -> None:
    mine = own("told")
    seen, unseen = Tally(mine), Tally(own("told"))
    seen.add(mine(torch.ones(2, requires_grad=True), torch.zeros(2), samples=2, detailed=True)[1])
    seen.values += unseen.values  # as an all-reduce does
    assert seen.report()["worst"] == 1.0


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("rows", ("loss.not_a_scalar", "losses_of_mine.py:rows returns", "float32 [3]")),
        ("whole", ("loss.not_floating", "int64")),
        ("cut_off", ("loss.no_gradient",)),
        ("number", ("loss.not_a_scalar", "a float")),
        ("listed", ("loss.numbers_malformed",)),
        ("text", ("loss.number_malformed", "{name: a str}")),
        ("taken", ("loss.name_reserved", "loss")),
        ("below_zero", ("loss.number_not_finite", "counted", "-1.0")),
        ("endless", ("loss.number_not_finite", "iou", "nan")),
        ("wordy", ("loss.too_many_numbers", "17", "16")),
    ],
)
def test_what_a_loss_must_not_return(own, name, error) -> None:
    with raises(*error):
        own(name)(torch.ones(3, requires_grad=True), torch.zeros(3), samples=3)


def test_a_loss_that_raises_is_told_with_what_it_was_given(own) -> None:
    with raises("loss.raises", "mean", "output float32 [3], target int64 [2]", kind="RuntimeError") as told:
        own("mean")(torch.ones(3, requires_grad=True), torch.zeros(2).long(), samples=3)
    assert "\n" not in str(told.value)
    with raises("loss.raises", "mean", "unexpected keyword argument 'power'", "power", kind="TypeError"):
        own("mean", power=3)(torch.ones(3, requires_grad=True), torch.zeros(3), samples=3)
    with raises("function.missing", "it has below_zero", name="median"):
        own("median")


def test_a_loss_reports_the_same_names_always(own) -> None:
    changing = own("changing")
    changing(torch.ones(3, requires_grad=True), None, samples=3)
    with raises("loss.names_changed", "size_2", before="size_3"):
        changing(torch.ones(2, requires_grad=True), None, samples=2)


def test_the_last_layer_may_compute_the_loss() -> None:
    value, loss = torch.tensor(2.0, requires_grad=True), open_loss("output", facts={})
    for output in (value, (value, torch.zeros(3)), [value], {"logits": torch.zeros(3), "loss": value}):
        found, outcome = loss(output, None, samples=4)
        assert found is value and (outcome.loss, outcome.counted) == (2.0, 4)
    tally = Tally(loss)
    tally.add(outcome)
    assert tally.report() == {"loss": 2.0, "samples": 4, "counted": 4}  # nothing is known of what is right
    with torch.no_grad():
        assert loss(value * 2, None, samples=4)[1].loss == 4.0  # as a validation does


@pytest.mark.parametrize(
    ("output", "error"),
    [
        ({"logits": torch.zeros(3)}, ("loss.output_malformed", "{logits: float32 [3]}")),
        ((), ("loss.not_a_scalar",)),
        (torch.zeros(4, 8), ("loss.not_a_scalar", "float32 [4, 8]")),
        ("loss", ("loss.not_a_scalar", "a str")),
        (torch.tensor(1.0), ("loss.no_gradient",)),
    ],
)
def test_an_output_that_is_no_loss(output, error) -> None:
    with raises(*error):
        open_loss("output", facts={})(output, None, samples=4)


def test_transformers_models_give_their_loss_themselves() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes, intermediate_size=8))
    words = torch.randint(0, 20, (2, 5))
    given = model(input_ids=words, labels=words)
    assert open_loss("output", facts={})(given, None, samples=2)[0] is given.loss
    with raises("loss.output_malformed"):
        open_loss("output", facts={})(model(input_ids=words), None, samples=2)
