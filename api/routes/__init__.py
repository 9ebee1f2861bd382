"""HTTP and WebSocket endpoints, one module per surface."""
