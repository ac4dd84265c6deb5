"""The peak of a process, against allocations of known size."""

import subprocess
import sys
from pathlib import Path

# In a process of its own: memory that earlier work freed and the allocator kept is used again without growing it.
CODE = """
import torch
from sparsepipe.runtime.memory import PeakMemory
watched = PeakMemory(torch.device("cpu"))
for _ in range(3):
    held = [torch.ones(4_000_000) for _ in range(5)]  # 80 MB, one after the other
    del held[2:]
    watched.look()
    del held
print(watched.bytes())
print(watched.held_bytes)
print(PeakMemory(torch.device("cpu")).bytes())
"""


def test_the_peak_and_what_was_held_between_looks() -> None:
    root = Path(__file__).resolve().parent.parent
    ran = subprocess.run([sys.executable, "-c", CODE], cwd=root, capture_output=True, text=True, check=True)
    peak, held, after = map(int, ran.stdout.split())
    assert 75e6 < peak < 100e6
    assert 32e6 <= held < 34e6, "what came and went between two looks is not held"
    assert after < 20e6, "an earlier peak is forgotten"
