"""Compare one scene on one process with the same scene shared by several: seconds, peak memory, bytes of halos.

    python scripts/bench_space.py --voxels 1000000 --processes 2
    python scripts/bench_space.py --voxels 300000 --limit 3.5      # what one process cannot hold

The scene is a floor of a building: rooms with walls, ceilings and furniture. Each process computes a step of the
network, forward and backward, with one thread. CPU seconds are those of the busiest process: other work on the machine
makes wall-clock seconds longer, and them hardly. Halo bytes are compared with a lower bound, counted from the kernel
maps of the whole scene: for the regions at hand, each convolution needs each voxel once that has a pair in another
region, and its backward returns as many gradients.
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sparsepipe.data.batch import PointBatch  # noqa: E402
from sparsepipe.engines import engine  # noqa: E402
from sparsepipe.engines.native.space import Regions  # noqa: E402
from sparsepipe.engines.subnetwork import build  # noqa: E402
from sparsepipe.networks import network  # noqa: E402
from sparsepipe.runtime.processes.process import Process  # noqa: E402
from sparsepipe.runtime.replication.base import StatisticsGroup  # noqa: E402

_ROOM = (60, 48, 30)  # voxels along x, y and z
_WAIT_SECONDS = 3600.0


def building(num_voxels: int, *, seed: int = 0) -> PointBatch:
    """Return so many voxels of a building's floor, with a class of 5 and 3 random features each."""
    generator = torch.Generator().manual_seed(seed)
    rooms, count, row = [], 0, 0
    while count < num_voxels:
        corner = torch.tensor([row % 8 * _ROOM[0], row // 8 * _ROOM[1], 0])
        rooms.append((_room(generator) + corner).unique(dim=0))  # furniture overlaps
        count, row = count + len(rooms[-1]), row + 1
    voxels = torch.cat(rooms)[:num_voxels]
    features = torch.randn(len(voxels), 3, generator=generator)
    labels = (voxels.sum(dim=1) // 16) % 5
    return PointBatch(torch.nn.functional.pad(voxels, (1, 0)).int(), features, labels.long(), per_voxel=True)


def _room(generator: torch.Generator) -> Tensor:
    x, y, z = (torch.arange(size) for size in _ROOM)
    zero = torch.zeros(1, dtype=torch.int64)
    faces = [torch.cartesian_prod(x, y, level) for level in (zero, zero + _ROOM[2])]
    faces += [torch.cartesian_prod(x, zero, z), torch.cartesian_prod(zero, y, z)]
    for _ in range(12):  # furniture: solid boxes
        size = torch.randint(4, 12, (3,), generator=generator).tolist()
        at = [int(torch.randint(0, most - 12, (1,), generator=generator)) for most in _ROOM[:2]] + [0]
        faces.append(torch.cartesian_prod(*(torch.arange(a, a + n) for a, n in zip(at, size, strict=True))))
    return torch.cat(faces)


def lower_bound(batch: PointBatch, table: object, num_parts: int) -> int:
    """Return the bytes of halos that the network's convolutions need at least, forwards and backwards."""
    native = engine("native")
    tensor = native.tensor(batch)
    manager = tensor.manager
    regions = Regions.of(tensor.coordinates, (1,) * num_parts, step=table.coarsest_stride)
    strides, owners, total = {"input": (1, 1, 1)}, {}, 0

    def owner(stride: tuple[int, ...]) -> Tensor:
        if stride not in owners:
            owners[stride] = torch.empty(len(manager.keys(stride)), dtype=torch.int64)
            for part in range(num_parts):
                owners[stride][regions.rows(manager.coordinates(stride), part)] = part
        return owners[stride]

    for row in table.rows:
        stride = strides[row.inputs[0]]
        strides[row.id] = stride
        if not row.kind.endswith("convolution"):
            continue
        size, step = row.args["kernel_size"], row.args.get("stride", 1)
        if row.kind == "transposed_convolution":
            fine = strides[row.id] = strides[row.inputs[1]]
            pairs = manager.upward_map(fine, stride, kernel_size=size).pairs
        else:
            coarse = strides[row.id] = manager.downsampled(stride, step) if step != 1 else stride
            pairs = manager.kernel_map(stride, coarse, kernel_size=size).pairs
        to = owner(strides[row.id])[pairs.out_rows]
        remote = owner(stride)[pairs.in_rows] != to
        needed = torch.unique(pairs.in_rows[remote] * num_parts + to[remote])
        passes = 2 if row.inputs[0] != "input" else 1  # no gradient of the input is asked for
        total += len(needed) * row.args["in_channels"] * 4 * passes
    return total


def step(rank: int, num_parts: int, options: argparse.Namespace, folder: str, stage: str) -> None:
    """Compute steps as one of the processes, and write what they took."""
    torch.set_num_threads(1)
    if options.limit:
        most = int(options.limit * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    group = None
    if num_parts > 1:
        store = dist.FileStore(f"{folder}/{stage}-store", num_parts)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=num_parts)
        group = StatisticsGroup(dist.group.WORLD, Process(rank, num_parts, torch.device("cpu"), _WAIT_SECONDS))
    table = network(options.model, num_classes=5, in_channels=3)
    native = engine("native")
    module = build(table, native, seed=0)
    batch = building(options.voxels)
    before = _peak_bytes(reset=True)
    rows = {"before_bytes": before, "seconds": [], "cpu_seconds": []}
    for number in range(options.steps):
        if group:
            group.gather(torch.zeros(1))
            group.sent_bytes = 0
        start, cpu = time.perf_counter(), time.process_time()
        tensor, labels = native.tensor(batch), batch.labels[_order(batch)]
        if group:
            tensor = native.part(tensor, group, shares=(1,) * num_parts, step=table.coarsest_stride)
            labels = labels[native.rows_of_part(tensor)]
        output = native.features(module.result(module(module.enter(tensor), minibatch=number, keep=table.outputs)))
        # In double: a sum of a million float32 numbers is not exact enough to compare.
        loss = torch.nn.functional.cross_entropy(output.double(), labels, reduction="sum") / len(batch.labels)
        loss.backward()
        cpu_seconds = time.process_time() - cpu
        gradient = next(parameter.grad for parameter in module.parameters()).clone()
        total = loss.detach().clone()
        if group:
            group.sum(total)
            group.sum(gradient)
        rows["seconds"].append(time.perf_counter() - start)
        rows["cpu_seconds"].append(cpu_seconds)
        module.zero_grad()
    rows |= {"voxels": len(output), "loss": float(total), "gradient": float(gradient.abs().sum())}
    rows |= {"peak_bytes": _peak_bytes(), "halo_bytes": group.sent_bytes if group else 0}
    Path(folder, f"{stage}-{rank}.json").write_text(json.dumps(rows))
    os._exit(0)  # torch cannot always take a process group down


def _order(batch: PointBatch) -> Tensor:
    """Return which voxel each row of the engine's tensor is."""
    coordinates = batch.coordinates.long()
    keys = coordinates[:, 0]
    for axis in range(1, 4):
        keys = keys * 2**16 + coordinates[:, axis]
    return torch.sort(keys).indices


def _peak_bytes(*, reset: bool = False) -> int:
    """Return the most memory that this process had since the last reset."""
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text().splitlines()
        peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))
    return peak


def measured(num_parts: int, options: argparse.Namespace, folder: str) -> list[dict[str, float]]:
    """Run steps on so many processes; return what each says. Raises SystemExit if one fails."""
    stage = f"parts{num_parts}"
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=step, args=(rank, num_parts, options, folder, stage)) for rank in range(num_parts)
    ]
    for process in processes:
        process.start()
    while any(process.exitcode is None for process in processes):
        time.sleep(0.1)
        if any(process.exitcode for process in processes):
            for process in processes:
                process.kill()
                process.join()
    if any(process.exitcode for process in processes):
        return []
    return [json.loads(Path(folder, f"{stage}-{rank}.json").read_text()) for rank in range(num_parts)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--voxels", type=int, default=1_000_000, help="of the scene")
    parser.add_argument("--processes", type=int, default=2, help="that share it")
    parser.add_argument("--steps", type=int, default=2, help="of which the fastest counts")
    parser.add_argument("--model", default="minkunet14a-segmentation")
    parser.add_argument("--limit", type=float, default=0.0, help="GiB of address space of each process")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        one, parts = (measured(count, options, folder) for count in (1, options.processes))
    if options.limit:
        for name, found in (("one process", one), (f"{options.processes} processes", parts)):
            print(f"{name} under {options.limit:g} GiB: {'trained a step' if found else 'out of memory'}")
        return 0 if parts and not one else 1
    if not one or not parts:
        return 1
    table = network(options.model, num_classes=5, in_channels=3)
    bound = lower_bound(building(options.voxels), table, options.processes)
    sent = sum(part["halo_bytes"] for part in parts)
    rows = {
        "seconds": [min(one[0]["seconds"]), max(min(part["seconds"]) for part in parts)],
        "CPU seconds": [min(one[0]["cpu_seconds"]), max(min(part["cpu_seconds"]) for part in parts)],
        "peak MB": [one[0]["peak_bytes"] / 1e6, max(part["peak_bytes"] for part in parts) / 1e6],
        "peak MB of the step": [
            (one[0]["peak_bytes"] - one[0]["before_bytes"]) / 1e6,
            max(part["peak_bytes"] - part["before_bytes"] for part in parts) / 1e6,
        ],
        "voxels": [one[0]["voxels"], max(part["voxels"] for part in parts)],
        "loss": [one[0]["loss"], parts[0]["loss"]],
        "gradient of the first kernel": [one[0]["gradient"], parts[0]["gradient"]],
    }
    print(f"{options.model}, {options.voxels} voxels, load {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    for name, (alone, shared) in rows.items():
        print(f"{name:30} {alone:14.6g} {shared:14.6g}   {alone / shared:.3f}")
    print(f"halo bytes {sent:.0f}, lower bound {bound}, ratio {sent / bound:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
