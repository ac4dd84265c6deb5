"""Write the Python that makes the explorer's plan again, for a reader to copy."""

from collections.abc import Mapping
from typing import Any

from ...planning.scale import Scaled
from ...values.cluster import Cluster, Link, Node
from ...values.plan import Plan, Stage
from ...values.replication import rule_text
from ...values.stragglers import Stragglers

_SCALE = "from sparsepipe.planning.scale import Scale"
_COMPRESSED = "from sparsepipe.views.widgets.planning import compressed"
_HERE = Node.__dataclass_fields__["address"].default


def as_code(
    plan: Plan,
    cluster: Cluster,
    *,
    planner: str | None,
    scaled: Scaled | None,
    compression: float,
    recompute: bool,
) -> str:
    """Python that makes `cluster` and `plan` from `profile`. `planner` None: the stages are written out.

    `scaled`: law of voxels, batch size and voxel size, if not as profiled; `compression`: of features that cross
    boundaries.
    """
    imports = ["Cluster", "DeviceType", "Link", "Node", *(["partition"] if planner else ["Plan", "Stage"])]
    lines = [f"from sparsepipe import {', '.join(imports)}", _cluster(cluster)]
    if planner:
        if scaled is not None:
            lines.insert(1, _SCALE)
        if compression != 1:
            lines.insert(1, _COMPRESSED)
        lines += _profile(scaled, compression)
        several = f", stages_per_device={plan.stages_per_rank}" if plan.stages_per_rank > 1 else ""
        several += ", recompute=True" if recompute else ""
        lines.append(
            f"plan = partition(profile, cluster, planner={planner!r}, schedule={plan.schedule!r}, "
            f"num_microbatches={plan.num_microbatches}{several})"
        )
        if plan != plan.with_schedule(plan.schedule):  # another weight policy than the schedule's first
            lines.insert(1, "from dataclasses import replace")
            lines.append(f"plan = replace(plan, weights={plan.weights!r})")
    else:
        stages = "".join(f"\n    {_stage(stage)}," for stage in plan.stages)
        lines.append(
            f"plan = Plan(({stages}\n), {plan.schedule!r}, {plan.weights!r}, "
            f"num_microbatches={plan.num_microbatches}, planner={plan.planner!r}, warnings={plan.warnings!r})"
        )
    return "\n".join(lines)


def pipelines_code(
    pipelines: Plan,
    cluster: Cluster,
    *,
    planned_with: Mapping[str, Any],
    num_minibatches: int,
    stragglers: Stragglers,
    scaled: Scaled | None,
    compression: float,
) -> str:
    """Python that makes `cluster` and `plan` from `profile`, and `told`, the simulation of so many minibatches.

    `planned_with`: what `partition_pipelines` is given; `scaled` and `compression` as for one pipeline.
    """
    names = "Cluster, DeviceType, Link, Node, partition_pipelines, simulate_pipelines"
    lines = ["from dataclasses import replace", f"from sparsepipe import {names}"]
    lines.append("from sparsepipe.values.replication import parse_rule")
    lines += ["from sparsepipe.values.stragglers import Stragglers", *([_COMPRESSED] if compression != 1 else [])]
    lines += [_SCALE] if scaled is not None else []
    lines += [_cluster(cluster), *_profile(scaled, compression)]
    given = "".join(f", {name}={value!r}" for name, value in planned_with.items())
    count, rule = len(pipelines.pipelines), rule_text(pipelines.rule)
    lines.append(f"rule = parse_rule({rule!r})")
    lines.append(f"plan = partition_pipelines(profile, cluster, {count}, replication=rule{given})")
    weights = pipelines.pipelines[0].weights
    if pipelines.pipelines[0] != pipelines.pipelines[0].with_schedule(pipelines.pipelines[0].schedule):
        lines.append(f"plans = tuple(replace(one, weights={weights!r}) for one in plan.pipelines)")
        lines.append("plan = replace(plan, members=plans)")
    lines.append(f"plan = replace(plan, samples={pipelines.samples!r})")
    lines.append("counts = profile.typical_sizes")
    lines.append(f"sizes = [counts[k % len(counts)] for k in range({num_minibatches})]")
    lines.append(f"held_up = Stragglers.parse({str(stragglers)!r})")
    lines.append("told = simulate_pipelines(plan, profile, cluster, sizes, stragglers=held_up)")
    return "\n".join(lines)


def _cluster(cluster: Cluster) -> str:
    nodes = "".join(f"\n    {_node(node)}," for node in cluster.nodes)
    return f"cluster = Cluster(({nodes}\n), {_link(cluster.network)})"


def _profile(scaled: Scaled | None, compression: float) -> list[str]:
    """The profile at another size of minibatches, and with compressed boundaries."""
    lines = []
    if scaled is not None:
        scale, batch_size, voxel_size = scaled
        lines.append(f"profile = {scale!r}.scaled(profile, {batch_size!r}, {voxel_size!r})")
    if compression != 1:
        lines.append(f"profile = compressed(profile, {compression!r})")
    return lines


def _stage(stage: Stage) -> str:
    told = f"Stage({stage.layers!r}, {stage.ranks!r}, {stage.shares!r}, {stage.device_types!r}, {stage.nodes!r}"
    told += ", recompute=True" if stage.recompute else ""
    return told + (f", segments={stage.segments!r})" if stage.segments else ")")


def _node(node: Node) -> str:
    runs: list[tuple[str, int]] = []
    for kind in node.device_types:
        pace = "" if kind.reference_seconds is None else f", {_number(kind.reference_seconds)}"
        pace += f", network_seconds_per_byte={each!r}" if (each := float(kind.network_seconds_per_byte)) else ""
        told = f"DeviceType({kind.name!r}, {_number(kind.memory_bytes)}{pace})"
        if runs and runs[-1][0] == told:
            runs[-1] = (told, runs[-1][1] + 1)
        else:
            runs.append((told, 1))
    devices = " + ".join(f"({told},) * {count}" for told, count in runs)
    address = "" if node.address == _HERE else f", {node.address!r}"
    return f"Node({node.name!r}, {devices}, {_link(node.link)}{address})"


def _link(link: Link) -> str:
    return f"Link({_number(link.bandwidth)}, {_number(link.latency)})"


def _number(value: float) -> str:
    return 'float("inf")' if value == float("inf") else repr(float(value))  # a NumPy number is written in its own way
