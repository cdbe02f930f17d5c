"""A server that speaks OpenEnv's WebSocket protocol: /echo/ws, and /calc/ws with a tool. Prints its port."""
import json

from websockets.sync.server import serve


def observation(data, reward=None, done=False):
    return {"type": "observation", "data": {"observation": data, "reward": reward, "done": done}}


def error(message):
    return {"type": "error", "data": {"message": message, "code": "EXECUTION_ERROR"}}


def echo(state, kind, data):
    if kind == "reset":
        state["steps"] = 0
        return observation({"echoed": f"ready, seed {data.get('seed')}", "length": 0, "metadata": {}})
    if "message" not in data:
        return error("no `message`")
    state["steps"] += 1
    return observation({"echoed": data["message"], "length": len(data["message"])}, 0.5, state["steps"] == 2)


def calc(state, kind, data):
    if kind == "reset":
        return observation({"metadata": {}}, 0.0)
    if data["type"] == "list_tools":
        schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
        return observation({"tools": [{"name": "add", "description": "Adds.", "input_schema": schema}]})
    if data["tool_name"] != "add":
        return observation({"tool_name": "no", "result": None, "error": {"error_type": "tool_not_found"}}, 0.0)
    total = data["arguments"]["a"] + data["arguments"]["b"]
    return observation({"tool_name": "add", "result": {"data": total, "content": []}, "error": None}, 1.0)


def session(socket):
    answer = {"/echo/ws": echo, "/calc/ws": calc}[socket.request.path]
    state = {}
    for line in socket:
        message = json.loads(line)
        if message["type"] == "close":
            return
        socket.send(json.dumps(answer(state, message["type"], message["data"])))


with serve(session, "127.0.0.1", 0) as server:
    print(server.socket.getsockname()[1], flush=True)
    server.serve_forever()
