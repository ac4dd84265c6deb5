"""DynPipe's files: partition files as plans, per-layer lists as profiles, published logs as they are.

    vgg16_8.json         {"partition": [15, 5, 18], "recompute_ratio": [0, 0, 0],
                          "batch_size_all": [72], "batch_size": [12, 72, 72]}
    hybrid_conf.json     PipeDream's, next to it: {"stage_to_rank_map": {"0": [0, 1, 2, 3, 4, 5], "1": [6], "2": [7]}}

    vgg16_data_1_for_.txt       milliseconds of each layer's forward, one a line
    vgg16_data_1_bac_.txt       of its backward
    vgg16_out_put_com_time.txt  of sending each layer's output, but the last one's

`partition` counts the layers of each stage in order. A stage's replicas each take `batch_size` rows of every minibatch
of `batch_size_all`; here a replica takes whole minibatches in turn, as many of them. `recompute_ratio` is the share of
a stage's layers, its last ones, whose activations are made again in the backward; here it is all of a stage or nothing.
What is lost so is in the plan's warnings.
Source: DynPipe, `--partition` and `--config_path` of its runtime.

A log has seconds by iteration with what happened, and accuracy by hours.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...util.io.fields import MOST_DEVICES, integer, number, shown
from ...util.io.files import expanded, read_json, read_text
from ...util.text.numbers import number_of
from ...values.graph import Layer, LayerGraph
from ...values.plan import Plan, Stage
from ...values.profile import CostSample, LayerCost, Profile
from .pipedream_conf import KEYS

FORWARD, BACKWARD, SENDING = "_for_.txt", "_bac_.txt", "_out_put_com_time.txt"
BANDWIDTH = 1e12  # bytes per second of a link on which what a layer puts out takes the time that the lists say
_CONFS = ("hybrid_conf.json", "mp_conf.json")
_MOST_LAYERS = 10_000


def is_partition(content: object) -> bool:
    """Return whether the content of a JSON file is a partition file."""
    return isinstance(content, Mapping) and "partition" in content


def load_partition(
    path: Path | str, graph: LayerGraph | Callable[[], LayerGraph], *, conf: Path | str | None = None
) -> Plan:
    """Read a partition file as a plan for `graph`, which may be a function that is asked for it.

    Ranks are those of `conf`, or of the hybrid_conf.json or mp_conf.json alongside the file, if that has as many
    stages; else they are numbered stage by stage, `batch_size_all` / `batch_size` of them each.
    Raises InputError naming the file.
    """
    content = read_json(path, what="partition file")
    found = expanded(conf) if conf else _beside(expanded(path))
    ranks = _ranks_of(found) if found else None
    try:
        if not is_partition(content):
            raise InputError(
                "partition.malformed",
                "not a partition file: expected an object with a list partition, such as [15, 5, 18]",
            )
        return _plan_of(content, graph if isinstance(graph, LayerGraph) else graph(), ranks, found, given=bool(conf))
    except InputError as error:
        raise error.within(f"{path}: ") from None


def _beside(path: Path) -> Path | None:
    return next((path.parent / name for name in _CONFS if (path.parent / name).is_file()), None)


def _ranks_of(path: Path) -> list[tuple[int, ...]]:
    """The ranks of each stage of a conf; how it numbers modules does not matter, the partition says what they are."""
    content = read_json(path, what="conf json")
    stages = content.get(KEYS[1]) if isinstance(content, Mapping) else None
    if not isinstance(stages, Mapping) or sorted(stages) != sorted(str(k) for k in range(len(stages))):
        raise InputError("partition.no_ranks", f'{path}: expected stage_to_rank_map, such as {{"0": [0, 1], "1": [2]}}')
    ranks_of_stage = []
    for k in range(len(stages)):
        stage = stages[str(k)]
        if not isinstance(stage, list) or not stage:
            raise InputError(
                "partition.ranks_malformed", f"{path}: ranks of stage {k} are {shown(stage)}, expected a list of ranks"
            )
        where = f"{path}: rank of stage {k}"
        ranks_of_stage.append(tuple(integer(rank, where, most=MOST_DEVICES - 1) for rank in stage))
    return ranks_of_stage


def _plan_of(
    content: Mapping[str, Any],
    graph: LayerGraph,
    ranks: list[tuple[int, ...]] | None,
    conf: Path | None,
    *,
    given: bool,
) -> Plan:
    ids = [layer.id for k, layer in enumerate(graph.layers) if k not in graph.input_layers]
    counts = [integer(count, "partition", least=1, most=len(ids)) for count in _list(content, "partition")]
    if sum(counts) != len(ids):
        raise InputError(
            "partition.layer_count",
            f"partition {shown(counts)} has {number_of(sum(counts), 'layer')}, but the network has {len(ids)}",
        )
    ratios, warnings = _ratios(content, len(counts)), list[str]()
    replicas = _replicas(content, len(counts))
    if ranks is not None and len(ranks) != len(counts):
        reason = f"{conf} has {number_of(len(ranks), 'stage')}, the partition {len(counts)}"
        if given:
            raise InputError("partition.ranks_not_whole", reason)
        warnings.append(f"{reason}: ranks are numbered stage by stage")
        ranks = None
    if ranks is None:
        bounds = [sum(replicas[:k]) for k in range(len(replicas) + 1)]
        ranks = [tuple(range(a, b)) for a, b in pairwise(bounds)]
    elif replicas != [len(rank) for rank in ranks] and "batch_size" in content:
        raise InputError(
            "partition.replica_count",
            f"batch_size {shown(content['batch_size'])} of {shown(content['batch_size_all'])} implies {replicas} "
            f"replicas, but {conf} has {[len(rank) for rank in ranks]}",
        )
    if any(len(rank) > 1 for rank in ranks):
        warnings.append("DynPipe's replicas split each minibatch; here they process whole minibatches in turn")
    if partly := [k for k, ratio in enumerate(ratios) if 0 < ratio < 1]:
        warnings.append(
            f"stage {partly[0]} recomputes {ratios[partly[0]]:g} of its layers, but only all or none is supported: "
            "it recomputes all"
        )
    stages = tuple(
        Stage(tuple(ids[sum(counts[:k]) : sum(counts[: k + 1])]), rank, recompute=ratios[k] > 0)
        for k, rank in enumerate(ranks)
    )
    return Plan(stages, planner="imported", warnings=tuple(warnings)).check(graph)


def _list(content: Mapping[str, Any], key: str, length: int | None = None) -> Sequence[Any]:
    values = content[key]
    if not isinstance(values, list) or not values or (length is not None and len(values) != length):
        expected = "a list" if length is None else f"{length} of them, one a stage"
        raise InputError("partition.value_malformed", f"{key} is {shown(values)}, expected {expected}")
    return values


def _ratios(content: Mapping[str, Any], num_stages: int) -> list[float]:
    if "recompute_ratio" not in content:
        return [0.0] * num_stages
    ratios = [number(ratio, "recompute_ratio") for ratio in _list(content, "recompute_ratio", num_stages)]
    if max(ratios) > 1:
        raise InputError(
            "partition.recompute_out_of_range",
            f"recompute_ratio is {max(ratios):g}, expected a fraction of a stage's layers from 0 to 1",
        )
    return ratios


def _replicas(content: Mapping[str, Any], num_stages: int) -> list[int]:
    """Number of replicas that share a minibatch in each stage; 1 if the file does not say."""
    if "batch_size" not in content:
        return [1] * num_stages
    if "batch_size_all" not in content:
        raise InputError("partition.batch_size_lacking", "batch_size requires batch_size_all; add it")
    (whole,) = (integer(one, "batch_size_all", least=1) for one in _list(content, "batch_size_all", 1))
    rows = [integer(one, "batch_size", least=1, most=whole) for one in _list(content, "batch_size", num_stages)]
    if uneven := [one for one in rows if whole % one or whole // one > MOST_DEVICES]:
        raise InputError(
            "partition.batch_size_uneven",
            f"batch_size {uneven[0]} does not divide the minibatch of {whole}; use a divisor",
        )
    replicas = [whole // one for one in rows]
    if sum(replicas) > MOST_DEVICES:
        raise InputError(
            "partition.too_many_replicas",
            f"batch_size implies {sum(replicas)} replicas, expected at most {MOST_DEVICES}",
        )
    return replicas


def is_layer_list(path: Path | str) -> bool:
    """Return whether a file is named as a list of forward times is."""
    return expanded(path).name.endswith(FORWARD)


def load_layer_lists(path: Path | str, *, device_type: str = "device", sending: Path | str | None = None) -> Profile:
    """Read a `*_for_.txt`, the `*_bac_.txt` and the `*_out_put_com_time.txt` next to it as the profile of a chain.

    `sending`: another list of transfer times. A layer's `output_bytes` are what takes the listed time on a link of
    `BANDWIDTH`. The lists know neither weights nor what minibatch they are of. Raises InputError naming file and line.
    """
    path = expanded(path)
    if not is_layer_list(path):
        raise InputError(
            "layer_times.malformed", f"{path}: expected a list of forward times, in a file named …{FORWARD}"
        )
    stem = path.name.removesuffix(FORWARD)
    forward, backward = _milliseconds(path), _milliseconds(path.with_name(stem + BACKWARD))
    beside = path.with_name(stem.split("_data_")[0] + SENDING)
    sent_by = expanded(sending) if sending else beside
    sent = [*_milliseconds(sent_by), 0.0]
    for other, values, count in ((path.with_name(stem + BACKWARD), backward, 0), (sent_by, sent, 1)):
        if len(values) != len(forward):
            raise InputError(
                "layer_times.line_count",
                f"{other}: has {len(values) - count} lines for {number_of(len(forward), 'layer')}, expected "
                f"{len(forward) - count}",
            )
    layers = [Layer(f"layer{k}") for k in range(len(forward))]
    costs = tuple(
        LayerCost((CostSample(0, f / 1e3, b / 1e3, s / 1e3 * BANDWIDTH),))
        for f, b, s in zip(forward, backward, sent, strict=True)
    )
    origin = {"format": "dynpipe lists", "bandwidth": BANDWIDTH}
    return Profile(LayerGraph.chain(layers), {device_type: costs}, (), origin, size_unit="samples")


def _milliseconds(path: Path) -> list[float]:
    lines = read_text(path, what="list of milliseconds").rstrip().splitlines()
    if not 0 < len(lines) <= _MOST_LAYERS:
        raise InputError(
            "layer_times.line_count", f"{path}: has {len(lines)} lines, expected one per layer, at most {_MOST_LAYERS}"
        )
    durations = []
    for line_number, line in enumerate(lines, 1):
        try:
            value: float | str = float(line)
        except ValueError:
            value = line
        durations.append(number(value, f"{path}:{line_number}: milliseconds"))
    return durations


_EVERY = 10  # iterations from one line of a log to the next
_ITERATION = re.compile(
    r"Epoch: \[(?P<epoch>\d{1,6})\]\[(?P<at>\d{1,9})/\d+\]\s+Time: (?P<seconds>[\d.]{1,20}) .*"
    r"Running Time: (?P<running>[\d.]{1,20})"
)
_PARTITION = re.compile(r"partition tensor\(\[([\d, ]{1,200})\]\)")
_VALIDATION = re.compile(r" \* Prec@1 (?P<top1>[\d.]{1,20}) ")


@dataclass(frozen=True)
class LoggedIteration:
    """One line of a log: every tenth iteration has one."""

    epoch: int
    iteration: int  # since the run began, of all epochs
    seconds: float
    running_seconds: float  # since the run began; some logs begin again from 0


@dataclass(frozen=True)
class DynPipeLog:
    """Content of one log. `marks` are (iteration, what happened): another partition, or "restart", at which it asked
    for one. `validation` is (hours, top-1 accuracy in percent) at the end of each epoch that was validated.
    """

    iterations: tuple[LoggedIteration, ...]
    marks: tuple[tuple[int, str], ...]
    validation: tuple[tuple[float, float], ...]


def read_log(path: Path | str) -> DynPipeLog:
    """Read a log of a run of DynPipe. Raises InputError for a file that holds no iterations."""
    iterations: list[LoggedIteration] = []
    marks: list[tuple[int, str]] = []
    validation: list[tuple[float, float]] = []
    before, last, partition = 0, 0, ""  # iterations of the epochs before; of this one, at the line before
    for line in read_text(path, what="log").splitlines():
        if match := _ITERATION.match(line):
            epoch, at = int(match["epoch"]), int(match["at"])
            if iterations and (epoch != iterations[-1].epoch or at < last):
                before = iterations[-1].iteration + _EVERY
            last = at
            seconds, running = (_number(match[name], path) for name in ("seconds", "running"))
            iterations.append(LoggedIteration(epoch, before + at, seconds, running))
        elif match := _PARTITION.match(line):
            ranks_text = ", ".join(match[1].replace(" ", "").split(","))
            if ranks_text != partition and iterations:
                marks.append((iterations[-1].iteration, ranks_text))
            partition = ranks_text
        elif line.strip() == "restart" and iterations:
            marks.append((iterations[-1].iteration, "restart"))
        elif (match := _VALIDATION.match(line)) and iterations:
            validation.append((iterations[-1].running_seconds / 3600, _number(match["top1"], path)))
    if not iterations:
        raise InputError("dynpipe_log.no_iterations", f"{path}: contains no iterations, expected a log of DynPipe")
    return DynPipeLog(tuple(iterations), tuple(marks), tuple(validation))


def read_curve(path: Path | str) -> list[tuple[float, float]]:
    """Read a file of (hours, accuracy or loss), a pair a line. Raises InputError, naming the line, for another."""
    curve = []
    for at, line in enumerate(read_text(path, what="curve").splitlines(), start=1):
        words = line.split()
        if words and len(words) != 2:
            raise InputError("dynpipe_log.line_malformed", f"{path}:{at}: {shown(line)}, expected hours and a value")
        if words:
            curve.append((_number(words[0], f"{path}:{at}"), _number(words[1], f"{path}:{at}")))
    if not curve:
        raise InputError("dynpipe_log.empty", f"{path}: is empty, expected lines with hours and a value")
    return curve


def _number(text: str, where: Path | str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError("dynpipe_log.not_a_number", f"{where}: {shown(text)}, expected a finite number")
    return value
