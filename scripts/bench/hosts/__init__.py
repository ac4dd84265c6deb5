"""Pipelines between hosts against DistributedDataParallel: `python scripts/bench_hosts.py [--json FILE]`.

Two hosts are network namespaces on a bridge, whose links are shaped to `--rate`, both ways. One process of one thread
is on each. For each workload and rate, and in turn, `--repeats` times:

    limit      two processes at once that send nothing, their sum: what two such hosts could do without a network
    predicted  what the simulator says of the plan, by a profile scaled to the limit just before, over the measured link
               and with what a byte takes of a processor's time, measured as `sparsepipe cluster measure` does
    pipeline   this project's runtime, asynchronous 1F1B over sockets, by the best plan for that link
    ddp        DistributedDataParallel over gloo, each host with half of a minibatch

All update the weights once a minibatch, after as many samples. Numbers are samples a second: medians, and ratios with
their spread (quartiles over the repeats), each of two neighbours in time. `share` is how much of the link's rate the
busier direction of a competitor took while it trained, `megabytes` what it sent that way for a minibatch; of
what is predicted, what the simulator counts.

`--what launch` measures instead how long it is from a launch to the first minibatch, with a rank on each of three
hosts, by ssh and by Ray (whose nodes are there already), and with all three on the host that launches.

`--what encryption` measures what `--encrypt` costs: a pipeline and replicas on two hosts, launched by ssh, in clear and
through TLS in turn, over links as they are or of the first `--rate`.

For root, on Linux: elsewhere it says why it cannot.
"""
