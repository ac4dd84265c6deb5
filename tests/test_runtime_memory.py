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
    del held
print(watched.bytes())
print(PeakMemory(torch.device("cpu")).bytes())
"""


def test_the_peak_is_that_of_what_was_held_at_once() -> None:
    root = Path(__file__).resolve().parent.parent
    ran = subprocess.run([sys.executable, "-c", CODE], cwd=root, capture_output=True, text=True, check=True)
    peak, after = map(int, ran.stdout.split())
    assert 75e6 < peak < 100e6
    assert after < 20e6, "an earlier peak is forgotten"
