"""Which rates a walk to the saturation point tries.

A rate is *kept* when at least `KEPT_SHARE` of its requests are good (DistServe, arXiv:2401.09670,
takes the same 90%). Rates grow by `FACTOR` until one is not kept, or shrink until one is; then the
gap between the highest kept and the lowest lost one is halved, on a logarithmic scale, until it is
under `GAP`. A rate that was lost below one that was kept is taken as chance: the higher one counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

KEPT_SHARE = 0.9
FACTOR = 2.0
GAP = 1.2
POINTS_MAX = 14


def round_rate(rate: float) -> float:
    """Two significant digits: rates that can be typed."""
    return float(f"{rate:.2g}")


@dataclass
class Walk:
    """Ask `next`, measure, `tell`; until `next` gives None."""

    first: float
    ended: bool = False  # there is no going on
    shares: dict[float, float] = field(default_factory=dict)  # rate -> share of good requests

    def tell(self, rate: float, share: float | None) -> None:
        """Note what share of the requests was good; None: there were none, which ends the walk,
        for lower rates would have fewer still."""
        if share is None:
            self.ended = True
        else:
            self.shares[rate] = share

    @property
    def kept(self) -> float | None:
        """The highest rate that was kept."""
        return max((r for r, share in self.shares.items() if share >= KEPT_SHARE), default=None)

    @property
    def lost(self) -> float | None:
        """The lowest rate above it that was not."""
        above = self.kept or 0.0
        bad = [r for r, share in self.shares.items() if share < KEPT_SHARE and r > above]
        return min(bad, default=None)

    def next(self) -> float | None:
        """Return the next rate; None: there is nothing more to learn."""
        if self.ended or len(self.shares) >= POINTS_MAX:
            return None
        if not self.shares:
            return round_rate(self.first)
        kept, lost = self.kept, self.lost
        if lost is None:
            assert kept is not None
            rate = kept * FACTOR
        elif kept is None:
            rate = lost / FACTOR
        elif lost / kept <= GAP:
            return None
        else:
            rate = math.sqrt(kept * lost)
        rate = round_rate(rate)
        return None if rate in self.shares or rate <= 0 else rate
