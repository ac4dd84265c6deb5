"""Measure the profiles that data_manifests/profiles keeps: `python scripts/measure_profiles.py [NAME…]`.

Each file holds one network on this machine, a device type for each engine and number of threads: native-1t, native-2t,
minkowski-1t, minkowski-2t, and the GPU's where there is one. Run it with nothing else at work.
"""

import argparse
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from scripts.bench.scratch import scratch  # noqa: E402
from sparsepipe import Profile  # noqa: E402
from sparsepipe.data.shapes import make_shapes  # noqa: E402
from sparsepipe.engines import engine  # noqa: E402
from sparsepipe.errors import InputError  # noqa: E402
from sparsepipe.host.python_path import python_command, python_environment  # noqa: E402

MODELS = ("minkvgg16bn", "minkunet14a", "minkunet34c-segmentation")
THREADS = (1, 2)
VOXEL_SIZE, BATCH_SIZE, NUM_POINTS = 0.02, 8, 1024


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
            with scratch("measure-profiles") as folder:
                out = folder / "profile.json"
                command = python_command("sparsepipe", "profile", "--model", model, "--data", str(data))
                command += ["--voxel-size", str(VOXEL_SIZE), "--batch-size", str(BATCH_SIZE)]
                command += ["--num-points", str(NUM_POINTS), "--engine", name, "--device", device]
                command += ["--threads", str(threads), "--device-type", f"{name}-{kind}"]
                command += ["--repeats", str(repeats), "--out", str(out)]
                subprocess.run(command, check=True, cwd=REPOSITORY, env=python_environment(), stdout=sys.stderr)
                one = Profile.load(out)
            ratio = one.origin["layers_over_whole"]
            print(f"{model} {name} {kind}: the layers take {ratio:.3f} × the whole step")
            joined = joined | one if joined else one
    assert joined is not None
    return joined


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="NAME")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "data_manifests" / "profiles")
    options = parser.parse_args()
    data = make_shapes(REPOSITORY / "work" / "data" / "shapes-8-2-seed0", num_train=8, num_test=2, seed=0)
    for model in options.models:
        measure(model, data, repeats=options.repeats).save(options.out / f"{model}.json")


if __name__ == "__main__":
    main()
