"""How fast one of several pipelines is: the same for what is simulated, emulated and measured."""


def pace(samples: float, seconds: float) -> float:
    """Return samples per second of a pipeline: all of its samples over all of its seconds; 0 if it has none.

    `seconds`: from when the pipeline has its first minibatch until its last is done, and until a bound that keeps it
    from the next is of no more account: till then it waits, though it may get no other. A window in the middle of a run
    would tell the steady state, and nothing of a stop, of a rank that is slow for some minibatches, or of a death that
    comes outside of it: over the whole run such a one costs the same wherever it comes. So does filling and emptying
    the stages, about S - 1 of n + S - 1 minibatches' seconds with n minibatches and S like stages: it is in what a
    simulation says as it is in what real processes take, and a planner's period leaves it out.
    """
    return samples / seconds if seconds > 0 else 0.0
