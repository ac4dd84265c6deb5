"""Compare predicted and measured costs of minibatches of many sizes, on this machine; run it with nothing else at work.

Every case profiles a network, then trains it on other minibatches of the same data. A row says how far predictions are
off: of a minibatch's computation (median and 95th percentile), of all minibatches together (an epoch), and of the peaks
of stages' tensors, of two and three stages at a quarter to twice the batch. "Again" is what the seconds of one
minibatch differ by when it is timed once more; "own", what the worst peak is off by where that very minibatch was
profiled. `voxels` compares one profile, scaled to other voxel sizes and batch sizes as the explorer does, with profiles
measured there, and with its own measured once more.
All cases take some ten minutes on two cores.
"""
