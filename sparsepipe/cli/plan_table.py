"""Compare several plans as text: a column for each, and what moves from the first plan to each of the others."""

from collections.abc import Callable, Sequence

from ..display.numbers import duration_or_none, gap_text, rate_text, scaled_bytes
from ..plan import Estimate, Plan
from ..profile import Profile


def _slowest(plan: Plan, estimate: Estimate) -> str:
    """Which stage takes longest and with what; interleaved, the stages of the device that takes longest."""
    found = [
        (position, sum(estimate.stages[k].transfer_seconds for k in position.stages))
        for position in plan.position_estimates
    ]
    slowest, transfers = max(found, key=lambda pair: max(pair[0].busy_seconds, pair[1]))
    name = ", ".join(map(str, slowest.stages))
    if transfers > slowest.busy_seconds:
        return f"{name}: transfers"
    return f"{name}: {'averaging' if slowest.averaging_seconds > slowest.compute_seconds else 'compute'}"


Cell = Callable[[Plan, Estimate], str]
ROWS: tuple[tuple[str, Cell], ...] = (
    ("time per minibatch", lambda plan, e: duration_or_none(e.period_seconds)),
    ("over one device", lambda plan, e: _times(e.single_device_seconds, e.period_seconds)),
    ("over data parallelism", lambda plan, e: _times(e.data_parallel_seconds, e.period_seconds)),
    ("lower bound", lambda plan, e: duration_or_none(e.lower_bound_seconds)),
    ("gap to the bound", lambda plan, e: "–" if e.gap is None else gap_text(e.gap)),
    ("stages", lambda plan, e: str(len(plan.stages))),
    ("devices", lambda plan, e: str(len(plan.ranks))),
    ("slowest stage", _slowest),
    (
        "fullest device",
        lambda plan, e: scaled_bytes(max(position.memory_bytes for position in plan.position_estimates)),
    ),
    ("sent per minibatch", lambda plan, e: scaled_bytes(sum(stage.sent_bytes for stage in e.stages))),
    ("schedule", lambda plan, e: f"{plan.schedule} ({plan.weights})"),
    ("planning time", lambda plan, e: duration_or_none(e.plan_seconds)),
)


def throughput(rate: float, profile: Profile) -> str:
    """Return a rate of minibatches in samples/s; as it is where the profile does not say how many samples one has."""
    if profile.batch_size:
        return rate_text(profile.batch_size * rate)
    return rate_text(rate, "minibatches")


def side_by_side(plans: Sequence[Plan], profile: Profile) -> str:
    """Compare plans that have estimates of one cost model, as `planners.comparable` gives them."""

    def pace(plan: Plan, estimate: Estimate) -> str:
        return throughput(1 / estimate.period_seconds, profile) if estimate.period_seconds else "–"

    rows: list[tuple[str, Cell]] = [ROWS[0], ("throughput", pace), *ROWS[1:]]
    columns = [["", *(name for name, _ in rows)]]
    for plan in plans:
        assert plan.estimate is not None
        columns.append([plan.planner, *(cell(plan, plan.estimate) for _, cell in rows)])
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join([cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))])
        for cells in zip(*columns, strict=True)
    ]
    return "\n\n".join(["\n".join(lines), str(plans[0]), *(str(plans[0].diff(other)) for other in plans[1:])])


def _times(before: float | None, after: float) -> str:
    return f"{before / after:.2f} ×" if before and after else "–"
