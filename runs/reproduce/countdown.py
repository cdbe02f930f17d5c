"""TinyZero's countdown as an environment: puzzles are drawn as those of its data set are, and scored as it scores them."""
import random
import re
from fractions import Fraction

PROMPT = (
    "Using the numbers {numbers}, create an equation that equals {target}. You can use basic arithmetic operations"
    " (+, -, *, /) and each number can only be used once. Show your work in <think> </think> tags. And return the final"
    " answer in <answer> </answer> tags, for example <answer> (1 + 2) / 3 </answer>."
)
FORMAT = 0.1


def value(text, numbers):
    """Returns the value of an expression that uses each of the numbers once, and None of any other text."""
    tokens = re.findall(r"\d+|[-+*/()]", text)
    if re.sub(r"[\s\d+\-*/()]", "", text) or sorted(int(t) for t in tokens if t.isdigit()) != sorted(numbers):
        return None
    place = 0

    def take(wanted):
        nonlocal place
        if place < len(tokens) and tokens[place] in wanted:
            place += 1
            return tokens[place - 1]
        return None

    def factor():
        nonlocal place
        if take("("):
            inner = total()
            if not take(")"):
                raise ValueError("a bracket is open")
            return inner
        if take("-"):
            return -factor()
        place += 1
        return Fraction(tokens[place - 1])

    def product():
        left = factor()
        while sign := take("*/"):
            left = left * factor() if sign == "*" else left / factor()
        return left

    def total():
        left = product()
        while sign := take("+-"):
            left = left + product() if sign == "+" else left - product()
        return left

    try:
        found = total()
        return found if place == len(tokens) else None
    except (IndexError, ValueError, ZeroDivisionError, RecursionError):
        return None


class Countdown:
    """One turn: 1 for a right equation, a tenth for one between the right tags."""

    def reset(self, seed):
        draw = random.Random(seed)
        while True:
            self.numbers = [draw.randint(1, 99) for _ in range(draw.choice([3, 4]))]
            found = Fraction(self.numbers[0])
            for number in self.numbers[1:]:
                sign = draw.choice("+-*/")
                found = {"+": found + number, "-": found - number, "*": found * number, "/": found / number}[sign]
            if found.denominator == 1 and 10 <= found <= 100:
                self.target = int(found)
                return PROMPT.format(numbers=self.numbers, target=self.target)

    def step(self, response):
        found = re.findall(r"<answer>(.*?)</answer>", response, re.DOTALL)
        if not found:
            return None, 0.0, True
        return None, 1.0 if value(found[-1].strip(), self.numbers) == self.target else FORMAT, True
