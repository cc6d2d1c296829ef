"""Octets to values and back; no I/O, no state beyond one stream."""
