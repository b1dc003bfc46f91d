# Notebooks, executed on the results of this run, and the account of its time.


include: "notebook_inputs.smk"


rule execute_notebook:
    input:
        notebook=lambda wildcards: str(
            Path(workflow.basedir, "notebooks", f"{wildcards.name}.ipynb")
        ),
        model=rules.fetch_model.output[0],
        results=notebook_results,
        settled=notebook_settled,
    output:
        html=report(
            f"{RESULTS}/notebooks/{{name}}.html",
            caption="../report/notebook.rst",
            category="notebooks",
            labels={"question": "{name}", "type": "notebook"},
        ),
    log:
        job=f"{RESULTS}/logs/notebooks/{{name}}.log",
        # A log and not an output: Snakemake deletes the outputs of a failed job, and the executed
        # copy is where one sees which cell failed.
        notebook=f"{RESULTS}/notebooks/{{name}}.ipynb",
    benchmark:
        f"{RESULTS}/benchmarks/notebooks.{{name}}.tsv"
    conda:
        "../../envs/notebooks.yaml"
    # All cores, so that nothing is measured meanwhile on this machine.
    threads: measure_threads() * CONFIG["measure_slots"]
    resources:
        mem_mb=4000,
        runtime=15,
    params:
        timeout_s=CONFIG["notebooks"]["timeout_s"],
        results_dir=results_dir,
        code=source_identity("present"),
    script:
        "../scripts/execute_notebook.py"


rule run_summary:
    input:
        model=rules.fetch_model.output[0],
        manifests=[
            *manifests("baseline"),
            *manifests("batching"),
            *manifests("quantization"),
            *manifests("kv_cache"),
            *manifests("speculative"),
            *manifests("moe"),
            *manifests("power"),
            *manifests("serving"),
            rules.capacity.output.manifest,
            rules.finalists.output.manifest,
            rules.validation.output.manifest,
        ],
        notebooks=expand(
            rules.execute_notebook.output.html, name=CONFIG["notebooks"]["names"]
        ),
    output:
        report(
            f"{RESULTS}/tables/durations.csv",
            caption="../report/durations.rst",
            category="run",
            labels={"question": "how long each part took", "type": "table"},
        ),
    log:
        f"{RESULTS}/logs/summary.log",
    benchmark:
        f"{RESULTS}/benchmarks/summary.tsv"
    conda:
        ENV
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        notebooks=expand(
            f"{RESULTS}/notebooks/{{name}}.ipynb", name=CONFIG["notebooks"]["names"]
        ),
        budget_s=CONFIG["time_budget_s"],
        code=source_identity("present"),
    script:
        "../scripts/summarize_run.py"
