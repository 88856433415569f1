"""Fitting what is believed: losses, the compiled step, the loop around it, checkpoints, judgement."""
