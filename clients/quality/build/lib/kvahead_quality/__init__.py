"""kvahead-quality: long-context quality of an OpenAI-compatible server, per KV policy."""

__version__ = "0.1.0"
