"""Named tensors from rank to rank, all ranks at once: what changes hands where a job switches to another plan.

    sizes      one sum over all ranks: how much goes from whom to whom
    room       memory for what comes, on every rank, before anything is sent
    tensors    one message from one rank to another: (length, names, types and shapes as JSON, tensors)

Over the job's own process group and from the CPU: it is done once in a while, and each pair of ranks is connected there
whatever the plan.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import InputError
from ...util.host.limits import available_bytes
from ..processes.process import Process

_ALIGNED = 64  # bytes: where a tensor begins, so that it can be seen as numbers of its type where it lies


@dataclass(eq=False)
class StateTransfer:
    """State that leaves this rank and state that it receives. Every rank makes one, at the same time."""

    process: Process
    outgoing: dict[int, Tensor] = field(default_factory=dict)  # by rank
    incoming: dict[int, Tensor] = field(default_factory=dict)
    moved_bytes: int = 0  # between all ranks together
    _sizes: Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def of(cls, process: Process, tensors: Mapping[int, Mapping[str, Tensor]]) -> "StateTransfer":
        """Begin: say what goes to which other rank. All ranks come here. Raises DeadlinePassed or PeerLost."""
        outgoing = {peer: packed(own) for peer, own in tensors.items() if own}
        sizes = torch.zeros(process.world_size, process.world_size, dtype=torch.int64)
        for peer, message in outgoing.items():
            sizes[process.rank, peer] = len(message)
        process.sum(sizes, what="what changes hands")
        return cls(process, outgoing, moved_bytes=int(sizes.sum()), _sizes=sizes)

    def make_room(self) -> None:
        """Get the memory for what comes. Raises InputError if there is too little."""
        sizes = self._sizes[:, self.process.rank].tolist()
        if (needed := sum(sizes)) > (left := available_bytes()):
            raise InputError(
                "memory.no_room_for_state",
                f"{needed / 1e6:.0f} MB of state would move to rank {self.process.rank}, but only {left / 1e6:.0f} "
                "MB are free",
            )
        self.incoming = {peer: torch.empty(size, dtype=torch.uint8) for peer, size in enumerate(sizes) if size}

    def run(self) -> dict[str, Tensor]:
        """Send and receive. All ranks come here; return what came. Raises DeadlinePassed or PeerLost."""
        # Sends first: an encrypted group begins one thing after the other, and waits for what it receives.
        under_way = [dist.isend(message, peer) for peer, message in self.outgoing.items()]
        under_way += [dist.irecv(message, peer) for peer, message in self.incoming.items()]
        for work in under_way:
            self.process.finish(work, what="what changes hands")
        self.outgoing.clear()
        return {key: tensor for message in self.incoming.values() for key, tensor in unpacked(message).items()}


def packed(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return named tensors as one message, uint8 [n] on the CPU."""
    own = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
    facts = [[key, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for key, tensor in own.items()]
    header = json.dumps(facts).encode()
    starts, end = [], _aligned(8 + len(header))
    for tensor in own.values():
        starts.append(end)
        end = _aligned(end + tensor.nbytes)
    message = torch.empty(end, dtype=torch.uint8)
    message[:8] = torch.frombuffer(bytearray(len(header).to_bytes(8, "little")), dtype=torch.uint8)
    message[8 : 8 + len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    for start, tensor in zip(starts, own.values(), strict=True):
        message[start : start + tensor.nbytes].copy_(tensor.reshape(-1).view(torch.uint8))
    return message


def unpacked(message: Tensor) -> dict[str, Tensor]:
    """Return the named tensors of a message, as views of it."""
    length = int.from_bytes(bytes(message[:8].tolist()), "little")
    start, found = _aligned(8 + length), {}
    for key, name, shape in json.loads(message[8 : 8 + length].numpy().tobytes()):
        dtype = getattr(torch, name)
        count = dtype.itemsize * torch.Size(shape).numel()
        found[key] = message[start : start + count].view(dtype).view(shape)
        start = _aligned(start + count)
    return found


def _aligned(place: int) -> int:
    return -(-place // _ALIGNED) * _ALIGNED
