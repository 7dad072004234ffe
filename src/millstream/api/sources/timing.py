"""What all sources share: event time, lateness, and how long to wait for whom."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.api.overload import check_overload
from millstream.durations import Duration, micros
from millstream.errors import ConfigError
from millstream.io.formats import UNITS, check_zone
from millstream.io.timeformats import time_format
from millstream.io.timepatterns import time_pattern
from millstream.ops.overload import THROTTLE, Overload


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What all sources share: where event time comes from, and how long to wait for it.

    time: the column of event time; None takes the time of arrival.
    time_unit: for numbers in that column, what they count since the epoch.
    time_format: for texts in that column that are not ISO-8601, how they are written, as for
        `datetime.strptime`: "%m/%d/%Y %H:%M".
    time_pattern: for texts in that column that hold more than a time: a regular expression whose
        group, or all that it matches, is the time, like "at=([^ ]+)".
    zone: for times without an offset, the zone they are in, like "UTC" or "Europe/Berlin".
    lateness: how far records may be out of order. None on bounded input means: nothing is late,
        windows leave at the end of the input; on unbounded input it means "0s".
    idle_timeout: a participant silent for so long does not hold the watermark back; None: it does
        for ever.
    max_future_skew: a time further ahead of the clock than this cannot move the watermark.
    participant: a column whose values (nodes, devices ...) report progress separately. Without it
        every file is a participant, and any other source is one as a whole.
    participants: values of that column that are expected: until each has been seen (or has been
        silent for the idle timeout), nothing leaves. None and an empty list declare nobody.
    overload: what to do with more than can be processed: ms.throttle() (the default), ms.drop() or
        ms.divert("overflow").
    """

    time: str | None = None
    time_unit: str = "s"
    time_format: str | None = None
    time_pattern: str | None = None
    zone: str | None = None
    lateness: Duration | None = None
    idle_timeout: Duration | None = "10s"
    max_future_skew: Duration = "1d"
    participant: str | None = None
    participants: Sequence[str] | None = ()
    overload: Overload = THROTTLE

    def __post_init__(self) -> None:
        step = type(self).__name__
        if self.lateness is not None:
            micros(self.lateness, f"{step}(lateness=)", zero=True)
        if self.idle_timeout is not None:
            micros(self.idle_timeout, f"{step}(idle_timeout=)")
        micros(self.max_future_skew, f"{step}(max_future_skew=)", zero=True)
        check_overload(step, self.overload)
        declared = () if self.participants is None else self.participants
        if (
            isinstance(declared, str)
            or not isinstance(declared, Iterable)
            or not all(isinstance(who, str) for who in declared)
        ):
            raise ConfigError(
                f"{step}(participants={self.participants!r}): expected a list of names, like "
                '["web-1", "web-2"]'
            )
        if self.participants and self.participant is None:
            raise ConfigError(
                f"{step}(participants=): say with participant= which column has these names"
            )
        for name, check in (("time_format", time_format), ("time_pattern", time_pattern)):
            if getattr(self, name) is None:
                continue
            if self.time is None:
                raise ConfigError(f"{step}({name}=): say with time= which column has these")
            self._check(check, name)
        if self.time_unit not in UNITS:
            raise ConfigError(
                f"{step}(time_unit={self.time_unit!r}): use one of {', '.join(UNITS)}"
            )
        self._check(check_zone, "zone")

    def _check(self, check: Callable[[Any], object], name: str) -> None:
        """Refuse an option as whoever reads with it would, but before anything runs."""
        value, step = getattr(self, name), type(self).__name__
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{step}({name}={value!r}): expected a text")
        try:
            check(value)
        except ConfigError as error:
            raise ConfigError(f"{step}(): {error}") from None

    @property
    def bounded(self) -> bool:
        """Whether all of it is there when it is begun."""
        return False

    @property
    def endless(self) -> bool:
        """Whether it is sure never to end; what others send may."""
        return False

    def lateness_micros(self) -> int | None:
        """How long windows wait, None for "until the end"."""
        if self.lateness is None:
            return None if self.bounded else 0
        return micros(self.lateness, "lateness", zero=True)


_ELSEWHERE = {  # what pandas, Spark and DuckDB call options of files
    **dict.fromkeys(("sep", "delim"), "delimiter"),
    **dict.fromkeys(("na_values", "nullValue", "nullstr", "null_values"), "nulls"),
    **dict.fromkeys(("names", "columns", "dtype", "dtypes", "types", "usecols"), "schema"),
    **dict.fromkeys(("parse_dates", "timestamp", "ts", "event_time"), "time"),
    **dict.fromkeys(("timestampFormat", "date_format", "dateFormat"), "time_format"),
    **dict.fromkeys(("multiLine", "newlines_in_values"), "multiline"),
    **dict.fromkeys(("tz", "timezone", "timeZone"), "zone"),
    "watermark": "lateness",
}


class Followed(Timing):
    """What is there when a run starts, and with `follow` what comes after that."""

    follow: bool

    @property
    def bounded(self) -> bool:
        return not self.follow

    @property
    def endless(self) -> bool:
        return self.follow


def fill(self: Any, cls: type, options: dict[str, Any]) -> None:
    """Fill a frozen source and check it, refusing options it does not have."""
    fields = cls.__dataclass_fields__  # type: ignore[attr-defined]
    fields = {name: one for name, one in fields.items() if one.init or name not in options}
    unknown = sorted(set(options) - set(fields))
    if unknown:
        near = [_ELSEWHERE.get(unknown[0], "")]
        if near[0] not in fields:
            near = difflib.get_close_matches(unknown[0], fields, 1)
        hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(sorted(fields))}"
        raise ConfigError(f"{cls.__name__}: no option {', '.join(unknown)}; {hint}")
    for name, described in fields.items():
        object.__setattr__(self, name, options.get(name, described.default))
    self.__post_init__()
