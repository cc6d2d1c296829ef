"""KV Cache Streaming: layer-aligned KV cache blocks over MOQT."""
