"""The ranks of a plan on nodes of Ray: a placement group for them, and agents where it put them."""

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import ray
from ray import cloudpickle
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from ...errors import InputError
from ...util.text.numbers import number_of
from ...values.cluster import Node
from ..ssh.connection import AGENT, AgentProcess
from ..ssh.launch_ssh import HostedRanks
from . import agent_actor
from .launch_ray import bundle, hosts_of

_PIECE = 2**16
_KILLED = -9


class ActorProcess:
    """Has the pipes and the end of the agent that an `AgentActor` started, as `subprocess.Popen` has a process's."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.lost: str | None = None  # why the actor can be reached no more, once it cannot
        taken, giving = os.pipe()
        self.stdin: IO[bytes] | None = os.fdopen(giving, "wb", 0)
        self.stdout: IO[bytes] | None = self._carried("output", actor.read)
        self.stderr: IO[bytes] | None = self._carried("errors", actor.read_errors)
        threading.Thread(target=self._write, args=(taken,), name="input", daemon=True).start()
        self._ended = actor.wait.options(concurrency_group="end").remote()

    def wait(self, timeout: float | None = None) -> int:
        """Return the agent's exit code, -9 where its actor is lost. Raises subprocess.TimeoutExpired."""
        try:
            return int(ray.get(self._ended, timeout=timeout))
        except ray.exceptions.GetTimeoutError:
            raise subprocess.TimeoutExpired("agent", timeout or 0.0) from None
        except ray.exceptions.RayError as error:
            self._lose(error)
            return _KILLED

    def kill(self) -> None:
        """End the actor's process, and the agent with it."""
        ray.kill(self._actor)

    def _carried(self, group: str, read: Any) -> IO[bytes]:
        """Return the reading end of a pipe that has what calls of `read` return."""
        reading, writing = os.pipe()
        again = read.options(concurrency_group=group)
        carry = (writing, lambda: ray.get(again.remote()))
        threading.Thread(target=self._read, args=carry, name=group, daemon=True).start()
        return os.fdopen(reading, "rb", 0 if group == "output" else -1)

    def _read(self, writing: int, following: Callable[[], bytes]) -> None:
        try:
            while data := following():
                while data:
                    data = data[os.write(writing, data) :]
        except ray.exceptions.RayError as error:
            self._lose(error)
        except OSError:
            pass  # nobody reads any more
        finally:
            os.close(writing)

    def _write(self, taken: int) -> None:
        write = self._actor.write.options(concurrency_group="input")
        close_input = self._actor.close_input.options(concurrency_group="input")
        try:
            while data := os.read(taken, _PIECE):
                ray.get(write.remote(data))
            ray.get(close_input.remote())
        except ray.exceptions.RayActorError as error:
            self._lose(error)
        except (OSError, ray.exceptions.RayError):
            pass  # the agent has gone: how, its exit code says
        finally:
            os.close(taken)

    def _lose(self, error: BaseException) -> None:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        self.lost = self.lost or (lines[0] if lines else type(error).__name__)


Group = PlacementGroup  # by this name for those who ask Ray for nothing themselves
_TO_PLACE = 60.0  # seconds for other jobs of Ray to make room
_TO_ANSWER = 20.0  # for a worker of Ray to start on a busy node


@dataclass
class PlacedRanks:
    """A way to the hosts of ranks that have their bundles (`Reach` of ssh/connection.py)."""

    group: PlacementGroup
    bundles: Mapping[str, Sequence[int]]  # by a host's name: those of its ranks, in their order
    gpus: bool
    folder: str | None  # the agents' current one; None: their nodes'
    cpus: float = 1  # of an agent
    _processes: dict[str, ActorProcess] = field(default_factory=dict)

    def begin(self, node: Node) -> AgentProcess:
        """Start an agent in the bundle of the host's first rank."""
        own = self.bundles[node.name]
        kept = {"PYTHONSAFEPATH": "1", "PYTHONUTF8": "1"}
        if self.gpus:  # in the order of the host's ranks, each of which takes that of its place
            kept["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpu_of(bundle) for bundle in own)
        made = ray.remote(num_cpus=self.cpus, max_restarts=0, concurrency_groups=agent_actor.GROUPS)(
            agent_actor.AgentActor
        )
        actor = made.options(scheduling_strategy=self._in(own[0])).remote(list(AGENT), kept, self.folder)
        self._processes[node.name] = ActorProcess(actor)
        return self._processes[node.name]

    def failure(self, node: Node, code: int, said: str) -> str | None:
        lost = self._processes[node.name].lost
        return f"Ray lost its actor there ({lost[:300]}); `ray list actors` has more" if lost else None

    def end(self) -> None:
        """End the actors, each of which has its bundle until then."""
        for process in self._processes.values():
            process.kill()

    def _gpu_of(self, bundle: int) -> str:
        """The GPU that Ray has reserved for a bundle, as CUDA_VISIBLE_DEVICES has it."""
        ask = ray.remote(num_cpus=0, num_gpus=1, max_retries=0)(agent_actor.own_gpu)
        return str(ray.get(ask.options(scheduling_strategy=self._in(bundle)).remote()))

    def _in(self, bundle: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=bundle)


@dataclass(frozen=True)
class Reserved:
    """A bundle for each rank, on nodes that have these ids, and their hosts, that of rank 0 first."""

    group: PlacementGroup
    nodes: tuple[str, ...]
    hosts: tuple[HostedRanks, ...]

    def free(self) -> None:
        remove_placement_group(self.group)

    def ids(self, hosted: HostedRanks) -> set[str]:
        """The ids of the nodes of a host."""
        return {self.nodes[rank] for rank in hosted.ranks}


def reserved(wanted: Sequence[dict[str, str]], *, gpus: bool, seconds: float = _TO_PLACE) -> Reserved:
    """Reserve a bundle for each rank, on a node with the labels that are wanted, until it is freed. Ray is connected.

    Raises InputError if other jobs make no room for them within so many seconds.
    """
    cloudpickle.register_pickle_by_value(agent_actor)
    group = placement_group(
        [bundle(gpus=gpus)] * len(wanted),
        strategy="PACK",  # boundaries within a host are cheap
        bundle_label_selector=list(wanted),
    )
    try:
        if not group.wait(seconds):
            raise InputError(
                "ray.no_room",
                f"Ray had no free resources for {number_of(len(wanted), 'rank')} within {seconds:.0f} s (see `ray "
                "status`); wait for other jobs, or plan for fewer ranks",
            )
        nodes = nodes_of(group)
        return Reserved(group, nodes, hosts_of(nodes, all_nodes()))
    except BaseException:
        remove_placement_group(group)
        raise


def nodes_of(group: PlacementGroup) -> tuple[str, ...]:
    """Return the id of the node that has each bundle; of a bundle that Ray has no node for, none that there is."""
    placed = placement_group_table(group)["bundles_to_node_id"]
    return tuple(placed[number] for number in sorted(placed))


def group_of(id: str) -> PlacementGroup:
    """Return the group that another driver has reserved, by its id."""
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(id)))


def address_of_ray() -> str:
    """Return the address of the Ray that is connected, for other drivers on this machine."""
    return str(ray.get_runtime_context().gcs_address)


def all_nodes() -> list[dict[str, Any]]:
    """Return what Ray knows of its nodes, of those that have ended too."""
    found: list[dict[str, Any]] = ray.nodes()
    return found


def answers(id: str) -> bool:
    """Return whether the node with this id does a task: Ray takes half a minute or more to know that one is gone."""
    asking = ray.remote(num_cpus=0, max_retries=0)(agent_actor.answer)
    asked = asking.options(scheduling_strategy=NodeAffinitySchedulingStrategy(id, soft=False)).remote()
    try:
        ray.get(asked, timeout=_TO_ANSWER)
    except ray.exceptions.RayError:  # of which GetTimeoutError is one
        ray.cancel(asked, force=True)
        return False
    return True
