"""Proves, family by family, that the engine gives the answers of transformers alone.

``python -m infopt.evals.families`` runs all proofs on small random models and writes the support
table, docs/support.md. Nothing is downloaded.
"""
