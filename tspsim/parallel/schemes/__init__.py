"""Schemes: how a replica is spread over ranks, and the layers that each writes."""
