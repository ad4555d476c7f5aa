"""Requests over steps: from arrivals to what users wait for and what it costs."""
