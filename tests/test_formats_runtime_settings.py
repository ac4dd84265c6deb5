"""Plans as settings of other runtimes, which are read again as the same stages; what they cannot express is listed."""

import json
import sys
import tomllib
from dataclasses import replace
from types import ModuleType

import pytest
import yaml
from coded import mentions, raises
from test_formats_layouts import graph

from sparsepipe import Plan, Stage
from sparsepipe.records.formats.layouts import read_layout, stages_of
from sparsepipe.records.formats.runtime_settings import SETTINGS, runtime_settings

GRAPH = graph(6)
IDS = [layer.id for layer in GRAPH.layers]


def plan(*cuts, ranks=None, schedule="1f1b-flush", **options):
    bounds = [0, *cuts, len(IDS)]
    placed = ranks or [(k,) for k in range(len(cuts) + 1)]
    stages = [Stage(tuple(IDS[a:b]), placed[k]) for k, (a, b) in enumerate(zip(bounds, bounds[1:], strict=False))]
    return Plan(tuple(stages), schedule, num_microbatches=options.pop("num_microbatches", 8), **options)


def written(given, target, tmp_path):
    export = runtime_settings(given, target, graph=GRAPH, batch_size=4)
    return export, {path.name: path for path in export.save(tmp_path / target)}


@pytest.mark.parametrize("target", ["torchtitan", "megatron", "flagscale"])
@pytest.mark.parametrize("cuts", [(8,), (2 + 2 * 1, 2 + 2 * 4), (2 + 2 * 2, 2 + 2 * 3, 2 + 2 * 5)])
def test_settings_are_read_as_the_stages_they_were_written_from(target, cuts, tmp_path):
    given = plan(*cuts)
    export, files = written(given, target, tmp_path)
    (path,) = files.values()
    source = path
    if target == "megatron":
        source = next(line for line in path.read_text().splitlines() if "layout" in line).split(" ", 1)[1]
    stages, _ = stages_of(read_layout(source), GRAPH, num_devices=len(given.stages))
    assert [tuple(IDS[k] for k in stage) for stage in stages] == [stage.layers for stage in given.stages]
    assert export.lost == ()


def test_what_each_file_says(tmp_path):
    given = plan(6, 12, ranks=[(0, 1), (2, 3), (4, 5)])
    given = replace(given, stages=tuple(replace(stage, recompute=True) for stage in given.stages))
    titan = tomllib.loads(written(given, "torchtitan", tmp_path)[1]["torchtitan.toml"].read_text())
    assert titan["parallelism"] | {"module_fqns_per_model_part": None} == {
        "pipeline_parallel_degree": 3,
        "data_parallel_replicate_degree": 2,
        "data_parallel_shard_degree": 1,
        "pipeline_parallel_schedule": "1F1B",
        "pipeline_parallel_microbatch_size": 4,
        "module_fqns_per_model_part": None,
    }
    assert titan["training"] == {"local_batch_size": 16} and titan["activation_checkpoint"] == {"mode": "full"}
    arguments = written(given, "megatron", tmp_path)[1]["megatron_arguments.txt"].read_text()
    for line in ("--pipeline-model-parallel-size 3", "--num-layers 6", '"Ett|t*3|tL"', "--global-batch-size 32"):
        assert line in arguments
    speed = json.loads(written(given, "deepspeed", tmp_path)[1]["deepspeed_config.json"].read_text())
    assert speed == {"gradient_accumulation_steps": 4, "train_micro_batch_size_per_gpu": 4}
    scale = yaml.safe_load(written(given, "flagscale", tmp_path)[1]["flagscale.yaml"].read_text())
    hetero = scale["system"]["hetero"]
    assert hetero["hetero_pipeline_layer_split"] == [2, 3, 1]
    assert hetero["hetero_process_meshes"] == [1, 1, 1, 2, 1] * 3
    assert scale["system"]["recompute"]["recompute_granularity_per_stage_micro_batch"] == [[1, 4, 1]] * 3
    assert scale["model"] == {"num_layers": 6, "micro_batch_size": 4, "global_batch_size": 32}


def test_the_module_for_deepspeed_has_the_parts_of_the_plan(tmp_path, monkeypatch):
    """DeepSpeed is not installed: what stands for its class is what the written one asks of it."""

    class PipelineModule:
        def __init__(self, layers, stage):
            self._layer_specs, self.global_rank, self._topo, self.pipe = layers, stage, self, stage
            self._partition_layers()

        def get_coord(self, rank):
            return self

        def _set_bounds(self, start, stop):
            self.bounds = (start, stop)

    deepspeed, pipe = ModuleType("deepspeed"), ModuleType("deepspeed.pipe")
    pipe.PipelineModule = PipelineModule
    monkeypatch.setitem(sys.modules, "deepspeed", deepspeed)
    monkeypatch.setitem(sys.modules, "deepspeed.pipe", pipe)
    _, files = written(plan(6, 12), "deepspeed", tmp_path)
    space = {}
    exec(files["deepspeed_module.py"].read_text(), space)
    assert space["LAYERS"] == ("tok_embeddings", *(f"layers.{k}" for k in range(6)), "norm", "output")
    bounds = [space["PlannedModule"](space["LAYERS"], stage).bounds for stage in range(3)]
    assert bounds == [(0, 3), (3, 6), (6, 9)] and space["PARTS"] == [0, 3, 6, 9]
    stages, _ = stages_of(read_layout(str(space["PARTS"])), GRAPH, num_devices=3)
    assert [IDS[stage[0]] for stage in stages] == ["tok_embeddings", "layers.2.attention", "layers.5.attention"]
    with pytest.raises(ValueError):
        space["PlannedModule"](space["LAYERS"][:-1], 0)


def lines(given, target, *, network=GRAPH):
    found = runtime_settings(given, target, graph=network).lost
    assert all("\n" not in line for line in found)
    return found


def test_what_a_runtime_lacks_is_listed():
    uneven = plan(6, ranks=[(0, 1), (2,)])
    assert [len(lines(uneven, target)) for target in SETTINGS] == [1, 1, 1, 0]
    assert mentions(lines(uneven, "megatron")[0], 2, 1)
    shares = replace(uneven, stages=(replace(uneven.stages[0], shares=(2, 1)), uneven.stages[1]))
    assert [len(lines(shares, target)) for target in SETTINGS] == [2, 2, 2, 1]
    for schedule, counts in (("1f1b", [1, 1, 1, 1]), ("gpipe", [0, 1, 1, 1]), ("sequential", [1, 1, 1, 1])):
        given = plan(6, schedule=schedule)
        assert [len(lines(given, target)) for target in SETTINGS] == counts, schedule
        assert all(schedule in line for target in SETTINGS for line in lines(given, target))
    some = plan(6)
    some = replace(some, stages=(replace(some.stages[0], recompute=True), some.stages[1]))
    assert [len(lines(some, target)) for target in SETTINGS] == [1, 1, 1, 0]
    ends = some.stages[0].layers[0], some.stages[0].layers[1]
    some = replace(some, stages=(replace(some.stages[0], recompute=False, segments=(ends,)), some.stages[1]))
    assert [len(lines(some, target)) for target in SETTINGS] == [1, 1, 1, 1]
    assert len(lines(plan(5), "megatron")) == 1, "a cut inside of a block moves"
    moved = plan(6, ranks=[(2, 3), (0, 1)])
    assert all(mentions(line, 2, 3, 0, 1) for target in SETTINGS for line in lines(moved, target))
    assert [len(lines(moved, target)) for target in SETTINGS] == [1] * 4, "ranks in another order"
    assert [len(lines(replace(plan(6, ranks=[(0, 1), (2, 3)]), num_microbatches=7), t)) for t in SETTINGS] == [1] * 4
    shared = replace(plan(6, ranks=[(0, 1), (2, 3)]), num_microbatches=8)
    shared = replace(shared, stages=(replace(shared.stages[0], sharding="space"), shared.stages[1]))
    assert [len(lines(shared, target)) for target in SETTINGS] == [1] * 4, "ranks that share scenes"
    assert len(lines(plan(6), "megatron", network=None)) == 1, "skips are unknown"


def test_values_that_skip_a_stage_are_listed():
    skipping = replace(GRAPH, edges=(*GRAPH.edges, (2, 13)))
    (line,) = lines(plan(6, 12), "torchtitan", network=skipping)
    assert mentions(line, IDS[2], 0, IDS[13], 2)
    assert lines(plan(8), "torchtitan", network=skipping) == ()


def test_interleaved_stages_go_where_they_are_known():
    given = plan(4, 8, 12, ranks=[(0,), (1,), (0,), (1,)])
    titan = runtime_settings(given, "torchtitan", graph=GRAPH).texts["torchtitan.toml"]
    assert 'schedule = "Interleaved1F1B"' in titan and "pipeline_parallel_degree = 2" in titan
    assert '"Et|(tt|)*2,tL"' in runtime_settings(given, "megatron", graph=GRAPH).texts["megatron_arguments.txt"]
    for target in ("deepspeed", "flagscale"):
        with raises("export.interleaved"):
            runtime_settings(given, target, graph=GRAPH)
    v = plan(4, 8, 12, ranks=[(0,), (1,), (1,), (0,)], schedule="zbv")
    assert len(lines(v, "torchtitan")) == 0 and len(lines(v, "megatron")) == 2
    assert len(lines(replace(v, schedule="1f1b-v", weights="stash"), "torchtitan")) == 2, "no V without its schedule"


def test_microbatches_that_torchs_schedules_do_not_take_are_refused():
    """By their constructors: 1F1B at least as many as stages, interleaved ones whole rounds of the pipeline."""
    interleaved = plan(4, 8, 12, ranks=[(0,), (1,), (0,), (1,)])
    v = plan(4, 8, 12, ranks=[(0,), (1,), (1,), (0,)], schedule="dualpipe-v")
    for given, count in ((plan(6, 12), 2), (interleaved, 5), (v, 3)):
        with raises("export.microbatches"):
            runtime_settings(replace(given, num_microbatches=count), "torchtitan", graph=GRAPH)
        assert runtime_settings(replace(given, num_microbatches=count + 1), "torchtitan", graph=GRAPH)


def test_stages_without_a_whole_block_are_refused():
    with raises("export.block_split"):
        runtime_settings(plan(6, 7), "megatron", graph=GRAPH)
    with raises("plan.violations"):
        runtime_settings(plan(6), "megatron", graph=graph(5))


def test_names_of_layers_cannot_leave_their_text():
    """A plan's file may come from anywhere: its names stay within comments and quotes."""
    names = ('a"]\nimport os', 'layers.0."""x', "layers.1.\\", "b'#")
    given = Plan((Stage(names[:2], (0,)), Stage(names[2:], (1,))), "1f1b-flush", num_microbatches=2, planner="x\ny = 1")
    for target in SETTINGS:
        for name, text in runtime_settings(given, target).texts.items():
            if name.endswith(".py"):
                compile(text, name, "exec")
            elif name.endswith(".toml"):
                assert tomllib.loads(text)["parallelism"]["pipeline_parallel_degree"] == 2
            assert "\nimport os" not in text and "\ny = 1" not in text
