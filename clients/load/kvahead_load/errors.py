"""What ends a command with one line and no traceback: faults of the caller, and Ctrl-C."""


class UsageError(Exception):
    """Bad arguments, an unreadable file, or a server that is no use."""


class Interrupted(Exception):
    """Ctrl-C came before there was anything to write."""
