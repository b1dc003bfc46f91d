# Figures of the report; the notebooks draw the same ones with more explanation.


rule slice_figure:
    input:
        table=f"{RESULTS}/tables/{{stage}}.parquet",
        settled=lambda wildcards: winners_before(wildcards.stage),
    output:
        report(
            f"{RESULTS}/figures/{{stage}}.{{slice}}.png",
            caption="../report/slice.rst",
            category="{stage}",
            labels={"question": "{slice}", "type": "figure"},
        ),
    log:
        f"{RESULTS}/logs/figures/{{stage}}.{{slice}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/figures.{{stage}}.{{slice}}.tsv"
    conda:
        "../../envs/notebooks.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        criterion=lambda wildcards: slice_setting(wildcards, "criterion"),
        setting=lambda wildcards: slice_setting(wildcards, None),
        code=source_identity("present"),
    script:
        "../scripts/plot_slice.py"


rule power_figure:
    input:
        table=rules.power_table.output.table,
        chosen=rules.power_table.output.chosen,
        settled=winners_before("power"),
    output:
        report(
            f"{RESULTS}/figures/power.{{slice}}.png",
            caption="../report/power.rst",
            category="power",
            labels={"question": "{slice}", "type": "figure"},
        ),
    log:
        f"{RESULTS}/logs/figures/power.{{slice}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/figures.power.{{slice}}.tsv"
    conda:
        "../../envs/notebooks.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        setting=lambda wildcards: slice_spec(
            CONFIG, "power", wildcards.slice
        ).describe(),
        code=source_identity("present"),
    script:
        "../scripts/plot_power.py"


# Both make figures/power.*.png.
ruleorder: power_figure > slice_figure


rule serving_figure:
    input:
        table=rules.serving_table.output.table,
        chosen=rules.serving_table.output.chosen,
        settled=winners_before("serving"),
    output:
        report(
            f"{RESULTS}/figures/serving.load.png",
            caption="../report/serving.rst",
            category="serving",
            labels={"question": "load", "type": "figure"},
        ),
    log:
        f"{RESULTS}/logs/figures/serving.load.log",
    benchmark:
        f"{RESULTS}/benchmarks/figures.serving.load.tsv"
    conda:
        "../../envs/notebooks.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        slo=CONFIG["slo"],
        setting=slice_spec(CONFIG, "serving", "load").describe(),
        options=CONFIG["serving"],
        code=source_identity("present"),
    script:
        "../scripts/plot_serving.py"


rule finalists_figure:
    input:
        table=rules.recommend.output.table,
        recommendation=rules.recommend.output.recommendation,
    output:
        report(
            f"{RESULTS}/figures/select.finalists.png",
            caption="../report/finalists.rst",
            category="recommendation",
            labels={"question": "finalists", "type": "figure"},
        ),
    log:
        f"{RESULTS}/logs/figures/select.finalists.log",
    benchmark:
        f"{RESULTS}/benchmarks/figures.select.finalists.tsv"
    conda:
        "../../envs/notebooks.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        code=source_identity("present"),
    script:
        "../scripts/plot_finalists.py"
