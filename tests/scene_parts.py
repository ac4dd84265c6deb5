"""Scenes shared by threads of one process: gloo between them, a part each, and what one device computes of the same."""

import threading
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist


@dataclass(eq=False)
class GlooThreads:
    """The member of `SceneGroup` for a thread, over a gloo process group that only this process knows."""

    store: dist.Store
    part: int
    num_parts: int
    sent_rows: list = field(default_factory=list)  # (rows, bytes) of each exchange of features

    def __post_init__(self):
        self.gloo = dist.ProcessGroupGloo(self.store, self.part, self.num_parts, timedelta(seconds=60))

    def gather(self, own):
        found = [torch.empty_like(own) for _ in range(self.num_parts)]
        self.gloo.allgather([found], [own.contiguous()]).wait()
        return found

    def sum(self, own):
        self.gloo.allreduce([own]).wait()

    def exchange(self, rows, sent, received):
        found = rows.new_empty(sum(received), *rows.shape[1:])
        self.gloo.alltoall_base(found, rows.contiguous(), list(received), list(sent)).wait()
        if rows.is_floating_point():
            self.sent_rows.append((len(rows), rows.nbytes))
        return found


def in_threads(num_parts, work):
    """Return what `work(group)` returns in each of so many threads."""
    store, found, failures = dist.HashStore(), [None] * num_parts, []

    def run(part):
        try:
            found[part] = work(GlooThreads(store, part, num_parts))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(part,)) for part in range(num_parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return found
