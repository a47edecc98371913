"""What only the Snakefile asks of a study: inputs and parameters of rules, resources, container, signals. No torch."""
