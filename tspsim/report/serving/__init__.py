"""The report of a serving run: waits of users, costs, and the activity of the engines.

:mod:`~tspsim.report.serving.view` holds the figures' data, as plain arrays; every other file is one figure or one
part of the page.
"""
