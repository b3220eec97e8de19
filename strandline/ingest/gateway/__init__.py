"""Parts that all gateways share: process, streams, framing, appending, metrics, the HTTP server and its health
endpoints."""
