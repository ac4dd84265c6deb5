"""Records a forward by running it on stand-ins: torch.fx, module by module, with the example's values at hand.

What cannot be recorded so (Python that looks at numbers, writes into parts of tensors, ...) is one operation: the
innermost module in whose forward it happens.
"""

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from traceback import walk_tb
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch import eager_transforms, vmap
from torch.fx._symbolic_trace import _maybe_revert_all_patches
from torch.utils import _pytree as pytree

from .building import without_checkpoints
from .containers import ContainerCall, Reader, built, holds_record
from .frozen import Watch
from .in_place import out_of_place
from .inputs import ForwardInputs
from .outlining import positions_now, positions_of
from .proxies import SizeDecision, ValueProxy, decidable, same_answer, stand_in, stands_for_itself
from .recording import (
    OF_TRANSFORMS,
    CannotBeTraced,
    ChangedModule,
    Recording,
    StoppedModule,
    UnevenStatement,
    attributes_of,
    is_leaf,
    minkowski_functions,
    names_of,
    observe,
    restore,
)
from .rows import OF_SPARSE, name_of
from .statements import RECORDER, Call, Statement, Uses, used_of
from .values import Structure, entries_that_cross, entry_at, flattened, is_number, is_sparse, tensors_of

_MAKERS = (  # functions that make a tensor of sizes, which may be recorded ones
    *("arange", "zeros", "ones", "full", "empty", "eye", "linspace", "tensor", "as_tensor", "tril_indices"),
    *("zeros_like", "ones_like", "full_like"),
)
_PATCHED = (  # place, name, whether to record it without a recorded value among its arguments
    *((torch, name, True) for name in ("rand", "randn", "randint", "randperm", "normal")),
    *((nn.modules.transformer, name, False) for name in ("_detect_is_causal_mask", "_get_seq_len")),
)
_TRANSFORMS = (  # how torch.func's begin: they put values into wrappers, which stand-ins crash in
    (vmap, "vmap_increment_nesting"),
    *((eager_transforms, f"{name}_increment_nesting") for name in ("grad", "jvp", "_func")),
)


def record(
    module: nn.Module,
    inputs: ForwardInputs,
    *,
    leaves: Collection[str] = (),
    large: Collection[str] = (),
    watch: Watch | None = None,
) -> Recording:
    """Record the forward of a module in the mode that it is in. `leaves`: paths not to look into.

    `large`: paths of parts that are too large to be one layer. `watch`: of what Python changes, where the forward was
    recorded before: it may change nothing any more.
    Raises StoppedModule if the forward of the module, or of a large part, cannot be recorded; ChangedModule for one
    that is watched and has a part that cannot.
    """
    tracer = LayerTracer(module, leaves, large, watch)
    try:
        return tracer.record(inputs)
    except (ChangedModule, StoppedModule, UnevenStatement):
        raise
    except Exception as error:
        raise StoppedModule("", _reason(error), positions_of(error, module)) from error


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    text = text if len(text) < 120 else text[:117] + "..."
    text = text if isinstance(error, CannotBeTraced) else f"{type(error).__name__}: {text}"
    kind = _made(error)
    return f"the forward creates a {kind} of values, but layers exchange only tensors ({text})" if kind else text


def _made(error: BaseException) -> str:
    """Return the class of the user's own object that was being made; "" for none."""
    for frame, _ in walk_tb(error.__traceback__):
        made = type(frame.f_locals.get("self"))
        foreign = not re.match(rf"torch|builtins|{__package__}", made.__module__) and not issubclass(made, nn.Module)
        if foreign and frame.f_code.co_name in ("__init__", "__post_init__"):
            return made.__name__
    return ""


class LayerTracer(fx.Tracer):
    """One recording. Nothing of the module changes but what its forward changes."""

    def __init__(self, module: nn.Module, leaves: Collection[str], large: Collection[str], watch: Watch | None) -> None:
        places, functions = minkowski_functions()
        makers = tuple(getattr(torch, name) for name in _MAKERS)
        packing = torch.nn.utils.rnn
        functions += [packing.pack_padded_sequence, packing.pad_packed_sequence, packing.pack_sequence]
        super().__init__(autowrap_modules=(math,), autowrap_functions=(*makers, *functions))
        self._autowrap_search += [torch, packing, *places]
        self.module, self.leaves, self.large, self.watch = module, frozenset(leaves), frozenset(large), watch
        self.names = names_of(module)
        self.paths = {part: path for path, part in module.named_modules()}
        self.stack: list[str] = []
        self.running = False  # the module itself runs on the example's values
        self.closed = False  # the forward is over: who still has a stand-in kept it
        self.opaque: dict[str, str] = {}
        self.recorded: list[fx.Node] = []
        self.stale: dict[fx.Node, str] = {}
        self.moved: list[tuple[fx.Proxy, fx.Node]] = []
        self.states: dict[Any, ValueProxy] = {}
        self.inputs: dict[str, fx.Node] = {}

    def record(self, inputs: ForwardInputs) -> Recording:
        outputs: list[Any] = []

        def forward() -> list[Any]:
            stand_ins: dict[str, Any] = {}
            for number, (name, tensor) in enumerate(inputs.tensors.items()):
                node = self.graph.create_node("placeholder", f"value_{number}")
                node.meta.update(value=tensor, path="", draws=False, no_grad=False, written=set(), buffers=set())
                node.meta["storages"] = frozenset(each.untyped_storage()._cdata for each in tensors_of(tensor))
                self.recorded.append(node)
                self.inputs[name] = node
                stand_ins[name] = stand_in(node, self)
            args, kwargs = inputs.arguments(stand_ins)
            leaves, spec = flattened(self.module(*args, **kwargs))
            leaves, spec = flattened(pytree.tree_unflatten(list(map(self._output_entry, leaves)), spec))
            outputs.append(spec)
            return leaves

        self.entry = forward
        token = RECORDER.set(self)
        try:
            with _patched(self), without_checkpoints():
                graph = self.trace(self.module)
        finally:
            RECORDER.reset(token)
        self.closed = True
        leaves = next(node for node in graph.nodes if node.op == "output").args[0]
        return Recording(self.recorded, self.inputs, list(leaves), outputs[0], dict(self.opaque))

    def _output_entry(self, leaf: object) -> object:
        """Return an entry of the output without caches and other objects, which cannot cross."""
        if not isinstance(leaf, fx.Proxy):
            return entries_that_cross(leaf)
        if Structure.of(leaf.node.meta["value"]) is not None:
            return leaf
        return self.create_proxy("call_function", entries_that_cross, (leaf,), {})

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        return self.entry, []

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.running:
            return forward(*args, **kwargs)
        path = self.paths.get(m)
        if path is None and next(chain(m.parameters(), m.buffers()), None) is None:
            return forward(*args, **kwargs)  # a function, such as a loss that is made where it is used
        if path is None:
            raise CannotBeTraced("module.no_submodule", f"a {type(m).__name__} is called, but it is not a submodule")
        if path and (path in self.leaves or is_leaf(m)):
            return self._opaque(path, args, kwargs)
        if not path:
            return self._within(path, forward, args, kwargs)
        self._check_unchanged(m.modules())
        mark, moved, attributes = len(self.recorded), len(self.moved), attributes_of(m)
        reader = Reader()
        form = reader.form((args, kwargs)) if holds_record((args, kwargs)) else None
        try:
            return self._within(path, forward, args, kwargs)
        except (ChangedModule, StoppedModule, UnevenStatement):
            raise
        except Exception as error:  # whatever stops it
            if path in self.large:
                raise StoppedModule(path, _reason(error), positions_of(error, m)) from error
            if self.watch is not None:
                raise ChangedModule(path, _reason(error)) from error
            self._forget(mark, moved)
            restore(attributes)
            if form is not None:  # it may have written into its arguments before
                built(form, reader.leaves, reader.objects)
            self.opaque = {known: why for known, why in self.opaque.items() if not known.startswith(f"{path}.")}
            self.opaque[path] = _reason(error)
            try:
                return self._opaque(path, args, kwargs)
            except CannotBeTraced:  # it takes a cache or another object: no layer can
                raise StoppedModule(path, self.opaque[path], positions_of(error, m), takes_object=True) from error

    def _opaque(self, path: str, args: Any, kwargs: Any) -> Any:
        """Record the call of a module that is not looked into."""
        if holds_record((args, kwargs)):
            return self._with_containers(path, (args, kwargs))
        return self.create_proxy("call_module", path, args, kwargs)

    def _with_containers(self, inner: str | Statement, value: object) -> Any:
        """Record a call with containers among its arguments; return what it does, as those are afterwards, too."""
        reader = Reader()
        call = ContainerCall(inner, reader.form(value), len(reader.leaves))
        proxy = self.create_proxy("call_function", call, tuple(reader.leaves), {})
        assert call.learned is not None and call.sent is not None
        proxy.node.args = tuple(proxy.node.args[number] for number in call.sent)
        if isinstance(inner, Statement) and any(Structure.of(each) is None for each in proxy.node.meta["value"]):
            raise UnevenStatement(inner)  # whoever reads it may give what can cross
        form, origin = call.learned
        made = iter([proxy[number] for number in range(len(proxy.node.meta["value"]))])
        leaves = [next(made) if number is None else reader.leaves[number] for number in origin]
        return built(form, leaves, reader.objects)[0]

    def _within(self, path: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.stack.append(path)
        try:
            found = forward(*args, **kwargs)
        finally:
            self.stack.pop()
        for each in (self.module.get_submodule(path)._buffers, self.module.get_submodule(path)._parameters):
            if any(isinstance(tensor, fx.Proxy) for tensor in each.values()):
                raise CannotBeTraced("module.replaces_buffer", "the forward replaces a buffer")
        self._check_unchanged([self.module.get_submodule(path)] if path else None)
        return found

    def _check_unchanged(self, parts: Iterable[nn.Module] | None) -> None:
        """Raise CannotBeTraced if Python drew numbers, or changed attributes of modules; by default of all."""
        if self.watch is not None and (why := self.watch.drawn() or self.watch.changed(parts)):
            raise CannotBeTraced("module.changes_state", why)

    def _check_open(self, tracer: Any) -> None:
        if tracer is not self or self.closed:
            raise CannotBeTraced(
                "module.keeps_tensor", "the forward reads a tensor from an earlier minibatch; register it as a buffer"
            )

    def _note(self, parts: Iterable[nn.Module]) -> None:
        """Take for known what modules changed as they ran themselves: they will do so as layers."""
        if self.watch is not None:
            self.watch.note(parts)
            self.watch.note_draws()

    def _forget(self, mark: int, moved: int) -> None:
        """Take back what was recorded since."""
        for proxy, node in reversed(self.moved[moved:]):
            proxy.node = node
        del self.moved[moved:]
        for node in reversed(self.recorded[mark:]):
            self.stale.pop(node, None)
            self.states = {key: proxy for key, proxy in self.states.items() if proxy.node is not node}
            self.graph.erase_node(node)
        del self.recorded[mark:]
        there = set(self.recorded)
        self.stale = {node: why for node, why in self.stale.items() if node in there}

    def proxy(self, node: fx.Node) -> ValueProxy:
        return stand_in(node, self)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *_: Any, **__: Any) -> Any:
        """Record an operation and run it on the example. Returns what it gives itself if that is always the same."""
        first = args[0] if args else None
        self._check_open(self)
        paths = target.modules if isinstance(target, Call) else [target] if kind == "call_module" else []
        called = [part for path in paths for part in self.module.get_submodule(path).modules()]
        self._check_unchanged(called)
        target, args, kwargs, in_place = out_of_place(kind, target, args, kwargs)
        if in_place and not isinstance(target, type) and any(map(is_number, map(_value, args[:1]))):
            in_place = False  # a number, as in n += 1
        if in_place:
            self._may_be_written(first)
        node = self.graph.create_node(kind, target, self.create_arg(tuple(args)), self.create_arg(dict(kwargs)))
        node.meta["path"] = self.stack[-1] if self.stack else ""
        if node.meta["path"] in {"", *self.large}:
            node.meta["positions"] = positions_now(self.module.get_submodule(node.meta["path"]))
        for source in node.all_input_nodes:
            if source in self.stale and not (target in OF_SPARSE and source is node.args[0]):  # it reads no numbers
                self.graph.erase_node(node)
                raise CannotBeTraced("module.stale_tensor", self.stale[source])
        # What torch itself runs meets no more than the patches let pass; to undo them takes a millisecond.
        of_torch = all(map(_is_of_torch, map(type, called) if called else [target]))
        with self._running() if of_torch else self.real():
            observe(node, self.module, self.names)
        self._note(called)
        self.recorded.append(node)
        if stands_for_itself(node.meta["value"]) and not node.meta["draws"] and not node.meta["written"]:
            self.recorded.pop()
            self.graph.erase_node(node)
            return node.meta["value"]
        self._written(node, first if in_place else None, args, kwargs)
        return stand_in(node, self)

    def record_statement(
        self, function: FunctionType, values: dict[str, object], written: Sequence[str], uses: Uses, *, returns: bool
    ) -> object:
        """Record a call of a function that statements of the innermost module's forward were moved to."""
        if self.running:
            return function(**values)
        path = self.stack[-1]
        owner = self.module.get_submodule(path)
        names, given, constants, parts, self_name, fills = [], [], [], [], "", False
        for name, value in values.items():
            if value is owner:
                self_name = name
            elif isinstance(value, nn.Module):
                if value not in self.paths:
                    raise CannotBeTraced(
                        "module.no_submodule", f"a {type(value).__name__} is called, but it is not a submodule"
                    )
                parts.append((name, self.paths[value]))
            elif holds_record(value) or (type(value) is dict and fx_proxies(value)):
                names.append(name)
                given.append(value)
                fills = True
            elif (fx_proxies(value) or tensors_of(value)) and not isinstance(value, list | dict | set):
                names.append(name)
                given.append(value)
            elif Structure.of(value) is not None and not isinstance(value, list | dict | set):  # it may fill them
                constants.append((name, value))
            else:
                what = f"the forward passes a {type(value).__name__} to a layer, but layers exchange only tensors"
                raise CannotBeTraced("module.gives_object", what)
        used, tensors = used_of(owner, uses) if self_name else ((), ())
        target = Statement(
            function.__code__, tuple(names), tuple(constants), tuple(parts), frozenset(written), self_name, path, used,
            tensors, owner.training, function, owner,
        )  # fmt: skip
        both = {**owner._parameters, **owner._buffers}
        held = {name: tensor for name, tensor in both.items() if tensor is not None}
        read = [self._state(held[name]) for name in tensors]
        if fills:
            return self._with_containers(target, (*given, *read))
        result = self.create_proxy("call_function", target, (*given, *read), {})
        if not isinstance(result, fx.Proxy):
            return result
        value = result.node.meta["value"]
        if Structure.of(value) is None:
            raise UnevenStatement(target)  # whoever reads it may give what can cross
        if not returns:
            return {name: self.create_proxy("call_function", operator.getitem, (result, name), {}) for name in value}
        leaves, spec = flattened(value)
        if len(leaves) == 1 and leaves[0] is value:
            return result
        entries = [self.create_proxy("call_function", entry_at, (result, i), {}) for i in range(len(leaves))]
        return pytree.tree_unflatten(entries, spec)

    def _may_be_written(self, proxy: Any) -> None:
        if not isinstance(proxy, fx.Proxy):
            raise CannotBeTraced("module.changes_own_tensor", "the forward changes its tensor in place")
        if proxy.node.op == "get_attr":
            raise CannotBeTraced("module.changes_own_tensor", f"the forward changes {proxy.node.target} in place")

    def _written(self, node: fx.Node, changed: Any, args: Any, kwargs: Any) -> None:
        """Let whoever holds what was changed read the result from now on, and no one what shares its memory."""
        written = set(node.meta["written"])
        if written and isinstance(node.target, Call):
            buffers = dict(self.module.named_buffers(remove_duplicate=False))
            own = {each for each in written if each.op == "get_attr" and each.target in buffers}
            node.meta["buffers"] |= {str(each.target) for each in own}  # which its layer alone will hold: see Grouping
            written -= own
            if written:
                raise CannotBeTraced("module.changes_own_tensor", "the forward changes a tensor in place")
        if isinstance(changed, fx.Proxy):
            written.add(changed.node)
        if any(source.op == "get_attr" for source in written):
            raise CannotBeTraced("module.changes_parameter", f"{node.target} changes a parameter or a buffer")
        for source in written:
            holders = [each for each in fx_proxies(args, kwargs) if each.node is source]
            same = changed is not None or node.meta["storages"] == source.meta["storages"]
            shared = source.meta["storages"]
            for other in self.recorded:
                if other is not node and other.meta["storages"] & shared and not (same and other is source):
                    self.stale[other] = f"{other} is read after {node.target} changed it in place"
            for holder in holders if same else ():
                self.moved.append((holder, holder.node))
                holder.node = node

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, fx.Proxy):
            self._check_open(a.tracer)
            return a.node
        if isinstance(a, Tensor):
            return self._state(a).node
        if is_sparse(a):
            raise CannotBeTraced("module.makes_sparse", "the forward creates a sparse tensor")
        if isinstance(a, type | torch.dtype | torch.finfo | torch.Generator):
            return a
        if isinstance(a, nn.Module):
            raise CannotBeTraced("module.gives_object", f"the forward passes a {type(a).__name__} to a function")
        try:
            return super().create_arg(a)
        except NotImplementedError:
            raise CannotBeTraced(
                "module.gives_object",
                f"the forward passes a {type(a).__name__} to a layer, but layers exchange only tensors",
            ) from None

    def _state(self, tensor: Tensor) -> ValueProxy:
        """Record the reading of a parameter, a buffer, or a tensor that no one registered."""
        if tensor not in self.states:
            name = self.names.get(id(tensor))
            node = self.graph.create_node("get_attr", name or f"constant_{len(self.states)}")
            path = self.stack[-1] if self.stack else ""
            node.meta.update(value=tensor, path=path, draws=False, no_grad=False, written=set(), buffers=set())
            storages = [tensor.untyped_storage()._cdata] if tensor.layout == torch.strided else []
            node.meta.update(storages=frozenset(storages), registered=name is not None)
            self.recorded.append(node)
            self.states[tensor] = stand_in(node, self)
        return self.states[tensor]

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if isinstance(attr_val, Tensor) and not self.running and id(attr_val) in self.names:
            return self._state(attr_val)
        return attr_val

    def to_bool(self, obj: Any) -> bool:
        """Decide by sizes other than the minibatch's as the example does, and check later ones; by nothing else."""
        self._check_open(obj.tracer)
        value = obj.node.meta["value"]
        if not is_number(value) or not decidable(obj.node):
            raise CannotBeTraced(
                "module.decides_by_numbers",
                "a Python condition depends on tensor values or on the size of the minibatch",
            )
        self._expect(obj, bool(value))
        return bool(value)

    def expect_length(self, proxy: ValueProxy) -> int:
        """Return how many values Python is given; later minibatches have to give as many."""
        length = len(proxy.node.meta["value"])
        self._expect(self.create_proxy("call_function", len, (proxy,), {}) == length, True)
        return length

    def _expect(self, proxy: Any, answer: bool) -> None:
        where = f"{type(self.module).__name__}.{self.stack[-1]}".rstrip(".")
        sizes: tuple[object, ...] = ()
        if isinstance(proxy, fx.Proxy) and name_of(proxy.node) in ("eq", "ne"):
            where = SizeDecision(where)
            sizes = tuple(stand_in(each, self) if isinstance(each, fx.Node) else each for each in proxy.node.args)
        self.create_proxy("call_function", same_answer, (proxy, answer, where, *sizes), {})

    @contextmanager
    def real(self) -> Iterator[None]:
        """Run real modules on real values: nothing is recorded meanwhile."""
        with self._running(), _maybe_revert_all_patches():
            yield

    @contextmanager
    def _running(self) -> Iterator[None]:
        before, self.running = self.running, True
        try:
            yield
        finally:
            self.running = before


def _is_of_torch(function_or_kind: Any) -> bool:
    home = getattr(function_or_kind, "__module__", None) or torch.__name__  # what C++ brings may have none
    return home.partition(".")[0] in (torch.__name__, "_operator")


def _value(given: Any) -> Any:
    return given.node.meta["value"] if isinstance(given, fx.Proxy) else given


def fx_proxies(*structures: Any) -> list[fx.Proxy]:
    found: list[fx.Proxy] = []
    fx.node.map_aggregate(structures, lambda each: found.append(each) if isinstance(each, fx.Proxy) else None)
    return found


@contextmanager
def _patched(tracer: LayerTracer) -> Iterator[None]:
    """Have recorded: torch.rand and its like, even if given plain sizes; the user's autograd and scripted functions."""
    with ExitStack() as stack:
        for place, name, always in _PATCHED:
            original = getattr(place, name)
            stack.callback(setattr, place, name, original)
            setattr(place, name, _recorded(tracer, original, always=always))
        for place, name in _TRANSFORMS:
            original = getattr(place, name)
            stack.callback(setattr, place, name, original)
            setattr(place, name, _refused(tracer, original))
        assigns = "__setattr__"
        stack.callback(setattr, nn.Module, assigns, nn.Module.__setattr__)
        setattr(nn.Module, assigns, _kept_buffers(tracer, nn.Module.__setattr__))
        single: Any = torch.autograd.function._SingleLevelFunction  # Function.apply calls it, under whatever name
        single.apply = classmethod(_recorded_apply(tracer, torch._C._FunctionBase.__dict__["apply"]))
        stack.callback(delattr, single, "apply")
        scripted: Any = torch.jit.ScriptFunction
        call = scripted.__dict__["__call__"]
        stack.callback(setattr, scripted, "__call__", call)
        scripted.__call__ = _recorded_script(tracer, call)
        yield


def _recorded(tracer: LayerTracer, original: Callable[..., Any], *, always: bool) -> Callable[..., Any]:
    def recorded(*args: Any, **kwargs: Any) -> Any:
        if tracer.running or not (always or fx_proxies(args, kwargs)):
            return original(*args, **kwargs)
        return tracer.create_proxy("call_function", original, args, kwargs)

    return recorded


def _refused(tracer: LayerTracer, original: Callable[..., Any]) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> Any:
        entered = original(*args, **kwargs)  # whoever calls it leaves it again, whatever is raised
        if not tracer.running:
            raise CannotBeTraced("module.of_transforms", OF_TRANSFORMS)
        return entered

    return refused


def _kept_buffers(tracer: LayerTracer, original: Callable[..., None]) -> Callable[..., None]:
    """Have a statement refused, and so made a layer of its own, that gives a buffer a value of the recording."""

    def kept(module: nn.Module, name: str, value: Tensor | nn.Module) -> None:
        if not tracer.running and isinstance(value, fx.Proxy) and name in module.__dict__.get("_buffers", ()):
            raise CannotBeTraced("module.replaces_buffer", "it replaces a buffer")
        original(module, name, value)

    return kept


def _recorded_apply(tracer: LayerTracer, apply: Any) -> Callable[..., Any]:
    def recorded(cls: type, *args: Any, **kwargs: Any) -> Any:
        if tracer.running or not fx_proxies(args, kwargs):
            return apply.__get__(None, cls)(*args, **kwargs)
        return tracer.create_proxy("call_function", apply_function, (cls, *args), kwargs)

    return recorded


def _recorded_script(tracer: LayerTracer, call: Any) -> Callable[..., Any]:
    def recorded(function: Any, *args: Any, **kwargs: Any) -> Any:
        if tracer.running or not fx_proxies(args, kwargs):
            return call.__get__(function)(*args, **kwargs)
        return tracer.create_proxy("call_function", function, args, kwargs)

    return recorded


def apply_function(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an autograd function of the user's own."""
    return function.apply(*args, **kwargs)
