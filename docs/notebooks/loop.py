# %% [markdown]
# # A reward, a sweep and a plot
#
# The loop is Python: rewards, callbacks and sweeps are functions of this notebook, and a run is that of the command `plimsoll train`, with the same plan, the same bits
# and the same named errors. It needs the wheel alone, and matplotlib for the pictures; the model is built in.
# %%
import plimsoll

file = plimsoll.init("first")
plan = plimsoll.plan(file)
plan
# %% [markdown]
# A reward is a function of the prompts, the completions and the columns of the data. It may use what the notebook has.
# %%
weight = 1.0


def right(prompts, completions, ground_truth, log_metric=None, **columns):
    """Pays for the right sum."""
    log_metric("digits", [len(text) for text in completions])
    return [weight * float(text == truth) for text, truth in zip(completions, ground_truth)]


# %% [markdown]
# Three learning rates. A callback ends a run that forgets what it knew; the run is saved and would resume.
# %%
def forgets(step):
    return "stop" if step.number > 5 and step.reward < 0.1 else None


runs = {}
for rate in (3e-5, 1e-4, 1e-3):
    runs[rate] = plimsoll.train(
        file,
        reward=right,
        callbacks=[forgets],
        quiet=True,
        overwrite=True,
        run={"dir": f"runs/rate-{rate:g}"},
        train={"steps": 30, "learning_rate": rate},
        eval={"every": 10, "prompts_max": 200},
    )
    print(f"{rate:g}: {'stopped' if runs[rate].stopped else 'trained'}, reward {runs[rate].steps[-1].reward:.2f}")
# %%
axes = None
for run in runs.values():
    axes = run.plot("reward", axes=axes)
axes.set_title("reward by learning rate")
_ = axes.legend([f"{rate:g}" for rate in runs], frameon=False)
# %%
best = max(runs.values(), key=lambda run: run.steps[-1].reward)
_ = best.plot("rewards/right/digits", "reward")
# %% [markdown]
# Samples of a step, and the model of the newest checkpoint.
# %%
for sample in best.samples(1)[:3]:
    print(sample["prompt"], sample["response"], sample["rewards"])
print("123+456=" + best.generate("123+456="))
# %% [markdown]
# Step by step: the run waits while the body of the loop runs. Leaving the loop stops it with a checkpoint.
# %%
for step in plimsoll.train(file, reward=right, stream=True, quiet=True, overwrite=True, run={"dir": "runs/steps"}):
    print(step)
    if step.number == 3:
        break
# %% [markdown]
# In TRL's words: what has a counterpart is mapped, and the rest is refused by name.
# %%
rows = [{"prompt": f"{a}+{b}=", "ground_truth": str(a + b)} for a in range(100, 120) for b in range(200, 210)]
trainer = plimsoll.GRPO("builtin:nano", right, {"num_generations": 8, "max_completion_length": 5, "learning_rate": 1e-4}, rows)
print(trainer.run_file)
# %%
try:
    plimsoll.GRPO("builtin:nano", right, {"num_generation": 8}, rows)
except plimsoll.PlimsollError as error:
    print(error)
