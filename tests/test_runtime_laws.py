"""The law of the runtime: whatever the plan, training equals a plain loop over the whole network, same arithmetic.

The oracle cuts nothing: one graph of the whole network a minibatch, `torch.optim.SGD` on the layers of each stage, and
a list of the weights after every update. That minibatch m met the weights of update v in stage s is read off the action
list alone: v = updates before its forward.

Only MinkowskiEngine's tensors are taken apart and put together between stages, still in one graph: it then orders
voxels anew and adds up in another order, and a last bit that differs now and then puts a value on the other side of a
ReLU, which no tolerance of sums covers.
"""

import json
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as functional
from coded import raises
from processes import ENOUGH
from runtime_jobs import NORMED, PLAIN, UNET, Job, one_at_a_time, plan_of, run_jobs, settings, shapes
from torch.func import functional_call

from sparsepipe import data
from sparsepipe.engines import Subnetwork, engine
from sparsepipe.launching import launch
from sparsepipe.networks import network
from sparsepipe.records import RunRecord
from sparsepipe.runtime import RunConfig
from sparsepipe.values.plan import Plan
from sparsepipe.values.schedule import Op, compile

pytestmark = pytest.mark.timeout(600)

CLOSE = {"rtol": 2e-4, "atol": 2e-5}  # sums in another order: over replicas, or over a step at once


class Oracle:
    """Training as the plan means it, in one process, without stages."""

    def __init__(self, plan: Plan, config: RunConfig) -> None:
        self.plan, self.config = plan, config
        self.per_voxel = "segmentation" in config.model
        facts = {"voxel_size": config.voxel_size, "num_points": config.num_points, "seed": config.seed}
        facts["task"] = "segmentation" if self.per_voxel else "classification"
        self.dataset = data.load(config.data, split="train", **facts)
        self.net = network(config.model, num_classes=len(self.dataset.classes))
        self.engine = engine(config.engine)
        self.module = Subnetwork(self.net, self.engine, seed=config.seed)
        self.parts = [self.module]
        if config.engine == "minkowski":
            self.parts = [Subnetwork(self.net, self.engine, stage.layers, seed=config.seed) for stage in plan.stages]
        self.weights = [self._of_stage(k) for k in range(len(plan.stages))]  # the newest, of each stage
        self.optimizers = [_optimizer(weights.values(), config) for weights in self.weights]
        # Running statistics of each replica of each stage: those of its own minibatches.
        self.buffers: dict[int, dict[str, torch.Tensor]] = {rank: {} for rank in plan.ranks}
        for stage in plan.stages:
            for name, buffer in self.module.named_buffers():
                if name.split(".")[0] in stage.layers:
                    for rank in stage.ranks:
                        self.buffers[rank][name] = deepcopy(buffer)
        self.losses: list[float] = []

    @property
    def composition(self) -> dict:
        return json.loads(self.config.composition or "{}")

    def _order(self, epoch: int):
        config, given = self.config, {"seed": self.config.seed, "epoch": epoch}
        if not config.is_composed:
            return data.minibatches(len(self.dataset), batch_size=config.batch_size, **given)
        size = {} if "budget" in self.composition else {"batch_size": config.batch_size}
        sizes = self.dataset.voxel_counts()
        return data.compose(sizes, order=config.order, last=config.last_minibatch, **given, **size, **self.composition)

    def _of_stage(self, k: int) -> dict[str, torch.Tensor]:
        layers = set(self.plan.stages[k].layers)
        return {
            name: weight.detach().clone()
            for name, weight in self.module.named_parameters()
            if name.split(".")[0] in layers
        }

    def train(self) -> "Oracle":
        for epoch in range(self.config.epochs):
            self._train_epoch(epoch)
            self._average_buffers()
        return self

    def _train_epoch(self, epoch: int) -> None:
        config, plan = self.config, self.plan
        order = self._order(epoch)
        program = compile(plan, len(order))
        lists = program.actions
        versions = [[_copy(weights)] for weights in self.weights]
        sums: list[dict[int, list]] = [{} for _ in plan.stages]
        for m, indices in enumerate(order):
            used = [versions[s][_version(lists, plan, s, m)] for s in range(len(plan.stages))]
            last = len(plan.stages) - 1
            of_step = [order[k] for k in program.members(last, _step_of(program, last, m))]
            loss, gradients = self._gradients(indices, used, m, epoch * len(order) + m, of_step)
            self.losses.append(loss)
            ready = []
            for s in range(len(plan.stages)):
                step = _step_of(program, s, m)
                members = program.members(s, step)
                # A step that flushes is the mean over its samples, a round the mean over its minibatches.
                total = sum(len(order[k]) for k in members)
                factor = len(indices) / total if plan.weights in ("flush", "2bw") else 1 / len(members)
                if "budget" in self.composition:  # n samples weigh n over the mean number
                    factor = len(indices) / len(members) * len(order) / len(self.dataset)
                sums[s].setdefault(step, []).append({name: factor * g for name, g in gradients[s].items()})
                if m == members[-1]:
                    ready.append((s, sums[s].pop(step)))
                    self._set_rate(s, epoch * len(order) + members[0], len(order))
            # A weight that the loss of no minibatch of the round reaches has no gradient, and is not stepped.
            sums_of = [g[k].flatten() for _, of_round in ready for g in [_sums(of_round)] for k in g]
            norm = torch.cat([torch.zeros(1), *sums_of]).norm()
            for s, of_round in ready:
                longest = config.clip_norm or torch.inf
                if not plan.flushes:  # each stage by itself
                    longest /= math.sqrt(len(plan.stages))
                    norm = torch.cat([torch.zeros(1), *(g.flatten() for g in _sums(of_round).values())]).norm()
                self._update(s, of_round, min(1.0, longest / max(float(norm), 1e-30)))
                versions[s].append(_copy(self.weights[s]))

    def _gradients(self, indices, used, m: int, minibatch: int, of_step):
        leaves = [{name: weight.clone().requires_grad_() for name, weight in weights.items()} for weights in used]
        everything = {name: leaf for of_stage in leaves for name, leaf in of_stage.items()}
        for stage in self.plan.stages:
            everything |= self.buffers[stage.replica(m)]
        batch = self.dataset.batch(indices)
        tensors = {"input": self.engine.tensor(batch)}
        for k, part in enumerate(self.parts):
            if k:
                before = {id for stage in self.plan.stages[:k] for id in stage.layers}
                alive = {name: tensors[name] for name in self.net.alive(before)}
                tensors = self.engine.join(self.engine.split(alive))
            own = {name: tensor for name, tensor in everything.items() if name.split(".")[0] in part.layer_ids}
            tensors = functional_call(part, own, (tensors,), {"minibatch": minibatch})
        output = tensors[self.net.rows[-1].id]
        rows = self.engine.features(output) if self.per_voxel else self.engine.rows(output)
        loss = functional.cross_entropy(rows, self._labels(batch, output))
        loss.backward()
        return float(loss.detach()), [{name: leaf.grad for name, leaf in of_stage.items()} for of_stage in leaves]

    def _labels(self, batch: data.PointBatch, output) -> torch.Tensor:
        """The classes of samples, or those of the output's voxels, looked up by their coordinates."""
        if not self.per_voxel:
            return batch.labels
        known = {
            tuple(row): label for row, label in zip(batch.coordinates.tolist(), batch.labels.tolist(), strict=True)
        }
        (own,) = self.engine.split({"output": output}).coordinate_sets
        return torch.tensor([known[tuple(row)] for row in own.coordinates.tolist()])

    def _set_rate(self, s: int, minibatch: int, epoch_minibatches: int) -> None:
        """Give the update that begins with `minibatch` of the run its rate, by the schedules' own formulas."""
        config, warmup = self.config, self.config.warmup_minibatches
        if minibatch < warmup:
            factor = (minibatch + 1) / warmup
        elif config.learning_rate_schedule == "cosine":
            factor = 0.5 + 0.5 * math.cos(math.pi * (minibatch - warmup) / (config.epochs * epoch_minibatches - warmup))
        elif config.learning_rate_schedule == "step":
            factor = config.learning_rate_decay ** (minibatch // (config.decay_epochs * epoch_minibatches))
        else:
            factor = 1.0
        for group in self.optimizers[s].param_groups:
            group["lr"] = factor * config.learning_rate

    def _update(self, s: int, gradients: list[dict], factor: float) -> None:
        sums = _sums(gradients)
        for name, weight in self.weights[s].items():
            weight.grad = factor * sums[name] if name in sums else None
        self.optimizers[s].step()

    def _average_buffers(self) -> None:
        for stage in self.plan.stages:
            for name, first in self.buffers[stage.ranks[0]].items():
                if first.is_floating_point():
                    shares = [(rank, stage.share(rank) / stage.round) for rank in stage.ranks]
                    mean = sum(self.buffers[rank][name] * share for rank, share in shares)
                    for rank, _ in shares:
                        self.buffers[rank][name].copy_(mean)

    def asked(self) -> str:
        """All that this reads of its plan and settings: for each layer which update's weights each minibatch met, in
        which step it was, on which replica, of what share. How packets go from stage to stage is nothing to it."""
        plan, config, layers = self.plan, self.config, {}
        order = self._order(0)
        program = compile(plan, len(order))
        for s, stage in enumerate(plan.stages):
            versions, steps, replicas = (
                [_version(program.actions, plan, s, m) for m in range(len(order))],
                [_step_of(program, s, m) for m in range(len(order))],
                [stage.ranks.index(stage.replica(m)) for m in range(len(order))],
            )
            together = stage.layers if len(self.parts) > 1 else ()
            layers |= dict.fromkeys(stage.layers, [versions, steps, replicas, stage.shares, together])
        settings = {**config.to_json(), "shared_memory": None}
        return json.dumps([plan.weights, layers, settings], sort_keys=True)

    def all_weights(self) -> dict[str, torch.Tensor]:
        return {name: weight for weights in self.weights for name, weight in weights.items()}

    def all_buffers(self) -> dict[str, torch.Tensor]:
        return {name: b for stage in self.plan.stages for name, b in self.buffers[stage.ranks[0]].items()}


_TRAINED: dict[str, Oracle] = {}


def trained(plan: Plan, config: RunConfig) -> Oracle:
    """Return the oracle of a plan, trained once for all plans that ask the same of it."""
    oracle = Oracle(plan, config)
    if (asked := oracle.asked()) not in _TRAINED:
        _TRAINED[asked] = oracle.train()
    return _TRAINED[asked]


def _optimizer(weights, config: RunConfig) -> torch.optim.Optimizer:
    weights = list(weights) or [torch.zeros(())]  # torch's optimizers want something to step
    settings = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if config.optimizer in ("adam", "adamw"):
        return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer](weights, **settings)
    return torch.optim.SGD(weights, momentum=config.momentum, **settings)


def _sums(gradients: list[dict]) -> dict[str, torch.Tensor]:
    names = dict.fromkeys(name for of_minibatch in gradients for name in of_minibatch)
    return {name: torch.stack([g[name] for g in gradients if name in g]).sum(0) for name in names}


def _copy(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in weights.items()}


def _step_of(program, stage: int, m: int) -> int:
    """Return which update of a stage minibatch m is part of."""
    return next(k for k in range(program.num_minibatches) if m in program.members(stage, k))


def _version(lists, plan: Plan, s: int, m: int) -> int:
    if plan.weights == "2bw":  # W(t+1) = W(t) - v dL(W(t-1)): Narayanan et al., equation 1
        return max(0, m // plan.num_microbatches - 1)
    return _updates_before(lists, plan, 0 if plan.weights == "vertical-sync" else s, m)


def _updates_before(lists, plan: Plan, s: int, m: int) -> int:
    """Count the updates of stage s that the replica running minibatch m has done when it forwards m."""
    mine = lists[plan.stages[s].replica(m)]
    mine = [action for action in mine if action.stage == s]
    place = next(k for k, action in enumerate(mine) if action.op is Op.FORWARD and action.minibatch == m)
    return sum(action.op is Op.UPDATE for action in mine[:place])


# Batch norm over the two voxels that a tiny cloud leaves in the deepest layers turns the last bit of a sum into per
# cent: its plans get clouds with more voxels, and small steps.
FULL = {"voxel_size": 0.04, "num_points": 384, "batch_size": 5, "learning_rate": 0.003}
FLUSH = {"schedule": "1f1b-flush", "num_microbatches": 4}
ZBV = {"schedule": "zbv", "num_microbatches": 4}
COSINE = {"optimizer": "adamw", "learning_rate": 1e-3, "warmup_minibatches": 3, "learning_rate_schedule": "cosine"}
STEP = {"epochs": 2, "learning_rate": 0.03, "warmup_minibatches": 3}
STEP |= {"learning_rate_schedule": "step", "decay_epochs": 1}
# name -> (model, ranks of the stages, options of the plan, changes of the settings)
LAWS: dict[str, tuple] = {
    "one process": (PLAIN, [[0]], FLUSH, {}),
    "3 stages, sockets": (PLAIN, [[0], [1], [2]], FLUSH, {"shared_memory": False}),
    "zero-bubble 2-1-1": (PLAIN, [[0, 1], [2], [3]], {"schedule": "zero-bubble", "num_microbatches": 3}, {}),
    "zero-bubble, batch norm, U-Net": (UNET, [[0], [1], [2]], {"schedule": "zero-bubble", "num_microbatches": 2}, FULL),
    "zero-bubble, minkowski": (
        NORMED,
        [[0], [1]],
        {"schedule": "zero-bubble", "num_microbatches": 2, "recompute": True},
        {**FULL, "engine": "minkowski"},
    ),
    "2 stages sequential": (PLAIN, [[0], [1]], {"schedule": "sequential", "num_microbatches": 2}, {}),
    "interleaved, 4 stages on 2": (PLAIN, [[0], [1], [0], [1]], FLUSH, {}),
    "interleaved, replicated": (PLAIN, [[0, 1], [2, 3]] * 2, {**FLUSH, "recompute": True}, {}),
    "interleaved, stash, U-Net": (UNET, [[1], [0]] * 2, {"schedule": "1f1b"}, {**FULL, "shared_memory": False}),
    "1f1b-v, U-Net": (UNET, [[0], [1], [1], [0]], {"schedule": "1f1b-v"}, FULL),
    "zbv, U-Net, minkowski": (UNET, [[1], [0], [0], [1]], {**ZBV, "recompute": True}, {**FULL, "engine": "minkowski"}),
    "looped-bfs, 4 stages on 2": (PLAIN, [[0], [1]] * 2, {**FLUSH, "schedule": "looped-bfs"}, {}),
    "interleaved-zero-bubble, 4 stages on 2": (
        PLAIN,
        [[0], [1]] * 2,
        {**FLUSH, "schedule": "interleaved-zero-bubble"},
        {},
    ),
    "zbv, 6 stages on 3, sockets": (PLAIN, [[1], [0], [2], [2], [0], [1]], ZBV, {"shared_memory": False}),
    "dualpipe-v, replicated": (PLAIN, [[0, 1], [2, 3], [2, 3], [0, 1]], {**ZBV, "schedule": "dualpipe-v"}, {}),
    "ranks in any order": (PLAIN, [[2], [0], [1]], FLUSH, {}),
    "batch norm, 4 stages gpipe": (NORMED, [[0], [1], [2], [3]], {"schedule": "gpipe", "num_microbatches": 4}, FULL),
    "data parallel, unequal": (PLAIN, [[0, 1]], {"schedule": "1f1b", "shares": {0: (2, 1)}}, {}),
    "flush 2-1 shares 1:2, clipped": (PLAIN, [[0, 1], [2]], {**FLUSH, "shares": {0: (1, 2)}}, {"clip_norm": 0.3}),
    "stash 2-1 shares 2:1, clipped": (
        NORMED,
        [[0, 1], [2]],
        {"schedule": "1f1b", "shares": {0: (2, 1)}},
        {**FULL, "clip_norm": 0.3},
    ),
    "vertical sync, 3 stages": (PLAIN, [[0], [1], [2]], {"schedule": "1f1b", "weights": "vertical-sync"}, {}),
    "2bw, 2-1": (PLAIN, [[0, 1], [2]], {"schedule": "2bw", "num_microbatches": 3}, {"batch_size": 2}),
    "accumulation": (PLAIN, [[0, 1], [2]], {"schedule": "1f1b", "accumulation": 2}, {"batch_size": 2}),
    # Rows 1 to 3 of the network are a ReLU and a pool.
    "no weights, replicated": (PLAIN, [[0], [1, 2], [3]], {**FLUSH, "cuts": (1, 3)}, {}),
    "recompute": (
        NORMED,
        [[0], [1], [2]],
        {"schedule": "1f1b", "recompute": True, "segments": {1: ((0, 2), (2, 3)), 2: ((1, 4),)}},
        FULL,
    ),
    "adamw, warm-up, then a cosine": (PLAIN, [[0], [1]], {"schedule": "1f1b"}, COSINE),
    "warm-up, then a step": (PLAIN, [[0], [1]], FLUSH, STEP),
    "U-Net 1-2-1, sockets": (UNET, [[0], [1, 2], [3]], {"schedule": "1f1b"}, {**FULL, "shared_memory": False}),
    "U-Net, 3 branching stages": (UNET, [[0], [1], [2]], {"schedule": "1f1b", "branching": 1}, FULL),
    "U-Net, minkowski": (UNET, [[0], [1], [2]], FLUSH, {**FULL, "engine": "minkowski"}),
    "PTv3, zero-bubble": (
        "ptv3-segmentation-narrow",
        [[0], [1], [2]],
        {"schedule": "zero-bubble", "num_microbatches": 2, "recompute": True},
        {**FULL, "learning_rate": 1e-4},
    ),
    "LitePT 1-2, sockets": (
        "litept-segmentation-narrow",
        [[0], [1, 2]],
        {"schedule": "1f1b"},
        {**FULL, "learning_rate": 1e-4, "shared_memory": False},
    ),
    "segmentation": ("minkunet14a-segmentation-narrow", [[0], [1], [2]], {"schedule": "1f1b"}, FULL),
}


ONE, TWO = ({"schedule": "1f1b-flush", "num_microbatches": count} for count in (1, 2))
# All batch norm of the network lies in one stage then: only replicas share statistics, not minibatches of a step.
BEHIND_NORMS = 1 + max(k for k, row in enumerate(network(UNET, num_classes=3).rows) if row.kind == "batch_norm")
# Sums in another order put a pre-activation within rounding of 0 on its other side, sooner or later, and batch norm
# spreads what comes of that over the minibatch: so it is three steps that are compared.
STEPS = 3
SHARED = {**FULL, "batch_size": 3, "minibatches": 2 * STEPS, "synchronised_batch_norm": True}
HALF = {"precision": "float16", "learning_rate": 0.003, "loss_scale": 2.0**24}  # too large at first
HALVES = {**HALF, "epochs": 2}
# Half the bits in one process and in several, and what is done to bits on their way: compared with each other.
SMALL: dict[str, tuple] = {
    "synchronised, whole": (UNET, [[0]], ONE, {**FULL, "batch_size": 6, "minibatches": STEPS}),
    "synchronised 1-2, zero-bubble": (UNET, [[0], [1, 2]], {**TWO, "schedule": "zero-bubble", "cuts": (1,)}, SHARED),
    "synchronised 2-2": (UNET, [[0, 1], [2, 3]], TWO, SHARED),
    "lamb, one process": (PLAIN, [[0]], FLUSH, {"optimizer": "lamb"}),
    "lamb, interleaved": (PLAIN, [[0], [1]] * 2, FLUSH, {"optimizer": "lamb"}),
    "float16, one process": (PLAIN, [[0]], FLUSH, HALVES),
    "float16, 3 stages": (PLAIN, [[0], [1], [2]], FLUSH, HALVES),
    "float16, zero-bubble": (PLAIN, [[0], [1]], {"schedule": "zero-bubble", "num_microbatches": 4}, HALVES),
    "bfloat16, one process": (PLAIN, [[0]], FLUSH, {"precision": "bfloat16"}),
    "bfloat16, 3 stages": (PLAIN, [[0], [1], [2]], FLUSH, {"precision": "bfloat16"}),
    "sent as bfloat16": (PLAIN, [[0], [1], [2]], FLUSH, {"compression": "bfloat16"}),
    "sent as int8": (PLAIN, [[0], [1], [2]], FLUSH, {"compression": "int8"}),
}


def _job(name: str, folder) -> Job:
    model, ranks, options, changes = (LAWS | SMALL)[name]
    return Job(name.replace(" ", "-"), plan_of(model, ranks, **options), settings(folder, model=model, **changes))


@pytest.fixture(scope="module")
def laws(tmp_path_factory) -> dict[str, tuple[Job, object]]:
    """Run every plan once, all in the same four processes."""
    folder = tmp_path_factory.mktemp("laws")
    clouds = shapes(folder)
    names = [name for name in LAWS if "minkowski" not in name or _has_minkowski()]
    jobs = {name: _job(name, clouds) for name in [*names, *SMALL]}
    results = run_jobs(folder, list(jobs.values()), limit=500)
    return {name: (job, results[job.name]) for name, job in jobs.items()}


def _has_minkowski() -> bool:
    import importlib.util

    return importlib.util.find_spec("MinkowskiEngine") is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_a_plan_trains_like_a_plain_loop(name: str, laws: Callable) -> None:
    if name not in laws:
        pytest.skip("MinkowskiEngine is not installed")
    job, result = laws[name]
    oracle = trained(job.plan, job.config)
    torch.testing.assert_close(torch.tensor(result.losses), torch.tensor(oracle.losses), **CLOSE)
    weights = result.tensors("weight")
    assert weights.keys() == oracle.all_weights().keys()
    for key, weight in oracle.all_weights().items():
        torch.testing.assert_close(weights[key], weight, **CLOSE, msg=lambda text, key=key: f"{key}: {text}")
    buffers = result.tensors("buffer")
    for key, buffer in oracle.all_buffers().items():
        if buffer.is_floating_point():
            torch.testing.assert_close(buffers[key], buffer, **CLOSE)


@pytest.mark.slow
def test_stages_change_no_bit_where_nothing_is_replicated(laws: Callable) -> None:
    """The same operations on the same numbers in the same order: cuts and schedules leave no trace."""
    _, alone = laws["one process"]
    cut_in_stages = ("ranks in any order", "3 stages, sockets")
    interleaved = (
        "interleaved, 4 stages on 2",
        "interleaved-zero-bubble, 4 stages on 2",
        "zbv, 6 stages on 3, sockets",
    )
    for name in (*cut_in_stages, *interleaved):
        _, cut = laws[name]
        assert cut.losses == alone.losses, name
        weights = cut.tensors("weight")
        for key, weight in alone.tensors("weight").items():
            assert torch.equal(weights[key], weight), (name, key)


SYNCHRONISED = ("synchronised 1-2, zero-bubble", "synchronised 2-2")


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNCHRONISED)
def test_replicas_that_share_statistics_train_like_one_with_all_their_samples(name: str, laws: Callable) -> None:
    """Two minibatches of 3 on two replicas are one of 6: in loss, in what is learned, in running statistics."""
    (_, found), (_, alone) = laws[name], laws["synchronised, whole"]
    pairs = torch.tensor(found.losses).view(-1, 2).mean(dim=1)
    torch.testing.assert_close(pairs, torch.tensor(alone.losses), **CLOSE)
    for kind in ("weight", "buffer"):
        tensors = found.tensors(kind)
        for key, tensor in alone.tensors(kind).items():
            torch.testing.assert_close(tensors[key], tensor, **CLOSE, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNCHRONISED)
def test_waits_for_the_statistics_of_other_replicas_are_not_work(name: str, laws: Callable) -> None:
    job, found = laws[name]
    stage = next(k for k, own in enumerate(job.plan.stages) if len(own.ranks) > 1)
    trace = RunRecord(found.folder).trace()
    for rank in job.plan.stages[stage].ranks:
        spans = one_at_a_time(trace, rank)
        for kind in ("forward", "backward"):
            names = {span.name for span in spans if span.kind == kind and span.stage == stage}
            waits = [span for span in spans if span.kind == "wait" and span.name in names and span.peer == -1]
            assert names == {span.name for span in waits}, f"batch norm waits in every {kind}"
            assert all(span.seconds > 0 for span in waits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cut", "whole"),
    [
        ("float16, 3 stages", "float16, one process"),
        ("float16, zero-bubble", "float16, one process"),
        ("bfloat16, 3 stages", "bfloat16, one process"),
    ],
)
def test_stages_change_no_bit_of_half_precision(cut: str, whole: str, laws: Callable) -> None:
    """Scaled losses, overflows and steps left out included."""
    (_, found), (_, alone), (_, full) = laws[cut], laws[whole], laws["one process"]
    assert found.losses == alone.losses != full.losses
    overflows = [row["minibatch"] for row in found.rows("overflow")]
    assert overflows == [row["minibatch"] for row in alone.rows("overflow")]
    assert ("float16" in cut and not cut.startswith("b")) == bool(overflows)
    for key, weight in alone.tensors("weight").items():
        assert torch.equal(found.tensors("weight")[key], weight), key


@pytest.mark.slow
def test_stages_change_no_bit_of_steps_as_long_as_the_weights(laws: Callable) -> None:
    """The length of a step is that of each weight by itself, wherever it is."""
    (_, found), (_, alone), (_, other) = laws["lamb, interleaved"], laws["lamb, one process"], laws["one process"]
    assert found.losses == alone.losses != other.losses
    for kind in ("weight", "mean", "square", "steps"):
        tensors = found.tensors(kind)
        for key, tensor in alone.tensors(kind).items():
            assert torch.equal(tensors[key], tensor), (kind, key)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "bound"), [("bfloat16", 0.02), ("int8", 0.05)])
def test_compression_costs_little(how: str, bound: float, laws: Callable) -> None:
    (_, small), (_, whole) = laws[f"sent as {how}"], laws["one process"]
    assert small.losses != whole.losses, "it is at work"
    torch.testing.assert_close(torch.tensor(small.losses), torch.tensor(whole.losses), rtol=bound, atol=bound)


@pytest.mark.slow
def test_lists_that_deadlock_in_this_runs_epochs_are_refused_before_the_first_minibatch(tmp_path) -> None:
    """The length that is tried before the launch, 8, runs to its end; an epoch of 18 waited until its deadline."""
    first, last = plan_of(PLAIN, [[0, 1], [2]], schedule="1f1b").stages
    plan = Plan((first, replace(last, warmup=3)), "1f1b", accumulation=3)
    job = launch(plan, settings(shapes(tmp_path), batch_size=1), run_dir=tmp_path / "run")
    with raises("schedule.deadlock", "'1f1b'", "rank 0 waits at"):
        job.wait(timeout=ENOUGH)
    assert not job.record.metrics("step")
