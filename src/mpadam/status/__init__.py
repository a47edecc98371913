"""What became of a study's trainings so far, read from their run folders alone. Imports no torch."""
