"""Makes a network of any torch module, and makes sure that it is the same network."""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from ...errors import CODE_FAILURES, InputError
from . import exported, frozen, tracer
from .assembly import Assembly
from .copies import module_at
from .frozen import Watch
from .grouping import Grouping
from .inputs import ForwardInputs
from .outlining import Outlining
from .proxies import OTHER_ANSWERS, SizeDecision
from .recording import (
    CannotBeTraced,
    ChangedModule,
    Recording,
    StoppedModule,
    UnevenStatement,
    names_of,
    observe,
    put_back,
    seed_all,
)
from .rows import Sizes
from .statements import module_called, paths_called
from .subnetwork import LayerFailed, TracedNetwork
from .values import (
    Structure,
    entries_that_cross,
    features,
    flattened,
    is_constant,
    is_number,
    is_tensor,
    tensors_of,
    without_objects,
)

MODES = (True, False)  # whether it trains


def trace(
    module: nn.Module,
    example: Any,
    *,
    name: str = "the module",
    say: Callable[[str], None] | None = None,
    num_classes: int = 0,
    another: Any = None,
    phases: Collection[bool] = MODES,
) -> TracedNetwork:
    """Make a network of a module: its forward is run on an example and written down as layers.

    `example` is what a forward takes: a tensor (dense or sparse), a tuple (positional arguments) or a dict. That is its
    keywords, or the one argument of a forward that takes no such keywords, as in Pointcept.
    Sizes of a minibatch and lengths of sequences may differ from the example's later on. A layer is the call of one of
    torch's modules, of a module without parts, or of a function; what cannot be looked into is one layer, and `say`
    gets a line on it. The module stays as it is, buffers and modes too.

    `another`: a second minibatch, of another size and other lengths if there are; by default the example with its
    last sample once more. The forward is recorded on both, one after the other: a module whose forward does something
    else then (it loops over samples, keeps tensors or numbers, draws in Python) stays Python, as one layer.
    `phases`: whether the network is to train (True), to evaluate (False), or both. One in which the forward raises is
    left out unless it is among them.

    Raises InputError for what is no network: its forward raises, gives no tensor, or it has no parameters to train.
    """
    if not isinstance(module, nn.Module):
        raise InputError("model.not_a_module", f"{name} is a {type(module).__name__}, expected a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InputError("model.no_parameters", f"{name}: {type(module).__name__} has no parameters to train")
    for key, tensor in module.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and tensor.layout != torch.strided:
            raise InputError(
                "model.layout_unsupported",
                f"{name}: {key} has layout {tensor.layout}, but checkpoints store only dense tensors; register it as "
                "a buffer with persistent=False",
                key=key,
                layout=tensor.layout,
            )
    inputs = ForwardInputs.of(name, example, module.forward)
    with put_back(module), warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        modes = _modes(module, name)
        examples = Examples.of(module, inputs, another, phases)
        traced = _first_that_agrees(module, examples, name, modes, num_classes)
    if say is not None:
        for line in traced.opaque:
            say(line)
        if examples.left_out:
            say(f"{name}: its output's {', '.join(examples.left_out)} is omitted, because no loss reads it")
    return traced


@dataclass(frozen=True)
class Examples:
    """Two minibatches, and what the module gives for them, one after the other."""

    first: ForwardInputs
    second: ForwardInputs
    expected: Mapping[bool, Sequence[Any]]  # by whether it trains: what it gives for the first, and twice for the other
    kept: str  # what Python changes from one minibatch to the next
    left_out: tuple[str, ...]  # entries of the output that cannot cross, such as caches
    options: Mapping[str, object]  # what the forward is given so that it makes no caches

    @classmethod
    def of(cls, module: nn.Module, inputs: ForwardInputs, another: Any, phases: Collection[bool]) -> "Examples":
        """Raises InputError if what the module gives is no network's output."""
        second = inputs.larger() if another is None else inputs.another(inputs.bind(another))
        try:
            runs = _runs(module, (inputs, second, second), phases)
        except InputError:
            if another is not None:
                raise
            second = inputs  # it takes no such minibatch, or raises in any case
            runs = _runs(module, (inputs, second, second), phases)
        for training, (found, _) in runs.items():
            _check_outputs(module, inputs.owner, *found[:2])
            if training and not any(tensor.requires_grad for tensor in tensors_of(found[0])):
                raise InputError(
                    "model.nothing_to_train",
                    f"{inputs.owner}: in training mode no output of {type(module).__name__} depends on a parameter, "
                    "so there is nothing to train",
                )
        kept = next((why for _, why in runs.values() if why), "")
        entries = {training: tuple(map(without_objects, found)) for training, (found, _) in runs.items()}
        left_out = dict.fromkeys(name for each in entries.values() for _, names in each for name in names)
        expected = {training: [output for output, _ in each] for training, each in entries.items()}
        options = _WITHOUT_CACHES if left_out and _takes(module, inputs, _WITHOUT_CACHES) else {}
        return cls(inputs, second, expected, kept, tuple(left_out), options)

    @contextmanager
    def without_caches(self, module: nn.Module) -> Iterator[None]:
        """Have the module make no caches, if it can do without: keys and values would be joined to empty ones."""
        if not self.options:
            yield
            return
        with patch.object(module, "forward", wraps(module.forward)(partial(module.forward, **self.options))):
            yield


_WITHOUT_CACHES = {"use_cache": False}  # as transformers' forwards take it


def _takes(module: nn.Module, inputs: ForwardInputs, options: Mapping[str, object]) -> bool:
    """Return whether a module also accepts these arguments, and returns only values that can cross stages."""
    args, kwargs = inputs.arguments({})
    try:
        with put_back(module):
            output = module(*args, **kwargs, **options)
    except CODE_FAILURES:
        return False
    return not without_objects(output)[1]


@dataclass(frozen=True)
class Way:
    """A way of recording a module."""

    record: Callable[[nn.Module, Examples], Mapping[bool, Recording]]
    whole: Callable[[fx.Node, nn.Module], str]


def _first_that_agrees(
    module: nn.Module,
    examples: Examples,
    name: str,
    modes: Mapping[bool, Mapping[str, bool]],
    num_classes: int,
) -> TracedNetwork:
    """Try torch.fx, then torch.export, then the module as one layer: the first that gives what the module gives."""
    reasons: list[str] = []
    partial: TracedNetwork | None = None
    ways = [
        Way(_with_fx, _no_whole),
        Way(_with_fx_without_caches, _no_whole),
        Way(_with_export, exported.whole_module),
        Way(_as_one, _no_whole),
    ]
    if isinstance(module, torch.jit.ScriptModule):
        reasons.append("torch.jit has compiled it as a whole")
        del ways[:-1]
    elif part := _refrozen_part(module, examples):
        reasons.append(f"the forward changes requires_grad of {part}, so no graph of operations has its gradients")
        del ways[:-1]
    for way in ways:
        network = None
        try:
            network = _assembled(module, examples, name, modes, way, num_classes, reasons)
            _check_against(network, examples)
        except CannotBeTraced as error:
            if way.record is not _with_export or not reasons:  # its reasons name operations that no user wrote
                opaque = network.opaque if network is not None else ()
                reasons += [*(line.removeprefix(f"{name}: ") for line in opaque), *filter(None, [str(error)])]
            continue
        if way.record is _with_fx and _hides_much(network):
            partial = network
            continue
        if partial is not None and (way.record is _as_one or not _sees_more(network, partial, examples)):
            return partial
        return network
    raise InputError(
        "model.not_traceable",
        f"{name}: {type(module).__name__} cannot be used as a network ({'; '.join(dict.fromkeys(reasons))})",
    )


def _no_whole(node: fx.Node, module: nn.Module) -> str:
    return ""


def _hides_much(network: TracedNetwork) -> bool:
    """Return whether what could not be looked into has most of the parameters: another way may see more."""
    total = sum(row.num_parameters for row in network.rows)
    hidden = sum(row.num_parameters for row in network.rows if network.opaque_paths & set(row.modules))
    return 2 * hidden > total


def _sees_more(network: TracedNetwork, partial: TracedNetwork, examples: Examples) -> bool:
    """Return whether a network has more layers, and takes minibatches and sequences of any length too, also of 1."""
    lengths = [(name, axis) for name, sizes in network.sizes.axes.items() for axis in exported.open_axes(len(sizes))]
    free = not any(network.sizes.fixed(name, axis) for name, axis in lengths)
    return free and len(network.rows) > len(partial.rows) and _takes_single(network, examples)


def _takes_single(network: TracedNetwork, examples: Examples) -> bool:
    """Return whether layers take minibatches with one sample, or of length 1, if the module does."""
    for training in examples.expected:
        stage = network.build(engine=None).train(training)
        for tensors in network.sizes.single(examples.first.tensors):
            inputs = examples.first.another(tensors)
            try:
                _run(network.module, (inputs,), training)
            except InputError:
                continue
            try:
                stage(inputs.tensors, minibatch=0)
            except InputError:
                return False
    return True


def _assembled(
    module: nn.Module,
    examples: Examples,
    name: str,
    modes: Mapping[bool, Mapping[str, bool]],
    way: Way,
    num_classes: int,
    reasons: list[str],
) -> TracedNetwork:
    inputs = examples.first
    recordings = way.record(module, examples)
    written = {buffer for each in recordings.values() for node in each.nodes for buffer in node.meta["buffers"]}
    groupings = {
        training: Grouping(each, module, whole=lambda node: way.whole(node, module), written=written)
        for training, each in recordings.items()
    }
    for each in recordings.values():
        if any(isinstance(leaf, fx.Node) and Structure.of(leaf.meta["value"]) is None for leaf in each.outputs):
            raise CannotBeTraced(
                "module.returns_object",
                "the forward returns a value that is neither a tensor nor a number; omit it",
            )
    assembly = Assembly(module, groupings, tuple(inputs.tensors))
    made = assembly.assembled()
    for each in recordings.values():
        _let_go(each)
    opaque = {path: why for each in recordings.values() for path, why in each.opaque.items()}
    statements = {place: why for each in recordings.values() for place, why in each.statements.items()}
    inside = {
        path
        for each in recordings.values()
        for node in each.nodes
        if module_called(node) is None
        for path in paths_called(node)
    }
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
        opaque=(
            *(_line(name, module, path, why) for path, why in opaque.items()),
            *(f"{name}: {place} is one layer: {why}" for place, why in statements.items()),
        ),
        opaque_paths=frozenset(opaque) | inside,
        modes=modes,
        sizes=Sizes.of(name, {training: each.sizes for training, each in recordings.items()}),
        constants=made.constants,
        phases=tuple(examples.expected),
        num_classes=num_classes,
    )


def _let_go(recording: Recording) -> None:
    """Drop what operations gave on the example, and the graph of autograd behind it."""
    for node in recording.nodes:
        node.meta = {"no_grad": node.meta["no_grad"]}


def _line(name: str, module: nn.Module, path: str, why: str) -> str:
    kind = type(module_at(module, path)).__name__
    if not path:
        return f"{name}: {kind} is treated as one layer, because it cannot be split: {why}"
    return f"{name}: {path} ({kind}) is treated as one layer, because tracing its parts failed: {why}"


def _with_fx(module: nn.Module, examples: Examples) -> Mapping[bool, Recording]:
    """Record with torch.fx. What stops it is one layer: a part of the module, or a statement of a large part."""
    leaves: set[str] = set()
    reasons: dict[str, str] = {}
    outlining, large = Outlining(), _large_parts(module)
    while True:
        recordings, opaque = {}, dict[str, str]()
        try:
            with outlining.applied():
                for training in examples.expected:
                    with put_back(module):
                        module.train(training)
                        recordings[training] = tracer.record(module, examples.first, leaves=leaves, large=large)
                        opaque |= _frozen(module, examples, recordings[training], leaves, large)
                        opaque |= recordings[training].opaque
        except StoppedModule as stopped:
            if stopped.takes_object and examples.options:
                raise CannotBeTraced("module.gives_object", stopped.why) from stopped  # the next way has no caches
            if not outlining.move_out(stopped.positions, stopped.why):
                if not stopped.path:
                    raise CannotBeTraced("module.raises", stopped.why) from stopped
                leaves.add(stopped.path)
                reasons[stopped.path] = stopped.why
            continue
        except UnevenStatement as uneven:
            if not outlining.extend(uneven.statement.code):
                raise CannotBeTraced("module.recordings_differ", str(uneven)) from uneven
            continue
        outer = {path for path in opaque if not any(path.startswith(f"{other}.") for other in opaque)}
        reasons.update(opaque)
        if all(set(each.opaque) | leaves >= outer for each in recordings.values()):
            for each in recordings.values():
                each.opaque = {path: why for path, why in reasons.items() if path in leaves | outer}
                each.statements = outlining.lines
            return recordings
        leaves |= outer


def _with_fx_without_caches(module: nn.Module, examples: Examples) -> Mapping[bool, Recording]:
    """Record as above without caches, if the module can do without.

    Not at first: without caches, transformers' masks depend on whether there is one sample.
    """
    if not examples.options:
        raise CannotBeTraced("module.example_kept", "")
    with examples.without_caches(module):
        return _with_fx(module, replace(examples, options={}))


def _large_parts(module: nn.Module) -> set[str]:
    """Return the paths of parts with more than half of the parameters: as one layer they could not be balanced."""
    total = sum(parameter.numel() for parameter in module.parameters())
    return {
        path
        for path, part in module.named_modules()
        if path and 2 * sum(parameter.numel() for parameter in part.parameters()) > total
    }


def _frozen(
    module: nn.Module,
    examples: Examples,
    recording: Recording,
    leaves: Collection[str],
    large: Collection[str],
) -> dict[str, str]:
    """Record the next minibatch; return the path of a module that does something else now, and why; {} for none.

    In evaluation without gradients, as a run evaluates: Python may ask for them.
    Raises StoppedModule if that is the module itself, UnevenStatement for a statement that gives another structure.
    """
    leaves = {*leaves, *recording.opaque}
    try:
        with torch.set_grad_enabled(module.training):
            again = tracer.record(module, examples.second, leaves=leaves, large=large, watch=Watch(module))
    except ChangedModule as error:
        return {error.path: error.why}
    found = frozen.difference(recording, again)
    if found is not None and (not found.path or found.path in large):
        raise StoppedModule(found.path, found.why, found.node.meta.get("positions", ()) if found.node else ())
    return {found.path: found.why} if found is not None else {}


def _with_export(module: nn.Module, examples: Examples) -> Mapping[bool, Recording]:
    if examples.kept:
        raise CannotBeTraced("module.example_kept", examples.kept)
    recordings = {}
    for training in examples.expected:
        with put_back(module), examples.without_caches(module):
            module.train(training)
            recordings[training] = exported.record(module, examples.first)
    with put_back(module):
        exported.keep_assigned(list(recordings.values()), module)
    return recordings


def _as_one(module: nn.Module, examples: Examples) -> Mapping[bool, Recording]:
    """The whole module as one operation."""
    recordings, inputs = {}, examples.first
    for training in examples.expected:
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
        made = [call]
        if without_objects(call.meta["value"])[1]:
            made.append(graph.create_node("call_function", entries_that_cross, (call,)))
            made[-1].meta["path"] = ""
            observe(made[-1], module, names_of(module))
        leaves, spec = flattened(made[-1])
        recordings[training] = Recording([*nodes.values(), *made], nodes, leaves, spec)
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
                raise InputError(
                    "module.train_fails", f"{name}: train({training}) of {type(module).__name__} {what}"
                ) from error
            found[training] = {path: part.training for path, part in module.named_modules()}
    return found


def _runs(module: nn.Module, minibatches: Sequence[ForwardInputs], phases: Collection[bool]) -> dict[bool, Any]:
    """Run a module in each phase. Raises InputError if it raises in one of `phases`; else that one is left out."""
    found = {}
    for training in MODES:
        try:
            outputs, kept = _run(module, minibatches, training)
            if not training:
                with torch.no_grad():  # as a run evaluates
                    (first,), _ = _run(module, minibatches[:1], training)
                if not _same(first, outputs[0]) and _same(_run(module, minibatches[:1], training)[0][0], outputs[0]):
                    kept = kept or "in evaluation the outputs differ without gradients"
            found[training] = outputs, kept
        except InputError:
            if training in phases:
                raise
    return found


def _run(module: nn.Module, minibatches: Sequence[ForwardInputs], training: bool) -> tuple[list[Any], str]:
    """Run the module on minibatches; return what it gives, and what Python changed in the last one.

    Raises InputError if it raises, and if it changes what is outside of modules.
    """
    found, kept, name = [], "", f"{minibatches[0].owner}: the forward of {type(module).__name__}"
    with put_back(module):
        module.train(training)
        there = dict(module.named_parameters())
        weights = {key: each.detach().clone() for key, each in there.items() if training and not is_lazy(each)}
        for number, inputs in enumerate(minibatches):
            watch, before = Watch(module), frozen.outside(module)
            seed_all(number)
            watch.note_draws()
            args, kwargs = inputs.arguments({})
            try:
                found.append(_copied(module(*args, **kwargs)))
            except CODE_FAILURES as error:  # whatever it raises
                what = " ".join(str(error).split())[:200]
                raise InputError(
                    "module.raises",
                    f"{name} raises {type(error).__name__} on the example ({what})",
                    kind=type(error).__name__,
                ) from error
            kept = watch.changed() or watch.drawn(torch_too=False)
            after = frozen.outside(module)
        changed_weights = [key for key, weight in weights.items() if not _stayed(there[key], weight)]
        for key in changed_weights:
            there[key].data = weights[key]
        if changed_weights:
            raise InputError(
                "module.changes_weights",
                f"{name} changes the parameter {changed_weights[0]}; register what follows other weights as buffers",
                name=changed_weights[0],
            )
        if made := dict(module.named_parameters()).keys() - there:
            raise InputError(
                "module.makes_parameters",
                f"{name} creates the parameter {min(made)} in forward; create it in __init__ so that it is trained",
            )
    if changed := [place for place, value in after.items() if before.get(place, value) != value]:
        raise InputError(
            "module.changes_attribute",
            f"{name} changes {changed[0]} in every minibatch, but stages share only buffers; register it as a buffer",
        )
    return found, kept


def _stayed(weight: Tensor, before: Tensor) -> bool:
    """Return whether a weight is as it was; NaN stays NaN."""
    return weight.shape == before.shape and bool(((weight == before) | (before != before)).all())


def _refrozen_part(module: nn.Module, examples: Examples) -> str:
    """Return the path of a part whose parameters are frozen, or trained, for a call in training alone; "" for none."""
    flags = {parameter: parameter.requires_grad for parameter in module.parameters()}
    refrozen: list[str] = []

    def compare(part: nn.Module, args: Any, *, path: str) -> None:
        known = (parameter for parameter in part.parameters(recurse=False) if parameter in flags)
        if any(parameter.requires_grad != flags[parameter] for parameter in known):
            refrozen.append(path)

    if True not in examples.expected:
        return ""
    with put_back(module), ExitStack() as hooks:
        module.train()
        for path, part in module.named_modules():
            if not isinstance(part, torch.jit.ScriptModule):
                hooks.callback(part.register_forward_pre_hook(partial(compare, path=path)).remove)
        args, kwargs = examples.first.arguments({})
        module(*args, **kwargs)
    return next(iter(refrozen), "")


def _copied(output: Any) -> Any:
    """Return an output with tensors of its own: one may be a buffer, which is put back."""
    leaves, spec = flattened(output)
    return pytree.tree_unflatten([leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)


def _check_outputs(module: nn.Module, owner: str, one: Any, two: Any) -> None:
    """Raise InputError if what a module gives for two minibatches is no network's output."""
    name = f"{owner}: the forward of {type(module).__name__}"
    if not tensors_of(one):
        raise InputError("module.returns_object", f"{name} returns a {type(one).__name__}, expected tensors")
    (first, spec), (second, other) = flattened(one), flattened(two)
    if spec != other:
        raise InputError(
            "module.return_count",
            f"{name} returns {len(first)} values for one minibatch and {len(second)} for another: return the same "
            "number for each, such as one tensor of all samples (torch.cat or torch.stack)",
        )


def _check_against(network: TracedNetwork, examples: Examples) -> None:
    """Run the layers one by one and compare with the module's outputs. Raises CannotBeTraced if they differ."""
    for training, expected in examples.expected.items():
        stage = network.build(engine=None).train(training)
        stage.draws_by_layer = False
        for number, inputs in enumerate((examples.first, examples.second, examples.second)):
            seed_all(number)
            try:
                network.sizes.check(inputs.tensors)
                # With gradients, as the module ran: without them LSTMs take another kernel, which rounds differently.
                found = stage.result(stage(inputs.tensors, minibatch=number))
            except LayerFailed as error:
                raise CannotBeTraced(
                    "module.layers_raise", f"when its layers run one by one, {str(error)[:150]}"
                ) from error
            except Exception as error:  # of any kind: the recording is not the module
                raise CannotBeTraced(
                    "module.layers_raise",
                    f"its layers raise {type(error).__name__} ({' '.join(str(error).split())[:100]})",
                ) from error
            if not _same(found, expected[number]):
                which = "for the next minibatch" if number else ""
                raise CannotBeTraced(
                    "module.layers_differ",
                    f"its layers one by one give something else than the module {which}".rstrip(),
                )
        for tensors in (*network.sizes.single(examples.first.tensors), *_one_sample(network, examples.first)):
            _check_single(network, examples.first.another(tensors), training)


def _one_sample(network: TracedNetwork, inputs: ForwardInputs) -> Iterator[dict[str, Tensor]]:
    """Yield the example's first sample, if the network compares sizes: with one sample some are the same."""
    steps = (step for row in network.rows for program in row.programs.values() for step in program.steps)
    tensors = {name: each for name, each in inputs.tensors.items() if isinstance(each, Tensor) and each.dim()}
    count = len(next(iter(tensors.values()), ()))
    if count > 1 and any(isinstance(argument, SizeDecision) for step in steps for argument in step.args):
        yield {name: each[:1] if len(each) == count else each for name, each in tensors.items()}


def _check_single(network: TracedNetwork, inputs: ForwardInputs, training: bool) -> None:
    """Compare on a minibatch with one sample, or of length 1: torch.export takes for granted that there are two."""
    stage = network.build(engine=None).train(training)
    stage.draws_by_layer = False
    others: list[SizeDecision] = []
    token = OTHER_ANSWERS.set(others)
    try:
        (expected,), _ = _run(network.module, (inputs,), training)
        seed_all(0)
        found = stage.result(stage(inputs.tensors, minibatch=0))
    except Exception:  # of any kind: the module takes no such minibatch, or its layers raise, which a run says
        return
    finally:
        OTHER_ANSWERS.reset(token)
    if others:
        for decision in others if _same(found, entries_that_cross(expected)) else ():
            decision.harmless = True
        return
    if not _same(found, entries_that_cross(expected)):
        raise CannotBeTraced("module.decides_by_one", "a Python condition depends on whether a size is 1")


def _same(found: Any, expected: Any) -> bool:
    ours, theirs = flattened(found), flattened(expected)
    return ours[1] == theirs[1] and all(map(_equal, ours[0], theirs[0]))


def _equal(ours: Any, theirs: Any) -> bool:
    """Return whether two values are the same but for rounding, as `verify` means it: of the largest number in them.

    LSTMs have another kernel if no gradient is asked for, which adds up in another order.
    """
    if not is_tensor(theirs):
        return type(ours) is type(theirs) and (not (is_constant(theirs) or is_number(theirs)) or bool(ours == theirs))
    a, b = features(ours), features(theirs)
    if a.dtype != b.dtype or a.shape != b.shape or not a.is_floating_point():
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    finite = b.isfinite()
    most = 1000 * torch.finfo(b.dtype).eps * float(b[finite].abs().max()) if bool(finite.any()) else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=most, equal_nan=True)
