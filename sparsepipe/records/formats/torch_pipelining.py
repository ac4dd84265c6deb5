"""A plan as Python: a script that trains it by torch.distributed.pipelining alone, or a module for each stage.

Stages begin or end where a module of the network does: these are the split points of torch's `pipeline`. A script that
is started as one process trains the undivided network with the same minibatches, to compare with. Stages as readable
Python have a line for each layer.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ...networks.rows import INPUT, Network, Row
from ...util.io.files import expanded, write_atomic
from ...util.io.functions import UserFunction
from ...util.text.numbers import number_of
from ...values.graph import LayerGraph
from ...values.plan import Plan
from .runtime_settings import TORCH_SCHEDULES, PlanForm, RuntimeExport

SCRIPT = "train_pipeline.py"
_LOSSES = {
    "classes": "functional.cross_entropy(output, target)",
    "tokens": "functional.cross_entropy(output.flatten(0, -2), target.flatten(), label_smoothing={label_smoothing})",
}
_SMOOTHING = {"label_smoothing": 0.1}  # of the loss of tokens, if its arguments do not say


@dataclass(frozen=True)
class ScriptTraining:
    """Describe the network, the data and the loss of a script.

    Attributes:
        model: The function that returns the network.
        model_args: Its arguments.
        modules: Qualified names of the modules that a forward calls once.
        data: The function that returns a data set for a split.
        data_args: Its arguments besides the split.
        loss: "classes", "tokens", or a function of output and target.
        loss_args: Arguments of the loss.
        batch_size: Samples of a microbatch.
    """

    model: UserFunction
    model_args: Mapping[str, object]
    modules: Collection[str]
    data: UserFunction
    data_args: Mapping[str, object]
    loss: UserFunction | str
    loss_args: Mapping[str, object]
    batch_size: int


def training_script(
    plan: Plan, training: ScriptTraining, folder: Path, *, graph: LayerGraph | None = None
) -> RuntimeExport:
    """Return the script that trains a plan of one pipeline by torch.distributed.pipelining.

    Args:
        plan: The plan.
        training: Network, data and loss.
        folder: Folder of the script: files of functions are named relative to it.
        graph: Layer graph of the profile, for the order in which layers run.

    Returns:
        The script, and a line for each property of the plan that torch's runtime cannot express.

    Raises:
        InputError: A cut at no module's beginning or end, a loss that torch does not have.
    """
    plan = plan.one("torch's schedules train one pipeline; give one of its `pipelines`")
    if graph is not None:
        plan.check(graph)
    form = PlanForm(plan, graph, training.batch_size, "torch.distributed.pipelining")
    lost = [line for line in form.lost(schedules=tuple(TORCH_SCHEDULES), recompute=True) if line not in form.skips()]
    points = split_points(plan, training.modules, graph)
    places = form.places(tuple(TORCH_SCHEDULES))
    positions = [plan.stages[stages[0]].ranks for stages in places]
    pipelines = [[ranks[k] for ranks in positions] for k in range(form.data)]
    # Ranks of replicas that are left out would leave holes, which no launcher starts.
    number = {rank: k for k, rank in enumerate(sorted(rank for ranks in pipelines for rank in ranks))}
    values = {
        "note": "".join(f"\n# Not expressed: {' '.join(line.split())}" for line in lost) + "\n",
        "stages": len(plan.stages),
        "world": len(number),
        "split": "".join(f"    {name!r}: SplitPoint.{side},\n" for name, side in points),
        "positions": places,
        "pipelines": tuple(tuple(number[rank] for rank in ranks) for ranks in pipelines),
        "recomputed": tuple(k for k, stage in enumerate(plan.stages) if stage.recompute),
        "schedule": form.schedule(),
        "microbatches": form.microbatches,
        "batch_size": training.batch_size,
        "model": _reference(training.model, folder),
        "model_args": dict(training.model_args),
        "data": _reference(training.data, folder),
        "data_args": dict(training.data_args),
        "loss": _loss(training, folder),
    }
    return RuntimeExport({SCRIPT: _TEMPLATE.format(**values)}, tuple(lost))


def _reference(function: UserFunction, folder: Path) -> str:
    home = os.path.relpath(function.home, folder) if function.home.endswith(".py") else function.home
    return f"{Path(home).as_posix() if home.endswith('.py') else home!s}:{function.name}"


def _loss(training: ScriptTraining, folder: Path) -> str:
    if isinstance(training.loss, UserFunction):
        arguments = f", **{dict(training.loss_args)!r}" if training.loss_args else ""
        return f"function({_reference(training.loss, folder)!r})(output, target{arguments})"
    if training.loss not in _LOSSES or training.loss_args.keys() - _SMOOTHING.keys():
        raise InputError(
            "export.loss",
            f"loss {training.loss}: expected {' or '.join(_LOSSES)}, or a function: give --loss path/loss.py:function",
        )
    return _LOSSES[training.loss].format(**{**_SMOOTHING, **training.loss_args})


def split_points(plan: Plan, modules: Collection[str], graph: LayerGraph | None = None) -> list[tuple[str, str]]:
    """Return a module and BEGINNING or END for each cut of a plan, the outermost module that there is.

    `modules`: those that a forward calls once; torch cuts at every call.
    Raises InputError for a cut at no module's beginning or end, and for stages that do not follow the order of layers.
    """
    ids = plan.layers
    if graph is not None:
        order = [layer.id for layer in graph.layers if layer.id in set(ids)]
        if list(ids) != order:
            first = next(k for k, (a, b) in enumerate(zip(ids, order, strict=True)) if a != b)
            raise InputError(
                "export.order",
                f"layer {ids[first]} runs after {order[first]}: torch cuts a network in the order in which it runs; "
                "plan with --planner dynpipe or pipedream, whose stages are consecutive",
            )
    first_in, last_in = dict[str, int](), dict[str, int]()
    for k, id in enumerate(ids):
        for prefix in _prefixes(id):
            first_in.setdefault(prefix, k)
            last_in[prefix] = k
    points, position = [], 0
    for stage in plan.stages[:-1]:
        position += len(stage.layers)
        before, after = ids[position - 1], ids[position]
        begins = next((name for name in _prefixes(after) if name in modules and first_in[name] == position), None)
        ends = next((name for name in _prefixes(before) if name in modules and last_in[name] == position - 1), None)
        if begins is None and ends is None:
            raise InputError(
                "export.cut_inside",
                f"the cut between {before} and {after} is at no module's beginning or end, where torch can cut: move "
                "it by `sparsepipe plan --layout`",
            )
        points.append((begins, "BEGINNING") if begins is not None else (str(ends), "END"))
    return points


def _prefixes(id: str) -> Sequence[str]:
    parts = id.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts) + 1)]


_TEMPLATE = '''"""Train {stages} stages by torch.distributed.pipelining. Written by `sparsepipe plan export --to torch`.

    torchrun --nproc-per-node {world} {{file}} --steps 100
    python {{file}} --steps 100      one process, which trains the undivided network, with the same minibatches
"""
{note}
import argparse
import importlib
import os
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import SplitPoint, pipeline
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

SPLIT = {{
{split}}}
STAGES = {positions}  # of each place in the pipeline
PIPELINES = {pipelines}  # the rank at each place, for each replica of the pipeline
RECOMPUTED = {recomputed}  # stages that repeat their forward in the backward
SCHEDULE = {schedule!r}
MICROBATCHES = {microbatches}  # of each replica in a step
MICROBATCH_SIZE = {batch_size}  # samples


def function(reference):
    """A function of a module, or of a file whose path is relative to this one."""
    home, _, name = reference.rpartition(":")
    if home.endswith(".py"):
        path = (Path(__file__).resolve().parent / home).resolve()
        sys.path.insert(0, str(path.parent))
        home = path.stem
    return getattr(importlib.import_module(home), name)


def build(seed):
    torch.manual_seed(seed)
    return function({model!r})(**{model_args!r})


def dataset():
    return function({data!r})("train", **{data_args!r})


def loss(output, target):
    return {loss}


def arguments(inputs):
    """Positional and keyword arguments of the forward."""
    if isinstance(inputs, dict):
        return (), inputs
    return (tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)), {{}}


def chunk(value, count, place):
    """A part of a minibatch, whose samples are counted by the first axis."""
    if isinstance(value, dict):
        return {{name: chunk(each, count, place) for name, each in value.items()}}
    if isinstance(value, list | tuple):
        return tuple(chunk(each, count, place) for each in value)
    return value.chunk(count)[place]


def moved(value, device):
    if isinstance(value, dict):
        return {{name: moved(each, device) for name, each in value.items()}}
    return tuple(moved(each, device) for each in value) if isinstance(value, list | tuple) else value.to(device)


def minibatches(steps):
    loader = DataLoader(dataset(), len(PIPELINES) * MICROBATCHES * MICROBATCH_SIZE, drop_last=True)
    step = 0
    while step < steps:
        for inputs, target in loader:
            if step < steps:
                yield step, inputs, target
            step += 1
        if not step:
            raise SystemExit(f"the data set has less than the {{loader.batch_size}} samples of a step")


def whole(options, device):
    model = build(options.seed).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), options.learning_rate)
    count = len(PIPELINES) * MICROBATCHES
    for step, inputs, target in minibatches(options.steps):
        start, total = time.perf_counter(), 0.0
        for place in range(count):
            args, kwargs = arguments(moved(chunk(inputs, count, place), device))
            found = loss(model(*args, **kwargs), moved(chunk(target, count, place), device)) / count
            found.backward()
            total += found.item()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {{step}} loss {{total:.9g}} seconds {{time.perf_counter() - start:.6f}}", flush=True)


def shared_parameters(model):
    """Each name of a parameter that several modules hold, and one name for all of them."""
    names = {{}}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {{name: each[0] for each in names.values() for name in each}}


def make_contiguous(module):
    """Have a stage send and expect contiguous tensors, which is all that torch's transports take."""
    graph = module.graph
    for node in graph.nodes:
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor):
            node.meta["val"] = node.meta["val"].contiguous()
    output = graph.output_node()
    with graph.inserting_before(output):

        def copied(node):
            made = graph.call_method("contiguous", (node,))
            made.meta = dict(node.meta)
            if isinstance(made.meta.get("val"), torch.Tensor):
                made.meta["val"] = made.meta["val"].contiguous()
            return made

        output.args = torch.fx.map_arg(output.args, copied)
    module.recompile()


def pipelined(options, device):
    rank = dist.get_rank()
    if dist.get_world_size() != sum(map(len, PIPELINES)):
        raise SystemExit(f"{{dist.get_world_size()}} processes, expected {{sum(map(len, PIPELINES))}}")
    lines = {{ranks: dist.new_group(ranks) for ranks in PIPELINES}}
    columns = {{ranks: dist.new_group(ranks) for ranks in zip(*PIPELINES)}}
    ranks, line = next((ranks, group) for ranks, group in lines.items() if rank in ranks)
    column = next(group for ranks, group in columns.items() if rank in ranks)
    replica, place = PIPELINES.index(ranks), ranks.index(rank)

    model = build(options.seed).train()
    _, inputs, _ = next(minibatches(1))
    args, kwargs = arguments(chunk(inputs, len(PIPELINES) * MICROBATCHES, 0))
    canonical = shared_parameters(model)
    shapes = {{name: parameter.shape for name, parameter in model.named_parameters()}}
    pipe = pipeline(model, args, kwargs, split_spec=SPLIT)
    assert pipe.num_stages == sum(map(len, STAGES)), pipe.num_stages
    for k in range(pipe.num_stages):
        make_contiguous(pipe.get_stage_module(k))
    stages = [pipe.build_stage(k, device, line) for k in STAGES[place]]
    for stage in stages:
        stage.submod.to(device).train()
        if stage.stage_index in RECOMPUTED:
            stage.submod.forward = partial(checkpoint, stage.submod.forward, use_reentrant=False)
    held = {{}}  # parameters by the name that all copies of one have
    for name, parameter in (pair for stage in stages for pair in stage.submod.named_parameters()):
        held.setdefault(canonical.get(name, name), []).append(parameter)
    everywhere = [None] * len(ranks)
    dist.all_gather_object(everywhere, {{name: len(copies) for name, copies in held.items()}}, group=line)
    names = dict.fromkeys(name for counts in everywhere for name in counts)
    copied = [name for name in names if sum(counts.get(name, 0) for counts in everywhere) > 1]

    kind = get_schedule_class(SCHEDULE)
    several = issubclass(kind, PipelineScheduleMulti)
    schedule = kind(stages if several else stages[0], MICROBATCHES, loss_fn=loss)
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, options.learning_rate)
    first, last = any(s.is_first for s in stages), any(s.is_last for s in stages)
    for step, inputs, target in minibatches(options.steps):
        start = time.perf_counter()
        args, kwargs = arguments(moved(chunk(inputs, len(PIPELINES), replica), device)) if first else ((), {{}})
        target, losses = (moved(chunk(target, len(PIPELINES), replica), device), []) if last else (None, None)
        schedule.step(*args, target=target, losses=losses, **kwargs)
        for name in copied:  # the gradients of a parameter that several modules hold add up
            grads = [each.grad for each in held.get(name, ()) if each.grad is not None]
            total = sum(grads, torch.zeros(shapes[name], device=device))
            dist.all_reduce(total, group=line)
            for parameter in held.get(name, ()):
                parameter.grad = total.clone()
        if len(PIPELINES) > 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=column)
                    parameter.grad /= len(PIPELINES)
        optimizer.step()
        optimizer.zero_grad()
        if last:
            mean = torch.stack([each.detach() for each in losses]).mean()
            dist.all_reduce(mean, group=column)
            if replica == 0:
                seconds = time.perf_counter() - start
                print(f"step {{step}} loss {{mean.item() / len(PIPELINES):.9g}} seconds {{seconds:.6f}}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if "WORLD_SIZE" not in os.environ:
        return whole(options, device)
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        pipelined(options, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''.replace("{{file}}", SCRIPT)


def write_stage_modules(plan: Plan, network: Network, folder: Path | str) -> list[Path]:
    """Write stage0.py, stage1.py, … and __init__.py. Raises InputError when the plan is for another network."""
    plan.check(network.graph())
    folder = expanded(folder)
    texts = {f"stage{k}.py": stage_source(plan, network, k) for k in range(len(plan.stages))}
    names = [f"Stage{k}" for k in range(len(plan.stages))]
    texts["__init__.py"] = "\n".join(
        [
            f'"""{network.name} in {number_of(len(names), "stage")} ({plan.schedule})."""',
            "",
            *(f"from .{name.lower()} import {name}" for name in names),
            "",
            f"STAGES = ({', '.join(names)},)",
            "",
        ]
    )
    return [write_atomic(folder / name, text) for name, text in texts.items()]


def stage_source(plan: Plan, network: Network, stage: int) -> str:
    """The module of one stage. Its forward takes and returns what is alive across its boundaries, each tensor once."""
    rows = {row.id: row for row in network.rows}
    stage_rows = [rows[id] for id in plan.stages[stage].layers]
    received, sent = _alive(plan, network, stage), _alive(plan, network, stage + 1)
    if not stage_rows:
        raise InputError("export.stage_empty", f"stage {stage} has no layers, so there is nothing to write")
    ranks = ", ".join(map(str, plan.stages[stage].ranks))
    returned = ", ".join(sent) if sent else stage_rows[-1].id
    lines = [
        f'"""Stage {stage} of {network.name}: {stage_rows[0].id} … {stage_rows[-1].id}, on rank {ranks}."""',
        "",
        "from torch import nn",
        "",
        "from sparsepipe.engines.base import Engine",
        "from sparsepipe.networks.rows import Row",
        "",
        "",
        f"class Stage{stage}(nn.Module):",
        "    def __init__(self, engine: Engine) -> None:",
        "        super().__init__()",
        *(f"        self.{row.id} = engine.layer({_row_source(row)})" for row in stage_rows),
        "",
        f"    def forward(self, {', '.join(received)}{', *, seed=0' if _drops(stage_rows) else ''}):",
        *(f"        {row.id} = self.{row.id}({_call_source(row)})" for row in stage_rows),
        f"        return {returned}",
    ]
    return "\n".join(lines) + "\n"


def _alive(plan: Plan, network: Network, stage: int) -> list[str]:
    """Names of the tensors that cross the boundary before `stage`."""
    if stage == 0:
        return [INPUT]
    before = {id for earlier in plan.stages[:stage] for id in earlier.layers}
    needed = {name for row in network.rows if row.id not in before for name in row.inputs}
    return [name for name in (INPUT, *(row.id for row in network.rows)) if name in needed & {INPUT, *before}]


def _call_source(row: Row) -> str:
    return ", ".join([*row.inputs, "seed=seed"] if _drops([row]) else row.inputs)


def _row_source(row: Row) -> str:
    return f"Row({row.id!r}, {row.kind!r}, {row.inputs!r}, {dict(row.args)!r})"


def _drops(rows: list[Row]) -> bool:
    return any(row.kind == "dropout" for row in rows)
