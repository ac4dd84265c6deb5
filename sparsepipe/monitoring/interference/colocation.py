"""Gavel's measurements: pairs of training jobs that share one K80, P100 or V100, and each of them alone.

`scheduler/physical_cluster_throughputs.json` of stanford-futuredata/gavel (Narayanan et al., OSDI 2020):
`sparsepipe data fetch colocation`. A job is called "('ResNet-18 (batch size 16)', 1)": network, batch size, GPUs.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...util.io.fields import shown
from ...util.io.files import read_json
from .forest import COARSE, Forest, Growth
from .measurements import Judged, Row, judge, table_of

FILE = "scheduler/physical_cluster_throughputs.json"
CARDS = ("k80", "p100", "v100")
_ALONE = "null"
_JOB = re.compile(r"\('(?P<network>[^'(]+?)(?: \(batch size (?P<batch>\d{1,9})\))?', (?P<gpus>\d{1,4})\)")


@dataclass(frozen=True)
class TrainingJob:
    """One training job: its network, the samples of a minibatch (0: not told), and its GPUs."""

    network: str
    batch_size: int
    gpus: int

    def __str__(self) -> str:
        return f"{self.network} ({self.batch_size})" if self.batch_size else self.network

    @classmethod
    def parse(cls, text: str) -> "TrainingJob":
        """Read a job's name. Raises InputError for any other text."""
        found = _JOB.fullmatch(text)
        if found is None:
            raise InputError(
                "colocation.job_malformed",
                f"{shown(text)} is not a job, expected one such as \"('ResNet-18 (batch size 16)', 1)\"",
            )
        return cls(found["network"], int(found["batch"] or 0), int(found["gpus"]))


@dataclass(frozen=True)
class ColocatedPair:
    """A victim on a card alongside an intruder: steps per second of each alone, and of the victim with it."""

    card: str
    victim: TrainingJob
    intruder: TrainingJob
    victim_alone: float
    intruder_alone: float
    beside: float

    @property
    def slowdown(self) -> float:
        return self.victim_alone / self.beside

    def __str__(self) -> str:
        return f"{self.victim} beside {self.intruder}"


def read_pairs(path: Path | str, cards: Sequence[str] = CARDS) -> list[ColocatedPair]:
    """Read the pairs of jobs of one GPU each that could run together. Raises InputError in one line."""
    document = read_json(path, what="file of throughputs")
    missing = [card for card in cards if not isinstance(document, dict) or not isinstance(document.get(card), dict)]
    if missing:
        raise InputError(
            "colocation.card_missing",
            f"{path}: has no throughputs of {', '.join(missing)}; expected a set of jobs per card",
        )
    return [pair for card in cards for pair in _pairs(card, document[card], f"{path}: {card}")]


def _pairs(card: str, told: Mapping[str, Any], where: str) -> list[ColocatedPair]:
    jobs = {name: TrainingJob.parse(name) for name, others in told.items() if isinstance(others, dict)}
    alone = {name: _rate(told[name].get(_ALONE), where) for name in jobs}
    found = []
    for name, job in jobs.items():
        for other, rates in told[name].items():
            if other not in jobs or job.gpus != 1 or jobs[other].gpus != 1:
                continue
            if not isinstance(rates, list) or len(rates) != 2:
                raise InputError(
                    "colocation.rates_malformed",
                    f"{where}: {shown(name)} with {shown(other)} has {shown(rates)}, expected two rates",
                )
            beside = _rate(rates[0], where)
            if beside and alone[name] and alone[other]:  # 0: they did not fit into the card together
                found.append(ColocatedPair(card, job, jobs[other], alone[name], alone[other], beside))
    return found


def _rate(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise InputError(
            "colocation.rate_malformed", f"{where}: a rate is {shown(value)}, expected a number of steps per second"
        )
    return float(value)


def rows_of(pairs: Sequence[ColocatedPair], networks: Sequence[str]) -> list[Row]:
    """Return what is known before a pair has run: networks, batch sizes, paces alone; and the slow-down it had."""
    found = []
    for pair in pairs:
        features: dict[str, float] = {}
        for who, job, alone in (
            ("victim", pair.victim, pair.victim_alone),
            ("intruder", pair.intruder, pair.intruder_alone),
        ):
            features[f"{who} batch size"] = math.log2(max(1, job.batch_size))
            features[f"{who} steps/s alone"] = math.log(alone)
            features |= {f"{who} is {network}": float(job.network == network) for network in networks}
        features["victim steps for one of the intruder's"] = math.log(pair.victim_alone / pair.intruder_alone)
        found.append(Row(features, pair.slowdown))
    return found


def networks_of(pairs: Sequence[ColocatedPair]) -> tuple[str, ...]:
    """Return the networks that occur, in the order of their names."""
    return tuple(sorted({job.network for pair in pairs for job in (pair.victim, pair.intruder)}))


def third_card(pairs: Sequence[ColocatedPair], card: str, growth: Growth = COARSE) -> Judged:
    """Learn on all cards but one, and judge on that one. Raises InputError for a card that no pair was on."""
    return _learned_on_others(pairs, card, growth)[1]


def predicted_slowdowns(
    pairs: Sequence[ColocatedPair], card: str, growth: Growth = COARSE
) -> list[tuple[ColocatedPair, float]]:
    """Learn on all cards but one: each pair that was on that one, and the slow-down predicted of it.

    Raises InputError for a card that no pair was on.
    """
    forest, _, held_out = _learned_on_others(pairs, card, growth)
    _, asked, _ = table_of(rows_of(held_out, networks_of(pairs)))
    return list(zip(held_out, (1 / forest.predict(asked)).tolist(), strict=True))


def _learned_on_others(
    pairs: Sequence[ColocatedPair], card: str, growth: Growth
) -> tuple[Forest, Judged, list[ColocatedPair]]:
    """A forest that learned which share of its pace a victim keeps, how good it is on `card`, and the pairs there."""
    networks = networks_of(pairs)
    others, own = ([pair for pair in pairs if (pair.card == card) is wanted] for wanted in (False, True))
    if not own or not others:
        raise InputError(
            "colocation.no_pairs", f"has no pairs both on {shown(card)} and on other cards; fetch the file again"
        )
    return *judge(rows_of(others, networks), rows_of(own, networks), growth, of_paces=True), own
