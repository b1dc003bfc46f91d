"""A small network that guesses from the model's last hidden state, one token after the other.

    z      = W [norm(e) ; h]           e: embedding of the newest token, h: hidden state before it
    x      = z + mlp(norm(z))
    h'     = norm(x)                   stands for the hidden state after the token
    logits = V h'                      over the tokens that texts are mostly made of

The idea of predicting the next hidden state from the last one and the token after it is EAGLE's
(arXiv 2401.15077). The model's hidden state has read the whole text already, so the network reads
nothing else: it keeps no keys and values, and a prefix hit or a preemption leaves nothing to catch
up with.
"""

from __future__ import annotations

from infopt.speculative.head.folder import HeadFolder, read_head, write_head
from infopt.speculative.head.network import HeadNetwork
from infopt.speculative.head.weights import HeadConfig, HeadWeights

__all__ = ["HeadConfig", "HeadFolder", "HeadNetwork", "HeadWeights", "read_head", "write_head"]
