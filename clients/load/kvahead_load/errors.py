"""The one exception for faults of the caller: one line, no traceback."""


class UsageError(Exception):
    """Bad arguments, an unreadable file, or a server that is no use."""
