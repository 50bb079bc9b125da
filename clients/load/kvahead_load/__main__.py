"""`python -m kvahead_load`."""

from .cli import entry

entry()
