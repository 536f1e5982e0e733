"""Loads to simulate: when jobs arrive, how long each takes, when Redis is away. Made anew from a fixed seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

SERVICE_MEDIAN, SERVICE_SPREAD = 8.0, 0.5  # seconds; log-normal: an answer of some sentences about one picture


@dataclass(frozen=True)
class Trace:
    """`jobs`: (second of arrival, seconds of work), in order. `outages`: from second to second."""

    name: str
    about: str
    seconds: int
    jobs: tuple[tuple[float, float], ...]
    min_replicas: int = 1
    outages: tuple[tuple[int, int], ...] = ()

    def away(self, second: int) -> bool:
        return any(begin <= second < end for begin, end in self.outages)


def _poisson(chance: random.Random, seconds: int, rate: Callable[[float], float]) -> list[float]:
    """Arrivals with `rate(t)` jobs a second, by thinning."""
    most = max(rate(t) for t in range(seconds)) or 1e-9
    arrivals, t = [], chance.expovariate(most)
    while t < seconds:
        if chance.random() < rate(t) / most:
            arrivals.append(t)
        t += chance.expovariate(most)
    return arrivals


def _jobs(chance: random.Random, arrivals: list[float]) -> tuple[tuple[float, float], ...]:
    mean = math.log(SERVICE_MEDIAN)
    return tuple((at, chance.lognormvariate(mean, SERVICE_SPREAD)) for at in sorted(arrivals))


def burst(chance: random.Random) -> Trace:
    hour = 3600
    arrivals = _poisson(chance, hour, lambda _: 0.03)
    for begin in range(300, hour, 900):
        arrivals += [begin + chance.uniform(0, 10) for _ in range(40)]
    return Trace("burst", "40 jobs within 10 s every 15 min", hour + 600, _jobs(chance, arrivals))


def ramp(chance: random.Random) -> Trace:
    hour = 3600
    return Trace(
        "ramp",
        "from nothing to 0.5 jobs/s and back within an hour",
        hour + 600,
        _jobs(chance, _poisson(chance, hour, lambda t: 0.5 * math.sin(math.pi * t / hour) ** 2)),
    )


def night(chance: random.Random) -> Trace:
    def rate(t: float) -> float:
        return 0.35 if t < 1800 else 0.35 * max(0.0, (t - 7200) / 1800) if t > 7200 else 0.004

    return Trace("night", "an evening, a quiet night, a morning", 9600, _jobs(chance, _poisson(chance, 9000, rate)))


def outage(chance: random.Random) -> Trace:
    arrivals = _poisson(chance, 3600, lambda _: 0.3)
    outages = ((900, 1200), (2400, 2460))
    arrivals = [next((end + chance.uniform(0, 5) for begin, end in outages if begin <= t < end), t) for t in arrivals]
    about = "0.3 jobs/s, Redis away for 5 min and for 1 min, clients try again after it"
    return Trace("Redis outage", about, 4200, _jobs(chance, arrivals), outages=outages)


def from_zero(chance: random.Random) -> Trace:
    arrivals = [begin + chance.uniform(0, 60) for begin in range(600, 7200, 1500) for _ in range(6)]
    return Trace("from zero", "6 jobs every 25 min, no replica in between", 7800, _jobs(chance, arrivals), 0)


SEED = 20261201


def traces(seed: int = SEED) -> list[Trace]:
    return [make(random.Random(seed)) for make in (burst, ramp, night, outage, from_zero)]
