"""The same real endpoints as the other tests of KVCS; one side of each is hostile here."""

from tests.kvcs.conftest import certificates, world

__all__ = ["certificates", "world"]
