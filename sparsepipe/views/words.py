"""What the words mean that pictures, tables and the command line use: one place for all of them."""

from collections.abc import Mapping

OF_PLANS: Mapping[str, str] = {
    "stage": "consecutive layers that one device, or several replicas with a share of the minibatches each, compute",
    "minibatch, microbatch": "the samples that go through the pipeline together; a schedule that flushes updates the "
    "weights once per step of several microbatches",
    "time per minibatch": "once the pipeline is full: that of its slowest stage or boundary (the period)",
    "lower bound": "no plan of one pipeline on these devices takes less time per minibatch: proven for this profile",
    "gap to the bound": "what part of the plan's time per minibatch lies above the bound; 0%: no plan is better",
    "averaging": "replicas of a stage exchange gradients and go on with their mean, while they compute nothing",
    "transfer": "outputs that go to the next stage and gradients that come back, beside the computation",
    "pin": "keep the cuts, or the devices of each stage, as they are while all else is planned anew",
}
OF_PIPELINES: Mapping[str, str] = {
    "pipeline": "a copy of the network, cut into stages on devices of its own; several of them share the minibatches, "
    "each as many as its pace allows",
    "replication rule": "how pipelines keep their copies alike: what they average, with whom, and whether they wait",
    "straggler": "whatever holds a rank up: it is slow, sleeps, stops for a while, or ends",
    "own pace": "samples/s that a pipeline would train by itself, with the same straggler",
    "group": "the pipelines whose weights, or gradients, are averaged together",
    "staleness": "updates that a pipeline makes between its contribution to an average and taking that average",
}
OF_RUNS: Mapping[str, str] = {
    "work": "forwards, backwards and updates of the weights",
    "dependency": "waiting for another stage because what it makes is not there yet",
    "imbalance": "waiting because stages or replicas do not take equally long",
    "sizes": "what minibatches of several sizes cost, compared with as many that each cost the mean of all",
    "averaging": OF_PLANS["averaging"],
    "communication": "waiting for bytes that are on their way",
    "bubble": "the share of idle time: ranks wait, for each other or for bytes, or the pipeline fills and drains",
    "samples/s": "of one pipeline the median of its epochs, without the first where there are others, each while the "
    "pipeline is full; of several all their samples by the clock, from the first minibatch done to the last. Empty "
    "where nobody knows how many samples a minibatch has, as in replays of most published profiles",
    "predicted, measured": "what the plan's estimate says of such minibatches, and what the run did once it was full",
    "detached": "the job goes on when the kernel ends, and is found again by this board",
}
