"""How long a step of torch's own runtime takes under our plans: predicted against measured.

Each network is profiled, cut in two between its blocks where the estimate is best, and exported for
torch.distributed.pipelining. Two gloo processes train it from the written script. The predicted step is simulated from
the profile; the measured one is the median of the script's steps, without the first ones. A second process
computes the same while the profile is measured, as both stages do in training. torch's runtime adds some 2 ms to a
microbatch, which no profile has: a stage of these networks computes for 20 to 110 ms. Run it on an idle machine with
two cores or more.
"""
