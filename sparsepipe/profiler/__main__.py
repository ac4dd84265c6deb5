"""`python -m sparsepipe.profiler SETTINGS`: trains beside a process that profiles, which so is measured in company."""

import json
import sys
from typing import Any

from ..engines import Subnetwork
from ..engines import engine as engine_by_name
from ..host.contention import leave_with_who_asked, say_at_work
from .layer_timer import update_step, whole_step
from .measure import limited_to, opened, optimizer, usable


def keep_company(model: str, source: str, *, engine: str, device: str, threads: int, **sizes: Any) -> None:
    """Train on a minibatch of the data set again and again, beside the process that profiles."""
    leave_with_who_asked()
    net, dataset, order = opened(model, source, **sizes)
    batch, place = dataset.batch(order[0]), usable(device)
    subnetwork = Subnetwork(net, engine_by_name(engine), seed=0).to(place)
    updates = optimizer(subnetwork)
    with limited_to(threads):
        whole_step(subnetwork, batch, device=place)
        say_at_work()
        while True:
            whole_step(subnetwork, batch, device=place)
            update_step(updates, device=place)


if __name__ == "__main__":
    keep_company(**json.loads(sys.argv[1]))
