"""Serves one reward function: a JSON line in, a JSON line out. Usage: serve.py FILE FUNCTION.

A line holds the keywords of one call (`keywords`), or of one call a sample (`calls`), or names to hold the function's
signature against (`check`), and an `id` that the reply repeats. Standard output belongs to the protocol, so the user's
prints go to standard error.
"""
import base64
import struct
import types

METRICS_MAX = 32


def number(value):
    """A score as JSON can carry it: a float, "nan", "inf", "-inf" or null; TypeError for anything else."""
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"a {type(value).__name__}: {value!r:.80}")
    value = float(value)
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    return value


class Metrics:
    """Sums of the values that a function logs in addition to its scores; non-numbers are left out.

    A sum is exact: partial sums that do not overlap, so that batches may be cut in any way.
    """

    def __init__(self):
        self.sums = {}

    def add(self, name, value):
        name = str(name)
        try:
            values = [float(v) for v in (value if hasattr(value, "__iter__") else [value])]
        except (TypeError, ValueError):
            return
        if all(v - v == 0.0 for v in values) and (name in self.sums or len(self.sums) < METRICS_MAX):
            partials, count = self.sums.get(name, ([], 0))
            for value in values:
                add_to(partials, value)
            self.sums[name] = (partials, count + len(values))

    def bits(self):
        """The bits of each sum's partial sums, and its count."""
        as_bits = lambda number: struct.unpack("<Q", struct.pack("<d", number))[0]
        return {name: ([as_bits(p) for p in partials], n) for name, (partials, n) in self.sums.items()}


def add_to(partials, number):
    """Adds a number to an exact sum, as `math.fsum` does."""
    kept = 0
    for partial in partials:
        if abs(number) < abs(partial):
            number, partial = partial, number
        high = number + partial
        low = partial - (high - number)
        if low:
            partials[kept] = low
            kept += 1
        number = high
    partials[kept:] = [number]


def called(function, keywords_of_calls):
    """What each call returned; coroutines are awaited together."""
    results = [function(**keywords) for keywords in keywords_of_calls]
    if any(inspect.isawaitable(result) for result in results):
        import asyncio

        async def value(result):
            return await result if inspect.isawaitable(result) else result

        async def wait():
            return await asyncio.gather(*map(value, results))

        results = asyncio.run(wait())
    return results


def one_score(result, metrics):
    """verl's result for one sample: a number, or a dict with `score` and further numbers."""
    if isinstance(result, dict):
        for name, value in result.items():
            if name != "score" and isinstance(value, (bool, int, float)):
                metrics.add(name, value)
    return plain_score(result)


def plain_score(result):
    """A number, or the `score` of a dict, which may have `steps` too."""
    if not isinstance(result, dict):
        return number(result)
    if "score" not in result:
        raise TypeError("a dict without `score`")
    return number(result["score"])


def steps_of(results):
    """For each result its `steps` as JSON can carry them, `[end, reward]` each; null without."""

    def one(step):
        end, *rest = step
        return [end.__index__() if hasattr(end, "__index__") else None, *map(number, rest)]

    def of(result):
        steps = result.get("steps") if isinstance(result, dict) else None
        # A number of this name is a metric.
        return None if steps is None or isinstance(steps, (bool, int, float)) else [one(step) for step in steps]

    return [of(result) for result in results]


def all_results(result, metrics):
    """A result for all samples: a list, or OpenRLHF's dict with `rewards` and `extra_logs`."""
    if isinstance(result, dict):
        if "rewards" not in result:
            raise TypeError("a dict without `rewards`")
        for name, value in (result.get("extra_logs") or {}).items():
            metrics.add(name, value)
        result = result["rewards"]
    if isinstance(result, (str, bytes)) or not hasattr(result, "__iter__"):
        raise TypeError(f"a {type(result).__name__} instead of a list")
    return list(result)


def images_of(lists, of):
    """The images of each sample: a list of `{"path", "bytes"}`, of which one is None. Samples of a group share theirs."""

    def image(path, bytes):
        return {"path": path, "bytes": None if bytes is None else base64.b64decode(bytes)}

    lists = [[image(**one) for one in images] for images in lists]
    return [lists[at] for at in of]


def names_images(function):
    return "images" in inspect.signature(function).parameters


def answer(function, names, request):
    metrics = Metrics()
    try:
        if "check" in request:
            keywords = {name: None for name in request["check"]}
            if "completions" in keywords and names_images(function):
                keywords["images"] = None
            inspect.signature(function).bind(**fitting(names, keywords))
            return {"fits": True}
    except TypeError as error:
        return {"signature": str(error), "parameters": str(inspect.signature(function))}
    try:
        if "calls" in request:
            results = called(function, [fitting(names, keywords) for keywords in request["calls"]])
        else:
            keywords = request["keywords"]
            if "images" in request and (names is None or "images" in names):
                keywords["images"] = images_of(**request["images"])
            elif "completions" in keywords and "images" not in keywords and names_images(function):
                # Rows without images have empty lists of them.
                keywords["images"] = [[] for _ in keywords["completions"]]
            keywords["log_metric"] = metrics.add
            # Further columns of the table of completions: nothing here shows one.
            keywords["log_extra"] = lambda column, values: None
            state = types.SimpleNamespace(global_step=request["step"], max_steps=request["steps"])
            keywords["trainer_state"] = state
            results = called(function, [fitting(names, keywords)])
    except MemoryError:
        return {"memory": True}
    except Exception as error:
        return {"raised": described(error, 8)}
    try:
        if "calls" in request:
            scores = [one_score(result, metrics) for result in results]
        else:
            results = all_results(results[0], metrics)
            scores = [plain_score(result) for result in results]
        steps = {"steps": steps_of(results)} if request.get("with_steps") else {}
        return {"scores": scores, "metrics": metrics.bits(), **steps}
    except MemoryError:
        return {"memory": True}
    except Exception as error:
        return {"bad": str(error) or type(error).__name__}


def opened():
    function = load(sys.argv[1], sys.argv[2])
    names = takes(function)
    return lambda request: answer(function, names, request)


serve(opened)
