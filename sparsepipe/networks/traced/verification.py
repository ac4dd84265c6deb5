"""Compares a cut network with the module that it was made of: outputs, gradients, buffers, in both modes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...errors import InputError
from ..base import direct_reads
from .building import without_checkpoints
from .copies import module_at, other_weights
from .recording import names_of, own_draws, put_back, seed_all
from .statements import paths_called
from .subnetwork import TracedNetwork, TracedSubnetwork
from .values import Structure, entries_that_cross, features, flattened, in_order, is_sparse, is_tensor

Loss = Callable[[Any], Tensor]

_PASSES = 2  # what a forward leaves behind is met by the next one
_MORE_TRIES = 2  # comparisons that have to differ as well, each with other weights


@dataclass
class Pass:
    """Results of one minibatch: outputs in order; gradients, buffers and layer values by name."""

    outputs: list[Any]
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    what: str  # "output 0", "gradient of fc.weight"
    layer: str
    size: float  # largest absolute difference; inf for another shape, type or number of values
    relative: float  # of the largest number compared with


def verify(
    network: TracedNetwork,
    inputs: Any,
    *,
    engine: Any,
    loss: Loss | None = None,
    stages: Sequence[Sequence[str]] | int | None = None,
) -> None:
    """Run a minibatch, twice in a row, through the stages of a network and through its module, and compare.

    In each phase that was traced. Take other samples than those of the trace, and another number of them: what tracing
    froze is the same on its own. Stages share no memory, and keep their buffers from one pass to the next.

    `stages`: the layers of each, or a number of stages of about as many layers; two by default; 0: every layer its own.
    `loss` takes what the module returns; left out, it is the mean square of its outputs. Dropout draws the same in
    both. Raises InputError that names the first layer whose value differs, or whose gradient does, by more than
    rounding.

    What differs is compared again with weights that are a little off, which tells another network from a kink: sparse
    sums come in another order from one pass to the next, and where a ReLU's input is 0 but for their rounding, or two
    rows share a maximum, a gradient goes one way or the other.
    """
    for training in network.phases:

        def beyond_rounding(training: bool = training) -> Difference | None:
            found = differences(network, inputs, engine=engine, loss=loss, stages=stages, training=training)
            return next((each for each in found if each.relative > _rounding(network)), None)

        first = beyond_rounding()
        if first is None:
            continue
        with _weights_kept(network.module):
            for seed in range(_MORE_TRIES):
                _nudge(network.module, seed)
                if beyond_rounding() is None:
                    break
            else:
                raise InputError(
                    "model.stages_differ",
                    f"{network.name}: the stages and the unsplit network differ: "
                    f"{'training' if training else 'evaluating'}, layer {first.layer!r} (its {first.what} is off by "
                    f"{first.size:.2g})",
                    layer=first.layer,
                )


@contextmanager
def _weights_kept(module: nn.Module) -> Iterator[None]:
    """Give a module's parameters back, at the end of the block, the values that they had, to the bit."""
    values = [(parameter, parameter.detach().clone()) for parameter in module.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in values:
                parameter.copy_(value)


def _nudge(module: nn.Module, seed: int) -> None:
    """Change each weight by about a hundredth of itself."""
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.mul_(1 + 0.01 * torch.randn(parameter.shape, generator=drawn).to(parameter))


def _rounding(network: TracedNetwork) -> float:
    kinds = [p.dtype for p in network.module.parameters() if p.is_floating_point()]
    return 1000 * max(torch.finfo(kind).eps for kind in kinds)


def differences(
    network: TracedNetwork,
    inputs: Any,
    *,
    engine: Any,
    loss: Loss | None = None,
    stages: Sequence[Sequence[str]] | int | None = None,
    training: bool = True,
) -> list[Difference]:
    """Return where a cut network differs from its module on one minibatch, run twice in a row: nothing if every bit
    is the same.
    """
    inputs = _of_engine(inputs, engine)
    options: dict[str, Any] = {"loss": loss or mean_square, "training": training}
    wholes = _run_module(network, inputs, passes=_PASSES, **options)
    cuts = _run_stages(network, inputs, passes=_PASSES, engine=engine, stages=split_evenly(network, stages), **options)
    return [each for pair in zip(wholes, cuts, strict=True) for each in _of_passes(network, *pair, training)]


def _of_passes(network: TracedNetwork, whole: Pass, cut: Pass, training: bool) -> list[Difference]:
    found = _of_layers(network, whole, cut, training)
    if len(whole.outputs) != len(cut.outputs):
        found.append(Difference("the number of outputs", network.rows[-1].id, float("inf"), float("inf")))
    else:
        for i, (theirs, ours) in enumerate(zip(whole.outputs, cut.outputs, strict=True)):
            found += _compared(f"output {i}", network.rows[-1].id, theirs, ours)
    layer_of = network.layer_of
    places = {row.id: i for i, row in enumerate(network.rows)}
    last_first = sorted(whole.gradients, key=lambda key: -places[layer_of[key]])
    largest = max((float(each.abs().max()) for each in whole.gradients.values() if each.numel()), default=0.0)
    for what, keys in (("gradient", last_first), ("buffer", list(whole.buffers))):
        theirs, ours = (whole.gradients, cut.gradients) if what == "gradient" else (whole.buffers, cut.buffers)
        for key in keys:
            if key not in ours:
                found.append(Difference(f"{what} of {key}", layer_of[key], float("inf"), float("inf")))
            else:
                floor = (
                    largest / 10 if what == "gradient" else 0.0
                )  # some are nothing but rounding, as of biases before norms
                found += _compared(f"{what} of {key}", layer_of[key], theirs[key], ours[key], floor)
    return found


def _of_engine(inputs: Any, engine: Any) -> Any:
    """Return inputs whose sparse tensors are as the engine makes them, as in a run: it has pooled rows in order."""
    leaves, spec = flattened(inputs)
    sparse = {str(place): leaf for place, leaf in enumerate(leaves) if is_sparse(leaf)}
    joined = engine.join(engine.split(sparse)) if sparse else {}
    return pytree.tree_unflatten([joined.get(str(place), leaf) for place, leaf in enumerate(leaves)], spec)


def _of_layers(network: TracedNetwork, whole: Pass, cut: Pass, training: bool) -> list[Difference]:
    """Compare what modules gave, in the layers' order."""
    found = []
    # Modules that one mode calls more often, or a layer several times: which call a layer is, its id does not say.
    uneven = set[str]()
    for row in network.rows:
        for each in row.programs.values():
            calls = [str(step.target) for step in each.steps if step.op == "call_module"]
            uneven.update(calls if len(calls) > 1 or len(row.programs) < 2 else ())
            uneven.update(path for step in each.steps if step.op != "call_module" for path in paths_called(step))
    # Also those that a part calls, too, in which layers are not looked into: an activation that all share.
    called = {path: module_at(network.module, path) for row in network.rows for path in row.modules if path}
    inner = {id(each) for part in called.values() for each in part.modules() if each is not part}
    uneven.update(path for path, part in called.items() if id(part) in inner)
    for row in network.rows:
        program = row.programs.get(training) if uneven.isdisjoint(row.modules) else None
        alone = program is not None and sum(step.op == "call_module" for step in program.steps) == 1
        for port in program.gives if program is not None and alone and row.id in whole.values else ():
            if port.node.op == "call_module" and Structure.of(whole.values[row.id]) == port.structure:
                for name, theirs in zip(port.names, port.structure.split(whole.values[row.id]), strict=True):
                    found += _compared(f"value {name}", row.id, theirs, cut.values[name])
    return found


def _compared(what: str, layer: str, theirs: Any, ours: Any, floor: float = 0.0) -> list[Difference]:
    """`floor`: differences are relative to no smaller numbers."""
    if not is_tensor(theirs):
        same = type(theirs) is type(ours) and bool(theirs == ours)
        return [] if same else [Difference(what, layer, float("inf"), float("inf"))]
    a, b = (_dense(in_order(each).detach()) for each in (theirs, ours))
    if a.shape != b.shape or a.dtype != b.dtype:
        return [
            Difference(
                f"{what}: {a.dtype} {list(a.shape)} became {b.dtype} {list(b.shape)}", layer, *[float("inf")] * 2
            )
        ]
    if torch.equal(a, b):
        return []
    wide = torch.complex128 if a.is_complex() else torch.float64
    off = (a.to(wide) - b.to(wide)).abs().nan_to_num(0, float("inf"), float("inf")).max().item()
    if a.isnan().any() and not torch.equal(a.isnan(), b.isnan()):
        off = float("inf")
    scale = max(a.to(wide).abs().nan_to_num(0, 0, 0).max().item(), floor, 1e-30)
    return [Difference(what, layer, off, off / scale)] if off else []


def mean_square(output: Any) -> Tensor:
    """Return a loss that every output counts in, each with a weight of its own."""
    real = [features(leaf) for leaf in flattened(output)[0] if is_tensor(leaf)]
    terms = [
        (1 + i / 10) * (each.abs() if each.is_complex() else each).square().mean()
        for i, each in enumerate(real)
        if each.requires_grad
    ]
    return sum((term.double() for term in terms), torch.zeros((), dtype=torch.float64))


def split_evenly(network: TracedNetwork, stages: Sequence[Sequence[str]] | int | None) -> list[list[str]]:
    """Return the layers of each stage. 0 stages: every layer its own."""
    if stages is not None and not isinstance(stages, int):
        return [list(stage) for stage in stages]
    ids = [row.id for row in network.rows]
    number = min(len(ids), 2 if stages is None else stages or len(ids))
    bounds = [round(i * len(ids) / number) for i in range(number + 1)]
    return [ids[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]


def run_whole(network: TracedNetwork, inputs: Any, *, loss: Loss, training: bool) -> Pass:
    """Run the module that a network was made of, as it is."""
    return _run_module(network, inputs, loss=loss, training=training, passes=1)[0]


def _run_module(network: TracedNetwork, inputs: Any, *, loss: Loss, training: bool, passes: int) -> list[Pass]:
    module, values, found = network.module, dict[str, Any](), list[Pass]()
    counts: dict[str, int] = {}

    def keep(path: str) -> Callable[..., None]:
        def hook(part: nn.Module, args: Any, output: Any) -> None:
            counts[path] = counts.get(path, 0) + 1
            key = path if counts[path] == 1 else f"{path}-{counts[path]}"
            leaves, spec = flattened(output)  # copies: what follows may work in place
            kept = [in_order(leaf).detach().clone() if is_tensor(leaf) else leaf for leaf in leaves]
            values[key] = pytree.tree_unflatten(kept, spec)

        return hook

    with put_back(module), without_checkpoints(), ExitStack() as stack:
        module.train(training)
        called = {path for row in network.rows for path in row.modules if path}
        for path in called:
            part = module_at(module, path)
            if not isinstance(part, torch.jit.ScriptModule):  # which take no hooks
                stack.callback(part.register_forward_hook(keep(path)).remove)
        for number in range(passes):
            args, kwargs = network.arguments.arguments(network.arguments.bind(_copied(inputs)))
            seed_all(number)
            output = module(*args, **kwargs)
            names = names_of(module)
            # Of a tensor's names the one that its layer has it under: a bias may be a decoder's and its holder's.
            names |= {
                id(p): key for key, p in module.named_parameters(remove_duplicate=False) if key in network.layer_of
            }
            trained = {names[id(p)]: p for p in module.parameters() if p.requires_grad}
            try:
                given = [_dense(each) for each in _gradients([loss(output)], list(trained.values()), [None])]
            except RuntimeError as error:  # an operation without a derivative
                what = " ".join(str(error).split())
                raise InputError(
                    "model.backward_raises",
                    f"{network.name}: the backward of {type(module).__name__} raises ({what})",
                    kind=type(module).__name__,
                ) from error
            buffers = {key: each.detach().clone() for key, each in module.named_buffers() if key in network.layer_of}
            found.append(Pass(_outputs(output), dict(zip(trained, given, strict=True)), buffers, dict(values)))
            values.clear()
            counts.clear()
    return found


def _outputs(output: Any) -> list[Any]:
    """Return the leaves of an output with tensors of their own: one may be a buffer, which the next pass changes."""
    leaves = flattened(entries_that_cross(output))[0]
    return [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _copied(value: Any) -> Any:
    """Return a structure with copies of its tensors: what another process has."""
    return pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, value)


def run_cut(
    network: TracedNetwork,
    inputs: Any,
    *,
    engine: Any,
    loss: Loss,
    stages: Sequence[Sequence[str]],
    training: bool,
    seeded: bool = False,
    minibatch: int = 0,
) -> Pass:
    """Run a network stage by stage as processes would: on values that crossed, with gradients handed back.

    `seeded`: layers draw from seeds of their own, as in training; else as the whole module would.
    """
    options: dict[str, Any] = {"loss": loss, "training": training, "seeded": seeded, "minibatch": minibatch}
    return _run_stages(network, inputs, engine=engine, stages=stages, passes=1, **options)[0]


def _run_stages(
    network: TracedNetwork,
    inputs: Any,
    *,
    engine: Any,
    loss: Loss,
    stages: Sequence[Sequence[str]],
    training: bool,
    passes: int,
    seeded: bool = False,
    minibatch: int = 0,
) -> list[Pass]:
    built = [network.build(ids, engine=engine, seed=0).train(training) for ids in stages]
    for stage in built:
        stage.draws_by_layer = seeded
    with own_draws():
        return [
            _through(network, built, inputs, engine=engine, loss=loss, minibatch=minibatch + number, seed=number)
            for number in range(passes)
        ]


def _through(
    network: TracedNetwork,
    stages: Sequence[TracedSubnetwork],
    inputs: Any,
    *,
    engine: Any,
    loss: Loss,
    minibatch: int,
    seed: int,
) -> Pass:
    found = Pass([], {}, {})
    tape: list[tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]] = []
    alive, before = dict[str, Any](), set[str]()
    seed_all(seed)
    for number, stage in enumerate(stages):
        bound = stage.enter(_copied(inputs))
        entering, leaves = _received(alive, engine, network)
        last = number == len(stages) - 1
        direct = direct_reads(network, stage.table, last=last)
        given = {name: bound[name] for name in bound if number == 0 or name in direct} | entering
        weights = {name: p.detach().requires_grad_(p.requires_grad) for name, p in stage.named_parameters()}
        with other_weights(stage, weights):
            values = stage(given, minibatch=minibatch)
        found.values.update({name: value for name, value in values.items() if name not in found.values})
        buffers = {name: b.detach().clone() for name, b in stage.named_buffers() if name in network.layer_of}
        found.buffers.update(buffers)
        before |= set(stage.layer_ids)
        names = () if last else network.alive(before, training=stage.training)
        alive = {name: values[name] for name in names}
        tape.append((alive, weights, leaves))
    output = stage.result(values)
    found.outputs = _outputs(output)
    _backward(tape, loss(output), found, network)
    return found


def _received(
    alive: Mapping[str, Any], engine: Any, network: TracedNetwork
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return values as another process has them, and what of them gradients are wanted of."""
    if not alive:
        return {}, {}
    parts = engine.split(alive)
    rows = {name: feature.rows.detach().clone() for name, feature in parts.features.items()}
    leaves = {name: each.requires_grad_() for name, each in rows.items() if name in network.differentiable}
    features_of = {name: feature._replace(rows=rows[name]) for name, feature in parts.features.items()}
    sets = tuple(each._replace(manager=None) for each in parts.coordinate_sets)
    return engine.join(type(parts)(sets, features_of, parts.tables)), leaves


def _backward(tape: list[Any], loss: Tensor, found: Pass, network: TracedNetwork) -> None:
    outputs, given = [loss], [torch.ones_like(loss)]
    for number in range(len(tape) - 1, -1, -1):
        _, weights, leaves = tape[number]
        trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
        wanted = [*trained.values(), *leaves.values()]
        back = _gradients(outputs, wanted, given)
        for name, gradient in zip([*trained, *leaves], back, strict=True):
            if gradient.layout != torch.strided:
                raise InputError(
                    "model.sparse_gradient",
                    f"{network.name}: the gradient of {name} is sparse, but stages exchange only dense gradients; "
                    "omit sparse=True",
                    name=name,
                )
        found.gradients.update(zip(trained, back, strict=False))
        arrived = dict(zip(leaves, back[len(trained) :], strict=True))
        if number:
            left = tape[number - 1][0]
            outputs = [features(left[name]) for name in arrived]
            given = list(arrived.values())


def _gradients(outputs: Sequence[Tensor], wanted: Sequence[Tensor], given: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the gradients of tensors: zeros if nothing leads to them."""
    pairs = [(output, each) for output, each in zip(outputs, given, strict=True) if output.requires_grad]
    if not pairs or not wanted:
        return [torch.zeros_like(each) for each in wanted]
    ends, seeds = zip(*pairs, strict=True)
    return list(torch.autograd.grad(ends, wanted, seeds, allow_unused=True, materialize_grads=True))


def _dense(gradient: Tensor) -> Tensor:
    """An embedding may ask for sparse ones; in a stage none does."""
    return gradient if gradient.layout == torch.strided else gradient.to_dense()
