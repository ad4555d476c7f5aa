"""One question of any kind and its answer, the JSON Schema of its files, and what is said where no plan can answer.

``tspsim.simulate`` is :func:`tspsim.answer.kinds.simulate`. Its modules are imported on first use: the schema of files
must not cost the import of what answers them.
"""
