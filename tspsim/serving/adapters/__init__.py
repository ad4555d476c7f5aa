"""The oracle behind the interfaces of other schedulers and simulators, one file each.

Nothing of theirs is imported: each file names the version of its interface, and takes or returns objects with the same
attributes.
"""
