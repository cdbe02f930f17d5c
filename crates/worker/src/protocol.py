"""Answers requests of standard input: a JSON line in, a JSON line out."""
import json
import os


def reply(out, message):
    out.write(json.dumps(message) + "\n")
    out.flush()


def serve(opened):
    """Answers with the function that `opened` returns. Standard output is the protocol's: what the user prints goes to
    standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        answer = opened()
    except BaseException as error:
        reply(out, {"load": described(error, 9)})
        # The parent reads why and ends us; waiting here keeps the message from racing with the exit.
        sys.stdin.readline()
        return
    reply(out, {"ready": True})
    for line in sys.stdin:
        try:
            request = json.loads(line)
        except MemoryError:
            reply(out, {"memory": True})
            continue
        reply(out, {"id": request["id"], **answer(request)})
