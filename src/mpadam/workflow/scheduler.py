"""Snakemake's scheduler looks again at what is ready once in every timespan of its rate limit, and no more often.

Snakemake 9.27 starts a timer that renews itself each time it has looked, so that every job that ends leaves one more:
after 150 jobs, all that is ready is examined 150 times per second (a third of a core with sixty jobs waiting), and on a
login node the load grows for as long as the study runs.
"""

from threading import Timer

from snakemake.scheduling.job_scheduler import JobScheduler


def one_timer() -> None:
    """Let schedulers of this process keep one timer each; it does not hold up the end of the process."""

    def schedule(self: JobScheduler, delay: float) -> None:
        if getattr(self, "_timer", None) is not None:
            return

        def look_again() -> None:
            self._timer = None  # before the scheduler wakes, which asks for the next one
            self._open_jobs.release()

        self._timer = Timer(delay, look_again)
        self._timer.daemon = True
        self._timer.start()

    JobScheduler._schedule_reevalutation = schedule
