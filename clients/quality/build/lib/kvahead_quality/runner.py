"""Runs samples against a server: builds each one once, asks it under every policy, records it.

Thread rule: `run` starts `concurrency` workers and joins them; one job (a sample under all its
policies) belongs to one worker. Callbacks come from the workers, one at a time.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from .client import Client, RequestFailed, one_line
from .counter import TokenCounter
from .records import Key, Record, RecordFile
from .score import string_match_all
from .specs import Policy
from .tasks import Fitted, Task, TaskError, fit

# How long an interrupted run waits for answers that are on their way.
INTERRUPT_WAIT_S = 2.0


@dataclass(frozen=True)
class Plan:
    """What to measure. `overhead` tokens are kept free per prompt (chat template)."""

    tasks: dict[str, Task]
    lengths: list[int]
    policies: list[Policy]
    samples: int
    seed: int
    overhead: int = 0

    def wanted(self) -> list[Key]:
        """Every sample that the finished run has, short lengths first."""
        return [
            (task, length, policy.label, index, self.seed)
            for length in self.lengths
            for index in range(self.samples)
            for task in self.tasks
            for policy in self.policies
        ]


@dataclass
class Outcome:
    """How a run went. `missing` counts samples without a score at the end."""

    done: int = 0
    resumed: int = 0
    failed: int = 0
    retries: int = 0
    missing: int = 0
    gave_up: bool = False
    interrupted: bool = False
    last_error: str = ""


@dataclass(frozen=True)
class _Job:
    task: str
    length: int
    index: int
    policies: tuple[Policy, ...]


class Runner:
    """One run; `on_record` is told of every new record (progress bars)."""

    def __init__(
        self,
        client: Client,
        counter: TokenCounter,
        plan: Plan,
        records: RecordFile,
        concurrency: int = 1,
        failures_max: int = 20,
        on_record: Callable[[Record], None] | None = None,
    ) -> None:
        self.client = client
        self.counter = counter
        self.plan = plan
        self.records = records
        self.concurrency = concurrency
        self.failures_max = failures_max
        self.outcome = Outcome()
        self._on_record = on_record or (lambda record: None)
        self._lock = threading.Lock()
        self._fault: BaseException | None = None

    def run(self) -> Outcome:
        """Work until every sample is finished or failed; Ctrl-C ends it in good order."""
        jobs = self._jobs()
        threads = [
            threading.Thread(target=self._work, args=(jobs,), name=f"worker-{i}", daemon=True)
            for i in range(min(self.concurrency, max(jobs.qsize(), 1)))
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
        missing = [key for key in self.plan.wanted() if key not in self.records.finished]
        self.outcome.missing = len(missing)
        return self.outcome

    def _jobs(self) -> queue.SimpleQueue[_Job]:
        jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        plan = self.plan
        for length in plan.lengths:
            for index in range(plan.samples):
                for task in plan.tasks:
                    open_policies = tuple(
                        policy
                        for policy in plan.policies
                        if (task, length, policy.label, index, plan.seed)
                        not in self.records.finished
                    )
                    self.outcome.resumed += len(plan.policies) - len(open_policies)
                    if open_policies:
                        jobs.put(_Job(task, length, index, open_policies))
        return jobs

    def _work(self, jobs: queue.SimpleQueue[_Job]) -> None:
        try:
            while not self.client.stop.is_set():
                try:
                    job = jobs.get_nowait()
                except queue.Empty:
                    return
                self._do(job)
        except BaseException as fault:  # a defect of ours must end the run, not one thread
            self._fault = fault
            self.client.stop.set()

    def _do(self, job: _Job) -> None:
        try:
            fitted = fit(
                self.plan.tasks[job.task],
                job.length,
                self.plan.seed,
                job.index,
                self.counter.count,
                self.plan.overhead,
            )
        except (TaskError, RequestFailed) as error:
            for policy in job.policies:
                self._record(_failure(job, self.plan.seed, policy, None, error))
            return
        for policy in job.policies:
            if self.client.stop.is_set():
                return
            self._record(self._ask(job, policy, fitted))

    def _ask(self, job: _Job, policy: Policy, fitted: Fitted) -> Record:
        sample = fitted.sample
        try:
            reply = self.client.generate(
                sample.prompt, sample.answer_prefix, sample.max_tokens, policy.kv
            )
        except RequestFailed as error:
            return _failure(job, self.plan.seed, policy, fitted, error)
        return Record(
            task=job.task,
            length=job.length,
            policy=policy.label,
            index=job.index,
            seed=self.plan.seed,
            score=string_match_all(reply.text, sample.references),
            output=reply.text,
            references=list(sample.references),
            error=None,
            attempts=reply.attempts,
            latency_s=round(reply.latency_s, 4),
            fitted_tokens=fitted.tokens,
            size=sample.size,
            prompt_sha256=hashlib.sha256(sample.text.encode()).hexdigest(),
            finish_reason=reply.finish_reason,
            usage=reply.usage,
            kv=policy.kv,
        )

    def _record(self, record: Record) -> None:
        with self._lock:
            if record.error is not None and self.client.stop.is_set():
                return  # cut short by Ctrl-C or by giving up: unfinished, not failed
            self.records.append(record)
            self.outcome.retries += max(record.attempts - 1, 0)
            if record.error is None:
                self.outcome.done += 1
            else:
                self.outcome.failed += 1
                self.outcome.last_error = record.error
                if self.outcome.failed >= self.failures_max:
                    self.outcome.gave_up = True
                    self.client.stop.set()
            self._on_record(record)


def _failure(
    job: _Job, seed: int, policy: Policy, fitted: Fitted | None, error: Exception
) -> Record:
    """Write a failed sample down: counted, shown, and tried again by the next run."""
    sample = fitted.sample if fitted else None
    return Record(
        task=job.task,
        length=job.length,
        policy=policy.label,
        index=job.index,
        seed=seed,
        score=None,
        output=None,
        references=list(sample.references) if sample else [],
        error=one_line(error),
        attempts=error.attempts if isinstance(error, RequestFailed) else 0,
        latency_s=0.0,
        fitted_tokens=fitted.tokens if fitted else 0,
        size=sample.size if sample else 0,
        prompt_sha256=hashlib.sha256(sample.text.encode()).hexdigest() if sample else "",
        kv=policy.kv,
    )
