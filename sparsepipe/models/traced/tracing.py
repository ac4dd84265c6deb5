"""Makes a network of any torch module, and makes sure that it is the same network."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from ...errors import InputError
from . import exported, tracer
from .assembly import Assembly
from .copies import module_at
from .grouping import Grouping
from .inputs import Inputs
from .network import TracedNetwork
from .recording import CannotBeTraced, Recording, names_of, observe, put_back
from .sizes import Sizes
from .subnetwork import LayerFailed
from .values import Structure, features, flattened, is_tensor, odd_entry, tensors_of

MODES = (True, False)  # whether it trains


def trace(
    module: nn.Module,
    example: Any,
    *,
    name: str = "the module",
    say: Callable[[str], None] | None = None,
    num_classes: int = 0,
) -> TracedNetwork:
    """Make a network of a module: its forward is run on an example and written down as layers.

    `example` is what a forward takes: a tensor (dense or sparse), a tuple (positional arguments) or a dict (keywords).
    Sizes of a minibatch and lengths of sequences may differ from the example's later on. A layer is the call of one of
    torch's modules, of a module without parts, or of a function; what cannot be looked into is one layer, and `say` is
    told so in a line. The module stays as it is, buffers and modes too.

    Raises InputError for what is no network: its forward raises, gives no tensor, or it has no parameters to train.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"{name} is a {type(module).__name__}, expected a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InputError(f"{name}: {type(module).__name__} has no parameters to train")
    for key, tensor in module.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and tensor.layout != torch.strided:
            raise InputError(
                f"{name}: {key} has the layout {tensor.layout}, checkpoints have dense tensors: "
                "register it as a buffer with persistent=False"
            )
    inputs = Inputs.of(name, example)
    with put_back(module), warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        modes = _modes(module, name)
        expected = {training: _run(module, inputs, training, name) for training in MODES}
        traced = _first_that_agrees(module, inputs, name, modes, expected, num_classes)
    if say is not None:
        for line in traced.opaque:
            say(line)
    return traced


@dataclass(frozen=True)
class Way:
    """A way of recording a module."""

    record: Callable[[nn.Module, Inputs], Mapping[bool, Recording]]
    whole: Callable[[fx.Node, nn.Module], str]


def _first_that_agrees(
    module: nn.Module,
    inputs: Inputs,
    name: str,
    modes: Mapping[bool, Mapping[str, bool]],
    expected: Mapping[bool, Any],
    num_classes: int,
) -> TracedNetwork:
    """Try torch.fx, then torch.export, then the module as one layer: the first that gives what the module gives."""
    reasons: list[str] = []
    partial: TracedNetwork | None = None
    ways = [Way(_with_fx, _no_whole), Way(_with_export, exported.whole_module), Way(_as_one, _no_whole)]
    if isinstance(module, torch.jit.ScriptModule):
        reasons.append("torch.jit has compiled it as a whole")
        del ways[:-1]
    for way in ways:
        try:
            network = _assembled(module, inputs, name, modes, way, expected, num_classes, reasons)
            _check_against(network, inputs, expected)
        except CannotBeTraced as error:
            reasons.append(str(error))
            continue
        if way.record is _with_fx and _hides_much(network):
            partial = network
            continue
        if partial is not None and (way.record is _as_one or not _sees_more(network, partial)):
            return partial
        return network
    raise InputError(f"{name}: {type(module).__name__} cannot be a network ({reasons[-1]})")


def _no_whole(node: fx.Node, module: nn.Module) -> str:
    return ""


def _hides_much(network: TracedNetwork) -> bool:
    """Whether what could not be looked into has most of the parameters: another way may see more."""
    total = sum(row.num_parameters for row in network.rows)
    hidden = sum(row.num_parameters for row in network.rows if network.opaque_paths & set(row.modules))
    return 2 * hidden > total


def _sees_more(network: TracedNetwork, partial: TracedNetwork) -> bool:
    """Whether an exported network has more layers, and takes minibatches and sequences of any length too."""
    lengths = [(name, axis) for name, sizes in network.sizes.axes.items() for axis in exported.open_axes(len(sizes))]
    free = not any(network.sizes.fixed(name, axis) for name, axis in lengths)
    return free and len(network.rows) > len(partial.rows)


def _assembled(
    module: nn.Module,
    inputs: Inputs,
    name: str,
    modes: Mapping[bool, Mapping[str, bool]],
    way: Way,
    expected: Mapping[bool, Any],
    num_classes: int,
    reasons: list[str],
) -> TracedNetwork:
    recordings = way.record(module, inputs)
    written = {buffer for each in recordings.values() for node in each.nodes for buffer in node.meta["buffers"]}
    groupings = {
        training: Grouping(each, module, whole=lambda node: way.whole(node, module), written=written)
        for training, each in recordings.items()
    }
    for training, each in recordings.items():
        if any(isinstance(leaf, fx.Node) and Structure.of(leaf.meta["value"]) is None for leaf in each.outputs):
            entry = odd_entry(expected[training]) or "what is neither tensor nor number"
            remedy = " (in transformers: use_cache=False)" if entry.endswith("Cache") else ""
            raise CannotBeTraced(f"it returns {entry}, expected tensors and numbers: leave it out{remedy}")
    assembly = Assembly(module, groupings, tuple(inputs.tensors))
    made = assembly.assembled()
    for each in recordings.values():
        _let_go(each)
    opaque = {path: why for each in recordings.values() for path, why in each.opaque.items()}
    if way.record is _as_one:
        opaque[""] = "; ".join(dict.fromkeys(reasons))
    return TracedNetwork(
        name=name,
        module=module,
        arguments=inputs,
        rows=tuple(made.rows),
        results=made.results,
        direct_inputs=tuple(key for key, tensor in inputs.tensors.items() if isinstance(tensor, Tensor)),
        differentiable=made.differentiable,
        rectified=made.rectified,
        opaque=tuple(_line(name, module, path, why) for path, why in opaque.items()),
        opaque_paths=frozenset(opaque),
        modes=modes,
        sizes=Sizes.of(name, {training: each.sizes for training, each in recordings.items()}),
        constants=made.constants,
        num_classes=num_classes,
    )


def _let_go(recording: Recording) -> None:
    """Drop what operations gave on the example, and the graph of autograd behind it."""
    for node in recording.nodes:
        node.meta = {"no_grad": node.meta["no_grad"]}


def _line(name: str, module: nn.Module, path: str, why: str) -> str:
    kind = type(module_at(module, path)).__name__
    if not path:
        return f"{name}: {kind} is one layer, it cannot be cut: {why}"
    return f"{name}: {path} ({kind}) is one layer, it could not be looked into: {why}"


def _with_fx(module: nn.Module, inputs: Inputs) -> Mapping[bool, Recording]:
    leaves: set[str] = set()
    reasons: dict[str, str] = {}
    while True:
        recordings = {}
        for training in MODES:
            with put_back(module):
                module.train(training)
                recordings[training] = tracer.record(module, inputs, leaves=leaves)
        opaque = {path: why for each in recordings.values() for path, why in each.opaque.items()}
        outer = {path for path in opaque if not any(path.startswith(f"{other}.") for other in opaque)}
        reasons.update(opaque)
        if all(set(each.opaque) | leaves >= outer for each in recordings.values()):
            for each in recordings.values():
                each.opaque = {path: why for path, why in reasons.items() if path in leaves | outer}
            return recordings
        leaves |= outer


def _with_export(module: nn.Module, inputs: Inputs) -> Mapping[bool, Recording]:
    recordings = {}
    for training in MODES:
        with put_back(module):
            module.train(training)
            recordings[training] = exported.record(module, inputs)
    return recordings


def _as_one(module: nn.Module, inputs: Inputs) -> Mapping[bool, Recording]:
    """The whole module as one operation."""
    recordings = {}
    for training in MODES:
        graph, nodes = fx.Graph(), {}
        for number, (key, tensor) in enumerate(inputs.tensors.items()):
            node = nodes[key] = graph.placeholder(f"value_{number}")
            node.meta.update(value=tensor, path="", draws=False, no_grad=False, written=set(), buffers=set())
            node.meta["storages"] = frozenset()
        args, kwargs = inputs.arguments(dict(nodes))
        call = graph.create_node("call_module", "", args, kwargs)
        call.meta["path"] = ""
        with put_back(module):
            module.train(training)
            observe(call, module, names_of(module))
        leaves, spec = flattened(call)
        recordings[training] = Recording([*nodes.values(), call], nodes, leaves, spec)
    return recordings


def _modes(module: nn.Module, name: str) -> dict[bool, dict[str, bool]]:
    """Return what train() and eval() make of each part: a module may keep some from training."""
    found = {}
    for training in MODES:
        with put_back(module):
            try:
                module.train(training)
            except Exception as error:  # whatever it raises; a module that torch.export made does
                what = f"raises {type(error).__name__} ({' '.join(str(error).split())})"
                raise InputError(f"{name}: train({training}) of {type(module).__name__} {what}") from error
            found[training] = {path: part.training for path, part in module.named_modules()}
    return found


def _run(module: nn.Module, inputs: Inputs, training: bool, name: str) -> Any:
    """Run the module on the example; return what it gives. Raises InputError where that is no network's output."""
    args, kwargs = inputs.arguments({})
    try:
        with put_back(module):
            module.train(training)
            torch.manual_seed(0)
            found = _copied(module(*args, **kwargs))
    except Exception as error:  # whatever it raises
        what = " ".join(str(error).split())[:200]
        raise InputError(
            f"{name}: the forward of {type(module).__name__} raises {type(error).__name__} on the example ({what})"
        ) from error
    if not tensors_of(found):
        raise InputError(
            f"{name}: the forward of {type(module).__name__} returns a {type(found).__name__}, expected tensors"
        )
    if training and not any(tensor.requires_grad for tensor in tensors_of(found)):
        raise InputError(
            f"{name}: nothing that the forward of {type(module).__name__} returns in training depends on a parameter: "
            "there is nothing to train"
        )
    return found


def _copied(output: Any) -> Any:
    """Return an output with tensors of its own: one may be a buffer, which is put back."""
    leaves, spec = flattened(output)
    return pytree.tree_unflatten([leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)


def _check_against(network: TracedNetwork, inputs: Inputs, expected: Mapping[bool, Any]) -> None:
    """Run the layers one by one and compare with the module's outputs. Raises CannotBeTraced where they differ."""
    for training in MODES:
        stage = network.build(engine=None).train(training)
        stage.draws_by_layer = False
        torch.manual_seed(0)
        try:
            # With gradients, as the module ran: without them LSTMs take another kernel, which rounds differently.
            found = stage.result(stage(inputs.tensors, minibatch=0))
        except LayerFailed as error:
            raise CannotBeTraced(f"of its layers one by one, {str(error)[:150]}") from error
        except Exception as error:  # of any kind: the recording is not the module
            raise CannotBeTraced(
                f"its layers raise {type(error).__name__} ({' '.join(str(error).split())[:100]})"
            ) from error
        ours, theirs = flattened(found), flattened(expected[training])
        if ours[1] != theirs[1] or not all(map(_equal, ours[0], theirs[0])):
            raise CannotBeTraced("its layers one by one give something else than the module")


def _equal(ours: Any, theirs: Any) -> bool:
    """Whether two values are the same but for rounding, as `verify` means it: of the largest number in them.

    LSTMs have another kernel where no gradient is asked for, which adds up in another order.
    """
    if not is_tensor(theirs):
        return type(ours) is type(theirs) and bool(ours == theirs)
    a, b = features(ours), features(theirs)
    if a.dtype != b.dtype or a.shape != b.shape or not a.is_floating_point():
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    finite = b.isfinite()
    most = 1000 * torch.finfo(b.dtype).eps * float(b[finite].abs().max()) if bool(finite.any()) else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=most, equal_nan=True)
