"""What a run trains on: minibatches, stages and losses, of point clouds or of a profile that is slept through."""
