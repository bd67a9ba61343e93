"""When the run must be over, and what is given up for that. A process has one, as it has one alarm; in one that never begins
it, it bounds nothing."""

import contextlib
import faulthandler
import math
import signal
import time

# What the end of a run waits for at most, where nobody ends by itself: tenants who are sent SIGTERM and then SIGKILL, with
# whatever else a stage has started; then the supervisor, in the same way; then what takes the files away.
TENANTS_S, SUPERVISOR_S, FILES_S = 10, 12, 3
# So much of the budget is kept for that.
RESERVE_S = TENANTS_S + SUPERVISOR_S + FILES_S
# So long after the budget the process ends, wherever it is: in a call of the driver's that does not return no signal is heard.
LAST_RESORT_S = 5


class GivenUp(BaseException):
    """Nobody who catches what may go wrong goes on after this."""


class StageTimeout(GivenUp):
    """A stage took far longer than planned."""


class RunOver(GivenUp):
    """The whole run ends with what it has; the words say why."""


class Deadline:
    """Raises a GivenUp where the time of a stage, or of the run, is up, or a signal asks for the end: once, and from `check`
    again and again."""

    def __init__(self):
        # By the monotonic clock, when the budget is spent, and when the stage that runs is given up.
        self.end = self.stage_end = math.inf
        # A StageTimeout until that stage has ended, a RunOver for good.
        self.given_up = None
        # Whether it was raised, and whether nothing may be broken off at the moment.
        self.is_raised, self.is_held = False, False

    def begin(self, budget_s):
        """The run has so many seconds from now on. Whoever stops it gets a machine as it was before."""
        self._end_in(budget_s)
        signal.signal(signal.SIGALRM, self._on_alarm)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._set_alarm()

    def _end_in(self, seconds):
        self.end = time.monotonic() + seconds
        faulthandler.dump_traceback_later(max(0, seconds) + LAST_RESORT_S, exit=True)

    def end_begins(self):
        """Nothing is left to be done but the end, for which the reserve is kept: no alarm comes any more."""
        signal.setitimer(signal.ITIMER_REAL, 0)

    def left(self):
        """Seconds until the run is given up."""
        return self.end - RESERVE_S - time.monotonic()

    def patience(self, seconds, spared_s=SUPERVISOR_S + FILES_S):
        """How long to wait for what may take `seconds`: not longer than until `spared_s` before the budget is spent."""
        return max(0.0, min(seconds, self.end - spared_s - time.monotonic()))

    def check(self):
        """Raises what was given up for as long as it is: who has lost the exception in clearing up goes no further."""
        if self.given_up:
            self.is_raised = True
            raise self.given_up

    @contextlib.contextmanager
    def stage(self, seconds):
        """What is done in it is given up after so many seconds."""
        self._begin_stage(time.monotonic() + seconds)
        try:
            yield
            # What was given up and lost on its way has given the stage up all the same.
            self.check()
        finally:
            self.end_stage()

    def end_stage(self):
        """No stage is given up any more. Said again, it changes nothing."""
        self._begin_stage(math.inf)

    @contextlib.contextmanager
    def held_back(self):
        """What is done in it is not left half done: who gives up does so afterwards. Signals are not blocked, because another
        thread would take them then; whoever waits in it looks at `given_up`."""
        was_held, self.is_held = self.is_held, True
        try:
            yield
        finally:
            self.is_held = was_held
        self._raise_once()

    def _begin_stage(self, end):
        self.stage_end = end
        if isinstance(self.given_up, StageTimeout):
            self.given_up, self.is_raised = None, False
        self._set_alarm()

    def _set_alarm(self):
        """For what comes first of what has not come yet."""
        if isinstance(self.given_up, RunOver) or self.end == math.inf:
            return
        left = self.left() if self.given_up else min(self.left(), self.stage_end - time.monotonic())
        # Zero would be no alarm.
        signal.setitimer(signal.ITIMER_REAL, max(left, 0.001))

    def _on_alarm(self, *_):
        if self.left() <= 0:
            self._give_up(RunOver("the time was up"))
        elif time.monotonic() >= self.stage_end:
            self._give_up(StageTimeout("it takes far longer than planned"))
        else:
            self._set_alarm()

    def _on_signal(self, number, _):
        self._give_up(RunOver(signal.Signals(number).name))

    def _give_up(self, why):
        if not isinstance(self.given_up, RunOver):
            self.given_up = why
            if isinstance(why, RunOver):
                # The end takes no longer where it is asked for in the middle of the budget.
                self._end_in(min(self.end - time.monotonic(), RESERVE_S))
        self._set_alarm()
        self._raise_once()

    def _raise_once(self):
        if self.given_up and not self.is_raised and not self.is_held:
            self.is_raised = True
            raise self.given_up


DEADLINE = Deadline()
