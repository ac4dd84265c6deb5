"""Train minibatches whose sizes differ by a factor of 20 in one process, with and without a limit of memory.

The limit is the system's (RLIMIT_DATA): what the process has after a first small step, and `--limit` times what the
largest minibatch needs without recomputation. Each way trains the same minibatches in a process of its own:

    unlimited     no limit, nothing recomputed
    unprotected   the system's limit alone
    limit         `--memory-limit` of `sparsepipe train`: before each minibatch the cheapest segments for its size
    always        the segments of the largest minibatch for all of them
    controller    blocks recomputed as TRELLIS.2 decides: by a line through the peaks of the last minibatches

Of a minibatch that cannot be allocated no step is made, and it counts as failed. Times are processor seconds.
"""
