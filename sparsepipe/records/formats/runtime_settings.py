"""Settings by which other runtimes train a plan: torchtitan, Megatron-LM, DeepSpeed and FlagScale.

Each has stages of whole blocks, consecutive ones on consecutive ranks. What a runtime cannot express is listed, a line
each: the files that are written are then those of the nearest plan that it can.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ...util.io.files import expanded, write_atomic
from ...util.text.numbers import number_of
from ...values.graph import LayerGraph
from ...values.plan import Plan
from .blocks import Block, blocks_of, cut_at_blocks, module_layers
from .layouts import letters_text

# Our schedules in torch's and torchtitan's names: of one stage on each rank, of several.
TORCH_SCHEDULES: Mapping[str, tuple[str, str]] = {
    "1f1b-flush": ("1F1B", "Interleaved1F1B"),
    "gpipe": ("GPipe", ""),
    "looped-bfs": ("GPipe", "LoopedBFS"),
    "interleaved-zero-bubble": ("", "InterleavedZeroBubble"),
    "zbv": ("", "ZBVZeroBubble"),
    "dualpipe-v": ("", "DualPipeV"),
}


@dataclass(frozen=True)
class RuntimeExport:
    """A plan as another runtime takes it: texts by the names of their files, and what the runtime cannot express."""

    texts: Mapping[str, str]
    lost: tuple[str, ...]

    def save(self, folder: Path | str) -> list[Path]:
        """Write the files. Returns their paths."""
        folder = expanded(folder)
        return [write_atomic(folder / name, text) for name, text in self.texts.items()]


@dataclass(frozen=True)
class PlanForm:
    """A plan in the form that all these runtimes share."""

    plan: Plan
    graph: LayerGraph | None
    batch_size: int | None
    runtime: str

    @property
    def pipeline(self) -> int:
        return self.plan.pipeline_size

    @property
    def data(self) -> int:
        """Replicas of every stage: the fewest that any has, and no more for a runtime with one number for all."""
        return min(len(stage.ranks) for stage in self.plan.stages)

    @property
    def microbatches(self) -> int:
        """Microbatches of a step in each replica; of an asynchronous plan four a stage, so that the bubble is small."""
        if not self.plan.flushes:
            return 4 * len(self.plan.stages)
        return max(1, self.plan.num_microbatches // self.data)

    def blocks(self) -> tuple[Block, ...]:
        return blocks_of(self.plan.layers, module_layers(self.graph) if self.graph else None)

    def schedule(self) -> str:
        """The name of its schedule in torch; of one that torch has not, 1F1B's.

        Raises InputError for a number of microbatches that torch's schedule does not take.
        """
        several = self.plan.stages_per_rank > 1
        name = TORCH_SCHEDULES.get(self.plan.schedule, ("", ""))[several] or ("Interleaved1F1B" if several else "1F1B")
        least = len(self.plan.stages) if name in ("1F1B", "DualPipeV") else 1
        rounds = max(1, self.microbatches // self.pipeline) if name.startswith("Interleaved") else 1
        if self.microbatches < least or self.microbatches % rounds:
            expected = f"at least {least}" if rounds == 1 else f"a multiple of the {rounds} rounds of {self.pipeline}"
            raise InputError(
                "export.microbatches",
                f"torch's schedule {name} takes {expected} microbatches a step in each replica, this plan has "
                f"{self.microbatches}: plan with another --num-microbatches",
            )
        return name

    def places(self, schedules: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the stages of each place in the pipeline: in a loop, if a V belongs to a schedule that is missing."""
        if self.plan.rules.placement == "v" and self.plan.schedule not in schedules:
            return tuple(tuple(range(k, len(self.plan.stages), self.pipeline)) for k in range(self.pipeline))
        return self.plan.positions

    def lost(self, *, schedules: Sequence[str], uneven: bool = False, recompute: bool = False) -> list[str]:
        """Return a line for each property of the plan that the runtime lacks.

        `schedules`: those of ours that it has. `uneven`: stages may have unlike numbers of replicas. `recompute`: each
        stage may recompute or not.
        """
        lines, plan, runtime = list[str](), self.plan, self.runtime
        count = f"{number_of(self.microbatches, 'microbatch')} a step"
        if not plan.flushes:
            lines.append(f"schedule {plan.schedule} ({plan.weights}) is asynchronous; {runtime} flushes: 1F1B, {count}")
        elif plan.schedule not in schedules:
            lines.append(f"schedule {plan.schedule} is unknown to {runtime}: written as 1F1B, {count}")
        if self.places(schedules) != plan.positions:
            lines.append(f"{runtime} places stages in a loop: those of this plan lie in a V, and run on other ranks")
        if plan.flushes and plan.num_microbatches % self.data:
            lines.append(
                f"{number_of(plan.num_microbatches, 'microbatch')} cannot be divided among {self.data} replicas: "
                f"written with {self.microbatches} each"
            )
        if shared := [k for k, stage in enumerate(plan.stages) if stage.shares_scenes]:
            lines.append(
                f"{runtime} does not share scenes between ranks: those of stages {', '.join(map(str, shared))} are "
                "written as replicas"
            )
        numbers = [len(stage.ranks) for stage in plan.stages]
        if not uneven and len(set(numbers)) > 1:
            lines.append(
                f"{runtime} has equally many replicas of all stages, this plan {', '.join(map(str, numbers))}: "
                f"written with {self.data} each"
            )
        if any(len(set(stage.shares)) > 1 for stage in plan.stages):
            lines.append(f"{runtime} gives every replica of a stage as many microbatches: unequal shares are left out")
        recomputed = [k for k, stage in enumerate(plan.stages) if stage.recompute]
        if recomputed and not recompute and len(recomputed) < len(plan.stages):
            lines.append(
                f"{runtime} recomputes in all stages or in none: recomputation in stages "
                f"{', '.join(map(str, recomputed))} is left out"
            )
        if segmented := [k for k, stage in enumerate(plan.stages) if stage.segments]:
            lines.append(
                f"{runtime} recomputes no segments of layers: those in stages {', '.join(map(str, segmented))} are "
                "left out"
            )
        if any(stage.warmup is not None for stage in plan.stages):
            lines.append(f"{runtime} computes the warm-up itself: that of the plan is left out")
        if plan.accumulation > 1:
            lines.append(f"accumulation over {plan.accumulation} rounds is left out: give {runtime} more microbatches")
        return lines + self.skips()

    def ordered(self) -> list[str]:
        """Return a line for ranks in another order than the runtime's, which numbers them stage by stage."""
        ranks = [rank for stages in self.plan.positions for rank in self.plan.stages[stages[0]].ranks]
        if ranks == sorted(ranks):
            return []
        return [f"{self.runtime} numbers ranks in the order of the stages; start hosts in the order {ranks}"]

    def skips(self) -> list[str]:
        """Return a line for values that pass over a stage, or one that says that they are unknown."""
        if self.graph is None:
            return ["values that skip stages are unknown without --profile"]
        stage_of = {id: k for k, stage in enumerate(self.plan.stages) for id in stage.layers}
        layers = [layer.id for layer in self.graph.layers]
        over = [
            (layers[i], layers[j])
            for i, j in self.graph.edges
            if stage_of.get(layers[j], 0) - stage_of.get(layers[i], 0) > 1
        ]
        if not over:
            return []
        first, second = over[0]
        more = f" and {len(over) - 1} more" if len(over) > 1 else ""
        return [
            f"{self.runtime} sends to the next stage alone; {first} (stage {stage_of.get(first, 0)}) feeds {second} "
            f"(stage {stage_of[second]}){more}: the stages between must hand it on"
        ]

    @property
    def recomputes(self) -> bool:
        return all(stage.recompute for stage in self.plan.stages)


def _torchtitan(form: PlanForm) -> RuntimeExport:
    blocks = form.blocks()
    counts, moved = cut_at_blocks(form.plan, [[block] for block in blocks])
    lost = form.lost(schedules=tuple(TORCH_SCHEDULES)) + form.ordered() + moved
    if deep := [block.name for block in blocks if block.name.count(".") > (block.letter in "tm")]:
        lost.append(f"torchtitan cuts children of the model and their blocks: {deep[0]} lies deeper; move it up")
    names = iter(blocks)
    parts = [[next(names).name for _ in range(count)] for count in counts]
    lines = [
        "[parallelism]",
        f"pipeline_parallel_degree = {form.pipeline}",
        f"data_parallel_replicate_degree = {form.data}",
        "data_parallel_shard_degree = 1",
        f'pipeline_parallel_schedule = "{form.schedule()}"',
        *([f"pipeline_parallel_microbatch_size = {form.batch_size}"] if form.batch_size else []),
        "module_fqns_per_model_part = [",
        *(f"  [{', '.join(_quoted(name) for name in part)}]," for part in parts),
        "]",
    ]
    if form.batch_size:
        lines += ["", "[training]", f"local_batch_size = {form.batch_size * form.microbatches}"]
    if form.recomputes:
        lines += ["", "[activation_checkpoint]", 'mode = "full"']
    return RuntimeExport({"torchtitan.toml": _headed(form, lost, lines)}, tuple(lost))


def _megatron(form: PlanForm) -> RuntimeExport:
    groups = _groups(form)
    counts, moved = cut_at_blocks(form.plan, groups)
    lost = form.lost(schedules=("1f1b-flush",)) + form.ordered() + moved
    letters = iter(group[0].letter for group in groups)
    layout = letters_text(["".join(next(letters) for _ in range(count)) for count in counts])
    number = sum(group[0].letter == "t" for group in groups)
    mtp = sum(group[0].letter == "m" for group in groups)
    lines = [
        f"--pipeline-model-parallel-size {form.pipeline}",
        f'--pipeline-model-parallel-layout "{layout}"',
        f"--num-layers {number}",
        *([f"--mtp-num-layers {mtp}"] if mtp else []),
    ]
    if form.batch_size:
        lines.append(f"--micro-batch-size {form.batch_size}")
        lines.append(f"--global-batch-size {form.batch_size * form.microbatches * form.data}")
    if form.recomputes:
        lines += ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]
    if layout[:1] != "E" or layout[-1:] != "L":
        lost.append("Megatron expects embeddings first and the loss last: the profile has no such layers")
    return RuntimeExport({"megatron_arguments.txt": _headed(form, lost, lines)}, tuple(lost))


def _deepspeed(form: PlanForm) -> RuntimeExport:
    blocks = form.blocks()
    if form.plan.stages_per_rank > 1:
        raise InputError("export.interleaved", "DeepSpeed has one stage on each rank; this plan has several: plan one")
    counts, moved = cut_at_blocks(form.plan, [[block] for block in blocks])
    lost = form.lost(schedules=("1f1b-flush",)) + form.ordered() + moved
    parts = [sum(counts[:k]) for k in range(len(counts) + 1)]
    lines = [
        "from deepspeed.pipe import PipelineModule",
        "",
        "# The entries that `layers` of the module must have, in this order.",
        "LAYERS = (",
        *(f"    {_quoted(block.name)}," for block in blocks),
        ")",
        f"PARTS = {parts}  # the first entry of each stage, and the end",
        "",
        "",
        "class PlannedModule(PipelineModule):",
        f'    """Use as PlannedModule(layers, num_stages={len(counts)}, loss_fn=...)."""',
        "",
        '    def _partition_layers(self, method="uniform"):',
        "        if len(self._layer_specs) != PARTS[-1]:",
        '            raise ValueError(f"{len(self._layer_specs)} layers, expected {PARTS[-1]}: {LAYERS}")',
        "        self.parts = PARTS",
        "        stage = self._topo.get_coord(self.global_rank).pipe",
        "        self._set_bounds(start=PARTS[stage], stop=PARTS[stage + 1])",
    ]
    config = f'{{\n  "gradient_accumulation_steps": {form.microbatches}'
    if form.batch_size:
        config += f',\n  "train_micro_batch_size_per_gpu": {form.batch_size}'
    if form.recomputes:
        lost.append("DeepSpeed recomputes by an argument of the module: give activation_checkpoint_interval=1")
    texts = {"deepspeed_module.py": _headed(form, lost, lines), "deepspeed_config.json": config + "\n}\n"}
    return RuntimeExport(texts, tuple(lost))


def _flagscale(form: PlanForm) -> RuntimeExport:
    if form.plan.stages_per_rank > 1:
        raise InputError("export.interleaved", "FlagScale has one stage on each rank here: plan one, or --to megatron")
    numbered = [[block] for block in form.blocks() if block.letter == "t"]
    before = [block for block in form.blocks() if block.letter == "E"]
    behind = [block for block in form.blocks() if block.letter in "mL"]
    groups = [list(group) for group in numbered]
    groups[0], groups[-1] = [*before, *groups[0]], [*groups[-1], *behind]
    counts, moved = cut_at_blocks(form.plan, groups)
    lost = form.lost(schedules=("1f1b-flush",), uneven=True, recompute=True) + form.ordered() + moved
    numbers = [len(stage.ranks) for stage in form.plan.stages]
    most = max(numbers)
    if any(most % number for number in numbers):
        lost.append(f"FlagScale divides a microbatch among replicas: {numbers} do not divide {most}: change one")
    kinds = [stage.device_types[0] if stage.device_types else "device" for stage in form.plan.stages]
    if any(len(set(stage.device_types)) > 1 for stage in form.plan.stages):
        lost.append("FlagScale has one device type in each mesh: the first of a stage is written")
    lines = [
        "system:",
        "  tensor_model_parallel_size: 1",
        f"  pipeline_model_parallel_size: {len(counts)}",
        "  hetero:",
        "    enable_hetero: true",
        f"    hetero_pipeline_layer_split: {counts}",
        f"    hetero_process_meshes: [{', '.join(f'1, 1, 1, {number}, 1' for number in numbers)}]",
        f"    hetero_device_types: [{', '.join(map(_quoted, kinds))}]",
        f"    hetero_current_device_type: {_quoted(kinds[0])}  # that of the host which reads this file",
        "    standalone_embedding_stage: false",
    ]
    if any(stage.recompute for stage in form.plan.stages):
        flags = [int(stage.recompute) for stage in form.plan.stages]
        lines += [
            "  recompute:",
            "    recompute_granularity: full",
            "    recompute_method: uniform",
            "    recompute_num_layers: 1",
            "    recompute_granularity_per_stage_micro_batch:  # stages, microbatches, whether they recompute",
            *(f"      - [1, {form.microbatches}, {flag}]" for flag in flags),
        ]
    lines += ["model:", f"  num_layers: {len(numbered)}"]
    if form.batch_size:
        lines += [
            f"  micro_batch_size: {form.batch_size}",
            f"  global_batch_size: {form.batch_size * form.microbatches * form.data}",
        ]
    return RuntimeExport({"flagscale.yaml": _headed(form, lost, lines)}, tuple(lost))


def _groups(form: PlanForm) -> list[list[Block]]:
    """Blocks as Megatron counts them: all embeddings are one, and so is what comes behind the last block."""
    groups: list[list[Block]] = []
    for block in form.blocks():
        if groups and block.letter in "EL" and groups[-1][0].letter == block.letter:
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups


def _quoted(text: str) -> str:
    """Return a text as Python, TOML and YAML all quote it."""
    plain = text.encode(errors="replace").decode().replace("\x7f", "?")
    return json.dumps(plain, ensure_ascii=False)


def _headed(form: PlanForm, lost: Sequence[str], lines: Sequence[str]) -> str:
    estimate = form.plan.estimate
    expected = f", {estimate.period_seconds * 1e3:.4g} ms a microbatch expected" if estimate else ""
    head = (
        f"{number_of(len(form.plan.stages), 'stage')} for {form.runtime} by sparsepipe ({form.plan.planner}){expected}"
    )
    said = [head, *(f"Not expressed: {line}" for line in lost)]
    return "\n".join([*(f"# {' '.join(line.split())}" for line in said), *lines]) + "\n"


SETTINGS: Mapping[str, tuple[str, Callable[[PlanForm], RuntimeExport]]] = {
    "torchtitan": ("torchtitan", _torchtitan),
    "megatron": ("Megatron", _megatron),
    "deepspeed": ("DeepSpeed", _deepspeed),
    "flagscale": ("FlagScale", _flagscale),
}


def runtime_settings(
    plan: Plan, target: str, *, graph: LayerGraph | None = None, batch_size: int | None = None
) -> RuntimeExport:
    """Return the settings by which another runtime trains a plan of one pipeline.

    Args:
        plan: The plan. Its layers have qualified names of modules.
        target: A key of `SETTINGS`.
        graph: Layer graph of the profile, for values that skip stages and for functions between modules.
        batch_size: Samples of a microbatch, if known.

    Returns:
        Texts by file name, and a line for each property of the plan that the target cannot express.

    Raises:
        InputError: A stage without a whole block, several stages on a rank of a runtime that has one.
    """
    name, write = SETTINGS[target]
    plan = plan.one("other runtimes take one pipeline; give one of its `pipelines`")
    if graph is not None:
        plan.check(graph)
    return write(PlanForm(plan, graph, batch_size, name))
