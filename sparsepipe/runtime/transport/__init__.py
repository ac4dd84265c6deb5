"""How a packet, one minibatch at a stage boundary, gets from one rank to another, and how it is made smaller."""
