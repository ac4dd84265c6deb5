"""What a controller and its agents say to each other: files in pieces, what grows on a host, shards."""

import json
import os
import shutil
from argparse import Namespace
from contextlib import nullcontext

import pytest
from coded import raises

from sparsepipe.errors import InputError
from sparsepipe.launching.run_folders import tell_going_on, went_on
from sparsepipe.launching.ssh.controller import controlled
from sparsepipe.launching.ssh.facts import check_alike, facts_here, interface_of
from sparsepipe.launching.ssh.hosted_run import Shards
from sparsepipe.launching.ssh.launch_ssh import hosted_ranks
from sparsepipe.launching.ssh.pieces import Arrivals, Copy, FileGrowth, FolderMirror, place, send_content, send_file
from sparsepipe.launching.ssh.rows import METRICS, OwnRows, RowsOfHosts
from sparsepipe.launching.ssh.run_files import RunFiles
from sparsepipe.launching.supervisor import tell_status
from sparsepipe.records import Origin, RunRecord
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.reporting.recorder import forget_rows
from sparsepipe.runtime.training_state.checkpoint import newest_first
from sparsepipe.runtime.training_state.checkpoint_folders import remove_partial
from sparsepipe.runtime.wire.frames import MOST_PAYLOAD, Frame
from sparsepipe.util.io.files import read_json, write_json
from sparsepipe.util.io.functions import UserFunction
from sparsepipe.values.cluster import Cluster
from sparsepipe.values.plan import Plan, Stage


class Kept:
    """A writer whose frames are kept."""

    def __init__(self):
        self.frames = []

    def send(self, kind, payload=b"", **facts):
        self.frames.append(Frame({"kind": kind, **facts}, payload))


@pytest.mark.parametrize("size", [0, 1, MOST_PAYLOAD // 2, MOST_PAYLOAD + 17])
def test_a_file_arrives_whole_or_not_at_all(tmp_path, size):
    (tmp_path / "here").write_bytes(os.urandom(size))
    kept = Kept()
    send_file(kept, tmp_path / "here", "a/there")
    arrivals = Arrivals(tmp_path / "folder")
    for frame in kept.frames[:-1]:
        assert arrivals.take(frame) is None and not (tmp_path / "folder" / "a" / "there").exists()
    path = arrivals.take(kept.frames[-1])
    assert path.read_bytes() == (tmp_path / "here").read_bytes()
    send_content(kept, b"other", "a/there")
    with raises("agent.file_damaged"):
        arrivals.take(kept.frames[-1]._replace(payload=b"changed"))
    assert path.read_bytes() == (tmp_path / "here").read_bytes()


def test_a_file_does_not_arrive_whose_checkpoint_is_given_up_meanwhile(tmp_path):
    """A cable was pulled while a shard was under way: the job ended with a digest that differs."""
    (tmp_path / "here").write_bytes(os.urandom(2 * MOST_PAYLOAD))
    kept, folder = Kept(), tmp_path / "folder" / "checkpoints" / ".minibatch-00000005"
    send_file(kept, tmp_path / "here", f"checkpoints/{folder.name}/stage1.safetensors")
    arrivals = Arrivals(tmp_path / "folder")
    first, second, *rest = kept.frames
    assert len(rest) > 1
    for frame in (first, second):
        arrivals.take(frame)
    shutil.rmtree(folder)
    assert [arrivals.take(frame) for frame in rest] == [None] * len(rest) and not folder.exists()
    assert [arrivals.take(frame) for frame in kept.frames][-1] == folder / "stage1.safetensors"


@pytest.mark.parametrize("name", ["../plan.json", "/etc/passwd", "a/../../b", "", "a\0b"])
def test_no_file_leaves_its_folder(tmp_path, name):
    with raises("agent.file_unknown"):
        place(tmp_path, name)


def test_a_log_goes_on_where_it_begins_anew_on_another_host(tmp_path):
    """The coordinator was started on another host: what it had said on the first was gone from the record."""
    here = tmp_path / "record" / "coordinator.log"
    for number, said in enumerate(("first\n", "second\n")):
        there = tmp_path / f"host{number}"
        there.mkdir()
        (there / here.name).write_text(said)
        mirror, copy = FolderMirror(there, ("*.log",)), Copy()
        for text in ("", "more\n"):
            with (there / here.name).open("a") as log:
                log.write(text)
            for growth in mirror.changes():
                copy.take(growth, here)
    assert here.read_text() == "first\nmore\nsecond\nmore\n"


def test_a_log_of_a_host_is_bounded_in_the_record(tmp_path, monkeypatch):
    """A host that printed without end filled the disk of the machine that launched the run: 1.6 GB in ten seconds."""
    monkeypatch.setattr("sparsepipe.launching.ssh.pieces.MOST_LOG_BYTES", 1000)
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    mirror, copy, sent = FolderMirror(there, ("*",)), Copy(), 0
    for text in ("x" * 600, "y" * 600, "z" * 600):
        for name in ("rank0.log", "trace.jsonl"):
            with (there / name).open("a") as handle:
                handle.write(text)
        for growth in mirror.changes():
            sent += len(growth.data) * growth.name.endswith(".log")
            copy.take(growth, here / growth.name)
    kept = (here / "rank0.log").read_text()
    assert kept.startswith("x" * 600 + "y" * 400 + "\n") and "y" * 401 not in kept and "z" not in kept
    assert "discarded" in kept and kept.count("\n") == 2 and sent == 1001
    assert (here / "trace.jsonl").read_bytes() == (there / "trace.jsonl").read_bytes(), "what is no log is whole"
    for _ in range(3):  # of a host that does not stop by itself
        copy.take(FileGrowth("rank0.log", b"w" * 5000, False, False), here / "rank0.log")
    assert (here / "rank0.log").read_text() == kept


def test_a_mirror_has_what_grows_and_what_is_replaced(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    (there / "old.jsonl").write_text("known\n")
    mirror, copy = FolderMirror(there, ("*.jsonl",)), Copy()
    mirror.skip()
    here.mkdir()
    (here / "old.jsonl").write_text("known\n")

    def follow():
        for growth in mirror.changes():
            copy.take(growth, here / growth.name)

    with (there / "old.jsonl").open("a") as handle:
        handle.write("more\n")
    (there / "new.jsonl").write_bytes(b"x" * 2**20)
    (there / "empty.jsonl").touch()
    (there / "other.txt").touch()
    (there / "link.jsonl").symlink_to("/etc/passwd")
    follow()
    (there / "anew").write_text("short\n")
    (there / "anew").replace(there / "new.jsonl")
    follow()
    follow()
    assert {path.name: path.read_bytes() for path in here.iterdir()} == {
        "old.jsonl": b"known\nmore\n",
        "new.jsonl": b"short\n",
        "empty.jsonl": b"",
    }


def step(minibatch, host):
    return {"event": "step", "seconds": 1.0, "minibatch": minibatch, "loss": 0.1 * minibatch, "host": host}


def append(path, *rows):
    with path.open("a") as handle:
        handle.writelines(json.dumps(row) + "\n" for row in rows)


def test_rows_of_several_hosts_are_all_in_the_record_each_once_after_a_resume_too(tmp_path):
    """Each host has the even or the odd minibatches; after four, both go on from the second."""
    for name in ("record", "even", "odd"):
        (tmp_path / name).mkdir()
    files = [tmp_path / name / METRICS for name in ("even", "odd")]
    own, rows = [OwnRows(file.parent) for file in files], RowsOfHosts(tmp_path / "record", several=True)

    def follow(*hosts):
        for host in hosts:
            kept = Kept()
            own[host].tell(kept)
            for frame in kept.frames:
                half = len(frame.payload) // 2
                rows.take(host, frame.payload[:half])  # a row in two parts
                rows.take(host, frame.payload[half:])

    rows.begin()
    append(files[0], {"event": "start", "epoch_minibatches": 8}, step(0, 0), step(2, 0))
    follow(0)
    assert not rows.has_all(2)
    append(files[1], step(1, 1), step(3, 1))
    follow(1)
    assert rows.has_all(2) and rows.has_all(4) and not rows.has_all(5)
    for host, file in enumerate(files):
        forget_rows(file.parent, 2)
        own[host] = OwnRows(file.parent) if host else own[host]  # as the second was started anew, or not
    rows.begin()
    forget_rows(files[1].parent, 2)
    append(files[1], step(3, 1), step(5, 1))
    follow(1, 0)
    assert not rows.has_all(4)
    append(files[0], step(2, 0), step(4, 0))
    follow(0, 1)
    assert rows.has_all(6)
    found = [json.loads(line) for line in (tmp_path / "record" / METRICS).read_text().splitlines()]
    assert [row["minibatches"] for row in found if row["event"] == "resume"] == [2]
    steps = [row for row in found if row["event"] == "step"]
    assert sorted(steps, key=lambda row: row["minibatch"]) == [step(m, m % 2) for m in range(6)]
    for wrong in (b"no row\n", b"[]\n", b'{"loss": 1}\n', b'{"event": "step", "minibatch": -1}\n'):
        with raises("agent.row_malformed"):
            rows.take(0, wrong)


def test_shards_are_found_when_they_are_whole(tmp_path):
    partial, whole = tmp_path / "checkpoints" / ".minibatch-1", tmp_path / "checkpoints" / "minibatch-1"
    partial.mkdir(parents=True)
    leading, other = Shards(tmp_path, leads=True), Shards(tmp_path, leads=False)
    (partial / "stage0.safetensors").write_text("of this host")
    assert not [*leading.news(), *other.news()]
    (partial / "stage0.json").write_text(json.dumps({"stage0.safetensors": {}}))
    names = [found.name.rpartition("/")[2] for found in other.news()]
    assert names == ["stage0.safetensors", "stage0.json"] and not [*leading.news(), *other.news()]
    leading.arrived.add("checkpoints/.minibatch-1/stage1.safetensors")
    (partial / "manifest.json").write_text(json.dumps({"files": {"stage0.safetensors": {}, "stage1.safetensors": {}}}))
    partial.rename(whole)
    assert [found.name.rpartition("/")[2] for found in leading.news()] == ["stage0.safetensors", "manifest.json"]
    whole.rename(tmp_path / "elsewhere")
    assert list(leading.news()) == [("checkpoints/minibatch-1", None)]


@pytest.mark.parametrize("line", ["from blocks_of_mine import layers", "from .blocks_of_mine import layers"])
def test_a_host_is_sent_the_neighbours_of_a_users_file(tmp_path, line):
    """It had net.py alone, whose import failed there."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "net.py").write_text(f"{line}\n\n\ndef build():\n    return layers\n")
    (project / "blocks_of_mine.py").write_text("layers = 3\n")
    (project / "notes.txt").write_text("of no use there\n")
    plan, config = Plan((Stage(("a",), (0,)),)), RunConfig(f"{project / 'net.py'}:build", "digits")
    record = RunRecord.create(tmp_path / "record", plan, config.to_json(), Origin())
    kept, there = Kept(), tmp_path / "host"
    facts = {"number": 0, "writer": kept, "folder": str(there), "has_data": True, "hosted": Namespace(ranks=(0,))}
    files = RunFiles(record, [], RowsOfHosts(record.folder, several=False))
    files.bring(Namespace(**facts), plan, resume=False, first=True)
    arrivals = Arrivals(there)
    for frame in kept.frames:
        arrivals.take(frame)
    shutil.rmtree(project)
    function = UserFunction.parse(read_json(there / "config.json")["model"])
    assert function.load()() == 3 and function.file().is_relative_to(there)
    sent = {path.name for path in (there / "code").rglob("*") if path.is_file()}
    assert sent == {"net.py", "blocks_of_mine.py"}


def test_a_folder_that_is_taken_away_whole_takes_no_checkpoint_from_the_record(tmp_path):
    """A host that died while its folder was removed told of its checkpoints as gone: the record lost the only ones."""
    shards = Shards(tmp_path, leads=True)
    for name in ("minibatch-1", "minibatch-2"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        write_json(tmp_path / "checkpoints" / name / "manifest.json", {"files": {}})
    assert len(list(shards.news())) == 2
    shutil.rmtree(tmp_path / "checkpoints")
    assert list(shards.news()) == []


def test_a_kill_while_a_checkpoint_of_the_record_is_removed_leaves_none_that_is_half_there(tmp_path, monkeypatch):
    """A host had removed an older one; the launcher that did the same was killed, and nothing could be resumed."""
    files, place = RunFiles(RunRecord(tmp_path), [], RowsOfHosts(tmp_path, several=False)), tmp_path / "checkpoints"
    (place / "minibatch-00000005").mkdir(parents=True)
    for name in ("manifest.json", "stage0.safetensors"):
        (place / "minibatch-00000005" / name).write_text("{}")
    removed = Frame({"kind": "gone", "name": "checkpoints/minibatch-00000005"}, b"")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "unlink", kill)
        files.take(0, removed)
    assert [path.name for path in place.iterdir()] == [".minibatch-00000005-gone"]
    assert list(newest_first(tmp_path)) == []
    files.take(0, removed)
    remove_partial(tmp_path)
    assert list(place.iterdir()) == []


def kill(*_, **__):
    raise KeyboardInterrupt


def test_a_checkpoint_of_the_same_name_is_sent_again_and_stays_while_the_one_before_is_forgotten(tmp_path):
    """A pipeline that closes an epoch with nothing more to train writes one after so many minibatches, as it closes the
    run: the second one's shards were not sent, and whoever waited for them did so until its deadline."""
    partial, shards = tmp_path / "checkpoints" / ".minibatch-1", Shards(tmp_path, leads=False)

    def written(content):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / "stage1.safetensors").write_text(content)
        write_json(partial / "stage1.json", {"stage1.safetensors": {}})

    written("at the end of an epoch")
    assert len(list(shards.news())) == 2 and not list(shards.news())
    written("at the end of the run")
    shards.forget(".minibatch-1")
    assert [found.path.read_text() for found in shards.news()][0] == "at the end of the run"
    shards.forget(".minibatch-1")
    assert not partial.exists() and not list(shards.news())


def test_ranks_go_to_the_hosts_of_their_devices(tmp_path):
    (tmp_path / "hosts.toml").write_text(
        "".join(
            f'[[node]]\nname = "{name}"\naddress = "10.0.0.{k}"\ndevices = [{{ type = "cpu", count = {count} }}]\n'
            for k, (name, count) in enumerate([("a", 2), ("b", 1), ("c", 4)])
        )
    )
    hosts = Cluster.load(tmp_path / "hosts.toml")
    assert [(one.node.name, one.ranks) for one in hosted_ranks(3, hosts)] == [("a", (0, 1)), ("b", (2,))]
    with raises("plan.ranks_not_in_cluster", "8 ranks", "7 devices"):
        hosted_ranks(8, hosts)


def test_hosts_that_differ_are_told_apart():
    here = facts_here()
    check_alike("gpu1", {**here, "hostname": "another"}, here)
    for name in ("python", "torch", "code"):
        with raises("hosts.unlike", name):
            check_alike("gpu1", {**here, name: "0.0"}, here)


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "203.0.113.7", "fd00::2"])
def test_an_address_that_is_no_networks_of_this_host_is_refused(address):
    with pytest.raises(InputError, match="loopback|no network interface|IPv6"):
        interface_of(address)


def test_a_run_that_went_on_without_a_host_says_so_when_it_has_finished(tmp_path):
    """One whose disk was full was left out, and the run ended "finished" with a line in the launcher's log alone."""
    plan = Plan((Stage(("a",), (0,)),))
    record, full = RunRecord.create(tmp_path / "run", plan, {}, Origin()), "host2: the disk of /scratch is full"
    tell_status(record.folder, state="running", guard=7)
    going = f"{full}; continuing from the last checkpoint on host1"

    def goes_on(record, plan, arguments):
        tell_going_on(record.folder, going)
        assert record.status["state"] == "running" and record.status["guard"] == 7

    arguments = Namespace(run_dir=record.folder, resume=False)
    assert controlled(arguments, goes_on, nullcontext) == 0
    assert record.status["state"] == "finished" and went_on(record.folder) == [going]
    (record.folder / "status.json").write_text("[")
    assert went_on(record.folder) == []
