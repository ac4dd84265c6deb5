"""Damaged files, a format at a time: each is read as something that works, or refused in one line."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzzing import fuzzed, put
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe import Cluster, GraphText, InputError, Layer, LayerGraph, Plan, Profile, Stage, partition
from sparsepipe.records.formats.dynpipe import load_layer_lists, load_partition
from sparsepipe.records.formats.layouts import read_layout, stages_of
from sparsepipe.records.formats.pipedream_conf import conf_of, graph_text_of, load_conf
from sparsepipe.records.formats.sparsepipe_servers import ServerFile
from sparsepipe.values.cluster import DeviceType, Link, Node
from sparsepipe.values.profile import CostSample, LayerCost
from sparsepipe.values.replication import parse_rule, rule_from_json, rule_text, rule_to_json
from sparsepipe.values.schedule import actions
from sparsepipe.values.stragglers import Stragglers

EXAMPLES = 25  # of each of the tests below
FEW = 16  # devices that are planned for: a number that an edit made long, a thousand devices, takes minutes

# What a hand, an editor or another program may leave in a file, beside any text at all.
SCRAPS = (
    *(
        "",
        "\n",
        "\t",
        "\r\n",
        " ",
        " -- ",
        "; ",
        "[",
        "]",
        "[[node]]",
        "{",
        "}",
        ",",
        ":",
        "=",
        '"',
        "#",
        "\x00",
        "\ufeff",
    ),
    *(
        "nan",
        "inf",
        "-1",
        "0",
        "1e999",
        "1e-320",
        "99999999999999999999",
        "9" * 5_000,
        "0x10",
        "١",
        "²",
        "true",
        "null",
    ),
    *(
        "Server0",
        "Server",
        "fc",
        "conv",
        "a",
        "stage_id=",
        "stage_id=-1",
        "stage_id=²",
        "stage_id=99999999",
        "[[[" * 400,
    ),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 10**9, 10**30, 10**400, 0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf")),
    *("", "a", "conv", "fc", "1", "Input", "nan", [], {}, [[]], [0], [1, 1], ["a"], {"a": 1}, [None], [{}]),
)
edits = st.lists(
    st.tuples(
        st.integers(0, 2**16), st.integers(0, 2**16), st.integers(0, 60), st.sampled_from(SCRAPS) | st.text(max_size=4)
    ),
    min_size=1,
    max_size=4,
)
tree_edits = st.lists(
    st.tuples(st.integers(0, 2**16), st.sampled_from(("put", "put", "drop", "twice")), st.sampled_from(VALUES)),
    min_size=1,
    max_size=3,
)


def damaged(text: str, found: list[tuple[int, int, int, str]]) -> str:
    """Cut something out of the text, put something in, sometimes something from elsewhere in it."""
    for place, source, length, scrap in found:
        at, other = place % (len(text) + 1), source % (len(text) + 1)
        middle = text[other : other + length] if source % 3 == 0 else scrap
        text = text[:at] + middle + text[at + (length if source % 2 else 0) :]
    return text


def damaged_tree(document: Any, found: list[tuple[int, str, Any]]) -> Any:
    """Replace, drop or double values anywhere in a JSON document."""
    document = copy.deepcopy(document)
    for number, how, value in found:
        places = list(_places(document))
        if not places:
            return value
        holder, key = places[number % len(places)]
        if how == "drop":
            del holder[key]
        elif how == "twice" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[key] = copy.deepcopy(value)
    return document


def _places(value: Any) -> Any:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def read_or_refused(path: Path, read: Callable[[], Any], use: Callable[[Any], Any]) -> None:
    """Reading refuses in one line that names the file, or what was read can be used, or is refused in one line."""
    try:
        value = read()
    except InputError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
        return
    try:
        use(value)
    except InputError as error:
        assert "\n" not in str(error)


def write(path: Path, content: str) -> Path:
    return put(path, content.encode("utf-8", "surrogatepass"))


GRAPH = LayerGraph.chain(
    [Layer("input", "Input0"), Layer("conv", "Conv(3 → 8)", 864), Layer("bn", "BN", 64), Layer("fc", "Linear", 320)],
    skips=[(1, 3)],
)
PROFILE = Profile(
    GRAPH,
    {
        name: tuple(
            LayerCost((CostSample(10, 0.5 / speed, 1, 800, 160, 5), CostSample(20, 1 / speed, 2, 1600, 320, 10)))
            for _ in GRAPH.layers
        )
        for name, speed in (("fast", 2), ("slow", 1))
    },
    (10.0, 14.0, 20.0),
    {"model": "tiny"},
)
CLUSTER = Cluster(
    (
        Node("left", (DeviceType("fast", 1e9), DeviceType("slow", 1e9)), Link(1e9, 1e-5)),
        Node(
            "right", (DeviceType("slow", 1e9),), Link(1e8, 1e-5), "10.0.0.2", "me@two", "/bin/python3", (("A", "one"),)
        ),
    ),
    Link(1e7, 1e-4),
)
PLAN = partition(PROFILE, CLUSTER)


def use_profile(profile: Profile) -> None:
    str(profile.to_graph_text())
    partition(profile, Cluster.uniform(2, device_type=profile.device_types[0], link=Link(1e6)))


def use_plan(plan: Plan) -> None:
    str(plan)
    plan.to_json()
    plan.check(GRAPH, CLUSTER)
    actions(plan, 5)
    plan.diff(PLAN)


@pytest.mark.slow
@fuzzed(EXAMPLES)
@given(edits)
def test_graph_text(tmp_path, found):
    path = write(tmp_path / "graph.txt", damaged(str(graph_text_of(PLAN, PROFILE)), found))

    def use(text: GraphText) -> None:
        assert GraphText.load(text.save(tmp_path / "again.txt")) == text
        use_profile(Profile.from_graph_text(text))

    read_or_refused(path, lambda: GraphText.load(path), use)


_FQNS, _HETERO = '[["conv"], ["bn", "fc"]]', "hetero_pipeline_layer_split: [2, 1], hetero_process_meshes: "
LAYOUTS = [
    *(("layout", text) for text in ("Et*2|(t|)*2,m|L", _FQNS, "{'bn': SplitPoint.BEGINNING}", "[0, 2, 3]")),
    ("layout.json", '{"conv": [["x"], ["y"]], "fc": [["y"], ["z"]]}'),
    ("job.toml", f"[parallelism]\nmodule_fqns_per_model_part = {_FQNS}\n"),
    ("job.yaml", f"system: {{hetero: {{{_HETERO}[1, 1, 1, 2, 1, 1, 1, 1, 1, 1]}}}}\n"),
]


@pytest.mark.slow
@fuzzed(EXAMPLES)
@given(st.sampled_from(LAYOUTS), edits)
def test_layouts(tmp_path, layout, found):
    path = write(tmp_path / layout[0], damaged(layout[1], found))
    read_or_refused(path, lambda: read_layout(path), lambda read: stages_of(read, GRAPH, num_devices=2))


@pytest.mark.slow
@fuzzed(EXAMPLES)
@given(edits)
def test_server_file(tmp_path, found):
    text = "Server0\n    fast 2 fast.json\n    slow 1 slow.txt\n\nServer1\n    slow 4 slow.txt\n"
    path = write(tmp_path / "servers", damaged(text, found))

    def use(servers: ServerFile) -> None:
        again = ServerFile.load(servers.save(tmp_path / "again"))
        assert again.servers == servers.servers
        Cluster.load(write(tmp_path / "again.toml", servers.cluster(bandwidth=1e9, network=1e8).to_toml()))
        servers.profile()

    read_or_refused(path, lambda: ServerFile.load(path), use)


@pytest.mark.slow
@fuzzed(EXAMPLES)
@given(edits)
def test_cluster_toml(tmp_path, found):
    path = write(tmp_path / "cluster.toml", damaged(CLUSTER.to_toml(), found))

    def use(cluster: Cluster) -> None:
        assert len(cluster.devices) >= 1
        again = Cluster.load(write(tmp_path / "again.toml", cluster.to_toml()))
        assert again == cluster
        if len(cluster.devices) <= FEW:
            partition(PROFILE, cluster)

    read_or_refused(path, lambda: Cluster.load(path), use)


@pytest.mark.slow
@fuzzed(EXAMPLES)
@given(edits)
def test_minibatch_times(tmp_path, found):
    rows = [f"{number},{number % 3},25,{10 * (number // 3) + 1},{400 + number}\n" for number in range(30)]
    path = write(tmp_path / "times.csv", damaged(",worker,gpu,time,batch_time_norm\n" + "".join(rows), found))

    def use(stragglers: Stragglers) -> None:
        stragglers.check(1)
        assert all(stragglers.extra_seconds(0, minibatch, 1) >= 0 for minibatch in (0, 1, 95, 10**6))

    read_or_refused(path, lambda: Stragglers.parse(f"trace:{path}"), use)


@pytest.mark.slow
@fuzzed(EXAMPLES)
@given(edits)
def test_stragglers_as_typed(found):
    given = damaged("jitter:p=0.1,seconds=0.05;slow:rank=3,factor=4,from=1,to=3;kill:rank=2,at=8;seed=3", found)
    try:
        stragglers = Stragglers.parse(given)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert Stragglers.parse(str(stragglers)) == stragglers
        assert stragglers.extra_seconds(3, 2, 1) >= 0


@pytest.mark.slow
@fuzzed(EXAMPLES)
@given(st.sampled_from(["partial-reduce:wait=0.01,rounds=3", "quorum:quorum=2,grace=1", "wsp:scale=0.5"]), edits)
def test_rules_as_typed(given, found):
    try:
        rule = parse_rule(damaged(given, found))
        rule.groups(3)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert parse_rule(rule_text(rule)) == rule == rule_from_json(json.loads(json.dumps(rule_to_json(rule))))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "tree"])
def test_profile_json(tmp_path, kind):
    document = json.loads(PROFILE.save(tmp_path / "whole.json").read_text())
    fuzz_json(tmp_path / "profile.json", document, kind, Profile.load, use_profile)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "tree"])
def test_plan_json(tmp_path, kind):
    fuzz_json(tmp_path / "plan.json", PLAN.to_json(), kind, Plan.load, use_plan)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "tree"])
def test_conf_json(tmp_path, kind):
    plan = Plan((Stage(("conv", "bn"), (0, 1), warmup=2), Stage(("fc",), (2,), warmup=0)))
    text = graph_text_of(plan, PROFILE)
    fuzz_json(tmp_path / "hybrid_conf.json", conf_of(plan), kind, lambda path: load_conf(path, text), use_plan)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "tree"])
def test_partition_file(tmp_path, kind):
    content = {"partition": [2, 1], "recompute_ratio": [0.5, 0], "batch_size_all": [8], "batch_size": [4, 8]}
    fuzz_json(tmp_path / "two.json", content, kind, lambda path: load_partition(path, GRAPH), use_plan)


@pytest.mark.slow
def test_layer_lists(tmp_path):
    path = tmp_path / "net_data_1_for_.txt"
    for name in ("net_data_1_bac_.txt", "net_out_put_com_time.txt"):
        (tmp_path / name).write_text("1.5\n0\n" + "2e-1" * ("bac" in name))

    @fuzzed(EXAMPLES)
    @given(edits)
    def one(found):
        write(path, damaged("24.613\n5.553\n0", found))
        read_or_refused(tmp_path, lambda: load_layer_lists(path), use_profile)

    one()


def fuzz_json(path: Path, document: Any, kind: str, load: Callable[[Path], Any], use: Callable[[Any], Any]) -> None:
    whole = json.dumps(document)

    @fuzzed(EXAMPLES)
    @given(edits if kind == "text" else tree_edits)
    def one(found: list[Any]) -> None:
        content = damaged(whole, found) if kind == "text" else json.dumps(damaged_tree(document, found))
        write(path, content)
        read_or_refused(path, lambda: load(path), use)

    one()
