"""The WebSocket surface: the same log as the API's, over a connection that goes both ways."""
