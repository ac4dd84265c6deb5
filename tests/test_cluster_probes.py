"""Clusters as they are: hosts that are asked, links and devices that are measured, here and in namespaces."""

import json
import os
import re
import signal
import socket
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from coded import mentions, raises
from command_line import sparsepipe
from network_hosts import network_hosts
from processes import ENOUGH, until

from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile
from sparsepipe.launching.probes import check_cluster, measure_cluster
from sparsepipe.launching.probes.check import HostFacts, _wrong, unlike_networks
from sparsepipe.launching.probes.hosts import HostProbe, probes, with_unmeasured
from sparsepipe.launching.probes.measure import (
    MeasuredLink,
    measure_network_time,
    of_a_byte,
    rounds,
    unlike_devices,
    with_network_time,
)
from sparsepipe.launching.ssh.hosted_run import runs_folder
from sparsepipe.runtime.wire.frames import lengths
from sparsepipe.runtime.wire.handshake import OPENING_BYTES, call, new_secret

CPU = DeviceType("cpu")
HERE = Node("here", (CPU,))
FACTS = HostFacts(
    *("one", "one", "3.11", {"sparsepipe": "1.0", "torch": "2.13.0"}, "abcd", 4, (), (), 8e9),
    *("/var/runs", 50e9, 0.0, 0.01),
    "/usr/bin/python3",
)


def children() -> set[int]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that ended meanwhile
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def test_this_machine_is_sound(tmp_path):
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    code, out, lines = sparsepipe("cluster", "check", tmp_path / "hosts", "--json")
    assert code == 0, lines
    (host,) = json.loads(out)["hosts"]
    assert host["name"] == "localhost" and abs(host["clock_seconds"]) <= host["clock_doubt"]
    assert host["memory_bytes"] > 1e8 and host["cores"] >= 1 and host["packages"]["torch"]
    folder = next(path for path in (runs_folder(), *runs_folder().parents) if path.exists())
    assert host["disk_folder"] == str(folder) and host["disk_bytes"] > 0


def test_nothing_is_left_of_a_probe():
    before = children()
    with pytest.raises(KeyError), probes([HERE, replace(HERE, name="again")]) as begun:
        assert all(probe.ask("clock")["clock"] > 0 for probe in begun) and len(children() - before) == 2
        raise KeyError
    assert not children() - before


def test_a_late_answer_is_not_that_to_the_next_question():
    with probes([HERE]) as (probe,):
        probe.ask("clock")
        os.kill(probe._process.pid, signal.SIGSTOP)
        with raises("probe.timeout"):
            probe.ask("clock", timeout=0.1)
        os.kill(probe._process.pid, signal.SIGCONT)
        assert probe.ask("facts").keys() > {"hostname", "python"}


NOISY = """
echo 'Welcome!'; printf 'without a line break'
(for k in $(seq 40); do echo 'You have new mail in /var/mail/me'; sleep 0.02; done) &
exec "$@"
"""


def test_a_probe_is_heard_though_its_login_shell_goes_on_printing():
    probe = HostProbe(HERE, before=("sh", "-c", NOISY, "sh"))
    try:
        assert probe.ask("facts")["hostname"] == socket.gethostname()
        assert all(probe.ask("clock")["clock"] > 0 for _ in range(50))
    finally:
        probe.close()


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (replace(HERE, interpreter="/nowhere/python"), "here: no Python at /nowhere/python on that host (env: "),
        (replace(HERE, interpreter="/etc/passwd"), "here: /etc/passwd cannot be run on that host (env: "),
        (replace(HERE, interpreter="/bin/false"), "here: /bin/false ended"),
        (replace(HERE, interpreter="/bin/echo"), "here: /bin/echo ended (code 0); is it a Python"),
        (Node("far", (CPU,), address="no-such-host.invalid"), "far: ssh"),
    ],
)
def test_a_host_that_cannot_be_asked_is_told_in_one_line(node, message):
    report = check_cluster(Cluster((HERE if node.name == "far" else replace(HERE, name="other"), node)))
    assert len(report.hosts) == 1 and any(message in text for text in report.problems), report
    assert not any("\n" in text for text in report.problems)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, None),
        (
            {"python": "3.10"},
            "one: has Python 3.10, but this machine has 3.11; name an interpreter of the same version",
        ),
        (
            {"packages": {"sparsepipe": "1.0"}},
            "one: has no torch, but this machine has 2.13.0; install the same version in /usr/bin/python3",
        ),
        (
            {"packages": {"sparsepipe": "0.9", "torch": "2.13.0"}},
            "one: has sparsepipe 0.9, but this machine has 1.0; install the",
        ),
        ({"code": "beef"}, "one: other files of sparsepipe .digest beef, here abcd.; install the same"),
        ({"clock_seconds": 3600.0}, "one: its clock is 3600 s ahead; set it"),
        ({"clock_seconds": -3600.0}, "one: its clock is 3600 s behind; set it"),
        ({"clock_seconds": 8.0, "clock_doubt": 4.0}, None),
        ({"disk_bytes": 2e8}, "one: only 0.20 GB free in /var/runs, where runs are put; free at least 1 GB"),
        (
            {"gpus": ("A", "A"), "gpu_memory_bytes": (8e9, 8e9)},
            "one: the file lists 3 devices, but the host has 2 GPUs; correct one",
        ),
        ({"memory_bytes": 5e9}, "one: a cpu has 2.0 GB in the file, but 1.7 GB on the host; correct memory_bytes"),
    ],
)
def test_what_is_wrong_with_a_host(changed, message):
    node = Node("one", (DeviceType("cpu", 2e9),) * 3)
    found = _wrong(node, replace(FACTS, **changed), FACTS)
    assert len(found) == (message is not None), found
    if message:
        assert re.search(message, found[0])


def test_addresses_of_different_networks_are_told():
    nodes = [Node("a", (CPU,), address="10.0.0.1"), Node("b", (CPU,))]
    assert [text.startswith("b: ") for text in unlike_networks(nodes)] == [True]
    nodes[1] = Node("b", (CPU,), address="fd00::1")
    assert [text.partition(":")[0] for text in unlike_networks(nodes)] == ["a (IPv4) and b (IPv6)"]
    assert not unlike_networks([nodes[0], Node("b", (CPU,), address="10.9.0.7")])
    assert not unlike_networks([HERE, replace(HERE, name="b", address="localhost")])
    with raises("probe.hosts_unlike", "addresses of different networks"):
        measure_cluster(Cluster(tuple(nodes)))


def test_an_address_that_is_not_the_hosts_own_is_told():
    report = check_cluster(Cluster((replace(HERE, ssh="", address="127.0.0.1"),)))
    assert not report.problems
    with probes([HERE]) as (probe,), raises("probe.failed", "here", "assign requested address"):
        probe.ask("listen", address="203.0.113.7", secret=new_secret().hex())


def test_who_does_not_prove_the_secret_is_not_answered():
    with probes([HERE]) as (probe,):
        secret = new_secret()
        port = probe.ask("listen", address="127.0.0.1", secret=secret.hex())["port"]

        def connected(secret):
            return closing(call("127.0.0.1", port, secret, (0, 0, 0), deadline=time.monotonic() + ENOUGH))

        with connected(secret) as friend:
            friend.sendall(lengths(0, 100) + bytes(100))
            assert friend.recv(1) == b"\1"
        with pytest.raises(OSError), connected(new_secret()):
            pass
        with closing(socket.create_connection(("127.0.0.1", port), 5)) as silent:
            silent.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(100))
            received = b""
            try:
                while part := silent.recv(100):
                    received += part
            except ConnectionError:
                pass
            assert len(received) == OPENING_BYTES, "a nonce, and nothing else"
        for said in (lengths(0, 1 << 40), lengths(1, 1), b"\0" * 100):
            with connected(secret) as friend, suppress(ConnectionError):
                friend.sendall(said + b"x")
                assert not friend.recv(1)


@pytest.mark.parametrize("count", range(1, 12))
def test_rounds_are_all_pairs_each_host_once_a_round(count):
    names = [f"h{k}" for k in range(count)]
    found = rounds(names)
    assert Counter(frozenset(pair) for pairs in found for pair in pairs) == Counter(
        map(frozenset, combinations(names, 2))
    )
    assert all(len({name for pair in pairs for name in pair}) == 2 * len(pairs) for pairs in found)
    assert len(found) == (0 if count < 2 else count - 1 + count % 2)


def test_a_link_is_found_from_its_own_times():
    link = Link(25e6, 2e-4)
    measured = MeasuredLink(
        ("a", "b"), {size: link.transfer_time(size) + link.latency for size in (0, 1 << 18, 1 << 24)}
    )
    assert measured.link.bandwidth == pytest.approx(link.bandwidth) and measured.link.latency == pytest.approx(2e-4)


def test_devices_of_one_type_that_are_not_alike_become_several():
    kinds = (DeviceType("cpu", 4e9), DeviceType("gpu"), DeviceType("cpu-2"))
    nodes = [Node("a", kinds[:2]), Node("b", (kinds[0], kinds[0], kinds[2])), Node("c", kinds[:1])]
    seconds = {"a": (0.1, 0.01), "b": (0.2, 0.21, 0.5), "c": (0.11,)}
    found = unlike_devices(nodes, seconds)
    assert [[kind.name for kind in node.device_types] for node in found] == [
        ["cpu", "gpu"],
        ["cpu-3", "cpu-3", "cpu-2"],  # the file has a cpu-2 of its own
        ["cpu"],
    ]
    told = {kind.name: kind for node in found for kind in node.device_types}
    assert told["cpu"].reference_seconds == pytest.approx(0.105) and told["cpu-3"].memory_bytes == 4e9
    assert told["cpu-3"].reference_seconds == pytest.approx(0.205)


def test_what_a_byte_takes_is_the_programs_time_and_what_loops_lose():
    """Of 0.4 s loops lost a quarter to interrupts; the program took 0.2 s, of which its device's share is a half."""
    beside = {"loop_seconds": 0.4, "pace": 75.0, "own_seconds": 0.2, "bytes": 1e7}
    assert of_a_byte(beside, 100.0, 0.5) == pytest.approx((0.1 + 0.1) / 1e7)
    kinds = (CPU, DeviceType("gpu"), DeviceType("old", network_seconds_per_byte=1.0))
    nodes = [Node("a", kinds[:1]), Node("b", kinds), Node("c", kinds[:1]), Node("d", kinds[2:])]
    found = with_network_time(nodes, {"a": 1e-9, "b": 2e-9, "c": 6e-9})
    each = [[kind.network_seconds_per_byte for kind in node.device_types] for node in found]
    assert each == [[2e-9], [2e-9, 2e-9, 2e-9], [2e-9], [2e-9]]
    assert with_network_time(nodes[3:], {}) == nodes[3:]


def test_two_hosts_tell_what_sending_takes_and_nothing_is_left():
    before, secret = children(), new_secret().hex()
    with probes([HERE, replace(HERE, name="again")]) as begun:
        ports = [probe.ask("listen", address="127.0.0.1", secret=secret)["port"] for probe in begun]
        found = measure_network_time(begun, ports, secret, seconds=0.05)
        assert found.keys() == {"here", "again"} and all(0 < each < 1e-6 for each in found.values())
        assert measure_network_time(begun[:1], ports[:1], secret) == {}
        assert 0 < begun[0].ask("coding", timeout=ENOUGH)["seconds"] < 1e-6
        told = begun[0].ask("busy", devices=2, seconds=0.01)
        assert told["bytes"] == 0 and told["pace"] > 0 and told["loop_seconds"] > 0
    assert not children() - before


def test_a_type_without_profile_is_as_much_slower_as_on_the_reference_layer(tmp_path):
    graph = LayerGraph.chain([Layer("a", "A"), Layer("b", "B")])
    cost = LayerCost((CostSample(10, 0.5, 1.0, 800, 160, 5),))
    profile = Profile(graph, {"cpu": (cost, cost)}, (10.0,), update_rates={"cpu": 2.0})
    cluster = Cluster(
        (Node("n", (DeviceType("cpu", reference_seconds=0.1), DeviceType("old", reference_seconds=0.3))),)
    )
    (tmp_path / "c.toml").write_text(cluster.to_toml())
    assert Cluster.load(tmp_path / "c.toml") == cluster
    found, told = with_unmeasured(profile, cluster)
    assert found.time((0, 1), "old") == pytest.approx((3.0, 6.0)) and found.time((0, 1), "cpu") == (1.0, 2.0)
    assert found.update_rates == pytest.approx({"cpu": 2.0, "old": 6.0})
    assert len(told) == 1 and mentions(told[0], "'old'", "3.00", "'cpu'")
    assert with_unmeasured(profile, Cluster.uniform(2, device_type="old")) == (profile, ())
    profile.save(tmp_path / "p.json")
    code, out, lines = sparsepipe("plan", "--profile", tmp_path / "p.json", "--cluster", tmp_path / "c.toml", "--json")
    assert code == 0 and any("3.00 times those of" in line for line in lines), lines
    assert json.loads(out)["single_device_seconds"] == pytest.approx(3.0)  # on the fastest type


@pytest.mark.slow
def test_measuring_this_machine_writes_what_planners_read(tmp_path):
    (tmp_path / "two.toml").write_text(
        '[[node]]\nname = "a"\ndevices = [{ type = "cpu", count = 2 }]\n'
        '[[node]]\nname = "b"\naddress = "127.0.0.1"\ndevices = [{ type = "cpu" }]\n'
    )
    code, out, lines = sparsepipe("cluster", "measure", tmp_path / "two.toml", "--device", "cpu", "--json")
    assert code == 0, lines
    document, cluster = json.loads(out), Cluster.load(tmp_path / "two.toml")
    (link,) = document["links"]
    assert link["between"] == ["a", "b"] and cluster.network == Link(link["bandwidth"], link["latency"])
    assert 0 < cluster.network.latency < 1 and 1e6 < cluster.network.bandwidth < 1e12
    assert {kind.reference_seconds for kind in cluster.device_types} == {*document["reference_seconds"]["a"]}
    assert [kind.name for kind in cluster.device_types] == ["cpu"], "one machine computes alike"
    assert cluster.nodes[0].link.bandwidth < float("inf") == cluster.nodes[1].link.bandwidth


# --- hosts of their own, with a real sshd each --------------------------------------------------------------------


REPOSITORY = Path(__file__).parent.parent


def on_desk(network, *words):
    """Give the command these words where tests launch from; return its exit code, its output, and its last line."""
    environment = {**os.environ, "HOME": "/run/home", "PYTHONPATH": str(REPOSITORY)}
    said = network.desk.run(sys.executable, "-m", "sparsepipe", *map(str, words), env=environment)
    return said.returncode, said.stdout, (said.stderr.strip().splitlines() or [""])[-1]


def toml(*nodes):
    """Hosts as (name, address, what ssh is called with), with this Python and this code."""
    return "".join(
        f'[[node]]\nname = "{name}"\naddress = "{address}"\nssh = "{ssh}"\ninterpreter = "{sys.executable}"\n'
        f'environment = {{ PYTHONPATH = "{REPOSITORY}" }}\ndevices = [{{ type = "cpu" }}]\n'
        for name, address, ssh in nodes
    )


def nothing_left(network):
    return all(not host.commands() and host.listening() == {(host.address, 22)} for host in network.hosts)


@pytest.mark.slow
def test_hosts_are_checked_over_ssh(tmp_path):
    with network_hosts(3, tmp_path) as network:
        (network.hosts[0].home / ".ssh" / "rc").write_text(NOISY.replace('exec "$@"', ""))
        one, two, three = ((host.name, host.address, host.name) for host in network.hosts)
        path = tmp_path / "three.toml"
        path.write_text(toml(one, two, three))
        code, out, last = on_desk(network, "cluster", "check", path, "--json")
        document = json.loads(out)
        assert (code, document["problems"]) == (0, []), last
        assert [host["hostname"] for host in document["hosts"]] == ["host1", "host2", "host3"]
        assert len({host["code"] for host in document["hosts"]}) == 1
        until(lambda: nothing_left(network), "hosts without probes")

        path.write_text(toml(one, ("two", "10.77.0.99", "host2"), ("host9", "host9", "host9")))
        code, out, last = on_desk(network, "cluster", "check", path, "--json")
        problems = json.loads(out)["problems"]
        assert code == 2 and len(problems) == 2 and problems[0] in last, problems
        assert mentions(problems[0], "host9", "host9")
        assert "two: " in problems[1] and "address" in problems[1]

        path.write_text(toml(one, two, three))
        network.cut(network.hosts[2])
        code, out, last = on_desk(network, "cluster", "check", path)
        assert code == 2 and "host3: ssh host3: it " in last, last
        network.mend(network.hosts[2])
        until(lambda: nothing_left(network), "hosts without probes")


@pytest.mark.slow
def test_links_are_measured_as_they_are_shaped(tmp_path):
    """Two hosts of 200 Mbit/s and one of 100: two links are of the slower one."""
    with network_hosts(3, tmp_path) as network:
        for host, rate in zip(network.hosts, ("200mbit", "200mbit", "100mbit"), strict=True):
            network.shape(host, rate)
        (tmp_path / "three.toml").write_text(toml(*((host.name, host.address, host.name) for host in network.hosts)))
        out = tmp_path / "measured.toml"
        code, said, last = on_desk(network, "cluster", "measure", tmp_path / "three.toml", "--out", out, "--json")
        assert code == 0, last
        links = {frozenset(link["between"]): link for link in json.loads(said)["links"]}
        for pair, link in links.items():
            expected = 100e6 / 8 if "host3" in pair else 200e6 / 8
            assert link["bandwidth"] == pytest.approx(expected, rel=0.3), pair
            seconds = [link["seconds"][size] for size in sorted(link["seconds"], key=int)]
            assert seconds[2:] == sorted(seconds[2:]) and max(seconds[:2]) < seconds[-1], "short ones are alike"
        cluster = Cluster.load(out)
        assert cluster.network.bandwidth == pytest.approx(100e6 / 8, rel=0.3)
        assert [node.ssh for node in cluster.nodes] == ["host1", "host2", "host3"]
        assert all(kind.reference_seconds and kind.network_seconds_per_byte for kind in cluster.device_types)
        until(lambda: nothing_left(network), "hosts without probes")
