"""What each pipeline does next: minibatches as long as there are any, and what is to be done once by one of them.

What each pipeline measured, put together: how busy the stages of all were in an epoch and in the run, and the load.

Stages and ranks come with their numbers among those of all pipelines, as in the plan's file and in the run's trace.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...util.host.background_load import BackgroundLoad, worst
from ...values.replication.base import Arithmetic
from .base import Kind, Task
from .member import METRICS, MINIBATCHES, Changes, Member, Sums, Tallies
from .merges import Merges
from .minibatch_queue import MinibatchQueue

_MOST_AT_ONCE = 256  # minibatches in an answer


class Wait:
    """There is no answer yet."""


WAIT = Wait()


class Work:
    """The tasks of all pipelines of a run, from the queue of its minibatches.

    No pipeline waits for another at the end of an epoch. The first that has trained on it and has nothing more to take
    of it closes it, and validates its own weights. At the end of the run, once every minibatch is done, all average and
    one closes the run and its last epoch with it. What one that died was to do is done by the next that asks. The
    record receives epochs in order, of each once no one trains on it any more.
    """

    def __init__(
        self,
        changes: Changes,
        queue: MinibatchQueue,
        merges: Merges,
        *,
        arithmetic: Arithmetic | None = None,
        closed: Iterable[int] = (),
        sums: Mapping[int, Sums] | None = None,
    ) -> None:
        """`arithmetic`: of the rule, if there is one. `closed`: epochs that an earlier run closed. `sums`: of what
        it did of others.
        """
        self.queue, self.tallies = queue, Tallies(sums)
        self._changes, self._merges = changes, merges
        self._steps_with_all = arithmetic is Arithmetic.MEAN_GRADIENTS  # a step that it misses sets a pipeline apart
        self.stopped = False
        self._closing: dict[int, int] = {}  # epoch → the pipeline that closes it
        self._closed = set(closed)
        self._untold: dict[int, dict[str, Any]] = {}  # rows of epochs that were closed: an earlier one is open, or
        self._trained: dict[int, set[int]] = {}  # epoch → pipelines whose weights have been trained in it
        self._in_epoch: dict[int, int] = {}  # pipeline → the epoch that it trains on: it has measured part of it
        self.measured = Measured()
        self.scored: list[Mapping[str, object]] = []  # epochs with the scores of their validation
        self._run_closer: int | None = None
        self.run_closed = False

    def stop(self) -> None:
        """Hand out no more: the run is to end early, as soon as what is held is done."""
        if not self.stopped:
            self.stopped = True
            self._changes.note()

    # --- tasks -------------------------------------------------------------------------------------------------------

    def next_task(self, member: Member) -> Task | Wait:
        """Return a new entry of a pipeline's list: it is through with those before."""
        self._complete(member)
        if self.queue.holds(member.number):
            return WAIT  # one of its ranks is not through yet
        if self._in_epoch.pop(member.number, None) is not None:
            self._tell_of_epochs()
        kind, epoch = self._what_next(member)
        if kind is Kind.TRAIN:
            return self._train(member, epoch) if self._may_begin(member) else WAIT
        if kind is not Kind.CLOSE_EPOCH or not self._steps_with_all:
            self._merges.stand_aside(member.number)
        if kind is None:
            return WAIT
        self._changes.note()
        return member.add(Task(len(member.tasks), kind, epoch), now=self._changes.now)

    def _complete(self, member: Member) -> None:
        task = member.current
        if task is None:
            return
        if task.kind is Kind.CLOSE_EPOCH and self._closing.pop(task.epoch, None) is not None:
            self._count_as_closed(task.epoch)
        if task.kind is Kind.FINISH and not member.finished:
            member.finished = True
            self._changes.note()
        if task.kind is Kind.CLOSE_RUN and not self.run_closed:
            self.run_closed = True
            self._changes.note()

    def _what_next(self, member: Member) -> tuple[Kind | None, int]:
        """Return what a pipeline does next, and in which epoch; None: nothing now, but there may be more."""
        if (due := self._epoch_to_close(member)) is not None:
            self._closing[due] = member.number
            return Kind.CLOSE_EPOCH, due
        if not self.stopped and (found := self.queue.next_epoch()) is not None:
            return Kind.TRAIN, found
        if self.queue.num_held or self._closing:
            return None, -1  # what others have may come back
        if not member.finished and self._merges.last is None:
            return Kind.FINISH, -1
        if self.run_closed:
            return Kind.END, -1
        if self._run_closer is None:
            self._run_closer = member.number
            return Kind.CLOSE_RUN, self.queue.num_epochs - 1
        return None, -1

    def _epoch_to_close(self, member: Member) -> int | None:
        """Return the oldest epoch that no one closes, of which all is handed out, and that this pipeline may close: it
        has trained on it, or no pipeline that is left has. The last ends with the run.
        """
        for epoch in range(min(self.queue.num_begun, self.queue.num_epochs - 1)):
            if epoch in self._closed or epoch in self._closing or self.queue.num_waiting(epoch):
                continue
            trained = self._trained.get(epoch, set()) | {p for p, own in self._in_epoch.items() if own == epoch}
            if not trained or member.number in trained:
                return epoch
        return None

    def _train(self, member: Member, epoch: int) -> Task:
        waiting = self.queue.num_waiting(epoch)
        most = waiting // member.whole * member.whole or waiting
        self._merges.join(member.number)
        number = len(member.tasks)
        task = member.add(Task(number, Kind.TRAIN, epoch, most, member.units), now=self._changes.now)
        member.places[number] = []
        self._in_epoch[member.number] = epoch
        self._take(member, task, min(most, member.whole))
        return task

    def give_up(self, member: Member) -> None:
        """Take back what a pipeline that died has, and was to do."""
        for epoch, minibatches in self.queue.put_back(member.number).items():
            self._changes.row(
                MINIBATCHES,
                "put back",
                pipeline=member.number,
                attempt=member.attempt,
                epoch=epoch,
                minibatches=minibatches,
            )
        self._closing = {epoch: closer for epoch, closer in self._closing.items() if closer != member.number}
        for trained in self._trained.values():
            trained.discard(member.number)
        if self._run_closer == member.number and not self.run_closed:
            self._run_closer = None
        if self._in_epoch.pop(member.number, None) is not None:
            self._tell_of_epochs()

    # --- minibatches -------------------------------------------------------------------------------------------------

    def take_minibatch(self, member: Member, number: int, place: int) -> list[int] | Wait:
        """Return the minibatch at a place of a task and those after it that the pipeline has; none beyond its end."""
        task = _training(member, number)
        places = member.places[number]
        while place >= len(places):
            if len(places) >= task.most or number in member.ended:
                return []
            if self.stopped or self.queue.num_waiting(task.epoch) < member.whole:
                self.end_task(member, number)
                return []
            if not self._may_begin(member):
                return WAIT
            self._take(member, task, member.whole)
        return places[place : place + _MOST_AT_ONCE]

    def end_task(self, member: Member, number: int) -> None:
        """Hand out no more of a task that trains: what the pipeline has taken of it is its end."""
        _training(member, number)
        if number not in member.ended:
            if member.held_up_since is not None:
                member.release(now=self._changes.now, idle=not self.queue.holds(member.number))
            member.ended.add(number)
            self._changes.note()

    def _take(self, member: Member, task: Task, count: int) -> None:
        places = member.places[task.number]
        taken = self.queue.take(task.epoch, count, pipeline=member.number)
        self._changes.row(
            MINIBATCHES,
            "taken",
            pipeline=member.number,
            attempt=member.attempt,
            task=task.number,
            place=len(places),
            epoch=task.epoch,
            minibatches=taken,
        )
        places += taken
        member.units += 1

    def _may_begin(self, member: Member) -> bool:
        """Return whether the rule lets a pipeline train on; how long it does not is counted."""
        allowed = self._merges.may_begin(member.number)
        if allowed and member.held_up_since is not None:
            member.release(now=self._changes.now, idle=not self.queue.holds(member.number))
            self._changes.note()
        elif not allowed and member.held_up_since is None:
            member.held_up_since = self._changes.now
            self._changes.note()
        return allowed

    def done(self, member: Member, number: int, place: int, row: Mapping[str, Any]) -> None:
        """Count the minibatch at a place of a task as done."""
        task = _training(member, number)
        places = member.places[number]
        if place >= len(places):
            raise RuntimeError(f"pipeline {member.number} has done place {place} of {task}, which it has not taken")
        if (number, place) in member.done:
            return
        member.done.add((number, place))
        epoch, minibatch, pipeline = task.epoch, places[place], member.number
        self.queue.finish(epoch, minibatch)
        self._trained.setdefault(epoch, set()).add(pipeline)
        member.count(self.tallies.add(epoch, row, now=self._changes.now), now=self._changes.now)
        self._changes.row(MINIBATCHES, "done", pipeline=pipeline, epoch=epoch, minibatches=[minibatch])
        of_run = epoch * self.queue.epoch_minibatches + minibatch
        self._changes.row(METRICS, "step", **{**row, "epoch": epoch, "minibatch": of_run, "pipeline": pipeline})

    def measure(self, member: Member, number: int, row: Mapping[str, Any]) -> None:
        """Take what a pipeline measured of a task that trains."""
        task = _training(member, number)
        if number > member.last_measured:
            member.last_measured = number
            self.measured.add(member.number, task.epoch, row)
            member.straggler_seconds[member.attempt] = row.get("straggler_seconds", 0.0)
            self._changes.note()

    def close_epoch(self, member: Member, epoch: int, row: Mapping[str, Any]) -> None:
        """Take the row of an epoch that a pipeline was to close, the run's last with the run where it is complete.

        Its "train" and its pace are made of all pipelines' minibatches, its stages are those of all. If it "ends" the
        run, by its scores, no more is handed out.
        """
        row = dict(row)
        if row.pop("ends", False):
            self.stop()
        if row.get("validation") and all(scored["epoch"] != epoch for scored in self.scored):
            minibatches = row.get("minibatches", self.queue.num_done)
            self.scored.append({"epoch": epoch, "minibatches": minibatches, "validation": row["validation"]})
        with_run = self._run_closer == member.number and self.queue.is_done(epoch)
        if self._closing.get(epoch) == member.number or (with_run and epoch not in self._closed):
            self._closing.pop(epoch, None)
            told = {**row, "epoch": epoch, "minibatches": self.queue.num_done}
            if row.get("validation"):  # at the end of a run all pipelines have the mean of their weights
                last = self._merges.last if with_run else None
                told["validated_pipelines"] = list(last.members) if last else [member.number]
            self._untold[epoch] = told
            if with_run:
                self._in_epoch.clear()  # all is done
            self._count_as_closed(epoch)

    def _count_as_closed(self, epoch: int) -> None:
        self._closed.add(epoch)
        self._trained.pop(epoch, None)
        self._tell_of_epochs()

    def _tell_of_epochs(self) -> None:
        """Tell of those epochs that are closed, no one trains on, and come after none that is not so."""
        self._changes.note()
        first_open = next(number for number in range(self.queue.num_epochs + 1) if number not in self._closed)
        for number in sorted(self._untold):
            if number < min([first_open, *self._in_epoch.values()]):
                found = {**self.tallies.of_epoch(number), **self.measured.take_epoch(number)}
                self._changes.row(METRICS, "epoch", **{**self._untold.pop(number), **found})


def _training(member: Member, number: int) -> Task:
    if number not in member.places:
        raise RuntimeError(f"pipeline {member.number} asks about entry {number} of its list, which trains nothing now")
    return member.tasks[number]


class Measured:
    """Rows of epochs that the record has not been told of yet, and the latest of the run so far, of each pipeline."""

    def __init__(self) -> None:
        self._epochs: dict[int, dict[int, dict[str, Any]]] = {}  # epoch → pipeline → of its longest part
        self._run: dict[int, Mapping[str, Any]] = {}  # pipeline → over all that it trained

    def add(self, pipeline: int, epoch: int, row: Mapping[str, Any]) -> None:
        """Take what a pipeline measured of a part of an epoch ("trained" minibatches), and of the run up to it.

        If an epoch has several parts, the stages of the longest are reported; bytes are added up.
        """
        own = self._epochs.setdefault(epoch, {})
        before = own.get(pipeline, {"trained": -1, "sent_bytes": 0})
        kept = dict(row if row["trained"] >= before["trained"] else before)
        own[pipeline] = kept | {"sent_bytes": before["sent_bytes"] + row["sent_bytes"]}
        self._run[pipeline] = row["run"]

    def take_epoch(self, epoch: int) -> dict[str, Any]:
        """Return the fields of an epoch's row that all pipelines which trained on it measured, and forget them."""
        rows = _in_order(self._epochs.pop(epoch, {}))
        if not rows:
            return {"stages": []}
        return {**_together(rows), "sent_bytes": sum(row["sent_bytes"] for row in rows)}

    def of_run(self) -> dict[str, Any]:
        """Return the fields of the run's summary that all pipelines measured; none if nothing was trained."""
        rows = _in_order(self._run)
        engines = "+".join(dict.fromkeys(row["engine"] for row in rows))
        return {"engine": engines, **_together(rows)} if rows else {}


def _in_order(rows: Mapping[int, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [rows[pipeline] for pipeline in sorted(rows)]


def _together(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "stages": [stage for row in rows for stage in row["stages"]],
        "load": worst(BackgroundLoad.from_json(row["load"]) for row in rows).to_json(),
    }
