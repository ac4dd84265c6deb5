"""Slurm: a script for sbatch that runs, on the first host of its job, the command that was given, on the job's hosts.

    #SBATCH --nodes=2 --ntasks-per-node=4        a task a rank: SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE tell of them
    exec python -m sparsepipe train PLAN … --cluster slurm

There the run is one of several hosts as any other: an agent on each, reached over ssh, which hosts let in where one's
job is (pam_slurm_adopt). Source: sbatch(1).
"""

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from ..util.host.imports import python_command
from ..util.io.fields import complaint
from ..util.text.numbers import number_of
from ..values.cluster import Cluster

_SECONDS = 60.0  # for sbatch to answer
# Option → how many words follow it, and the letters of those that follow as one word or within the same.
_LEFT_OUT = {"--launcher": 1, "--submit": 0, "--cluster": 1, "--out": 1, "--run-dir": 1, "--json": 0}
_LETTERS = ("-c", "-o")


def sbatch_script(
    words: Sequence[str], *, run_dir: Path, num_ranks: int, cluster: Cluster | None, gpus: bool = False
) -> str:
    """Return the script that runs `sparsepipe` with these words in a job: on as many hosts as `cluster`, else on one.

    `gpus`: a GPU for each rank. Raises InputError if the cluster's hosts are not identical, for those of a job are, and
    if it has fewer devices than the plan has ranks.
    """
    counts = [len(node.device_types) for node in cluster.nodes] if cluster else [num_ranks]
    if len(set(counts)) > 1:
        raise InputError(
            "slurm.heterogeneous_hosts",
            f"hosts have {' and '.join(map(str, sorted(set(counts))))} devices, but the hosts of a Slurm job must be "
            "identical; give --cluster a file with identical hosts",
        )
    if cluster and sum(counts) < num_ranks:
        raise InputError(
            "plan.ranks_not_in_cluster",
            f"the plan has {number_of(num_ranks, 'rank')}, but the cluster has {number_of(sum(counts), 'device')}; "
            "add hosts",
        )
    folder = run_dir.absolute()
    if "\n" in str(folder) or "\n" in str(Path.cwd()):
        raise InputError(
            "slurm.folder_name",
            "the folder name contains a line break, which sbatch does not accept; choose another --out",
        )
    kept = [*without(words), "--cluster", "slurm", "--out", str(folder)]
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=sparsepipe-{_plain(folder.name)}",
        f"#SBATCH --nodes={len(counts)}",
        f"#SBATCH --ntasks-per-node={counts[0]}",
        *(["#SBATCH --gpus-per-task=1"] if gpus else []),
        f"#SBATCH --output={_plain(folder.name)}-%j.out",
        f"cd {shlex.quote(str(Path.cwd()))} || exit",
        f"exec {shlex.join(python_command('sparsepipe', *kept))}",
    ]
    return "\n".join(lines) + "\n"


def submit(script: str) -> str:
    """Give a script to sbatch and return the job's number. Raises InputError in one line if that fails."""
    if shutil.which("sbatch") is None:
        raise InputError(
            "slurm.no_sbatch",
            "sbatch not found on this machine; omit --submit to print the script, then submit it on a login node",
        )
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"], input=script, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            "slurm.timeout", f"sbatch did not answer within {_SECONDS:.0f} s; check squeue before you submit again"
        ) from None
    if done.returncode:
        raise InputError(
            "slurm.refused",
            f"sbatch refused the job ({complaint(done.stderr)}); omit --submit to print and check the script",
        )
    return done.stdout.strip().split(";")[0]


def without(words: Sequence[str]) -> list[str]:
    """The words of a command without the options that only name its hosts or the form of its answer."""
    kept, skipped = [], 0
    for word in words:
        name, equals, _ = word.partition("=")
        if skipped:
            skipped -= 1
        elif word[:2] in _LETTERS:
            skipped = int(len(word) == 2)
        elif full := next((full for full in _LEFT_OUT if len(name) > 2 and full.startswith(name)), ""):  # or shortened
            skipped = 0 if equals else _LEFT_OUT[full]
        else:
            kept.append(word)
    return kept


def _plain(name: str) -> str:
    """A name with nothing in it that sbatch would read in its own way."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "_" for letter in name)
