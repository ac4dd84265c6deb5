"""One stage's share of the network on one minibatch: its forward, its backward (whole or split), its loss."""
