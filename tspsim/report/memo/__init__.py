"""One sheet to decide by: days and dollars with their ranges, what they rest on, what would turn them, a line to sign.

:class:`.sheet.Memo` is its words; :mod:`.purchase`, :mod:`.results` and :mod:`.planned` write them of what commands
answer.
"""
