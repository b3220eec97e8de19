"""The HTTP server of gateways: connections, requests, answers, TLS."""
