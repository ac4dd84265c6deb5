"""`sparsepipe run … --launcher slurm`: the script for sbatch, printed or submitted."""

import argparse
from pathlib import Path

from ..cluster import Cluster
from ..errors import InputError
from ..launchers.slurm import sbatch_script, submit
from ..pipelines import Pipelines
from ..plan import Plan
from .output import Answer


def for_slurm(
    options: argparse.Namespace, *, run_dir: Path, plan: Plan | Pipelines, cluster: Cluster | None, gpus: bool
) -> Answer:
    """The script that runs this command in a job, with `--submit` the job too. Nothing of the run is begun here.

    Raises InputError for what Slurm cannot give.
    """
    if options.detach:
        raise InputError("--detach with --launcher slurm, whose jobs outlive a terminal by themselves: leave it out")
    script = sbatch_script(options.words, run_dir=run_dir, num_ranks=len(plan.ranks), cluster=cluster, gpus=gpus)
    document = {"script": script, "run_dir": str(run_dir)}
    if not options.submit:
        return Answer(document, script.rstrip("\n"))
    job = submit(script)
    return Answer(document | {"job": job}, f"job {job}: squeue -j {job} shows it; its run is in {run_dir}")
