"""What training changes: weights and their versions, optimizer, learning rate, loss scale; and checkpoints of them."""
