"""A relay: tracks cached once, delivered to many."""
