"""Export a plan's stages as readable Python: a module for each stage, a line for each layer."""

from pathlib import Path

from ...errors import InputError
from ...networks.rows import INPUT, Network, Row
from ...util.io.files import expanded, write_atomic
from ...util.text.counting import number_of
from ...values.plan import Plan


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
