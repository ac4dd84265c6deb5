"""What glibc's malloc does with freed memory, in a process of its own: others' heaps have their holes elsewhere."""

import resource
import subprocess
import sys

import pytest
import torch

from sparsepipe.engines.allocator import keep_freed_memory

_NO_MALLOPT = 77


@pytest.mark.slow
def test_freed_memory_stays() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    if done.returncode == _NO_MALLOPT:
        pytest.skip("the C library here has no mallopt")
    assert done.returncode == 0, done.stderr


def _allocate_and_free() -> None:
    """Tensors of 64 MiB in all, freed, leave their pages to the next ones; so does one that large."""
    if not keep_freed_memory():
        sys.exit(_NO_MALLOPT)
    for count in (16, 1):
        faults = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            tensors = [torch.ones(2**24 // count) for _ in range(count)]
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
            del tensors
        assert min(faults[1:]) < 2**24 * 4 / resource.getpagesize() / 4, (count, faults)


if __name__ == "__main__":
    _allocate_and_free()
