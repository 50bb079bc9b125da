"""The task generators of clients/quality, imported from the source tree beside this directory.

Training shares the benchmark's word lists, filler sentences and prompt wording, never its
samples: a benchmark sample is drawn from a stream labelled with task, length, seed and index, and
training uses text labels that no benchmark run can have as its seed.
"""

import sys
from pathlib import Path

_QUALITY = Path(__file__).resolve().parents[3] / "clients" / "quality"
if str(_QUALITY) not in sys.path:
    sys.path.insert(0, str(_QUALITY))

from kvahead_quality.tasks import TASKS, fit  # noqa: E402
from kvahead_quality.tasks import filler, words  # noqa: E402

__all__ = ["TASKS", "filler", "fit", "words"]
