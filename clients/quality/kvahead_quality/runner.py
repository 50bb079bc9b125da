"""Runs samples against a server: builds each one once, asks it under every policy, records it.

Thread rule: `run` starts `concurrency` workers and joins them; one job (a context with all its
questions and policies) belongs to one worker, which asks the first by itself and the others with
`together` threads. Callbacks come from these, one at a time.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .client import Client, RequestFailed, one_line
from .counter import TokenCounter
from .records import Key, Record, RecordFile
from .score import string_match_all
from .specs import Policy
from .tasks import Fitted, Sample, Task, TaskError, fit

# How long an interrupted run waits for answers that are on their way.
INTERRUPT_WAIT_S = 2.0
# By how many tokens another question of a context may be longer than the first.
QUESTION_SPARE_TOKENS = 16


@dataclass(frozen=True)
class Plan:
    """What to measure. `overhead` tokens are kept free per prompt (chat template).

    A cell has `samples` contexts, and of each up to `questions` questions, where a task has them.
    Sample number i is question i mod n of context i / n. With `stop_at_answer` an answer ends at
    its reference, where a task has one: its score cannot change any more. `answer_tokens` cuts
    answers shorter than their budgets.
    """

    tasks: dict[str, Task]
    lengths: list[int]
    policies: list[Policy]
    samples: int
    seed: int
    overhead: int = 0
    questions: int = 1
    stop_at_answer: bool = False
    answer_tokens: int | None = None

    def asked(self, task: str) -> int:
        """Questions about one context of a task."""
        return min(self.questions, self.tasks[task].questions_max)

    def wanted(self) -> list[Key]:
        """Every sample that the finished run has, short lengths first."""
        return [
            (task, length, policy.label, context * self.asked(task) + question, self.seed)
            for length in self.lengths
            for context in range(self.samples)
            for task in self.tasks
            for question in range(self.asked(task))
            for policy in self.policies
        ]


@dataclass
class Outcome:
    """How a run went. At the end `missing` samples have no score though they could, and
    `impossible` ones cannot be made: their task does not fit their length."""

    done: int = 0
    resumed: int = 0
    failed: int = 0
    retries: int = 0
    missing: int = 0
    impossible: int = 0
    gave_up: bool = False
    interrupted: bool = False
    last_error: str = ""


@dataclass(frozen=True)
class _Job:
    """One context with what is still open of it: questions and their policies."""

    task: str
    length: int
    context: int
    open: tuple[tuple[int, Policy], ...]


class Runner:
    """One run; `on_record` is told of every new record (progress bars)."""

    def __init__(
        self,
        client: Client,
        counter: TokenCounter,
        plan: Plan,
        records: RecordFile,
        concurrency: int = 1,
        together: int = 1,
        failures_max: int = 20,
        on_record: Callable[[Record], None] | None = None,
    ) -> None:
        self.client = client
        self.counter = counter
        self.plan = plan
        self.records = records
        self.concurrency = concurrency
        self.together = together
        self.failures_max = failures_max
        self.outcome = Outcome()
        self._on_record = on_record or (lambda record: None)
        self._lock = threading.Lock()
        self._fault: BaseException | None = None

    def run(self) -> Outcome:
        """Work until every sample is finished or failed; Ctrl-C ends it in good order."""
        jobs = self._jobs()
        threads = [
            threading.Thread(target=self._guarded, args=(self._work, jobs), daemon=True)
            for _ in range(min(self.concurrency, max(jobs.qsize(), 1)))
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        except KeyboardInterrupt:
            # Workers stop at their next wait or record; one that is inside a request is a daemon
            # thread, and its sample is simply asked again by the next run.
            self.client.stop.set()
            self.outcome.interrupted = True
            deadline = time.monotonic() + INTERRUPT_WAIT_S
            for thread in threads:
                thread.join(max(deadline - time.monotonic(), 0.0))
        if self._fault is not None:
            raise self._fault
        wanted = self.plan.wanted()
        self.outcome.missing = sum(not self.records.is_settled(key) for key in wanted)
        self.outcome.impossible = sum(key in self.records.impossible for key in wanted)
        return self.outcome

    def _jobs(self) -> queue.SimpleQueue[_Job]:
        jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        plan = self.plan
        for length in plan.lengths:
            for context in range(plan.samples):
                for task in plan.tasks:
                    asked = plan.asked(task)
                    pairs = [(q, policy) for q in range(asked) for policy in plan.policies]
                    left = tuple(
                        (q, policy)
                        for q, policy in pairs
                        if not self.records.is_settled(
                            (task, length, policy.label, context * asked + q, plan.seed)
                        )
                    )
                    self.outcome.resumed += len(pairs) - len(left)
                    if left:
                        jobs.put(_Job(task, length, context, left))
        return jobs

    def _guarded(self, work: Callable[..., None], *args: Any) -> None:
        """A thread's body: a defect of ours must end the run, not one thread."""
        try:
            work(*args)
        except BaseException as fault:
            self._fault = fault
            self.client.stop.set()

    def _work(self, jobs: queue.SimpleQueue[_Job]) -> None:
        while not self.client.stop.is_set():
            try:
                job = jobs.get_nowait()
            except queue.Empty:
                return
            self._do(job)

    def _do(self, job: _Job) -> None:
        plan = self.plan
        task, asked = plan.tasks[job.task], plan.asked(job.task)
        # The haystack is fitted with the first question; others may be some tokens longer.
        spare = plan.overhead + (QUESTION_SPARE_TOKENS if asked > 1 else 0)
        try:
            fitted = fit(task, job.length, plan.seed, job.context, self.counter.count, spare)
        except (TaskError, RequestFailed) as error:
            for question, policy in job.open:
                self._record(self._failure(job, question, policy, None, None, error))
            return
        # The first answer leaves the context in the server's prefix cache, where it has one; the
        # others find it there, and are asked together.
        first, *others = job.open
        self._ask(job, *first, fitted)
        rest: queue.SimpleQueue[tuple[int, Policy]] = queue.SimpleQueue()
        for pair in others:
            rest.put(pair)
        threads = [
            threading.Thread(
                target=self._guarded, args=(self._drain, job, rest, fitted), daemon=True
            )
            for _ in range(min(self.together, len(others)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _drain(
        self, job: _Job, rest: queue.SimpleQueue[tuple[int, Policy]], fitted: Fitted
    ) -> None:
        while not self.client.stop.is_set():
            try:
                question, policy = rest.get_nowait()
            except queue.Empty:
                return
            self._ask(job, question, policy, fitted)

    def _ask(self, job: _Job, question: int, policy: Policy, fitted: Fitted) -> None:
        if self.client.stop.is_set():
            return
        sample = fitted.sample
        plan = self.plan
        if question:
            try:
                sample = plan.tasks[job.task].build(
                    sample.size, job.length, plan.seed, job.context, question
                )
            except TaskError as error:
                self._record(self._failure(job, question, policy, fitted, None, error))
                return
        references = sample.references
        stop = references[0] if plan.stop_at_answer and len(references) == 1 else None
        tokens = min(sample.max_tokens, plan.answer_tokens or sample.max_tokens)
        try:
            reply = self.client.generate(
                sample.prompt, sample.answer_prefix, tokens, policy.kv, stop
            )
        except RequestFailed as error:
            self._record(self._failure(job, question, policy, fitted, sample, error))
            return
        self._record(
            replace(
                self._blank(job, question, policy, fitted, sample),
                score=string_match_all(reply.text, references),
                output=reply.text,
                attempts=reply.attempts,
                latency_s=round(reply.latency_s, 4),
                finish_reason=reply.finish_reason,
                usage=reply.usage,
            )
        )

    def _blank(
        self, job: _Job, question: int, policy: Policy, fitted: Fitted | None, sample: Sample | None
    ) -> Record:
        """What was asked, without an answer."""
        return Record(
            task=job.task,
            length=job.length,
            policy=policy.label,
            index=job.context * self.plan.asked(job.task) + question,
            seed=self.plan.seed,
            score=None,
            output=None,
            references=list(sample.references) if sample else [],
            error=None,
            attempts=0,
            latency_s=0.0,
            fitted_tokens=fitted.tokens if fitted else 0,
            size=sample.size if sample else 0,
            prompt_sha256=hashlib.sha256(sample.text.encode()).hexdigest() if sample else "",
            kv=policy.kv,
            context=job.context,
        )

    def _failure(
        self,
        job: _Job,
        question: int,
        policy: Policy,
        fitted: Fitted | None,
        sample: Sample | None,
        error: Exception,
    ) -> Record:
        """Write down why there is no answer: a sample that cannot be made stays so; another failure
        is counted, shown, and tried again by the next run."""
        return replace(
            self._blank(job, question, policy, fitted, sample),
            error=one_line(error),
            attempts=error.attempts if isinstance(error, RequestFailed) else 0,
            impossible=isinstance(error, TaskError),
        )

    def _record(self, record: Record) -> None:
        with self._lock:
            if record.error is not None and self.client.stop.is_set():
                return  # cut short by Ctrl-C or by giving up: unfinished, not failed
            self.records.append(record)
            self.outcome.retries += max(record.attempts - 1, 0)
            if record.error is None:
                self.outcome.done += 1
            elif not record.impossible:
                self.outcome.failed += 1
                self.outcome.last_error = record.error
                if self.outcome.failed >= self.failures_max:
                    self.outcome.gave_up = True
                    self.client.stop.set()
            self._on_record(record)
