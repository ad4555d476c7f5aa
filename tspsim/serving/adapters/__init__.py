"""The oracle in the words of other people's schedulers and simulators, a file each.

Nothing of theirs is imported: each file says which version its words were read from, and takes or gives objects that
have the same attributes.
"""
