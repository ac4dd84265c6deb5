"""The command line as a newcomer meets it: exit codes, one line for what is wrong, one document with --json."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from coded import mentions

from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Plan, Profile, Stage
from sparsepipe.cli import main
from sparsepipe.cli.arguments import OPTIONS
from sparsepipe.cli.command import VERBS, parser
from sparsepipe.networks import MODULE_NETWORKS, NETWORKS


@pytest.fixture
def profile(tmp_path):
    graph = LayerGraph.chain(Layer(id, f"layer {id}", 1000) for id in "abcd")
    cost = LayerCost((CostSample(100, 0.01, 0.02, 4000), CostSample(200, 0.02, 0.04, 8000)))
    return Profile(graph, {"cpu": (cost,) * 4}, (100.0, 150.0, 200.0)).save(tmp_path / "profile.json")


def run(*arguments, capsys):
    code = main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_every_verb_has_its_options_and_its_help(capsys):
    assert set(OPTIONS) == set(VERBS)
    for name in VERBS:
        with pytest.raises(SystemExit) as ended:
            main([*name.split(), "--help"])
        assert ended.value.code == 0
        told = capsys.readouterr().out
        assert f"usage: sparsepipe {name} " in told and "--json" in told


def test_the_parser_does_without_torch():
    """Its choices are the library's tables: help, and a word that is none of them, wait for nothing heavy."""
    heavy = {"torch", "plotly", "ipywidgets", "trimesh", "sklearn", "MinkowskiEngine"}
    code = (
        "import sys; from sparsepipe.cli.command import parser\n"
        f"parser().parse_args(['plan']); print(sorted({heavy!r} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_data_verbs(tmp_path, capsys):
    code, out, _ = run(
        "data", "make", "shapes", "--out", tmp_path / "s", "--train", 1, "--test", 1, "--json", capsys=capsys
    )
    made = json.loads(out)
    assert code == 0
    assert made["synthetic"]
    assert len(made["classes"]) >= 10
    code, out, _ = run("data", "info", tmp_path / "s", "--json", capsys=capsys)
    assert (code, json.loads(out)) == (0, made)
    code, out, _ = run("data", "info", tmp_path / "s", "--voxel-size", 0.1, "--json", capsys=capsys)
    assert json.loads(out)["sample_voxels"]["samples"] == made["splits"]["train"]
    code, out, _ = run("data", "info", tmp_path / "s", capsys=capsys)
    assert code == 0 and "voxels" in out
    with pytest.raises(SystemExit, match="2"):
        run("data", "info", tmp_path / "s", "--voxel-size", 7, capsys=capsys)
    capsys.readouterr()
    code, out, _ = run("data", "list", "--json", capsys=capsys)
    assert code == 0
    kinds = {entry["name"]: entry["kind"] for entry in json.loads(out)}
    assert (
        "modelnet40" in kinds and kinds["sparsepipe-profiles"] == "graphs" and kinds["minkvgg-published"] == "profile"
    )


def test_a_laboratory_of_published_devices_is_planned_from_the_package_alone(monkeypatch, tmp_path, capsys):
    """Two RTX and two TITAN V: 1.57 times data parallelism, provably."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARSEPIPE_DATA", str(tmp_path))
    code, out, _ = run("plan", "--profile", "minkvgg-published", "--cluster", "rtx-titan-v", "--json", capsys=capsys)
    estimate = json.loads(out)
    assert code == 0 and estimate["lower_bound_seconds"] == pytest.approx(estimate["period_seconds"])
    assert estimate["data_parallel_seconds"] / estimate["period_seconds"] == pytest.approx(1.57, abs=0.005)


def test_a_plan_starts_from_another(tmp_path, capsys):
    machine, out = ("--profile", "minkvgg-published", "--cluster", "rtx-titan-v"), tmp_path / "plan.json"
    assert run("plan", *machine, "--out", out, capsys=capsys)[0] == 0
    code, again, _ = run("plan", *machine, "--warm-start", out, "--json", capsys=capsys)
    assert code == 0 and json.loads(again)["stages"] == json.loads(out.read_text())["stages"]
    assert run("plan", *machine, "--warm-start", out, "--pipelines", 2, capsys=capsys)[0] == 2


def test_models_lists_tables_and_modules_without_torch():
    code = (
        "import sys; from sparsepipe.cli import main; code = main(['models', '--json'])\n"
        "sys.exit(code or 3 * ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    found = {entry.pop("name"): entry for entry in document["models"]}
    assert found.keys() == NETWORKS.keys() | MODULE_NETWORKS.keys()
    assert all(entry["takes"] and entry["summary"] for entry in found.values())
    assert found["minkvgg16bn"]["parameters"] == 67_115_944 and found["resnet50"]["parameters"] is None
    assert found["vgg16bn-3d-narrow"] == {
        "kind": "table",
        "takes": "clouds on 32 x 32 x 32 cells",
        "summary": "VGG on a dense grid, with batch norm, a quarter of the channels",
        "parameters": 4_967_128,
    }
    assert set(document["own"]) == {"package.module:function", "path/net.py:function"}


def test_models_counts_those_of_modules_when_asked(capsys):
    code, out, _ = run("models", "squeezenet", "--parameters", capsys=capsys)
    first, *rows = out.split("\n\nyour own:\n")[0].splitlines()
    assert code == 0 and first.split() == ["name", "kind", "takes", "parameters", "summary"]
    assert [re.split(r"\s{2,}", row)[:4] for row in rows] == [
        ["squeezenet1.0", "module", "images 224 x 224", "1,248,424"],
        ["squeezenet1.1", "module", "images 224 x 224", "1,235,496"],
    ]
    code, out, _ = run("models", "bert-small", "--parameters", "--classes", 2, "--json", capsys=capsys)
    assert code == 0 and json.loads(out)["models"][0]["parameters"] > 1_000_000
    code, _, err = run("models", "resnot", capsys=capsys)
    assert code == 2 and mentions(err, "resnet50?", "[model.none_found]") and err.count("\n") == 1


def test_profile_writes_what_plan_reads(tmp_path, capsys):
    out = tmp_path / "profile.json"
    words = "profile --model minkvgg11bn-narrow --data digits --voxel-size 0.1 --batch-size 2 --num-points 128"
    words += f" --engine native --repeats 1 --device-type here --out {out}"
    code, printed, said = run(*words.split(), "--json", capsys=capsys)
    document, kept = json.loads(printed), Profile.load(out)
    warned = [line.removeprefix("warning: ") for line in said.splitlines() if line.startswith("warning: ")]
    assert warned == list(kept.warnings)  # where one repeat of a small network does not add up, as often it does not
    assert code == 0 and document["device_type"] == "here" and document["origin"]["beside"] == 0
    assert document["update_seconds"] > 0 and document["forward_seconds"] > 0
    assert document["layers"] == len(kept.graph.layers) and set(kept.update_rates) == {"here"}
    code, printed, _ = run("plan", "--profile", out, "--devices", 2, capsys=capsys)
    assert code == 0 and "here" in printed
    code, _, said = run("profile", "--model", "minkvgg11bn-narrow", "--out", out, capsys=capsys)
    assert code == 2 and said.endswith("--data [option.missing]\n") and said.count("\n") == 1


@pytest.mark.filterwarnings("default")
def test_profile_writes_a_graph_txt_that_plan_reads_and_tells_a_cache_that_cannot_be_written_in_one_line(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPARSEPIPE_CACHE", str(tmp_path / "file"))
    words = "profile --model minkvgg11bn-narrow --data digits --voxel-size 0.1 --batch-size 2 --num-points 128"
    out = tmp_path / "graph.txt"
    code, _, said = run(*words.split(), "--engine", "native", "--repeats", 1, "--out", out, capsys=capsys)
    told = [line for line in said.splitlines() if "cache" in line]
    assert code == 0 and len(told) == 1 and told[0].startswith(f"warning: {tmp_path / 'file'}: samples cannot"), said
    assert "forward_compute_time=" in out.read_text()
    code, printed, _ = run("plan", "--profile", f"here={out}", "--devices", 2, "--json", capsys=capsys)
    ids = {layer.id for layer in Profile.load(out).graph.layers}
    assert code == 0 and {id for stage in json.loads(printed)["stages"] for id in stage["layers"]} == ids


def test_plan_for_inference(profile, capsys):
    machines = ("--profile", profile, "--devices", 2, "--bandwidth", 1e9)
    code, out, _ = run("plan", *machines, "--objective", "latency", "--json", capsys=capsys)
    document = json.loads(out)
    assert code == 0 and document["gap"] == 0
    assert document["latency_seconds"] == document["latency_lower_bound_seconds"] > 0
    _, _, told = run("plan", *machines, "--objective", "latency", "--schedule", "gpipe", capsys=capsys)
    assert mentions(told, "--schedule", "--objective")
    pace = document["latency_seconds"] / 2
    words = ("plan", *machines, "--objective", "latency", "--period-at-most")
    code, out, _ = run(*words, pace, "--json", capsys=capsys)
    assert code == 0 and json.loads(out)["period_seconds"] <= pace * (1 + 1e-9)
    for given, told in (
        ((*words, pace * 0.9), "no plan has a forward period of"),
        (("plan", *machines, "--period-at-most", 1), "--period-at-most requires --objective latency"),
        ((*words, 1, "--planner", "pipedream", "--planner", "optimal"), "requires the optimal planner"),
        ((*words, 1, "--planner", "pipedream"), "does not apply to planner pipedream"),
        ((*words, 1, "--pipelines", 2), "omit pipelines"),
    ):
        code, _, said = run(*given, capsys=capsys)
        assert code == 2 and told in said and said.count("\n") == 1


def test_plan_and_simulate(tmp_path, profile, capsys):
    machines = ("--profile", profile, "--devices", 2, "--bandwidth", 1e9)
    code, out, _ = run("plan", *machines, "--out", tmp_path / "plan.json", "--json", capsys=capsys)
    document = json.loads(out)
    assert code == 0
    assert document == json.loads((tmp_path / "plan.json").read_text())
    assert document["period_seconds"] >= document["lower_bound_seconds"]
    code, out, _ = run(
        "simulate", tmp_path / "plan.json", *machines, "--trace", tmp_path / "t.json", "--json", capsys=capsys
    )
    assert code == 0
    assert json.loads(out)["minibatches"] == 32
    assert json.loads((tmp_path / "t.json").read_text())["otherData"] == {"source": "simulated"}


def test_bandwidth_and_memory_are_read_with_their_units(profile, capsys):
    """As in the explorer's readouts: 8 Gbit/s is 1e9 bytes a second."""
    answers = []
    for bandwidth, memory in (("1e9", "2e9"), ("8 Gbit/s", "2 GB"), ("1GB/s", "2000M")):
        machines = ("--profile", profile, "--devices", 2, "--bandwidth", bandwidth, "--memory", memory)
        code, out, _ = run("plan", *machines, "--json", capsys=capsys)
        assert code == 0
        answers.append({**json.loads(out), "plan_seconds": 0})
    assert answers[0] == answers[1] == answers[2]


def test_what_makes_a_profile_worth_less_is_said_beside_the_answer(tmp_path, profile, capsys):
    measured = replace(Profile.load(profile), origin={"source": "measured", "layers_over_whole": 1.3})
    path = measured.save(tmp_path / "measured.json")
    code, out, said = run("plan", "--profile", path, "--devices", 2, "--json", capsys=capsys)
    assert code == 0 and json.loads(out)["stages"]
    assert said.splitlines() == [f"warning: {text}" for text in measured.warnings] and len(measured.warnings) == 2
    assert run("plan", "--profile", profile, "--devices", 2, capsys=capsys)[2] == ""


@pytest.mark.parametrize("planner", ["optimal", "pipedream", "sparsepipe", "data-parallel", "model-parallel"])
def test_a_doubtful_profile_is_told_once_by_all_that_rests_on_it(planner, tmp_path, profile, capsys):
    """ "layers' sum is 0.506 x a whole step" was said when it was profiled, and by no plan or simulation made of it."""
    rates = {"cpu": 1e-12}
    origin = {"source": "measured", "layers_over_whole": 0.506, "background_load": {"other_cpu_share": 0.4}}
    measured = replace(Profile.load(profile), origin=origin, update_rates=rates)
    path, kept = measured.save(tmp_path / "measured.json"), tmp_path / "plan.json"
    machines, (sums, load) = ("--profile", path, "--devices", 2), measured.warnings
    assert mentions(sums, "0.506 x") and mentions(load, "40%")
    code, out, said = run("plan", *machines, "--planner", planner, "--out", kept, capsys=capsys)
    assert code == 0 and (said, out.count(sums), out.count(load)) == ("", 1, 1)
    assert json.loads(kept.read_text())["warnings"][-2:] == [sums, load]
    code, out, said = run("simulate", kept, *machines, "--json", capsys=capsys)
    assert code == 0 and json.loads(out)["warnings"][:2] == [sums, load] and said.count(sums) == 1
    code, out, said = run("simulate", kept, "--profile", profile, "--devices", 2, "--json", capsys=capsys)
    assert code == 0 and f"warning: plan: {sums}" in said.splitlines()  # another profile, and still that plan
    assert {sums, load} <= set(json.loads(out)["warnings"])
    words = ("plan", *machines, "--planner", planner, "--planner", "optimal")
    code, out, said = run(*words, capsys=capsys)
    assert code == 0 and (out + said).count(sums) == 1


def test_throughput_is_told_in_samples_where_the_profile_knows_them(profile, capsys):
    """Of one plan the explorer told samples/s, `plan` and `simulate` minibatches/s."""
    known = Profile.load(profile)
    known = replace(known, origin={**known.origin, "batch_size": 16}).save(profile.parent / "known.json")
    planners = ("--planner", "optimal", "--planner", "data-parallel")
    code, out, _ = run("plan", "--profile", known, "--devices", 2, *planners, capsys=capsys)
    assert code == 0 and re.search(r"^throughput +[\d,.]+ samples/s +[\d,.]+ samples/s$", out, flags=re.MULTILINE)


def test_several_planners_side_by_side(profile, capsys):
    planners = ("--planner", "optimal", "--planner", "data-parallel")
    code, out, _ = run("plan", "--profile", profile, "--devices", 2, *planners, "--json", capsys=capsys)
    assert code == 0
    document = json.loads(out)
    best, other = document["plans"]
    assert [best["planner"], other["planner"]] == ["optimal", "data-parallel"]
    assert other["lower_bound_seconds"] == best["lower_bound_seconds"]
    assert other["gap"] == pytest.approx(1 - best["lower_bound_seconds"] / other["period_seconds"])
    assert document["differences"][0]["planners"] == ["optimal", "data-parallel"]
    code, out, _ = run("plan", "--profile", profile, "--devices", 2, *planners, capsys=capsys)
    assert code == 0
    rows = (
        "time per minibatch",
        "throughput",
        "optimality gap",
        "peak memory",
        "sent per minibatch",
        "optimal → data-parallel",
    )
    for row in rows:
        assert any(line.startswith(row) for line in out.splitlines()), row


def test_stages_interleaved_on_each_device(tmp_path, profile, capsys):
    words = f"plan --profile {profile} --devices 2 --planner model-parallel --stages-per-device 2 --json".split()
    code, out, _ = run(*words, "--schedule", "1f1b-flush", "--out", tmp_path / "plan.json", capsys=capsys)
    assert code == 0
    assert [[one["rank"] for one in stage["replicas"]] for stage in json.loads(out)["stages"]] == [[0], [1], [0], [1]]
    machines = ("--profile", profile, "--devices", 2)
    code, out, _ = run("simulate", tmp_path / "plan.json", *machines, "--json", capsys=capsys)
    assert code == 0 and json.loads(out)["busy_fraction"].keys() == {"0", "1"}
    code, out, _ = run(*words, "--schedule", "1f1b", capsys=capsys)
    assert code == 0 and json.loads(out)["weights"] == "stash" and len(json.loads(out)["stages"]) == 4
    code, _, told = run(*words, "--schedule", "gpipe", capsys=capsys)
    assert code == 2 and "'gpipe'" in told and told.endswith("[schedule.stages_per_device]\n")
    words = [*words[:-3], "--json"]
    code, out, _ = run(*words, "--schedule", "zbv", "--out", tmp_path / "bent.json", capsys=capsys)
    assert [[one["rank"] for one in stage["replicas"]] for stage in json.loads(out)["stages"]] == [[0], [1], [1], [0]]
    code, out, _ = run("simulate", tmp_path / "bent.json", *machines, "--json", capsys=capsys)
    assert code == 0 and json.loads(out)["busy_fraction"].keys() == {"0", "1"}
    code, _, told = run("plan", *machines, "--planner", "data-parallel", "--schedule", "zbv", capsys=capsys)
    assert code == 2 and "'zbv'" in told and told.endswith("[schedule.stages_per_device]\n")
    code, out, _ = run("plan", *machines, "--planner", "optimal", "--schedule", "1f1b-v", "--json", capsys=capsys)
    assert [[one["rank"] for one in stage["replicas"]] for stage in json.loads(out)["stages"]] == [[0], [1], [1], [0]]
    assert code == 0 and json.loads(out)["gap"] < 0.01


@pytest.mark.parametrize("schedule", ["interleaved-zero-bubble", "zbv", "dualpipe-v"])
def test_a_schedule_of_several_stages_a_device_takes_a_planner_of_them(profile, capsys, schedule):
    words = ("plan", "--profile", profile, "--devices", 2, "--schedule", schedule, "--json")
    code, out, told = run(*words, capsys=capsys)
    asked = run(*words, "--planner", "model-parallel", capsys=capsys)[1]
    assert code == 0 and told.count("\n") == 1 and mentions(told, "2 stages", "'model-parallel'")
    assert json.loads(out)["stages"] == json.loads(asked)["stages"] and len(json.loads(out)["stages"]) == 4


def test_a_cluster_file_and_types_by_name(tmp_path, profile, capsys):
    (tmp_path / "c.toml").write_text(Cluster.uniform(2, device_type="fast").to_toml())
    code, out, _ = run(
        "plan", "--profile", f"fast={profile}", "--cluster", tmp_path / "c.toml", "--json", capsys=capsys
    )
    assert code == 0
    assert json.loads(out)["stages"][0]["replicas"][0]["device_type"] == "fast"


def test_more_devices_than_layers_leaves_some_unused_and_says_so(profile, capsys):
    code, out, _ = run(*f"plan --profile {profile} --devices 5 --planner model-parallel --json".split(), capsys=capsys)
    assert code == 0
    assert any("unused" in line for line in json.loads(out)["warnings"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "--profile", "{profile}", "--devices", 0), "device count 0"),
        (("plan", "--profile", "{profile}"), "no devices"),
        (("plan", "--devices", 2), "no profile"),
        (("plan", "--profile", "{profile}", "--devices", 2, "--bandwidth", -1), "-1: expected more than 0"),
        (("plan", "--profile", "{profile}", "--devices", 2, "--bandwidth", "10 Gb/s"), "GB/s for bytes or Gbit/s"),
        (
            ("plan", "--profile", "{profile}", "--devices", 2, "--memory", "24 GB/s"),
            "not a unit of size, expected a value such as 24 GB",
        ),
        (("plan", "--profile", "{profile}", "--devices", 2, "--bandwidth", 1, "--bandwidth", 1), "once per --devices"),
        (("plan", "--profile", "none.json", "--devices", 2), "none.json: no such profile"),
        (("plan", "--profile", "none.txt", "--devices", 2), "none.txt: no such graph.txt"),
        (("plan", "--profile", "{profile}", "--profile", "{profile}", "--devices", 2), "'cpu' is in both profiles"),
        (("plan", "--profile", "{profile}", "--devices", 2, "--planner", "best"), "invalid choice: 'best'"),
        (
            ("plan", "--profile", "{profile}", "--devices", 2, "--use-fewer-machines"),
            "--use-fewer-machines does not apply",
        ),
        (
            ("plan", "--profile", "{profile}", "--devices", 2, "--num-microbatches", 4),
            "schedule 1f1b, which updates after each minibatch; omit it, or give --schedule 2bw, 1f1b-flush",
        ),
        (
            ("plan", "--profile", "{profile}", "--devices", 2, "--activation-compression-ratio", 2),
            "--activation-compression-ratio requires the published cost model; give --cost-model published",
        ),
        (
            ("plan", "--profile", "{profile}", "--devices", 2, "--cost-model", "dnn-partitioning", "--quick"),
            "quick does not apply to --cost-model dnn-partitioning",
        ),
        (("export", "{other}", "--classes", 2, "--out", "out"), "--classes requires --model"),
        (
            ("plan", "--profile", "{profile}", "--cluster", "mixed-cores"),
            "rename a profile (--profile native-2t=FILE",
        ),
        (("reproduce", "02_data", "--no-pictures", "--width", 3), "apply to pictures: omit them"),
        (("simulate", "{other}", "--profile", "{profile}", "--devices", 2), "different graph"),
        (("simulate", "none.json", "--profile", "{profile}", "--devices", 2), "none.json: no such plan"),
        (
            ("simulate", "{other}", "--profile", "{profile}", "--devices", 2, "--trace", "t.jsn"),
            "t.jsn: expected a name that ends in .json",
        ),
        (
            ("plan", "--profile", "minkvgg", "--devices", 2),
            "minkvgg: no such profile; check the path, or choose one of",
        ),
        (("cluster", "show", "two-core"), "two-core: no such cluster file; check the path, or choose one of"),
        (("profile", "--model", "m", "--data", "d", "--out", "x.json"), "no batch size given; add --batch-size"),
        (
            ("profile", "--model", "m", "--data", "d", "--batch-size", 2, "--out", "{folder}"),
            "is a folder, expected a file's name",
        ),
        (
            ("models", "resnt"),
            "no model name contains 'resnt'; `sparsepipe models` lists all models; did you mean resnet",
        ),
        (("data", "fetch", "digit"), "or a folder's path; did you mean 'digits'?"),
        (("runs", "show", "{other}"), "other.json: is a file, expected a run's folder"),
        (
            ("plan", "--profile", "{profile}", "--devices", 9, "--cluster", "{nodes}"),
            "--cluster and --devices: both define the devices",
        ),
        (("plan", "--server-file", "s.txt", "--cluster", "{nodes}"), "--cluster and --server-file: both define"),
        (("plan", "--server-file", "s.txt", "--devices", 2), "--server-file and --devices: both define"),
        (("plan", "--profile", "{profile}", "--cluster", "{nodes}", "--memory", "1MB"), "change them in that file"),
        (("sweep", "--profile", "{profile}", "--cluster", "{nodes}", "--bandwidth", 1), "omit --bandwidth"),
        (("plan", "--profile", "{profile}", "--bandwidth", 1), "--bandwidth requires devices"),
        (("simulate", "{other}", "--profile", "{profile}", "--devices", 2, "--seed", 0), "--seed requires a plan of"),
        (
            ("simulate", "{other}", "--profile", "{profile}", "--devices", 2, "--restart-seconds", 3),
            "--restart-seconds requires --inject kill",
        ),
        (("run", "--forward-only", "none", "--epochs", 7), "omit --epochs"),
        (("run", "--forward-only", "none", "--optimizer", "adam"), "omit --optimizer"),
        (("run", "--forward-only", "none", "--no-validation"), "omit --no-validation"),
        (("run",), "no plan given"),
        (("run", "--resume", "none"), "none: is not a run"),
        (("runs", "show", "none"), "none: is not a run"),
        (("data", "info", "none"), "none"),
        (("frobnicate",), "invalid choice: 'frobnicate'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, profile, capsys, arguments, message):
    other = Plan((Stage(("x", "y"), (0,)),)).save(tmp_path / "other.json")
    (nodes := tmp_path / "nodes.toml").write_text(Cluster.uniform(2, device_type="cpu").to_toml())
    facts = {"profile": profile, "other": other, "nodes": nodes, "folder": tmp_path}
    given = [str(item).format(**facts) for item in arguments]
    try:
        code = main(given)
    except SystemExit as stopped:  # argparse leaves by itself
        code = stopped.code
    output = capsys.readouterr()
    assert code == 2
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert message in output.err


@pytest.mark.parametrize(
    "words",
    [
        "plan --profile {profile} --devices 2 --out {out}",
        "simulate {plan} --profile {profile} --devices 2 --trace {out}.json",
        "export {plan} --out {out}",
    ],
)
def test_a_path_that_cannot_be_written_is_one_line(tmp_path, profile, capsys, words):
    (tmp_path / "file").write_text("")
    made = tmp_path / "plan.json"
    run(*f"plan --profile {profile} --devices 2 --out {made}".split(), capsys=capsys)
    out = tmp_path / "file" / "under"
    code, printed, told = run(*words.format(profile=profile, plan=made, out=out).split(), capsys=capsys)
    assert code == 2 and not printed and told.count("\n") == 1 and str(tmp_path / "file") in told, told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("plan --devices 1000000000", "--devices: 1000000000: expected at most 4096"),
        ("plan --devices 1000 --devices 1000", "--devices 1000 --devices 1000: expected at most 4096 devices in total"),
        ("plan --devices two", "--devices: 'two' is not a whole number"),
        ("plan --devices 4 --num-microbatches 1e9", "--num-microbatches: 1000000000: expected at most 16384"),
        ("plan --devices 4 --num-microbatches 1e400", "'1e400' is not a whole number"),
        ("plan --devices 4 --stages-per-device 1e9 --planner model-parallel", "1000000000 stages for "),
        ("plan --devices 4 --bandwidth 1e-300", "bandwidth"),
        ("plan --devices 4 --planner dynpipe --sizes 3,0,1", "--sizes: 0: expected 1 or more"),
        (
            "plan --devices 4 --planner dynpipe --sizes 3,9",
            "sizes [3, 9] given, expected the layer count of each stage",
        ),
        ("plan --devices 4 --top-k 3", "--top-k does not apply to planner optimal"),
        ("plan --devices 4 --memory nan", "--memory: 'nan'"),
        ("simulate none.json --devices 4 --minibatches 1e9", "--minibatches: 1000000000: expected at most 131072"),
        ("replay none.json --devices 4 --minibatches 1e9", "--minibatches: 1000000000: expected at most 131072"),
        ("run --seed 1e30", "is not a whole number"),
        ("run --seed 18446744073709551617", "--seed: 18446744073709551617: expected at most 18446744073709551616"),
        ("run --epochs " + "9" * 5000, "is not a whole number"),
        ("run --checkpoint-every -1", "--checkpoint-every: -1: expected 0 or more"),
    ],
)
def test_numbers_that_would_fill_the_memory_end_in_one_line(words, message, profile, capsys):
    """A billion devices filled the memory, as many microbatches took for ever; all that is counted has an end."""
    verb, *rest = words.split()
    machines = [] if verb == "run" else ["--profile", str(profile)]
    try:
        code = main([verb, *rest, *machines])
    except SystemExit as stopped:
        code = stopped.code
    said = capsys.readouterr().err
    assert code == 2 and message in said and said.count("\n") == 1 and len(said) < 300


@pytest.mark.parametrize(
    ("shell", "code", "line"),
    [
        (
            "{} data list >&-",
            1,
            "data list is done, but its output could not be written to standard output (it is closed)",
        ),
        ("{} data list >/dev/full", 1, "data list is done, but .* standard output \\(No space left on device\\)"),
        ("{} data list <&- 2>&- >/dev/null", 0, ""),
        ("{} data list | true; exit ${{PIPESTATUS[0]}}", 0, ""),
        ("mkdir a; cd a; rmdir ../a; {} data list", 2, "the current folder was deleted; change to an existing"),
    ],
)
def test_output_that_cannot_be_written_is_one_line(tmp_path, shell, code, line):
    """With standard output closed a good run ended with exit code 1 in silence; on a full disk, in a traceback."""
    command = shell.format(f"{sys.executable} -m sparsepipe")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    words = ["bash", "-c", command]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    said = done.stderr.strip().splitlines()
    assert (done.returncode, len(said)) == (code, 1 if line else 0), said
    assert not line or re.search(line if "\\" in line else re.escape(line), said[0])


def test_what_is_shipped_goes_by_its_name(tmp_path, capsys, monkeypatch):
    """Notebooks took the names of data_manifests/clusters, `--cluster` did not; a file of that name goes before."""
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(
        "plan", "--profile", "minkvgg16bn", "--cluster", "mixed-cores", "--quick", "--json", capsys=capsys
    )
    assert code == 0 and json.loads(out)["stages"]
    assert run("cluster", "show", "two-cores", capsys=capsys)[0] == 0
    assert "loopback" in run("cluster", "show", "mixed-cores", capsys=capsys)[1]
    (tmp_path / "two-cores").write_text("gpu1 slots=4\n")
    assert "4 devices" in run("cluster", "show", "two-cores", capsys=capsys)[1]
    code, _, told = run("cluster", "show", "three-cores", capsys=capsys)
    assert code == 2 and "one of mixed-cores" in told and told.endswith("[manifest.not_found]\n")


def test_every_option_says_what_it_is():
    """Half of those of `train` stood in its help without a word, or without what they are by default."""
    verbs = parser().verbs
    silent = [f"{name} {action.dest}" for name, verb in verbs.items() for action in verb._actions if not action.help]
    assert len(verbs) > 25 and not silent
    verbs["train"].common = ()  # as --help-all
    told = " ".join(verbs["train"].format_help().split())
    assert "(default: 0.01)" in told and "(default: float32)" in told and "(default: 300)" in told
