"""Media over QUIC Transport, native, on asyncio."""
