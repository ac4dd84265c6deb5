"""The optimal planner: exact search over cuts, device groups, orders and shares, with a proven lower bound."""

import time
from dataclasses import dataclass, field, replace
from math import inf

from ...errors import InputError
from ...util.io.fields import MOST
from ...util.io.settings import Choice, Flag, Number, Settings, WholeNumber, setting
from ...values.plan import Estimate, Plan, StageEstimate
from ..base import COMPRESSION_RATIO, Problem
from ..cuts import Cuts
from ..device_groups import device_classes
from ..estimate import baseline_data_parallel, estimate
from ..forecast import steady_rate
from ..published.contiguous import contiguous_plan
from ..simulator import simulate
from .chain_search import Path
from .connected_orders import paths_along_connected_stages
from .connected_stages import ConnectedStages
from .connected_stages_bound import connected_stages_bound
from .counted_search import counted_search
from .cut_profile_bound import CutProfile
from .frontier_cuts import FrontierCuts
from .graph_search import StageEnds, nothing_fits, over_sets
from .guided_path import devices_in_order, guided_path
from .improvement import deepened, masks_nearby
from .joined_nodes import JoinedNodes
from .lagrangian_bound import lagrangian_bound, placed_bound
from .like_node_search import paths_on_like_nodes
from .listed_cuts import ListedCuts
from .min_latency import least_latency
from .min_period import minimise_period
from .min_step_time import LeastSum, StepModel, minimise_step, sum_and_limit
from .network_time import least_period, space_near, whole_space
from .order_search import order_of, paths_nearby
from .placed_stages import Placements
from .priced_stages import PricedStages
from .relaxed_bound import is_close, relaxed_bound, work_bound
from .returning_stages import returning_stages
from .search_space import (
    MAX_CUTS,
    Rules,
    Space,
    branching_space,
    fits,
    frontier_space,
    merged,
    order_space,
    orders_on_like_nodes,
    spaces,
    symmetric_space,
    with_cuts,
)
from .stage_cost_tables import StageModel
from .walk_bound import walk_bound

CONTIGUOUS = "dnn-partitioning"
OBJECTIVES = PERIOD, LATENCY = ("period", "latency")
_DEVICES_AT_A_CUT = 1.5  # that send what crosses it: few cuts that need more are worth their bytes
_ROUNDS = 3  # of searches over the cheapest cuts
_JUDGED = 20  # plans that are looked at again with the time of what they send
_GUIDED_SECONDS = 3.0  # of the processor, for orders of devices
_GUIDED_ON_MANY = 1.0  # the same on more than _FEW_NODES, where devices are counted after
_FEW_NODES = 8
_CONNECTED_SECONDS = 3.0  # of the processor, for what unlike devices are good at
_GUIDED_GAP = 0.003  # between a period that was found and one that was not, which is not worth a second
COST_MODELS = ("default", "published", CONTIGUOUS)


@dataclass(frozen=True, repr=False)
class Optimal(Settings):
    """Exact search for the minimum iteration time (asynchronous) or step time (synchronous schedules), or latency.

    Searched: every cut of the graph, replication by any devices, types in any order along the pipeline, mixed types in
    one stage with shares in proportion to their speeds, devices left unused (unless `all_devices`), within each
    device's memory. If that is too much, parts of it are searched, and the gap says how much better a plan could be
    at most. If the schedule places two stages on each device, as "1f1b-v" does, owner maps are searched instead
    (returning_stages.py).

    `cost_model="published"` is `published_model`, "dnn-partitioning" that of published/contiguous.py: no replicas,
    transfers added to a stage's load. `quick`: where cuts or devices are too many to search, look at those along an
    order of the layers, and of the devices, alone. `objective="latency"` plans forwards alone (min_latency.py): its
    estimate is that of inference, and the gap that of the latency. With `rescore` the gap counts from the best period.
    """

    cost_model: str = setting(
        "default",
        Choice(COST_MODELS),
        "cost model. published: that of SparsePipe (2020), corrected; dnn-partitioning: that of its graphs",
    )
    all_devices: bool = setting(False, Flag(), "plans that use all devices")
    activation_compression_ratio: float | None = field(
        default=None, metadata=COMPRESSION_RATIO
    )  # of the published cost model; None: transfers are free
    rescore: int = setting(1, WholeNumber(1), "number of best plans to simulate; the fastest is chosen", unit="K")
    most_stages: int | None = setting(None, WholeNumber(1), "maximum number of stages of the plan", words="no limit")
    quick: bool = setting(False, Flag(), "planning within 0.1 s, with a larger optimality gap")
    objective: str = setting(
        PERIOD, Choice(OBJECTIVES), "minimised objective: period (time per minibatch), or latency of inference"
    )
    period_at_most: float | None = setting(
        None,
        Number(0, MOST, above=True),
        "maximum time between two inputs in seconds, for --objective latency",
        unit="S",
    )
    name = "optimal"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_cost_model()
        self._check_objective()

    def _check_cost_model(self) -> None:
        """Raise InputError if an option means nothing to the cost model."""
        if self.activation_compression_ratio is not None and self.cost_model != "published":
            raise InputError(
                "planner.option_of_published",
                "{activation_compression_ratio} requires the published cost model; give {cost_model}",
                setting={"activation_compression_ratio": None, "cost_model": "published"},
            )
        for name in ("all_devices", "rescore", "most_stages", "quick"):
            if self.cost_model == CONTIGUOUS and getattr(self, name) != getattr(type(self), name):
                raise InputError(
                    "planner.option_of_default",
                    f"{{{name}}} does not apply to {{cost_model}}; omit it",
                    setting={name: None, "cost_model": CONTIGUOUS},
                )

    def _check_objective(self) -> None:
        """Raise InputError if another option does not go with the objective."""
        if self.objective == PERIOD:
            if self.period_at_most is not None:
                text = "{period_at_most} requires {objective}; otherwise the period is minimized"
                raise InputError("objective.of_latency", text, setting={"period_at_most": None, "objective": LATENCY})
            return
        for name in ("cost_model", "all_devices", "activation_compression_ratio", "rescore", "most_stages"):
            if getattr(self, name) != getattr(type(self), name):
                raise InputError(
                    "objective.not_of_latency",
                    f"{{{name}}} does not apply to {{objective}}; omit it",
                    setting={name: None, "objective": LATENCY},
                )

    def _check_returning(self, problem: Problem) -> None:
        """Raise InputError for an option that is not searched with several stages per device."""
        for name in ("cost_model", "rescore", "most_stages", "objective"):
            if getattr(self, name) != getattr(type(self), name):
                raise InputError(
                    "planner.option_of_one_stage",
                    f"{{{name}}} requires a schedule of one stage per device, but {problem.schedule!r} places "
                    f"{problem.rules.stages_per_rank[0]}; omit it",
                    setting=name,
                )

    def plan(self, problem: Problem) -> Plan:
        """Raises InputError if no plan fits into memory."""
        if problem.rules.stages_per_rank[0] > 1:
            self._check_returning(problem)
            return returning_stages(problem, self.name, all_devices=self.all_devices, quick=self.quick)
        if self.cost_model == CONTIGUOUS:
            return contiguous_plan(problem, self.name)
        if self.objective == LATENCY:
            return least_latency(problem, self.period_at_most, self.name)
        candidates, bound = self._search(problem)
        candidates.sort(key=lambda one: one.value)
        if self.cost_model == "default" and problem.table.is_read_again:
            plans = self._with_reading(problem, candidates, bound)
        else:
            plans = [self._plan(problem, one, bound) for one in candidates[: self.rescore]]
        return max(plans, key=lambda plan: _simulated_rate(plan, problem)) if len(plans) > 1 else plans[0]

    def _with_reading(self, problem: Problem, found: list["Found"], bound: float) -> list[Plan]:
        """The best plans by estimates, which count that later stages read minibatches again: the search leaves it out.

        So a plan in one stage, which reads them once, may be better than all that the search found.
        """
        plans = [self._plan(problem, candidate, bound) for candidate in found[:_JUDGED]]
        together = replace(baseline_data_parallel(problem), planner=self.name)
        expected = estimate(together, problem)
        kinds = [problem.cluster.devices[rank].type for rank in together.ranks]
        if all(expected.stages[0].memory_bytes <= kind.memory_bytes for kind in kinds):
            lower = min(bound, expected.period_seconds)
            plans.append(replace(together, estimate=replace(expected, lower_bound_seconds=lower)))
        return sorted(plans, key=lambda plan: plan.estimate.period_seconds if plan.estimate else inf)[: self.rescore]

    def _search(self, problem: Problem) -> tuple[list["Found"], float]:
        """(paths found, a proven lower bound of the period)."""
        if self.most_stages is not None:
            return self._search_few_stages(problem, self.most_stages)
        if self.cost_model != "default" or not problem.cluster.sending_costs:
            return self._search_stages(problem)
        if space := whole_space(problem, self._rules):
            if reason := self._refusal(space):
                raise InputError("planner.too_large", reason)
            return self._minimise(problem, space)
        candidates, low = self._search_stages(problem)
        return self._with_network_time(problem, candidates, low), low

    def _search_few_stages(self, problem: Problem, stages: int) -> tuple[list["Found"], float]:
        """`_search` for plans of at most so many stages; the time that devices take for sending counts at the end."""
        found: list[Found] = []
        refused, bound = "", 0.0
        for space in spaces(problem, self._rules):
            limited = space.at_most(problem, min(stages, len(problem.cluster.devices)))
            if not fits(problem, self._rules, limited.model.cuts, len(limited.moves.source)):
                continue
            if reason := self._refusal(limited):
                refused = reason
                continue
            paths, low = self._minimise(problem, limited)
            found += paths
            if space.complete:
                bound = low
                break
            bound = (
                work_bound(problem)
                if self.cost_model == "default"
                else float(limited.model.work[-1] / limited.moves.spare[0])
            )
        if not found:
            text = "plans of so few stages are too many to search: expected fewer devices, or no {most_stages}"
            raise InputError("planner.no_plan", refused or text, setting="most_stages")
        if self.cost_model == "default" and problem.cluster.sending_costs:
            nearest = sorted(found, key=lambda one: one.value)[:_JUDGED]
            found = [replace(one, value=self._period(problem, one)) for one in nearest]
        return found, bound

    def _with_network_time(self, problem: Problem, found: list["Found"], low: float) -> list["Found"]:
        """Paths by what they take with the time for what they send; that of `found`, and of `low`, leaves it out."""
        nearest = sorted(found, key=lambda one: one.value)[:_JUDGED]
        judged = [replace(one, value=self._period(problem, one)) for one in nearest]
        best = min(judged, key=lambda one: one.value)
        plan, masks = self._plan(problem, best, low), best.space.masks(best.path)
        space = None if self.quick else space_near(problem, self._rules, plan, masks)
        more = self._minimise(problem, space)[0][-1:] if space and not self._refusal(space) else []
        return [*judged, *(replace(one, value=self._period(problem, one)) for one in more)]

    def _period(self, problem: Problem, found: "Found") -> float:
        """Seconds per minibatch of a path's plan, as it is estimated."""
        expected = self._plan(problem, found, 0.0).estimate
        assert expected is not None
        return expected.period_seconds

    def _search_stages(self, problem: Problem) -> tuple[list["Found"], float]:
        """`_search` by what stages compute and boundaries carry."""
        candidates: list[Found] = []
        refused = ""
        for space in spaces(problem, self._rules):
            reason = self._refusal(space)
            if reason:
                refused = reason
                continue
            paths, bound = self._minimise(problem, space)
            candidates += paths
            if space.complete:
                return candidates, bound
            if len(candidates) == len(paths) and (low := self._settled(problem, candidates)):
                return candidates, low
        if not candidates:
            raise InputError(
                "planner.no_plan", refused or "the network and the cluster are too large to plan; use fewer devices"
            )
        return self._with_listed_cuts(problem, candidates)

    @property
    def _rules(self) -> Rules:
        return Rules(self.cost_model == "published", self.activation_compression_ratio, self.all_devices)

    def _refusal(self, space: Space) -> str:
        """Return why no plan of this space fits into memory; empty if one does."""
        if space.memory is None:
            return ""
        ends = StageEnds(space.model)
        if over_sets(ends, space.moves, float("inf"), memory=space.memory, all_devices=self.all_devices):
            return ""
        return nothing_fits(ends, space.moves, space.memory, self.all_devices)

    def _settled(self, problem: Problem, found: list["Found"]) -> float | None:
        """A bound of steps that flush on several nodes, if it is so near what was found that no more is looked for.

        Other searches take seconds each there.
        """
        if not problem.synchronous or self.quick or self.cost_model != "default" or len(problem.cluster.nodes) == 1:
            return None
        listed, period = ListedCuts.of(problem), min(candidate.value for candidate in found)
        low = walk_bound(problem, CutProfile.of(listed), low=0.0, high=period) if listed else 0.0
        return low if is_close(low, period) else None

    def _minimise(self, problem: Problem, space: Space, known: Path | None = None) -> tuple[list["Found"], float]:
        """(paths of a space with their periods, a lower bound of all periods in this space); `known` is one of them."""
        model = space.model
        if model.network is not None and not problem.synchronous:
            paths = least_period(space, all_devices=self.all_devices)
            return [Found(space, path, model.period(path)) for path in paths], model.period(paths[-1])
        if not problem.synchronous or self.cost_model == "published":
            ends = StageEnds(model)
            paths = minimise_period(ends, space.moves, memory=space.memory, all_devices=self.all_devices, known=known)
            return [Found(space, path, model.period(path)) for path in paths], model.period(paths[-1])
        steps = StepModel.of(problem, model)
        answer = minimise_step(steps, LeastSum(steps, space.moves, model.cuts.follows, space.memory))
        assert answer is not None
        paths, bound = answer
        count = 1 if problem.rules.one_minibatch_at_a_time else problem.num_microbatches
        return [Found(space, path, steps.total(*sum_and_limit(steps, path)) / count) for path in paths], bound / count

    def _with_listed_cuts(self, problem: Problem, found: list["Found"]) -> tuple[list["Found"], float]:
        """More paths, over the best of all cuts where these can be listed, and a bound; where not all were searched."""
        searched = found[0].space
        if self.cost_model != "default":
            return found, float(searched.model.work[-1] / searched.moves.spare[0])
        if self.quick and len(problem.cluster.nodes) == 1:
            return found, work_bound(problem)
        low, relaxed, easily = self._easier(problem, searched)
        if max(len(node.device_types) for node in problem.cluster.nodes) == 1:
            found = [*found, *easily]  # every two devices are joined by the network, there as here
        if self.quick:
            return found, low
        cuts = Cuts.of(problem.table, problem.layers, limit=MAX_CUTS)
        if cuts.complete and cuts.is_chain and not problem.synchronous:
            return self._with_guided_orders(problem, cuts, found, low)
        found, low = self._with_like_nodes(problem, cuts, found, low)
        period = min(candidate.value for candidate in found)
        several = cuts.complete and len(problem.cluster.nodes) > 1 and not problem.synchronous
        if several and not is_close(low, period) and (placed := Placements.of(problem, cuts)):
            low = placed_bound(placed, low=low, high=period)
        listed, more = None if is_close(low, period) else ListedCuts.of(problem), not searched.model.cuts.complete
        connected = False
        if more and not listed and not is_close(low, period):
            connected, found, low = self._with_connected_stages(problem, found, low)
            period = min(candidate.value for candidate in found)
        space = branching_space(problem, self._rules, searched, listed) if listed and more else None
        if space and not self._refusal(space):
            found = [*found, *self._minimise(problem, space)[0]]
        elif not listed and more and not connected and not is_close(low, period):
            found = self._with_frontier_cuts(problem, searched, found)
        period = min(candidate.value for candidate in found)
        low = relaxed_bound(problem, relaxed, listed, low=low, period=period)
        return self._with_layers_moved(problem, found, low), low

    def _with_layers_moved(self, problem: Problem, found: list["Found"], low: float) -> list["Found"]:
        """One more path if some other cuts on the same groups are better than those of the best."""
        best = min(found, key=lambda one: one.value)
        if problem.synchronous or best.space.memory is not None or len(best.path) == 1 or is_close(low, best.value):
            return found
        cuts = best.space.model.cuts
        masks = masks_nearby(problem, best.space, best.path)
        space = with_cuts(problem, self._rules, best.space, Cuts.chosen(cuts.layers, cuts.inputs, {0, *masks}))
        ends = zip([0, *masks], masks, strict=False)
        cut_of = {mask: cut for cut, mask in enumerate(space.model.cuts.masks)}
        path = [(group, cut_of[a], cut_of[b]) for (group, _, _), (a, b) in zip(best.path, ends, strict=True)]
        return [*found, Found(space, path, space.model.period(path))]

    def _with_guided_orders(
        self, problem: Problem, cuts: Cuts, found: list["Found"], low: float
    ) -> tuple[list["Found"], float]:
        """More paths, along orders of the devices in which prices of them say that a better plan may be, and a bound.

        If even the bound cannot be near the best, periods between the two are tried, each half as far as is open.
        """
        if max(len(node.device_types) for node in problem.cluster.nodes) == 1:
            problem = merged(problem)
        joined, classes = JoinedNodes.of(problem, cuts), device_classes(problem.cluster)
        best = min(candidate.value for candidate in found)
        low = lagrangian_bound(joined, low=low, high=best)
        seconds = _GUIDED_SECONDS if len(problem.cluster.nodes) <= _FEW_NODES else _GUIDED_ON_MANY
        failed, until = low, time.process_time() + seconds
        while best - failed > _GUIDED_GAP * best and time.process_time() < until:
            tried = (failed + best) / 2
            stages = PricedStages(joined, tried)
            path = guided_path(stages, [*stages.ever_dearer()])
            order = devices_in_order(joined, path, classes) if path else ()
            space = order_space(problem, self._rules, cuts, order) if order else None
            more = self._minimise(problem, space)[0] if space and not self._refusal(space) else []
            period = min((candidate.value for candidate in more), default=inf)
            if period >= best:
                failed = tried
                continue
            found, best = [*found, *more], period
        placed = Placements.of(problem, cuts) if len(problem.cluster.nodes) > 1 else None
        if placed:  # last: the periods that are tried are those between bounds by types alone
            low = placed_bound(placed, low=low, high=best)
        space = None if is_close(low, best) or self.all_devices else symmetric_space(problem, cuts)
        if space is None:
            return self._on_many_nodes(problem, cuts, found, low, placed)
        paths = minimise_period(StageEnds(space.model), space.moves, least=low)
        every = [Found(space, path, space.model.period(path)) for path in paths]
        return [*found, *every], every[-1].value

    def _on_many_nodes(
        self, problem: Problem, cuts: Cuts, found: list["Found"], low: float, placed: Placements | None
    ) -> tuple[list["Found"], float]:
        """More paths of a chain on several nodes, by counts of devices and near the best of all so far, and a bound."""
        best = min(found, key=lambda one: one.value)
        limited = any(kind.memory_bytes < inf for kind in problem.cluster.device_types)
        if is_close(low, best.value) or self.all_devices or limited or len(problem.cluster.nodes) == 1:
            return found, low
        if placed:
            more, low = counted_search(problem, self._rules, cuts, placed, low=low, high=best.value)
            found = [*found, *(Found(space, path, space.model.period(path)) for space, path in more)]
            best = min(found, key=lambda one: one.value)
        order = order_of(best.space, best.path)
        nearby = paths_nearby(problem, self._rules, cuts, order, low=low, high=best.value)
        return [*found, *(Found(space, path, space.model.period(path)) for space, path in nearby)], low

    def _with_like_nodes(
        self, problem: Problem, cuts: Cuts, found: list["Found"], low: float
    ) -> tuple[list["Found"], float]:
        """More paths of a branching network on several nodes of which some are identical, and a bound."""
        period = min(candidate.value for candidate in found)
        if problem.synchronous or self.all_devices or is_close(low, period):
            return found, low
        if not (known := orders_on_like_nodes(problem, cuts)):
            return found, low
        space, orders = known
        paths, proven = paths_on_like_nodes(space, orders, low=low, high=period)
        more = [Found(space, path, space.model.period(path)) for path in paths]
        return [*found, *more], proven if cuts.complete else low

    def _with_connected_stages(
        self, problem: Problem, found: list["Found"], low: float
    ) -> tuple[bool, list["Found"], float]:
        """(whether there are any, more paths, a bound), by what is between two cuts that unlike devices are good at."""
        kinds = {device.type for device in problem.cluster.devices}
        limited = any(kind.memory_bytes < inf for kind in kinds)
        if problem.synchronous or self.all_devices or limited or len({kind.name for kind in kinds}) == 1:
            return False, found, low
        best = min(found, key=lambda one: one.value)
        stages = ConnectedStages.of(problem, best.value, time.process_time() + _CONNECTED_SECONDS)
        low = connected_stages_bound(problem, stages, low=low, high=best.value)
        near = best.space, best.path
        paths = paths_along_connected_stages(problem, self._rules, stages, near, low=low, high=best.value)
        more = [Found(space, path, space.model.period(path)) for space, path in paths]
        return bool(more), [*found, *more], low

    def _with_frontier_cuts(self, problem: Problem, searched: Space, found: list["Found"]) -> list["Found"]:
        """More paths where cuts cannot be listed: over the cheapest cut for each amount of work, then near the best."""
        period = min(one.value for one in found)
        bandwidth = merged(problem).cluster.network.bandwidth
        most_bytes = inf if problem.synchronous else _DEVICES_AT_A_CUT * period * bandwidth
        frontier, around = FrontierCuts.of(problem, most_bytes=most_bytes), list[float]()
        same_groups = [one for one in found if one.space.model.groups is searched.model.groups]
        if not frontier:
            return found
        for _ in range(_ROUNDS):
            best = min(same_groups, key=lambda one: one.value)
            masks = best.space.masks(best.path)
            space = frontier_space(problem, self._rules, best.space, frontier, masks, around)
            if not space or self._refusal(space):
                break
            more = self._minimise(problem, space, known=best.path_on(space))[0][1:]
            same_groups, found = [*same_groups, *more], [*found, *more]
            best = min(same_groups, key=lambda one: one.value)
            around = best.space.boundaries(best.path)
        return found

    def _easier(self, problem: Problem, searched: Space) -> tuple[float, Space, list["Found"]]:
        """(a bound of every plan's period, a space on one node, paths of it): on the best links no plan does worse."""
        if len(problem.cluster.nodes) > 1:
            easier = merged(problem)
            for space in spaces(easier, self._rules):
                if space.complete and not self._refusal(space):
                    paths, low = self._minimise(easier, space)
                    return low, space, paths
                searched = space
        return work_bound(problem), searched, []

    def _plan(self, problem: Problem, found: "Found", bound: float) -> Plan:
        model, taken, stages = found.space.model, set[int](), []
        for group, first, last in found.path:
            ranks, shares = model.groups.ranks(group, taken)
            taken.update(ranks)
            stages.append(problem.stage(model.cuts.between(first, last), ranks, shares))
        total = len(problem.cluster.devices)
        unused = f"{total - len(taken)} of {total} devices stay unused: the plan is no faster with them"
        plan = problem.plan(stages, self.name, [unused] if len(taken) < total else [])
        if self.cost_model == "published":
            expected = published_estimate(model, found.path, estimate(plan, problem))
        else:
            plan = deepened(plan, problem)
            expected = estimate(plan, problem)
        proven = bound >= expected.period_seconds * (1 - 1e-12)
        lower = expected.period_seconds if proven else bound
        return replace(plan, estimate=replace(expected, lower_bound_seconds=lower))


@dataclass(frozen=True, eq=False)
class Found:
    """A path, the space it is of, and its period."""

    space: Space
    path: Path
    value: float

    def path_on(self, space: Space) -> Path:
        """The path in another space of the same groups that has its cuts."""
        cut_of = {mask: cut for cut, mask in enumerate(space.model.cuts.masks)}
        masks = self.space.model.cuts.masks
        return [(group, cut_of[masks[first]], cut_of[masks[last]]) for group, first, last in self.path]


def _simulated_rate(plan: Plan, problem: Problem) -> float:
    """Minibatches per second in steady state, as simulated."""
    count = 4 * (len(plan.ranks) + 2 * max(plan.num_microbatches, *(stage.round for stage in plan.stages)))
    trace = simulate(plan, problem.profile, problem.cluster, [problem.size] * count)
    return steady_rate(trace, plan, count)


def published_estimate(model: StageModel, path: Path, expected: Estimate) -> Estimate:
    """The estimate in the published cost model's terms."""
    stages = []
    for stage, published_stage in zip(expected.stages, path, strict=True):
        seconds = float(model.seconds(*published_stage))
        stages.append(StageEstimate(seconds, stage.memory_bytes, sent_bytes=stage.sent_bytes))
    return replace(expected, period_seconds=model.period(path), stages=tuple(stages))
