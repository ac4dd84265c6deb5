"""Networks of torch modules learn real data, in a pipeline with stashed weights as in one process.

They are trained by the product's own processes, on data that are fetched once: `sparsepipe data fetch NAME`.
"""

import pytest

from sparsepipe.data import find
from sparsepipe.errors import InputError
from sparsepipe.launchers import launch
from sparsepipe.plan import Plan, Stage
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.workloads import layer_graph

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PROCESSES = {"one process": 1, "1f1b": 2}


def need(name: str) -> None:
    """Skip where a data set is nowhere here: tests fetch nothing."""
    try:
        find(name)
    except InputError as error:
        pytest.skip(str(error))


def validations(folder, config: RunConfig, processes: int) -> list[dict]:
    """Train a network cut into stages of as many layers, a process each; return what each validation reports."""
    ids = [layer.id for layer in layer_graph(config).layers]
    bounds = [round(k * len(ids) / processes) for k in range(processes + 1)]
    stages = (Stage(tuple(ids[a:b]), (k,)) for k, (a, b) in enumerate(zip(bounds, bounds[1:], strict=False)))
    with launch(Plan(tuple(stages), schedule="1f1b"), config, run_dir=folder / f"{processes}-{config.seed}") as job:
        job.wait()
    return [row["validation"] for row in job.record.metrics("epoch")]


@pytest.mark.parametrize("strategy", PROCESSES)
def test_digits_are_read(strategy, tmp_path):
    """MNIST's, 4,000 to learn from: at least 97 of 100 of the other 1,000, in the median of three seeds."""
    need("mnist-5k")
    config = RunConfig("mnist-convnet", "mnist-5k", batch_size=32, learning_rate=0.05, threads=1, checkpoint_every=0)
    config = config.replace(epochs=8, learning_rate_schedule="cosine")
    found = [validations(tmp_path, config.replace(seed=seed), PROCESSES[strategy])[-1]["accuracy"] for seed in range(3)]
    assert sorted(found)[1] >= 0.97, found
    assert min(found) >= 0.965, found
