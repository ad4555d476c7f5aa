"""Foundations of all rooms: quantities, errors, files, catalogs, registries and caches.

Nothing here knows a device, a model or a plan. :mod:`tspsim.base.units` parses and prints quantities,
:mod:`tspsim.base.errors` is the tree of exceptions, :mod:`tspsim.base.catalog` finds, reads and validates YAML,
:mod:`tspsim.base.registry` holds objects that register themselves, :mod:`tspsim.base.memo` has the three caches.
"""
