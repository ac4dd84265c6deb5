"""What one process does, by name: a competitor's part, or a measurement's."""

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import torch

from sparsepipe.runtime.processes import signs_of_life

from .cases import CASES
from .channel import role_channel, role_link
from .competitors import role_ddp, role_single
from .pipeline import role_flush, role_overhead, role_pipeline, role_profile
from .rounds import TORCH
from .torch_schedules import role_torch_1f1b, role_torch_settings

ROLES = {
    "overhead": role_overhead,
    "channel": role_channel,
    "link": role_link,
    "single": role_single,
    "ddp": role_ddp,
    "ddp_double": role_ddp,
    "torch_1f1b": role_torch_1f1b,
    "torch_1f1b_larger": role_torch_1f1b,
    "torch_settings": role_torch_settings,
    "profile": role_profile,
    "pipeline": role_pipeline,
    "flush": role_flush,
}


def work(options: argparse.Namespace) -> int:
    """Do the role that the options name, write what it found, and end this process."""
    signs_of_life.watch()
    os.environ.pop(signs_of_life.VARIABLE, None)  # it is of this process alone
    torch.set_num_threads(1)
    extra = {"cut": options.cut, "count": options.microbatches} if options.role in TORCH else {}
    extra |= {"shared_memory": False} if options.sockets else {}
    case = CASES[options.workload[0]]
    case = replace(case, batch_size=options.batch_size or case.batch_size)
    found = ROLES[options.role](case, Path(options.folder), options.seconds, **extra)
    found["cpu_seconds"] = time.process_time()
    Path(options.output).write_text(json.dumps(found))
    os._exit(0)  # not waiting for anybody's threads
