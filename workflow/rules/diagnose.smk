# Diagnostics: what an update can and cannot do, without training a model of the study.
#
# Inputs:  the options of each (section `diagnostics` of the configuration, defaults in mpadam.study.diagnostics), as
#          canonical text, and the source of what they measure
# Outputs: the numbers in results/<study>/paper/diagnostics/<kind>, which Table 1 and Figures 1 to 9 are made of
# Steps:   each is one job of at most a minute or two on one CPU thread; none needs another

DIAGNOSTICS = EXHIBITS.diagnostics()


rule diagnose:
    output:
        directory(f"{PAPER}/diagnostics/{{kind}}"),
    log:
        f"{LOGS}/diagnose/{{kind}}.log",
    benchmark:
        f"{LOGS}/diagnose/{{kind}}.benchmark.tsv"
    wildcard_constraints:
        kind="|".join(DIAGNOSTICS),
    threads: 1
    resources:
        **STUDY.site_resources(),
        mem_mb=2000,
        runtime=30,
    params:
        code=lambda wildcards: code_of(
            f"mpadam.diagnostics.{wildcards.kind.replace('-', '_')}"
        ),
        options=lambda wildcards: STUDY.config.diagnostics.text(wildcards.kind),
        out=PAPER,
    shell:
        "mpadam diagnose {wildcards.kind} --options {params.options:q} --out {params.out:q} --records-only"
        " > {log:q} 2>&1"
