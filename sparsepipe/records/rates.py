"""A run's pace under a unit that its record can vouch for: samples/s only where the samples of a minibatch are known.

A replay sleeps through a profile, and most profiles that others published do not tell how many samples a minibatch has.
Its processes count each minibatch as one sample; whoever reads its record gets minibatches/s, of earlier records too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..values.profile import Profile
from .workload_facts import workload_facts

SAMPLES, MINIBATCHES = "samples_per_second", "minibatches_per_second"


def knows_samples(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether the run in a folder, with these settings, knows how many samples a minibatch of it has."""
    if workload_facts(config.get("engine", "")).trains or config.get("batch_size", 1) > 1:
        return True
    try:
        return Profile.load(folder / "profile.json").batch_size is not None
    except InputError:  # gone, or damaged: nothing tells
        return False


def in_minibatches(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of metrics whose samples are minibatches, with its pace under the name of minibatches/s."""
    return {MINIBATCHES if key == SAMPLES else key: value for key, value in row.items()}
