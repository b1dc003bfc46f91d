"""EleutherAI's lm-evaluation-harness on any configuration; needs ``pip install 'infopt[eval]'``."""
