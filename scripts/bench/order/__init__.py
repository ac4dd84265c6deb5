"""Compare orders of minibatches whose samples vary in size: simulated, in real processes, and in what is learned.

`--what simulated`   time over balanced minibatches (each costs the mean of all), with the lower bound for any order, of
                     2, 4 and 8 equal stages (asynchronous 1F1B) and of data parallelism of 8. Minibatches of 1 and of 4
                     samples, and by a budget of four mean samples. Sizes: lognormal, tiles of scans, shapes, clouds of
                     many extents. Orders: ours, fully sorted, and transformers' and TRELLIS.2's ways, written anew
`--what nearness`    how random planned orders are, compared with windows up and down that are as fast: distances from
                     random, 0 in random order and 1 fully sorted
`--what emulated`    processes that sleep as long as 2 and 4 stages compute, with real messages, at a coefficient of
                     variation of .75: seconds over balanced and over shuffled, and measured over simulated
`--what processes`   two processes train a narrow MinkVGG11 on clouds of lognormal size: seconds of an epoch in each
                     order over those of equal clouds and over shuffled ones, and measured over simulated. Stages are
                     measured on equal clouds first, and cut anew: a stage that takes longer than the other sets the
                     pace and hides sizes. Run it with nothing else at work, or under `chrt -f 50`
`--what learning`    accuracy over the seeds while training and validated, planned against shuffled, of an asynchronous
                     and a synchronous pipeline of two stages: in one process, with the weights that each stage has

Medians over the seeds.
"""
