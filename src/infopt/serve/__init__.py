"""An OpenAI-compatible HTTP server on the engine.

    clients -> app (FastAPI, event loop) -> ModelLoop (one thread) -> engines, in turn
                     ^                            |
                     +---- OutputStream <---------+

The event loop speaks HTTP and never computes; the loop thread owns the engines and never waits for
a client. Requests cross over as commands, tokens come back as deltas, a whole step at a time.
"""
