"""Runs over ssh with --encrypt: the same losses to the bit, and nothing in clear on the network between the hosts."""

import json
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import numpy as np
import pytest
from hosts_desk import DATA, FLUSH, MODEL, config
from processes import ENOUGH
from runtime_jobs import REPOSITORY, plan_of

from sparsepipe.record import RunRecord
from sparsepipe.runtime import replan_request
from sparsepipe.runtime.forward_only import PREDICTIONS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

IN_THREES = FLUSH | {"num_microbatches": 3}
EPOCHS = 4
# Counts what passes a switch: bytes, and frames with zeros in a row, by what they are. What is encrypted looks random;
# packets' headers, gloo's messages and sums of few values have zeros in a row. A greeting names rank and tag in 16
# bytes; keys are agreed upon in records that begin with 0x16; ssh looks after itself.
LISTEN = """
    import json, select, socket, sys
    heard = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
    heard.setsockopt(socket.SOL_SOCKET, 33, 2**26)  # SO_RCVBUFFORCE
    print("listening", flush=True)
    found = {"bytes": 0, "clear": 0, "encrypted": 0}
    while True:
        ready, _, _ = select.select([heard, sys.stdin], [], [])
        if heard not in ready:
            break
        frame = heard.recv(2**17)
        if frame[12:14] != b"\\x08\\x00" or frame[23] != 6:
            continue
        tcp = 14 + 4 * (frame[14] & 15)
        ports = {int.from_bytes(frame[at : at + 2], "big") for at in (tcp, tcp + 2)}
        payload = frame[tcp + 4 * (frame[tcp + 12] >> 4) : 14 + int.from_bytes(frame[16:18], "big")]
        if 22 in ports or payload[:2] == b"\\x16\\x03":
            continue
        found["bytes"] += len(payload)
        found["clear"] += bytes(24) in payload
        found["encrypted"] += payload[:3] == b"\\x17\\x03\\x03"
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def in_threes(desk):
    """The losses of one device that updates after three minibatches."""
    told = desk.told("unmoved", plan_of(MODEL, [[0]], **IN_THREES), config(epochs=EPOCHS, checkpoint_every=0))
    assert desk.launch(told) == ["finished"]
    return desk.losses("unmoved")


@contextmanager
def listened_to(network, found):
    """Listen to the switch between the hosts to the end of the block; put into `found` what passed it meanwhile."""
    words = [sys.executable, "-I", "-c", textwrap.dedent(LISTEN)]
    command = ["nsenter", "-t", str(network.switch.pid), "-n", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as listener:
        try:
            assert listener.stdout.readline() == "listening\n"
            yield
            found |= json.loads(listener.communicate("", timeout=ENOUGH)[0])
        finally:
            listener.kill()


def test_what_passes_between_hosts_is_encrypted_and_the_losses_are_those_without(desk, in_threes):
    """Packets, sums over all ranks, and averages over replicas, two of which share a host.

    Those are summed within their host first. They are the last stage's: each host tells of the losses of its own
    minibatches, and the record has them all.
    """
    hosts, plan, heard = desk.network.hosts, plan_of(MODEL, [[0], [1, 2, 3]], **IN_THREES), {}
    for name, encrypt in (("open", False), ("sealed", True)):
        heard[name] = {}
        told = desk.told(name, plan, config(encrypt=encrypt, synchronised_batch_norm=True), *hosts, counts=[1, 2, 1])
        with listened_to(desk.network, heard[name]):
            assert desk.launch(told) == ["finished"]
        desk.check_nothing_is_left()
    sealed, in_clear = desk.losses("sealed"), desk.losses("open")
    assert sealed and sealed == pytest.approx(in_clear, rel=1e-4)  # gloo adds three replicas' up in another order
    assert in_clear == pytest.approx(in_threes[: len(in_clear)], rel=2e-4, abs=2e-5), "like one device"
    averaged = {span.rank for span in RunRecord.load(desk.folder / "open").trace().spans if span.kind == "average"}
    assert averaged == {1, 2, 3}
    assert heard["open"]["clear"] > 10 and heard["open"]["encrypted"] == 0, heard
    assert heard["sealed"]["clear"] == 0 and heard["sealed"]["encrypted"] > 10, heard


def test_stages_on_three_hosts_have_the_losses_of_one_device_to_the_bit(desk):
    """Without encryption they have, too: test_launchers_replan_hosts.py and "moved" of test_launchers_ssh.py."""
    told = desk.told("stages", plan_of(MODEL, [[0], [1], [2]], **FLUSH), config(encrypt=True), *desk.network.hosts)
    heard = {}
    with listened_to(desk.network, heard):
        assert desk.launch(told) == ["finished"]
    assert desk.losses("stages") == desk.losses("one")
    assert heard["clear"] == 0 and heard["encrypted"] > 10, heard
    record = RunRecord.load(desk.folder / "stages")
    assert {span.rank for span in record.trace().spans} == {0, 1, 2}
    summary = [row for row in record.metrics() if row["event"] == "summary"]
    assert [row["run_dir"] for row in summary] == [str(record.folder)]
    newest = record.folder / "checkpoints" / "minibatch-00000010"
    assert {path.name for path in newest.iterdir()} == {"manifest.json", *(f"stage{k}.safetensors" for k in range(3))}
    desk.check_nothing_is_left()


def test_replicas_on_hosts_train_like_one_device_also_when_they_are_started_again(desk):
    """Three replicas of the last stage, of which two share a host; one of them dies after the first checkpoint."""
    more = {"stragglers": "kill:rank=2,at=6", "max_restarts": 1}
    plan = plan_of(MODEL, [[0], [1, 2, 3]], **FLUSH)
    told = desk.told("replicas", plan, config(encrypt=True, **more), *desk.network.hosts, counts=[1, 2, 1])
    heard = {}
    with listened_to(desk.network, heard):
        assert desk.launch(told) == ["finished"]
    assert desk.losses("replicas") == pytest.approx(desk.losses("one"), rel=2e-4, abs=2e-5)  # sums in another order
    assert heard["clear"] == 0 and heard["encrypted"] > 10, heard
    record = RunRecord.load(desk.folder / "replicas")
    assert [row["minibatches"] for row in record.metrics("resume")] == [5]
    desk.check_nothing_is_left()


def test_a_plan_that_changes_while_hosts_train_goes_through_tls_too(desk, in_threes):
    """Layers change hands, and other replicas average, two of which share a host."""
    ranks, heard, folder = [[0], [1, 2, 3]], {}, desk.folder / "replanned"
    before, after = (plan_of(MODEL, own, cuts=(cut,), **IN_THREES) for own, cut in ((ranks, 7), ([[3, 1, 2], [0]], 4)))
    slow = config(encrypt=True, stragglers="jitter:rank=0,p=1,seconds=1", epochs=EPOCHS, checkpoint_every=0)
    run = desk.told("replanned", before, slow, *desk.network.hosts, counts=[1, 2, 1])
    with listened_to(desk.network, heard), desk.launched(run) as process:
        replan_request.leave(folder, after)
        said = process.communicate(timeout=ENOUGH)[0]
    assert json.loads(said) == "finished"
    assert [followed.plan for followed in RunRecord.load(folder).plans] == [before, after]
    assert [row["event"] for row in RunRecord.load(folder).metrics()].count("replan") == 1
    assert desk.losses("replanned") == pytest.approx(in_threes, rel=2e-4, abs=2e-5)
    assert heard["clear"] == 0 and heard["encrypted"] > 10, heard
    desk.check_nothing_is_left()


def test_outputs_computed_on_hosts_are_those_of_one_process_to_the_bit(desk):
    """From the weights of a run on the desk, which each host gets as far as its stages need them; the last stage is on
    two hosts, so that what one computes crosses the network."""
    hosts, trained, heard = desk.network.hosts, desk.folder / "one", {}
    told = [
        desk.told("alone", plan_of(MODEL, [[0]], **FLUSH), config(), forward_only=trained),
        desk.told("spread", plan_of(MODEL, [[0], [1, 2]]), config(encrypt=True), *hosts, forward_only=trained),
    ]
    with listened_to(desk.network, heard):
        ended = desk.launch(*told)
    assert ended == ["finished"] * 2 and not heard["clear"], (ended, heard)
    one, other = (dict(np.load(desk.folder / name / PREDICTIONS)) for name in ("alone", "spread"))
    assert one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)
    (summary,) = (row for row in RunRecord(desk.folder / "spread").metrics() if row["event"] == "summary")
    assert summary["predictions"] == str(desk.folder / "spread" / PREDICTIONS)
    assert summary["checkpoint"] == str(trained / "checkpoints" / "minibatch-00000010")
    desk.check_nothing_is_left()


def test_a_desk_that_can_make_no_certificate_is_refused_in_a_line(desk):
    first, second, _ = desk.network.hosts
    desk.told("none", plan_of(MODEL, [[0], [1]], **FLUSH), config(), first, second)
    words = ["run", str(desk.folder / "none-plan.json"), "--model", MODEL, "--data", DATA, "--encrypt"]
    words += ["--cluster", str(desk.folder / "none-cluster.toml"), "--run-dir", str(desk.folder / "none")]
    only_ssh = desk.network.desk.home / "bin"
    only_ssh.mkdir()
    (only_ssh / "ssh").symlink_to("/usr/bin/ssh")
    said = desk.network.desk.run(
        *("env", f"PATH={only_ssh}", sys.executable, "-m", "sparsepipe", *words), cwd=REPOSITORY
    )
    assert said.returncode == 2 and "needs the program openssl" in said.stderr.splitlines()[-1], said.stderr
    assert not (desk.folder / "none").exists()
    desk.check_nothing_is_left()
