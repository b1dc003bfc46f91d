# Stage power: instance size, replicas, cold starts; power caps and clocks where they are asked for.


use rule baseline_slice as power_slice with:
    input:
        model=rules.fetch_model.output[0],
        winners=winners_before("power"),
    output:
        manifest=f"{RESULTS}/slices/power/{{slice}}.json",
    log:
        f"{RESULTS}/logs/power/{{slice}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/power.{{slice}}.tsv"
    params:
        spec=lambda wildcards: measured_spec("power", wildcards.slice),
        results_dir=results_dir,
        code=source_identity("measure"),


checkpoint power_table:
    input:
        slices=manifests("power"),
        settled=winners_before("power"),
    output:
        table=f"{RESULTS}/tables/power.parquet",
        chosen=f"{RESULTS}/chosen/power.yaml",
        winners=f"{RESULTS}/winners/power.yaml",
    log:
        f"{RESULTS}/logs/power/table.log",
    benchmark:
        f"{RESULTS}/benchmarks/power.table.tsv"
    conda:
        ENV
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        specs=stage_specs("power"),
        results_dir=results_dir,
        prices=CONFIG["prices"],
        code=source_identity("select"),
    script:
        "../scripts/collect_power.py"
