"""Algorithms that a user calls: fit, learn, Dyna, MPC, schedules."""
