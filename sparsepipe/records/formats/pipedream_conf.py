"""PipeDream's files for a plan: hybrid_conf.json, mp_conf.json, dp_conf.json and gpus=N.txt, read and written.

A conf names no layers: its modules are the stages of gpus=N.txt, where every node has its stage_id, or the layers
themselves in order. The last module is the criterion, which runs on the last stage.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...networks import MODULE_NETWORKS, NETWORKS
from ...util.io.fields import MOST_DEVICES, Check, flag, integer, number, one_of, shown, text
from ...util.io.files import expanded, read_json, write_json
from ...util.text.numbers import number_of
from ...values.graph import LayerGraph
from ...values.graph_text import GraphText
from ...values.plan import Plan, Stage
from ...values.profile import Profile

KEYS = ("module_to_stage_map", "stage_to_rank_map")


def conf_of(plan: Plan) -> dict[str, Any]:
    """hybrid_conf.json of a plan: one module a stage, and the criterion. Shares are lost: the format has none."""
    stages = range(len(plan.stages))
    conf: dict[str, Any] = {
        "module_to_stage_map": [*stages, stages[-1]],
        "stage_to_rank_map": {str(k): list(plan.stages[k].ranks) for k in stages},
    }
    depths = {str(k): plan.stages[k].warmup for k in stages if plan.stages[k].warmup is not None}
    return conf | ({"stage_to_depth_map": depths} if depths else {})


def data_parallel_conf(plan: Plan) -> dict[str, Any]:
    """dp_conf.json: every module in stage 0, on all ranks of the plan."""
    return {"module_to_stage_map": [0] * (len(plan.stages) + 1), "stage_to_rank_map": {"0": sorted(plan.ranks)}}


def model_parallel_conf(plan: Plan) -> dict[str, Any]:
    """mp_conf.json: the same stages, each on one rank."""
    stages = range(len(plan.stages))
    return {"module_to_stage_map": [*stages, stages[-1]], "stage_to_rank_map": {str(k): [k] for k in stages}}


def graph_text_of(plan: Plan, profile: Profile) -> GraphText:
    """gpus=N.txt of a plan: the graph.txt with a stage_id for each node; what loads the data is in stage 0."""
    plan.check(profile.graph)
    stage_of = {profile.graph.layers[k].id: 0 for k in profile.graph.input_layers}
    stage_of |= {id: k for k, stage in enumerate(plan.stages) for id in stage.layers}
    return profile.to_graph_text().with_stages(stage_of)


def export_plan(plan: Plan, folder: Path | str, *, profile: Profile | None = None) -> list[Path]:
    """Write hybrid_conf.json, mp_conf.json and dp_conf.json, and with a profile gpus=N.txt. Returns their paths."""
    confs = {"hybrid": conf_of(plan), "mp": model_parallel_conf(plan), "dp": data_parallel_conf(plan)}
    text = graph_text_of(plan, profile) if profile else None
    folder = expanded(folder)
    written = [write_json(folder / f"{name}_conf.json", conf) for name, conf in confs.items()]
    if text:
        written.append(text.save(folder / f"gpus={len(plan.ranks)}.txt"))
    return written


def load_conf(path: Path | str, text: GraphText) -> Plan:
    """Read a conf json for the model of `text`, a gpus=N.txt or, where the conf lists every layer, a graph.txt.

    Raises InputError naming the file if the conf is incomplete or does not fit the graph.
    """
    document = read_json(path, what="conf json")
    try:
        return _plan_of(document, text.graph, _stage_ids(text)).check(text.graph)
    except InputError as error:
        raise error.within(f"{path}: ") from None


def is_conf(document: object) -> bool:
    """Return True if a JSON document is a conf by its keys."""
    return isinstance(document, Mapping) and KEYS[0] in document


def load_plan(path: Path | str, graph: LayerGraph | Callable[[], LayerGraph]) -> Plan:
    """Read a plan, or a conf json as a plan for `graph`, which may be a function that is asked for it only then.

    A conf's modules are the stages of the gpus=N.txt next to it, the one for as many ranks if there are several; with
    none, they are the layers of `graph` in order, or all of them in its only stage. Layers of that gpus=N.txt may have
    other names than those of `graph`, as PipeDream's have: where both graphs have the same shape, the place of a layer
    says which it is.
    Raises InputError naming the file.
    """
    document = read_json(path, what="plan")
    if not is_conf(document):
        return Plan.load(path)
    graph = graph if isinstance(graph, LayerGraph) else graph()
    beside = _beside(expanded(path), document)
    if beside:
        text = GraphText.load(beside)
        return _renamed(load_conf(path, text), text.graph, graph, where=beside)
    try:
        return _plan_of(document, graph, {}).check(graph)
    except InputError as error:
        raise error.within(f"{path}: ") from None


def _beside(path: Path, conf: Mapping[str, Any]) -> Path | None:
    """The gpus=N.txt that goes with a conf, None if there is none."""
    lists_found = sorted(path.parent.glob("gpus=*.txt"))
    if len(lists_found) <= 1:
        return lists_found[0] if lists_found else None
    ranks = conf.get(KEYS[1])
    lists = ranks.values() if isinstance(ranks, Mapping) else ()
    count = len(
        {
            rank
            for module_list in lists
            if isinstance(module_list, list)
            for rank in module_list
            if isinstance(rank, int)
        }
    )
    name = f"gpus={count}.txt"
    if path.parent / name not in lists_found:
        raise InputError(
            "conf.graph_missing",
            f"{path}: is for {number_of(count, 'rank')}, but {name} is missing in its folder; add that file",
            name=name,
        )
    return path.parent / name


def _renamed(plan: Plan, graph: LayerGraph, other: LayerGraph, *, where: Path) -> Plan:
    """The plan for `graph` with the names that its layers have in `other`."""
    (ids, edges), (names, expected) = _shape(graph), _shape(other)
    if set(ids) == set(names):
        return plan
    if len(ids) != len(names) or edges != expected:
        raise InputError(
            "conf.graph_differs",
            f"{where}: describes another network: it has {number_of(len(ids), 'layer')} and {len(edges)} edges, but "
            f"the model has {len(names)} and {len(expected)}, or different edges",
        )
    name = dict(zip(ids, names, strict=True))
    stages = (
        replace(
            stage,
            layers=tuple(name[id] for id in stage.layers),
            segments=tuple((name[first], name[last]) for first, last in stage.segments),
        )
        for stage in plan.stages
    )
    return replace(plan, stages=tuple(stages))


def _shape(graph: LayerGraph) -> tuple[list[str], set[tuple[int, int]]]:
    """Ids of the layers that compute, and the edges between them by their places."""
    ids = [layer.id for layer in _computing(graph)]
    stage_of_layer = {graph.index[id]: k for k, id in enumerate(ids)}
    return ids, {(stage_of_layer[i], stage_of_layer[j]) for i, j in graph.edges if i in stage_of_layer}


def _plan_of(conf: object, graph: LayerGraph, stage_ids: Mapping[str, int]) -> Plan:
    if not isinstance(conf, Mapping) or any(key not in conf for key in KEYS):
        raise InputError("conf.malformed", f"expected a JSON object with {' and '.join(KEYS)}")
    modules, ranks, depths = conf[KEYS[0]], conf[KEYS[1]], conf.get("stage_to_depth_map") or {}
    _require_count_lists(modules, ranks, depths)
    count = max(modules) + 1
    # Of data parallelism alone it is no matter which layers a module has.
    one_stage = dict.fromkeys((layer.id for layer in _computing(graph)), 0)
    module_of = _module_of(graph, stage_ids, len(modules) - 1) if count > 1 else one_stage
    if sorted(ranks) != sorted(str(k) for k in range(count)):
        raise InputError(
            "conf.stages_unnumbered",
            f"stage_to_rank_map has stages {', '.join(sorted(ranks))}, expected 0 to {count - 1}",
        )
    stages = []
    for k in range(count):
        own = (layer.id for layer in _computing(graph) if modules[module_of[layer.id]] == k)
        stages.append(Stage(tuple(own), tuple(ranks[str(k)]), warmup=depths.get(str(k))))
    return Plan(tuple(stages), planner="imported")


def _require_count_lists(modules: Any, ranks: Any, depths: Any) -> None:
    def counts(values: object) -> bool:
        return isinstance(values, list) and all(type(value) is int and 0 <= value < MOST_DEVICES for value in values)

    if not counts(modules) or len(modules) < 2:
        raise InputError(
            "conf.modules_malformed",
            "module_to_stage_map is malformed: expected a list of stage numbers, one per module, the criterion last",
        )
    if not isinstance(ranks, Mapping) or not all(counts(value) for value in ranks.values()):
        raise InputError(
            "conf.ranks_malformed",
            'stage_to_rank_map is malformed: expected a map from stages to ranks, such as {"0": [0, 1], "1": [2]}',
        )
    if not isinstance(depths, Mapping) or not counts(list(depths.values())):
        raise InputError(
            "conf.depths_malformed",
            'stage_to_depth_map is malformed: expected a map from stages to warm-up minibatches, such as {"0": 2}',
        )


def _stage_ids(text: GraphText) -> dict[str, int]:
    """Layer id → stage_id, of those that have one."""
    return {node.id: node.stage_id for node in text.nodes if node.stage_id is not None}


def _module_of(graph: LayerGraph, stage_ids: Mapping[str, int], num_modules: int) -> dict[str, int]:
    """Layer id → module: its stage_id in gpus=N.txt, or its own place where the conf lists every layer."""
    layers = _computing(graph)
    known = {layer.id: stage_ids[layer.id] for layer in layers if layer.id in stage_ids}
    if len(known) == len(layers) and set(known.values()) == set(range(num_modules)):
        return known
    if len(layers) == num_modules:
        return {layer.id: k for k, layer in enumerate(layers)}
    stages = "no stage_ids" if len(known) < len(layers) else number_of(len(set(known.values())), "stage")
    raise InputError(
        "conf.graph_needed",
        f"lists {num_modules} modules, but the graph has {number_of(len(layers), 'layer')} and {stages}; give the "
        "matching gpus=N.txt",
        num_modules=num_modules,
    )


def _computing(graph: LayerGraph) -> list[Any]:
    return [layer for k, layer in enumerate(graph.layers) if k not in graph.input_layers]


POINTS = 4096  # that SparsePipe draws of each cloud, times sample_ratio


@dataclass(frozen=True, slots=True)
class ModelType:
    """Names of a model_type's networks in sparsepipe, and the settings of its training script."""

    names: tuple[str, ...]
    networks: Mapping[str, Any]
    settings: Mapping[str, Any]


MODEL_TYPES: Mapping[str, ModelType] = {
    "Minkowski": ModelType(("mink{}",), NETWORKS, {"num_points": POINTS}),
    "point_cloud": ModelType(("{}-3d",), NETWORKS, {}),
    "image_classification": ModelType(("{}-images", "{}"), MODULE_NETWORKS, {}),
    "translation": ModelType(("{}",), MODULE_NETWORKS, {"optimizer": "adam"}),
}
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "step": {"learning_rate_schedule": "step", "learning_rate_decay": 0.1, "decay_epochs": 30.0},
    "polynomial": {"learning_rate_schedule": "polynomial", "learning_rate_decay": 2.0},
    "exponential_decay": {"learning_rate_schedule": "exponential", "learning_rate_decay": 0.97},  # in all epochs
}


def _at_least_one(value: object, what: str) -> int:
    return integer(value, what, least=1)


def _anything(value: object, what: str) -> Any:
    return value


MEANT: Mapping[str, Check] = {
    "module": text,
    "data_dir": text,
    "config_file": text,
    "log_directory": text,
    "model_type": one_of(*MODEL_TYPES),
    "machines": _anything,  # read by clusters/detection.py
    "batch_size": _at_least_one,
    "learning_rate": number,
    "learning_rate_policy": one_of(*POLICIES),
    "weight_decay": number,
    "epochs": _at_least_one,
    "voxel_size": number,
    "sample_ratio": number,
    "no_input_pipelining": flag,
    "recompute": flag,
}
WITHOUT_MEANING: Mapping[str, str] = {
    "container": "workers are processes of the host itself",
    "distributed_backend": "ranks of a host share memory, others use sockets",
    "print_frequency": "the run directory records every minibatch",
    "verbose_frequency": "the run directory records every minibatch",
    "compress_activations": "PipeDream's runtime reads it neither; use --compression instead",
    "compress_in_gpu": "PipeDream's runtime reads it neither; use --compression instead",
    "translation_model": "model_type determines it",
    "eval_batch_size": "validation has minibatches of batch_size",
    "lr_warmup": "--warmup-minibatches N sets the warm-up",
    "synthetic_data": "data_dir is read; --data names other data",
    "macrobatch": "a plan of schedule 2bw accumulates so",
}


def checked_values(document: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values of a driver file by their keys. Raises InputError for a key or a value that is none."""
    return {_key(key): _checked(key, value) for key, value in document.items()}


def _key(key: object) -> str:
    known = [*MEANT, *WITHOUT_MEANING]
    if key in known:
        return str(key)
    alike = get_close_matches(str(key), known, n=1)
    raise InputError(
        "driver.key_unknown",
        f"key {shown(key)} is none of a driver file's" + (f": is it {alike[0]}?" if alike else ": leave it out"),
    )


def _checked(key: str, value: object) -> Any:
    check: Callable[[Any, str], Any] = MEANT.get(key, _anything)
    return check(value, key)
