"""Records a forward with torch.export: ATen operations, each of the module in whose forward it is.

It knows sizes and runs the Python that torch.fx's stand-ins stop at; what looks at numbers stops it too.
"""

import contextlib
import inspect
import io
import logging
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import wraps
from pathlib import Path
from traceback import walk_tb
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from .copies import module_at
from .in_place import out_of_place
from .inputs import ForwardInputs
from .recording import OF_HOOKS, OF_TRANSFORMS, CannotBeTraced, Recording, is_leaf, names_of, observe
from .rows import Length
from .values import entries_that_cross, flattened, tensors_of


def record(module: nn.Module, inputs: ForwardInputs) -> Recording:
    """Record the forward of a module in the mode that it is in. Raises CannotBeTraced if torch.export cannot."""
    args, kwargs = inputs.arguments({})
    try:
        with (
            _silence(),
            _attributes_assigned(),
            patch.object(Tensor, "register_hook", _no_hook),  # export leaves it out
            patch.object(module, "forward", _of_entries(module.forward)),
        ):
            program = torch.export.export(
                module, args, kwargs, dynamic_shapes=_dynamic(module, inputs, args, kwargs), strict=False
            )
            traced = program.module(check_guards=False)
    except CannotBeTraced:
        raise
    except Exception as error:  # of many kinds
        raise CannotBeTraced("export.failed", _reason(error)) from error
    assert isinstance(traced, fx.GraphModule)
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    names, leaves = _in_order(traced, inputs)
    if len(placeholders) != len(leaves):
        raise CannotBeTraced(
            "export.changed_arguments", "torch.export changed the arguments of the network; use format safetensors"
        )
    if any(_transforms(node.target) for node in traced.graph.nodes):
        raise CannotBeTraced("module.of_transforms", OF_TRANSFORMS)
    known = names_of(module)
    recorded: list[fx.Node] = []
    stale: dict[fx.Node, str] = {}
    for node in list(traced.graph.nodes):
        if node.op == "output":
            continue
        node.meta["path"] = _path(node)
        node.meta.update(draws=False, no_grad=False, written=set(), buffers=set())
        if node.op == "placeholder":
            _hold(node, leaves[placeholders.index(node)])
            if not isinstance(node.meta["value"], Tensor):
                continue
        elif node.op == "get_attr":
            _read(node, module, traced, known)
        else:
            _observe(node, module, known, stale, recorded)
        recorded.append(node)
    output = next(node for node in traced.graph.nodes if node.op == "output")
    outputs, spec = pytree.tree_leaves(output.args[0]), _output_spec(module, inputs)
    tensors = {name: node for name, node in zip(names, placeholders, strict=True) if name in inputs.tensors}
    sizes = {name: tuple(_length(axis, program) for axis in node.meta["val"].shape) for name, node in tensors.items()}
    return Recording(recorded, tensors, outputs, spec, sizes=sizes)


def _reason(error: Exception) -> str:
    """Return why torch.export failed, with the line of the user's module."""
    places = [
        f"{Path(frame.f_code.co_filename).name}:{line}"
        for frame, line in walk_tb(error.__traceback__)
        if isinstance(module := frame.f_locals.get("self"), nn.Module)
        and not re.match("torch", type(module).__module__)
    ]
    text = " ".join(str(error).split())
    if "data-dependent" in text:
        text = "Python code depends on the numbers of a tensor"
    else:
        text = f"{type(error).__name__}: {text[:100]}"
    return f"{text} ({places[-1]})" if places else text


def _attributes_assigned() -> contextlib.AbstractContextManager[Any]:
    """Let a forward assign tensors to attributes, which torch 2.9 refuses; whoever records a module puts them back."""
    check = "torch.export._trace._detect_attribute_assignment"
    return patch(check, lambda module: contextlib.nullcontext(), create=True)


def _of_entries(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward that leaves out caches and other objects, which export refuses."""

    @wraps(forward)
    def of_entries(*args: Any, **kwargs: Any) -> Any:
        return entries_that_cross(forward(*args, **kwargs))

    return of_entries


def _no_hook(tensor: Tensor, hook: Any) -> None:
    raise CannotBeTraced("module.of_hooks", OF_HOOKS)


def _transforms(target: Any) -> bool:
    return str(getattr(target, "__module__", "")).startswith("torch._functorch")


def _length(axis: Any, program: torch.export.ExportedProgram) -> Length:
    """Return how long an axis may be: any length, unless Python read it."""
    if isinstance(axis, int) or axis.node.expr.is_number:
        return Length(str(axis), int(axis), int(axis))
    known = program.range_constraints.get(axis.node.expr)
    least = int(known.lower) if known is not None and known.lower > 2 else 0  # below that it is export's own caution
    most = int(known.upper) if known is not None and known.upper < sys.maxsize else sys.maxsize
    return Length(str(axis), least, most)


def _in_order(traced: fx.GraphModule, inputs: ForwardInputs) -> tuple[list[str], list[Any]]:
    """Return names and values of the leaves of a forward's arguments, in the order of the placeholders."""
    args, kwargs = inputs.arguments({})
    codegen = traced.graph._codegen
    order: Iterable[str] = kwargs
    if isinstance(codegen, fx.graph._PyTreeCodeGen):
        spec = codegen.pytree_info.in_spec
        _, order = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    named = pytree.tree_unflatten(list(inputs.names), inputs.spec)
    named_args, named_kwargs = ((), named) if inputs.keywords else (named, {})
    values = pytree.tree_leaves((args, {key: kwargs[key] for key in order}))
    return pytree.tree_leaves((named_args, {key: named_kwargs[key] for key in order})), values


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """torch.export prints the graph that it gave up on, and logs."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _dynamic(module: nn.Module, inputs: ForwardInputs, args: Any, kwargs: Any) -> Any:
    """Leave open the minibatch's size, and the second one of what is no picture: sequences have any length."""

    def opened(leaf: Any) -> Any:
        return dict.fromkeys(open_axes(leaf.dim()), Dim.AUTO) if isinstance(leaf, Tensor) else None

    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    return pytree.tree_map(opened, dict(bound.arguments))


def open_axes(dimension: int) -> range:
    return range(min(1 if dimension > 3 else 2, dimension))


def _hold(node: fx.Node, value: Any) -> None:
    node.meta["value"] = value
    node.meta["storages"] = frozenset(each.untyped_storage()._cdata for each in tensors_of(value))


def _read(node: fx.Node, module: nn.Module, traced: fx.GraphModule, known: dict[int, str]) -> None:
    """A parameter or buffer of the module under the first of its names; else what export made of a constant."""
    value: Any = traced
    for part in str(node.target).split("."):
        value = getattr(value, part)
    own: Any = module
    try:
        for part in str(node.target).split("."):
            own = getattr(own, part)
    except AttributeError:
        own = None
    registered = isinstance(own, Tensor) and id(own) in known
    _hold(node, own if registered else value)
    node.meta["registered"] = registered
    if registered:
        node.target = known[id(own)]


def _observe(
    node: fx.Node, module: nn.Module, known: dict[int, str], stale: dict[fx.Node, str], recorded: list[fx.Node]
) -> None:
    args, kwargs = tuple(node.args), dict(node.kwargs)
    target, args, kwargs, in_place = out_of_place(node.op, node.target, args, kwargs)
    changed = args[0] if in_place else None
    if isinstance(changed, fx.Node) and changed.op == "get_attr":  # a counter, a running mean: it has to change
        in_place, target = False, node.target
    elif target is torch.ops.aten.copy.default:  # without a derivative
        raise CannotBeTraced("module.works_in_place", "copy_ supports only in-place use")
    node.target, node.args, node.kwargs = target, args, kwargs
    for source in node.all_input_nodes:
        if source in stale:
            raise CannotBeTraced("module.stale_tensor", stale[source])
    observe(node, module, known)
    for source in node.meta["written"]:
        if source.op == "get_attr":
            node.meta["buffers"].add(str(source.target))
        else:
            raise CannotBeTraced("module.changes_shared", f"{node.target} changes a tensor that other layers use")
    if in_place and isinstance(changed, fx.Node):
        for other in recorded:
            if other is not changed and other.meta["storages"] & changed.meta["storages"]:
                stale[other] = f"{other} is read after {node.target} changed it in place"
        after = set(recorded)
        changed.replace_all_uses_with(node, lambda user: user is not node and user not in after)


def keep_assigned(recordings: Collection[Recording], module: nn.Module) -> None:
    """Have each assignment of a buffer, which export puts last, follow the last operation that reads it.

    The others read a copy, in every phase: what autograd keeps of the old one must not change.
    """
    writers = [(each, node, _assigned(node)) for each in recordings for node in each.nodes]
    keys, names = {buffer.target for *_, buffer in writers if buffer is not None}, names_of(module)
    for recording in recordings:
        for buffer in [node for node in recording.nodes if node.op == "get_attr" and node.target in keys]:
            users = [user for user in buffer.users if user in recording.nodes and _assigned(user) is None]
            if not users:
                continue
            with buffer.graph.inserting_after(buffer):
                copied = buffer.graph.create_node("call_method", "clone", (buffer,))
            copied.meta["path"] = users[0].meta["path"]
            observe(copied, module, names)
            for user in users:
                user.replace_input_with(buffer, copied)
            recording.nodes.insert(min(map(recording.nodes.index, users)), copied)
    for recording, node, assigned in writers:
        if assigned is None:
            continue
        recording.nodes.remove(node)
        readers = [*node.all_input_nodes, *assigned.users]
        last = max(recording.nodes.index(each) for each in readers if each in recording.nodes)
        recording.nodes.insert(last + 1, node)


def _assigned(node: fx.Node) -> fx.Node | None:
    """Return the buffer that a node gives other numbers, and does nothing else; None for any other node."""
    if node.target is not torch.ops.aten.copy_.default or node.users:
        return None
    buffer = node.args[0]
    is_buffer = isinstance(buffer, fx.Node) and buffer.op == "get_attr" and buffer.meta["registered"]
    return buffer if is_buffer else None  # type: ignore[return-value]  # a node


def _path(node: fx.Node) -> str:
    """Return the path of the innermost module whose forward an operation is in."""
    stack = list((node.meta.get("nn_module_stack") or {"": ("", "")}).values())
    return _plain(str(stack[-1][0]))


def _plain(path: str) -> str:
    path = re.sub(r"^L\['self'\]\.?|_modules\.", "", path)
    path = re.sub(r"\['?([^'\]]+)'?\]", r".\1", path)
    return ".".join(part.split("@")[0] for part in path.split(".") if part)


def whole_module(node: fx.Node, module: nn.Module) -> str:
    """Return the path of the outermost module around an operation that is one layer; "" for none."""
    path = node.meta["path"]
    parts = path.split(".") if path else []
    for i in range(1, len(parts) + 1):
        here = ".".join(parts[:i])
        try:
            found = module_at(module, here)
        except KeyError:
            return ""
        if is_leaf(found):
            return here
    return ""


def _output_spec(module: nn.Module, inputs: ForwardInputs) -> pytree.TreeSpec:
    args, kwargs = inputs.arguments({})
    with torch.random.fork_rng(devices=[]):  # with gradients: a forward may ask for hooks on them
        return flattened(entries_that_cross(module(*args, **kwargs)))[1]
