"""infopt beside other engines on the same work: prefill and decode rates, in turns.

Every engine is a worker: a process of its own, in an environment of its own, that loads one model,
waits without computing, and measures when it is asked to. So engines that cannot be installed
together can still take turns within one run.
"""
