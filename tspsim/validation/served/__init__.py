"""Published serving runs: their rows, repaired, as runs of an engine, and what the product predicts of them."""
