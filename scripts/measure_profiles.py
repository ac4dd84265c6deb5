"""Measure the profiles that data_manifests/profiles keeps: `python scripts/measure_profiles.py [NAME…]`.

Each file holds one network on this machine, a device type for each engine and number of threads: native-1t, native-2t,
minkowski-1t, minkowski-2t, and the GPU's where there is one. Run it with nothing else at work: a measurement whose
layers do not add up to whole steps is made again, twice at most.

`--coded-bytes` keeps all times, and measures anew what sockets between hosts carry of each layer: bytes, which no other
load changes, and which are those of the same data and network on every device.
"""

import argparse
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from scripts.bench.scratch import scratch  # noqa: E402
from sparsepipe import LayerCost, Profile  # noqa: E402
from sparsepipe.data.shapes import make_shapes  # noqa: E402
from sparsepipe.engines import engine  # noqa: E402
from sparsepipe.errors import InputError  # noqa: E402
from sparsepipe.util.host.imports import python_command, python_environment  # noqa: E402
from sparsepipe.values.profile import CODED_FIELDS  # noqa: E402


@dataclass(frozen=True)
class Workload:
    """The minibatches that a network is measured on."""

    voxel_size: float = 0.02
    batch_size: int = 8
    num_points: int = 1024


MODELS = {
    "minkvgg11bn-narrow": Workload(voxel_size=0.03, batch_size=16),  # as the notebooks train it
    "minkvgg16bn": Workload(),
    "minkunet14a": Workload(),
    "minkunet34c-segmentation": Workload(),
}
THREADS = (1, 2)
TOLERANCE, TRIES = 0.05, 3  # by which the layers' sum may differ from whole steps, and how often that is tried


def engines() -> list[str]:
    found = ["native"]
    try:
        found.append(engine("minkowski").name)
    except InputError as error:
        print(f"native alone: {error}", file=sys.stderr)
    return found


def devices() -> list[tuple[str, int, str]]:
    """(device, threads, what its device type is called)."""
    import torch

    found = [("cpu", threads, f"{threads}t") for threads in THREADS]
    if torch.cuda.is_available():
        found.append(("cuda", 1, torch.cuda.get_device_name().replace(" ", "-")))
    return found


def measure(model: str, data: Path, *, repeats: int) -> Profile:
    """Measure each engine, device and number of threads in a process of its own."""
    joined: Profile | None = None
    for name in engines():
        for device, threads, kind in devices():
            for _ in range(TRIES):
                one = measured(model, data, engine=name, device=device, threads=threads, kind=kind, repeats=repeats)
                ratio = one.origin["layers_over_whole"]
                print(f"{model} {name} {kind}: the layers take {ratio:.3f} × the whole step", flush=True)
                if abs(ratio - 1) <= TOLERANCE:
                    break
            joined = joined | one if joined else one
    assert joined is not None
    return joined


def measured(
    model: str, data: Path, *, engine: str, device: str, threads: int, kind: str, repeats: int | None
) -> Profile:
    """Return the profile that a process of its own measures."""
    work = MODELS[model]
    with scratch("measure-profiles") as folder:
        out = folder / "profile.json"
        command = python_command("sparsepipe", "profile", "--model", model, "--data", str(data))
        command += ["--voxel-size", str(work.voxel_size), "--batch-size", str(work.batch_size)]
        command += ["--num-points", str(work.num_points), "--engine", engine, "--device", device]
        command += ["--threads", str(threads), "--device-type", f"{engine}-{kind}"]
        command += ["--repeats", str(repeats), "--out", str(out)]
        subprocess.run(command, check=True, cwd=REPOSITORY, env=python_environment(), stdout=sys.stderr)
        return Profile.load(out)


def with_coded_bytes(kept: Profile, one: Profile) -> Profile:
    """Return the kept profile with what sockets carry of each layer, as `one` of its network on the same data has it.

    Raises InputError where `one` was not measured on the same minibatches.
    """
    (sizes,) = one.costs.values()
    if facts(kept) != facts(one):
        raise InputError(
            "profile.sizes_differ",
            f"measured on other minibatches: {facts(one)}, kept are {facts(kept)}; measure it whole",
        )
    costs = {}
    for name, layers in kept.costs.items():
        both = [zip(own.stretched, coded.stretched, strict=True) for own, coded in zip(layers, sizes, strict=True)]
        costs[name] = tuple(
            LayerCost(tuple(replace(mine, **{key: getattr(its, key) for key in CODED_FIELDS}) for mine, its in pairs))
            for pairs in both
        )
    told = {key: one.origin[key] for key in ("engine", "torch")}
    return replace(kept, costs=costs, origin={**kept.origin, "coded_bytes": told})


def facts(profile: Profile) -> tuple[object, ...]:
    """What two profiles of the same minibatches have in common: the data, voxels, and bytes of each layer's output."""
    layers = next(iter(profile.costs.values()))
    outputs = tuple(sample.output_bytes for cost in layers for sample in cost.stretched)
    return profile.origin["data"]["sha256"], tuple(profile.origin["measured_voxels"]), sum(outputs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="NAME")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "data_manifests" / "profiles")
    parser.add_argument("--coded-bytes", action="store_true", help="of the profiles that are kept, whose times stay")
    options = parser.parse_args()
    if unknown := [name for name in options.models if name not in MODELS]:
        parser.error(f"{unknown[0]!r}: expected some of {', '.join(MODELS)}")
    data = make_shapes(REPOSITORY / "work" / "data" / "shapes-8-2-seed0", num_train=8, num_test=2, seed=0)
    try:
        for model in options.models:
            path = options.out / f"{model}.json"
            if not options.coded_bytes:
                measure(model, data, repeats=options.repeats).save(path)
            elif path.exists():
                one = measured(model, data, engine="native", device="cpu", threads=1, kind="1t", repeats=1)
                with_coded_bytes(Profile.load(path), one).save(path)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
