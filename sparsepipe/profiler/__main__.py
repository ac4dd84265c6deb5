"""`python -m sparsepipe.profiler SETTINGS`: a contending process, which trains while another process profiles."""

import json
import sys
from typing import Any

from ..engines import Subnetwork
from ..engines import engine as engine_by_name
from ..host.contention import exit_with_parent, report_started
from .layer_timer import update_step, whole_step
from .measure import limited_to, opened, optimizer, usable


def train_until_killed(model: str, source: str, *, engine: str, device: str, threads: int, **sizes: Any) -> None:
    """Train on one minibatch of the data set again and again, until the process that profiles ends this one."""
    exit_with_parent()
    net, dataset, order = opened(model, source, **sizes)
    batch, place = dataset.batch(order[0]), usable(device)
    subnetwork = Subnetwork(net, engine_by_name(engine), seed=0).to(place)
    updates = optimizer(subnetwork)
    with limited_to(threads):
        whole_step(subnetwork, batch, device=place)
        report_started()
        while True:
            whole_step(subnetwork, batch, device=place)
            update_step(updates, device=place)


if __name__ == "__main__":
    train_until_killed(**json.loads(sys.argv[1]))
