"""In which order an epoch visits the samples, and which of them make a minibatch."""

import numpy as np

from ..errors import InputError


def minibatches(
    num_samples: int, *, batch_size: int, seed: int = 0, epoch: int = 0, shuffle: bool = True
) -> tuple[tuple[int, ...], ...]:
    """Deal sample indices into minibatches: each sample once, the last minibatch smaller where needed.

    The order depends on `seed` and `epoch` alone, so every process can compute it for itself.
    """
    for name, value, least in (("samples", num_samples, 1), ("batch size", batch_size, 1), ("epoch", epoch, 0)):
        if value < least:
            raise InputError(f"{name} {value} given, expected at least {least}")
    if seed < 0:
        raise InputError(f"seed {seed} given, expected 0 or more")
    indices = np.random.default_rng((seed, epoch)).permutation(num_samples) if shuffle else np.arange(num_samples)
    order = indices.tolist()
    return tuple(tuple(order[start : start + batch_size]) for start in range(0, num_samples, batch_size))
