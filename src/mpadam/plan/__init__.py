"""What a study asks for before it runs: jobs, FLOPs, data, memory, hours. Imports no torch."""
