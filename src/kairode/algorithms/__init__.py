"""What a user calls: fit, learn, Dyna, MPC, visit schedules."""
