"""Figures 7 to 9: `session` builds a tiny training, `trace` watches one step of it, `figure` draws what was seen."""
