#!/usr/bin/env python3
"""Ticks of schedules by Python's zoneinfo, for tests/unit/test_schedule.c.

    python3 tests/golden/zones/make.py [copy]

writes vectors.json beside itself; `copy` takes the zones anew out of /usr/share/zoneinfo (they
are in the public domain), so that neither side depends on what is installed. Every wall minute of
two years is asked by itself whether the cron fits it, and put into UTC by zoneinfo; nothing is
shared with the code under test.
"""
import datetime as dt
import hashlib
import json
import pathlib
import shutil
import sys
import zoneinfo

HERE = pathlib.Path(__file__).parent
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata",
         "America/Sao_Paulo", "Africa/Casablanca", "Pacific/Apia"]
CRONS = ["30 2 * * *", "*/15 1-3 * * *", "0 * * * *", "30 1,2 * * sun", "0 0 1 * *",
         "0 12 13 * fri", "5 9-17/4 * jan-mar,oct mon-fri", "59 23 31 12 *", "0 3 */2 * *"]
FROM, TO = 2026, 2028  # years
UTC = dt.timezone.utc
WORDS = {w: i for i, w in enumerate("sun mon tue wed thu fri sat".split())} | {
    w: i + 1 for i, w in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split())}


def values(field, least, most):
    out = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        if span == "*":
            low, high = least, most
        else:
            low = WORDS[low] if low in WORDS else int(low)
            high = low if not high else WORDS[high] if high in WORDS else int(high)
        out |= set(range(low, high + 1, int(step or 1)))
    return out


def fits(cron):
    m, h, d, mon, wd = cron.split()
    minutes, hours, days = values(m, 0, 59), values(h, 0, 23), values(d, 1, 31)
    months, weekdays = values(mon, 1, 12), values(wd, 0, 6)
    both = d[0] != "*" and wd[0] != "*"

    def of(day):
        day_fits, week_fits = day.day in days, day.isoweekday() % 7 in weekdays
        return day.month in months and (day_fits or week_fits if both else day_fits and week_fits)
    return of, minutes, hours


def instant(wall, zone):
    """The first instant at which the clocks show it, or at which they leap over it."""
    utc = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if utc.astimezone(zone).replace(tzinfo=None) == wall:
        return int(utc.timestamp())
    at = utc - dt.timedelta(hours=30)
    while at.astimezone(zone).replace(tzinfo=None) < wall:
        at += dt.timedelta(minutes=30)
    at -= dt.timedelta(minutes=30)
    while at.astimezone(zone).replace(tzinfo=None) < wall:
        at += dt.timedelta(minutes=1)
    return int(at.timestamp())


def ticks(cron, zone):
    of, minutes, hours = fits(cron)
    out = set()
    day = dt.date(FROM - 1, 12, 30)
    while day < dt.date(TO, 1, 3):
        if of(day):
            out |= {instant(dt.datetime(day.year, day.month, day.day, h, m), zone)
                    for h in hours for m in minutes}
        day += dt.timedelta(days=1)
    low, high = (int(dt.datetime(y, 1, 1, tzinfo=UTC).timestamp()) for y in (FROM, TO))
    return sorted(t for t in out if low < t <= high)


def changes(zone):
    at, out = dt.datetime(FROM, 1, 1, tzinfo=UTC), []
    while at < dt.datetime(TO, 1, 1, tzinfo=UTC):
        if at.astimezone(zone).utcoffset() != (at + dt.timedelta(hours=1)).astimezone(zone).utcoffset():
            out.append(int(at.timestamp()))
        at += dt.timedelta(hours=1)
    return out


def offsets(zone):
    """Of every 5 days and 7 hours from 1900 to 2100."""
    at = dt.datetime(1900, 1, 1, tzinfo=UTC)
    text = ""
    while at < dt.datetime(2100, 1, 1, tzinfo=UTC):
        text += "%d\n" % at.astimezone(zone).utcoffset().total_seconds()
        at += dt.timedelta(days=5, hours=7)
    return hashlib.sha256(text.encode()).hexdigest()


def main():
    if sys.argv[1:] == ["copy"]:
        for name in ZONES:
            (HERE / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(pathlib.Path("/usr/share/zoneinfo") / name, HERE / name)
    zoneinfo.reset_tzpath([str(HERE.resolve())])
    out = {"from": int(dt.datetime(FROM, 1, 1, tzinfo=UTC).timestamp()), "zones": []}
    out["to"] = int(dt.datetime(TO, 1, 1, tzinfo=UTC).timestamp())
    for name in ZONES:
        zone = zoneinfo.ZoneInfo(name)
        near = changes(zone)
        rows = []
        for cron in CRONS:
            all_of_it = ticks(cron, zone)
            text = "".join("%d\n" % t for t in all_of_it)
            rows.append({"cron": cron, "count": len(all_of_it),
                         "sha": hashlib.sha256(text.encode()).hexdigest(),
                         "near": [t for t in all_of_it
                                  if any(abs(t - c) < 6 * 3600 for c in near)]})
        out["zones"].append({"zone": name, "offsets": offsets(zone), "crons": rows})
    (HERE / "vectors.json").write_text(json.dumps(out, indent=0, separators=(",", ":")) + "\n")


main()
