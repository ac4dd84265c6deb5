"""How others make minibatches of samples of several sizes: their rules, written anew from their description.

transformers   LengthGroupedSampler: a shuffled epoch is cut into 50 minibatches each, sorted by size within, the
               largest sample of all first
TRELLIS.2      its balanced sampler: the minibatches of one step of all replicas are drawn together, then dealt by
               size, the largest first, each to the replica with the least so far that has room
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
    found: Minibatches = []
    for start in range(0, len(order), step):
        samples = sorted(order[start : start + step], key=lambda sample: -sizes[sample])
        groups: Minibatches = [[] for _ in range(-(-len(samples) // batch_size))]
        loads = [(0.0, k) for k in range(len(groups))]
        for sample in samples:
            load, k = heapq.heappop(loads)
            groups[k].append(sample)
            if len(groups[k]) < batch_size:
                heapq.heappush(loads, (load + sizes[sample], k))
        found += groups
    return found
