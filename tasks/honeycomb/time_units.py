"""Units of time as people write them, for the patterns that read questions."""

from __future__ import annotations

from typing import Final

MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86_400
WEEK: Final = 604_800
MONTH: Final = 30 * DAY

UNITS: Final = {  # pattern without groups: seconds
    r"s|secs?|seconds?": 1,
    r"m|mins?|minutes?": MINUTE,
    r"h|hrs?|hours?": HOUR,
    r"d|days?": DAY,
    r"w|wks?|weeks?": WEEK,
    r"months?": MONTH,
}
WEEKDAY: Final = "(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
