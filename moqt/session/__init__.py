"""The protocol core: deterministic, no I/O, time is an argument."""
