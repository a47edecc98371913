"""Figure 1: which updates survive rounding, against |w|. `measure` writes them to real stores, `figure` draws."""
