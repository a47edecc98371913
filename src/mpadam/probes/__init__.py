"""Probes: what an update of a training run does to the stored weights, looked at every so many steps.

    survival     which parts change the stored weight, by |w|
    descent      cosines and intervals of paper.md, "Theorem 4.1"
    staleness    second moments that rounding holds still
    flushed      NVFP4 blocks that are stored as zeros
    layers       survival by layer, and sizes of steps next to the spacing of the format; where a run asks for it
    survey       all of that over the parameters of a model: what a line of probes.jsonl holds

The optimizer hands out the update that it is about to make (`preview`), and its store what a part of it would leave.
Nothing here writes to a parameter, a state or a generator, so a run has the same bits with and without probes.
"""
