"""SparsePipe's server files, read, written and refused."""

import json

import pytest
from coded import raises
from command_line import sparsepipe

from sparsepipe import Cluster, DeviceType, GraphText, Node, Profile
from sparsepipe.records.formats.sparsepipe_servers import ServerFile
from sparsepipe.values.graph_text import GraphTextNode


@pytest.fixture
def write(tmp_path):
    """Write profiles of two types and a server file with the given text; returns its path."""
    for name, slow in (("fast", 1), ("slow", 2)):
        nodes = tuple(GraphTextNode(f"node{k}", "Conv", slow, 2 * slow, (8.0,), 4.0) for k in range(3))
        GraphText(nodes, (("node0", "node1"), ("node1", "node2"))).save(tmp_path / f"{name}.txt")

    def write(text):
        (tmp_path / "servers.txt").write_text(text)
        return tmp_path / "servers.txt"

    return write


def test_servers_become_a_cluster_and_a_profile(write):
    found = ServerFile.load(write("Server0\n  fast 2 fast.txt\n\n  slow 1 slow.txt\nServer1\nslow 3 slow.txt\n"))
    cluster = found.cluster(bandwidth=1e9, network=1e8, memory_bytes=16e9)
    assert [[kind.name for kind in node.device_types] for node in cluster.nodes] == [
        ["fast", "fast", "slow"],
        ["slow", "slow", "slow"],
    ]
    assert (cluster.link(0, 1).bandwidth, cluster.link(0, 3).bandwidth) == (1e9, 1e8)
    assert {kind.memory_bytes for kind in cluster.device_types} == {16e9}
    profile = found.profile()
    assert profile.device_types == ("fast", "slow")
    assert profile.time([0, 1, 2], "slow") == (6e-3, 12e-3)


def test_a_profile_given_stands_in_for_the_files_own_of_its_type(write):
    path = write("Server0\n  fast 1 fast.txt\n  slow 1 nowhere.txt\n")
    words, slow = ("plan", "--server-file", path, "--json"), path.parent / "slow.txt"
    code, out, _ = sparsepipe(*words, "--profile", f"slow={slow}", "--planner", "data-parallel")
    found = ServerFile.load(path).profile(Profile.load(slow, device_type="slow"))
    assert code == 0 and found.time([0], "slow") == (2e-3, 4e-3) and found.time([0], "fast") == (1e-3, 2e-3)
    assert {one["device_type"] for one in json.loads(out)["stages"][0]["replicas"]} == {"fast", "slow"}
    code, _, told = sparsepipe(*words, "--profile", f"other={slow}")
    assert code == 2 and len(told) == 1 and told[0].endswith("[servers.device_type_unknown]")


def test_round_trip(write, tmp_path):
    found = ServerFile.load(write("Server0\n    fast 2 fast.txt\nServer1\n    slow 1 slow.txt\n"))
    assert ServerFile.load(found.save(tmp_path / "again.txt")) == found
    paths = dict(found.profiles)
    assert ServerFile.of(found.cluster(), paths).servers == found.servers


def test_a_cluster_needs_a_profile_path_for_each_type():
    cluster = Cluster((Node("a", (DeviceType("x"),)),))
    with raises("servers.no_profile", "x"):
        ServerFile.of(cluster, {})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", ("servers.none",)),
        ("\n\n", ("servers.none",)),
        (
            "".join(f"Server{k}\n fast 99999 fast.txt\n" for k in range(3000)),
            ("hostfile.too_many_devices", "299997000", "65536"),
        ),
        ("fast 1 fast.txt\n", ("servers.device_before_server", "servers.txt:1", "fast")),
        ("Server0\n\nServer0\n", ("servers.twice", "servers.txt:3", "Server0")),
        ("Server0 a b\n", ("servers.name_malformed", "servers.txt:1: 3")),
        ("Server0\nServer1\n  fast 1 fast.txt\n", ("servers.no_devices", "Server0")),
        ("Server0\n  fast 0 fast.txt\n", ("servers.count_malformed", "servers.txt:2", "0", "fast")),
        ("Server0\n  fast -1 fast.txt\n", ("servers.count_malformed", "servers.txt:2", "-1")),
        ("Server0\n  fast two fast.txt\n", ("servers.count_malformed", "servers.txt:2", "two")),
        ("Server0\n  fast 1 a path.txt\n", ("servers.line_malformed", "servers.txt:2: ", "4 words")),
        ("Server0\n  fast 1 fast.txt\n  fast 1 fast.txt\n", ("servers.device_type_twice", "servers.txt:3", "fast")),
        (
            "Server0\n  fast 1 fast.txt\nServer1\n  fast 1 slow.txt\n",
            ("servers.profiles_differ", "slow.txt", "fast.txt"),
        ),
    ],
)
def test_refused_in_one_line(write, text, error):
    with raises(*error) as caught:
        ServerFile.load(write(text))
    assert "\n" not in str(caught.value)


def test_profiles_of_different_models_are_refused(write, tmp_path):
    path = write("Server0\n  fast 1 fast.txt\n  slow 1 slow.txt\n")
    GraphText((GraphTextNode("other", "Conv", 1, 1, (1.0,), 1.0),), ()).save(tmp_path / "slow.txt")
    with raises("profile.graphs_differ", "slow.txt"):
        ServerFile.load(path).profile()


def test_a_missing_profile_is_named(write):
    with raises("file.not_found", "nowhere.txt"):
        ServerFile.load(write("Server0\n  fast 1 nowhere.txt\n")).profile()


def test_comments_are_passed_over(write):
    """They were devices before any server."""
    plain = ServerFile.load(write("Server0\n  fast 1 fast.txt\n"))
    assert ServerFile.load(write("# ours\nServer0\n  # the fast one\n  fast 1 fast.txt\n")) == plain
