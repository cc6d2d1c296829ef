"""Octets <-> values of MOQT. No I/O, no clock, no state beyond one stream."""
