"""The engines' benchmark on its smallest case: what it measures hangs together. Times are not judged."""

from argparse import Namespace

import pytest
from engine_clouds import random_batch

from scripts.bench.engines.cases import Case
from scripts.bench.engines.children import run_child
from scripts.bench.engines.report import tables
from scripts.bench.engines.rounds import spread, time_convolutions, time_steps
from sparsepipe.engines import engine

CASE = Case("minkvgg16bn-narrow", "modelnet")


@pytest.mark.slow
def test_benchmark_on_synthetic_shapes(tmp_path, monkeypatch):
    """Memory is measured in a process of its own, of shapes that it makes there."""
    monkeypatch.setenv("SPARSEPIPE_DATA", str(tmp_path))  # no real data there
    native, batch = engine("native"), random_batch(channels=1, reach=20, num_points=400)
    step = time_steps(CASE, batch, {"native": native}, {}, rounds=1)
    assert set(step["seconds"]) == {"native", "native-bf16", "native-warm-maps", "products"}
    assert step["seconds"]["products"]["step"]["median"] > 0
    for name in ("native", "native-bf16", "native-warm-maps"):
        seconds = step["seconds"][name]
        assert seconds["step_with_sgd"]["median"] > 0 < seconds["step"]["median"], name
    convolutions = time_convolutions(CASE, batch, native, rounds=1)
    assert len(convolutions["each"]) == 9  # distinct shapes of MinkVGG16's thirteen
    assert all(value["convolution_over_products"]["median"] > 0 for value in convolutions["each"].values())
    options = Namespace(rounds=1, engines=["native"], parts=["memory"], scratch=str(tmp_path))
    found = run_child(options, 1, "memory", CASE, "--engine", "native")["bytes"]
    assert found > 2**20
    part = {"clouds": {}, "steps": {CASE.name: step}, "convolutions": {CASE.name: convolutions}}
    document = {"device": "cpu", "processors": 1, "load_average_after": (0, 0, 0), "rounds": 1, "threads": {"1": part}}
    assert tables({**document, "memory": {CASE.name: {"bytes": {"native": spread([found])}}}}).count(CASE.name) == 3
