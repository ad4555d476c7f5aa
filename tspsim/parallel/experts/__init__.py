"""Experts in a layer: their exchanges and products, in training and in serving steps."""
