"""Makes the Parquet files next to it, as pyarrow (and so pandas, datasets and verl) writes them.

    python3 crates/text/tests/parquet/make.py
"""

from decimal import Decimal as D
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
ROWS = [
    {
        "data_source": "sums",
        "prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": f"{i}+{i + 1}="}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(2 * i + 1)},
        "extra_info": {"index": i, "split": "train", "tags": ["a", "b"][: i % 3], "note": None if i % 2 else "odd"},
        "pass_rate": i / 8,
    }
    for i in range(9)
]


def main():
    table = pa.Table.from_pylist(ROWS)
    # Several row groups and pages, so that a group's end is met.
    for codec in ("snappy", "zstd", "gzip"):
        pq.write_table(table, HERE / f"verl-{codec}.parquet", compression=codec, row_group_size=4)
    plain = pa.table(
        {
            "prompt": ["1+1=", "2+2="],
            "ground_truth": ["2", "4"],
            "day": pa.array([0, 1], pa.date32()),
            "weight": [0.5, float("nan")],
            "table": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
            "count": pa.array([200, 255], pa.uint8()),
        }
    )
    pq.write_table(plain, HERE / "plain.parquet", compression="none", use_dictionary=False, data_page_version="2.0")
    pq.write_table(pa.table({"prompt": [1, 2]}), HERE / "numbers.parquet")
    exact = pa.table(
        {
            "prompt": ["a", "b"],
            "whole": pa.array([2**53 + 1, -(2**63)], pa.int64()),
            "unsigned": pa.array([2**64 - 1, 2**63], pa.uint64()),
            "short": pa.array([2**32 - 1, 0], pa.uint32()),
            "money": pa.array([D("12.50"), D("-0.05")], pa.decimal128(8, 2)),
            "count": pa.array([D(42), D("12345678901234567890")], pa.decimal128(20, 0)),
            "long": pa.array([D("12345678901234567890123.5"), D("0.1")], pa.decimal256(60, 20)),
            "share": pa.array([D("0.25"), D("0")], pa.decimal128(5, 5)),
            "answers": pa.array([[D("7")], []], pa.list_(pa.decimal128(9, 0))),
            "real": pa.array([0.1, 1e22], pa.float64()),
        }
    )
    pq.write_table(exact, HERE / "digits.parquet")
    pq.write_table(pa.table({"prompt": ["a"], "image": [b"\xff\xd8\xff"]}), HERE / "bytes.parquet")
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), HERE / "empty.parquet")
    # As verl and `datasets.Image` have them: a list of {bytes, path}, and `<image>` in the text.
    images = HERE.parents[2] / "images/tests/golden/files"
    picture = lambda name: {"bytes": (images / name).read_bytes(), "path": name}
    rows = [
        {"prompt": [{"role": "user", "content": f"<image>What is in {name}?"}], "images": [picture(name)]}
        for name in ("rgb.png", "q75_420.jpg")
    ]
    both = [picture("grey.jpg"), picture("lossy.webp")]
    rows.append({"prompt": [{"role": "user", "content": "<image> or <image>?"}], "images": both})
    rows.append({"prompt": [{"role": "user", "content": "No <image> here."}], "images": []})
    pq.write_table(pa.Table.from_pylist(rows), HERE / "images.parquet", row_group_size=3)


main()
