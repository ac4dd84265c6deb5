"""What --encrypt costs: the same runs over ssh on two hosts in turn, in clear and through TLS."""

import statistics
from pathlib import Path
from typing import Any

from hosts_desk import Desk, config, give_machine_code
from network_hosts import Network
from runtime_jobs import plan_of

from scripts.bench.document import say
from scripts.bench.rounds import load, quartiles, ratios
from sparsepipe.records import RunRecord

PLANS = {"pipeline": [[0], [1]], "replicas": [[0, 1]]}  # packets at a cut; gradients of the whole network
MODEL = "minkvgg11"
_MINIBATCHES = 40


def encryption(network: Network, folder: Path, repeats: int, *, rate: str | None) -> dict[str, Any]:
    """Return samples a second of each plan over links of a `rate` such as "1000mbit", in clear and encrypted."""
    desk, document = Desk(network, folder), {}
    for host in (*network.hosts, network.desk):
        give_machine_code(host)
        if rate and host is not network.desk:
            network.shape(host, rate)
    for name, ranks in PLANS.items():
        found: dict[str, list[float]] = {"clear": [], "encrypted": []}
        loads = []
        for repeat in range(repeats):
            loads.append(round(load(), 2))
            for how, paces in found.items():
                run = f"{name}-{how}-{repeat}"
                paces.append(_pace(desk, run, ranks, encrypt=how == "encrypted"))
                say(f"{name}, {repeat + 1}/{repeats}: {how} {paces[-1]:.2f} samples/s")
        low, middle, high = quartiles(ratios(found["encrypted"], found["clear"]))
        document[name] = {how: statistics.median(paces) for how, paces in found.items()} | {"runs": found}
        document[name] |= {"encrypted/clear": {"median": middle, "low": low, "high": high}, "load": loads}
    return document


def encryption_table(document: dict[str, Any]) -> str:
    """Return a line for each plan."""
    lines = ["samples/s".ljust(20) + "clear".rjust(10) + "encrypted".rjust(12) + "ratio".rjust(8)]
    for name, found in document.items():
        ratio = found["encrypted/clear"]["median"]
        lines.append(f"  {name:<18}{found['clear']:10.2f}{found['encrypted']:12.2f}{ratio:8.3f}   load {found['load']}")
    return "\n".join(lines)


def _pace(desk: Desk, name: str, ranks: list[list[int]], *, encrypt: bool) -> float:
    settings = config(model=MODEL, minibatches=_MINIBATCHES, checkpoint_every=0, validate=False, encrypt=encrypt)
    told = desk.told(name, plan_of(MODEL, ranks), settings, *desk.network.hosts)
    if (ended := desk.launch(told)) != ["finished"]:
        raise RuntimeError(f"{name}: {ended[0][1]}")
    (summary,) = (row for row in RunRecord(desk.folder / name).metrics() if row["event"] == "summary")
    return float(summary["samples_per_second"])
