"""Probes: what an update of a training run does to the stored weights, measured every so many steps.

Of the runs of a study (`probes.jsonl`), all parameters in full:

    survival     which parts change the stored weight, by |w|; second moments that rounding holds still
    descent      cosines and intervals of docs/algorithm.md, (43) and (44)
    flushed      NVFP4 blocks that are stored as zeros
    layers       survival by layer, and sizes of steps next to the spacing of the format; where a run asks for it
    survey       all of that over the parameters of a model: what a line of probes.jsonl holds

Of anybody's training (`mpadam.UpdateProbe`), samples of each parameter:

    update_probe, callback      hooks of the optimizer; the Trainer's callback
    tiles, replay, sampled      which elements, the step of an optimizer of torch in float32, what becomes of it
    tally, outlets              the counts, also of the same step in other stores; where records go
    reading                     records of a file, summed, and what they say

Both count by `survival.fate`, `survival.bin_of` and `survival.held_still`. An optimizer of this package hands out the
update that it is about to make (`preview`), and its store what a part of it would leave. Nothing here writes to a
parameter, a state or a generator, so a run has the same bits with and without probes.
"""
