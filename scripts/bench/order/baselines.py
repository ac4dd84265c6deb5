"""How others make minibatches of samples of several sizes: their rules, checked with their sources, in our code.

transformers   `group_by_length` (LengthGroupedSampler of trainer_pt_utils.py). A shuffled epoch is cut into groups of
               50 minibatches, or so few that there are four groups; each is sorted by size, the largest first. The
               largest sample of all comes first, in exchange for the first one, so that too little memory shows at
               once. Replicas take whole minibatches in turn.
TRELLIS.2      BalancedResumableSampler (trellis2/utils/data_utils.py). A shuffled epoch is filled up to a multiple of
               the replicas by its first samples. The samples of one step of all replicas go by size, the largest
               first, to the replica with the least load so far; a replica with a whole minibatch takes no more. What
               is left of the epoch, less than a step, is not trained. A single replica keeps the random order.
"""

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

Minibatches = list[list[int]]
GROUPED = 50  # minibatches that transformers sorts together, where an epoch has four times as many or more


def length_grouped(sizes: Sequence[float], batch_size: int, random: Generator) -> Minibatches:
    """Order an epoch as transformers' Trainer does with `group_by_length`."""
    counts, order = np.asarray(sizes), random.permutation(len(sizes))
    together = batch_size * max(min(len(sizes) // (4 * batch_size), GROUPED), 1)
    parts = [order[k : k + together] for k in range(0, len(order), together)]
    parts = [part[np.argsort(-counts[part], kind="stable")] for part in parts]
    largest = max(range(len(parts)), key=lambda k: counts[parts[k][0]])
    parts[0][0], parts[largest][0] = parts[largest][0], parts[0][0]
    flat = np.concatenate(parts).tolist()
    return [flat[k : k + batch_size] for k in range(0, len(flat), batch_size)]


def load_balanced(sizes: Sequence[float], batch_size: int, replicas: int, random: Generator) -> Minibatches:
    """Deal each step's samples to replicas as TRELLIS.2 does: a step's minibatches come one after the other."""
    order, step = random.permutation(len(sizes)).tolist(), batch_size * replicas
    order += order[: -len(order) % replicas]
    dealt: Minibatches = []
    for start in range(0, len(order) - step + 1, step):
        groups: Minibatches = [[] for _ in range(replicas)]
        loads = [(0.0, k) for k in range(replicas)]
        for sample in sorted(order[start : start + step], key=lambda sample: -sizes[sample]):
            load, k = heapq.heappop(loads)
            groups[k].append(sample)
            if len(groups[k]) < batch_size:
                heapq.heappush(loads, (load + sizes[sample], k))
        dealt += groups
    return dealt
