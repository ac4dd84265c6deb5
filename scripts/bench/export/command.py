"""The command: predicted and measured seconds of a step, by network."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from scripts.bench import export
from scripts.bench.document import add_json, say, tell
from scripts.free_port import free_port
from sparsepipe import Cluster, Link, Plan, Profile, plan_of_layout, profile_model, simulate
from sparsepipe.cli.command import main as sparsepipe
from sparsepipe.records.formats.blocks import blocks_of, module_layers
from sparsepipe.util.text.numbers import duration

NETWORKS = Path(__file__).parent / "networks.py"
MICROBATCHES, SKIPPED = 8, 3  # of a step; first steps that are not timed
LINK = Link(1e9)  # a microbatch's activations take a small part of its time


@dataclass(frozen=True)
class Case:
    """A network, its data and its loss."""

    network: str
    model_args: dict[str, Any]
    data: str
    data_args: dict[str, Any]
    loss: str
    batch_size: int


_TEXTS = {"samples": 512, "length": 128}
CASES = {
    "gpt": Case("gpt", {"hidden": 256, "blocks": 4}, "words", _TEXTS, "tokens", 8),
    "bert": Case("bert", {"hidden": 256, "blocks": 4}, "words", _TEXTS, "tokens", 8),
    "resnet": Case("resnet", {"hidden": 32, "blocks": 8}, "images", {"samples": 512, "size": 64}, "classes", 16),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=export.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"left out: {', '.join(CASES)}")
    parser.add_argument("--steps", type=int, default=15, metavar="N", help="steps of each network (default: 15)")
    add_json(parser)
    options = parser.parse_args(argv)
    if unknown := set(options.networks) - set(CASES):
        parser.error(f"there is no network {min(unknown)!r}, expected {', '.join(CASES)}")
    if options.steps <= SKIPPED:
        parser.error(f"--steps {options.steps}: expected more than the {SKIPPED} that are not timed")
    rows = []
    for name in options.networks or CASES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append({"network": name, **timed(CASES[name], Path(folder), options.steps)})
        say(line(rows[-1]))
    tell({"microbatches": MICROBATCHES, "steps": options.steps, "rows": rows}, options.json, "\n".join(map(line, rows)))
    return 0


def line(row: dict[str, Any]) -> str:
    predicted, measured = row["predicted_seconds"], row["measured_seconds"]
    times = f"predicted {duration(predicted):>8s}  measured {duration(measured):>8s}  {predicted / measured - 1:+.1%}"
    return f"{row['network']:8s} {row['layout']:9s} {times}"


def timed(case: Case, folder: Path, steps: int) -> dict[str, Any]:
    """Profile, plan, export and run a network. Returns predicted and measured seconds of a step."""
    found = profile_model(
        f"{NETWORKS}:{case.network}",
        f"{NETWORKS}:{case.data}",
        batch_size=case.batch_size,
        model_args=case.model_args,
        data_args=case.data_args,
        loss=case.loss,
        threads=1,
        beside=1,  # as the other stage computes while a step is timed
    )
    cluster = Cluster.uniform(2, device_type=found.device_types[0], link=LINK)
    layout, plan = best_layout(found, cluster)
    path, written = plan.save(folder / "plan.json"), found.save(folder / "profile.json")
    words = ["plan", "export", str(path), "--profile", str(written), "--to", "torch", "--out", str(folder / "out")]
    words += ["--model", f"{NETWORKS}:{case.network}", "--model-args", json.dumps(case.model_args)]
    words += ["--data", f"{NETWORKS}:{case.data}", "--data-args", json.dumps(case.data_args), "--loss", case.loss]
    if sparsepipe([*words, "--batch-size", str(case.batch_size)]):
        raise SystemExit(f"{case.network}: not exported")
    trace = simulate(plan, found, cluster, [found.size()] * (MICROBATCHES * steps))
    seconds = steps_of(folder / "out" / "train_pipeline.py", steps)
    return {
        "layout": layout,
        "predicted_seconds": trace.makespan / steps,
        "measured_seconds": median(seconds[SKIPPED:]),
        "steps_seconds": seconds,
    }


def best_layout(found: Profile, cluster: Cluster) -> tuple[str, Plan]:
    """The cut between two blocks whose estimate is best: torch cuts at modules."""
    layers = [layer.id for layer in found.graph.layers]
    count = sum(block.letter == "t" for block in blocks_of(layers, module_layers(found.graph)))
    plans = {
        f"[{k}, {count - k}]": plan_of_layout(f"[{k}, {count - k}]", found, cluster, num_microbatches=MICROBATCHES)
        for k in range(1, count)
    }
    return min(plans.items(), key=lambda pair: pair[1].estimate.period_seconds if pair[1].estimate else 0.0)


def steps_of(script: Path, steps: int) -> list[float]:
    """Seconds of each step that two processes print."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, "--steps", str(steps)],
            env={**os.environ, **shared, "RANK": str(rank), "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = "".join(rank.communicate(timeout=600)[0] for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
    return [float(each) for each in re.findall(r"^step .* seconds (\S+)$", printed, re.MULTILINE)]
