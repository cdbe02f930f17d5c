"""What TorchRL's collectors do when one of four workers fails; prints one line.

    python torchrl_faults.py sync|async kill|raise|hang

One environment fails in its 300th step of any worker. Printed are what the main process saw and after how many seconds;
`hang` is watched for 40 s. Needs torchrl, torch and gymnasium; this file is not imported by anything.
"""

import os
import signal
import sys
import tempfile
import time

import gymnasium
from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import GymWrapper

WATCH_SECONDS = 40
MARKER = os.environ.setdefault("TORCHRL_FAULTS_MARKER", os.path.join(tempfile.mkdtemp(), "failed"))


class Failing(gymnasium.Wrapper):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 300:
            try:
                os.close(os.open(MARKER, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return self.env.step(action)
            if sys.argv[2] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if sys.argv[2] == "raise":
                raise ValueError("the speed is negative")
            time.sleep(1000)
        return self.env.step(action)


def make():
    return GymWrapper(Failing(gymnasium.make("CartPole-v1")))


def main():
    kind = {"sync": MultiSyncCollector, "async": MultiAsyncCollector}[sys.argv[1]]
    collector = kind([make] * 4, None, frames_per_batch=200, total_frames=-1)
    failed_at, batches = None, 0

    def give_up(*_):
        print(f"{sys.argv[1:3]}: nothing said within {WATCH_SECONDS} s, {batches} batches since", flush=True)
        os._exit(0)

    signal.signal(signal.SIGALRM, give_up)
    try:
        for _ in collector:
            if failed_at is None and os.path.exists(MARKER):
                failed_at = time.monotonic()
                signal.alarm(WATCH_SECONDS)
            elif failed_at is not None:
                batches += 1
    except Exception as error:
        since = time.time() - os.path.getmtime(MARKER)
        print(f"{sys.argv[1:3]}: {type(error).__name__}: {error} after {since:.1f} s", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
