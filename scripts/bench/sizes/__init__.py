"""Compare predicted and measured costs of minibatches of many sizes, on this machine; run it with nothing else at work.

Every case profiles a network, then trains it on other minibatches of the same data. A row says how far predictions are
off: of a minibatch's computation (median and 95th percentile), of all minibatches together (an epoch), and the worst of
the peaks of stages' tensors, of two and three stages at a quarter to twice the batch. `voxels` compares one profile,
scaled to other voxel sizes and batch sizes as the explorer does, with profiles measured there.
All cases take some ten minutes on two cores.
"""
