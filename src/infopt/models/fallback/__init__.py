"""Families that the native decoder does not run, through transformers' own modules.

The modules compute; what they cache lies in the engine's pages. Three things meet transformers:

    cache       a `Cache` whose layers write keys and values, latents or index keys into pages
    attention   an attention and a mask function registered with transformers by name
    probe       one token, run once, that shows what each layer really caches

Families whose state is not one entry per token (compressed or recurrent) keep transformers' own
cache, one per sequence; they run unpaged and say so.
"""
