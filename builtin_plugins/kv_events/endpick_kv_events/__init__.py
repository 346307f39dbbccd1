"""Routes requests to the model servers whose KV cache holds the prompt, as reported by their KV events.

Engines publish the blocks they store and evict over ZeroMQ. `plugins` has the producer and the scorer.
"""
