"""The report of a serving run: what users wait for, what it costs, and what the engines did meanwhile.

:mod:`~tspsim.report.serving.view` holds what the figures read, as plain arrays; every other file is one figure or one
part of the page.
"""
