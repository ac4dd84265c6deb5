"""Measure the pipeline runtime against its competitors, in one run: `python scripts/bench_runtime.py [--json FILE]`.

Every process has one thread. For each workload and in turn, `--repeats` times:

    single      one process, a plain torch loop with the fused optimizer
    limit       two such processes at once, their sum: what two cores can do
    ddp         DistributedDataParallel over gloo in two processes, each with half of a minibatch
    torch_1f1b  torch.distributed.pipelining Schedule1F1B, a minibatch in micro-batches; best number and cut of several
    pipeline    this project's runtime, asynchronous 1F1B, by the best plan for a profile taken with both cores busy:
                one stage a process, or two of them interleaved
    predicted   what the simulator says of its plan, by that profile scaled to the steps of the limit just before

These update the weights once a minibatch, after as many samples all: they train alike. Others that update less often,
which costs less time and more epochs:

    ddp_double         each process has a whole minibatch, an update is of two
    torch_1f1b_larger  each micro-batch is a whole minibatch, an update is of several; number and cut as above
    flush              this project's runtime with 1F1B-flush, at torch_1f1b_larger's cut and number of micro-batches

Numbers are samples a second: medians, and ratios with their spread (quartiles over the repeats), each of two neighbours
in time. `load` is the machine's (one minute, before each repeat): 0 at first, on two idle cores. `held` is the most
that each stage held, between its actions and inside backwards, by the plan's figure; `peak` the most that its process
had, what its allocator keeps of freed memory included. `--workload runtime` is the channel against bare gloo, its bytes
beside those of the six-message protocol, and the runtime's own time a minibatch and stage. All of it takes an hour.

Networks of images get images, in every competitor the same; those of clouds get clouds. ResNet-50 on pictures of
32 x 32, the small GNMT on pairs of sentences of up to 32 of 8000 subwords and the small BERT on texts of up to 128 of
4000 are torch modules: `single`, `limit` and `ddp` run the module itself; both stages of `torch_1f1b` are made of its
traced layers, as ours are, masks and words are given to the stage that reads them, and weights that both use are in
both, their gradients added up once per step. Their minibatches are all of one shape, since torch's schedules take no
other.
"""
