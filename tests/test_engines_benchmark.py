"""The engines' benchmark, run for real on its smallest case: what it writes hangs together. Times are not judged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "bench_engines.py"
NAME = "minkvgg16bn-narrow on modelnet"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_benchmark_on_synthetic_shapes(tmp_path):
    command = [sys.executable, str(SCRIPT), "--threads", "1", "--rounds", "1", "--cases", NAME]
    command += ["--json", str(tmp_path / "found.json")]
    environment = os.environ | {"SPARSEPIPE_DATA": str(tmp_path)}  # no real data there
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=580)
    found = json.loads((tmp_path / "found.json").read_text())
    part = found["threads"]["1"]
    assert part["clouds"]["modelnet"].startswith("synthetic: CAD-like shapes")
    assert "synthetic: CAD-like shapes" in done.stdout
    step = part["steps"][NAME]
    assert step["seconds"].pop("products")["step"]["median"] > 0
    for name, seconds in step["seconds"].items():
        assert seconds["step_with_sgd"]["median"] > 0 < seconds["step"]["median"], name
    assert {"native", "native-bf16", "native-warm-maps"} <= set(step["seconds"])
    convolutions = part["convolutions"][NAME]["each"]
    assert len(convolutions) == 9  # distinct shapes of MinkVGG16's thirteen
    assert all(value["convolution_over_products"]["median"] > 0 for value in convolutions.values())
    assert found["memory"][NAME]["bytes"]["native"]["median"] > 2**20
    assert found["device"]
    assert len(found["load_average_before"]) == 3
