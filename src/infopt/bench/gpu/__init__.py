"""The short check of a machine with a GPU; see :mod:`infopt.bench.gpu_check`."""
