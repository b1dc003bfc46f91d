"""The paged KV cache: groups of layers, page pool, prefix cache and block tables.

Everything but :mod:`infopt.cache.pages` is plain Python over plain data.
"""
