"""Task generators: RULER's synthetic tasks and the needle grid, from the standard library only.

from kvahead_quality.tasks import TASKS, fit
fitted = fit(TASKS["niah_single_1"], length=4096, seed=1, index=0, count_tokens=count)
fitted.sample.text, fitted.sample.references
"""

from __future__ import annotations

from .base import Sample, Task, TaskError, stream
from .counting import CommonWordsTask, FrequentWordsTask
from .facts import FactsTask
from .fit import Fitted, fit
from .niah import NIAH_TASKS, NeedleGridTask, NiahTask
from .vt import VariableTrackingTask

# Raise it with any change that alters a sample's text: results of different versions never mix.
GENERATOR_VERSION = 1

_ALL: tuple[Task, ...] = (
    *NIAH_TASKS,
    VariableTrackingTask(),
    CommonWordsTask(),
    FrequentWordsTask(),
    FactsTask(),
)
TASKS: dict[str, Task] = {task.name: task for task in _ALL}
# The eight that a run measures unless --tasks says otherwise.
DEFAULT_TASKS: tuple[str, ...] = (
    "niah_single_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
    "vt",
    "cwe",
    "fwe",
)

__all__ = [
    "DEFAULT_TASKS",
    "GENERATOR_VERSION",
    "NIAH_TASKS",
    "TASKS",
    "CommonWordsTask",
    "FactsTask",
    "Fitted",
    "FrequentWordsTask",
    "NeedleGridTask",
    "NiahTask",
    "Sample",
    "Task",
    "TaskError",
    "VariableTrackingTask",
    "fit",
    "stream",
]
