"""Files of other systems that say which hosts there are: each is read as a Cluster, or refused in one line."""

import json
import re

import pytest
from coded import mentions, raises
from fuzzing import fuzzed
from hypothesis import given
from hypothesis import strategies as st
from test_parsers_fuzzed import CLUSTER, damaged, edits, read_or_refused, write

from sparsepipe import Cluster, InputError, Link
from sparsepipe.cli.command import main
from sparsepipe.records.formats.clusters import KINDS, kind_of, load_cluster, load_cluster_file
from sparsepipe.records.formats.clusters.slurm import expand, hosts_of_job

HOSTFILE = """\
# three hosts
gpu1 slots=4
me@10.0.0.2 slots=2 max_slots=4   # as another user

gpu3
"""
DRIVER = """\
'module': 'models.vgg16.gpus=4'
'machines': ['server0:0', 'server0:1', 'server1:4',
             'server1:5']
'batch_size': 64
"""
NODES = """\
nodes:
  - host: w0
    servers: 1
    workers: 8
    chief: true
  - host: w1
    workers: 4
"""
RAY = """\
cluster_name: default
provider:
    type: local
    head_ip: 10.0.0.1
    worker_ips: [10.0.0.2, 10.0.0.3]
auth:
    ssh_user: me
available_node_types:
    local.cluster.node:
        resources: {GPU: 2, CPU: 8}
head_setup_commands: []
"""
SERVERS = "Server0\n    RTX 4 rtx.txt\n    tv 2 tv.txt\nServer1\n    tv 1 tv.txt\n"
EXAMPLES = {
    "toml": ("cluster.toml", CLUSTER.to_toml()),
    "hostfile": ("hosts", HOSTFILE),
    "driver yml": ("driver.yml", DRIVER),
    "heturun nodes": ("nodes.yml", NODES),
    "ray yaml": ("ray.yaml", RAY),
    "server file": ("servers", SERVERS),
}
HOSTS = {  # (name, address, ssh, devices) of each
    "hostfile": [("gpu1", "gpu1", "", 4), ("10.0.0.2", "10.0.0.2", "me@10.0.0.2", 2), ("gpu3", "gpu3", "", 1)],
    "driver yml": [("server0", "server0", "", 2), ("server1", "server1", "", 2)],
    "heturun nodes": [("w0", "w0", "", 8), ("w1", "w1", "", 4)],
    "ray yaml": [(f"10.0.0.{k}", f"10.0.0.{k}", f"me@10.0.0.{k}", 2) for k in (1, 2, 3)],
}


def told(cluster: Cluster) -> list[tuple[str, str, str, int]]:
    return [(node.name, node.address, node.ssh, len(node.device_types)) for node in cluster.nodes]


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_file_is_known_by_what_is_in_it(tmp_path, kind):
    """Under its usual name, and under one that says nothing; what it tells of survives as TOML."""
    name, text = EXAMPLES[kind]
    for path in (tmp_path / name, tmp_path / "unnamed"):
        path.write_text(text)
        found = load_cluster_file(path, device_type="gpu", link=Link(1e9), network=Link(1e8))
        assert found.kind == kind == kind_of(path)
        if kind in HOSTS:
            assert told(found.cluster) == HOSTS[kind]
            assert {device.type.name for device in found.cluster.devices} == {"gpu"}
            assert found.cluster.network == Link(1e8) and found.cluster.nodes[0].link == Link(1e9)
        (tmp_path / "again.toml").write_text(found.cluster.to_toml())
        assert load_cluster(tmp_path / "again.toml") == found.cluster
    assert set(EXAMPLES) | {"dnn-partitioning"} == set(KINDS)


def test_gpus_that_a_driver_file_numbers_are_the_only_ones_seen(tmp_path):
    cluster = load_cluster(write(tmp_path / "d.yml", DRIVER))
    assert [dict(node.environment) for node in cluster.nodes] == [
        {"CUDA_VISIBLE_DEVICES": "0,1"},
        {"CUDA_VISIBLE_DEVICES": "4,5"},
    ]


def test_every_driver_file_that_pipedream_and_sparsepipe_ship(shared_reference):
    paths = sorted(path for path in (shared_reference / "configs").rglob("driver_configs/*.yml"))
    if not paths:
        pytest.skip(f"{shared_reference} has no driver files")
    for path in paths:
        listed = re.findall(r"'(server\d+):(\d+)'", path.read_text())  # what a reader of lines would see
        found = load_cluster_file(path)
        assert found.kind == "driver yml"
        assert [device.node.name for device in found.cluster.devices] == [host for host, _ in listed]
        numbers = ",".join(dict(node.environment)["CUDA_VISIBLE_DEVICES"] for node in found.cluster.nodes)
        assert numbers.split(",") == [gpu for _, gpu in listed]


@pytest.mark.parametrize(
    ("line", "hosts"),
    [
        ("gpu1:4", [("gpu1", "", 4)]),
        ("gpu1:2222", [("gpu1", "gpu1:2222", 1)]),
        ("gpu1:22 slots=4", [("gpu1", "gpu1:22", 4)]),
        ("me@gpu1:2222 slots = 2", [("gpu1", "me@gpu1:2222", 2)]),
        ("gpu[1-2]:2222 slots=3", [("gpu1", "gpu1:2222", 3), ("gpu2", "gpu2:2222", 3)]),
        ("gpu[1-2]:2", [("gpu1", "", 2), ("gpu2", "", 2)]),
        ("[gpu1]:2222", [("gpu1", "gpu1:2222", 1)]),
        ("ssh://me@gpu1:22", [("gpu1", "me@gpu1:22", 1)]),
        ("ssh://gpu1", [("gpu1", "", 1)]),
        ("[2001:db8::1]", [("2001:db8::1", "", 1)]),
        ("me@2001:db8::1 slots=2", [("2001:db8::1", "me@2001:db8::1", 2)]),
        ("me@[2001:db8::1]:2222", [("2001:db8::1", "me@[2001:db8::1]:2222", 1)]),
        ("me@corp.example@gpu1", [("gpu1", "me@corp.example@gpu1", 1)]),
    ],
)
def test_a_number_after_a_colon_is_a_port_or_a_count_by_its_form(tmp_path, line, hosts):
    cluster = load_cluster(write(tmp_path / "hosts", f"first\n{line}\n"))
    assert told(cluster)[1:] == [(name, name, ssh, count) for name, ssh, count in hosts]
    assert load_cluster(write(tmp_path / "again.toml", cluster.to_toml())) == cluster


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("a,b", ["a", "b"]),
        ("gpu[01-03,07],login", ["gpu01", "gpu02", "gpu03", "gpu07", "login"]),
        ("gpu[9-11]", ["gpu9", "gpu10", "gpu11"]),
        ("gpu[098-101].lan", ["gpu098.lan", "gpu099.lan", "gpu100.lan", "gpu101.lan"]),
        ("r[1-2]n[3,5]", ["r1n3", "r1n5", "r2n3", "r2n5"]),
    ],
)
def test_a_host_list_of_slurm(text, names):
    assert list(expand(text)) == names


@pytest.mark.parametrize(
    "text", ["", ",", "a,,b", "gpu[", "gpu]", "gpu[]", "gpu[1-]", "gpu[3-1]", "gpu[[1]]", "g[a-c]"]
)
def test_a_host_list_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="expected (a range|one) such as"):
        expand(text)


@pytest.mark.parametrize("text", ["gpu[1-999999999]", "a[1-999]b[1-999]", "a[1-60000],b[1-60000]"])
def test_a_host_list_without_end_is_refused_at_once(text):
    with raises("hostfile.too_many_hosts"):
        expand(text)


def test_the_job_of_slurm_is_a_cluster(monkeypatch, tmp_path, capsys):
    variables = {"SLURM_JOB_NODELIST": "gpu[1-3],big", "SLURM_TASKS_PER_NODE": "2(x3),8"}
    assert [(host.name, host.num_devices) for host in hosts_of_job(variables)] == [
        *(("gpu1", 2), ("gpu2", 2), ("gpu3", 2), ("big", 8))
    ]
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    monkeypatch.chdir(tmp_path)
    assert main(["cluster", "show", "slurm", "--json"]) == 0
    assert [node["name"] for node in json.loads(capsys.readouterr().out)["nodes"]] == ["gpu1", "gpu2", "gpu3", "big"]
    with raises("slurm.count_differs", "2(x2),8'", "3 hosts", num_hosts=4):
        hosts_of_job(variables | {"SLURM_TASKS_PER_NODE": "2(x2),8"})
    with raises("slurm.counts_malformed"):
        hosts_of_job(variables | {"SLURM_TASKS_PER_NODE": "two"})
    with raises("slurm.not_a_job"):
        hosts_of_job({})


@pytest.mark.parametrize("group", ["HET", "PACK"])
def test_a_heterogeneous_job_of_slurm_has_the_hosts_of_all_its_components(group):
    """Slurm sets the variables without an ending to those of the first component."""
    first = {"SLURM_JOB_NODELIST": "gpu[1-2]", "SLURM_TASKS_PER_NODE": "4(x2)"}
    of_each = {
        **{f"SLURM_{group}_SIZE": "4"},
        **{f"{name}_{group}_GROUP_0": value for name, value in first.items()},
        **{f"SLURM_JOB_NODELIST_{group}_GROUP_1": "big,cpu[01-02]", f"SLURM_TASKS_PER_NODE_{group}_GROUP_1": "3,1(x2)"},
        **{f"SLURM_JOB_NODELIST_{group}_GROUP_2": "far", f"SLURM_GPUS_PER_NODE_{group}_GROUP_2": "a100:2,v100:1"},
        **{f"SLURM_JOB_NODELIST_{group}_GROUP_3": "gpu2"},  # shared with the first component
    }
    expected = [("gpu1", 4), ("gpu2", 5), ("big", 3), ("cpu01", 1), ("cpu02", 1), ("far", 3)]
    assert [(host.name, host.num_devices) for host in hosts_of_job(first | of_each)] == expected
    assert [(host.name, host.num_devices) for host in hosts_of_job(of_each)] == expected
    del of_each[f"SLURM_JOB_NODELIST_{group}_GROUP_1"]
    with raises("slurm.group_count"):
        hosts_of_job(first | of_each)


@pytest.mark.parametrize(
    ("kind", "old", "new", "message"),
    [
        ("hostfile", "gpu3", "gpu1", ":5: host 'gpu1' is listed twice, first in line 2; list it once"),
        ("hostfile", "gpu3", "gpu[1-3]", ":5: host 'gpu1' is listed twice, first"),
        ("hostfile", "slots=4", "slots=0", ":2: host 'gpu1' has slots = '0', expected a whole number"),
        ("hostfile", "slots=4", "slot=4", ":2: 'slot=4' follows host 'gpu1', expected slots=N"),
        ("hostfile", "gpu1 slots=4", "gpu1:22", ":2: host 'gpu1:22': .*'gpu1 slots=22' or 'gpu1:22 slots=1'"),
        ("hostfile", "gpu1 slots=4", "gpu[1-2]:64", ":2: host 'gpu1:64': .*'gpu1 slots=64' or 'gpu1:64 slots=1'"),
        ("hostfile", "gpu1 slots=4", "gpu1:70000", ":2: host 'gpu1:70000': expected host, user@host"),
        ("hostfile", "gpu3", "gpu3:", ":5: host 'gpu3:': expected host"),
        ("hostfile", "gpu1 slots=4", "gpu1:2222:4", ":2: host 'gpu1:2222:4': expected host:port or slots=N"),
        ("hostfile", "gpu1 slots=4", "a:2,b:4", ":2: host 'a:2,b:4': expected host:port or slots=N, one host per line"),
        ("hostfile", "slots=4", "gpu2", ":2: 'gpu2' follows host 'gpu1', expected slots=N and one host per line"),
        ("hostfile", "gpu1", "-oProxyCommand=touch", "address '-oProxyCommand=touch', expected a host"),
        ("hostfile", HOSTFILE, "# none\n", "lists no hosts"),
        (
            "driver yml",
            "server1:5",
            "server1:4",
            r"machines\[3\]: 'server1:4' is listed twice, but each GPU is one rank",
        ),
        ("driver yml", "server1:5", "server0:5", r"machines\[3\]: host 'server0' occurs again after 'server1'"),
        ("driver yml", "server1:5", "server1", r"machines\[3\] is 'server1', expected 'host:gpu'"),
        ("driver yml", "server1:5", "server1:x", "expected 'host:gpu'"),
        ("driver yml", "batch_size", "batchsize", "key 'batchsize' is none of a driver file's: is it batch_size"),
        (
            "driver yml",
            "['server0:0', 'server0:1', 'server1:4',\n             'server1:5']",
            "four",
            "machines is 'four'",
        ),
        ("heturun nodes", "host: w1", "host: 10.0.0.1:2222", "expected '10.0.0.1'; .*such as ssh = '10.0.0.1:2222'"),
        ("toml", 'address = "10.0.0.2"', 'address = "[::1]:2222"', "expected '::1'; .*such as ssh = '\\[::1\\]:2222'"),
        ("toml", 'ssh = "me@two"', 'ssh = "gpu:x"', "ssh 'gpu:x': expected host, user@host"),
        ("heturun nodes", "w1", "w0", "host 'w0' is listed twice"),
        ("ray yaml", "10.0.0.3", "10.0.0.1", "host '10.0.0.1' is listed twice; list it once"),
        ("ray yaml", "type: local", "type: aws", "provider type 'aws' is not supported; use type local"),
        ("ray yaml", "head_ip", "head", "provider has the unknown key 'head', expected external_head_ip, head_ip"),
        ("ray yaml", "GPU: 2", "GPU: two", "GPU is 'two', expected a whole number"),
        ("ray yaml", "[10.0.0.2, 10.0.0.3]", "[10]", "host 10: expected head_ip and each"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, capsys, kind, old, new, message):
    name, text = EXAMPLES[kind]
    path = write(tmp_path / name, text.replace(old, new))
    assert main(["cluster", "show", str(path)]) == 2
    out, error = capsys.readouterr()
    assert not out and error.count("\n") == 1 and str(path) in error and re.search(message, error), error


def test_a_yaml_of_something_else_is_refused(tmp_path):
    for text in ("a: 1\n", "machines: ['a:0']\nnodes: []\n", "- a\n"):
        with raises("hostfile.yaml_unknown"):
            load_cluster(write(tmp_path / "c.yml", text))


def test_show_prints_the_document_of_the_contract(tmp_path, capsys):
    path = write(tmp_path / "cluster.toml", CLUSTER.to_toml())
    assert main(["cluster", "show", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "nodes": [
            {"name": "left", "address": "127.0.0.1", "device_types": ["fast", "slow"]},
            {"name": "right", "address": "10.0.0.2", "device_types": ["slow"]},
        ],
        "network": {"bandwidth": 1e7, "latency": 1e-4},
    }
    assert main(["cluster", "show", str(write(tmp_path / "hosts", HOSTFILE))]) == 0
    shown = capsys.readouterr().out
    assert mentions(shown, "7 devices", "3 hosts") and "10.0.0.2 (ssh me@10.0.0.2)" in shown
    assert main(["cluster", "show", str(path.with_name("nothing.toml"))]) == 2
    assert capsys.readouterr().err.endswith("[file.not_found]\n")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hostfile", "driver yml", "heturun nodes", "ray yaml"])
@fuzzed(80)
@given(edits)
def test_damaged_files(tmp_path, kind, found):
    name, text = EXAMPLES[kind]
    path = write(tmp_path / name, damaged(text, found))

    def use(cluster: Cluster) -> None:
        assert load_cluster(write(tmp_path / "again.toml", cluster.to_toml())) == cluster

    read_or_refused(path, lambda: load_cluster(path), use)


@pytest.mark.slow
@fuzzed(160)
@given(st.text(alphabet="gp12[]-,", max_size=20) | st.text(max_size=8))
def test_any_text_is_a_host_list_or_refused(text):
    try:
        names = expand(text)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert names and all(names)
