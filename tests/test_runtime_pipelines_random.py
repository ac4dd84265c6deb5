"""The coordinator's state under random arrivals, sizes, stops and deaths, with every rule, and rebuilt from its log,
from its beginning and from a state that was written meanwhile.

Pipelines here do what workers do, one request at a time, in any order and at any time; some die, with requests of
theirs still on the way, and come back or not.
"""

import json
import random
from collections import Counter

import pytest

from sparsepipe.runtime.pipelines.base import Address, Holder, Kind
from sparsepipe.runtime.pipelines.journal import apply, from_json, to_json
from sparsepipe.runtime.pipelines.messages import encoded
from sparsepipe.runtime.pipelines.state import GivenUp, Request, RunOfPipelines, RunState
from sparsepipe.runtime.pipelines.work import WAIT
from sparsepipe.values.replication import RULES, SERVER, rule

ARRIVALS = 1_000  # of each rule: contributions, units taken, deaths
OPTIONS = {  # some of each rule's, beside its defaults
    "all-reduce": [{}],
    "partial-reduce": [{}, {"wait": 1.0, "rounds": 2}, {"every": 3, "overlap": False}, {"wait": 0.0}],
    "ad-psgd": [{}, {"every": 2, "overlap": False}],
    "wsp": [{}, {"every": 1, "bound": 0}, {"every": 2, "bound": 1, "overlap": False}],
    "local-sgd": [{}, {"every": 2, "overlap": False}],
    "diloco": [{}, {"every": 2}],
    "quorum": [{}, {"quorum": 1}, {"quorum": 2, "overlap": False}],
}


class Run:
    """A state, and now and then for a while a twin that is rebuilt from its log: what both have said."""

    def __init__(self, run, draw):
        self.run, self.draw, self.now = run, draw, 0.0
        self.state, self.twins, self.left = RunState(run), [], 0
        self.log, self.rows = [], []
        self.written = None  # a state, and how much of the log and of the rows there was then

    def ask(self, call, pipeline, rank=0, attempt=0, **given):
        """Ask both, now and then twice: the answers are the same, and the second time nothing changes."""
        request = Request(call, pipeline, rank, attempt, given)
        row = {"now": self.now, "call": call, "pipeline": pipeline, "rank": rank, "attempt": attempt, "given": given}
        found = self._ask_both(request, row)
        if self.draw.random() < 0.2:
            before = self.state.changes.version
            again = self._ask_both(request, row)
            assert again == found and self.state.changes.version == before
        if isinstance(found, Exception):
            raise found
        return found

    def _ask_both(self, request, row):
        before = self.state.changes.version
        found, *others = [asked(state, request, self.now) for state in (self.state, *self.twins)]
        assert all(found == other or (isinstance(found, Exception) and str(found) == str(other)) for other in others)
        self._keep(before, row)
        return found

    def _keep(self, before, row):
        if self.state.changes.version != before:
            self.log.append(json.loads(encoded(row)))
        self.rows += self.state.changes.rows
        for twin in self.twins:
            assert self.state.changes.rows == twin.changes.rows
            twin.changes.rows.clear()
        self.state.changes.rows.clear()
        self.left -= 1
        if self.left <= 0:
            self.twins = []

    def change(self, call):
        """Let time run out, or have the run stop."""
        before = self.state.changes.version
        for state in (self.state, *self.twins):
            getattr(state, call)(now=self.now)
        self._keep(before, {"now": self.now, "call": call})

    def rebuild(self):
        """Rebuild a twin from the log, and check its record; it is asked all that the state is for a while."""
        text, first, first_row = self.written or (None, 0, 0)
        twin = from_json(json.loads(text)) if text else RunState(self.run)
        for row in self.log[first:]:
            apply(twin, row)
        assert twin.changes.rows == self.rows[first_row:]
        twin.changes.rows.clear()
        twin.changes.now = self.state.changes.now
        self.twins, self.left = [twin], 150
        written = json.dumps(to_json(self.state))
        if text:
            assert json.dumps(to_json(twin)) == written
        self.written = None if text else (written, len(self.log), len(self.rows))  # in turns


def asked(state, request, now):
    try:
        return state.ask(request, now=now)
    except RuntimeError as error:
        return type(error)(str(error)) if not isinstance(error, GivenUp) else GivenUpSaid(str(error))


class GivenUpSaid(Exception):
    def __eq__(self, other):
        return isinstance(other, GivenUpSaid) and str(self) == str(other)

    __hash__ = None


class Pipeline:
    """A pipeline that works through its list, a request at a time."""

    def __init__(self, run, number, rule, *, whole, epoch, total):
        self.run, self.number, self.rule, self.whole = run, number, rule, whole
        self.length = {"epoch_minibatches": epoch, "total_minibatches": total}
        self.attempt, self.dead = 0, False
        self.arrivals = 0
        self.start()

    def start(self):
        self.steps = self.work()
        self.ended = self.gone_for_good = False
        self.duty = None

    def ask(self, call, **given):
        return self.run.ask(call, self.number, self.run.draw.randrange(2), self.attempt, **given)

    def contribute_ask(self, call, **given):
        return self.run.ask(call, self.number, 1, self.attempt, **given)

    def work(self):
        """A generator: each step is one request; it yields whether it got anywhere."""
        self.ask("begin", whole=self.whole, num_holders=1, data="", **self.length)
        yield True
        self.ask("register", holder=Holder(self.number, 0, ("layer",), Address("127.0.0.1", 1, "ab")))
        number, self.under_way = 0, None
        while True:
            self.ask("next_task", number=number)
            self.through()
            task = yield from self.until_answered("next_task", number=number)
            assert task.number == number
            if task.kind is Kind.END:
                self.ended = True
                return
            if task.kind is Kind.TRAIN:
                yield from self.train(task)
            elif task.kind is Kind.CLOSE_EPOCH:
                self.run.closing(self, task.epoch)
                self.duty = task.epoch
                if self.run.draw.random() < 0.8:
                    self.ask("closed", epoch=task.epoch, row={"validation": None})
                    self.through()
            elif task.kind is Kind.FINISH:
                update = self.run.draw.choice([-1, 10**6])
                last = yield from self.until_answered("last_merge", update=update)
                self.run.last.append((self.number, last))
                self.ask("merged", merge=last.number, facts={"update": update, "stage": 0, "last": True})
            else:
                self.run.closing(self, "run")
                self.duty = "run"
                self.ask("closed", epoch=task.epoch, row={"validation": None})
            yield True
            number += 1

    def through(self):
        """What was to be done once is done: to ask for the next task says so, too."""
        if self.duty is not None:
            self.run.due.append(self.duty)
            self.duty = None

    def until_answered(self, call, **given):
        while (answer := self.ask(call, **given)) is WAIT:
            yield False
        return answer

    def train(self, task):
        update, places = task.update, 0
        unit = []
        most = task.most
        while places < most:
            known = yield from self.until_answered("take_minibatch", task=task.number, place=places)
            if not known:
                break
            minibatch = known[0]
            if not unit and places:
                assert self.run.state.merges.may_begin(self.number), "the rule's bound holds"
            self.run.held(self, task.epoch, minibatch, places)
            unit.append(places)
            places += 1
            yield True
            if len(unit) == self.whole or places == most:
                yield from self.finish(task, unit)
                unit = []
                update += 1
                yield from self.average(update)
        assert not unit, "a unit is whole"
        assert places and (places % self.whole == 0 or places == most < self.whole)
        assert self.ask("take_minibatch", task=task.number, place=places) == []

    def finish(self, task, unit):
        if self.run.draw.random() < 0.1:  # a rank that is through before another
            assert self.ask("next_task", number=task.number + 1) is WAIT
        for place in self.run.draw.sample(unit, len(unit)):
            minibatch = self.ask("take_minibatch", task=task.number, place=place)[0]
            self.ask("done", task=task.number, place=place, row={"loss": 1.0, "samples": 2})
            self.run.finished(self, task.epoch, minibatch)
            yield True
        self.arrivals += 1

    def average(self, update):
        if update % self.rule.every:
            return
        if self.under_way is not None:
            yield from self.take_result(update)
        if self.under_way is not None:
            self.contribute_ask("pass_over", update=update)
            assert self.ask("contribution", update=update) is None
            return
        number = self.contribute_ask("contribute", update=update, samples=self.run.draw.randrange(50))
        assert self.ask("contribution", update=update) == number
        self.arrivals += 1
        self.under_way = number, update
        yield True
        while not self.rule.overlap and self.under_way is not None:
            yield from self.take_result(update)
            if self.under_way is not None:
                yield False

    def take_result(self, update):
        number, contributed = self.under_way
        merge = self.ask("merge_of", contribution=number)
        if merge is not WAIT:
            self.run.decided(self, number, merge)
            facts = {"update": update, "waited": 0.0}
            self.contribute_ask("merged", merge=merge.number, facts=facts)
            self.under_way = None
        yield True

    def die(self):
        """One of its ranks ends: the coordinator notes it, or the next attempt tells."""
        self.steps.close()
        self.dead = True
        self.run.lost(self)
        if self.run.draw.random() < 0.5:
            self.ask("leave")
            with pytest.raises(GivenUpSaid):
                self.ask("next_task", number=0)
        self.arrivals += 1

    def come_back(self):
        self.attempt += 1
        self.dead = False
        self.start()
        next(self.steps)
        with pytest.raises(GivenUpSaid):
            self.run.ask("done", self.number, 0, self.attempt - 1, task=0, place=0, row={})


class Checked(Run):
    """What must be true of every answer."""

    def __init__(self, run, draw):
        super().__init__(run, draw)
        self.holders, self.was_done = {}, Counter()
        self.duties, self.due, self.last = {}, [], []
        self.contributions = {}

    def held(self, pipeline, epoch, minibatch, place):
        holder = self.holders.setdefault((epoch, minibatch), pipeline.number)
        assert holder == pipeline.number, "two pipelines hold one minibatch"
        assert not self.was_done[epoch, minibatch]

    def finished(self, pipeline, epoch, minibatch):
        assert self.holders.pop((epoch, minibatch)) == pipeline.number
        self.was_done[epoch, minibatch] += 1

    def lost(self, pipeline):
        self.holders = {key: holder for key, holder in self.holders.items() if holder != pipeline.number}
        self.duties = {duty: holder for duty, holder in self.duties.items() if holder is not pipeline}

    def closing(self, pipeline, duty):
        assert duty not in self.due, "a duty is done once"
        assert self.duties.setdefault(duty, pipeline) is pipeline, "a duty is one pipeline's"

    def decided(self, pipeline, number, merge):
        assert merge.contributions[merge.members.index(pipeline.number)] == number
        assert abs(sum(merge.weights) - 1) < 1e-9
        for member, contribution in zip(merge.members, merge.contributions, strict=True):
            assert self.contributions.setdefault((member, contribution), merge) == merge, "groups never overlap"
        if merge.partner not in (None, SERVER):
            assert merge.partner != merge.members[0]


def whole_run(name, seed):
    """A run from its beginning to its end; return it and how many arrivals it had."""
    draw = random.Random(seed)
    options = draw.choice(OPTIONS[name])
    chosen = rule(name, options)
    count = draw.randint(max(2, options.get("quorum", 2)), 5)
    epoch = draw.randint(1, 60)
    total = draw.randint(1, 5 * epoch)
    run = Checked(RunOfPipelines(count, chosen, seed), draw)
    wholes = [draw.randint(1, 4) for _ in range(count)]
    pipelines = [Pipeline(run, k, chosen, whole=wholes[k], epoch=epoch, total=total) for k in range(count)]
    slow = {k: draw.choice([1, 1, 1, 4, 20]) for k in range(count)}
    deadly = draw.choice([0.0, 0.0, 0.002, 0.02])
    stop_at = draw.choice([None, None, None, draw.random() * 100])
    idle = 0
    while not all(p.ended or (p.dead and p.gone_for_good) for p in pipelines):
        run.now += draw.expovariate(1.0) * draw.choice([0.0001, 0.01, 1.0])
        deadline = run.state.next_deadline()
        if deadline is not None and deadline <= run.now:
            run.change("expire")
        if stop_at is not None and run.now >= stop_at and run.state.work:
            run.change("stop")
        if draw.random() < 0.002:
            run.rebuild()
        pipeline = draw.choices(pipelines, [1 / slow[p.number] for p in pipelines])[0]
        before = run.state.changes.version
        advance(pipeline, pipelines, draw, deadly)
        idle = 0 if run.state.changes.version != before else idle + 1
        assert idle < 5000, "nobody gets any further"
    run.rebuild()
    check_end(run, pipelines, epoch, total, stopped=stop_at is not None)
    return sum(p.arrivals for p in pipelines)


def advance(pipeline, pipelines, draw, deadly):
    if pipeline.dead:
        if not pipeline.gone_for_good and draw.random() < 0.2:
            pipeline.come_back()
        return
    others = [p for p in pipelines if not p.dead and p is not pipeline]
    if not pipeline.ended and others and draw.random() < deadly * (20 if pipeline.duty is not None else 1):
        pipeline.die()
        pipeline.gone_for_good = draw.random() < 0.1
        if pipeline.gone_for_good:
            pipeline.ask("leave")  # its launcher gives it up
        return
    next(pipeline.steps, None)


def check_end(run, pipelines, epoch, total, *, stopped):
    all_of_them = {(m // epoch, m % epoch) for m in range(total)}
    assert set(run.was_done) <= all_of_them and set(run.was_done.values()) <= {1}
    steps = [row for file, row in run.rows if file == "metrics.jsonl" and row["event"] == "step"]
    assert sorted(row["minibatch"] for row in steps) == sorted(e * epoch + m for e, m in run.was_done)
    told = [row["epoch"] for file, row in run.rows if file == "metrics.jsonl" and row["event"] == "epoch"]
    assert told == sorted(set(told)), "each epoch's row once, in order"
    if any(p.ended for p in pipelines) and not stopped:
        assert told[-1] == (total - 1) // epoch, "the last epoch's row, too"
        assert set(run.was_done) == all_of_them
        assert set(run.due) >= set(range((total - 1) // epoch)), "every epoch but the last is closed"
        assert "run" in run.due
    ends = [merge for _, merge in run.last if len(merge.members) > 1]
    assert all(merge == ends[0] for merge in ends), "the last merge is one"


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_random_runs_keep_their_laws(name) -> None:
    arrivals, seed = 0, 0
    while arrivals < ARRIVALS:
        arrivals += whole_run(name, seed)
        seed += 1


@pytest.mark.parametrize("seed", range(20))
def test_a_run_goes_on_from_what_it_had_left(seed) -> None:
    """Cut anywhere and resumed, with the progress that its checkpoint has: every minibatch is done once."""
    draw = random.Random(seed)
    epoch = draw.randint(1, 30)
    total = draw.randint(1, 4 * epoch)
    chosen = rule("partial-reduce")
    done, progress, closed = Counter(), None, ()
    for part in range(3):
        run = Checked(RunOfPipelines(3, chosen, seed, progress, closed), draw)
        pipelines = [Pipeline(run, k, chosen, whole=1 + k, epoch=epoch, total=total) for k in range(3)]
        steps = draw.randint(5, 12 * total) if part < 2 else 10**6
        while steps and not all(pipeline.ended for pipeline in pipelines):
            run.now += draw.expovariate(100.0)
            run.change("expire")
            next(draw.choice(pipelines).steps, None)
            steps -= 1
        done += run.was_done
        if run.state.work is not None:
            progress = json.loads(json.dumps(run.state.work.queue.progress()))
            closed = (*closed, *(duty for duty in run.due if duty != "run"))
    assert done == dict.fromkeys([(m // epoch, m % epoch) for m in range(total)], 1)
