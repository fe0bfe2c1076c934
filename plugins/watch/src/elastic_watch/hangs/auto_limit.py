"""The limit of `--hang-timeout auto` while a run goes on, and the lines about it for users."""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from elastic_watch.hangs import learning
from elastic_watch.hangs.detector import Elsewhere, Limits, Watch

NAME: Final = "--hang-timeout auto"
_MUCH: Final = 2.0
"""A line reports each limit that is this many times the one in the last line."""
NO_STEPS_S: Final = 600.0
"""The time after which a line reports that no worker has reported a step."""


class AutoLimit:
    """Learns the limit from one round after another.

    Args:
        notify: Shows a line to the user.
        rule: How the limit follows from the steps.
    """

    def __init__(self, notify: Callable[[str], None], rule: learning.Rule = learning.Rule()) -> None:  # noqa: B008  # frozen
        self._notify = notify
        self._learned = learning.Learned(rule=rule)
        self._shown_s = 0.0
        self._begun = False
        self._missed = False

    def begin(self, limits: Limits, world_size: int) -> Limits:
        """Return the limits for workers that were just started."""
        self._learned = learning.begin(self._learned, world_size)
        if not self._begun:
            self._begun = True
            rule = self._learned.rule
            self._notify(
                f"{NAME}: no limit until workers have reported {rule.warm_up + rule.enough} steps (heartbeat, "
                "should_stop); none at all without steps"
            )
        return self._limits(limits)

    def learn(self, before: Watch, after: Watch, elsewhere: Elsewhere | None) -> Watch:
        """Return the watch after a check with the limit as it is known now."""
        self._learned = learning.learn(self._learned, before, after, elsewhere)
        self._show()
        if not self._missed and not self._learned.made and after.lived_s >= NO_STEPS_S:
            self._missed = True
            self._notify(
                f"{NAME} has no limit: no worker has reported a step for {after.lived_s:.0f} s after the start. Try: "
                "heartbeat(step=…) or should_stop(step=…) in the script, or --hang-timeout 30m"
            )
        limits = self._limits(after.limits)
        return after if limits == after.limits else replace(after, limits=limits)

    def after_hang(self) -> None:
        """Double the limit after a hang was reported."""
        limit_s = self._learned.limit_s
        self._learned = learning.after_hang(self._learned)
        if limit_s:
            after_s = self._learned.limit_s
            then = f"it is {after_s:.0f} s now" if after_s > limit_s else "it stays"
            self._notify(
                f"{NAME}: the limit was {limit_s:.0f} s; {then}. Try: a section for a longer part without steps"
            )
            self._shown_s = max(self._shown_s, after_s)

    def _limits(self, limits: Limits) -> Limits:
        return replace(limits, hang_s=self._learned.limit_s, most_look_s=self._learned.look_s)

    def _show(self) -> None:
        learned, limit_s = self._learned, self._learned.limit_s
        if learned.known and (not self._shown_s or limit_s >= _MUCH * self._shown_s):
            longest_s = learned.longest_s[learned.world_size]
            verb = "is" if not self._shown_s else "is now"
            self._notify(f"{NAME}: the limit {verb} {limit_s:.0f} s; the longest step took at most {longest_s:.3g} s")
            self._shown_s = limit_s
