"""Arguments that several benchmarks take."""

import argparse


def count(word: str) -> int:
    """A whole number from 1, as an argument."""
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{word}: give a whole number from 1")
    return number
