"""Networks as other libraries have them, tiny and with random weights: name → a module and its minibatches."""
