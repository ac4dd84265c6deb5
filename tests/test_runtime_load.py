"""What ranks learn of their hosts' load: ranks of one host are no other load to each other."""

import math
from types import SimpleNamespace

import pytest
import torch

from sparsepipe.runtime.reporting import memory
from sparsepipe.runtime.reporting.memory import shared_load, worst_load
from sparsepipe.util.host.background_load import BackgroundLoad, Usage


class Gathered:
    """Rank 0 of three, after what the other two have told: one shares its host, one does not."""

    rank, world_size = 0, 3

    def __init__(self, others):
        self.others = list(others)

    def sum(self, values, *, what):
        return values + self.others.pop(0)


def test_ranks_of_a_host_are_no_other_load_to_each_other(monkeypatch):
    """Two processors busy for 9 of 10 s each: 6 s are rank 0's, 8 s are rank 1's beside it; rank 2 is elsewhere."""
    monkeypatch.setattr(memory, "_host", lambda: 5.0)
    monkeypatch.setattr(memory, "num_processors", lambda: 2)
    monkeypatch.setattr("sparsepipe.util.host.background_load.num_processors", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    told = torch.tensor([[0, 0, 0], [5, 8, 2], [6, 9, 1]], dtype=torch.float64)
    nan = math.nan
    shares = torch.tensor([[0] * 5, [0.1, 0.2, nan, nan, 1.5], [0.3, nan, 0.02, nan, 0.5]], dtype=torch.float64)
    start, end = (Usage(at, at * 0.6, {"1": (at, 0.0)}, busy=at * 1.8, stolen=None) for at in (0.0, 10.0))
    found = shared_load(Gathered([told, shares]), start, end)
    assert found == BackgroundLoad(0.3, 0.2, 0.02, None, 1.5).to_json()
    quiet = torch.tensor([[0] * 5, [nan] * 5, [nan] * 5], dtype=torch.float64)
    found = shared_load(Gathered([told, quiet]), start, end)
    assert found == BackgroundLoad(0.0, pytest.approx(0.2), None, None, 1.5).to_json()


def test_a_run_of_one_process_and_epochs_from_before_anybody_looked():
    alone = SimpleNamespace(rank=0, world_size=1, sum=lambda values, what: values)
    start, end = Usage(0.0, 0.0), Usage(10.0, 9.0)
    found = shared_load(alone, start, end)
    crowd = found.pop("threads_per_processor")
    assert set(found.values()) == {None} and crowd > 0
    rows = [{"load": found | {"steal_share": 0.2}}, {"loss": 1.0}, {"load": None}, {"load": {"steal_share": 0.1}}]
    assert worst_load(rows) == BackgroundLoad(steal_share=0.2).to_json()
