from pathlib import Path

import pytest
from coded import raises

from sparsepipe import Cluster, DeviceType, Link, Node

FILE = """
[network]
bandwidth = 1.25e9
latency = 50e-6

[[device_type]]
name = "big"
memory_bytes = 24e9
network_seconds_per_byte = 9e-9

[[node]]
name = "alpha"
address = "10.0.0.1"
bandwidth = 12e9
devices = [{ type = "big", count = 2 }, { type = "small" }]

[[node]]
name = "beta"
devices = [{ type = "small", count = 2 }]
"""


def test_rank_is_position(tmp_path):
    (tmp_path / "c.toml").write_text(FILE)
    cluster = Cluster.load(tmp_path / "c.toml")
    assert [(d.rank, d.type.name, d.node.name) for d in cluster.devices] == [
        (0, "big", "alpha"),
        (1, "big", "alpha"),
        (2, "small", "alpha"),
        (3, "small", "beta"),
        (4, "small", "beta"),
    ]
    assert cluster.link(0, 2) == Link(12e9)
    assert cluster.link(2, 3) == Link(1.25e9, 50e-6)


def test_a_part_has_the_devices_named_in_their_order(tmp_path):
    (tmp_path / "c.toml").write_text(FILE)
    cluster = Cluster.load(tmp_path / "c.toml")
    part = cluster.part((4, 2, 1))
    assert [(d.rank, d.type, d.node.name) for d in part.devices] == [
        (k, cluster.devices[rank].type, cluster.devices[rank].node.name) for k, rank in enumerate((1, 2, 4))
    ]
    assert (part.link(0, 1), part.link(1, 2)) == (cluster.link(1, 2), cluster.link(2, 4))
    assert [node.name for node in cluster.part([3]).nodes] == ["beta"] and cluster.part(range(5)) == cluster
    with raises("plan.rank_not_in_cluster", "7", "5 devices"):
        cluster.part([0, 7])
    assert cluster.device_types == (DeviceType("big", 24e9, network_seconds_per_byte=9e-9), DeviceType("small"))


def test_toml_round_trip(tmp_path):
    (tmp_path / "c.toml").write_text(FILE)
    cluster = Cluster.load(tmp_path / "c.toml")
    (tmp_path / "d.toml").write_text(cluster.to_toml())
    assert Cluster.load(tmp_path / "d.toml") == cluster


def test_hosts_of_one_address_are_refused_and_loopbacks_are_planned_for(tmp_path):
    """A file was shown that a launch would refuse."""
    (tmp_path / "c.toml").write_text(FILE.replace('name = "beta"', 'name = "beta"\naddress = "10.0.0.1"'))
    with raises("cluster.address_twice", "c.toml: 10.0.0.1", "alpha and beta"):
        Cluster.load(tmp_path / "c.toml")
    alike = tuple(Node(name, (DeviceType("cpu"),), address=called) for name, called in (("a", "host1"), ("b", "Host1")))
    with raises("cluster.address_twice", "a and b", address="host1"):
        Cluster(alike)
    nodes = tuple(Node(name, (DeviceType("cpu"),)) for name in "ab")
    assert [node.address for node in Cluster(nodes).nodes] == ["127.0.0.1"] * 2


HOSTS = """
[[node]]
name = 'the "first"'
address = "10.0.0.1"
ssh = "gpu1"
interpreter = "/opt/python/bin/python3"
environment = { OMP_NUM_THREADS = "4", NOTE = 'a \\ and a "' }
devices = [{ type = "cpu" }]
"""


def test_a_node_says_how_its_host_is_reached(tmp_path):
    (tmp_path / "c.toml").write_text(HOSTS)
    cluster = Cluster.load(tmp_path / "c.toml")
    (node,) = cluster.nodes
    assert (node.name, node.ssh_destination, node.interpreter) == ('the "first"', "gpu1", "/opt/python/bin/python3")
    assert dict(node.environment) == {"OMP_NUM_THREADS": "4", "NOTE": 'a \\ and a "'} and not node.is_local
    (tmp_path / "d.toml").write_text(cluster.to_toml())
    assert Cluster.load(tmp_path / "d.toml") == cluster


def test_how_a_host_is_reached_is_not_in_the_digest_of_before():
    """Plans and records of before hold the digest of the same cluster without those fields."""
    node = Node("a", (DeviceType("cpu"),) * 2, Link(1e9), "10.0.0.1")
    told = Node("a", (DeviceType("cpu"),) * 2, Link(1e9), "10.0.0.1", "gpu1", "/usr/bin/python3", (("A", "1"),))
    assert Cluster((node,)).digest == Cluster((told,)).digest == "4c2c7cc94d70"


def test_time_of_sending_is_in_the_digest_where_there_is_some():
    told, other = (DeviceType("cpu", network_seconds_per_byte=each) for each in (0.0, 1e-9))
    digests = [Cluster((Node("a", (kind,)), Node("b", (kind,)))).digest for kind in (DeviceType("cpu"), told, other)]
    assert digests[0] == digests[1] != digests[2]


def test_transfer_takes_latency_and_bytes():
    assert Link(1e9, 1e-3).transfer_time(2e9) == pytest.approx(2.001)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (FILE.replace("count = 2", "count = 0", 1), ("number.not_whole", "device count of 'big'", "0")),
        (FILE.replace("1.25e9", "0"), ("link.bandwidth", "0.0")),
        (FILE.replace("1.25e9", "-1"), ("link.bandwidth", "-1.0")),
        (FILE.replace("1.25e9", "nan"), ("link.bandwidth", "nan")),
        (FILE.replace("50e-6", "-1"), ("link.latency", "-1.0")),
        (FILE.replace('"beta"', '"alpha"'), ("cluster.node_twice", "alpha")),
        (
            FILE.replace("memory_bytes", "memory"),
            ("cluster.key_unknown", "memory", "memory_bytes, name", "did you mean 'memory_bytes'"),
        ),
        (FILE.replace("24e9", '"24 GB"'), ("cluster.not_a_number",)),
        (FILE.replace("24e9", "0"), ("device_type.memory", "0.0")),
        (FILE.replace("9e-9", "-9e-9"), ("device_type.network_seconds", "big", "-9e-09")),
        (FILE.replace("9e-9", "inf"), ("device_type.network_seconds", "big", "inf")),
        ("", ("cluster.no_nodes",)),
        ("[[node]]\nname = 'a'\n", ("cluster.device_count_zero",)),
        (FILE.replace('"10.0.0.1"', "1"), ("value.not_text", "'alpha': address", "1")),
        (FILE.replace("10.0.0.1", "-oProxyCommand=x"), ("cluster.host_malformed", "address", "-oProxyCommand=x")),
        (
            FILE.replace("address =", "ssh =").replace("10.0.0.1", "two words"),
            ("cluster.host_malformed", "ssh", "two words"),
        ),
        (FILE.replace("address = ", "environment = "), ("cluster.environment_not_table", "10.0.0.1")),
        (FILE.replace('address = "10.0.0.1"', "environment = { A = 1 }"), ("value.not_text", "environment 'A'", "1")),
        (
            FILE.replace('address = "10.0.0.1"', 'environment = { "A B" = "1" }'),
            ("cluster.environment_malformed", "A B", "1"),
        ),
        (FILE.replace('address = "10.0.0.1"', 'interpreter = "-c"'), ("cluster.interpreter_malformed", "-c")),
        ("[[node", ("cluster.not_toml",)),
        (
            "[[node]]\nname = 'a'\ndevices = [" + "{ type = 'a', count = 65536 }, " * 3000 + "]",
            ("cluster.too_many_devices", "196608000"),
        ),
        (
            "".join(f"[[node]]\nname='{k}'\ndevices=[{{type='a', count=65536}}]\n" for k in range(3000)),
            ("cluster.too_many_devices", "196608000"),
        ),
        ("network = 3\n[[node]]\nname='a'\ndevices=[{type='t'}]\n", ("cluster.network_not_table",)),
    ],
)
def test_bad_files_are_named(tmp_path, text, error):
    (tmp_path / "c.toml").write_text(text)
    with raises(*error) as caught:
        Cluster.load(tmp_path / "c.toml")
    assert str(tmp_path / "c.toml") in str(caught.value)


def test_a_device_count_of_zero_is_refused():
    with raises("cluster.device_count_zero", num_devices=0):
        Cluster.uniform(0)
    with raises("cluster.device_count_zero"):
        Node("a", ())


def test_clusters_of_the_repository_load():
    paths = sorted((Path(__file__).parent.parent / "data_manifests/clusters").glob("*.toml"))
    assert paths
    for path in paths:
        assert Cluster.load(path).devices


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: Link("3GB/s"), ("number.not_a_number", "bandwidth of '3GB/s'")),
        (lambda: Link(1e9, None), ("number.not_a_number", "latency of None")),
        (lambda: Cluster.uniform(2, link=3e9), ("link.not_a_link", "3000000000.0")),
    ],
)
def test_what_is_no_link_is_told_in_a_line(call, error):
    """A number in a link's place was taken, and failed where the first bytes were counted."""
    with raises(*error):
        call()
