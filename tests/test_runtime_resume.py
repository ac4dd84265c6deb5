"""A run that stops and resumes, under the same plan or another, goes on as if it had never stopped; and validation."""

from collections import defaultdict
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as functional
from runtime_jobs import NORMED, PLAIN, Job, one_at_a_time, plan_of, run_jobs, same_training, settings, shapes
from torch.func import functional_call

from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Profile, Trace, data
from sparsepipe.data import make_shapes
from sparsepipe.data.shapes import FAMILIES
from sparsepipe.engines import Subnetwork, engine
from sparsepipe.networks import network
from sparsepipe.planning.simulator.simulation import Simulation
from sparsepipe.records import RunRecord
from sparsepipe.runtime.training_state.checkpoint import latest, load
from sparsepipe.values.schedule import Op, Program, compile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SEGMENTED = "minkunet14a-segmentation-narrow"
FLUSH = {"schedule": "1f1b-flush", "num_microbatches": 2}
CLOSE = {"rtol": 2e-4, "atol": 2e-5}
WAITS = {"timeout_seconds": 300}  # a rank that has no part in a run waits in the next for those that are still in it


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    clouds = shapes(folder)
    many = make_shapes(folder / "many", num_train=2, num_test=1, families=sorted(FAMILIES)[:7])

    def job(name, ranks, *, schedule=None, **changes):
        options = {key: changes.pop(key) for key in ("resume", "folder") if key in changes}
        return Job(name, plan_of(PLAIN, ranks, **(schedule or FLUSH)), settings(clouds, **WAITS, **changes), **options)

    stash = {"schedule": "1f1b"}
    half = {"precision": "float16", "loss_scale": 2.0**22}  # which overflows at first
    normed = settings(
        clouds, **WAITS, model=NORMED, voxel_size=0.04, num_points=384, batch_size=5, validate=True, epochs=2
    )
    small = {"compression": "int8"}
    jobs = [
        job("whole", [[0], [1]], epochs=2),
        job("other", [[0], [1]], epochs=1),
        job("other-2", [[0, 1], [2]], epochs=2, resume=True, folder="other"),
        job("laps", [[0], [1], [2]], epochs=1),
        job("laps-2", [[1], [0]] * 2, epochs=2, resume=True, folder="laps"),
        job("stash-whole", [[0], [1], [2]], schedule=stash, epochs=2),
        job("stash", [[0], [1], [2]], schedule=stash, epochs=1),
        job("stash-2", [[0], [1], [2]], schedule=stash, epochs=2, resume=True, folder="stash"),
        job("stash-3", [[0], [1], [2]], schedule=stash, epochs=2, resume=True, folder="stash"),
        job("half-whole", [[0], [1]], epochs=2, **half),
        job("half", [[0], [1]], epochs=1, **half, asynchronous_checkpoints=True),
        job("half-2", [[0], [1], [2]], epochs=2, **half, resume=True, folder="half"),
        job("beside", [[0], [1, 2]], epochs=2, asynchronous_checkpoints=True, keep_checkpoints=5),
        job("small-whole", [[0], [1, 2]], epochs=2, **small),
        job("small", [[0], [1, 2]], epochs=1, **small),
        job("small-2", [[0], [1, 2]], epochs=2, **small, validate=True, resume=True, folder="small"),
        job("adam-whole", [[0]], minibatches=4, optimizer="adam"),
        job("adam", [[0], [1]], minibatches=2, optimizer="adam"),
        job("adam-2", [[0], [1], [2]], minibatches=4, optimizer="adam", resume=True, folder="adam"),
        # 5 minibatches an epoch: stops within the second, and its position is kept.
        job("within", [[0], [1]], minibatches=7),
        job("within-2", [[0], [1], [2]], minibatches=9, resume=True, folder="within"),
        job("within-3", [[0], [1]], epochs=2, resume=True, folder="within"),
        Job("segmented", plan_of(SEGMENTED, [[0], [1]]), replace(normed, model=SEGMENTED, batch_size=4, epochs=1)),
        Job("seven", plan_of(PLAIN, [[0], [1]]), settings(many, **WAITS, validate=True)),
        Job("validated", plan_of(NORMED, [[0, 1], [2]], schedule="1f1b", shares={0: (2, 1)}), normed),
    ]
    results = run_jobs(folder, jobs, limit=500)
    return {job.name: (job, results[job.name]) for job in jobs}


def test_interleaved_stages_go_on_in_others_bit_for_bit(runs) -> None:
    """Three stages on three ranks, then four on two: each an epoch."""
    (_, whole), (_, resumed) = runs["whole"], runs["laps-2"]
    assert resumed.losses == whole.losses
    for kind in ("weight", "velocity"):
        for name, tensor in whole.tensors(kind).items():
            assert torch.equal(resumed.tensors(kind)[name], tensor), name
    stages = resumed.rows("summary")[0]["stages"]
    assert [stage["ranks"] for stage in stages] == [[1], [0]] * 2
    for lap in (stages[0::2], stages[1::2]):
        idle = {stage["bubble_fraction"] for stage in lap}
        assert sum(stage["busy_fraction"] for stage in lap) + idle.pop() == pytest.approx(1) and not idle


def test_moments_go_on_in_another_plan_bit_for_bit(runs) -> None:
    """Adam's on two stages, then on three: each weight's own mean, square and count of steps."""
    (_, whole), (_, resumed) = runs["adam-whole"], runs["adam-2"]
    assert resumed.losses == whole.losses
    for kind in ("weight", "mean", "square", "steps"):
        tensors = resumed.tensors(kind)
        assert tensors and tensors.keys() == whole.tensors("weight").keys()
        for name, tensor in whole.tensors(kind).items():
            assert torch.equal(tensors[name], tensor), (kind, name)


def test_stashed_versions_go_on_bit_for_bit(runs) -> None:
    assert runs["stash-2"][1].losses == runs["stash-whole"][1].losses


def test_the_loss_scale_goes_on_too(runs) -> None:
    """float16 on two stages, resumed on three, from a checkpoint written beside the training."""
    (_, whole), (_, resumed) = runs["half-whole"], runs["half-2"]
    assert resumed.losses == whole.losses
    overflows = [[row["minibatch"] for row in result.rows("overflow")] for result in (resumed, whole)]
    assert overflows[0] == overflows[1] != []
    scales = [latest(result.folder).manifest["loss_scale"] for result in (resumed, whole)]
    assert scales[0] == scales[1] and scales[0]["factor"] < 2**22


def test_what_8_bits_lost_ends_with_its_epoch_and_a_validation_has_no_part_in_it(runs) -> None:
    """What one minibatch lost is added to the next. A run that resumed had forgotten it, a validation added its own."""
    (_, whole), (_, exact) = runs["small-whole"], runs["whole"]
    assert whole.losses != exact.losses, "it is at work"
    same_training(runs["small-2"][1], whole)


def test_checkpoints_written_beside_the_training_are_those_of_their_moment(runs) -> None:
    """Each against the run that stood still for it: another schedule of writing, the same plan of training."""
    (_, beside), (_, whole) = runs["beside"], runs["whole"]
    folders = sorted((beside.folder / "checkpoints").glob("minibatch-*"))
    assert [folder.name[-2:] for folder in folders] == ["05", "10"]
    assert not list((beside.folder / "checkpoints").glob(".*"))
    last = load(folders[-1])
    tensors = last.read(list(last.manifest["layers"]))
    for key, tensor in whole.tensors("weight").items():
        torch.testing.assert_close(tensors[f"weight:{key}"], tensor, **CLOSE)
    first = load(folders[0])
    early = first.read(list(first.manifest["layers"]))
    assert any(not torch.equal(early[key], tensors[key]) for key in early), "not a later moment's"


def test_a_run_killed_after_its_last_checkpoint_still_sums_up(runs) -> None:
    """It had nothing left to train, and ended without a summary."""
    _, result = runs["stash-3"]
    assert [row["minibatches"] for row in result.rows("resume")] == [5, 10]
    (summary,) = result.rows("summary")
    assert summary["minibatches"] == 10 and summary["epochs"] == 2
    assert summary["train"] == result.rows("epoch")[-1]["train"]
    assert [stage["stage"] for stage in summary["stages"]] == [0, 1, 2]


def test_another_plan_goes_on_too(runs) -> None:
    """Two stages, then 2-1 with a replicated stage: each an epoch."""
    _, whole = runs["whole"]
    _, resumed = runs["other-2"]
    torch.testing.assert_close(torch.tensor(resumed.losses), torch.tensor(whole.losses), **CLOSE)
    assert [row["minibatches"] for row in resumed.rows("resume")] == [5]


def test_an_epochs_row_covers_the_epoch_wherever_the_run_was_resumed(runs) -> None:
    """Stopped after 2 and after 4 of its 5 minibatches: means and counts have the same bits as undisturbed."""
    (_, whole), (_, resumed) = runs["whole"], runs["within-3"]
    assert [row["minibatches"] for row in resumed.rows("resume")] == [7, 9]
    assert resumed.losses == whole.losses
    assert [row["train"] for row in resumed.rows("epoch")] == [row["train"] for row in whole.rows("epoch")]
    assert [row["minibatches"] for row in resumed.rows("epoch")] == [5, 10]
    counts = {"samples": 18, "counted": 18, "minibatches": 5}
    assert all({name: row["train"][name] for name in counts} == counts for row in resumed.rows("epoch"))
    summaries = [result.rows("summary")[-1] for result in (whole, resumed)]
    assert [summary["epochs"] for summary in summaries] == [2, 2]
    assert summaries[0]["train"] == summaries[1]["train"]


def _whole_network(job, result) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and their labels of the validation split, one minibatch after the other through the uncut network."""
    config = job.config
    task = "segmentation" if config.model == SEGMENTED else "classification"
    facts = {"voxel_size": config.voxel_size, "num_points": config.num_points, "seed": 0, "task": task}
    dataset = data.load(config.data, split="test", **facts)
    net, native = network(config.model, num_classes=len(dataset.classes)), engine("native")
    module = Subnetwork(net, native, seed=0).eval()
    tensors = result.tensors("weight") | result.tensors("buffer")
    rows, labels = [], []
    for batch in (dataset.batch(range(k, min(k + 4, len(dataset)))) for k in range(0, len(dataset), 4)):
        with torch.no_grad():
            out = functional_call(module, tensors, ({"input": native.tensor(batch)},), {"minibatch": 0})[
                net.rows[-1].id
            ]
        if task == "classification":
            rows.append(native.rows(out))
            labels.append(batch.labels)
        else:
            rows.append(native.features(out))
            places = zip(map(tuple, batch.coordinates.tolist()), batch.labels.tolist(), strict=True)
            known, own = dict(places), native.split({"out": out}).coordinate_sets[0].coordinates
            labels.append(torch.tensor([known[tuple(place)] for place in own.tolist()]))
    return torch.cat(rows), torch.cat(labels)


def test_validation_is_that_of_the_whole_network(runs) -> None:
    """Every sample of the split once, with the newest weights and the averaged running statistics."""
    job, result = runs["validated"]
    rows, labels = _whole_network(job, result)
    told = result.rows("epoch")[-1]["validation"]
    assert told["samples"] == 9
    assert told["loss"] == pytest.approx(functional.cross_entropy(rows, labels).item(), rel=1e-4)
    assert told["accuracy"] == pytest.approx(float((rows.argmax(1) == labels).float().mean()))


def test_a_class_among_the_first_five_of_seven_counts(runs) -> None:
    """Seven samples, in minibatches of four and three."""
    job, result = runs["seven"]
    rows, labels = _whole_network(job, result)
    places = (rows > rows.gather(1, labels[:, None])).sum(dim=1)  # how many classes come before a sample's own
    told = result.rows("epoch")[-1]["validation"]
    assert told["samples"] == len(labels) == 7
    assert told["top5_accuracy"] == pytest.approx(float((places < 5).float().mean()))
    assert told["accuracy"] == pytest.approx(float((places < 1).float().mean()))


def test_intersections_over_unions_are_those_of_all_voxels(runs) -> None:
    """Nine samples, in minibatches of four, four and one: summed over all of them first, not averaged over three."""
    job, result = runs["segmented"]
    rows, labels = _whole_network(job, result)
    found = rows.argmax(dim=1)
    occurring = [c for c in range(rows.shape[1]) if bool(((found == c) | (labels == c)).any())]
    shares = [float(((found == c) & (labels == c)).sum() / ((found == c) | (labels == c)).sum()) for c in occurring]
    told = result.rows("epoch")[-1]["validation"]
    assert told["samples"] == 9
    assert told["mean_iou"] == pytest.approx(sum(shares) / len(shares), rel=1e-4)
    assert told["accuracy"] == pytest.approx(float((found == labels).float().mean()), rel=1e-4)
    assert told["loss"] == pytest.approx(functional.cross_entropy(rows, labels).item(), rel=1e-4)


def test_the_record_says_what_it_came_to(runs) -> None:
    _, result = runs["validated"]
    (summary,) = result.rows("summary")
    epochs = result.rows("epoch")
    assert summary["minibatches"] == 8 and summary["epochs"] == len(epochs) == 2
    assert summary["validation"] == epochs[-1]["validation"] and summary["train"] == epochs[-1]["train"]
    assert summary["samples_per_second"] > 0 and summary["synthetic"] is True
    assert [stage["ranks"] for stage in summary["stages"]] == [[0, 1], [2]]
    for stage in summary["stages"]:
        assert 0 < stage["busy_fraction"] <= 1.001
        assert stage["busy_fraction"] + stage["bubble_fraction"] == pytest.approx(1)


def _simulated(program: Program) -> Trace:
    """What the simulator says of a program of minibatches of one size: passes and updates of like layers take time."""
    layers = tuple(Layer(row.id, "", 1.0) for row in network(PLAIN, num_classes=3).rows)
    costs = (LayerCost((CostSample(1, 1.0, 2.0, 1.0),)),) * len(layers)
    profile = Profile(LayerGraph.chain(layers), {"device": costs}, update_rates={"device": 1.0})
    cluster = Cluster.uniform(len(program.plan.ranks), device_type="device")
    spans = Simulation(program, profile, cluster, [1.0] * program.num_minibatches).run()
    return Trace(tuple(sorted(spans, key=lambda span: span.start)), "simulated")


def test_traces_tell_each_action_once_and_in_order(runs) -> None:
    """A run of two epochs, and the simulation: one Program says what each rank does, and what it needs for that."""
    job, result = runs["whole"]
    program = compile(job.plan, 5)
    kinds = {Op.FORWARD: "forward", Op.BACKWARD: "backward", Op.UPDATE: "update"}
    ran = RunRecord(result.folder).trace()
    for trace, epochs in ((ran, 2), (_simulated(program), 1)):
        moments = defaultdict(list)  # of each action, epoch by epoch
        for rank, todo in program.actions.items():
            spans = [span for span in trace.spans if span.rank == rank and span.kind in kinds.values()]
            assert [(s.kind, s.name) for s in spans] == epochs * [(kinds[action.op], str(action)) for action in todo]
            for span in one_at_a_time(replace(trace, spans=tuple(spans)), rank):
                moments[span.name].append(span)
        for action in (action for todo in program.actions.values() for action in todo):
            for source in program.inputs(action):
                pairs = zip(moments[str(source)], moments[str(action)], strict=True)
                assert all(before.end <= after.start + 2e-6 for before, after in pairs), f"{action} without {source}"
    one_at_a_time(ran, 1)
