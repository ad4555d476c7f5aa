"""What ranks keep: weights, gradients, the optimizer's state, activations, caches, and the bytes of all."""
