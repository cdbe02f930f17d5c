"""A custom text environment: a sum, and up to three tries.

`reset` gets a seed and returns what the model is shown; equal seeds must begin equal episodes. `step` gets the model's turn
and returns the reply, the turn's reward, and whether the episode is over. Messages are a string, a dict with `role`
and `content`, or a list of these. One object plays one episode at a time, and is used again for the next.

    plimsoll train examples/three_tries.toml
"""
import random


class ThreeTries:
    def reset(self, seed):
        draw = random.Random(seed)
        self.a, self.b = draw.randint(100, 999), draw.randint(100, 999)
        self.tries = 0
        return f"{self.a}+{self.b}="

    def step(self, response):
        self.tries += 1
        if response.strip() == str(self.a + self.b):
            return None, 1.0, True
        # The built-in model knows only digits, `+`, `=` and the space.
        return f"{self.a}+{self.b}=", 0.0, self.tries == 3
