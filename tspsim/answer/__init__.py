"""One question of any kind and its answer, the JSON Schema of its files, and the error where no plan can answer.

``tspsim.simulate`` is :func:`tspsim.answer.kinds.simulate`. The modules are imported on first use: the schema of files
must not cost the import of the simulator.
"""
