"""How pipelines take the minibatches that they share: the same for what is simulated and for real runs."""

# Minibatches that a loader asks for beyond those that its rank has begun. They are its pipeline's own from then on: a
# rule's bound is asked when they are taken, and a slow pipeline keeps those that it has at the end of an epoch.
READ_AHEAD = 2
