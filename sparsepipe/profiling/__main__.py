"""`python -m sparsepipe.profiling SETTINGS`: a contending process, which trains while another process profiles."""

import json
import sys

from ..engines.subnetwork import build
from ..runtime.config import RunConfig
from ..runtime.workloads.resolved import resolve
from ..util.host.background_load import exit_with_parent, report_started
from .devices import limited_to, usable
from .layer_timer import Updates, update_step, whole_step
from .of_model import opened


def train_until_killed(config: RunConfig) -> None:
    """Train on one minibatch of the data set again and again, until the process that profiles ends this one."""
    exit_with_parent()
    task, order = opened(resolve(config))
    batch, device = task.training.batch(order[0]), usable(config.device)
    subnetwork = build(task.network, task.engine, seed=0).to(device)
    updates = Updates(subnetwork)
    with limited_to(config.threads or 1):
        whole_step(subnetwork, batch, device=device)
        report_started()
        while True:
            whole_step(subnetwork, batch, device=device)
            update_step(updates, device=device)


if __name__ == "__main__":
    train_until_killed(RunConfig.from_json(json.loads(sys.argv[1])))
