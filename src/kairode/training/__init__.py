"""Fitting what is believed: losses, fit loops, checkpoints."""
