"""Layouts of other runtimes: published ones go round trip, and are read as stages of a network.

Megatron-LM's: docs/user-guide/features/pipeline_parallel_layout.md and
tests/unit_tests/pipeline_parallel/test_pipeline_layout.py of github.com/NVIDIA/Megatron-LM; others as said.
"""

import json
import re
import time
from dataclasses import replace

import pytest
from coded import raises
from command_line import sparsepipe
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Link, Plan, Profile, partition, plan_of_layout
from sparsepipe.records.formats.blocks import blocks_of
from sparsepipe.records.formats.layouts import StageLayout, letters_text, parse_letters, read_layout, stages_of

PUBLISHED = [
    # Megatron-LM's documents and tests
    *("Et*3|(tt|)*29,m|L", "Et|t*4|t|tL", "E|t*6|t|L", "E|t|t*2|t||(t|)*2,t*2,L", "Et*2|(tt|)*29,t|mL", "E||t|L"),
    "E|(t|)*3,m|m||L",  # the help of --pipeline-model-parallel-layout
    # github.com/NVIDIA-NeMo/Megatron-Bridge: pull request 5391, src/megatron/bridge/recipes
    *(
        "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL",
        "Et|(tt|)*30L",
        "Et*4|(t*7|)*5t*8|tmL",
        "Et*4|(tttt|)*14tmL",
        "Et*4|(t*4|)*14tmL",
    ),
    *("Et*15|t*15|t*16|t*15L", "Et*8|t*8|t*8|t*8|t*8|t*8|t*8|t*5L", "Et*3|(tttttt|)*6ttttL"),
    # github.com/modelscope/ms-swift pull request 9827, recipes of github.com/volcengine/verl and others
    *(
        "E(|tt)*30,|mL",
        "Et*10|t*12|t*8|t*8|t*12|t*12|t*12|t*4L",
        "Et*16|t*16|t*16|t*12,m,L",
        "Et*2|(tt|)*22t|(tt|)*7mL",
    ),
    *("Ettttt|(ttttt|)*14tttttL", "Et|t|(tt|)*29tL", "Ett|(tt|)*6L", "Et*8mL", "Et*4|t*3|t*3|t*4|t*3|t*4|t*4|t*3,L"),
    *("E,t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4,L", "E|t*5|t*6|t,m,L", "Et*12|t*11|t*11|t*11L", "E(tt|)*2L", "Et|t|t|tL"),
]
NAMES = [
    # github.com/pytorch/torchtitan: torchtitan/distributed/pipeline_parallel.py, tests/unit_tests of its splits
    [["tok_embeddings", "layers.0"], ["layers.1", "layers.2"], ["norm", "output"]],
    [["tok_embeddings", "layers.0", "layers.1"], ["layers.2", "layers.3", "norm", "output"]],
    [
        ["vision_encoder", "tok_embeddings", "layers.0"],
        ["layers.1", "layers.2"],
        ["norm", "lm_head", "output_res_norm"],
    ],
    [["tok_embeddings", "layers.0", "rotary_emb"], ["layers.1", "rotary_emb"], ["norm", "lm_head", "rotary_emb"]],
    [["model.embed_tokens", "model.layers.0"], ["model.layers.1", "model.norm", "lm_head"]],
]


def unrolled(text):
    """The stages of a layout by its definition: text that is repeated, groups first, is written out."""
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text.replace(",", ""))
    return tuple(text.split("|"))


@pytest.mark.parametrize("text", PUBLISHED)
def test_published_strings_go_round_trip(text):
    stages = parse_letters(text)
    assert stages == unrolled(text)
    assert parse_letters(letters_text(stages)) == stages
    assert len(letters_text(stages)) <= len(text) + 4


def test_the_example_of_the_documents_is_written_as_there():
    assert letters_text(("Ettt", *("tt",) * 29, "m", "L")) == "Et*3|(tt|)*29,m|L"


@given(st.lists(st.text("Etm", max_size=5), min_size=1, max_size=9).map(lambda stages: (*stages, "L")))
def test_any_stages_go_round_trip(stages):
    assert parse_letters(letters_text(stages)) == stages == unrolled(letters_text(stages))


@pytest.mark.parametrize("names", NAMES)
def test_published_lists_go_round_trip(names, tmp_path):
    expected = StageLayout("names", tuple(map(tuple, names)))
    assert read_layout(json.dumps(names)) == read_layout(repr(names)) == expected
    for key in ("module_fqns_per_model_part", "pipeline_parallel_module_fqns_per_model_part"):
        (tmp_path / "job.toml").write_text(f"[parallelism]\n{key} = {json.dumps(names)}\n")
        assert read_layout(tmp_path / "job.toml") == expected


def graph(blocks=6, mtp=0, *, inside=2):
    """A language model as profiles name it: functions lie between modules, at the root and inside of blocks."""
    names = ["tok_embeddings", "add"]
    for path, count in (("layers", blocks), ("mtp", mtp)):
        names += [f"{path}.{k}.{part}" for k in range(count) for part in ("attention", "add", "mlp")[:inside]]
    names += ["norm", "output"]
    return LayerGraph.chain(Layer(name, "add" if name.endswith("add") else "Linear()") for name in names)


def profile(blocks=6):
    network = graph(blocks)
    seconds = [1e-3 * (1 + k % 3) for k in range(len(network.layers))]
    return Profile(network, {"device": [LayerCost((CostSample(0, s, 2 * s, 1e5),)) for s in seconds]})


def read(text, blocks=6, devices=2, **options):
    network = graph(blocks, **options)
    stages, notes = stages_of(read_layout(text), network, num_devices=devices)
    assert sorted(k for stage in stages for k in stage) == list(range(len(network.layers)))
    return [network.layers[stage[0]].id for stage in stages], notes


CUT = ["tok_embeddings", "layers.2.attention", "layers.5.attention"]


def test_every_form_says_the_same_stages(tmp_path):
    (tmp_path / "job.yaml").write_text("system: {hetero: {hetero_pipeline_layer_split: [2, 3, 1]}}\n")
    names = [
        ["tok_embeddings", "layers.0", "layers.1"],
        [f"layers.{k}" for k in (2, 3, 4)],
        ["layers.5", "norm", "output"],
    ]
    kinds = [["embedding", "decoder", "decoder"], ["decoder"] * 3, ["decoder", "loss"]]
    for text in (
        *("Et*2|t*3|tL", json.dumps(names), json.dumps(kinds), "[0, 3, 6, 9]", "[3, 3, 3]", "[2, 3, 1]"),
        "{'layers.2': SplitPoint.BEGINNING, 'layers.4': SplitPoint.END}",
        "{'layers.5': <SplitPoint.BEGINNING: 1>, 'layers.1': torch.distributed.pipelining.SplitPoint.END}",
        str(tmp_path / "job.yaml"),
    ):
        assert read(text) == (CUT, []), text


def test_multi_token_prediction_follows_the_blocks():
    assert read("Et*4|t*2|m|L", mtp=1)[0] == ["tok_embeddings", "layers.4.attention", "mtp.0.attention", "norm"]


def test_plans_of_transformers_spread_blocks_evenly():
    """As vLLM does, whose last stage gets no more than others: vllm/distributed/utils.py."""
    from transformers import LlamaConfig  # here: it takes two seconds of whoever only collects tests

    plan = json.dumps(LlamaConfig.base_model_pp_plan)
    llama = [Layer("model.embed_tokens", "Embedding()"), *(Layer(f"model.layers.{k}.mlp", "MLP()") for k in range(7))]
    llama = LayerGraph.chain([*llama, Layer("model.norm", "Norm()"), Layer("lm_head", "Linear()")])
    stages, _ = stages_of(read_layout(plan), llama, num_devices=3)
    assert [len(stage) for stage in stages] == [1 + 2, 3, 2 + 2]


def test_blocks_are_the_modules_that_runtimes_cut_between():
    network = graph(2)
    found = blocks_of([layer.id for layer in network.layers], {layer.id for layer in network.layers} - {"add"})
    assert [(block.name, block.letter, len(block.layers)) for block in found] == [
        *(("tok_embeddings", "E", 2), ("layers.0", "t", 2), ("layers.1", "t", 2), ("norm", "L", 1), ("output", "L", 1))
    ]
    resnet = [f"net.stages.{s}.layers.{k}.{part}" for s in range(2) for k in range(3) for part in ("conv", "relu")]
    assert [block.letter for block in blocks_of(["net.stem", *resnet, "head"])] == [*"E", *"t" * 6, *"L"]
    assert len(blocks_of([f"blocks.{k}.mlp.{part}" for k in range(3) for part in range(2)] + ["blocks.0.norm"])) == 3
    assert [block.name for block in blocks_of(["0", "1", "2"])] == ["0", "1", "2"]


def test_a_name_in_several_stages_counts_once_and_is_reported():
    names = [["tok_embeddings", "layers.0", "layers.1"], [f"layers.{k}" for k in range(1, 6)] + ["norm", "output"]]
    found, notes = read(json.dumps(names))
    assert found == ["tok_embeddings", "layers.2.attention"] and len(notes) == 1 and "layers.1" in notes[0]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *(("Et*2|t*3|tL)", "layout.letters"), ("E(t|*2", "layout.letters"), ("E((t)*2)*2L", "layout.letters")),
        *(("Ex|tL", "layout.letters"), ("", "layout.count"), ("[", "layout.malformed"), ("{}", "layout.malformed")),
        *(("absent.json", "file.not_found"), ("a/b\n.txt", "file.not_found")),
        *(("E" + "t*1000000000" + "L", "layout.too_large"), ("E(t*999|)*999999999L", "layout.too_large")),
        *(("Et*99999999999999999999999999L", "layout.too_large"), ("E" + "(t*9999)*9," * 9 + "L", "layout.too_large")),
        *(("[" * 3000, "layout.malformed"), ("E" * 2_000_000, "layout.too_large"), ("[[1], [2]]", "layout.malformed")),
        *(
            ("Et*5|L", "layout.count"),
            ("Et*7|L", "layout.count"),
            ("t*6|EL", "layout.order"),
            ("E||t*6L", "layout.stage_empty"),
        ),
        *(("[0, 3, 99]", "layout.count"), ("[9, 9]", "layout.count"), ("[0, 5, 5, 9]", "layout.malformed")),
        *(
            ("{'layers.9': SplitPoint.END}", "layout.name_unknown"),
            ("{'output': SplitPoint.END}", "layout.stage_empty"),
        ),
        *(("{'layers': 'MIDDLE'}", "layout.malformed"), ("{'blocks': [['x'], ['x']]}", "layout.name_unknown")),
        *(('[["tok_embeddings", "layers"], ["norm"]]', "layout.layer_missing"),),
        *(('[["tok_embeddings", "layers", "x"], ["norm", "output"]]', "layout.name_unknown"),),
        *(('[["tok_embeddings", "layers", "norm", "output"], []]', "layout.stage_empty"),),
    ],
)
def test_bad_layouts_are_refused_in_one_line_and_at_once(text, code):
    start = time.monotonic()
    with raises(code) as caught:
        stages_of(read_layout(text), graph(), num_devices=2)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert time.monotonic() - start < 5


def test_meshes_of_flagscale_say_the_replicas(tmp_path):
    """examples/aquila and examples/deepseek_v3 of github.com/FlagOpen/FlagScale."""
    path = tmp_path / "train.yaml"
    meshes = {"[1, 1, 1, 2, 1, 1, 1, 1, 4, 2]": (2, 4, 4), "[1,1,2,4,1, 1,1,2,2,1, 1,1,2,2,1]": (4, 2, 2)}
    for text, replicas in meshes.items():
        path.write_text(
            f"system:\n  hetero:\n    hetero_pipeline_layer_split: [11, 6, 7]\n    hetero_process_meshes: {text}\n"
        )
        assert read_layout(path) == StageLayout("counts", numbers=(11, 6, 7), replicas=replicas)
    for text, code in (
        ("[2, 1, 1, 3, 1, 1, 1, 1, 1, 2]", "layout.tensor_parallel"),
        ("[1, 1, 1, 1000000000000, 3]", "layout.meshes_malformed"),
        ("[1, 1, 1, 1, 1000000]", "layout.meshes_malformed"),
        ("[1, 1]", "layout.meshes_malformed"),
    ):
        path.write_text(f"hetero: {{hetero_pipeline_layer_split: [11, 6, 7], hetero_process_meshes: {text}}}\n")
        with raises(code):
            read_layout(path)


def test_a_layout_is_a_plan_for_the_devices_there_are(tmp_path):
    network = profile()
    for text, devices, ranks in (
        ("Et*3|t*3L", 2, [(0,), (1,)]),
        ("Et*3|t*3L", 6, [(0, 1, 2), (3, 4, 5)]),
        ("Et|tt|t|ttL", 2, [(0,), (1,), (0,), (1,)]),
    ):
        plan = plan_of_layout(text, network, Cluster.uniform(devices, link=Link(1e9)))
        assert [stage.ranks for stage in plan.stages] == ranks
        assert plan.schedule == "1f1b-flush" and plan.num_microbatches == 2 * devices and plan.estimate is not None
    zbv = plan_of_layout("Et|tt|t|ttL", network, Cluster.uniform(2), schedule="zbv", num_microbatches=6)
    assert [stage.ranks for stage in zbv.stages] == [(0,), (1,), (1,), (0,)] and zbv.num_microbatches == 6
    (tmp_path / "flagscale.yml").write_text(
        "hetero: {hetero_pipeline_layer_split: [4, 2], hetero_process_meshes: [1, 1, 1, 2, 1, 1, 1, 1, 1, 1]}\n"
    )
    plan = plan_of_layout(tmp_path / "flagscale.yml", network, Cluster.uniform(3))
    assert [stage.ranks for stage in plan.stages] == [(0, 1), (2,)]
    for text, devices, code in (
        ("Et|t|t|tttL", 3, "by_hand.stages_and_devices"),
        ("Ettt|tttL", 3, "by_hand.stages_and_devices"),
        (tmp_path / "flagscale.yml", 4, "by_hand.stages_and_devices"),
    ):
        with raises(code):
            plan_of_layout(text, network, Cluster.uniform(devices))
    with raises("schedule.stages_per_device"):
        plan_of_layout("Et|tt|t|ttL", network, Cluster.uniform(2), schedule="gpipe")


def test_no_layout_beats_the_optimum():
    network, cluster = profile(), Cluster.uniform(2, link=Link(1e9))
    best = partition(network, cluster, schedule="1f1b-flush").estimate
    periods = [plan_of_layout(f"Et*{k}|t*{6 - k}L", network, cluster).estimate.period_seconds for k in range(1, 6)]
    assert min(periods) >= best.lower_bound_seconds * (1 - 1e-12) and max(periods) > 1.3 * min(periods)


def test_the_command_compares_a_layout_with_the_optimum_and_exports_it(tmp_path):
    path = profile().save(tmp_path / "profile.json")
    machines = ("-p", path, "-n", 2, "--bandwidth", "1GB/s")
    code, out, _ = sparsepipe("simulate", *machines, "--layout", "Et|t*5L", "--json", folder=tmp_path)
    document = json.loads(out)
    layout, best = document["compared"]["plans"]
    assert code == 0 and document["minibatches"] == 32 and (layout["planner"], best["planner"]) == ("layout", "optimal")
    assert layout["gap"] > best["gap"] >= 0 and layout["lower_bound_seconds"] == best["lower_bound_seconds"]
    words = ("plan", *machines, "--layout", "Et|t*5L", "--num-microbatches", 6, "-o", "plan.json")
    code, out, _ = sparsepipe(*words, folder=tmp_path)
    assert code == 0 and "layout" in out and Plan.load(tmp_path / "plan.json").num_microbatches == 6
    code, out, _ = sparsepipe("plan", "export", "plan.json", "--to", "megatron", "-o", "out", folder=tmp_path)
    assert code == 0 and '"Et|t*5,L"' in (tmp_path / "out/megatron_arguments.txt").read_text().replace("t*5L", "t*5,L")
    for words, error in (
        (("simulate", *machines), "option.plan_or_layout"),
        (("simulate", "plan.json", *machines, "--layout", "EtL"), "option.plan_or_layout"),
        (("simulate", "plan.json", *machines, "--schedule", "gpipe"), "option.of_layout"),
        (("simulate", *machines, "--layout", "Et*1000000000L"), "layout.too_large"),
        (("plan", *machines, "--layout", "Et|t*5L", "--pipelines", 2), "option.of_layout"),
        (("plan", "export", "plan.json", "--to", "megatron", "--data", "x", "-o", "out"), "option.of_target"),
        (("plan", "export", "plan.json", "--to", "torch", "-o", "out"), "option.missing"),
        (("plan", "export", "plan.json", "--to", "megatron", "--classes", 3, "-o", "out"), "option.of_model"),
        (
            ("plan", "export", "plan.json", "--to", "torch", "-b", 2, "-m", "n.py:f", "-d", "x", "-o", "o"),
            "export.data",
        ),
    ):
        code, _, said = sparsepipe(*words, folder=tmp_path)
        assert code == 2 and said[-1].endswith(f"[{error}]"), (words, said)


def test_the_command_writes_a_script_for_torch(tmp_path):
    """Network, data and loss are those of the profile: the options say no more."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\ndef build(num_classes=3, width=8):\n"
        "    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, num_classes))\n"
    )
    (tmp_path / "data.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\n\n\ndef points(split):\n"
        "    return TensorDataset(torch.randn(16, 4), torch.arange(16) % 3)\n"
    )
    network = LayerGraph.chain([Layer("0", "Linear()"), Layer("1", "ReLU()"), Layer("2", "Linear()")])
    settings = {"model": "net.py:build", "model_args": '{"width": 6}', "data": "data.py:points", "loss": "classes"}
    costs = {"device": [LayerCost((CostSample(0, 1e-3, 2e-3, 1e3),))] * 3}
    origin = {"model": "net.py:build", "batch_size": 2, "settings": settings}
    path = replace(Profile(network, costs), origin=origin).save(tmp_path / "profile.json")
    words = ("plan", "-p", path, "-n", 2, "--layout", '[["0", "1"], ["2"]]', "-o", "plan.json")
    assert sparsepipe(*words, folder=tmp_path)[0] == 0
    code, out, said = sparsepipe("plan", "export", "plan.json", "--to", "torch", "-o", "out", "--json", folder=tmp_path)
    assert code == 0 and json.loads(out)["not_expressed"] == [], said
    text = (tmp_path / "out/train_pipeline.py").read_text()
    assert "'2': SplitPoint.BEGINNING" in text and "'width': 6" in text and "MICROBATCH_SIZE = 2" in text
    assert "'../net.py:build'" in text and "functional.cross_entropy(output, target)" in text
