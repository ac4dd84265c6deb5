"""Whether a plan goes with the settings of a run: asked before processes start, and before a job switches to it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import InputError
from ..util.host.limits import available_bytes
from ..util.io.fields import text
from ..util.io.files import read_json, write_json
from ..util.text.numbers import number_of
from ..values.plan import Plan
from ..values.replication.base import Rule
from ..values.schedule import check_rule, check_runs, compile, round_length
from .config import RunConfig


def check_fits(plan: Plan, config: RunConfig, *, num_processes: int | None = None) -> None:
    """Raise InputError if a plan would deadlock, asks for what the settings leave out, or for ranks that are none
    of the job's `num_processes`: as many as the plan's ranks unless given.
    """
    if config.learning_rate_schedule == "plateau" and not config.validate:
        raise InputError(
            "setting.plateau_without_validation",
            "{learning_rate_schedule} plateau follows the validation loss of each epoch and needs validation; omit "
            "{validate}",
            setting=dict.fromkeys(("learning_rate_schedule", "validate")),
        )
    if config.precision == "float16" and not plan.flushes:
        raise InputError(
            "setting.float16_without_flush",
            f"{{precision}} requires a synchronous schedule, because with weights {plan.weights!r} the stages cannot "
            "skip a step together after a gradient overflow; use bfloat16",
            setting={"precision": config.precision},
            weights=plan.weights,
        )
    if not config.validate and config.workload.trains:
        for name in ("best", "early_stopping"):
            if getattr(config, name) is not None:
                raise InputError(
                    "setting.score_without_validation",
                    f"{{{name}}} uses a validation score and needs validation; enable {{validate}}, or omit {{{name}}}",
                    setting=dict.fromkeys((name, "validate")),
                )
    count = num_processes or len(plan.ranks)
    if not set(plan.ranks) <= set(range(count)):
        raise InputError(
            "plan.ranks_not_of_job", f"the plan uses ranks {sorted(plan.ranks)}, expected 0 to {count - 1}"
        )
    num_minibatches = 2 * max(plan.num_microbatches, *(stage.round for stage in plan.stages)) + len(plan.ranks) + 1
    check_runs(compile(plan, num_minibatches))
    if config.synchronised_batch_norm:
        _check_synchronised(plan, num_minibatches)


def accumulating(plan: Plan, count: int | None) -> Plan:
    """Return a plan whose weight updates are of `count` minibatches: of rounds if each stage updates by itself.

    `count` None: as the plan has it. What was expected of a step of another length is left out.
    """
    if count is None:
        return plan
    changed = [
        replace(pipeline, num_microbatches=count) if pipeline.updates_by_step else replace(pipeline, accumulation=count)
        for pipeline in plan.pipelines
    ]
    if tuple(changed) == plan.pipelines:
        return plan
    return plan.with_pipelines(replace(pipeline, estimate=None) for pipeline in changed)


def check_next_of_several(plan: Plan, num_processes: int, rule: Rule) -> None:
    """Raise InputError if one of several pipelines, which average by `rule`, cannot switch to a plan.

    It keeps all of its `num_processes` ranks: the others, and the run's record, know it by these.
    """
    if sorted(plan.ranks) != list(range(num_processes)):
        raise InputError(
            "replan.leaves_out_ranks",
            f"the plan uses ranks {sorted(plan.ranks)}, but a pipeline replica must keep all its ranks, 0 to "
            f"{num_processes - 1}",
        )
    check_rule(Plan.alike(plan, 2, rule))


def _check_synchronised(plan: Plan, num_minibatches: int) -> None:
    """Raise InputError if replicas with synchronised batch norm would wait for each other for ever."""
    for k, stage in enumerate(plan.stages):
        count = stage.num_replicas
        if count > 1 and len(set(stage.shares)) > 1:
            raise InputError(
                "batch_norm.unequal_shares",
                f"synchronized batch norm needs equal shares, but stage {k} has shares {stage.shares}; plan equal "
                "shares, or disable synchronized batch norm",
                shares=stage.shares,
            )
        if count > 1 and stage.segments and not stage.shares_scenes:
            raise InputError(
                "batch_norm.segments",
                f"synchronized batch norm: the {count} replicas of stage {k} cannot repeat segments of layers, because "
                "each would wait for the others' statistics; recompute the whole stage, or disable synchronized batch "
                "norm",
                stage=k,
            )
        if plan.updates_by_step and round_length(plan, k) % count:
            raise InputError(
                "batch_norm.part_of_round",
                f"synchronized batch norm: {number_of(round_length(plan, k), 'minibatch')} of a step cannot be "
                f"divided equally among {number_of(count, 'replica')} of stage {k}; choose a multiple for "
                f"{{num_microbatches}}",
                setting="num_microbatches",
            )
    try:
        check_runs(compile(plan, num_minibatches), synchronised=True)
    except InputError as error:
        raise error.within("synchronised batch norm: ") from None


def bytes_by_place(plan: Plan) -> tuple[float, ...] | None:
    """Return the bytes that a rank at each of the plan's `positions` needs; None if it has no estimate."""
    return tuple(one.memory_bytes for one in plan.position_estimates) if plan.estimate else None


def needed_bytes(plan: Plan, by_place: Sequence[float], ranks: Collection[int]) -> float:
    """Return the bytes that `ranks` need together. Raises InputError if there is not a number for each place."""
    if len(by_place) != len(plan.positions):
        raise InputError(
            "memory.place_count",
            f"memory is given for {number_of(len(by_place), 'rank')}, but the plan has {len(plan.positions)}",
        )
    places = zip(by_place, plan.positions, strict=True)
    return sum(each * len(set(ranks) & set(plan.stages[own[0]].ranks)) for each, own in places)


def check_memory(needed: float, config: RunConfig, *, held: float = 0.0) -> None:
    """Raise InputError if ranks of a job need more memory than this machine, on which they are, has for them.

    `held`: the bytes that the job has here now, which are those of its ranks. Of GPUs nothing is known here.
    """
    if config.device != "cpu" or not config.workload.trains:
        return
    room = available_bytes() + held
    if needed > room:
        raise InputError(
            "memory.too_little",
            f"the plan needs {needed / 1e9:.1f} GB, but this job has {room / 1e9:.1f} GB; plan with less memory per "
            "device",
        )


def held_bytes(run_dir: Path) -> float | None:
    """Return the bytes that the workers here of the job at work in `run_dir` hold now; None if there are none here."""
    found: list[int] = []
    for path in (run_dir / "logs").glob("rank*.pid"):
        try:
            rows = Path(f"/proc/{int(path.read_text())}/status").read_text().splitlines()
            found += [int(row.split()[1]) * 1024 for row in rows if row.startswith("RssAnon:")]
        except (OSError, ValueError):
            continue  # it is about to start, or this is another system
    return float(sum(found)) if found else None


FORWARD_ONLY = "forward_only.json"
PREDICTIONS = "predictions.npz"


@dataclass(frozen=True)
class ForwardOnly:
    """The folder of the checkpoint whose weights a run of forwards alone uses, and what its summary calls that."""

    checkpoint: Path
    named: str

    @classmethod
    def of_run(cls, run_dir: Path) -> "ForwardOnly | None":
        """Read what a run's folder says; None for one that trains. Raises InputError if it is damaged."""
        path = run_dir / FORWARD_ONLY
        if not path.exists():
            return None
        document = read_json(path, what="run of forwards alone")
        if not isinstance(document, dict) or "checkpoint" not in document:
            raise InputError("run.checkpoint_unnamed", f"{path}: does not name a checkpoint; start a new run")
        checkpoint = text(document["checkpoint"], "checkpoint")
        return cls(Path(checkpoint), text(document.get("named", checkpoint), "named"))

    def to_json(self) -> dict[str, str]:
        """Return the file's content: on another host the checkpoint lies elsewhere than where it is called from."""
        return {"checkpoint": str(self.checkpoint), "named": self.named}


def write_forward_only(run_dir: Path, checkpoint: Path) -> None:
    """Make a run one of forwards alone. Its workers are not started yet."""
    write_json(run_dir / FORWARD_ONLY, ForwardOnly(checkpoint, str(checkpoint)).to_json())
