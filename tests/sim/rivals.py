"""The rules of others, as their documentation states their defaults, with the same target and bounds as ours.

Each is asked every second with the jobs that are not answered yet (None while Redis is away) and says how many
replicas there should be.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import Protocol


class Rule(Protocol):
    """`from_zero`: it can start from, and go back to, no replica at all."""

    name: str
    from_zero: bool

    def replicas(self, second: int, depth: int | None, current: int) -> int: ...


class KubernetesHpa:
    """HorizontalPodAutoscaler on an external metric with an average value: every 15 s, 10 % tolerance, at most
    doubled or 4 more in 15 s, down to the highest recommendation of the last 300 s."""

    name, from_zero = "Kubernetes HPA", False
    sync, window, tolerance = 15, 300, 0.1

    def __init__(self, target: int, low: int, high: int) -> None:
        self._target, self._low, self._high = target, max(1, low), high
        self._recommended: deque[tuple[int, int]] = deque()

    def replicas(self, second: int, depth: int | None, current: int) -> int:
        if second % self.sync or depth is None or current == 0:
            return current
        ratio = depth / (self._target * current)
        wanted = current if abs(ratio - 1) <= self.tolerance else ceil(depth / self._target)
        self._recommended.append((second, wanted))
        while self._recommended[0][0] <= second - self.window:
            self._recommended.popleft()
        settled = wanted if wanted >= current else min(current, max(n for _, n in self._recommended))
        return min(max(min(settled, max(2 * current, current + 4)), self._low), self._high)


class Keda(KubernetesHpa):
    """KEDA: an HPA between 1 and many; between 0 and 1 itself, looking every 30 s, back after 300 s without a job."""

    name, from_zero = "KEDA", True
    polling, cooldown = 30, 300

    def __init__(self, target: int, low: int, high: int) -> None:
        super().__init__(target, low, high)
        self._zero = low == 0
        self._active = 0

    def replicas(self, second: int, depth: int | None, current: int) -> int:
        if second % self.polling == 0 and depth is not None and self._zero:
            if depth:
                self._active = second
                current = max(current, 1)
            elif current == 1 and second - self._active >= self.cooldown:
                return 0
        return super().replicas(second, depth, current)


class RayServe:
    """Ray Serve's autoscaling: the mean of the last 30 s, up after 30 s, down after 600 s, from zero at once."""

    name, from_zero = "Ray Serve", True
    look_back, up, down = 30, 30, 600

    def __init__(self, target: int, low: int, high: int) -> None:
        self._target, self._low, self._high = target, low, high
        self._seen: deque[int] = deque(maxlen=self.look_back)
        self._more = self._fewer = 0

    def replicas(self, second: int, depth: int | None, current: int) -> int:
        if depth is None:
            return current
        self._seen.append(depth)
        if current == 0:
            return 1 if depth else 0
        wanted = min(max(ceil(sum(self._seen) / len(self._seen) / self._target), self._low), self._high)
        self._more = self._more + 1 if wanted > current else 0
        self._fewer = self._fewer + 1 if wanted < current else 0
        if self._more > self.up or self._fewer > self.down:
            self._more = self._fewer = 0
            return wanted
        return current
