"""The copies of a network in a trace, replicas of one plan's stages or several pipelines, and which do equal work.

Pipelines may have different cuts and devices. So a rank of theirs is compared with those alone whose stage has
the same layers, as a trace's fact "like_stages" says of each stage; of one plan, all are compared with all.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...values.trace import Trace
from .dependencies import Node
from .timing import COMPUTE


@dataclass(frozen=True)
class Copies:
    """Assignment of ranks to copies of the network, and identical stages.

    `word` is what a copy is called, "replica" or "pipeline". Stages of pipelines are numbered over all, pipeline 0's
    first, as in the plan's file.
    """

    word: str
    of_rank: Mapping[int, int]
    first_stage: Mapping[int, int]  # of a copy, where the trace numbers each pipeline's stages from 0
    like: Mapping[int, int]  # stage → a number that it shares with those that have the same layers

    @classmethod
    def of(cls, trace: Trace, nodes: Iterable[Node]) -> "Copies":
        """Find them by the trace's facts "pipelines" (the ranks of each) and "like_stages"; else by its nodes."""
        pipelines = trace.facts.get("pipelines", ())
        if len(pipelines) < 2:
            return cls("replica", _replicas(nodes), {}, {})
        of_rank = trace.pipeline_of_rank
        stages: defaultdict[int, set[int]] = defaultdict(set)
        for node in nodes:
            stages[of_rank.get(node.rank, 0)].add(node.stage)
        first: dict[int, int] = {}
        if all(0 in own_stage for own_stage in stages.values()):  # each numbers its own, as in a simulation
            counts = [1 + max(stages.get(k, {-1})) for k in range(len(pipelines))]
            first = {k: sum(counts[:k]) for k in range(len(pipelines))}
        return cls("pipeline", of_rank, first, dict(enumerate(trace.facts.get("like_stages", ()))))

    @property
    def several(self) -> bool:
        """Return whether they are pipelines, which may take minibatches by pace."""
        return self.word == "pipeline"

    def stage(self, node: Node) -> int:
        return node.stage + self.first_stage.get(self.copy(node.rank), 0)

    def copy(self, rank: int) -> int:
        return self.of_rank.get(rank, 0)

    def kind(self, node: Node) -> tuple[str, int]:
        """The kind of a node's work, to be compared: its operation, of several pipelines on the same layers."""
        stage = self.stage(node)
        return node.operation, (self.like.get(stage, -1 - stage) if self.several else 0)


def _replicas(nodes: Iterable[Node]) -> dict[int, int]:
    """Rank → its place among the ranks of its (first) stage: the replica of the pipeline that it belongs to."""
    ranks: defaultdict[int, set[int]] = defaultdict(set)
    first: dict[int, int] = {}
    for node in nodes:
        if node.kind in COMPUTE:
            first[node.rank] = min(node.stage, first.get(node.rank, node.stage))
    for rank, stage in first.items():
        ranks[stage].add(rank)
    return {rank: sorted(ranks[stage]).index(rank) for rank, stage in first.items()}
