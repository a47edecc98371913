"""What a cluster needs to know of a study's jobs, and its jobs of the cluster. Imports no torch."""
