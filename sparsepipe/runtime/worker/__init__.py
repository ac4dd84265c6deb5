"""The worker: one rank that joins its job and obeys its list of actions, epoch after epoch."""
