"""Runs as data: a frozen config and a seed go in, a record comes out."""
