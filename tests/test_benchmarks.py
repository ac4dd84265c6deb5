"""Benchmarks: what they share, their commands, and that a network of images is fed images by every competitor."""

import json
import runpy
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.nn.functional as functional
from coded import mentions

from scripts.bench.document import STDOUT, keep, tell
from scripts.bench.hosts import report as hosts_report
from scripts.bench.hosts import rounds as hosts_rounds
from scripts.bench.replication import accuracy
from scripts.bench.rounds import quartiles, ratios, turns
from scripts.bench.runtime.cases import CASES, Repeated
from scripts.bench.runtime.images import ImageBatch, of_images
from scripts.bench.runtime.made_examples import pictures
from scripts.bench.runtime.module_cases import ModuleCase
from scripts.bench.runtime.report import table
from scripts.bench.runtime.rounds import COMPETITORS, summary
from scripts.bench.runtime.table_cases import TableCase
from scripts.bench.runtime.torch_stages import targets, torch_stage
from sparsepipe import CostSample, Layer, LayerCost, LayerGraph, Profile
from sparsepipe.data import PointBatch
from sparsepipe.engines import Subnetwork, engine
from sparsepipe.networks import network
from sparsepipe.networks.losses import open_loss
from sparsepipe.profiling.measure import profile
from sparsepipe.runtime.config import RunConfig
from sparsepipe.values.plan import Plan, Stage
from sparsepipe.values.replication import parse_rule

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
IMAGES = TableCase("vgg16", 2, images=True)


def as_cloud(batch: ImageBatch) -> PointBatch:
    """Every pixel a voxel of the plane, in the order of the rows."""
    size, channels, height, width = batch.images.shape
    axes = (torch.arange(size), torch.arange(height), torch.arange(width))
    coordinates = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).view(-1, 3).int()
    return PointBatch(coordinates, batch.images.permute(0, 2, 3, 1).reshape(-1, channels), batch.labels)


def gradients(subnetwork, inputs, labels):
    last = subnetwork.table[-1].id
    outputs = subnetwork({"input": inputs}, minibatch=0, keep=(last,))[last]
    return outputs, torch.autograd.grad(functional.cross_entropy(outputs, labels), list(subnetwork.parameters()))


def test_a_network_of_images_is_the_one_that_lays_clouds_out_without_that_layer(tmp_path):
    """Same weights, same pixels: the same outputs and gradients, with no cloud on the way."""
    batch = IMAGES.minibatches(tmp_path)[0]
    assert batch.images.shape == (2, 3, 32, 32) and len(batch) == 2 and batch.size == 2 * 32 * 32
    of_grid = network("vgg16", num_classes=10, in_channels=3)
    assert [row.id for row in IMAGES.network().rows] == [row.id for row in of_grid.rows if row.kind != "dense_grid"]
    native = engine("native")
    theirs = gradients(Subnetwork(of_grid, native), native.tensor(as_cloud(batch)), batch.labels)
    ours = IMAGES.chosen_engine()
    found = gradients(Subnetwork(IMAGES.network(), ours), ours.tensor(batch), batch.labels)
    torch.testing.assert_close(found, theirs, rtol=1e-5, atol=1e-7)


def test_a_network_of_clouds_has_no_grid_to_leave_out():
    with pytest.raises(ValueError, match="minkvgg11bn-narrow.*dense_grid"):
        of_images(network("minkvgg11bn-narrow", num_classes=10))


def test_every_case_has_its_own_kind_of_minibatch(tmp_path):
    for name, case in CASES.items():
        if isinstance(case, TableCase):
            assert case.images == (case.model == "vgg16"), name
        else:
            assert [len(batch) for batch in replace(case, batch_size=3).minibatches(tmp_path)] == [3] * 8, name
    dataset = Repeated(IMAGES, IMAGES.minibatches(tmp_path), 20)
    assert len(dataset) == 40 and dataset.facts["in_channels"] == 3
    assert dataset.batch([18, 19]) is dataset.pick(9) is dataset.pick(1)  # eight of them, again and again
    assert dataset.labels[18:20] == dataset.pick(9).labels.tolist()


def test_images_are_profiled_and_run_as_the_runtime_takes_them(tmp_path):
    """A stage of the runtime gets an ImageBatch and sends on what the next one takes: a packet without coordinates."""
    from sparsepipe.runtime.stages.network_stage import NetworkStage
    from sparsepipe.runtime.training_state.weights import Version

    small = of_images(network("vgg16", num_classes=10, in_channels=3))
    batch = IMAGES.minibatches(tmp_path)[0]
    found = profile(small, [batch], IMAGES.chosen_engine(), warmup=0, repeats=1)
    assert found.sizes == (2048,) and found.size() == 2048
    ids = tuple(row.id for row in small.rows)
    plan = Plan((Stage(ids[:9], (0,)), Stage(ids[9:], (1,))))
    config = RunConfig("vgg16", "memory", batch_size=2)
    runners = [
        NetworkStage(small, IMAGES.chosen_engine(), plan, k, config=config, device=torch.device("cpu")) for k in (0, 1)
    ]
    versions = [Version(0, dict(runner.module.named_parameters())) for runner in runners]
    flight, outputs = runners[0].forward(batch, versions[0], 0)
    packet, _, _ = runners[0].pack_outputs(outputs, 0, flight.size)
    assert packet.coordinate_sets == () and packet.size == 2048
    _, outputs = runners[1].forward(packet, versions[1], 0)
    loss, _ = runners[1].loss(outputs, batch.labels, samples=2)
    assert torch.isfinite(loss)


SMALL = {
    "resnet50-32": ModuleCase("resnet18-32", 4, pictures, "classes", "samples", {"num_classes": 10, "image_size": 16}),
    "gnmt-small": replace(CASES["gnmt-small"], batch_size=4, facts={"vocabulary_size": 50, "sequence_length": 7}),
    "bert-small": replace(CASES["bert-small"], batch_size=4, facts={"vocabulary_size": 60, "sequence_length": 12}),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_module_is_the_same_in_one_piece_in_torchs_two_stages_and_in_ours(name, tmp_path):
    """Evaluating, so that nothing is dropped: one loss; and one gradient, that of weights of both stages added up."""
    case = SMALL[name]
    batch, network = case.minibatches(tmp_path)[0], case.network()
    whole = case.whole().eval()
    expected = whole(batch, 0)
    expected.backward()
    theirs = {key: weight.grad for key, weight in whole.inner.named_parameters()}

    loss, _ = open_loss(case.loss_name, facts=case.facts)(
        whole.inner(**batch.inputs) if isinstance(batch.inputs, dict) else whole.inner(batch.inputs),
        batch.target,
        samples=len(batch),
    )
    torch.testing.assert_close(loss, expected)
    cuts = (2, len(network.rows) // 2, len(network.rows) - 2)
    for cut in cuts:
        first, last = (torch_stage(case, network, cut, rank) for rank in (0, 1))
        (args, named), (_, more) = first.given([batch]), last.given([batch])
        crossing = first.module.eval()(*args, **named)
        assert all(tensor.is_contiguous() for tensor in crossing)
        received = [tensor.detach().requires_grad_() for tensor in crossing]
        found = last.loss(last.module.eval()(*received, **more), targets(case, [batch]))
        torch.testing.assert_close(found, expected)
        back = torch.autograd.grad(found, received, retain_graph=True)
        assert all(gradient.is_contiguous() for gradient in back)
        found = last.loss(last.module.eval()(*crossing, **more), targets(case, [batch]))
        found.backward()
        added: dict[str, torch.Tensor] = {}
        for stage in (first, last):
            for key, weight in stage.module.inner.named_parameters():
                added[key] = added[key] + weight.grad if key in added else weight.grad
        torch.testing.assert_close(added, theirs, rtol=1e-4, atol=1e-6)
        tied = name == "bert-small" and cut != cuts[-1]  # its words' vectors are used at both ends, not behind them
        assert len(first.shared) == len(last.shared) == tied


def test_competitors_take_turns_and_the_first_round_only_warms_them_up():
    order: list[str] = []
    found = turns(2, {"a": lambda: order.append("a") or len(order), "b": lambda: order.append("b") or len(order)})
    assert order == ["a", "b"] * 3
    assert found == {"a": [3, 5], "b": [4, 6]}


def test_a_ratio_is_of_one_round_and_its_quartiles_lie_within_what_was_measured():
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert ratios([], [1.0]) == ratios([1.0], []) == []
    assert quartiles([5.0]) == (5.0, 5.0, 5.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)
    low, middle, high = quartiles([1.0, 3.0])
    assert 1.0 <= low < middle == 2.0 < high <= 3.0


def test_a_document_goes_to_its_file_beside_the_table_or_takes_the_tables_place(tmp_path, capsys):
    path = tmp_path / "found.json"
    tell({"a": 1}, path, "the table")
    assert json.loads(path.read_text()) == {"a": 1} and capsys.readouterr().out == "the table\n"
    tell({"a": 1}, STDOUT, "the table")
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    tell({"a": 1}, None, "the table")
    assert capsys.readouterr().out == "the table\n"
    keep({"a": 2}, None)
    assert not Path("-").exists()


FILES = sorted(path.relative_to(SCRIPTS.parent).with_suffix("") for path in (SCRIPTS / "bench").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_file_of_a_benchmark_imports_what_is_there(path):
    import_module(".".join(path.parts))


@pytest.mark.parametrize("name", ["runtime", "engines", "planner", "widgets", "hosts", "replication"])
def test_every_benchmark_is_a_thin_command_before_a_folder(name, monkeypatch, capsys):
    """One starts as a process of its own; in the others all that would be done again is the import of torch."""
    command = SCRIPTS / f"bench_{name}.py"
    assert len(command.read_text().splitlines()) < 20
    if name == "runtime":
        done = subprocess.run([sys.executable, str(command), "--help"], capture_output=True, text=True, check=True)
        told = done.stdout
    else:
        monkeypatch.setattr("sys.argv", [str(command), "--help"])
        monkeypatch.setattr("sys.path", list(sys.path))
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(command), run_name="__main__")
        assert not ended.value.code
        told = capsys.readouterr().out
    assert "--json [FILE]" in told


def test_under_every_rule_a_sample_moves_the_mean_of_all_weights_as_far():
    """A constant gradient: a server adds up four changes, an outer optimizer steps with what one step changed."""
    average, server, outer = (accuracy.rate_of(parse_rule(rule), 4) for rule in ("ad-psgd", "wsp:scale=1", "diloco"))
    assert accuracy.rate_of(parse_rule("all-reduce"), 4) == average == accuracy.rate_of(parse_rule("wsp"), 4)
    assert 4 * server == pytest.approx(average)
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    rule = parse_rule("diloco")
    optimizer = torch.optim.SGD([weight], rule.outer_rate, momentum=rule.momentum, nesterov=rule.nesterov)
    before = 0.0
    for _ in range(300):
        before, weight.grad = weight.item(), torch.full_like(weight, outer)
        optimizer.step()
    assert before - weight.item() == pytest.approx(average)


def test_a_run_is_flat_once_its_latest_epochs_reach_no_more():
    rising = [0.1, 0.3, 0.5, 0.7, 0.8]
    assert not accuracy.is_flat(rising) and not accuracy.is_flat([0.9] * accuracy.PATIENCE)
    assert accuracy.is_flat([*rising, *[0.8 + accuracy.FLAT] * accuracy.PATIENCE])
    assert not accuracy.is_flat([*rising, *[0.8] * (accuracy.PATIENCE - 1), 0.82])


def test_the_table_has_every_competitor_and_the_ratios_of_neighbours():
    rates = {name: [10.0 * (k + 1), 20.0 * (k + 1)] for k, name in enumerate(COMPETITORS) if name != "single"}
    notes = {"load": [0.5, 0.5], "held": [0.9, 1.0], "peak": [1.1, 1.2], "layers_over_whole": 0.99}
    found = summary({**rates, "single": []}, notes)
    assert found["pipeline"] == 45 and found["single"] is None
    assert (
        found["pipeline/limit"] == {"median": 3, "low": 3, "high": 3}
        and found["flush/torch_1f1b_larger"]["low"] == 8 / 7
    )
    lines = table({"vgg16": found}).splitlines()
    assert lines[1].split() == ["limit", "15.0", "3.000", "[3.000,", "3.000]"]
    assert [line.split()[0] for line in lines[1:10]] == list(COMPETITORS)
    assert mentions(lines[10], "0.5", "0.5", "0.90", "1.00", "1.10", "1.20")


def test_shares_of_a_link_are_of_what_the_busier_host_sent_and_ratios_of_neighbours():
    result = {"limit": [40.0, 44.0], "predicted": [32.0, 33.0], "pipeline": [32.0, 30.0], "ddp": [8.0, 10.0]}
    sent = {"pipeline": [4e6, 4e6], "ddp": [64e6, 64e6]}
    found = hosts_rounds.summary(result, sent, batch_size=16, rate=hosts_rounds.bits_a_second("400mbit"))
    assert found["pipeline"] == 31 and found["pipeline/ddp"] == {"median": 3.5, "low": 3.25, "high": 3.75}
    assert found["pipeline_link"] == {"megabytes": 4.0, "share": pytest.approx(4e6 * 8 * 31 / 16 / 400e6)}
    assert found["ddp_link"]["share"] == pytest.approx(64e6 * 8 * 9 / 16 / 400e6)
    lines = hosts_report.table({"vgg16": {"400mbit": {**found, "load": [0.5, 0.5]}}}).splitlines()
    assert lines[0].startswith("vgg16 over 400mbit") and [line.split()[0] for line in lines[1:5]] == list(result)
    assert lines[4].split() == ["ddp", "9.0", "3.500", "[3.250,", "3.750]", "64.00", "0.72"]


def test_what_the_busier_host_is_predicted_to_send_is_what_sockets_carry():
    """Stages on hosts 0, 1 and 0 again: outputs of 4 and 2 bytes go there and back, gradients of 3 and 1 meet them."""
    coded = [(4.0, 3.0), (2.0, 1.0), (9.0, 9.0)]
    costs = tuple(LayerCost((CostSample(1, 1, 1, 10, coded_output_bytes=o, coded_gradient_bytes=g),)) for o, g in coded)
    graph = LayerGraph.chain([Layer(name) for name in "abc"])
    plan = Plan(tuple(Stage((name,), (rank,)) for name, rank in zip("abc", (0, 1, 0), strict=True)))
    assert hosts_rounds.expected_bytes(plan, Profile(graph, {"cpu": costs})) == max(4 + 1, 3 + 2)
