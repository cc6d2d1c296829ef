"""QUIC behind one interface; knows nothing of MOQT."""
