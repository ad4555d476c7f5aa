"""Memory of ranks: weights, gradients, optimizer state, activations, caches, and the bytes of all."""
