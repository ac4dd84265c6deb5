"""Compare the replication rules of several pipelines, with one of them slow and without.

`--what pace`      replays of pipelines of one stage, whose processes sleep in place of computing, beside the simulation
                   of the same; of each rule and straggler
    measured/simulated    minibatches a second of all pipelines together, each over all of its seconds
    groups                mean size of the groups that average, measured over simulated: the mean of simulations whose
                          pipelines begin as the replayed ones did and whose minibatches are as uneven as theirs were
    groups/even           the same over one simulation of equal minibatches, begun at once
    healthy/own           pace of the pipelines that nothing holds up, over their own if they never waited
    all/own               pace of all pipelines together over the sum of their own

`--what accuracy`  trains the network under each rule with the same samples, seeds and settings but the learning rate:
                   validation accuracy at the end, and the seconds after which it first reached the least of
                   all-reduce's final accuracies
    epochs         as many as all-reduce trains until four together are better by at most 0.01; `flat`: whether the
                   same is true of a run; at most --epochs, or all of these where --learning-rate-schedule decays to 0
    rate           all-reduce's (--learning-rate) by what share of that a sample moves the mean of all pipelines'
                   weights: 1 for rules that average weights, 1 / (share × P) for a server that adds a share of each
                   change, (1 - momentum) / outer rate for an outer step

In 12 minutes on an idle machine of two cores, three seeds of every rule, with a straggler and without:
    --what accuracy --pipelines 3 --seeds 3 --epochs 7 --learning-rate 0.06 --learning-rate-schedule cosine
    --voxel-size 0.15 --num-points 256

All are medians over the seeds with the least and the most.
"""
