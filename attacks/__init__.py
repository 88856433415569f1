"""Attacks on Kairode: kills, damaged files, concurrency, odd names, misleading data, limits.

`python -m attacks` (or `make attack`) runs the whole campaign and prints a table; `--effort quick` is the part that
`make test` runs, `--effort slow` that of `make slow`.
"""
