"""Tools in the form of TRL's `tools=[...]`: functions of no class, described to the model by their docstrings and type hints.

A row of `environment.rows` begins an episode with its `prompt`. The model calls the functions in several turns; a turn without
a call ends the episode, and the run's rewards grade the conversation, with the other columns of the row.

    plimsoll train examples/tools_of_functions.toml
"""


def multiply(x: int, y: int) -> int:
    """
    Multiplies two numbers.

    Args:
        x: The first number.
        y: The second number.

    Returns:
        The product.
    """
    return x * y


def add(x: int, y: int) -> int:
    """
    Adds two numbers.

    Args:
        x: The first number.
        y: The second number.

    Returns:
        The sum.
    """
    return x + y


def right(completions, answer, **kwargs):
    """1 for a conversation whose last words have the answer, and a fifth less for one that computed without a tool."""
    scores = []
    for messages, number in zip(completions, answer):
        is_right = messages[-1]["role"] == "assistant" and str(number) in messages[-1]["content"]
        has_called = any(message["role"] == "tool" for message in messages)
        scores.append((1.0 if has_called else 0.8) if is_right else 0.0)
    return scores
