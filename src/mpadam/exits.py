"""Exit codes of every command; anything else is a fault of the program or of the machine."""

EXIT_DONE = 0  # a diverged run is a result
EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3  # lock, hash
EXIT_STOPPED = 75  # in time: the same command goes on later
