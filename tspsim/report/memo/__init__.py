"""One sheet to decide by: days and dollars with their ranges, their basis, what would change them, a line to sign.

:class:`.sheet.Memo` is its content; :mod:`.purchase`, :mod:`.results` and :mod:`.planned` write it for the answers of
commands.
"""
