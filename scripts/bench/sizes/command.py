"""The command: a row for each case, and one for each other voxel and batch size."""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench import sizes
from scripts.bench.document import add_json, keep, say, tell
from scripts.bench.scratch import scratch
from scripts.bench.sizes.rounds import Case, Row, Shares, measured, scaled, tiles, varied_clouds
from sparsepipe.errors import InputError

HELD_TO = "held to: minibatch 10 % (median) and 25 % (95th percentile), epoch 5 %, memory 8 %; voxels 15 %"
CLOUDS = ("minkvgg11bn-narrow", "minkunet14a-narrow")
NAMES = ("varied-1", "varied-4", "tiles", "modelnet10", "sentences", "pictures", "areas", "voxels")
AREAS = Path(__file__).with_name("areas.py")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=sizes.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of {', '.join(NAMES)}; left out: all")
    parser.add_argument("--minibatches", type=int, default=24, help="of each case, after its profile (default: 24)")
    parser.add_argument("--clouds", type=Path, metavar="DIR", help="a further folder of clouds, CLASS/train/FILE")
    parser.add_argument("--voxel-size", type=float, default=0.05, help="of --clouds (default: 0.05)")
    parser.add_argument("--batch-size", type=int, default=4, help="of --clouds (default: 4)")
    parser.add_argument("--seed", type=int, default=0)
    add_json(parser)
    options = parser.parse_args(argv)
    if unknown := set(options.cases) - set(NAMES):
        parser.error(f"there is no case {min(unknown)!r}, expected {', '.join(NAMES)}")
    rows: list[Row] = []
    voxels: list[dict[str, float]] = []
    absent: dict[str, str] = {}

    def document() -> dict[str, Any]:
        return {"rows": [row.to_json() for row in rows], "voxels": voxels, "left_out": absent, "held_to": HELD_TO}

    with scratch("bench-sizes") as folder:
        clouds = varied_clouds(folder / "varied", seed=options.seed)
        for case in _cases(options, clouds, tiles(folder / "tiles", seed=options.seed)):
            try:
                rows.append(measured(case, minibatches=options.minibatches, seed=options.seed))
                say(_line(rows[-1]))
            except InputError as error:
                absent[f"{case.name}, {case.model}"] = str(error)
            keep(document(), options.json)
        if "voxels" in (options.cases or NAMES):
            try:
                voxels += scaled(Path("modelnet10-sample"))
            except InputError as error:
                absent["voxels"] = str(error)
    tell(document(), options.json, table(rows, voxels, absent))
    return 0


def _cases(options: argparse.Namespace, varied: Path, cut: Path) -> list[Case]:
    found = [
        *(Case("varied-1", model, str(varied), 1, 0.01, 50_000) for model in CLOUDS),
        *(Case("varied-4", model, str(varied), 4, 0.01, 50_000) for model in CLOUDS),
        *(Case("tiles", model, str(cut), 2, 0.02, 50_000) for model in CLOUDS),
        *(Case("modelnet10", model, "modelnet10-sample", 16, 0.03) for model in CLOUDS),
        *(Case("sentences", model, "wikipedia-pages", 8) for model in ("bert-small",)),
        *(Case("sentences", model, "libreoffice-help-en-de", 8) for model in ("gnmt-small",)),
        *(Case("pictures", model, "mnist-5k", 16) for model in ("mnist-convnet",)),
        *(Case("areas", f"{AREAS}:{network}", f"{AREAS}:pictures", 1) for network in ("plain", "residual")),
    ]
    chosen = [case for case in found if case.name in (options.cases or NAMES)]
    if options.clouds:
        own = (options.batch_size, options.voxel_size, 50_000)
        chosen += [Case(options.clouds.name, model, str(options.clouds), *own) for model in CLOUDS]
    return chosen


def table(rows: Sequence[Row], voxels: Sequence[dict[str, float]], absent: dict[str, str]) -> str:
    """Write a line for each case, and for each voxel and batch size."""
    head = (
        f"{'case':12s} {'network':20s} {'sizes':>16s} {'profiled':>16s} {'median':>7s} {'95 %':>7s} {'epoch':>7s} "
        f"{'again':>7s} {'memory: median, worst':>22s} {'own worst':>9s}"
    )
    lines = [f"voxel size {row['voxel_size']:g}, batch size {row['batch_size']:g}: {row['off']:+.1%}" for row in voxels]
    left_out = [f"left out: {name}: {why}" for name, why in absent.items()]
    return "\n".join([head, *map(_line, rows), *lines, *left_out, HELD_TO])


def _line(row: Row) -> str:
    sizes, profiled = (f"{low:,.0f}–{high:,.0f}" for low, high in ((row.least, row.most), row.profiled))
    network = row.network.rpartition("/")[2]
    return (
        f"{row.case:12s} {network:20s} {sizes:>16s} {profiled:>16s} {row.median:>7.1%} {row.percentile_95:>7.1%} "
        f"{row.epoch:>+7.1%} {row.again:>7.1%} {_median(row.memory):>14.1%} {_worst(row.memory):>+7.1%} "
        f"{_worst(row.own_memory):>+9.1%}"
    )


def _worst(shares: Shares) -> float:
    return max((share for each in shares.values() for share in each), key=abs)


def _median(shares: Shares) -> float:
    return statistics.median(abs(share) for each in shares.values() for share in each)
