# Passes a run's numbers to trackers, each through its own client. It reads the run's events.jsonl when the trainer asks
# it to, once a second and at the end. A tracker that fails is tried again from the line that failed.
import sys

# First of all: a folder in the working directory may have a client's name, such as W&B's own folder of files.
sys.path[:] = [entry for entry in sys.path if entry]

import importlib.util
import json
import os
import time
import uuid

RETRY_SECONDS = 0.25  # before the first attempt after a failure at the end; each further one waits longer
LINES_PER_LOOK = 2000  # so that a look after a long outage is answered in time
LINE_BYTES_MAX = 1 << 20
FAILURES_MAX = 3  # in a row, of one tracker
CLIENTS = {"wandb": "wandb", "trackio": "trackio", "mlflow": "mlflow", "tensorboard": "tensorboard.summary.writer"}


def flat(value, path=""):
    """The settings of a run file as `section.key`, with each list of tables by index."""
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in flat(part, f"{path}.{key}" if path else key).items()}
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        return {k: v for index, part in enumerate(value) for k, v in flat(part, f"{path}.{index}").items()}
    return {path: value}


def numbers(event):
    """The metrics of an event by name; none of those that people read."""
    if event.get("event") == "step":
        own = {key: event.get(key) for key in ("reward", "loss", "accuracy", "frames_per_second", "seconds")}
        named = {**own, **event.get("metrics", {})}
    elif event.get("event") == "eval":
        at = f"eval/{event.get('set', 'score')}"
        named = {at: event.get("score")}
        named.update({f"{at}/pass_at_{k}": value for k, value in event.get("pass_at_k", {}).items()})
    else:
        return {}
    return {name: value for name, value in named.items() if isinstance(value, (int, float))}


class Wandb:
    def __init__(self, spec, state):
        import wandb

        # Only metrics, the run file and the name: nothing else about this machine, its code or its output is sent.
        settings = wandb.Settings(
            console="off", disable_git=True, disable_code=True, disable_job_creation=True,
            save_code=False, silent=True, x_disable_meta=True, x_disable_stats=True, x_disable_machine_info=True,
            x_save_requirements=False, host="withheld",
        )
        state.setdefault("id", uuid.uuid4().hex[:12])
        self.run = wandb.init(
            project=spec["project"], name=spec["name"], id=state["id"], resume="allow", config=spec["config"],
            mode=spec["mode"], dir=spec["dir"], settings=settings,
        )

    def log(self, named, step):
        self.run.log(named, step=step)

    def finish(self, ok, summary):
        self.run.summary.update(summary)
        self.run.finish(exit_code=0 if ok else 1)

    @staticmethod
    def reset():
        """Ends W&B's own process: the client never starts one again that is gone or whose pipe is broken."""
        import wandb

        wandb.teardown(exit_code=1)


class Trackio:
    def __init__(self, spec, state):
        os.environ.setdefault("TRACKIO_DIR", os.path.join(spec["dir"], "trackio"))
        if spec["mode"] == "offline":
            os.environ.pop("TRACKIO_SPACE_ID", None)
        import trackio

        self.client = trackio
        # Without a space it writes a local database.
        state["id"] = spec["name"]
        trackio.init(
            project=spec["project"], name=spec["name"], config=spec["config"], resume="allow", embed=False,
            auto_log_gpu=False, auto_log_cpu=False,
        )

    def log(self, named, step):
        self.client.log(named, step=step)

    def finish(self, ok, summary):
        self.client.finish()


class Mlflow:
    def __init__(self, spec, state):
        import mlflow

        self.client = mlflow
        here = "sqlite:///" + os.path.join(os.path.abspath(spec["dir"]), "mlflow.db")
        uri = here if spec["mode"] == "offline" else spec["uri"] or os.environ.get("MLFLOW_TRACKING_URI") or here
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment(spec["project"])
        is_new = "id" not in state
        run = mlflow.start_run(run_name=spec["name"]) if is_new else mlflow.start_run(run_id=state["id"])
        state["id"] = run.info.run_id
        if is_new:
            # Its limit on the length of a value is 6000.
            mlflow.log_params({key: str(value)[:6000] for key, value in flat(spec["config"]).items()})

    def log(self, named, step):
        self.client.log_metrics({name: float(value) for name, value in named.items()}, step=step)

    def finish(self, ok, summary):
        self.client.end_run("FINISHED" if ok else "FAILED")


class Tensorboard:
    """Writes what transformers' and verl's logs hold: scalars, which every reader of event files knows, not tensors."""

    def __init__(self, spec, state):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.event, self.summary = event_pb2.Event, summary_pb2.Summary
        self.writer = EventFileWriter(os.path.join(spec["dir"], "tensorboard", spec["name"]))

    def log(self, named, step):
        values = [self.summary.Value(tag=name, simple_value=float(value)) for name, value in named.items()]
        self.writer.add_event(self.event(wall_time=time.time(), step=step, summary=self.summary(value=values)))
        self.writer.flush()

    def finish(self, ok, summary):
        self.writer.close()


OPEN = {"wandb": Wandb, "trackio": Trackio, "mlflow": Mlflow, "tensorboard": Tensorboard}


class Follower:
    """One tracker: how far it has read, and what it has logged already in this or an earlier process."""

    def __init__(self, name, state):
        self.name, self.state = name, state
        self.client, self.offset, self.failures, self.given_up = None, 0, 0, None

    def is_new(self, event):
        key = event.get("event", "") + "/" + str(event.get("set", ""))
        step = event.get("step", 0)
        if step <= self.state.setdefault("done", {}).get(key, -1):
            return False
        self.state["done"][key] = step
        return True

    def look(self, spec, events):
        """Passes on what is new; whether there is more."""
        if self.client is None:
            self.client = OPEN[self.name](spec, self.state)
        with open(events, "rb") as log:
            log.seek(self.offset)
            for _ in range(LINES_PER_LOOK):
                line = log.readline(LINE_BYTES_MAX)
                # A line without its end is still being written; one that is too long is skipped in parts.
                if not line or (not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX):
                    return False
                try:
                    event = json.loads(line)
                except ValueError:
                    event = {}
                named = numbers(event) if isinstance(event, dict) else {}
                done = dict(self.state.get("done", {}))
                if named and self.is_new(event):
                    try:
                        self.client.log(named, event.get("step", 0))
                    except BaseException:
                        self.state["done"] = done
                        raise
                self.offset = log.tell()
        return True

    def reset(self):
        """Lets the next attempt open a client of its own, where what this one keeps may be what is broken."""
        reset = getattr(OPEN[self.name], "reset", None)
        if reset is None:
            return
        self.client = None
        try:
            reset()
        except Exception:
            pass

    def attempt(self, work):
        """Runs `work`; a tracker that fails too often in a row is left out from then on."""
        if self.given_up:
            return False
        try:
            more = work()
            self.failures = 0
            return bool(more)
        except Exception as error:
            self.failures += 1
            self.reset()
            if self.failures >= FAILURES_MAX:
                self.given_up = f"{type(error).__name__}: {error}".strip()[:500]
            return False


class Trackers:
    def __init__(self, spec):
        self.spec = spec
        self.path = os.path.join(spec["dir"], "state.json")
        os.makedirs(spec["dir"], exist_ok=True)
        try:
            with open(self.path) as file:
                self.state = json.load(file)
        except (OSError, ValueError):
            self.state = {}
        self.followers = [Follower(name, self.state.setdefault(name, {})) for name in spec["to"]]

    def look(self):
        more = [one.attempt(lambda one=one: one.look(self.spec, self.spec["events"])) for one in self.followers]
        self.save()
        return any(more)

    def finish(self, ok, summary):
        for attempt in range(1, FAILURES_MAX + 1):
            while self.look():
                pass
            if not any(one.failures and not one.given_up for one in self.followers):
                break
            time.sleep(RETRY_SECONDS * attempt)
        for one in self.followers:
            if one.client is not None and not one.given_up:
                one.attempt(lambda one=one: one.client.finish(ok, summary))
        self.save()

    def save(self):
        text = json.dumps(self.state)
        part = self.path + ".part"
        with open(part, "w") as file:
            file.write(text)
        os.replace(part, self.path)

    def given_up(self):
        return {one.name: one.given_up for one in self.followers if one.given_up}


def main():
    # Clients print anywhere; replies have their own descriptor.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(reply):
        out.write(json.dumps(reply) + "\n")
        out.flush()

    def is_installed(module):
        try:
            return importlib.util.find_spec(module) is not None
        except ImportError:
            return False

    missing = [name for name in sys.argv[1].split(",") if not is_installed(CLIENTS[name])]
    say({"missing": missing, "python": sys.executable, "version": sys.version.split()[0]})
    trackers = None
    for line in sys.stdin:
        request = json.loads(line)
        if trackers is None:
            trackers = Trackers(request["spec"])
        if request.get("end"):
            trackers.finish(request["end"] == "finished", request.get("summary", {}))
        else:
            trackers.look()
        say({"id": request["id"], "given_up": trackers.given_up()})


main()
