"""The optimal planner: exact search over cuts, device groups, orders and shares, with a proven lower bound."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
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
from .chain_search import Path, along_chain
from .connected_stages import ConnectedStages, connected_stages_bound, paths_along_connected_stages
from .counted_search import counted_search
from .fewest_devices import paths_over_listed
from .frontier_cuts import FrontierCuts, ListedCuts
from .graph_search import StageEnds, nothing_fits, over_sets
from .improvement import SECONDS, deepened, masks_nearby
from .known_plans import (
    INTERRUPTED,
    Found,
    Known,
    PlanProgress,
    devices_in_order,
    guided_path,
    path_of_plan,
    timed_model,
)
from .like_node_search import paths_on_like_nodes
from .like_nodes import JoinedNodes
from .min_latency import least_latency
from .min_period import minimise_period
from .min_step_time import LeastSum, StepModel, minimise_step
from .narrow_cut_bound import CutProfile
from .network_time import least_period, space_near, whole_space
from .order_search import order_of, paths_nearby
from .placed_stages import Placements
from .priced_stages import PricedStages
from .recomputed_segments import is_limited, segmented_plan
from .relaxed_bound import frontier_with_sums, lagrangian_bound, placed_bound, relaxed_bound, work_bound
from .returning_stages import returning_stages
from .search_space import (
    MAX_CUTS,
    Rules,
    Space,
    are_counted,
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
_MOVED_SECONDS = 2.0  # of the processor, for moving layers between stages of identical devices
_JUDGED = 20  # plans that are looked at again with the time of what they send
_GUIDED_SECONDS = 3.0  # of the processor, for orders of devices
_GUIDED_ON_MANY = 1.0  # the same on more than _FEW_NODES, where devices are counted after
_FEW_NODES = 8
_CONNECTED_SECONDS = 3.0  # of the processor, for what unlike devices are good at
_GUIDED_GAP = 0.003  # between a period that was found and one that was not, which is not worth a second
_WORTH = 5e-4  # of a period, by which a plan is to be better
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

    If stages are to be recomputed on devices with a memory limit, only the layers that the limit requires are
    (recomputed_segments.py): nothing, segments of layers or the whole stage, whichever is cheapest; `segments=False`
    recomputes all stages.
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
    segments: bool = setting(
        True, Flag(), "recomputation of only the layers that a memory limit requires (otherwise whole stages)"
    )
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

    def _check_returning(self, problem: Problem, warm_start: Plan | None) -> None:
        """Raise InputError for an option that is not searched with several stages per device."""
        options = ("cost_model", "rescore", "most_stages", "objective")
        changed = [name for name in options if getattr(self, name) != getattr(type(self), name)]
        for name in [*changed, *(["warm_start"] if warm_start else [])]:
            raise InputError(
                "planner.option_of_one_stage",
                f"{{{name}}} requires a schedule of one stage per device, but {problem.schedule!r} places "
                f"{problem.rules.stages_per_rank[0]}; omit it",
                setting=name,
            )

    def plan(
        self,
        problem: Problem,
        *,
        progress: Callable[[PlanProgress], object] | None = None,
        warm_start: Plan | None = None,
    ) -> Plan:
        """Raises InputError if no plan fits into memory, or `warm_start` is not of these layers and devices.

        With `progress`, KeyboardInterrupt ends the search of a period: the best plan so far is returned.
        """
        if problem.rules.stages_per_rank[0] > 1:
            self._check_returning(problem, warm_start)
            return returning_stages(
                problem, self.name, all_devices=self.all_devices, quick=self.quick, progress=progress
            )
        if warm_start and (self.cost_model == CONTIGUOUS or self.objective == LATENCY):
            text = "{warm_start} does not apply to objective latency and cost model dnn-partitioning; omit it"
            raise InputError("planner.warm_start", text, setting="warm_start")
        if self.cost_model == CONTIGUOUS:
            return contiguous_plan(problem, self.name)
        if self.objective == LATENCY:
            return least_latency(problem, self.period_at_most, self.name)
        if self.segments and self.cost_model == "default" and is_limited(problem):
            whole = self.replace(segments=False)
            search = partial(whole.plan, progress=progress, warm_start=warm_start)
            return segmented_plan(problem, search, quick=self.quick, most_stages=self.most_stages)
        known, warnings = Known(progress), list[str]()
        start = path_of_plan(problem, self._rules, warm_start) if warm_start else None
        try:
            self._search(problem, known, start)
        except KeyboardInterrupt:
            if progress is None or not known.plans:
                raise
            warnings.append(INTERRUPTED)
        candidates, bound = sorted(known.plans, key=lambda one: one.value), known.low
        if self.cost_model == "default" and problem.table.is_read_again:
            plans = self._with_reading(problem, candidates, bound)
        else:
            plans = [self._plan(problem, one, bound) for one in candidates[: self.rescore]]
        best = max(plans, key=lambda plan: _simulated_rate(plan, problem)) if len(plans) > 1 else plans[0]
        return replace(best, warnings=(*warnings, *best.warnings))

    def _with_reading(self, problem: Problem, found: list[Found], bound: float) -> list[Plan]:
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

    def _search(self, problem: Problem, known: Known, start: Found | None = None) -> None:
        """Search plans, and a proven lower bound of the period; `start` is one of them."""
        known.quiet = sending = self.cost_model == "default" and problem.cluster.sending_costs
        if start and self._allows(problem, start):
            known.add([start])
        if self.most_stages is not None:
            self._search_few_stages(problem, self.most_stages, known)
            return
        if not sending:
            self._search_stages(problem, known)
            return
        if space := whole_space(problem, self._rules):
            if reason := self._refusal(space):
                raise InputError("planner.too_large", reason)
            known.judge([])  # all plans are searched, with what they send
            self._minimise(problem, space, known)
            return
        self._search_stages(problem, known)
        self._with_network_time(problem, known)

    def _allows(self, problem: Problem, start: Found) -> bool:
        """Return whether a plan to start from has no more stages and no fewer devices than this planner's plans."""
        every = start.space.moves.used[-1] == len(problem.cluster.devices)
        return (every or not self.all_devices) and (self.most_stages is None or len(start.path) <= self.most_stages)

    def _search_few_stages(self, problem: Problem, stages: int, known: Known) -> None:
        """`_search` for plans of at most so many stages; the time that devices take for sending counts at the end."""
        refused, searched = "", False
        for space in spaces(problem, self._rules):
            limited = space.at_most(problem, min(stages, len(problem.cluster.devices)))
            if not fits(problem, self._rules, limited.model.cuts, len(limited.moves.source)):
                continue
            if reason := self._refusal(limited):
                refused = reason
                continue
            _, low = self._minimise(problem, limited, known)
            searched = True
            if space.complete:
                known.prove(low)
                break
            known.prove(
                work_bound(problem)
                if self.cost_model == "default"
                else float(limited.model.work[-1] / limited.moves.spare[0])
            )
        if not searched:
            text = "plans of so few stages are too many to search: expected fewer devices, or no {most_stages}"
            raise InputError("planner.no_plan", refused or text, setting="most_stages")
        if known.quiet:
            known.judge(self._judged(problem, known))

    def _judged(self, problem: Problem, known: Known) -> list[Found]:
        """The best plans with the time of what they send, which their values leave out."""
        nearest = sorted(known.plans, key=lambda one: one.value)[:_JUDGED]
        return [replace(one, value=self._period(problem, one)) for one in nearest]

    def _with_network_time(self, problem: Problem, known: Known) -> None:
        """Judge the plans with the time for what they send, and search near the best; the bound leaves it out."""
        known.judge(self._judged(problem, known))
        best = known.best
        plan, masks = self._plan(problem, best, known.low), best.space.masks(best.path)
        space = None if self.quick else space_near(problem, self._rules, plan, masks)
        more = self._minimise(problem, space)[0][-1:] if space and not self._refusal(space) else []
        known.add(replace(one, value=self._period(problem, one)) for one in more)

    def _period(self, problem: Problem, found: Found) -> float:
        """Seconds per minibatch of a path's plan, as it is estimated."""
        expected = self._plan(problem, found, 0.0).estimate
        assert expected is not None
        return expected.period_seconds

    def _search_stages(self, problem: Problem, known: Known) -> None:
        """`_search` by what stages compute and boundaries carry."""
        refused, searched = "", None
        for space in spaces(problem, self._rules):
            reason = self._refusal(space)
            if reason:
                refused = reason
                continue
            if not space.complete and searched is None and self.cost_model == "default":
                known.prove(work_bound(problem))
            self._minimise(problem, space, known)
            if space.complete:
                return
            if searched is None and self._is_settled(problem, known):
                return
            searched = searched or space
        if searched is None:
            raise InputError(
                "planner.no_plan", refused or "the network and the cluster are too large to plan; use fewer devices"
            )
        self._with_listed_cuts(problem, searched, known)

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

    def _is_settled(self, problem: Problem, known: Known) -> bool:
        """Return whether a bound of steps that flush on several nodes is so near that no more is looked for.

        Other searches take seconds each there.
        """
        if not problem.synchronous or self.quick or self.cost_model != "default" or len(problem.cluster.nodes) == 1:
            return False
        if listed := ListedCuts.of(problem):
            known.prove(walk_bound(problem, CutProfile.of(listed), low=0.0, high=known.period))
        return known.is_close

    def _minimise(
        self, problem: Problem, space: Space, known: Known | None = None, first: Path | None = None
    ) -> tuple[list[Found], float]:
        """(paths of a space with their periods, a lower bound of all periods in this space); `first` is one of them.

        `known` gets them as they are found, and the bound if the space is complete.
        """
        model, better = space.model, list[Found]()
        timed = timed_model(problem, space, published=self.cost_model == "published")

        def watch(path: Path, low: float) -> None:
            if not better or path is not better[-1].path:
                better.append(Found(space, path, timed.period(path)))
                if known:
                    known.add(better[-1:])
            if known and space.complete:
                known.prove(low)

        if isinstance(timed, StepModel):
            search, count = LeastSum(timed, space.moves, model.cuts.follows, space.memory), timed.minibatches
            answer = minimise_step(timed, search, lambda path, low: watch(path, low / count))
            assert answer is not None
            low = answer / count
        elif model.network is not None:
            low = model.period(least_period(space, all_devices=self.all_devices, watch=watch)[-1])
        else:
            paths = minimise_period(
                StageEnds(model),
                space.moves,
                memory=space.memory,
                all_devices=self.all_devices,
                known=first,
                watch=watch,
            )
            low = model.period(paths[-1])
        if known and space.complete:
            known.prove(low)
        return better, low

    def _with_listed_cuts(self, problem: Problem, searched: Space, known: Known) -> None:
        """More paths, over the best of all cuts where these can be listed, and a bound; where not all were searched."""
        if self.cost_model != "default":
            known.prove(float(searched.model.work[-1] / searched.moves.spare[0]))
            return
        if self.quick and len(problem.cluster.nodes) == 1:
            return
        relaxed = self._easier(problem, searched, known)
        if self.quick:
            return
        cuts = Cuts.of(problem.table, problem.layers, limit=MAX_CUTS)
        if cuts.complete and cuts.is_chain and not problem.synchronous:
            self._with_guided_orders(problem, cuts, known)
            return
        self._with_like_nodes(problem, cuts, known)
        several = cuts.complete and len(problem.cluster.nodes) > 1 and not problem.synchronous
        if several and not known.is_close and (placed := Placements.of(problem, cuts)):
            known.prove(placed_bound(placed, low=known.low, high=known.period))
        listed, more = None if known.is_close else ListedCuts.of(problem), not searched.model.cuts.complete
        connected = False
        if more and not listed and not known.is_close:
            connected = self._with_connected_stages(problem, known)
        unlisted = more and not listed and not known.is_close
        frontier = frontier_with_sums(problem, relaxed, known.period) if unlisted else None
        space = branching_space(problem, self._rules, searched, listed) if listed and more else None
        if space and not self._refusal(space):
            self._minimise(problem, space, known)
        elif unlisted and not connected:
            self._with_frontier_cuts(problem, searched, known, frontier)
        if not listed or not self._with_devices_counted(problem, relaxed, listed, known):
            known.prove(relaxed_bound(problem, relaxed, listed, frontier, low=known.low, period=known.period))
        counted = are_counted(problem, self._rules)  # paths over cuts leave little to be moved
        for _ in range(1 if counted else _ROUNDS):
            before = known.period
            self._with_layers_moved(problem, known, _MOVED_SECONDS if counted else SECONDS)
            self._with_groups_changed(problem, known)
            if known.period > before * (1 - _WORTH):
                break

    def _with_devices_counted(self, problem: Problem, relaxed: Space, listed: ListedCuts, known: Known) -> bool:
        """Add paths over all cuts, and a bound, if each two of identical devices have the same link; return whether."""
        nodes = problem.cluster.nodes
        one_node = merged(problem) if len(nodes) > 1 else problem
        joined = len(nodes) > 1 and max(len(node.device_types) for node in nodes) > 1
        if known.is_close or joined or not are_counted(one_node, self._rules):
            return False
        paths, low = paths_over_listed(one_node, self._rules, relaxed, listed, low=known.low, high=known.period)
        known.prove(low)
        known.add(Found(space, path, space.model.period(path)) for space, path in paths)
        return True

    def _with_groups_changed(self, problem: Problem, known: Known) -> None:
        """Add paths by every move on like nodes along an order of the layers that has the cuts of the best."""
        best = known.best
        if problem.synchronous or self.all_devices or known.is_close or len(best.path) == 1:
            return
        masks = best.space.masks(best.path)
        stage_of = [sum(not mask >> k & 1 for mask in masks) for k in range(len(problem.layers))]
        order = [problem.layers[k] for k in sorted(range(len(stage_of)), key=lambda k: stage_of[k])]
        space = symmetric_space(problem, Cuts.along(problem.table, order))
        while space and isinstance(path := along_chain(space.model, space.moves, known.period * (1 - _WORTH)), list):
            known.add([Found(space, path, space.model.period(path))])

    def _with_layers_moved(self, problem: Problem, known: Known, seconds: float) -> None:
        """One more path if some other cuts on the same groups are better than those of the best."""
        best = known.best
        if problem.synchronous or best.space.memory is not None or len(best.path) == 1 or known.is_close:
            return
        cuts = best.space.model.cuts
        masks = masks_nearby(problem, best.space, best.path, seconds=seconds)
        space = with_cuts(problem, self._rules, best.space, Cuts.chosen(cuts.layers, cuts.inputs, {0, *masks}))
        ends = zip([0, *masks], masks, strict=False)
        cut_of = {mask: cut for cut, mask in enumerate(space.model.cuts.masks)}
        path = [(group, cut_of[a], cut_of[b]) for (group, _, _), (a, b) in zip(best.path, ends, strict=True)]
        known.add([Found(space, path, space.model.period(path))])

    def _with_guided_orders(self, problem: Problem, cuts: Cuts, known: Known) -> None:
        """More paths, along orders of the devices in which prices of them say that a better plan may be, and a bound.

        If even the bound cannot be near the best, periods between the two are tried, each half as far as is open.
        """
        whole = problem
        if max(len(node.device_types) for node in problem.cluster.nodes) == 1:
            problem = merged(problem)
        joined, classes = JoinedNodes.of(problem, cuts), device_classes(problem.cluster)
        known.prove(lagrangian_bound(joined, low=known.low, high=known.period))
        seconds = _GUIDED_SECONDS if len(problem.cluster.nodes) <= _FEW_NODES else _GUIDED_ON_MANY
        failed, until = known.low, time.process_time() + seconds
        while known.period - failed > _GUIDED_GAP * known.period and time.process_time() < until:
            tried = (failed + known.period) / 2
            stages = PricedStages(joined, tried)
            path = guided_path(stages, [*stages.ever_dearer()])
            order = devices_in_order(joined, path, classes) if path else ()
            space = order_space(problem, self._rules, cuts, order) if order else None
            before = known.period
            if space and not self._refusal(space):
                self._minimise(problem, space, known)
            if known.period >= before:
                failed = tried
        placed = Placements.of(problem, cuts) if len(problem.cluster.nodes) > 1 else None
        if placed:  # last: the periods that are tried are those between bounds by types alone
            known.prove(placed_bound(placed, low=known.low, high=known.period))
        space = None if known.is_close or self.all_devices else symmetric_space(problem, cuts)
        if space is None:
            self._on_many_nodes(whole, cuts, known, placed)
            return
        paths = minimise_period(StageEnds(space.model), space.moves, least=known.low)
        known.add(Found(space, path, space.model.period(path)) for path in paths)
        known.prove(space.model.period(paths[-1]))

    def _on_many_nodes(self, problem: Problem, cuts: Cuts, known: Known, placed: Placements | None) -> None:
        """More paths of a chain on several nodes, by counts of devices and near the best of all so far, and a bound."""
        limited = any(kind.memory_bytes < inf for kind in problem.cluster.device_types)
        if known.is_close or self.all_devices or limited:
            return
        several = len(problem.cluster.nodes) > 1
        if several and (placed := placed or Placements.of(problem, cuts)):
            more, low = counted_search(problem, self._rules, cuts, placed, low=known.low, high=known.period)
            known.add(Found(space, path, space.model.period(path)) for space, path in more)
            known.prove(low)
        if several and len(known.best.space.model.groups.nodes) == 1:
            problem = merged(problem)
        order = order_of(known.best.space, known.best.path)
        nearby = paths_nearby(problem, self._rules, cuts, order, low=known.low, high=known.period)
        known.add(Found(space, path, space.model.period(path)) for space, path in nearby)

    def _with_like_nodes(self, problem: Problem, cuts: Cuts, known: Known) -> None:
        """More paths of a branching network on several nodes of which some are identical, and a bound."""
        if problem.synchronous or self.all_devices or known.is_close:
            return
        if not (swapped := orders_on_like_nodes(problem, cuts)):
            return
        space, orders = swapped
        paths, proven = paths_on_like_nodes(space, orders, low=known.low, high=known.period)
        known.add(Found(space, path, space.model.period(path)) for path in paths)
        if cuts.complete:
            known.prove(proven)

    def _with_connected_stages(self, problem: Problem, known: Known) -> bool:
        """Add paths and a bound, by stages that unlike devices are good at; return whether there are any paths."""
        kinds = {device.type for device in problem.cluster.devices}
        limited = any(kind.memory_bytes < inf for kind in kinds)
        if problem.synchronous or self.all_devices or limited or len({kind.name for kind in kinds}) == 1:
            return False
        best = known.best
        stages = ConnectedStages.of(problem, best.value, time.process_time() + _CONNECTED_SECONDS)
        known.prove(connected_stages_bound(problem, stages, low=known.low, high=best.value))
        near = best.space, best.path
        paths = paths_along_connected_stages(problem, self._rules, stages, near, low=known.low, high=best.value)
        known.add(Found(space, path, space.model.period(path)) for space, path in paths)
        return bool(paths)

    def _with_frontier_cuts(
        self, problem: Problem, searched: Space, known: Known, frontier: FrontierCuts | None
    ) -> None:
        """More paths where cuts cannot be listed: over the cheapest cut for each amount of work, then near the best."""
        bandwidth, around = merged(problem).cluster.network.bandwidth, list[float]()
        most_bytes = inf if problem.synchronous else _DEVICES_AT_A_CUT * known.period * bandwidth
        frontier = frontier or FrontierCuts.of(problem, most_bytes=most_bytes)
        same_groups = [one for one in known.plans if one.space.model.groups is searched.model.groups]
        if not frontier:
            return
        for _ in range(_ROUNDS):
            best = min(same_groups, key=lambda one: one.value)
            masks = best.space.masks(best.path)
            space = frontier_space(problem, self._rules, best.space, frontier, masks, around)
            if not space or self._refusal(space):
                break
            better = self._minimise(problem, space, known, best.path_on(space))[0][1:]
            if around and not better:
                break  # the next cuts would be the same
            same_groups += better
            best = min(same_groups, key=lambda one: one.value)
            around = best.space.boundaries(best.path)

    def _easier(self, problem: Problem, searched: Space, known: Known) -> Space:
        """A space on one node, on the best links of which no plan does worse, so that its bound is one of all plans."""
        if len(problem.cluster.nodes) == 1:
            return searched
        easier = merged(problem)
        for space in spaces(easier, self._rules):
            if space.complete and not self._refusal(space):
                paths, low = self._minimise(easier, space)
                known.prove(low)
                if max(len(node.device_types) for node in problem.cluster.nodes) == 1:
                    known.add(paths)  # every two devices are joined by the network, there as here
                return space
            searched = space
        return searched

    def _plan(self, problem: Problem, found: Found, bound: float) -> Plan:
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
