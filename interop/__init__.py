"""Our stack against real implementations of draft-22: ``python -m interop.run``.

Nothing of a peer lives here. Where it is installed is said by KVCS_PEER_AIOMOQT and
KVCS_PEER_CAPRID: the ``bin`` folder of a virtual environment of its own.
"""
