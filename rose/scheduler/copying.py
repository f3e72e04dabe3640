"""A copy of all trajectories that is made a little at a time, while they go on."""

from collections.abc import Mapping
from typing import Final

from rose.scheduler.course import Course

# A slice ends with the trajectory that brings it to so many tokens, or to so many trajectories:
# each is about a third of a millisecond, which no caller notices.
SLICE_TOKENS: Final = 1 << 16
SLICE_COURSES: Final = 128


class SlowCopy:
    """Copies trajectories slice by slice, each as it was when the copy began.

    Whoever is about to change one says `keep` before: so a step copies at most those that it
    changes. One thread at a time.

    Args:
        courses: by number; those that come later are no part of it.
    """

    def __init__(self, courses: Mapping[int, Course]) -> None:
        self._left = dict(courses)
        self._copies: dict[int, Course] = {}
        self._order = tuple(courses.values())
        self._at = 0  # before it all are copied

    def keep(self, course: Course) -> None:
        """Copy a trajectory now, if it has not been copied."""
        if self._left.pop(course.number, None) is not None:
            self._copies[course.number] = course.copy()

    def advance(self) -> bool:
        """Copy one slice more, and return whether all are copied."""
        tokens = 0
        for course in self._order[self._at : self._at + SLICE_COURSES]:
            self._at += 1
            if course.number in self._left:
                tokens += course.token_count()
                self.keep(course)
            if tokens >= SLICE_TOKENS:
                break
        return not self._left

    def whole(self) -> tuple[Course, ...]:
        """Return all copies, in the order of the trajectories; they are all there."""
        return tuple(self._copies[course.number] for course in self._order)
