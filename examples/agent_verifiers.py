"""An agent that plays tasks of the package `verifiers`: the run's model is the endpoint, the task's rewards are the reward.

The tasks here are sums, so nothing is downloaded. For a task set that is installed, take `vf.load_taskset(...)` and pick the
task by `episode["index"]`. Needs Python 3.11 or later.

    pip install verifiers==0.4.0
    plimsoll train examples/agent_verifiers.toml
"""
import asyncio
import json
import os
import random
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
import verifiers.v1 as vf

URL, TOKEN = os.environ["PLIMSOLL_URL"], os.environ["PLIMSOLL_TOKEN"]
AGENT = os.environ.get("PLIMSOLL_AGENT")
EPISODES_AT_ONCE = 16


class SumData(vf.TaskData):
    answer: str


class Sum(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)


class OneReply(vf.Harness[vf.HarnessConfig]):
    """Asks once, in this process.

    With `harness={"id": "null"}` verifiers starts its own chat program for each episode, which knows tools and needs uv.
    """

    NEEDS_CONTAINER = EXECUTES_CODE = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            question = {"role": "user", "content": data.prompt}
            await client.chat.completions.create(model=ctx.model, messages=[question])
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


# verifiers finds a harness by the name of its module, which is this file's.
__all__ = ["OneReply"]


def task_of(episode):
    draw = random.Random(f"{episode['seed']} {episode['held_out']}")
    a, b = draw.randint(100, 999), draw.randint(100, 999)
    return Sum(SumData(idx=episode["index"], prompt=f"{a}+{b}=", answer=str(a + b)))


async def play(episode):
    """Returns the report of an episode."""
    # verifiers takes the name of a variable.
    variable = f"PLIMSOLL_TOKEN_{episode['id'].replace('-', '_')}"
    os.environ[variable] = episode["token"]
    endpoint = vf.EvalClientConfig(base_url=episode["base_url"], api_key_var=variable)
    agent = vf.Agent(
        vf.AgentConfig(
            model=episode["model"], client=endpoint, harness={"id": "agent_verifiers"}, runtime=vf.SubprocessConfig()
        )
    )
    trace = await agent.run(task_of(episode))
    return {"reward": trace.reward} if trace.ok else {"error": trace.errors[-1].message}


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
        report = await play(episode)
    except Exception as error:
        report = {"error": f"{type(error).__name__}: {error}"}
    await asyncio.to_thread(post, f"/v1/episodes/{episode['id']}/reward", report, episode["token"])
    os.environ.pop(f"PLIMSOLL_TOKEN_{episode['id'].replace('-', '_')}", None)
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


if __name__ == "__main__":
    asyncio.run(main())
