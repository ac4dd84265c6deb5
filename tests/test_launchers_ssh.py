"""Runs over ssh on hosts that share only the code: the same losses, the same record, and nothing left anywhere."""

import json
import shutil

import pytest
from coded import mentions
from hosts_desk import DATA, FLUSH, MODEL, config
from processes import until
from runtime_jobs import REPOSITORY, plan_of
from strangers import knock

from sparsepipe.records import RunRecord
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.workloads import layer_graph
from sparsepipe.runtime.workloads.resolved import resolve
from sparsepipe.util.io.files import cut_torn_row, read_json
from sparsepipe.values.plan import Plan, Stage

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
    layers = layer_graph(resolve(config.replace(data=str(desk.network.desk.home / "pairs")))).layers
    ids = [layer.id for layer in layers]
    stages = (Stage(tuple(ids[: len(ids) // 2]), (0,)), Stage(tuple(ids[len(ids) // 2 :]), (1,)))
    plan, whole = Plan(stages, **FLUSH), Plan((Stage(tuple(ids), (0,)),), **FLUSH)
    told = desk.told("near", whole, config), desk.told("far", plan, config, first, second)
    assert desk.launch(*told) == ["finished"] * 2
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
    """On the host of the first part two ranks share memory; the third gets the data, which it lacks."""
    _, second, third = desk.network.hosts
    shutil.rmtree(third.home / "shapes")
    begun = desk.told("moved", plan_of(MODEL, [[0], [1]], **FLUSH), config(), second, counts=[2], stop=True)
    assert desk.launch(begun) == ["stopped"]
    assert read_json(desk.folder / "moved" / "control" / "taken.json")["minibatch"] < 10
    rest = desk.told("moved", plan_of(MODEL, [[0], [1]], cuts=(4,), **FLUSH), config(), third, second, resume=True)
    assert desk.launch(rest) == ["finished"]
    assert desk.losses("moved") == desk.losses("one")
    log = (desk.folder / "moved" / "logs" / "launcher.log").read_text()
    assert mentions(log, "host3", DATA) and "host2: has no" not in log
    shutil.copytree(second.home / "shapes", third.home / "shapes")
    desk.check_nothing_is_left()


def test_a_job_is_closed_to_strangers_survives_a_worker_and_ends_with_whoever_launched_it(desk):
    """It listens on the network's addresses alone. The worker dies first, and is started again on every host."""
    hosts, own = desk.network.hosts[:2], {"max_restarts": 1, "timeout_seconds": 20}
    own["stragglers"] = "kill:rank=1,at=7;jitter:p=1,seconds=0.1"  # it leaves the processors to what is waited for
    told = desk.told("long", plan_of(MODEL, [[0], [1]], **FLUSH), config(epochs=10_000, **own), *hosts)
    with desk.launched(told) as process:
        until(lambda: process.poll() is not None or desk.steps("long") > 10, "it goes on after the death")
        for host in hosts:
            found = host.listening() - {(host.address, 22)}
            assert found and {address for address, _ in found} == {host.address}
            for heard in knock(found, 80, seconds=1, command=desk.network.desk.command).values():
                assert heard["unheard"] == 80 or heard["shut"] > 0, "of gloo's nobody hears, others shut strangers out"
            check_a_second_user_sees_nothing(host)
        steps = desk.steps("long")
        until(lambda: process.poll() is not None or desk.steps("long") > steps + 5, "it goes on")
        assert process.poll() is None
    desk.check_nothing_is_left()
    cut_torn_row(desk.folder / "long" / "metrics.jsonl")
    assert desk.losses("long")[:10] == desk.losses("one")
    assert "rank 1" in (desk.folder / "long" / "logs" / "launcher.log").read_text()
    until(lambda: read_json(desk.folder / "long" / "status.json")["state"] == "cancelled", "cancelled")


def check_a_second_user_sees_nothing(host):
    """Neither of a job's files, its secrets among them, nor of the memory that its ranks share."""
    looks = ("find", "/run/home/.local/state/sparsepipe", "/dev/shm", "-type", "f", "-readable")
    assert "logs/" in host.run(*looks).stdout, "there is something to see"
    assert not host.run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *looks).stdout


def test_hosts_that_cannot_be_worked_with_are_refused_in_a_line_and_nothing_is_left(desk):
    first, second, third = desk.network.hosts
    other = second.home / "other"
    shutil.copytree(REPOSITORY / "sparsepipe", other / "sparsepipe", ignore=shutil.ignore_patterns("__pycache__"))
    changed = other / "sparsepipe" / "util" / "text" / "numbers.py"
    changed.write_text(changed.read_text() + "# another version")
    for words in ("link add other type veth peer name end", "addr add 192.168.9.2/24 dev other", "link set other up"):
        assert second.run("ip", *words.split()).returncode == 0
    wrong = {
        "interpreter": ({"interpreter": "/nowhere/python"}, "name its interpreter"),
        "version": ({"python_path": "/run/home/other"}, "host2: code"),
        "apart": ({"address": "192.168.9.2"}, "host1: cannot reach host2's address 192.168.9.2"),
    }
    plan = plan_of(MODEL, [[0], [1]], **FLUSH)
    told = [desk.told(name, plan, config(), first, second, last=changes) for name, (changes, _) in wrong.items()]
    told.append(desk.told("key", plan, config(), first, third))
    (third.home.parent / "keys" / "desk.pub").write_text("")
    remedies = [*(remedy for _, remedy in wrong.values()), "ssh-copy-id host3"]
    for (kind, reason), remedy in zip(desk.launch(*told), remedies, strict=True):
        assert kind == "InputError" and remedy in reason and "\n" not in reason, reason
    shutil.copy(first.home.parent / "keys" / "desk.pub", third.home.parent / "keys")
    desk.check_nothing_is_left()
