"""Collectives: kinds and algorithms that register themselves, one file each, and the cheapest of them."""
