"""Images that tools and environments return: each is the content of a file, with a placeholder in the text where it is."""
import base64
import io

# Most images of an answer, most bytes of one as a file, most pixels, and the placeholder; none where none are taken.
TAKEN = {}
# Parts of a result that are looked at.
RESULT_PARTS_MAX = 256


def is_picture(value):
    """Whether a value is an image of Pillow."""
    return any((kind.__module__ or "").split(".")[0] == "PIL" for kind in type(value).__mro__)


def has_pictures(value):
    """Whether a value has text and images, as verl's `ToolResponse` has."""
    return type(value).__name__ == "ToolResponse" and bool(getattr(value, "image", None))


def holds_image(value):
    """Whether a value is an image, a part of a message that is one, or a list with one."""
    if isinstance(value, (list, tuple)):
        return any(holds_image(one) for one in value[:RESULT_PARTS_MAX])
    if isinstance(value, dict):
        return value.get("type") in ("image", "image_url") or holds_image(value.get("content"))
    return is_picture(value) or has_pictures(value)


def refuse_image(who, value):
    """Raises for an image: as text it would be the name of an object, which tells a model nothing."""
    if holds_image(value):
        raise TypeError(f"{who} returned an image, and environment.images_max = 0 takes none")


def file_of(who, value):
    """The content of an image's file."""
    if isinstance(value, dict):
        named = ("image", "image_url", "url", "bytes", "base64")
        return file_of(who, next((value[name] for name in named if value.get(name) is not None), None))
    if is_picture(value):
        if value.width * value.height > TAKEN["pixels"]:
            raise ValueError(f"{who} returned an image of {value.width} x {value.height} pixels; at most {TAKEN['pixels']} are taken")
        out = io.BytesIO()
        value = value if value.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16") else value.convert("RGB")
        value.save(out, "PNG", compress_level=1)
        value = out.getvalue()
    elif isinstance(value, str) and value.startswith("data:") and ";base64," in value:
        value = base64.b64decode(value.split(",", 1)[1], validate=True)
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"{who} returned an image that is no image of Pillow, no bytes of a file and no data URI: {value!r:.60}")
    if len(value) > TAKEN["bytes"]:
        raise ValueError(f"{who} returned an image of {len(value)} bytes; at most {TAKEN['bytes']} are taken: a JPEG is smaller")
    return bytes(value)


def told(who, value):
    """The text and the files of a value that holds an image."""
    if not TAKEN:
        refuse_image(who, value)
    if isinstance(value, dict) and value.get("type") not in ("image", "image_url"):
        if value.get("type") == "text":
            return str(value.get("text", "")), []
        return told(who, value.get("content"))
    if has_pictures(value):
        value = [*value.image, getattr(value, "text", None) or ""]
    if isinstance(value, (list, tuple)):
        if len(value) > RESULT_PARTS_MAX:
            raise ValueError(f"{who} returned {len(value)} parts; at most {RESULT_PARTS_MAX} are read")
        parts = [told(who, part) for part in value]
        return "".join(text for text, _ in parts), [file for _, files in parts for file in files]
    if isinstance(value, str):
        return value, []
    return TAKEN["placeholder"], [file_of(who, value)]


def sent(files):
    """Files as a line of JSON has them."""
    if len(files) > TAKEN.get("most", 0):
        raise ValueError(f"{len(files)} images in an answer; environment.images_max is {TAKEN.get('most', 0)}")
    return [base64.b64encode(file).decode() for file in files]
