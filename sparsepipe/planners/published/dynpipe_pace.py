"""DynPipe's simulator: the seconds from one minibatch to the next that it expects of a straight pipeline.

99 minibatches go through stages that work one forward, one backward. It knows no memory, no updates and no links that
several transfers share: a transfer delays the minibatch that it carries, and nothing else. Two faults are kept, since
its answers rest on them:

- A middle stage's first forward begins no earlier than its own length less a millisecond: the place before the first
  in the original's list is its last element, whose time is still the −1 that says "not yet".
- The first minibatches, while the pipeline fills, count in the mean like the rest.

Source: DynPipe, `main` in `calculate_new_placement` of its runtime.
"""

import numpy as np

from ...costs import Array

NUM_MINIBATCHES = 99
_NOT_YET = -1e-3  # seconds: the original counts milliseconds from −1


def pace(forward: Array, backward: Array, transfer: Array) -> Array:
    """Seconds a minibatch of each of many pipelines.

    `forward` and `backward` are seconds of each stage `[S, C]` for C pipelines of S ≥ 2 stages, `transfer` those of one
    transfer across each boundary, in either direction, `[S - 1, C]`. The answer is `[C]`.
    """
    num_stages, num_pipelines = forward.shape
    starts = _first_stage_starts(forward, backward, transfer)
    counted = range(num_stages, NUM_MINIBATCHES - num_stages, num_stages)
    total = np.zeros(num_pipelines)
    for minibatch in counted:
        total += starts[minibatch] - starts[minibatch - num_stages]
    mean: Array = total / (num_stages * len(counted))
    return mean


def _first_stage_starts(forward: Array, backward: Array, transfer: Array) -> list[Array]:
    """When the first stage begins each minibatch's forward."""
    num_stages, num_pipelines = forward.shape
    zero = np.zeros(num_pipelines)
    ended = _filled(forward, transfer)  # of each stage, the ends of its forwards
    starts = [end - forward[0] for end in ended[0]]
    gradients = [zero] * num_stages  # of each stage, the end of its last backward
    while len(starts) < NUM_MINIBATCHES:
        for s in range(num_stages):
            begin = np.maximum(ended[s][-1], gradients[s]) if ended[s] else zero
            if s:  # the stage before is one minibatch ahead, and has just ended the next one
                begin = np.maximum(begin, ended[s - 1][len(ended[s])] + transfer[s - 1])
            else:
                starts.append(begin)
            ended[s].append(begin + forward[s])
        for s in reversed(range(num_stages)):
            begin = ended[s][-1]
            if s < num_stages - 1:
                begin = np.maximum(begin, gradients[s + 1] + transfer[s])
            gradients[s] = begin + backward[s]
    return starts


def _filled(forward: Array, transfer: Array) -> list[list[Array]]:
    """The ends of each stage's forwards before its first backward: as many as there are stages after it."""
    num_stages, num_pipelines = forward.shape
    ended: list[list[Array]] = []
    for s in range(num_stages):
        own: list[Array] = []
        for minibatch in range(num_stages - 1 - s):
            begin = own[-1] if own else np.zeros(num_pipelines) if s == 0 else forward[s] + _NOT_YET
            if s:
                begin = np.maximum(begin, ended[s - 1][minibatch] + transfer[s - 1])
            own.append(begin + forward[s])
        ended.append(own)
    return ended
