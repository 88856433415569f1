"""The reproduction of the paper's tables and figures."""
