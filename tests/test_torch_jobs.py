"""Traces of torch.profiler become a trace that names what slows the job; other files are refused in one line."""

import gzip
import json

import pytest
from coded import mentions, raises
from fuzzing import fuzzed, put
from hypothesis import given
from hypothesis import strategies as st
from test_simulator import pipeline

from scripts.bench_kineto import enlarge_trace, run_job
from sparsepipe import InputError, load_trace, replay, simulate, what_if
from sparsepipe.cli.command import main
from sparsepipe.planning.replaying import Part
from sparsepipe.records.torch_jobs import events as torch_events
from sparsepipe.values.stragglers import Stragglers

RANKS, STEPS = 3, 4
FORWARD, BACKWARD, UPDATE, LOAD, TRANSFER = 0.030, 0.060, 0.005, 0.0005, 0.0005


class Kineto:
    """A trace of one rank as Kineto writes it: the host's thread 1, and streams of a device."""

    def __init__(self, rank, ranks, *, device=False, shift=0.0):
        self.rank, self.ranks, self.device, self.shift = rank, ranks, device, shift
        self.events, self.number, self.correlation = [], 0, 0

    def event(self, category, name, start, end, *, thread=1, process=100, **arguments):
        times = {"ts": (start + self.shift) * 1e6, "dur": (end - start) * 1e6}
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, **times, "args": arguments}
        )

    def work(self, name, start, end, *, launched=None, category="kernel", stream=7, **arguments):
        """An operator: of a device, a short one on the host that launches a kernel."""
        if not self.device:
            self.event("cpu_op", name, start, end, **arguments)
            return
        self.correlation += 1
        at = start if launched is None else launched
        self.event("cpu_op", name, at, at + 1e-5, **arguments)
        self.event("cuda_runtime", "cudaLaunchKernel", at + 2e-6, at + 4e-6, correlation=self.correlation)
        kernel = "gemm" if stream == 7 else "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        self.event(category, kernel, start, end, thread=stream, process=0, correlation=self.correlation)

    def forward(self, start, end, **how):
        """Return the number by which the backward knows it."""
        self.number += 1
        self.work("aten::mm", start, end, **{"Sequence number": self.number}, **how)
        return self.number

    def backward(self, start, end, number, **how):
        engine = "autograd::engine::evaluate_function: MmBackward0"
        at = start if how.get("launched") is None else how["launched"]
        stop = at + 2e-5 if self.device else end
        self.event("cpu_op", engine, at, stop, **{"Sequence number": number})
        self.work("MmBackward0", start, end, **how)

    def exchange(self, name, issued, end, **how):
        if self.device:
            at = how.get("launched", issued)
            self.event("user_annotation", f"nccl:{name}", at, at + 1e-5)
            self.work("c10d", issued, end, launched=at, stream=40)
        else:
            self.event("user_annotation", f"gloo:{name}", issued, end)

    def save(self, folder, *, packed=True):
        groups = [{"pg_name": "0", "ranks": list(range(self.ranks))}]
        about = {"rank": self.rank, "world_size": self.ranks, "pg_config": groups}
        document = {"schemaVersion": 1, "distributedInfo": about, "traceEvents": self.events}
        folder.mkdir(exist_ok=True)
        content = json.dumps(document, indent=1).encode()
        name = f"rank{self.rank}.1.pt.trace.json{'.gz' * packed}"
        return put(folder / name, gzip.compress(content, 1) if packed else content)


def data_parallel(folder, cause, *, device=False, shifts=(0.0,) * RANKS):
    """Write a job of replicas that meet in one all-reduce a step. Returns (seconds of a step, those without the cause).

    rank 0   load  forward  backward ├── all_reduce ──┤ update
    rank 1   load  forward  ─── backward ───├── all_r.┤ update
    """
    files = [Kineto(rank, RANKS, device=device, shift=shifts[rank]) for rank in range(RANKS)]
    seconds = []
    for written, cause_now in ((True, cause), (False, "none")):
        at = [0.0] * RANKS
        for step in range(STEPS):
            issued = []
            for rank, file in enumerate(files):
                size = (0.5, 1.5, 1.25, 0.75)[(step + 2 * rank) % 4] if cause_now == "size" else 1.0
                size *= 2.0 if (cause_now, rank) == ("rank", 1) else 1.0
                load = 0.050 if (cause_now, rank) == ("loader", 0) else LOAD
                pause = 0.040 if cause_now == "launch" else 0.0
                starts = [at[rank] + load + pause]
                starts += [starts[0] + FORWARD * size, starts[0] + (FORWARD + BACKWARD) * size]
                issued.append(starts[2])
                if written:
                    loads = at[rank], at[rank] + load
                    file.event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", *loads)
                    number = file.forward(starts[0], starts[1], launched=starts[0] if pause else loads[1])
                    file.backward(starts[1], starts[2], number, launched=starts[1] if pause else loads[1] + 1e-4)
            done = max(issued) + (0.080 if cause_now == "link" else TRANSFER)
            for rank, file in enumerate(files):
                if written:
                    file.exchange("all_reduce", issued[rank], done)
                    begin = issued[rank] if device else done
                    file.event("user_annotation", "Optimizer.step#SGD.step", begin, begin + UPDATE)
                    file.work("aten::add_", done, done + UPDATE, launched=issued[rank])
                    file.event("user_annotation", f"ProfilerStep#{7 + step}", at[rank], done + UPDATE)
                at[rank] = done + UPDATE
        seconds.append(max(at) / STEPS)
    for file in files:
        file.save(folder)
    return seconds


CULPRITS = {
    "none": None,
    "rank": Part("rank", 1),
    "loader": Part("loader", 0),
    "link": Part("operation", "all_reduce"),
    "size": Part("size"),
    "launch": Part("launch"),
}


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("cause", CULPRITS)
def test_the_culprit_of_a_data_parallel_job_and_what_its_removal_saves(tmp_path, cause, device):
    """On a CPU the host's pauses count as computing: they are known on a device alone."""
    if cause == "launch" and not device:
        pytest.skip("on a CPU no launch is delayed")
    seconds, without = data_parallel(tmp_path / "job", cause, device=device)
    trace = load_trace(tmp_path / "job")
    found = what_if(trace)
    assert trace.ranks == (0, 1, 2) and [number for number, *_ in trace.facts["steps"]] == [7, 8, 9, 10]
    assert found.measured_seconds == pytest.approx(seconds, rel=0.01)
    assert found.cause == CULPRITS[cause], found.culprit
    assert found.cost == pytest.approx(1 - without / seconds, abs=0.02)
    assert replay(trace).largest_error < 0.01
    assert found.assumed and mentions(found.unknown, "link") and not mentions(found.unknown, "missing")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b-flush"])
@pytest.mark.parametrize(("cause", "culprit"), [("", None), ("slow:rank=2,factor=2", Part("rank", 2))])
def test_our_simulated_pipelines_are_understood_in_kinetos_form(tmp_path, schedule, cause, culprit):
    """The same culprit as that of the simulated trace itself, and the cost that a simulation without it has."""
    given = pipeline([1.0] * 4, [2.0] * 4, [0.01] * 3, schedule=schedule, num_microbatches=6)
    simulated = simulate(*given, [1] * 18, stragglers=Stragglers.parse(cause) if cause else None)
    healthy = simulate(*given, [1] * 18)
    in_kinetos_form(simulated, tmp_path / "job")
    trace = load_trace(tmp_path / "job")
    found, of_simulated = what_if(trace), what_if(simulated)
    assert found.measured_seconds == pytest.approx(simulated.makespan / 3, rel=0.01)
    assert found.cause == culprit, found.culprit
    assert found.cost == pytest.approx(1 - healthy.makespan / simulated.makespan, abs=0.02)
    if culprit:
        assert mentions(of_simulated.culprit, "rank 2") and mentions(found.culprit, "rank 2", "stage 2", "2.0 ×")
    ours = {(s.rank, s.name[1]): s.seconds for s in simulated.spans if s.kind in ("forward", "backward")}
    theirs = {(s.rank, s.name[1]): s.seconds for s in trace.spans if s.kind in ("forward", "backward")}
    assert theirs == pytest.approx(ours, rel=1e-3)


def in_kinetos_form(trace, folder, shifts=(0.0,) * 4):
    """Write a trace of a pipeline as torch.profiler would: operators, receives for which ranks wait, and steps."""
    work = [span for span in trace.spans if span.kind in ("forward", "backward")]
    last = max(trace.ranks)
    for rank in trace.ranks:
        file, numbers, at = Kineto(rank, len(trace.ranks), shift=shifts[rank]), {}, 0.0
        spans = sorted((span for span in work if span.rank == rank), key=lambda span: span.start)
        for span in spans:
            if span.stage > 0 if span.kind == "forward" else span.stage < last:
                file.exchange("recv", at, span.start)
            if span.kind == "forward":
                numbers[span.minibatch] = file.forward(span.start, span.end)
            else:
                file.backward(span.start, span.end, numbers[span.minibatch])
            file.exchange("send", span.end, span.end)
            at = span.end
        for step in range(3):
            of_step = [span for span in spans if span.minibatch // 6 == step]
            begin = of_step[0].start if step else 0.0
            after = [span.start for span in spans if span.minibatch // 6 == step + 1]
            file.event("user_annotation", f"ProfilerStep#{step}", begin, min(after, default=of_step[-1].end))
        file.save(folder)


def test_clocks_that_contradict_each_other_are_set_by_collectives(tmp_path):
    seconds, _ = data_parallel(tmp_path / "job", "rank", shifts=(0.0, 5.0, -0.25))
    trace = load_trace(tmp_path / "job")
    found = what_if(trace)
    assert trace.makespan == pytest.approx(seconds * STEPS, rel=0.01) and trace.facts["clock_error"] < 1e-4
    assert found.cause == Part("rank", 1) and mentions(found.assumed, "clocks", "1, 2")


@pytest.mark.parametrize("shifts", [(0.0, 0.4, -90.0, 7.0), (0.0, 0.0, 0.0, -0.3)])
def test_clocks_of_a_pipeline_are_set_by_what_stages_send_in_both_directions(tmp_path, shifts):
    given = pipeline([1.0] * 4, [2.0] * 4, [0.01] * 3, schedule="1f1b-flush", num_microbatches=6)
    simulated = simulate(*given, [1] * 18, stragglers=Stragglers.parse("slow:rank=2,factor=2"))
    in_kinetos_form(simulated, tmp_path / "job", shifts)
    trace = load_trace(tmp_path / "job")
    found = what_if(trace)
    assert found.measured_seconds == pytest.approx(simulated.makespan / 3, rel=0.01)
    assert found.cause == Part("rank", 2) and mentions(found.assumed, "clocks", 3)
    assert trace.facts["clock_error"] < 0.05


def test_one_rank_of_many_says_what_it_cannot_know(tmp_path):
    data_parallel(tmp_path / "job", "rank")
    found = what_if(load_trace(next((tmp_path / "job").glob("rank0*"))))
    assert found.cause == Part("operation", "all_reduce") and mentions(found.unknown, 2, 3)
    pattern = load_trace(f"{tmp_path}/job/rank[01]*.gz")
    assert pattern.ranks == (0, 1) and mentions(pattern.facts["unknown"], 1, 3)


def test_files_packed_or_not_and_our_own_packed_are_read(tmp_path):
    data_parallel(tmp_path / "job", "loader")
    trace = load_trace(tmp_path / "job")
    for path in [*(tmp_path / "job").iterdir()]:
        put(path.with_suffix(""), gzip.decompress(path.read_bytes()))
        path.unlink()
    assert load_trace(tmp_path / "job") == trace
    ours = put(tmp_path / "ours.json.gz", gzip.compress(json.dumps(trace.to_chrome()).encode()))
    again, first = what_if(load_trace(ours)), what_if(trace)
    assert again.cause == first.cause and again.cost == pytest.approx(first.cost) and again.assumed == first.assumed


def test_traces_of_others(shared_data):
    """HolisticTraceAnalysis' test data: rank 0 of 2 on A100s, bound by launches; two ranks of a job of 128."""
    folder = shared_data / "outside" / "kineto"
    if not folder.is_dir():
        pytest.skip(f"no torch.profiler traces at {folder}")
    trace = load_trace(folder / "nccl_data.json.gz")
    found = what_if(trace)
    assert [number for number, *_ in trace.facts["steps"]] == [4, 5, 6]
    assert found.measured_seconds == pytest.approx(0.2223, rel=0.1), "ProfilerStep takes 219.7 to 224.9 ms"
    # Kernels of the stream that computes take 118 ms of three steps; the device waits for the host in the rest.
    assert found.cause == Part("launch") and found.cost == pytest.approx(1 - 0.118 / 0.627, abs=0.02)
    assert mentions(found.unknown, 1, 2)
    sampled = load_trace(folder / "sampled_rank-*.json.gz")
    assert sampled.ranks == (0, 1) and [number for number, *_ in sampled.facts["steps"]] == [551, 552]
    assert what_if(sampled).measured_seconds == pytest.approx(0.6151, rel=0.01)


@pytest.mark.parametrize("device", [False, True])
def test_many_steps_give_the_answer_of_a_few(tmp_path, device):
    data_parallel(tmp_path / "job", "rank", device=device)
    (tmp_path / "long").mkdir()
    for path in (tmp_path / "job").iterdir():
        assert enlarge_trace(path, tmp_path / "long" / path.name, 4e5) > 50
    few, many = load_trace(tmp_path / "job"), load_trace(tmp_path / "long")
    repeated = len(many.facts["steps"]) // STEPS
    assert many.facts["steps"][-1][0] == 6 + repeated * STEPS
    assert len(many.spans) / len(few.spans) == pytest.approx(repeated, rel=0.05)
    first, again = what_if(few), what_if(many)
    assert again.cause == first.cause == Part("rank", 1) and again.cost == pytest.approx(first.cost, abs=0.01)
    assert again.measured_seconds == pytest.approx(first.measured_seconds, rel=0.01)


@pytest.mark.slow
def test_a_real_job_with_a_slow_rank(tmp_path):
    """As scripts/bench_kineto.py runs it: three processes of DistributedDataParallel over gloo."""
    found = what_if(load_trace(run_job("ddp", "rank", tmp_path / "job")))
    assert found.cause == Part("rank", 1) and found.cost > 0.1  # scripts/bench_kineto.py holds it to the time saved


def test_the_show_names_the_time_that_each_rank_waits_for_data(tmp_path, capsys):
    data_parallel(tmp_path / "job", "loader")
    assert main(["trace", "show", str(tmp_path / "job"), "--json"]) == 0
    loading = json.loads(capsys.readouterr().out)["loading"]
    assert loading["0"] > 4 * loading["1"] > 0
    assert main(["trace", "show", str(tmp_path / "job")]) == 0
    assert f"rank 0 {loading['0']:.1%}" in capsys.readouterr().out


# --- bad input --------------------------------------------------------------------------------------------------------


def small(folder):
    return data_parallel(folder, "none") and min(folder.iterdir())


def test_what_is_no_trace_is_refused_in_one_line(tmp_path):
    path = small(tmp_path / "job")
    whole = path.read_bytes()
    document = json.loads(gzip.decompress(whole))
    other = tmp_path / "other.json"
    with raises("trace.damaged"):
        load_trace(put(tmp_path / "cut.json.gz", whole[: len(whole) // 2]))
    with raises("trace.damaged"):
        load_trace(put(other, gzip.decompress(whole)[:-3000]))
    with raises("trace.rank_twice", "rank 0"):
        put(path.with_name("again.pt.trace.json.gz"), whole)
        load_trace(tmp_path / "job")
    with raises("trace.other_job", 64, 3):
        alien = {**document, "distributedInfo": {"rank": 63, "world_size": 64}}
        put(path.with_name("again.pt.trace.json.gz"), gzip.compress(json.dumps(alien).encode()))
        load_trace(tmp_path / "job")
    with raises("trace.foreign"):
        put(other, json.dumps({"traceEvents": [{"ph": "X", "cat": "x", "name": "y", "ts": 0, "dur": 1}]}).encode())
        load_trace(other)
    for key, value in (("dur", -1.0), ("ts", float("nan")), ("ts", 1e300), ("ts", "soon"), ("name", 7)):
        events = [event | {key: value} for event in document["traceEvents"][:2]]
        with raises("trace.event_malformed"):
            load_trace(put(other, json.dumps(document | {"traceEvents": events}).encode()))
    (tmp_path / "deep").mkdir()
    path.parent.rename(tmp_path / "deep" / "job")
    for missing in (tmp_path / "none*.json", tmp_path / "deep"):
        with raises("trace.no_files"):
            load_trace(missing)
    (tmp_path / "unnamed").mkdir()
    for name in ("a.json", "b.json"):  # a tab in a name, as older profilers write it, and no rank
        events = json.dumps(document["traceEvents"]).replace("aten::mm", "aten::\tmm")
        put(tmp_path / "unnamed" / name, f'{{"schemaVersion": 1, "traceEvents": {events}}}'.encode())
    unnamed = load_trace(tmp_path / "unnamed")
    assert unnamed.ranks == (0, 1) and mentions(unnamed.facts["assumed"], "order")
    with raises("trace.foreign"):
        load_trace(put(tmp_path / "deep.json.gz", gzip.compress(b'{"schemaVersion": ' + b"[" * 200_000)))


def test_steps_that_ranks_do_not_share_are_refused(tmp_path):
    data_parallel(tmp_path / "job", "none")
    path = max((tmp_path / "job").iterdir())
    put(path, gzip.compress(gzip.decompress(path.read_bytes()).replace(b"ProfilerStep#", b"ProfilerStep#9")))
    with raises("trace.no_common_step"):
        load_trace(tmp_path / "job")


def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_events, "_MOST_EVENT_CHARACTERS", 2**22)
    for content in (b" " * 2**24, b'{"a": "' + b"x" * 2**24, b'{"traceEvents": [' + b" " * 2**24):
        with raises("trace.event_too_large"):
            load_trace(put(tmp_path / "bomb.json.gz", gzip.compress(content, 1)))
    monkeypatch.setattr(torch_events, "_MOST_FILE_BYTES", 2**22)
    with raises("trace.too_large"):
        load_trace(put(tmp_path / "bomb.json.gz", gzip.compress(b'{"traceEvents": [' + b'{"ph":"M"},' * 2**19, 1)))


@fuzzed(60)
@given(st.data())
def test_any_damage_is_read_or_refused_in_one_line(tmp_path, data):
    """Bytes changed, cut or repeated in the text; and values of any kind in an event."""
    path = tmp_path / "seed.json"
    if not path.exists():
        path.write_bytes(gzip.decompress(small(tmp_path / "job").read_bytes()))
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        document = json.loads(content)
        event = document["traceEvents"][data.draw(st.integers(0, len(document["traceEvents"]) - 1))]
        keys = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])
        values = [None, True, -1, 0, 10**400, 1e308, float("nan"), "", "nccl:\n\x00", "\ud800", [], {}, [[]], {"a": []}]
        event[data.draw(keys)] = data.draw(st.sampled_from(values))
        content = bytearray(json.dumps(document).encode())
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(content) - 1))
            piece = data.draw(st.binary(max_size=8) | st.sampled_from([b"[[", b"}", b'"', b"1e999", b"-", b"\xff"]))
            content[at : at + data.draw(st.integers(0, 400))] = piece
    damaged = put(tmp_path / "damaged.json", bytes(content))
    try:
        what_if(load_trace(damaged))
    except InputError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
