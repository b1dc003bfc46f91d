"""The stages of the pipeline: what each measures, and how a job of it survives being killed.

A *stage* (baseline, batching, select) consists of *slices*; a slice is one question and one job: it
loads the model once, runs its candidates, and writes one record each. Snakemake only decides which
slice has to run; everything it runs is a function here that can be called from anywhere::

    config = load_config("config/config.yaml")
    run_slice(slice_spec(config, "batching", "prefix_cache"), "results")

Adding a stage: a module here with ``run``, its slices in ``specs``, its keys in the schema, a rule
file, a notebook, and tests of each.
"""
