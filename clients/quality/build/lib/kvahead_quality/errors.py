"""The one error that ends a command with a line for the user instead of a traceback."""

from __future__ import annotations


class UsageError(Exception):
    """Bad input or a server that cannot be used; the message is one complete line."""
