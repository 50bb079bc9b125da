"""kvahead-load: what the clients of an OpenAI-compatible server feel under load."""

__version__ = "0.1.0"
