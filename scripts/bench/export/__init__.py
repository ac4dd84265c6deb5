"""How long a step of torch's own runtime takes under our plans: predicted against measured.

Each network is profiled, cut in two between its blocks where the estimate is best, and exported for
torch.distributed.pipelining. Two gloo processes train it from the written script. The predicted step is simulated from
the profile; the measured one is the median of the script's steps, without the first ones. The profile is measured
beside a second process that does the same, as stages compute at once. torch's runtime adds some 2 ms to a microbatch,
which no profile knows: a stage of the networks here computes for 20 to 110 ms. Run it on an idle machine with two cores
or more.
"""
