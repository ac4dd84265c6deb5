"""The peak of a process, against allocations of known size."""

import os
import subprocess
import sys
from pathlib import Path

# In a process of its own: memory that earlier work freed and the allocator kept is used again without growing it.
CODE = """
import torch
from sparsepipe.runtime.reporting.memory import PeakMemory
watched = PeakMemory(torch.device("cpu"))
for _ in range(3):
    held = [torch.ones(4_000_000) for _ in range(5)]  # 80 MB, one after the other
    del held[2:]
    watched.look()
    del held
print(watched.bytes())
print(watched.held_bytes)
del watched
inside = PeakMemory(torch.device("cpu"))
scale, weight = torch.ones(1, requires_grad=True), torch.ones(10_000_000, requires_grad=True)  # 40 MB
loss = ((torch.ones(10_000_000) * scale).exp() * weight).sum()  # saves 80 MB
inside.look()
print(inside.held_bytes)
with inside.looking_inside([weight, scale]):
    gradients = torch.autograd.grad(loss, [weight, scale])  # the first of 40 MB, with all that was saved still there
print(inside.held_bytes)
del inside, gradients, loss, scale, weight
print(PeakMemory(torch.device("cpu")).bytes())
"""


def test_the_peak_and_what_was_held_between_looks() -> None:
    root = Path(__file__).resolve().parent.parent
    # glibc keeps freed memory or not, by where the heap came to lie, and the peak counts it: here it keeps none.
    exact = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    ran = subprocess.run([sys.executable, "-c", CODE], cwd=root, env=exact, capture_output=True, text=True, check=True)
    peak, held, forward, backward, after = map(int, ran.stdout.split())
    assert 75e6 < peak < 100e6
    assert 32e6 <= held < 34e6, "what came and went between two looks is not held"
    assert 120e6 <= forward < 125e6
    assert 160e6 <= backward < 210e6, "a backward is looked into"
    assert after < 20e6, "an earlier peak is forgotten"
