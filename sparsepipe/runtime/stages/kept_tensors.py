"""What a stage keeps of a minibatch between forward and backward: less in recomputed segments, or in the host's memory.

A recomputed segment keeps the values that it reads, and its forward runs again. Tensors that a minibatch still keeps
then may move to the host: each is copied when an operation saves it, and returns when the backward asks for it.

    forward     save a ─► copy a      save b ─► copy b      save c ─► copy c         copies in a stream of their own
    backward                          c is read, b returns  b is read, a returns
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property, partial
from time import perf_counter
from typing import Any, NamedTuple
from weakref import finalize, ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from ...engines import Engine
from ...networks.base import run_layers
from ...values.recomputation import Segments

CPU = torch.device("cpu")
_LEAST_BYTES = 2**12  # of a tensor that moves: a copy takes longer than smaller ones are worth
_LEAVING = 2  # copies to the host under way: the tensors stay on the device until then
_PROBE_BYTES = 2**26  # whose copies tell the rate of the link


class HostMemory:
    """The memory of the host, to which tensors of a device move until the backward; copies run beside computation.

    `host` is a parameter so that tests can move tensors of a CPU.
    """

    def __init__(self, device: torch.device, host: torch.device = CPU) -> None:
        self.device, self.host = device, host
        self.held_bytes = 0  # of tensors that are there now
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._leaving: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    @cached_property
    def bytes_per_second(self) -> float:
        """The rate of copies to the host and back, measured once."""
        tensor, seconds = torch.empty(_PROBE_BYTES, dtype=torch.uint8, device=self.device), []
        for _ in range(3):  # the first allocates
            self._synchronise()
            start = perf_counter()
            self.returned(self.moved(tensor))
            self._synchronise()
            seconds.append(perf_counter() - start)
        self.release()
        return 2 * _PROBE_BYTES / min(seconds)

    def moved(self, tensor: Tensor) -> Tensor:
        """Return a copy in the host's memory; on a GPU it is complete for what the copies' stream does next."""
        copy = torch.empty_like(tensor, device=self.host, pin_memory=self._stream is not None)
        with self._beside():
            copy.copy_(tensor, non_blocking=True)
        if self._stream is not None:
            self._leaving.append((tensor, self._stream.record_event()))
            self.release(at_most=_LEAVING)
        return copy

    def release(self, *, at_most: int = 0) -> None:
        """Let go of tensors that were moved, once their copies are complete, but for `at_most` of them."""
        while len(self._leaving) > at_most:
            self._leaving.popleft()[1].synchronize()

    def returned(self, copy: Tensor) -> Tensor:
        """Return a copy on the device again. On a GPU, `wait` before it is read."""
        tensor = torch.empty_like(copy, device=self.device)
        with self._beside():
            tensor.copy_(copy, non_blocking=True)
        return tensor

    def wait(self) -> None:
        """Have the device compute what follows after all copies so far."""
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)

    def _beside(self) -> AbstractContextManager[object]:
        """Have the block's copies follow what the device computes so far, and run beside what it computes then."""
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self._stream)

    def _synchronise(self) -> None:
        if self._stream is not None:
            torch.cuda.synchronize(self.device)


class _HostCopy:
    """A tensor in the host's memory, or on its way back. `before`: the one that moved before it."""

    def __init__(self, memory: HostMemory, tensor: Tensor, before: "_HostCopy | None") -> None:
        self._memory, self._copy = memory, memory.moved(tensor)
        self._returning: Tensor | None = None
        self._before = None if before is None else ref(before)
        memory.held_bytes += tensor.nbytes
        finalize(self, _let_go, memory, tensor.nbytes)

    def begin_return(self) -> Tensor:
        """Return the tensor on its device, maybe before the copy is complete."""
        if self._returning is None:
            self._returning = self._memory.returned(self._copy)
        return self._returning

    def tensor(self) -> Tensor:
        """Return the tensor on its device, and have the one before it return: the backward reads that next."""
        tensor, self._returning = self.begin_return(), None
        self._memory.wait()
        before = self._before() if self._before else None
        if before is not None:
            before.begin_return()
        return tensor


def _let_go(memory: HostMemory, num_bytes: int) -> None:
    memory.held_bytes -= num_bytes


class MovedTensors:
    """Tensors that the forward of a minibatch saves, in the host's memory. A tensor that is saved twice moves once."""

    def __init__(self, memory: HostMemory, engine: Engine, staying: Collection[Tensor]) -> None:
        """`staying`: weights, buffers and received tensors, which are on the device anyway."""
        self._memory, self._engine = memory, engine
        self._staying = {tensor.untyped_storage().data_ptr() for tensor in staying}
        self._known: dict[tuple[object, ...], tuple[StorageWeakRef, _HostCopy]] = {}
        self._newest: _HostCopy | None = None
        self._read: tuple[_HostCopy, Tensor] | None = None  # which came back last

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Have the block's operations save their tensors in the host's memory."""
        with saved_tensors_hooks(self.moved, self.returned):
            yield
        self._memory.release()

    def moved(self, tensor: Tensor) -> "_HostCopy | Tensor":
        """Return what stands for a tensor: itself if it stays."""
        storage = tensor.untyped_storage()
        if tensor.nbytes < _LEAST_BYTES or storage.data_ptr() in self._staying:
            return tensor
        key = storage.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        known = self._known.get(key)
        if known is None or known[0].expired():  # another tensor's, which is gone
            self._newest = _HostCopy(self._memory, tensor.detach(), self._newest)
            self._known[key] = known = StorageWeakRef(storage), self._newest
        return known[1]

    def returned(self, copy: "_HostCopy | Tensor") -> Tensor:
        """Return the tensor that something stands for, on its device."""
        if isinstance(copy, Tensor):
            return copy
        self._known.clear()  # the forward is over
        self._newest = None
        if self._read is None or self._read[0] is not copy:
            self._read = copy, copy.tensor()
        return self._read[1]

    def moved_values(self, values: Mapping[str, object]) -> dict[str, object]:
        """Return values that a segment reads, their features in the host's memory unless they stay."""
        moved: dict[str, object] = {}
        for name, value in values.items():
            copy = self.moved(self._engine.features(value))
            moved[name] = value if isinstance(copy, Tensor) else _MovedValue.of(value, copy, self._engine)
        return moved

    def returned_values(self, values: Mapping[str, object]) -> dict[str, object]:
        """Return the values as they were."""
        return {
            name: self._engine.replace(value.emptied, self.returned(value.copy).detach().requires_grad_(value.trained))
            if isinstance(value, _MovedValue)
            else value
            for name, value in values.items()
        }


class _MovedValue(NamedTuple):
    """A value without its features, which are in the host's memory. `trained`: a gradient is wanted for them."""

    emptied: object
    copy: _HostCopy
    trained: bool

    @classmethod
    def of(cls, value: object, copy: _HostCopy, engine: Engine) -> "_MovedValue":
        features = engine.features(value)
        empty = features.detach().new_empty(()).expand(features.shape)
        return cls(engine.replace(value, empty), copy, features.requires_grad)


class _Slice:
    """Some consecutive layers of a stage's module."""

    def __init__(self, module: Any, first: int, end: int) -> None:
        self.table, self.run_layer = module.table[first:end], module.run_layer


def run_in_segments(
    module: Any,
    alive: Mapping[str, Any],
    segments: Segments,
    *,
    context: Callable[[], AbstractContextManager[None]],
    minibatch: int,
    keep: Collection[str],
    moved: MovedTensors | None = None,
) -> dict[str, Any]:
    """Do what calling the stage's module does, but recompute `segments` of its layers in the backward.

    `context`: in which the layers run, with their weights and precision. `moved`: where what a segment reads goes.
    """
    tensors, rows, done = dict(alive), module.table, 0
    last_use = {name: place for place, row in enumerate(rows) for name in (*row.inputs, *row.outputs)}
    for first, end in (*segments, (len(rows), len(rows))):
        for begin, stop, again in ((done, first, False), (first, end, True)):
            if begin == stop:
                continue
            part = _Slice(module, begin, stop)
            needed = {name for name, place in last_use.items() if place >= stop} | set(keep)
            if again:
                read = {name for row in part.table for name in row.inputs}
                given = {name: value for name, value in tensors.items() if name in read}
                run = partial(run_layers, part, minibatch=minibatch, keep=needed - set(given))
                tensors |= _Recomputed(run, module, context, given, moved).first_forward()
                del given
            else:
                tensors = run_layers(part, tensors, minibatch=minibatch, keep=needed)
            tensors = {name: value for name, value in tensors.items() if name in needed}
        done = end
    return {name: value for name, value in tensors.items() if name in keep}


class _AllSaved(Exception):
    """A segment that runs again has saved all that the backward needs: the rest of it would be for nothing."""


class _Recomputed:
    """A segment of layers whose graph has numbers in the place of saved tensors, until the backward asks for one.

    As `torch.utils.checkpoint` without reentrant calls, whose first use imports torch's compiler: seconds, and more
    memory than a stage may have. The first forward counts; later ones leave running statistics as they are.
    """

    def __init__(
        self,
        run: Callable[[Mapping[str, Any]], dict[str, Any]],
        module: nn.Module,
        context: Callable[[], AbstractContextManager[None]],
        given: Mapping[str, Any],
        moved: MovedTensors | None,
    ) -> None:
        self._run, self._module, self._context, self._given = run, module, context, given
        self._moved = moved
        self._count = 0
        self._saved: list[Tensor | None] = []

    def first_forward(self) -> dict[str, Any]:
        with saved_tensors_hooks(self._number, self._tensor):
            outputs = self._run(self._given)
        if self._moved is not None:
            self._given = self._moved.moved_values(self._given)
        return outputs

    def _number(self, tensor: Tensor) -> int:
        self._count += 1
        return self._count - 1

    def _tensor(self, number: int) -> Tensor:
        saved = self._saved[number] if self._saved else None
        if saved is None:  # the first that is asked for, or asked for once more by the second half of a split backward
            self._run_again()
            saved = self._saved[number]
            assert saved is not None
        self._saved[number] = None
        return saved

    def _run_again(self) -> None:
        saved: list[Tensor | None] = []

        def keep(tensor: Tensor) -> int:
            saved.append(tensor.detach())
            if len(saved) == self._count:
                raise _AllSaved
            return len(saved) - 1

        self._saved.clear()
        given = self._given if self._moved is None else self._moved.returned_values(self._given)
        with torch.enable_grad(), self._context(), unchanged_buffers(self._module), suppress(_AllSaved):
            with saved_tensors_hooks(keep, lambda number: saved[number]):
                self._run(given)
        if len(saved) != self._count:
            raise RuntimeError(f"{len(saved)} tensors were saved again, {self._count} the first time")
        self._saved = saved


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """Have the block work on copies of the buffers: of a forward that is run twice, one counts.

    The buffers themselves are not written to, as graphs of minibatches in flight have saved them.
    """
    parts = [(part._buffers, dict(part._buffers)) for part in module.modules()]
    for buffers, before in parts:
        buffers.update({name: buffer.clone() for name, buffer in before.items() if buffer is not None})
    try:
        yield
    finally:
        for buffers, before in parts:
            buffers.update(before)
