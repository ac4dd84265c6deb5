"""The law for networks that are torch modules: whatever the plan, training equals a plain loop over the user's module.

The oracle never traces or cuts: it calls the module itself with the weights that the action list says each stage has.
"""

import json
import threading
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as functional
from coded import raises
from own_networks import heads_loss
from runtime_jobs import Job, run_jobs, same_training
from test_runtime_laws import CLOSE, Oracle, _optimizer
from torch.func import functional_call

from sparsepipe.cli.launches import summary_text
from sparsepipe.data.examples import open_examples
from sparsepipe.engines import engine
from sparsepipe.errors import InputError
from sparsepipe.networks.traced import trace
from sparsepipe.networks.traced.building import build_module
from sparsepipe.profiling import profile_model
from sparsepipe.profiling.of_model import spread
from sparsepipe.records import RunRecord
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.stages.base import PacketAndSamples
from sparsepipe.runtime.stages.network_stage import NetworkStage
from sparsepipe.runtime.training_state.weights import Version
from sparsepipe.runtime.workloads import layer_graph
from sparsepipe.runtime.workloads.opening import LearningTask, open_task, verify_once
from sparsepipe.runtime.workloads.resolved import resolve
from sparsepipe.util.io.fields import json_object
from sparsepipe.values.plan import Plan, Stage

pytestmark = pytest.mark.timeout(600)

OWN = f"{__file__.rpartition('/')[0]}/own_networks.py"
WORDS = {"model": f"{OWN}:tied", "data": f"{OWN}:words"}
AREAS = {"model": f"{OWN}:any_area", "data": f"{OWN}:areas"}
PICTURES = {"model": f"{OWN}:pictures", "data": f"{OWN}:spots"}
HEADS = {"model": f"{OWN}:heads", "data": f"{OWN}:spots", "loss": f"{OWN}:heads_loss", "weight_decay": 0.1}
CODES = {"model": f"{OWN}:codes", "data": f"{OWN}:spots", "loss": f"{OWN}:codes_loss"}
RECURRENT = {"model": f"{OWN}:recurrent", "data": f"{OWN}:words", "data_args": '{"mask_as": "in order"}'}
GNMT = {
    "model": "gnmt-small",
    "model_args": '{"vocabulary_size": 17, "num_layers": 3, "hidden": 8, "dropout": 0.0}',
    "data": f"{OWN}:sentences",
    "data_args": '{"kind": "pairs"}',
}
SIZES = {"vocabulary_size": 17, "sequence_length": 6, "num_layers": 2, "hidden": 8, "num_heads": 2, "dropout": 0.0}
BERT = {
    "model": "bert-small",
    "model_args": json.dumps(SIZES),
    "data": f"{OWN}:sentences",
    "data_args": '{"kind": "masked"}',
}
DROPPED = {**WORDS, "model_args": '{"dropout": 0.3}'}
FLUSH = {"schedule": "1f1b-flush", "num_microbatches": 3}
STASH = {"schedule": "1f1b"}
# name -> (network and data, ranks of the stages, options of the plan, changes of the settings)
LAWS: dict[str, tuple] = {
    "words, one process": (WORDS, [[0]], FLUSH, {}),
    "words, 3 stages, sockets": (WORDS, [[0], [1], [2]], FLUSH, {"shared_memory": False}),
    "words, interleaved": (WORDS, [[0], [1]] * 2, FLUSH, {}),
    "words, zero-bubble": (WORDS, [[0], [1]], {**FLUSH, "schedule": "zero-bubble"}, {}),
    "words, 2-1": (WORDS, [[0, 1], [2]], FLUSH, {}),
    "words, stash 1-2": (WORDS, [[0], [1, 2]], STASH, {}),
    "pictures, stash": (PICTURES, [[0], [1], [2]], STASH, {"optimizer": "adamw", "learning_rate": 1e-3}),
    "pictures, 2-1": (PICTURES, [[0, 1], [2]], FLUSH, {}),
    "areas, 3 stages": (AREAS, [[0], [1], [2]], STASH, {"batch_size": 1}),
    "codes, 3 stages": (CODES, [[0], [1], [2]], FLUSH, {"optimizer": "adamw", "learning_rate": 1e-3}),
    "gnmt, 1-2": (GNMT, [[0], [1, 2]], FLUSH, {}),
    "bert, data parallel": (BERT, [[0, 1]], FLUSH, {}),
    "bert, recompute": (BERT, [[0], [1]], {**FLUSH, "recompute": True}, {}),
    "bert, 2bw": (BERT, [[0], [1]], {"schedule": "2bw", "num_microbatches": 2}, {}),
    "recurrent, stash": (RECURRENT, [[0], [1]], STASH, {}),
    "heads, one process": (HEADS, [[0]], FLUSH, {}),
    "heads, zero-bubble": (HEADS, [[0], [1]], {**FLUSH, "schedule": "zero-bubble"}, {}),
    "heads, recompute, clipped": (HEADS, [[0], [1]], {**FLUSH, "recompute": True}, {"clip_norm": 0.5}),
    "heads, data parallel, flush": (HEADS, [[0, 1]], FLUSH, {"optimizer": "adam", "learning_rate": 1e-2}),
    "heads, stash": (HEADS, [[0], [1], [2]], STASH, {"optimizer": "adamw", "learning_rate": 1e-2}),
}
# Compared with each other: what a plain loop draws at random is not what a run draws.
SAME: dict[str, tuple] = {
    "dropped, one process": (DROPPED, [[0]], FLUSH, {}),
    "dropped, 3 stages": (DROPPED, [[0], [1], [2]], FLUSH, {}),
    "dropped, recompute": (DROPPED, [[0], [1]], {**FLUSH, "recompute": True}, {}),
}


def settings(**changes) -> RunConfig:
    common = {"batch_size": 3, "learning_rate": 0.05, "weight_decay": 1e-3, "threads": 1, "validate": False}
    return RunConfig(**common | {"epochs": 1, "timeout_seconds": 300} | changes)


def plan_of(config: RunConfig, ranks: list[list[int]], **options) -> Plan:
    """Cut the layers evenly into one stage for each entry of `ranks`."""
    ids = [layer.id for layer in layer_graph(resolve(config)).layers]
    bounds = [round(k * len(ids) / len(ranks)) for k in range(len(ranks) + 1)]
    recompute = options.pop("recompute", False)
    stages = (
        Stage(tuple(ids[start:stop]), tuple(own), recompute=recompute)
        for start, stop, own in zip(bounds, bounds[1:], ranks, strict=False)
    )
    return Plan(tuple(stages), **options)


def job(name: str, **more) -> Job:
    own, ranks, options, changes = (LAWS | SAME)[name]
    config = settings(**own | changes | more)
    return Job(name.replace(" ", "-").replace(",", ""), plan_of(config, ranks, **options), config)


class ModuleOracle(Oracle):
    """Training as the plan means it, by the user's module in one piece."""

    def __init__(self, plan: Plan, config: RunConfig) -> None:
        self.plan, self.config = plan, config
        task = open_task(resolve(config))
        self.dataset, self.loss = task.training, task.loss
        args = json_object(config.model_args, "model_args")
        self.module = build_module(config.model, args, self.dataset.facts, seed=config.seed).train()
        self.keys = [{key for row in task.network.rows if row.id in s.layers for key in row.keys} for s in plan.stages]
        self.weights = [self._of_stage(k) for k in range(len(plan.stages))]
        self.optimizers = [_optimizer(weights.values(), config) for weights in self.weights]
        self.buffers = {rank: {} for rank in plan.ranks}
        for keys, stage in zip(self.keys, plan.stages, strict=True):
            for name, buffer in self.module.named_buffers():
                for rank in stage.ranks if name in keys else ():
                    self.buffers[rank][name] = deepcopy(buffer)
        self.losses = []

    def _of_stage(self, k: int) -> dict[str, torch.Tensor]:
        named = self.module.named_parameters()
        return {name: p.detach().clone() for name, p in named if p.requires_grad and name in self.keys[k]}

    def _gradients(self, indices, used, m: int, minibatch: int, of_step):
        leaves = [{name: weight.clone().requires_grad_() for name, weight in weights.items()} for weights in used]
        everything = {name: leaf for of_stage in leaves for name, leaf in of_stage.items()}
        for keys, stage in zip(self.keys, self.plan.stages, strict=True):
            mine = self.buffers[stage.replica(m)]
            everything |= {name: buffer for name, buffer in mine.items() if name in keys}
        batch = self.dataset.batch(indices)
        given = batch.inputs
        args, named = ((), given) if isinstance(given, dict) else (given if isinstance(given, tuple) else (given,), {})
        output = functional_call(self.module, everything, args, named)
        loss, outcome = self.loss(output, batch.target, samples=len(indices))
        self._in_step(loss, output, batch.target, indices, of_step).backward()
        return outcome.loss, [
            {name: leaf.grad for name, leaf in of_stage.items() if leaf.grad is not None} for of_stage in leaves
        ]

    def _in_step(self, loss, output, target, indices, of_step):
        """Return the loss such that, weighed by samples, a step is the mean over its words, and over its sentences."""
        if self.plan.weights not in ("flush", "2bw") or self.dataset.loss not in ("tokens", "masked-words"):
            return loss
        total, words = sum(map(len, of_step)), 0
        for own in of_step:
            found = self.dataset.batch(own).target
            words += int(((found["words"] if isinstance(found, dict) else found) >= 0).sum())
        share = total / len(indices)  # what weighing by samples takes away
        if self.dataset.loss == "tokens":
            return loss * int((target >= 0).sum()) / words * share
        logits, sentences = output.values() if isinstance(output, dict) else output
        masked = functional.cross_entropy(logits.flatten(0, 1), target["words"].flatten(), reduction="sum")
        return masked / words * share + functional.cross_entropy(sentences, target["next_sentence"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run every plan once, all in the same four processes."""
    jobs = {name: job(name) for name in [*LAWS, *SAME]}
    cut_otherwise = replaced(jobs["words, 3 stages, sockets"], jobs["words, one process"])
    found = run_jobs(tmp_path_factory.mktemp("modules"), [*jobs.values(), *cut_otherwise], limit=480)
    return {name: (one, found[one.name]) for name, one in jobs.items()} | {
        one.name: (one, found[one.name]) for one in cut_otherwise
    }


def replaced(first: Job, then: Job) -> list[Job]:
    """A run of one step under a plan, which goes on under another."""
    begun = Job("begun", first.plan, first.config.replace(minibatches=3))
    return [begun, Job("resumed", then.plan, then.config, resume=True, folder="begun")]


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_a_plan_trains_like_a_plain_loop_over_the_users_module(runs, name):
    one, result = runs[name]
    oracle = ModuleOracle(one.plan, one.config).train()
    torch.testing.assert_close(torch.tensor(result.losses), torch.tensor(oracle.losses), **CLOSE)
    for kind, expected in (("weight", oracle.all_weights()), ("buffer", oracle.all_buffers())):
        found = result.tensors(kind)
        for key, tensor in expected.items():
            torch.testing.assert_close(found[key], tensor, **CLOSE, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("words, one process", "words, 3 stages, sockets"),
        ("words, one process", "words, interleaved"),
        ("words, one process", "words, zero-bubble"),
        ("heads, one process", "heads, zero-bubble"),
        ("dropped, one process", "dropped, 3 stages"),
        ("dropped, one process", "dropped, recompute"),
    ],
)
def test_stages_equal_one_process_to_the_bit(runs, name, other):
    same_training(runs[name][1], runs[other][1])


def test_what_the_loss_does_not_reach_is_not_trained_to_the_bit(tmp_path):
    """Two stages and momentum: as torch.optim on the module in one piece, where such parameters have no gradient."""
    config = settings(**HEADS, epochs=1, shuffle=False)
    plan = plan_of(config, [[0], [1]], schedule="1f1b-flush", num_microbatches=2)
    result = run_jobs(tmp_path, [Job("heads", plan, config)])["heads"]
    training = open_task(resolve(config)).training
    module = build_module(config.model, {}, training.facts, seed=config.seed).train()
    begun = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    # One for each parameter: torch's fused SGD takes no parameters of which some have a velocity.
    options = {"lr": config.learning_rate, "momentum": config.momentum, "weight_decay": 0.1, "fused": True}
    steps = {name: torch.optim.SGD([parameter], **options) for name, parameter in module.named_parameters()}
    for first in range(0, 18, 6):
        for start in (first, first + 3):
            batch = training.batch(range(start, start + 3))
            heads_loss(module(batch.inputs), batch.target).backward()
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                parameter.grad /= 2
            steps[name].step()
            steps[name].zero_grad()
    assert all(torch.equal(result.tensors()[name], parameter) for name, parameter in module.named_parameters())
    never = {name for name, parameter in module.named_parameters() if torch.equal(parameter, begun[name])}
    assert never == {"stray.weight", "stray.bias", "end.weight", "end.bias"}
    assert result.tensors("velocity").keys() == begun.keys() - never


def with_neighbour(folder, width: int = 9) -> str:
    (folder / "blocks_of_mine.py").write_text(
        "from torch import nn\n\n\ndef block(width):\n"
        f"    return nn.Sequential(nn.Linear(width, {width}), nn.ReLU(), nn.Linear({width}, width))\n"
    )
    (folder / "net.py").write_text(
        "from blocks_of_mine import block\nfrom torch import nn\n\n\ndef build(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.LazyLinear(6), block(6), block(6), nn.Linear(6, num_classes))\n"
    )
    return f"{folder / 'net.py'}:build"


def test_stages_of_a_network_with_a_neighbour_equal_one_process_to_the_bit(tmp_path):
    config = settings(model=with_neighbour(tmp_path), data=f"{OWN}:spots", loss="classes")
    plans = {"one": plan_of(config, [[0]], **FLUSH), "two": plan_of(config, [[0], [1]], **FLUSH)}
    results = run_jobs(tmp_path, [Job(name, plan, config) for name, plan in plans.items()])
    same_training(results["one"], results["two"])


def test_a_changed_neighbour_is_compared_again(tmp_path, monkeypatch):
    """The mark was of net.py alone: other blocks trained without a comparison."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def compared(width: int) -> bool:
        config = settings(model=with_neighbour(tmp_path, width), data=f"{OWN}:spots", loss="classes")
        return verify_once(open_task(resolve(config)), plan_of(config, [[0], [1]], **FLUSH), resolve(config))

    assert [compared(width) for width in (9, 9, 8, 8, 9)] == [True, False, True, False, False]


def test_without_labels_there_is_no_loss_and_no_step(tmp_path):
    """Nothing is labelled in the first minibatch, which is all that is trained, and in the validation split."""
    labels = {"data": f"{OWN}:unlabelled", "loss": "classes", "validate": True, "shuffle": False}
    config = settings(**HEADS | labels, minibatches=1, optimizer="adamw")
    result = run_jobs(tmp_path, [Job("unlabelled", plan_of(config, [[0]]), config)])["unlabelled"]
    module = build_module(config.model, {}, {"num_classes": 4}, seed=config.seed)
    assert all(torch.equal(result.tensors()[name], parameter) for name, parameter in module.named_parameters())
    (step,), (epoch,), (summary,) = (result.rows(event) for event in ("step", "epoch", "summary"))
    assert (step["loss"], step["counted"], step["samples"]) == (None, 0, 3)
    nothing = {"loss": None, "accuracy": None, "samples": 3, "counted": 0}
    assert epoch["train"] == {**nothing, "minibatches": 1} and epoch["validation"] == nothing
    assert (summary["train"], summary["validation"]) == (epoch["train"], epoch["validation"])
    record = RunRecord(result.folder)
    assert record.frame("epoch")["validation.counted"].tolist() == [0]
    assert "validation without labels" in summary_text(summary)


@pytest.mark.slow
def test_a_run_goes_on_under_another_cut(runs):
    whole, resumed = runs["words, one process"][1], runs["resumed"][1]
    assert resumed.losses == whole.losses
    for key, tensor in whole.tensors().items():
        assert torch.equal(resumed.tensors()[key], tensor), key


@pytest.mark.slow
def test_a_checkpoint_has_the_names_of_the_users_module(runs):
    one, result = runs["words, 3 stages, sockets"]
    module = build_module(one.config.model, {}, {}, seed=0)
    state = result.tensors("weight") | result.tensors("buffer")
    lacking = module.load_state_dict(state, strict=False)
    assert lacking.missing_keys in (["out.weight"], ["words.weight"]) and not lacking.unexpected_keys


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"model": f"{OWN}:nothing"}, ("function.missing", "own_networks.py", "nothing", "it has")),
        ({"model": f"{OWN}:text"}, ("model.not_a_module", "str")),
        ({"model_args": '{"depth": 3}'}, ("model.arguments_refused", "unexpected keyword argument 'depth'")),
        ({"data_args": '{"split": "test"}'}, ("setting.data_args_reserved", "split")),
        ({"engine": "native"}, ("engine.of_modules", "native", "torch")),
        ({"data": f"{OWN}:text"}, ("own_data.arguments_refused",)),
        ({"model": "minkvgg11"}, ("model.of_clouds",)),
    ],
)
def test_bad_input_is_one_line(changes, error):
    config = settings(**WORDS | changes)
    with raises(*error) as caught:
        open_task(resolve(config))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("given", "message"), [("[3]", "expected a JSON object"), ("{", "not JSON")])
@pytest.mark.parametrize("name", ["model_args", "data_args", "loss_args"])
def test_arguments_that_are_no_json_object_are_refused_with_the_settings(name, given, message):
    with pytest.raises(InputError, match=f"{name}.*{message}") as caught:
        settings(**WORDS | {name: given})
    assert "\n" not in str(caught.value)


def test_a_layer_draws_the_same_while_a_thread_reads_items_that_draw(tmp_path):
    """All threads of a process share torch's generator: a run differed from itself, once in a few hundred steps."""
    (tmp_path / "drawn.py").write_text(
        "import torch\n\n\nclass Noise:\n    def __len__(self):\n        return 64\n\n"
        "    def __getitem__(self, index):\n        return torch.rand(200), torch.rand(200)\n\n\n"
        "def make(split):\n    return Noise()\n"
    )
    samples = open_examples(f"{tmp_path / 'drawn.py'}:make", split="train")
    network = trace(torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.Dropout()), torch.rand(2, 200))
    stage = network.build(engine=engine("torch"), seed=0)
    entering, indices = stage.enter(torch.rand(2, 200)), range(8)

    def drawn() -> list[torch.Tensor]:
        with torch.no_grad():
            return [stage(entering, minibatch=m)[network.outputs[0]] for m in range(400)]

    alone, read = drawn(), samples.batch(indices).inputs
    ended, found = threading.Event(), []

    def reads() -> None:
        while not ended.is_set():
            found.append(samples.batch(indices).inputs)

    thread = threading.Thread(target=reads)
    thread.start()
    together = drawn()
    ended.set()
    thread.join()
    assert all(map(torch.equal, alone, together)) and found
    assert all(torch.equal(one, read) for one in found)


def test_what_a_layer_cannot_take_is_told_with_its_name():
    """One picture alone has no variance: torch's words came out of the middle of a worker."""
    config = settings(**PICTURES, batch_size=1, last_minibatch="keep")
    task = open_task(resolve(config))
    stage = task.network.build(engine=task.engine, seed=0)
    entering = stage.enter(task.engine.tensor(task.training.batch([0])))
    grown = {name: tensor[:, :, :1, :1] for name, tensor in entering.items()}
    with raises("layer.raises", "ValueError in minibatch 7", layer="norms.0", name="own_networks.py:pictures"):
        stage(grown, minibatch=7)


def test_no_minibatch_of_examples_to_profile_on_has_a_single_sample():
    config = settings(**PICTURES)
    training = open_task(resolve(config)).training
    sizes = [len(batch) for batch in spread(training, dict.fromkeys(range(18), 1), batch_size=4)]
    assert sizes == [2, 4, 8, 16]


def test_a_profile_of_examples_says_how_many_samples_a_minibatch_has():
    """It said so many as the middle one of those that were measured has: half as many, and throughputs were halved."""
    found = profile_model(PICTURES["model"], PICTURES["data"], batch_size=8, repeats=1)
    assert found.origin["measured_samples"] == [2, 4, 8, 16]
    assert found.batch_size == found.size() == 8


def test_options_of_a_data_function_are_its_own_when_profiled(tmp_path):
    """Options named as settings of clouds, such as `features`, were taken for those and did not reach the function."""
    body = "import torch\ndef make(split, features=2): return [(torch.ones(features), k % 2) for k in range(8)]\n"
    (tmp_path / "data.py").write_text(body)
    module, source = torch.nn.Linear(5, 2), f"{tmp_path}/data.py:make"
    found = profile_model(module, source, batch_size=4, data_args={"features": 5}, repeats=1)
    assert found.origin["measured_samples"]


def test_an_lstm_of_usual_size_is_a_network():
    """Without a gradient its sums are added up in another order: in the last bits it is not the module it was."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Embedding(300, 128), torch.nn.LSTM(128, 128, batch_first=True))
    assert [row.kind for row in trace(module, torch.randint(0, 300, (2, 57))).rows] == ["Embedding", "LSTM"]


def two_stages(config: RunConfig, cut: int, **options) -> tuple[LearningTask, list[NetworkStage]]:
    task = open_task(resolve(config))
    ids = [row.id for row in task.network.rows]
    parts = (Stage(tuple(ids[:cut]), (0,), **options), Stage(tuple(ids[cut:]), (1,), **options))
    made = {"config": config, "device": torch.device("cpu"), "loss": task.loss}
    plan = Plan(parts, schedule="1f1b")
    return task, [NetworkStage(task.network, task.engine, plan, k, **made) for k in (0, 1)]


def test_a_returned_input_is_read_by_the_last_stage():
    """The loss of an autoencoder takes the input: no layer of the last stage did, and it ended with a KeyError."""
    task, (first, last) = two_stages(settings(**CODES), 3)
    assert first.reads_samples and last.reads_samples
    batch = task.training.batch([0, 1, 2])
    _, outputs = first.forward(batch, Version(0, first.parameters()), 0)
    packet = first.pack_outputs(outputs, 0, 3).packet
    _, outputs = last.forward(PacketAndSamples(packet, batch), Version(0, last.parameters()), 0)
    assert torch.equal(last.result(outputs)[1], batch.inputs)
    assert torch.isfinite(last.loss(outputs, batch.target, samples=3)[0])


def test_a_stage_that_recomputes_keeps_buffers_that_are_resized():
    task, (first, _) = two_stages(settings(**CODES | {"model": f"{OWN}:observed"}), 2, recompute=True)
    batch = task.training.batch([0, 1, 2])
    assert first.buffers()["first.least"].shape == (0,)
    flight, _ = first.forward(batch, Version(0, first.parameters()), 0)
    assert first.buffers()["first.least"].shape == (0,)  # the second forward counts
    first.run_again(flight)
    assert torch.equal(first.buffers()["first.least"], batch.inputs.flatten(1).amin(0))
