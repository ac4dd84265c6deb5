"""Images with classes: where they lie (a file for each way), how a picture becomes a network's input."""
