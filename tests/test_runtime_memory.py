"""The peak of a process, against allocations of known size."""

import torch

from sparsepipe.runtime.memory import PeakMemory


def test_the_peak_is_that_of_what_was_held_at_once() -> None:
    watched = PeakMemory(torch.device("cpu"))
    for _ in range(3):
        held = [torch.ones(4_000_000) for _ in range(5)]  # 80 MB, one after the other
        del held
    assert 75e6 < watched.bytes() < 100e6
    again = PeakMemory(torch.device("cpu"))
    assert again.bytes() < 20e6, "an earlier peak is forgotten"
