# From text to token files.
#
# Inputs:  the source named in the configuration: installed packages, folders, or the hub
# Outputs: results/<study>/data/manifest.json, all that anything else depends on; tokenizer and token files are next to
#          it, undeclared, so that they survive; the manifest has their checksums
# Steps:   one job for small text: read, drop what both splits share, train or load the tokenizer, tokenize, write the
#          manifest last. One job per shard for C4 (data.shard_jobs): fetch, tokenize, and put the manifest together.
#
# What the source holds enters as a parameter (names, sizes, commits, versions): touching a file repeats nothing. Only
# the download rules open a connection. They run where Snakemake itself does, since compute nodes often have no network.


localrules:
    download_shard,
    download_tokenizer,


if "downloads" not in workflow.global_resources:
    workflow.register_resource("downloads", STUDY.data.downloads_at_once)


rule download_tokenizer:
    output:
        update(STUDY.tokenizer_receipt()),
    log:
        f"{LOGS}/download/tokenizer.log",
    resources:
        downloads=1,
    params:
        request=STUDY.tokenizer_text(),
    shell:
        "mpadam download --request {params.request:q} --tokenizer > {log:q} 2>&1"


rule download_shard:
    output:
        update(STUDY.shard_receipt()),
    log:
        f"{LOGS}/download/{{shard}}.log",
    resources:
        downloads=1,
    params:
        request=STUDY.shard_text(),
    shell:
        "mpadam download --request {params.request:q} --shard {wildcards.shard:q} > {log:q} 2>&1"


if STUDY.data.by_shard:

    rule tokenizer:
        input:
            STUDY.tokenizer_inputs(),
        output:
            f"{ROOT}/data/tokenizer/origin.json",
        log:
            f"{LOGS}/data/tokenizer.log",
        resources:
            **STUDY.site_resources(),
            mem_mb=4000,
            runtime=120,
        params:
            request=STUDY.tokenizer_text(),
            folder=f"{ROOT}/data",
        shell:
            "mpadam tokenizer --request {params.request:q} --out {params.folder:q} > {log:q} 2>&1"

    rule tokenize:
        input:
            STUDY.shard_inputs,
        output:
            update(f"{ROOT}/data/tokens/{{shard}}/shard.json"),
        log:
            f"{LOGS}/data/{{shard}}.log",
        resources:
            **STUDY.site_resources(),
            mem_mb=1000,
            runtime=60,
        params:
            request=STUDY.shard_text(),
            source=STUDY.shard_facts,
            folder=f"{ROOT}/data",
        shell:
            "mpadam tokenize --request {params.request:q} --shard {wildcards.shard:q} --threads {threads} "
            "--out {params.folder:q} > {log:q} 2>&1"


rule data:
    input:
        STUDY.data_inputs(),
    output:
        manifest=f"{ROOT}/data/manifest.json",
    log:
        f"{LOGS}/data.log",
    resources:
        **STUDY.site_resources(),
        mem_mb=4000,
        runtime=240,
    params:
        request=STUDY.data_text(),
        source=SOURCE_IDENTITY,
        stage=STUDY.data_stage(),
        folder=subpath(output.manifest, parent=True),
    shell:
        "mpadam data --request {params.request:q} --out {params.folder:q} {params.stage} > {log:q} 2>&1"
