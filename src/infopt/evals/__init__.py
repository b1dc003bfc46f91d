"""Quality of a configuration without a download: perplexity, fidelity to a reference, tasks."""
