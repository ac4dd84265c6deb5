"""The command: one workload after the other, over one rate after the other."""

import argparse
from collections.abc import Sequence
from typing import Any

import pytest
from network_hosts import network_hosts

from scripts.bench import hosts
from scripts.bench.document import add_json, keep, say, tell
from scripts.bench.runtime.cases import CASES
from scripts.bench.scratch import scratch
from sparsepipe import data

from .encrypting import encryption, encryption_table
from .launching import HOSTS, measured
from .report import launch_table, table
from .rounds import Bench

LINKS, LAUNCH, ENCRYPTION = "links", "launch", "encryption"
_TABLES = {LINKS: table, LAUNCH: launch_table, ENCRYPTION: encryption_table}
WORKLOADS, RATES = ("vgg16", "minkvgg16bn"), ("1000mbit", "200mbit")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=hosts.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json(parser, when=", anew after each link")
    parser.add_argument("--what", choices=tuple(_TABLES), default=LINKS, help=f"default: {LINKS}")
    parser.add_argument("--workload", action="append", choices=CASES, help=f"default: {', '.join(WORKLOADS)}")
    parser.add_argument("--rate", action="append", metavar="Nmbit", help=f"default: {', '.join(RATES)}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    options = parser.parse_args(argv)
    try:
        document = {LINKS: _links, LAUNCH: _launches, ENCRYPTION: _encryption}[options.what](options)
    except pytest.skip.Exception as refused:
        say(f"bench_hosts: {refused}")
        return 2
    tell(document, options.json, _TABLES[options.what](document))
    return 0


def _launches(options: argparse.Namespace) -> dict[str, Any]:
    with scratch("bench-hosts") as folder, network_hosts(HOSTS, folder) as network:
        return measured(network, folder, options.repeats)


def _encryption(options: argparse.Namespace) -> dict[str, Any]:
    rate = options.rate[0] if options.rate else None
    with scratch("bench-hosts") as folder, network_hosts(2, folder) as network:
        return encryption(network, folder, options.repeats, rate=rate)


def _links(options: argparse.Namespace) -> dict[str, Any]:
    document: dict[str, Any] = {}
    with scratch("bench-hosts") as folder:
        (folder / "hosts").mkdir()
        with network_hosts(2, folder / "hosts") as network:
            data.make_shapes(folder / "shapes", num_train=6, num_test=1)
            for workload in options.workload or WORKLOADS:
                own = folder / workload
                own.mkdir()
                (own / "shapes").symlink_to(folder / "shapes")
                bench = Bench(workload, own, network, options.repeats, options.seconds)
                say(f"{workload}: profile, two processes at once")
                found = bench.profile()
                document[workload] = {}
                for rate in options.rate or RATES:
                    document[workload][rate] = bench.over(rate, found)
                    keep(document, options.json)
    return document
