"""Scripts for sbatch: what is asked of Slurm, and that the script is the run that was asked for."""

import json
import os
import socket
import subprocess

import pytest
from coded import raises
from command_line import sparsepipe

from sparsepipe import Cluster, DeviceType, Node, Plan, RunRecord, Stage
from sparsepipe.data import make_shapes
from sparsepipe.launching.slurm import sbatch_script, submit, without
from sparsepipe.networks import network

SBATCH = """\
#!/bin/sh
[ "$1" = --parsable ] && cat > "$0.script" && echo "4711;cluster"
"""


def hosts(*counts: int) -> Cluster:
    return Cluster(tuple(Node(f"h{k}", (DeviceType("cpu"),) * count) for k, count in enumerate(counts)))


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["run", "p.json", "--launcher", "slurm", "--submit", "--epochs", "2"], ["run", "p.json", "--epochs", "2"]),
        (["run", "--launcher=slurm", "p.json", "--json"], ["run", "p.json"]),
        (["run", "p.json", "--launch", "slurm", "--clus", "hosts", "--run-dir", "x"], ["run", "p.json"]),
        (["train", "p.json", "-c", "hosts", "-ox", "-s", "seed=1"], ["train", "p.json", "-s", "seed=1"]),
        (["run", "p.json", "--model-args", '{"a": 1}'], ["run", "p.json", "--model-args", '{"a": 1}']),
    ],
)
def test_the_command_in_the_job_is_the_one_given(words, kept):
    assert without(words) == kept


def test_what_is_asked_of_slurm(tmp_path):
    folder = tmp_path / 'it\'s a "run"'
    words = ["run", "my plan.json", "--launcher", "slurm"]
    script = sbatch_script(words, run_dir=folder, num_ranks=8, cluster=hosts(4, 4), gpus=True)
    asked = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]
    assert {"--nodes=2", "--ntasks-per-node=4", "--gpus-per-task=1", "--job-name=sparsepipe-it_s_a__run_"} <= set(asked)
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    last = script.splitlines()[-1].removeprefix("exec ")
    told = subprocess.run(["bash", "-c", f"printf '%s\\n' {last}"], capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[1:] == [
        "-P",
        "-m",
        "sparsepipe",
        "run",
        "my plan.json",
        "--cluster",
        "slurm",
        "--out",
        str(folder),
    ]
    alone = sbatch_script(words, run_dir=folder, num_ranks=3, cluster=None)
    assert "--nodes=1\n" in alone and "--ntasks-per-node=3\n" in alone and "gpus" not in alone


@pytest.mark.parametrize(
    ("cluster", "error"),
    [
        (hosts(4, 2), ("slurm.heterogeneous_hosts", "2 and 4")),
        (hosts(3, 3), ("plan.ranks_not_in_cluster", "8 ranks", "6 devices")),
    ],
)
def test_what_slurm_cannot_give_is_refused(tmp_path, cluster, error):
    with raises(*error):
        sbatch_script(["run", "p.json"], run_dir=tmp_path, num_ranks=8, cluster=cluster)


def test_a_job_is_submitted_by_sbatch(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises("slurm.no_sbatch"):
        submit("#!/bin/bash\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(SBATCH)
    sbatch.chmod(0o755)
    assert submit("#!/bin/bash\n") == "4711" and (tmp_path / "sbatch.script").read_text() == "#!/bin/bash\n"
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    with raises("slurm.refused"):
        submit("#!/bin/bash\n")


@pytest.mark.slow
def test_the_printed_script_trains(tmp_path):
    """Run by bash as Slurm would run it, with the variables of a job on this host."""
    data = make_shapes(tmp_path / "shapes", num_train=2, num_test=1, seed=0)
    model = "minkvgg11bn-narrow"
    ids = [layer.id for layer in network(model, num_classes=2).graph().layers]
    Plan((Stage(tuple(ids[1:6]), (0,)), Stage(tuple(ids[6:]), (1,)))).save(tmp_path / "plan.json")
    words = ["run", "plan.json", "--model", model, "--data", data, "--voxel-size", 0.1, "--batch-size", 4]
    words += ["--minibatches", 2, "--no-validation", "--run-dir", "it ran"]
    code, out, lines = sparsepipe(*words, "--launcher", "slurm", "--json", folder=tmp_path)
    assert code == 2 and "in no stage" in lines[-1] and lines[-1].endswith("[plan.violations]")
    Plan((Stage(tuple(ids[:6]), (0,)), Stage(tuple(ids[6:]), (1,)))).save(tmp_path / "plan.json")
    code, out, lines = sparsepipe(*words, "--launcher", "slurm", "--json", folder=tmp_path)
    assert code == 0, lines
    script = json.loads(out)["script"]
    assert "#SBATCH --ntasks-per-node=2\n" in script and not (tmp_path / "it ran").exists()
    job = {"SLURM_JOB_NODELIST": socket.gethostname(), "SLURM_TASKS_PER_NODE": "2"}
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True, env=os.environ | job, check=False)
    assert done.returncode == 0, done.stderr
    assert RunRecord.load(tmp_path / "it ran").status["state"] == "finished"
