"""The studio: edit a question in a browser on this machine, with an answer to every change, and save it as a file. The
command line gives the same bytes for that file.

The room draws the answers of :mod:`tspsim.api` and simulates nothing itself. The server's process reads no file that a
page names; workers do (:mod:`.work`), within limits (:mod:`.confine`), and can be killed at any time (:mod:`.desks`).
Access to the server is in :mod:`.guard`. This module imports nothing, so that the command line starts quickly;
:func:`tspsim.studio.server.opened` opens the studio.
"""
