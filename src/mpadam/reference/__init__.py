"""Launch commands of the reference implementation, read into what this project runs. Imports no torch."""
