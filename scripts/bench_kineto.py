"""Run small torch jobs under torch.profiler with a known cause of delay, and ask for the culprit of each.

    python scripts/bench_kineto.py                      # all kinds of jobs and causes: 20 jobs, some 5 minutes
    python scripts/bench_kineto.py --kinds ddp --causes rank none --keep work/traces
    python scripts/bench_kineto.py --large work/large --of rank0.json.gz rank1.json.gz --bytes 1e9

Processes exchange real tensors over gloo. They compute by sleeping, so that a loaded machine changes little. A slow
link limits the bandwidth of what one process reads from its sockets (a library before libc, made by the C compiler).
Each job trains some steps with the cause and then as many without it: what removing it saves is measured in one job.

With --large, traces of many steps are made of small ones, and each verb that reads them is timed: their steps are
repeated with later times and further numbers, byte for byte as the profiler wrote them otherwise.
"""

import argparse
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

KINDS = {"ddp": 3, "fsdp": 3, "1f1b": 4, "gpipe": 4}  # kind of job → its ranks
CAUSES = ("none", "rank", "loader", "link", "size")
STEPS, WARMUP = 6, 2
MICROBATCHES = 6
FORWARD, BACKWARD = 0.040, 0.070  # seconds of a block of a data-parallel job, and of a microbatch in a stage
SIZES = (0.4, 1.6, 0.7, 1.3, 1.9, 0.1)  # of minibatches or microbatches; their mean is 1
LINK_SECONDS = 0.060  # of a message on the slow link
LOADER_SECONDS = 0.250
WIDTH, ROWS, BLOCKS = 256, 128, 4

# What differs between the steps of a trace, with the text before each number.
NUMBERED = re.compile(
    r'("(?:ts|correlation|External id|Sequence number|Ev Idx|id)"\s*:\s*|ProfilerStep\s*#\s*)(\d[\d.]*)'
)

SLOW_LINK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
static ssize_t slowed(int fd, ssize_t count) {
    struct sockaddr_storage name; socklen_t length = sizeof name;
    const char *pace = getenv("SLOW_LINK_BYTES_PER_SECOND");
    if (pace && count > 4096 && !getpeername(fd, (struct sockaddr *)&name, &length) && name.ss_family != AF_UNIX)
        usleep((useconds_t)(1e6 * count / atof(pace)));
    return count;
}
ssize_t read(int fd, void *buffer, size_t count) {
    static ssize_t (*next)(int, void *, size_t);
    if (!next) next = dlsym(RTLD_NEXT, "read");
    return slowed(fd, next(fd, buffer, count));
}
ssize_t recv(int fd, void *buffer, size_t count, int flags) {
    static ssize_t (*next)(int, void *, size_t, int);
    if (!next) next = dlsym(RTLD_NEXT, "recv");
    return slowed(fd, next(fd, buffer, count, flags));
}
"""


def network(cause: str, rank: int, active: list[bool], *, pipelined: bool) -> "nn.Module":
    """Return a block, whose forward and backward take as long as the cause, while active, wants it on this rank."""
    import torch
    from torch import nn

    class Sleeping(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            time.sleep(FORWARD * factor)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(BACKWARD * ctx.factor)
            return gradient, None

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.calls = nn.Linear(WIDTH, WIDTH), 0

        def forward(self, x):
            size = slow = 1.0
            if cause == "size" and active[0]:
                size = SIZES[(self.calls + (0 if pipelined else 2 * rank)) % len(SIZES)]
            if cause == "rank" and rank == 1 and active[0]:
                slow = 2.0
            self.calls += 1
            return Sleeping.apply(torch.relu(self.linear(x)), slow * size)

    return Block() if pipelined else nn.Sequential(*(Block() for _ in range(BLOCKS)))


def data_parallel(kind: str, module: "nn.Module") -> tuple["nn.Module", Callable[["Tensor"], None]]:
    """Return what is trained, and a function that trains one batch."""
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    if kind == "ddp":
        module = nn.parallel.DistributedDataParallel(module)
    else:
        for block in module:
            fully_shard(block)
        fully_shard(module)
    return module, lambda batch: module(batch).pow(2).mean().backward()


def pipeline(kind: str, module: "nn.Module", rank: int) -> tuple["nn.Module", Callable[["Tensor"], None]]:
    """Return the stage, and a function that trains one batch."""
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    ranks = KINDS[kind]
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[kind]
    steps = schedule(stage, MICROBATCHES, loss_fn=lambda y, target: ((y - target) ** 2).mean())

    def train(batch):
        if rank == 0:
            steps.step(batch)
        elif rank == ranks - 1:
            steps.step(target=torch.zeros_like(batch), losses=[])
        else:
            steps.step()

    return module, train


def worker(kind: str, cause: str, rank: int, folder: Path) -> None:
    """Train some steps as one rank, and write its trace."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=KINDS[kind])
    pipelined = kind in ("1f1b", "gpipe")
    active = [True]
    block = network(cause, rank, active, pipelined=pipelined)
    module, train = pipeline(kind, block, rank) if pipelined else data_parallel(kind, block)

    class Samples(Dataset):
        def __len__(self):
            return 2 * (WARMUP + STEPS)

        def __getitem__(self, index):
            if cause == "loader" and rank == 0 and index < WARMUP + STEPS:
                time.sleep(LOADER_SECONDS)
            return torch.full((ROWS * (MICROBATCHES if pipelined else 1), WIDTH), 0.01)

    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def write(profiler):
        folder_now = folder / ("traces" if active[0] else "without")
        tensorboard_trace_handler(str(folder_now), worker_name=f"rank{rank}", use_gzip=True)(profiler)
        active[0] = False
        os.environ.pop("SLOW_LINK_BYTES_PER_SECOND", None)

    plan = schedule(wait=0, warmup=WARMUP, active=STEPS, repeat=2)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=write) as profiler:
        for batch in DataLoader(Samples(), batch_size=None):
            optimizer.zero_grad()
            train(batch)
            optimizer.step()
            profiler.step()
    dist.barrier()
    dist.destroy_process_group()


def run_job(kind: str, cause: str, folder: Path) -> Path:
    """Run one job, and return the folder of its traces."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = []
    for rank in range(KINDS[kind]):
        own = dict(environment)
        if cause == "link" and rank == KINDS[kind] - 1:
            library = folder / "slow_link.so"
            (folder / "slow_link.c").write_text(SLOW_LINK)
            subprocess.run(
                ["cc", "-shared", "-fPIC", "-o", str(library), str(folder / "slow_link.c"), "-ldl"], check=True
            )
            own |= {
                "LD_PRELOAD": str(library),
                "SLOW_LINK_BYTES_PER_SECOND": str(4 * WIDTH * ROWS / LINK_SECONDS),
            }
        command = [sys.executable, __file__, "--worker", kind, cause, str(rank), str(folder)]
        processes.append(subprocess.Popen(command, env=own, stdout=subprocess.DEVNULL))
    codes = [process.wait(timeout=300) for process in processes]
    if any(codes):
        raise SystemExit(f"{kind} {cause}: ranks ended with {codes}")
    return folder / "traces"


def enlarge_trace(source: Path, target: Path, size: float) -> int:
    """Write a trace of about `size` bytes that repeats the steps of `source`; return how many steps it has."""
    content = source.read_bytes()
    text = (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode()
    scan, at = json.JSONDecoder().raw_decode, text.index("[", text.index('"traceEvents"')) + 1
    head, events = text[:at], []
    while text[at := re.compile(r"[\s,]*").match(text, at).end()] != "]":
        begin = at
        event, at = scan(text, at)
        events.append((event, text[begin:at]))
    steps = [event for event, _ in events if event["name"].startswith("ProfilerStep") and event["ph"] == "X"]
    numbers = {int(event["name"].partition("#")[2]) for event in steps}
    first, last = min(event["ts"] for event in steps), max(event["ts"] + event["dur"] for event in steps)
    repeated = [part for event, part in events if event["ph"] != "M" and first <= event["ts"] < last]
    once = [part for event, part in events if event["ph"] == "M"]
    parts = NUMBERED.split(",\n".join(repeated))  # text, name, number, text, name, number, …
    named = list(zip(parts[1::3], parts[2::3], strict=True))
    most = 1 + max(int(number) for name, number in named if "ts" not in name and "Profiler" not in name)
    whole = sum(map(len, parts)) + 2
    copies = max(1, round(size / whole))
    with (gzip.open if target.suffix == ".gz" else open)(target, "wt") as file:
        file.write(head + ",\n".join(once))
        for copy in range(copies):
            shifts = {"ts": copy * (last - first), "Pr": copy * len(numbers)}
            for k, (name, number) in enumerate(named):
                shift = shifts.get(name.lstrip('"')[:2], copy * most)
                parts[3 * k + 2] = f"{float(number) + shift:.3f}" if "." in number else str(int(number) + round(shift))
            file.write(",\n" + "".join(parts))
        file.write(text[at:])
    return copies * len(numbers)


def time_large(sources: list[Path], folder: Path, size: float) -> None:
    """Make a large trace of each source, and print seconds and memory of each verb that reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    targets = [folder / source.name for source in sources]
    for source, target in zip(sources, targets, strict=True):
        if not target.exists():
            enlarge_trace(source, target, size / len(sources))
    where = folder if len(targets) > 1 else targets[0]
    for verb in (["show"], ["whatif"], ["export", "-o", str(folder.with_suffix(".out.json"))]):
        words = [sys.executable, "-P", "-m", "sparsepipe", "trace", verb[0], str(where), *verb[1:], "--json"]
        began = time.monotonic()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        _, code, usage = os.wait4(process.pid, 0)
        print(
            f"{verb[0]:7} {size / 1e9:.2f} GB  {time.monotonic() - began:5.1f} s  "
            f"CPU {usage.ru_utime + usage.ru_stime:5.1f} s  memory {usage.ru_maxrss / 2**20:.2f} GiB  "
            f"load {os.getloadavg()[0]:.1f}  exit code {code >> 8}",
            flush=True,
        )


def main() -> None:
    """Run the jobs, and print a line for each."""
    if sys.argv[1:2] == ["--worker"]:
        kind, cause, rank, folder = sys.argv[2:]
        worker(kind, cause, int(rank), Path(folder))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--causes", nargs="+", choices=CAUSES, default=[*CAUSES])
    parser.add_argument("--keep", type=Path, help="folder in which the traces stay")
    parser.add_argument("--large", type=Path, metavar="FOLDER", help="time the reading of large traces, made here")
    parser.add_argument("--of", type=Path, nargs="+", metavar="FILE", help="small traces that they repeat")
    parser.add_argument("--bytes", type=float, default=1e9, help="of all large traces together, before they are packed")
    options = parser.parse_args()
    if options.large:
        time_large(options.of or parser.error("--large needs --of FILE …"), options.large, options.bytes)
        return
    import sparsepipe as sp

    with tempfile.TemporaryDirectory() as temporary:
        base = options.keep or Path(temporary)
        for kind in options.kinds:
            for cause in sorted(options.causes, key=CAUSES.index):
                traces = run_job(kind, cause, base / f"{kind}-{cause}")
                load = os.getloadavg()[0]
                answer = sp.what_if(sp.load_trace(traces))
                seconds = answer.measured_seconds
                measured = 1 - sp.what_if(sp.load_trace(traces.with_name("without"))).measured_seconds / seconds
                print(
                    f"{kind:6} {cause:7} load {load:4.1f}  step {seconds:.3f} s  cost measured {measured:6.1%}  "
                    f"answered {answer.cost:6.1%}  {answer.culprit}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
