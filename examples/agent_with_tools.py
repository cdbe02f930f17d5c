"""An agent with tools: it plays a run's episodes with OpenAI's client and gives the model a calculator.

Each episode asks for a * b + c. The agent runs the calls of `add` and `multiply` and sends their results back, until the
model answers without a call. The reward is 1 if the last number of that answer is right. Needs Python 3.11 or later.

    pip install openai
    plimsoll train examples/agent_with_tools.toml
"""
import asyncio
import json
import os
import random
import re
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai

URL, TOKEN = os.environ["PLIMSOLL_URL"], os.environ["PLIMSOLL_TOKEN"]
AGENT = os.environ.get("PLIMSOLL_AGENT")
EPISODES_AT_ONCE = 32
# Codes with which the run refuses a request that an episode has no room for.
OUT_OF_ROOM = ("agent-limit", "serve-too-long")
FUNCTIONS = {"add": lambda a, b: int(a) + int(b), "multiply": lambda a, b: int(a) * int(b)}


def described(name, description):
    numbers = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    parameters = {"type": "object", "properties": numbers, "required": ["a", "b"]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [described("add", "Adds two numbers."), described("multiply", "Multiplies two numbers.")]
model_api = openai.AsyncOpenAI(base_url=URL, api_key=TOKEN)


def result_of(call):
    """Runs a call. The model reads what went wrong as it reads a result."""
    try:
        return str(FUNCTIONS[call.function.name](**json.loads(call.function.arguments)))
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"


async def play(episode):
    """Returns the reward of an episode."""
    draw = random.Random(f"{episode['seed']} {episode['held_out']}")
    a, b, c = (draw.randint(10, 99) for _ in range(3))
    messages = [{"role": "user", "content": f"What is {a} * {b} + {c}? Use the tools, then answer with the number."}]
    # The connections are shared.
    client = model_api.with_options(base_url=episode["base_url"], api_key=episode["token"])
    while True:
        answer = await client.chat.completions.create(model=episode["model"], messages=messages, tools=TOOLS)
        said = answer.choices[0].message
        if not said.tool_calls:
            numbers = re.findall(r"-?\d+", (said.content or "").replace(",", ""))
            return 1.0 if numbers and numbers[-1] == str(a * b + c) else 0.0
        # The answer goes back as it came, so that the run knows its own tokens again.
        messages.append(said)
        for call in said.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result_of(call)})


def post(path, body, token=TOKEN):
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + path, json.dumps(body).encode(), headers)) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as refusal:
        return refusal.code, None
    except OSError:
        return 410, None  # The run is gone.


async def play_and_report(episode, room):
    try:
        report = {"reward": await play(episode)}
    except openai.BadRequestError as refusal:
        report = {"reward": 0.0} if refusal.code in OUT_OF_ROOM else {"error": str(refusal)}
    except Exception as error:
        report = {"error": f"{type(error).__name__}: {error}"}
    await asyncio.to_thread(post, f"/v1/episodes/{episode['id']}/reward", report, episode["token"])
    room.release()


async def main():
    # One thread asks for episodes, three report.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))
    room = asyncio.Semaphore(EPISODES_AT_ONCE)
    async with asyncio.TaskGroup() as episodes:
        while True:
            await room.acquire()
            status, episode = 204, None
            while status == 204:  # No episode is free yet.
                status, episode = await asyncio.to_thread(post, "/v1/episodes", {"agent": AGENT})
            if status != 200:
                return  # 410: the run has ended.
            episodes.create_task(play_and_report(episode, room))


asyncio.run(main())
