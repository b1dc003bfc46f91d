# Stage batching: how requests share steps and memory. It starts from the precision of the baseline.


use rule baseline_slice as batching_slice with:
    input:
        model=rules.fetch_model.output[0],
        chosen=[rules.baseline_table.output.chosen],
    output:
        manifest=f"{RESULTS}/slices/batching/{{slice}}.json",
    params:
        spec=lambda wildcards: spec_json("batching", wildcards.slice),
        results_dir=RESULTS,
        code=source_identity("measure"),
    log:
        f"{RESULTS}/logs/batching/{{slice}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/batching.{{slice}}.tsv"


use rule baseline_table as batching_table with:
    input:
        slices=manifests("batching"),
    output:
        table=f"{RESULTS}/tables/batching.parquet",
        chosen=f"{RESULTS}/chosen/batching.yaml",
    params:
        specs=stage_specs("batching"),
        quality_floor=CONFIG["quality_floor"],
        results_dir=RESULTS,
        code=source_identity("select"),
    log:
        f"{RESULTS}/logs/batching/table.log",
    benchmark:
        f"{RESULTS}/benchmarks/batching.table.tsv"


use rule baseline_figure as batching_figure with:
    input:
        table=rules.batching_table.output.table,
    output:
        report(
            f"{RESULTS}/figures/batching.png",
            caption="../report/batching.rst",
            category="2 Batching",
            labels={"figure": "Candidates against their references"},
        ),
    params:
        stage="batching",
        code=source_identity("present"),
    log:
        f"{RESULTS}/logs/batching/figure.log",
    benchmark:
        f"{RESULTS}/benchmarks/batching.figure.tsv"
