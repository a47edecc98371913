# From text to token files.
#
# Inputs:  the source named in the configuration (installed packages, or a folder in C4's layout)
# Outputs: results/<study>/data/manifest.json; tokenizer and token files stand beside it, undeclared, so that they
#          survive; the manifest has their checksums
# Steps:   read, drop what both splits share, train or load the tokenizer, tokenize, write the manifest last
#
# What the source holds enters as a parameter (names, sizes, versions): touching a file repeats nothing.


rule data:
    output:
        manifest=f"{ROOT}/data/manifest.json",
    log:
        f"{LOGS}/data.log",
    params:
        request=STUDY.data_text(),
        source=SOURCE_IDENTITY,
        folder=subpath(output.manifest, parent=True),
    shell:
        "mpadam data --request {params.request:q} --out {params.folder:q} > {log:q} 2>&1"
