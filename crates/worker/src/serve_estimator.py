"""Serves one function that estimates advantages: a JSON line in, a JSON line out. Usage: serve_estimator.py FILE FUNCTION.

A line holds the arrays of a step, each as its numpy type and its bytes in base 64, and an `id` that the reply repeats.
"""
import base64

KEYWORDS = ("rewards", "token_rewards", "mask", "offsets", "lengths", "samples", "groups", "turns", "logprobs",
            "ref_logprobs", "columns", "step", "seed")


def array(numpy, value):
    """A list of a type and bytes as an array that can be written; anything else as it is."""
    if not isinstance(value, dict) or set(value) != {"type", "bytes"}:
        return value
    return numpy.frombuffer(base64.b64decode(value["bytes"]), dtype=value["type"]).copy()


def checked(numpy, result, offsets):
    """The result as f32; ValueError where it is not one finite number a token."""
    tokens = int(offsets[-1])
    values = numpy.asarray(result)
    if values.dtype.kind not in "biuf":
        raise ValueError(f"an array of {values.dtype}, not of numbers")
    if values.shape != (tokens,):
        raise ValueError(f"an array of shape {values.shape}, not ({tokens},): one number for each token")
    with numpy.errstate(over="ignore"):
        values = values.astype("<f4")
    bad = numpy.flatnonzero(~numpy.isfinite(values))
    if len(bad):
        sequence = int(numpy.searchsorted(offsets, bad[0], side="right")) - 1
        token = int(bad[0] - offsets[sequence])
        raise ValueError(f"{values[bad[0]]} for token {token} of sequence {sequence}, and {len(bad)} such in all")
    return values


def answer(numpy, function, names, request):
    try:
        keywords = {name: array(numpy, request[name]) for name in KEYWORDS}
        offsets = keywords["offsets"].copy()
        result = function(**fitting(names, keywords))
    except MemoryError:
        return {"memory": True}
    except Exception as error:
        return {"raised": described(error, 8)}
    try:
        return {"advantages": base64.b64encode(checked(numpy, result, offsets).tobytes()).decode()}
    except MemoryError:
        return {"memory": True}
    except Exception as error:
        return {"bad": str(error) or type(error).__name__}


def opened():
    import numpy

    function = load(sys.argv[1], sys.argv[2])
    names = takes(function)
    inspect.signature(function).bind(**fitting(names, dict.fromkeys(KEYWORDS)))
    return lambda request: answer(numpy, function, names, request)


serve(opened)
