"""Runs over ssh on hosts that share only the code: the same losses, the same record, and nothing left anywhere."""

import json
import os
import shutil
import signal
import sys

import pytest
from hosts_desk import DATA, FLUSH, MODEL, config
from processes import until
from runtime_jobs import REPOSITORY, plan_of
from strangers import knock

from sparsepipe.io.files import cut_torn_row, read_json
from sparsepipe.plan import Plan, Stage
from sparsepipe.record import RunRecord
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.workloads import layer_graph

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_score_of_translations_is_told_though_the_last_stage_has_no_checkpoint_at_hand(desk):
    """BLEU is of the network in one piece: rank 0's host has its checkpoint, the last stage's tells of a validation."""
    pytest.importorskip("sacrebleu")
    pytest.importorskip("tokenizers")
    first, second, _ = desk.network.hosts
    for host in (first, second, desk.network.desk):
        write_pairs(host.home / "pairs")
    sizes = {"vocabulary_size": 100, "sequence_length": 8}
    config = RunConfig(
        "gnmt-small", "/run/home/pairs", data_args=json.dumps(sizes), batch_size=16, threads=1, bleu_sentences=4
    )
    layers = layer_graph(config.replace(data=str(desk.network.desk.home / "pairs"))).layers
    ids = [layer.id for layer in layers]
    stages = (Stage(tuple(ids[: len(ids) // 2]), (0,)), Stage(tuple(ids[len(ids) // 2 :]), (1,)))
    plan = Plan(stages, schedule="1f1b")
    assert desk.launch(desk.told("near", plan, config), desk.told("far", plan, config, first, second)) == [
        *("finished", "finished")
    ]
    near, far = (
        [row["validation"] for row in RunRecord(desk.folder / name).metrics() if row["event"] == "epoch"]
        for name in ("near", "far")
    )
    assert near == far and {"bleu", "bleu_sentences"} <= far[0].keys() and far[0]["bleu_sentences"] == 4


def write_pairs(folder):
    folder.mkdir()
    for split, count in (("train", 32), ("test", 8)):
        lines = [f"the {'small ' * (k % 3)}cat sees house {k % 7}" for k in range(count)]
        (folder / f"{split}.en").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{split}.de").write_text("".join(f"{line.upper()}\n" for line in lines))


def test_a_run_stopped_on_some_hosts_goes_on_on_others(desk):
    """On the second host of the first part two ranks share memory; the third gets the data, which it lacks."""
    first, second, third = desk.network.hosts
    shutil.rmtree(third.home / "shapes")
    ranks = [[0], [1], [2]]
    begun = desk.told("moved", plan_of(MODEL, ranks, **FLUSH), config(), first, second, counts=[1, 2], stop=True)
    assert desk.launch(begun) == ["stopped"]
    assert read_json(desk.folder / "moved" / "control" / "taken.json")["minibatch"] < 10
    rest = desk.told("moved", plan_of(MODEL, [[0], [1]], **FLUSH), config(), third, second, resume=True)
    assert desk.launch(rest) == ["finished"]
    assert desk.losses("moved") == desk.losses("one")
    log = (desk.folder / "moved" / "logs" / "launcher.log").read_text()
    assert f"host3: has no {DATA}, which is brought from here: " in log and "host2: has no" not in log
    shutil.copytree(second.home / "shapes", third.home / "shapes")
    desk.check_nothing_is_left()


def test_a_job_listens_on_the_networks_addresses_alone_and_strangers_are_nothing_to_it(desk):
    hosts = desk.network.hosts[:2]
    told = desk.told("long", plan_of(MODEL, [[0], [1]], **FLUSH), config(epochs=10_000, timeout_seconds=20), *hosts)
    with desk.launched(told) as process:
        for host in hosts:
            found = host.listening() - {(host.address, 22)}
            assert found and {address for address, _ in found} == {host.address}
            for told in knock(found, 80, seconds=2, command=desk.network.desk.command).values():
                assert told["unheard"] == 80 or told["shut"] > 0, "of gloo's nobody hears, others shut strangers out"
            check_a_second_user_sees_nothing(host)
        steps = desk.steps("long")
        until(lambda: process.poll() is not None or desk.steps("long") > steps + 5, "it goes on")
        (agent,) = (pid for pid, words in hosts[1].commands().items() if "sparsepipe.launchers.ssh.agent" in words)
        os.kill(agent, signal.SIGKILL)
        kind, reason = json.loads(process.stdout.readline())
    assert kind == "RunFailed" and "host2" in reason and "agent" in reason, reason
    desk.check_nothing_is_left(folders=False)
    shutil.rmtree(hosts[1].home / ".local")  # what the killed agent left: the next one does that after a minute


def check_a_second_user_sees_nothing(host):
    """Neither of a job's files, its secrets among them, nor of the memory that its ranks share."""
    looks = ("find", "/run/home/.local/state/sparsepipe", "/dev/shm", "-type", "f", "-readable")
    assert "logs/" in host.run(*looks).stdout, "there is something to see"
    assert not host.run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *looks).stdout


def test_a_worker_that_dies_is_started_again_on_every_host_and_all_end_with_whoever_launched_them(desk):
    more = {"stragglers": "kill:rank=1,at=7", "max_restarts": 1}
    told = desk.told(
        "again", plan_of(MODEL, [[0], [1]], **FLUSH), config(epochs=10_000, **more), *desk.network.hosts[1:]
    )
    with desk.launched(told) as process:
        until(lambda: process.poll() is not None or desk.steps("again") > 10, "it goes on")
        assert process.poll() is None
    desk.check_nothing_is_left()
    cut_torn_row(desk.folder / "again" / "metrics.jsonl")
    assert desk.losses("again")[:10] == desk.losses("one")
    assert "rank 1" in (desk.folder / "again" / "logs" / "launcher.log").read_text()
    until(lambda: read_json(desk.folder / "again" / "status.json")["state"] == "cancelled", "cancelled")


def test_hosts_that_cannot_be_worked_with_are_refused_in_a_line_and_nothing_is_left(desk):
    first, second, _ = desk.network.hosts
    other = second.home / "other"
    shutil.copytree(REPOSITORY / "sparsepipe", other / "sparsepipe", ignore=shutil.ignore_patterns("__pycache__"))
    changed = other / "sparsepipe" / "sizes.py"
    changed.write_text(changed.read_text() + "# another version")
    bare = second.home / "bare"  # a Python without any package
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    ends = second.home / "ends"
    ends.write_text("#!/bin/sh\nexit 1\n")
    ends.chmod(0o755)
    for words in ("link add other type veth peer name end", "addr add 192.168.9.2/24 dev other", "link set other up"):
        assert second.run("ip", *words.split()).returncode == 0
    wrong = {
        "interpreter": ({"interpreter": "/nowhere/python"}, "name its interpreter"),
        "version": ({"python_path": "/run/home/other"}, "host2: code"),
        "package": ({"interpreter": "/run/home/bare", "python_path": "/nowhere"}, "has no sparsepipe"),
        "program": ({"interpreter": "/run/home/ends"}, "is /run/home/ends a Python that runs there?"),
        "address": ({"address": "10.77.0.77"}, "no network interface there"),
        "name": ({"ssh": "host9"}, "no host of that name"),
        "apart": ({"address": "192.168.9.2"}, "host1: no network there leads to host2's address 192.168.9.2"),
        "networks": ({"address": "fd00::2"}, "addresses of different networks"),
    }
    plan = plan_of(MODEL, [[0], [1]], **FLUSH)
    told = [desk.told(name, plan, config(), first, second, last=changes) for name, (changes, _) in wrong.items()]
    told.append(desk.told("many", plan_of(MODEL, [[0], [1], [2]], **FLUSH), config(), first, second))
    remedies = [*(remedy for _, remedy in wrong.values()), "3 ranks, the cluster 2 devices"]
    for (kind, reason), remedy in zip(desk.launch(*told), remedies, strict=True):
        assert kind == "InputError" and remedy in reason and "\n" not in reason, reason
    assert second.run("hostname", "host1").returncode == 0
    ((_, reason),) = desk.launch(desk.told("twice", plan, config(), first, second))
    assert "host1 and host2 are both called 'host1'" in reason
    assert second.run("hostname", "host2").returncode == 0
    for name, changes, remedy in (
        ("verb", {"ssh": "host9"}, "no host of that name"),
        ("alike", {"address": first.address}, "the address of more than one host (host1 and host2)"),
    ):
        file = desk.cluster(name, first, second, last=changes)
        words = ["run", str(desk.folder / "twice-plan.json"), "--model", MODEL, "--data", DATA, "--cluster", str(file)]
        said = desk.network.desk.run(
            sys.executable, "-m", "sparsepipe", *words, "--run-dir", str(desk.folder / name), cwd=REPOSITORY
        )
        assert said.returncode == 2 and remedy in said.stderr.splitlines()[-1], said.stderr
    keys = second.home.parent / "keys" / "desk.pub"
    keys.write_text("")
    ((kind, reason),) = desk.launch(desk.told("key", plan, config(), first, second))
    assert kind == "InputError" and "ssh-copy-id host2" in reason
    shutil.copy(first.home.parent / "keys" / "desk.pub", keys)
    desk.check_nothing_is_left()
