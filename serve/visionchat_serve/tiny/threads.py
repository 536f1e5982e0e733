"""Uses two threads where two cores are free, and one where other programs want them too.

Small parallel regions wait for their slowest thread: beside another busy program, two threads can be several
times slower than one. So the loop tries the other number now and then and keeps what is faster. Called once a
step by the training.
"""

import torch


class Threads:
    def __init__(self, most: int, every: int = 12) -> None:
        self.choices = sorted({1, most})
        self.seconds = dict.fromkeys(self.choices, 0.0)  # recent time of a step with so many threads
        self.current = most
        self.every, self.count = every, 0
        torch.set_num_threads(most)

    def took(self, seconds: float) -> None:
        """Tells how long the last step took, and sets the number of threads for the next."""
        known = self.seconds[self.current]
        self.seconds[self.current] = seconds if known == 0.0 else 0.5 * known + 0.5 * seconds
        self.count += 1
        best = min(self.choices, key=lambda number: self.seconds[number])
        trial = next((number for number in self.choices if number != best), best)
        self.current = trial if self.count % self.every == 0 else best
        torch.set_num_threads(self.current)
