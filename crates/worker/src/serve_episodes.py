"""Serves episodes of one environment: a JSON line in, a JSON line out. Usage: serve_episodes.py WHAT, a JSON object that
`open_shape` reads.

{"reset": slot, "seed": n, "prompt": p, "row": {...}} begins an episode, with the prompt and the columns of its row, or null;
`images` next to them are those of the prompt.
{"step": slot, "response": text, "calls": [...]} is the model's turn in it, {"end": slot} asks for the reward of a whole
episode, and {"about": 0} what its tools are. A slot keeps its object from episode to episode; one that raised is made anew. A
reply repeats the `id` of its request. Standard output belongs to the protocol, so the user's prints go to standard error.
"""

ROLE_CHARS_MAX = 32
REWARD_MAX = float.fromhex("0x1.fffffep127")


def one_message(said):
    """Role, text and files of images of a message."""
    files = said.get("files", []) if isinstance(said, dict) else []
    if holds_image(said):
        text, files = told("the environment", said)
        said = {"role": said["role"] if isinstance(said, dict) and "role" in said else "user", "content": text}
    if isinstance(said, str):
        said = {"role": "user", "content": said}
    if isinstance(said, dict) and isinstance(said.get("role"), str) and isinstance(said.get("content"), str):
        role, content = said["role"], said["content"]
        if len(role) > ROLE_CHARS_MAX:
            raise TypeError(f"a role of {len(role)} characters; at most {ROLE_CHARS_MAX} are read")
        (role + content).encode()  # A lone surrogate is no text.
        return [role, content, files]
    raise TypeError(f"a message is a string or a dict with `role` and `content`, not {said!r:.80}")


def messages(said):
    return [one_message(one) for one in said] if isinstance(said, (list, tuple)) else [one_message(said)]


def first_messages(said):
    refuse_first_image(said)
    said = [[role, content] for role, content, _ in messages(said)]
    if not said or not any(content for _, content in said):
        raise TypeError("reset gave no text")
    return {"messages": said}


def refuse_first_image(said):
    if holds_image(said):
        raise TypeError("reset returned an image: an episode begins with the images of its row, data.images")


def shortened(said, most, left):
    """What a turn says, `left` bytes of it, and whether that is less than all."""
    if len(said) > most:
        raise TypeError(f"step said {len(said)} messages; environment.turn_tokens_max has room for {most}")
    is_cut, kept = False, []
    for role, content, _ in said:
        text = content.encode()
        is_cut = is_cut or len(text) > left
        kept.append([role, text[:left].decode(errors="ignore")])
        left = max(left - len(text), 0)
    return kept, is_cut


def finite(reward):
    if isinstance(reward, (str, bytes)) or not hasattr(reward, "__float__"):
        raise TypeError(f"the reward is a {type(reward).__name__}: {reward!r:.80}")
    reward = float(reward)
    if reward - reward != 0.0:
        raise TypeError(f"the reward is {reward}")
    if abs(reward) > REWARD_MAX:
        raise TypeError(f"the reward is {reward}; the largest is {REWARD_MAX:.4g}, that of 32 bits")
    return reward


def whole(result):
    return {"reward": finite(result)}


def turn(result, most, most_bytes):
    if not isinstance(result, tuple) or len(result) != 3:
        raise TypeError(f"step returns (messages, reward, done), not {result!r:.80}")
    said, reward, done = result
    reward = finite(reward)
    said = [] if said is None else messages(said)
    if not done and not any(content for _, content, _ in said):
        raise TypeError("step gave no text, and the episode is not done")
    files = [file for _, _, files in said for file in files]
    said, is_cut = shortened(said, most, most_bytes)
    turn = {"messages": said, "reward": reward, "done": bool(done), "cut": is_cut}
    return {**turn, "images": sent(files)} if files else turn


def row_of(request):
    """The columns of a row, with the images of its prompt as rewards get them: `{"path", "bytes"}`, of which one is None."""
    row = request["row"]
    if "images" not in request:
        return row
    images = [{**one, "bytes": one["bytes"] and base64.b64decode(one["bytes"])} for one in request["images"]]
    return {**row, "images": images}


def answer(make, slots, request, limits):
    slot = next(request[kind] for kind in ("reset", "step", "end") if kind in request)
    try:
        if "reset" in request:
            if slot not in slots:
                slots[slot] = make()
            result, read = slots[slot].reset(request["seed"], request["prompt"], row_of(request)), first_messages
        elif slot not in slots:
            return {"lost": True}
        elif "step" in request:
            result, read = slots[slot].step(request["response"], request["calls"]), lambda result: turn(result, *limits)
        else:
            result, read = slots[slot].end(), whole
    except MemoryError:
        return {"memory": True}
    except Exception as error:
        slots.pop(slot, None)
        return {"raised": described(error, -8)}
    try:
        return read(result)
    except Exception as error:
        slots.pop(slot, None)
        return {"bad": str(error) or type(error).__name__}


def opened():
    what = json.loads(sys.argv[1])
    make, first = open_shape(what)
    about = {"tools": first.tools, "scores_at_end": first.scores_at_end}
    # The object that was made to learn its form plays the first episode.
    spare = [first]
    slots = {}

    def said(request):
        if "about" in request:
            return about
        return answer(lambda: spare.pop() if spare else make(), slots, request, what["turn"])

    return said


serve(opened)
