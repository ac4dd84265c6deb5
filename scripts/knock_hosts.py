"""Hostile connections to all that listens during a job on several hosts: `scripts/knock_hosts.py [--count 5000]`.

Three hosts are namespaces of this machine (tests/network_hosts.py), and a job of a rank on each is launched from a
fourth by ssh, or on nodes of Ray. While it trains, strangers on the fourth connect `--count` times to each address and
port at which anything listens on the hosts, sshd apart, all at once: they say nothing, little, much, or a request of
another protocol, and hang up when they are shut out, or after `--seconds`. Prints a line for each place: who listens,
and how many of them were refused, heard by nobody, shut out, or still there at the end. Then the job must go on, and
its losses be those of one device. Exits with 1 where that is not so. For root, on Linux: elsewhere it says why it
cannot.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]

import pytest  # noqa: E402
from hosts_desk import FLUSH, MODEL, config, desk_of  # noqa: E402
from network_hosts import Host, Network, network_hosts  # noqa: E402
from processes import until  # noqa: E402
from ray_hosts_desk import ray_hosts  # noqa: E402
from runtime_jobs import plan_of  # noqa: E402
from strangers import Place, knock  # noqa: E402

from scripts.bench.scratch import scratch  # noqa: E402

_MORE = 5  # minibatches that must follow
_SSH = 22
_RANKS = [[0], [1], [2]]


class _Running:
    """A job at work: its process, how many minibatches it has told of, and losses, its own and those of one device."""

    def __init__(self, process: subprocess.Popen, losses: Callable[[], list[float]], expected: list[float]) -> None:
        self.process, self.losses, self.expected = process, losses, expected

    def check_it_goes_on(self) -> None:
        before = len(self.losses())
        until(lambda: self.process.poll() is not None or len(self.losses()) > before + _MORE, "minibatches")
        assert self.process.poll() is None, "the job ended"
        found = self.losses()[: len(self.expected)]
        assert found == self.expected[: len(found)], "losses differ from those of one device"


@contextmanager
def by_ssh(network: Network, folder: Path) -> Iterator[_Running]:
    """Have a job at work that `ssh` has launched."""
    desk = desk_of(network, folder)
    told = desk.told("run", plan_of(MODEL, _RANKS, **FLUSH), config(epochs=100_000, checkpoint_every=0), *network.hosts)
    with desk.launched(told) as process:
        yield _Running(process, lambda: desk.losses("run"), desk.losses("one"))


@contextmanager
def by_ray(network: Network, folder: Path) -> Iterator[_Running]:
    """Have a job at work on nodes of Ray."""
    kinds = ["cpu"] * len(network.hosts)
    with ray_hosts(network, folder, kinds) as hosts:
        words = hosts.on_ray("run", "--epochs", "100000", "--checkpoint-every", "0", types=kinds, plan="three")
        with hosts.running(words) as process:
            until(lambda: process.poll() is not None or len(hosts.losses("run")) > 0, "minibatches")
            yield _Running(process, lambda: hosts.losses("run"), hosts.losses("one"))


LAUNCHERS = {"ssh": by_ssh, "ray": by_ray}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launcher", action="append", choices=LAUNCHERS, help="default: both")
    parser.add_argument("--count", type=int, default=5000, help="connections to each place")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long they stay at each")
    options = parser.parse_args(argv)
    bad = 0
    for launcher in options.launcher or LAUNCHERS:
        with scratch("knock-hosts") as folder:
            try:
                with network_hosts(3, folder) as network, LAUNCHERS[launcher](network, folder) as running:
                    _knock_everywhere(launcher, network, options.count, options.seconds)
                    running.check_it_goes_on()
                    print(f"{launcher}: the job goes on, with the losses of one device", flush=True)
            except pytest.skip.Exception as refused:
                print(f"knock_hosts: {refused}", file=sys.stderr)
                return 2
            except AssertionError as error:
                print(f"{launcher}: NOT SO: {error}", flush=True)
                bad += 1
    return 1 if bad else 0


def _knock_everywhere(launcher: str, network: Network, count: int, seconds: float) -> None:
    for host in network.hosts:
        listeners = _listeners(host)
        for (address, port), who in sorted(listeners.items()):
            there = host.address if address in ("0.0.0.0", "*", "::") else address
            if there != host.address:
                print(f"{launcher} {host.name} {address}:{port} {who}: within the host alone", flush=True)
                continue
            (told,) = knock([(there, port)], count, seconds=seconds, command=network.desk.command).values()
            facts = ", ".join(f"{number} {what}" for what, number in told.items() if number)
            print(f"{launcher} {host.name} {address}:{port} {who}: of {count} {facts}", flush=True)


def _listeners(host: Host) -> dict[Place, str]:
    """Return who listens at each address and port of a host."""
    told = subprocess.run(
        host.command(["ss", "-Hltnp"], only_network=True), capture_output=True, text=True, check=True
    ).stdout
    commands, found = host.commands(), {}
    for line in told.splitlines():
        words = line.split(maxsplit=5)
        address, _, port = words[3].rpartition(":")
        pids = [int(part.split(",")[0]) for part in words[5].split("pid=")[1:]] if len(words) > 5 else []
        who = {_named(commands.get(pid, ["?"])) for pid in pids}
        if int(port) != _SSH:
            found[address.strip("[]").removeprefix("::ffff:"), int(port)] = " and ".join(sorted(who)) or "?"
    return found


def _named(words: Sequence[str]) -> str:
    """The module, or the program, of a command."""
    return words[words.index("-m") + 1] if "-m" in words[:-1] else Path(words[0].split()[0]).name


if __name__ == "__main__":
    sys.exit(main())
