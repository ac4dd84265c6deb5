"""GNMT and BERT against a plain reference, published sizes and transformers; padding changes nothing; they trace."""

import subprocess
import sys

import pytest
import torch
from coded import raises
from torch import fx, nn

from sparsepipe.engines.plain import PlainEngine
from sparsepipe.networks.losses import open_loss
from sparsepipe.networks.texts import TEXT_NETWORKS
from sparsepipe.networks.texts.bert import bert
from sparsepipe.networks.texts.gnmt import BothWays, gnmt
from sparsepipe.networks.traced import TracedNetwork, trace
from sparsepipe.networks.traced.verification import differences

WORDS = 20


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def translator(**options) -> nn.Module:
    options = {"vocabulary_size": WORDS, "hidden": 6, "num_layers": 4, "dropout": 0.0} | options
    return gnmt(**options).double()


def reader(**options) -> nn.Module:
    return bert(
        **{"vocabulary_size": WORDS, "sequence_length": 12, "hidden": 8, "num_heads": 2, "num_layers": 2} | options
    )


def sentences() -> dict[str, torch.Tensor]:
    """Three pairs: sources of 5, 3 and 1 words."""
    mask = torch.arange(5) < torch.tensor([5, 3, 1])[:, None]
    return {"source": torch.randint(1, WORDS, (3, 5)), "source_mask": mask, "target": torch.randint(1, WORDS, (3, 4))}


def text() -> dict[str, torch.Tensor]:
    mask = torch.arange(7) < torch.tensor([7, 4])[:, None]
    words = torch.randint(1, WORDS, (2, 7))
    return {"words": words, "token_types": (torch.arange(7) > 2).long().expand(2, 7), "attention_mask": mask}


def padded(inputs: dict[str, torch.Tensor], more: int = 3) -> dict[str, torch.Tensor]:
    return {name: nn.functional.pad(value, (0, more)) for name, value in inputs.items()}


def by_steps(layer: nn.LSTM, x: torch.Tensor) -> torch.Tensor:
    """What an LSTM layer says of one sentence [S, I], by LSTMCell, a word at a time."""
    cell = nn.LSTMCell(layer.input_size, layer.hidden_size).double()
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    state, said = None, []
    for word in x:
        state = cell(word, state)
        said.append(state[0])
    return torch.stack(said)


def reference(model: nn.Module, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """GNMT's logits of one pair without padding, word by word: Wu et al. 2016, sections 3 and 3.1, in plain loops."""
    encoder, decoder = model.encoder, model.decoder
    x = encoder.embedding.weight[source]
    ahead = by_steps(encoder.first.forwards, x)
    back = by_steps(encoder.first.backwards, x.flip(0)).flip(0)
    x = by_steps(encoder.layers[0], torch.cat([ahead, back], 1))
    for layer in encoder.layers[1:]:
        x = by_steps(layer, x) + x
    asks = by_steps(decoder.first, decoder.embedding.weight[target])
    contexts = []
    attention = decoder.attention
    inner = attention.scores
    unit = inner.vector / inner.vector.square().sum().sqrt()
    for asked in asks:
        scores = []
        for word in x:
            energy = torch.tanh(attention.query.weight @ asked + attention.key.weight @ word + inner.bias)
            scores.append(inner.scale * unit @ energy)
        weights = torch.exp(torch.stack(scores)) / torch.exp(torch.stack(scores)).sum()
        contexts.append(sum(weight * word for weight, word in zip(weights, x, strict=True)))
    context = torch.stack(contexts)
    y = by_steps(decoder.layers[0], torch.cat([asks, context], 1))
    for layer in decoder.layers[1:]:
        y = by_steps(layer, torch.cat([y, context], 1)) + y
    return y @ decoder.classifier.weight.T + decoder.classifier.bias


def test_gnmt_is_the_step_by_step_reference() -> None:
    model, pairs = translator(), sentences()
    nn.init.uniform_(model.decoder.attention.scores.bias)  # it begins at 0, where it could be forgotten
    logits = model(**pairs)
    for pair, length in enumerate([5, 3, 1]):
        expected = reference(model, pairs["source"][pair, :length], pairs["target"][pair])
        torch.testing.assert_close(logits[pair], expected, rtol=1e-10, atol=1e-12)


def test_the_first_layer_reads_as_torchs_bidirectional_lstm_does_of_packed_sentences() -> None:
    layer, both = BothWays(6).double(), nn.LSTM(6, 6, batch_first=True, bidirectional=True).double()
    weights = layer.forwards.state_dict()
    weights |= {f"{name}_reverse": value for name, value in layer.backwards.state_dict().items()}
    both.load_state_dict(weights)
    mask, x = sentences()["source_mask"], torch.randn(3, 5, 6, dtype=torch.float64)
    packed = nn.utils.rnn.pack_padded_sequence(x, mask.sum(1), batch_first=True)
    expected, _ = nn.utils.rnn.pad_packed_sequence(both(packed)[0], batch_first=True)
    torch.testing.assert_close(layer(x, mask)[mask], expected[mask])


def test_padding_changes_no_translation() -> None:
    model, pairs = translator(), sentences()
    torch.testing.assert_close(model(**padded(pairs))[:, :4], model(**pairs), rtol=1e-12, atol=1e-14)
    first = {"source": pairs["source"][1:2, :3], "source_mask": pairs["source_mask"][1:2, :3]}
    torch.testing.assert_close(model(**first, target=pairs["target"][1:2]), model(**pairs)[1:2])


def test_no_gradient_comes_from_padding() -> None:
    model, pairs = translator(), sentences()
    pairs["source"][~pairs["source_mask"]] = 0
    model(**pairs).sum().backward()
    assert not model.encoder.embedding.weight.grad[0].any()


def test_padding_changes_nothing_that_bert_reads() -> None:
    model, batch = reader().double().eval(), text()
    words, sentence = model(**batch)
    more_words, more_sentence = model(**padded(batch))
    torch.testing.assert_close(more_words[:, :7], words, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(more_sentence, sentence, rtol=1e-12, atol=1e-14)
    alone = {name: value[1:, :4] for name, value in batch.items()}
    torch.testing.assert_close(model(**alone)[0], words[1:, :4], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("model", "inputs"), [(translator, sentences), (reader, text)])
def test_they_trace_with_fx_and_take_other_shapes_then(model, inputs) -> None:
    network, batch = model().eval(), inputs()
    traced = fx.symbolic_trace(network)
    for taken in (batch, padded(batch), {name: value[:1] for name, value in batch.items()}):
        torch.testing.assert_close(traced(**taken), network(**taken), rtol=0, atol=0)
    numbers = [node for node in traced.graph.nodes if node.target in ("size", "dim") or "getattr" in node.name]
    assert not numbers  # no size is a value of its own, so none would cross between stages


@pytest.mark.parametrize("shared", [False, True], ids=["two embeddings", "one embedding"])
def test_gnmt_is_the_same_network_in_stages(shared) -> None:
    model, pairs = translator(shared_embedding=shared, dropout=0.2), sentences()
    network = trace(model, pairs, name="gnmt")
    assert network.opaque == ()
    assert set(network.direct_inputs) == {f"input:{name}" for name in pairs}
    same_in_stages(network, pairs, "tokens", torch.randint(0, WORDS, (3, 4)))


def test_bert_is_the_same_network_in_stages() -> None:
    model, batch = reader(dropout=0.1).double(), text()
    target = {"words": torch.randint(0, WORDS, (2, 7)), "next_sentence": torch.tensor([0, 1])}
    network = trace(model, batch, name="bert")
    assert network.opaque == () and set(network.direct_inputs) == {f"input:{name}" for name in batch}
    same_in_stages(network, batch, "masked-words", target)


def same_in_stages(network: TracedNetwork, inputs: dict, loss_name: str, target) -> None:
    """The same to the last bit, every layer a stage of its own: outputs, and gradients of the loss that it is for."""
    loss = open_loss(loss_name, facts={})
    for stages in (0, 4):
        for training in (True, False):
            assert not differences(
                network,
                inputs,
                engine=PlainEngine(),
                loss=lambda output: loss(output, target, samples=2)[0],
                stages=stages,
                training=training,
            )


def num_bytes(module: nn.Module) -> int:
    return 4 * sum(parameter.numel() for parameter in module.parameters())


def test_gnmt_has_the_bytes_of_pipedreams_published_profile() -> None:
    """Tarnawski et al. 2020 (throughput inputs, LayerGraphs/gnmt_inference): parameters and outputs of each layer.

    Batch 128, 25 words, 1024 wide, vocabularies of 32,320: an output is 128 x 25 x 1024 float32, a state 128 x 1024.
    """
    output, state = 4 * 128 * 25 * 1024, 4 * 128 * 1024
    with torch.device("meta"):
        model = gnmt()
    encoder, decoder = model.encoder, model.decoder
    assert num_bytes(encoder.embedding) + output == num_bytes(decoder.embedding) + output == 145489920
    assert num_bytes(encoder.first) + 2 * output == 93388800
    assert [num_bytes(layer) + output + 2 * state for layer in encoder.layers] == [64520192, *[47742976] * 6]
    # Theirs is without the scalar and the bias of the normalised attention: 1 + 1024 parameters fewer.
    attending = num_bytes(decoder.first) + num_bytes(decoder.attention) + 2 * output + 2 * state + 4 * 128 * 25 * 25
    assert attending == 69562880 + 4 * (1 + 1024)
    assert [num_bytes(layer) + output + 2 * state for layer in decoder.layers] == [64520192] * 7
    assert num_bytes(decoder.classifier) + 4 * 128 * 25 * 32320 == 546208000


def test_gnmt_4_has_as_many_parameters_as_nvidias() -> None:
    """MLPerf's reference logs "Number of parameters: 159593523" for its vocabulary of 31,794 and one embedding."""
    with torch.device("meta"):
        model = gnmt(num_layers=4, vocabulary_size=31794, shared_embedding=True)
    assert sum(parameter.numel() for parameter in model.parameters()) == 159593523


def test_bert_large_has_the_bytes_of_the_published_profile() -> None:
    """As GNMT's, LayerGraphs/bert24_inference: batch 2, 512 words, float32. Both heads' layers are one node there."""
    output, logits = 4 * 2 * 512 * 1024, 4 * 2 * 512 * 30522
    with torch.device("meta"):
        model = bert(num_layers=24, hidden=1024, num_heads=16)
    assert num_bytes(model.embeddings) + output == 131325952
    assert [num_bytes(layer) + output for layer in model.layers] == [54579200] * 24
    assert num_bytes(model.sentence_head.pooler) + 4 * 2 * 1024 == 4206592
    assert num_bytes(model.word_head) + num_bytes(model.sentence_head.classifier) + logits + 4 * 2 * 2 == 254373120


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 110106428), ({"num_layers": 24, "hidden": 1024, "num_heads": 16}, 336226108)],
    ids=["base", "large"],
)
def test_bert_has_as_many_parameters_as_published(options, count) -> None:
    """Devlin et al. 2018 say 110 and 340 million; these are the exact counts of their uncased checkpoints."""
    with torch.device("meta"):
        model = bert(**options)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


RENAMED = {  # transformers' name of a part -> ours
    "bert.embeddings.word_embeddings": "embeddings.words",
    "bert.embeddings.position_embeddings": "embeddings.places",
    "bert.embeddings.token_type_embeddings": "embeddings.token_types",
    "bert.embeddings.LayerNorm": "embeddings.norm",
    "bert.encoder.layer": "layers",
    "attention.self": "attention",
    "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "wide",
    "output.dense": "narrow",
    "output.LayerNorm": "norm",
    "bert.pooler.dense": "sentence_head.pooler",
    "cls.predictions.transform.dense": "word_head.dense",
    "cls.predictions.transform.LayerNorm": "word_head.norm",
    "cls.predictions.decoder": "word_head.decoder",
    "cls.predictions.bias": "word_head.decoder.bias",
    "cls.seq_relationship": "sentence_head.classifier",
}


def ours(name: str) -> str:
    for theirs, own in RENAMED.items():
        if theirs in name and not (theirs.startswith("output") and "attention.output" in name):
            name = name.replace(theirs, own)
    return name


def test_bert_is_transformers_bert() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": WORDS, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=32, max_position_embeddings=12)
    theirs, own = transformers.BertForPreTraining(config).eval(), reader().eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)  # biases and norms too, or they would not count
    renamed = {ours(name): value for name, value in theirs.state_dict().items() if "position_ids" not in name}
    own.load_state_dict(renamed)
    batch = text()
    taken = {"input_ids": batch["words"], "token_type_ids": batch["token_types"]}
    words, sentence = own(**batch)
    expected = theirs(**taken, attention_mask=batch["attention_mask"].long())
    real = batch["attention_mask"]
    torch.testing.assert_close(words[real], expected.prediction_logits[real], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sentence, expected.seq_relationship_logits, rtol=1e-4, atol=1e-4)

    back = reader().eval()  # ours into theirs
    backwards = {name: back.state_dict()[ours(name)] for name in theirs.state_dict() if "position_ids" not in name}
    theirs.load_state_dict(backwards, strict=False)
    expected = theirs(**taken, attention_mask=batch["attention_mask"].long())
    torch.testing.assert_close(back(**batch)[0][real], expected.prediction_logits[real], rtol=1e-4, atol=1e-4)


def test_berts_word_head_is_tied_to_the_embedding_and_learns_from_both() -> None:
    model, batch = reader(), text()
    assert model.word_head.decoder.weight is model.embeddings.words.weight
    model(**batch)[0].sum().backward()
    unread = (set(range(WORDS)) - set(batch["words"].flatten().tolist())).pop()
    assert model.embeddings.words.weight.grad[unread].any()  # by the head alone


def test_names_are_built_lazily_and_stand_in_their_files() -> None:
    code = "import sys, sparsepipe.networks.texts as t; print('torch' in sys.modules, *t.TEXT_NETWORKS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "gnmt", "gnmt4", "gnmt-small", "bert-base", "bert-large", "bert-small"]
    builders = {"texts.gnmt": gnmt, "texts.bert": bert}
    for name, network in TEXT_NETWORKS.items():
        builder = builders[network.home]
        assert network.function == builder.__name__ and network.summary, name
        with torch.device("meta"):
            assert isinstance(builder(**network.args), nn.Module)


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda: gnmt(num_layers=1), ("model.sizes_malformed", "1 layer")),
        (lambda: gnmt(source_vocabulary_size=5, target_vocabulary_size=-1), ("model.sizes_malformed", "5", "-1")),
        (
            lambda: gnmt(source_vocabulary_size=5, target_vocabulary_size=6, shared_embedding=True),
            ("model.vocabularies_differ",),
        ),
        (lambda: bert(hidden=10, num_heads=3), ("model.sizes_malformed", "10", "3 heads")),
        (lambda: bert(sequence_length=0), ("model.sizes_malformed", "0")),
    ],
)
def test_sizes_that_cannot_be(build, error) -> None:
    with raises(*error):
        build()
