"""A tool environment in the form of TRL: its public methods are the tools that the model may call.

`reset` takes a row of `environment.rows`, by the names of its columns, or `seed` if there are none, and returns what is
appended to the row's prompt. A tool is described to the model by its docstring and type hints. A turn without a call ends the
episode, and `get_reward` scores it.

    plimsoll train examples/sums_by_tools.toml
"""
import random


class SumsByTools:
    def reset(self, seed=0, a=None, b=None):
        draw = random.Random(seed)
        self.a = draw.randint(100, 999) if a is None else a
        self.b = draw.randint(100, 999) if b is None else b
        self.given = None
        return f"What is {self.a} + {self.b}? Compute with `add`, then give the sum to `answer`."

    def add(self, x: int, y: int) -> int:
        """
        Adds two numbers.

        Args:
            x: The first number.
            y: The second number.

        Returns:
            The sum.
        """
        return x + y

    def answer(self, value: int) -> str:
        """
        Takes the final answer.

        Args:
            value: The sum.
        """
        self.given = value
        return "Thank you."

    def get_reward(self) -> float:
        return float(self.given == self.a + self.b)
