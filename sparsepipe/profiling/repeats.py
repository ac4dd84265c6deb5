"""Repeat training steps on one minibatch until their times are certain, leaving out those that other load delayed."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..util.host.background_load import RUN_QUEUE_WAIT, thread_times, waited_share
from ..values.profile import AGREEMENT
from .layer_timer import LayerTimes, Updates, time_layers, update_step, whole_step

_ENOUGH_SECONDS = 0.5  # what passes take together at least, if that is not more than the most of them
_AGAIN_SECONDS = 2.0  # what is taken again at most, where that is more than the least of passes


@dataclass(frozen=True)
class Round:
    """One repeat: a pass timed layer by layer, if asked a whole step timed at once, and an update after each."""

    layers: LayerTimes
    whole: float | None  # seconds
    updates: tuple[float, ...]  # seconds each
    waited_share: float | None  # of the time in which its threads could work: without a processor


@dataclass(frozen=True)
class Repeats:
    """The repeats on one minibatch that count, and how many were repeated because of other load."""

    rounds: tuple[Round, ...]
    num_again: int = 0

    @property
    def median(self) -> LayerTimes:
        """The median of every time over the rounds."""
        passes = [one.layers for one in self.rounds]
        forward, backward = (
            {id: statistics.median(one[id] for one in way) for id in way[0]}
            for way in ([one.forward for one in passes], [one.backward for one in passes])
        )
        return LayerTimes(forward, backward, statistics.median(one.input_seconds for one in passes))

    @property
    def layers_over_whole(self) -> float | None:
        """The sum of the layers' median seconds over the median of whole steps, if there were any."""
        wholes = [one_round.whole for one_round in self.rounds if one_round.whole is not None]
        return self.median.seconds / statistics.median(wholes) if wholes else None


@dataclass(frozen=True)
class Repeater:
    """Repetitions of steps on one network: `least` times, and up to `most` until their times are certain.

    Steps are known once half a second has gone into them and the layers agree with whole steps, as a disturbance
    passes. `crowded`: our own threads are more than the processors, so that they wait for each other in every round.
    """

    subnetwork: Any  # a StageModule of the whole network
    updates: Updates
    device: torch.device
    least: int
    most: int
    crowded: bool = False

    def repeat(self, batch: object, *, whole: bool) -> Repeats:
        """Take rounds on one minibatch, `whole` steps among them if asked.

        Rounds whose threads waited for a processor are taken again: as often as the least that counts, or for two
        seconds. What is delayed after that counts all the same.
        """
        rounds: list[Round] = []
        again: list[Round] = []
        while len(rounds) < self.least or (len(rounds) < self.most and not _enough(rounds)):
            one = self._round(batch, whole=whole)
            (again if self._held_up(one) and self._may_drop(again) else rounds).append(one)
        return Repeats(tuple(rounds), len(again))

    def _round(self, batch: object, *, whole: bool) -> Round:
        # In turns, so that what else the machine does meets both, and each after an update, as in training: what it
        # wrote takes the place of much that a small network would find in the caches.
        before = thread_times()
        layers = time_layers(self.subnetwork, batch, device=self.device)
        if not self.updates.begun:
            self.updates.step()  # makes what momentum is kept in
        updates = [update_step(self.updates, device=self.device)]
        seconds = None
        if whole:
            seconds = whole_step(self.subnetwork, batch, device=self.device)
            updates.append(update_step(self.updates, device=self.device))
        return Round(layers, seconds, tuple(updates), waited_share(before, thread_times()))

    def _held_up(self, one: Round) -> bool:
        return not self.crowded and one.waited_share is not None and one.waited_share > RUN_QUEUE_WAIT

    def _may_drop(self, again: Sequence[Round]) -> bool:
        return len(again) < self.least or (len(again) < self.most and _seconds(again) < _AGAIN_SECONDS)


def _enough(rounds: Sequence[Round]) -> bool:
    """Return whether short steps were repeated, and whether the layers agree with whole steps."""
    ratio = Repeats(tuple(rounds)).layers_over_whole
    return _seconds(rounds) >= _ENOUGH_SECONDS and (ratio is None or abs(ratio - 1) <= AGREEMENT)


def _seconds(rounds: Sequence[Round]) -> float:
    return sum(one_round.layers.seconds for one_round in rounds)
