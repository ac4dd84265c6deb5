"""The system's ssh as hosts are reached by it: words arrive as they are, and what fails is told with its remedy."""

import shlex
import sys

import pytest
from coded import mentions, raises
from network_hosts import network_hosts

from sparsepipe.util.host.ssh import Destination, command_failure, ssh_command, ssh_failure

ODD = ["a b", "$HOME", "'", '"', "`id`", "*", "\\", ";", "-n", "ü"]


def test_words_arrive_as_they_are(tmp_path):
    with network_hosts(2, tmp_path) as network:
        program = "import sys; print(ascii(sys.argv[1:]))"
        said = network.desk.run(*ssh_command("host2", [sys.executable, "-I", "-c", program, *ODD]))
        assert (said.returncode, said.stdout) == (0, f"{ascii(ODD)}\n"), said.stderr
        for called in ("10.77.0.1", "host1:22", "root@[10.77.0.1]:22", "ssh://root@host1:22/"):
            assert network.desk.run(*ssh_command(called, ["hostname"])).stdout == "host1\n", called


@pytest.mark.parametrize(
    ("called", "words"),
    [
        ("gpu1", ["--", "gpu1"]),
        ("me@gpu1:2222", ["-p", "2222", "--", "me@gpu1"]),
        ("2001:db8::1", ["--", "2001:db8::1"]),
        ("me@[2001:db8::1]:2222", ["-p", "2222", "--", "me@2001:db8::1"]),
        ("ssh://gpu1:22", ["-p", "22", "--", "gpu1"]),
    ],
)
def test_a_port_is_an_option_of_ssh(called, words):
    assert ssh_command(called, ["true"])[-len(words) - 1 : -1] == words
    assert f"ssh-copy-id {shlex.join(Destination.parse(called).words)})" in ssh_failure(called, "Permission denied")


@pytest.mark.parametrize("text", ["", "gpu1:", "gpu1:0", "gpu1:65536", "gpu1:x", "a:1:2", "@gpu1", "me@", "a/b"])
def test_what_is_no_destination_is_refused(text):
    with raises("ssh.destination_malformed"):
        Destination.parse(text)


def test_hosts_share_neither_processes_nor_homes_nor_the_tests_folder(tmp_path):
    (tmp_path / "told").write_text("to the desk alone")
    with network_hosts(2, tmp_path) as network:
        first, second = network.hosts
        assert first.run("touch", "/run/home/here").returncode == 0
        assert (first.home / "here").exists() and not (second.home / "here").exists()
        assert second.run("ls", str(tmp_path)).stdout == ""
        assert network.desk.run("cat", str(tmp_path / "told")).stdout == "to the desk alone"
        assert len(second.run("ls", "/proc").stdout.split()) < len(network.desk.run("ls", "/proc").stdout.split())
        assert first.listening() == {(first.address, 22)} and not first.commands()


def test_a_host_that_is_not_reached_is_told_with_the_remedy(tmp_path):
    with network_hosts(1, tmp_path) as network:
        (host,) = network.hosts
        (host.home.parent / "keys" / "desk.pub").write_text("")
        _refused(network, "host1", "ssh-copy-id host1")
        _refused(network, "host9", "unknown host name")
        network.cut(host)
        _refused(network, "host1", "it does not answer", seconds=1)
        network.mend(host)
        (network.desk.home / ".ssh" / "known_hosts").write_text("")
        _refused(network, "host1", "known_hosts")


def _refused(network, name, remedy, *, seconds=50):
    said = network.desk.run(*ssh_command(name, ["true"], connect_seconds=seconds))
    assert said.returncode == 255
    assert remedy in ssh_failure(name, said.stderr), said.stderr


@pytest.mark.parametrize("said", ["", "\n\n", "kex_exchange_identification: read: Connection reset by peer\n"])
def test_what_is_not_known_is_passed_on(said):
    told = ssh_failure("gpu1", said)
    assert told.startswith("ssh gpu1: ") and "by hand" in told and "\n" not in told


def test_a_python_that_a_shell_did_not_run_is_told_with_what_the_shell_said():
    """One that lacks a shared library ends with the code of one that is not there."""
    library = "python: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file\n"
    missing, unable = command_failure(127, "/p", library), command_failure(126, "/p", "sh: /p: Permission denied\n")
    assert mentions(missing, "/p", "libpython3.11.so.1.0")
    assert mentions(unable, "/p ", "/p: Permission denied")
    assert command_failure(1, "/p", library) is None and "\n" not in missing + unable
