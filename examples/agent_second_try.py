"""An agent that owns its loop: it takes episodes from a run, talks to the model over HTTP, and reports rewards.

It asks `builtin:nano` for a sum and, after a wrong answer, for the same sum once more, as `text:second-try` does. Nothing but
the standard library is needed; `agent_with_tools.py` does the same with OpenAI's client.

    plimsoll train examples/agent_second_try.toml
"""
import json
import os
import random
import threading
import urllib.request

URL, TOKEN = os.environ["PLIMSOLL_URL"], os.environ["PLIMSOLL_TOKEN"]
EPISODES_AT_ONCE = 32


def post(address, body, token=TOKEN):
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return answer.status, json.loads(answer.read() or b"null")


def play(episode):
    draw = random.Random(f"{episode['seed']} {episode['held_out']}")
    a, b = draw.randint(100, 999), draw.randint(100, 999)
    question = {"role": "user", "content": f"{a}+{b}="}
    messages = [question]
    for _ in range(2):
        body = {"model": episode["model"], "messages": messages}
        _, answer = post(episode["base_url"] + "/chat/completions", body, episode["token"])
        said = answer["choices"][0]["message"]
        if said["content"].strip() == str(a + b):
            return 1.0
        messages += [said, question]
    return 0.0


def work():
    while True:
        try:
            status, episode = post(URL + "/v1/episodes", {"agent": os.environ.get("PLIMSOLL_AGENT")})
        except (urllib.error.HTTPError, OSError):
            return  # 410: the run has ended.
        if status == 204:
            continue  # No episode is free yet.
        report = {"reward": play(episode)}
        post(f"{URL}/v1/episodes/{episode['id']}/reward", report, episode["token"])


threads = [threading.Thread(target=work) for _ in range(EPISODES_AT_ONCE)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
