"""Worlds of pipelines that contribute, stand still, die and come back at random, and what must hold of every merge."""

import math
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from sparsepipe.values.replication import SERVER, Arithmetic, Merge, Rule

AVERAGES = {Arithmetic.MEAN_WEIGHTS, Arithmetic.MEAN_GRADIENTS, Arithmetic.OUTER_STEP}


@dataclass
class World:
    """Pipelines of one rule. Each contributes so long after its last as its pace says, and not before that was merged.

    With `faults` they stand still, die (told or unnoticed) and join again. Deadlines are seen to when they come, or
    `late`. Everything that is asked of the rule is kept in `calls`.
    """

    rule: Rule
    num_pipelines: int
    seed: int
    faults: bool = True
    late: bool = False
    equal_samples: bool = False
    now: float = 0.0
    calls: list = field(default_factory=list)
    merges: list = field(default_factory=list)
    happened: Counter = field(default_factory=Counter)

    def __post_init__(self):
        self.random = random.Random(f"{self.seed} {self.num_pipelines} {self.rule}")
        self.groups = self.rule.groups(self.num_pipelines, seed=self.seed)
        self.paces = [self.random.choice((0.01, 0.02, 0.05)) * self.random.uniform(1, 1.3) for _ in self.all]
        self.live = set(self.all)
        self.next = {p: self.random.uniform(0, self.paces[p]) for p in self.all}  # its next contribution, if it can
        self.back = {}  # when a dead one joins
        self.made = dict.fromkeys(self.all, 0)
        self.waiting = {}  # pipeline: (number, time, samples) of what is not merged
        self.facts = {}  # (pipeline, number): (time, samples)
        self.laws = Laws(self)

    @property
    def all(self):
        return range(self.num_pipelines)

    def run(self, contributions: int):
        """Go on until so many more contributions have come."""
        until = self.happened["contributions"] + contributions
        while self.happened["contributions"] < until:
            self.step()
        return self

    def step(self):
        able = [p for p in self.live - self.waiting.keys() if self.groups.may_begin(p)]
        times = [(max(self.next[p], self.now), "contribute", p) for p in able]
        times += [(max(when, self.now), "join", p) for p, when in self.back.items()]
        deadline = self.groups.next_deadline()
        if deadline is not None:
            delay = self.random.choice((0, 0.003, 0.1)) if self.late else 0
            times.append((max(deadline + delay, self.now), "expire", -1))
        assert times, f"deadlock: {self.waiting} wait for each other"
        self.now, what, pipeline = min(times)
        if what == "expire":
            decided = self.groups.expire(now=self.now)
            assert decided, "a deadline that came decides something"
            self.saw("expire", -1, 0, decided)
        elif what == "join":
            del self.back[pipeline]
            self.join(pipeline)
        else:
            self.contribute(pipeline)
        if self.faults and self.random.random() < 0.02:
            self.fault()

    def contribute(self, pipeline: int):
        samples = 16 if self.equal_samples else self.random.randint(1, 64)
        self.waiting[pipeline] = self.made[pipeline]
        self.facts[pipeline, self.made[pipeline]] = (self.now, samples)
        self.made[pipeline] += 1
        pause = 60 if self.faults and self.random.random() < 0.01 else 1
        self.happened["stops"] += pause > 1
        self.happened["contributions"] += 1
        self.next[pipeline] = self.now + pause * self.paces[pipeline] * self.random.uniform(0.9, 1.1)
        self.saw("contribute", pipeline, samples, self.groups.contribute(pipeline, now=self.now, samples=samples))

    def fault(self):
        if not self.live:
            return
        pipeline = self.random.choice(sorted(self.live))
        if self.random.random() < 0.3:  # it is back before anybody has noticed
            self.waiting.pop(pipeline, None)
            self.join(pipeline)
        else:
            self.leave(pipeline)
            self.back[pipeline] = self.now + self.random.uniform(0, 20) * self.paces[pipeline]

    def leave(self, pipeline: int):
        self.happened["deaths"] += 1
        self.live.discard(pipeline)
        self.waiting.pop(pipeline, None)
        self.laws.left(pipeline)
        self.saw("leave", pipeline, 0, self.groups.leave(pipeline, now=self.now))

    def join(self, pipeline: int):
        self.happened["joins"] += 1
        self.laws.left(pipeline)
        before = set(self.live)
        self.live.discard(pipeline)
        decided = self.groups.join(pipeline, now=self.now)
        self.saw("join", pipeline, 0, decided)
        self.live = before | {pipeline}
        self.laws.joined(pipeline)
        self.next[pipeline] = self.now + self.paces[pipeline]

    def saw(self, what: str, pipeline: int, samples: int, decided: list[Merge]):
        self.calls.append((what, pipeline, self.now, samples))
        for merge in decided:
            self.laws.hold(merge)
            self.merges.append(merge)
            for member in merge.members:
                del self.waiting[member]

    def end(self):
        """All that train on are told that they end: whoever is left is decided, without anybody else."""
        for pipeline in sorted(self.live - self.waiting.keys()):
            self.leave(pipeline)
        while self.waiting and (deadline := self.groups.next_deadline()) is not None:
            self.now = max(deadline, self.now)
            self.saw("expire", -1, 0, self.groups.expire(now=self.now))
        assert not self.waiting, f"{self.waiting} are never merged"


class Laws:
    """What must hold of each merge, told by what the world has seen and by nothing of the rule's own."""

    def __init__(self, world: World):
        self.world = world
        self.rule = world.rule
        self.life = dict.fromkeys(world.all, 0)  # how often a pipeline has joined: another node of the graph each time
        self.edges = []  # of the graph of averages since it was connected
        self.contributions = 0  # in merges since then
        self.most_live = world.num_pipelines  # since then
        self.last = dict.fromkeys(world.all, -1)  # the newest contribution of each pipeline that was merged

    def left(self, pipeline):
        self.life[pipeline] += 1

    def joined(self, pipeline):
        self.most_live = max(self.most_live, len(self.world.live))

    def hold(self, merge: Merge):
        self.is_sound(merge)
        if self.rule.arithmetic in AVERAGES:
            assert merge.partner is None
            assert len(merge.weights) == len(merge.members)
        mixing = self.mixing(merge)
        assert all(math.isclose(sum(row), 1) for row in mixing)  # row: of what the new weights are made
        if self.rule.name not in ("wsp", "quorum") or (self.rule.name == "quorum" and self.world.equal_samples):
            assert all(math.isclose(sum(column), 1) for column in zip(*mixing, strict=True))
        getattr(self, self.rule.name.replace("-", "_"))(merge)

    def is_sound(self, merge: Merge):
        world = self.world
        assert merge.number == len(world.merges)
        assert merge.members and list(merge.members) == sorted(set(merge.members))
        assert len(merge.contributions) == len(merge.members)
        assert math.isclose(sum(merge.weights), 1) and min(merge.weights) >= 0
        for member, contribution in zip(merge.members, merge.contributions, strict=True):
            assert member in world.live
            assert world.waiting[member] == contribution, "each contribution is in one merge, and the newest one is"
            # So any two pipelines see the merges that they are both in in the same order.
            assert contribution > self.last[member]
            self.last[member] = contribution

    def mixing(self, merge: Merge):
        """The matrix that pipelines' weights are multiplied by, the server's among them, last."""
        count = self.world.num_pipelines + 1
        matrix = [[float(row == column) for column in range(count)] for row in range(count)]
        members = list(merge.members) if merge.partner is None else [*merge.members, merge.partner % count]
        weights = merge.weights
        for row in members:
            matrix[row] = [0.0] * count
            for column, weight in zip(members, weights, strict=True):
                matrix[row][column] = weight
        return matrix

    def waited(self, merge: Merge):
        """How long each member has waited when it was decided, the longest first."""
        times = [self.world.facts[pair][0] for pair in zip(merge.members, merge.contributions, strict=True)]
        return sorted((self.world.now - time for time in times), reverse=True)

    def everybody(self, merge: Merge):
        assert set(merge.members) == self.world.live
        assert set(merge.weights) == {1 / len(merge.members)}

    all_reduce = local_sgd = diloco = everybody

    def ad_psgd(self, merge: Merge):
        (member,) = merge.members
        assert self.waited(merge) == [0]
        others = self.world.live - {member}
        assert merge.partner in others if others else merge.partner is None
        assert merge.weights == ((0.5, 0.5) if others else (1,))

    def wsp(self, merge: Merge):
        assert merge.partner == SERVER and len(merge.members) == 1
        assert self.waited(merge) == [0]
        share = self.rule.scale or 1 / self.world.num_pipelines
        assert merge.weights == (share, 1 - share)
        assert any(map(self.world.groups.may_begin, self.world.live)), "the slowest may always begin"

    def quorum(self, merge: Merge):
        quorum = self.rule.quorum or self.world.num_pipelines // 2 + 1
        samples = [self.world.facts[pair][1] for pair in zip(merge.members, merge.contributions, strict=True)]
        assert merge.weights == tuple(count / sum(samples) for count in samples)
        waited = self.waited(merge)
        if set(merge.members) == self.world.live:
            return
        assert len(merge.members) >= quorum
        if not self.world.late:
            assert waited[quorum - 1] <= self.rule.grace + 1e-9, "the window closes in time after the quorum has come"

    def partial_reduce(self, merge: Merge):
        assert set(merge.weights) == {1 / len(merge.members)}
        if not (self.world.late or merge.forced):
            assert self.waited(merge)[0] <= self.longest_budget(merge) + 1e-9
        nodes = [(member, self.life[member]) for member in merge.members]
        self.edges += [(nodes[0], node) for node in nodes[1:]]
        self.contributions += len(nodes)
        assert self.contributions <= self.rule.rounds * self.most_live
        if self.connected():
            self.edges, self.contributions, self.most_live = [], 0, len(self.world.live)
        else:
            assert not merge.forced

    def longest_budget(self, merge: Merge) -> float:
        """Seconds that the first of a group may wait."""
        if self.rule.wait is not None:
            return self.rule.limits(self.rule.wait)[1]
        facts = self.world.facts
        time, first = min((facts[pair][0], pair) for pair in zip(merge.members, merge.contributions, strict=True))
        before = (first[0], first[1] - 1)
        return self.rule.share * (time - facts[before][0]) if before in facts else 0.0

    def connected(self):
        neighbours = defaultdict(set)
        for a, b in self.edges:
            neighbours[a].add(b)
            neighbours[b].add(a)
        nodes = {(pipeline, self.life[pipeline]) for pipeline in self.world.live}
        reached, todo = set(), [min(nodes)]
        while todo:
            node = todo.pop()
            if node not in reached:
                reached.add(node)
                todo += neighbours[node]
        return nodes <= reached
