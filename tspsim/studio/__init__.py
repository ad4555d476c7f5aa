"""The studio: a question put together in a browser on this machine, answered as it changes, and kept as a file that the
command line answers to the same bytes.

Pages are data: the room draws what :mod:`tspsim.api` answers and simulates nothing itself. The server's process
reads no file that a page names; processes of their own do (:mod:`.work`), within limits (:mod:`.confine`), and can be
killed at any time (:mod:`.desks`). Who may talk to the server stands in :mod:`.guard`.

This module imports nothing, so that the command line stays quick; :func:`tspsim.studio.server.serve` opens it.
"""
