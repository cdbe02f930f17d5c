"""Makes the Parquet files next to it, as pyarrow (and so pandas, datasets and verl) writes them.

    python3 crates/text/tests/parquet/make.py
"""

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
    pq.write_table(pa.table({"prompt": ["a"], "image": [b"\xff\xd8\xff"]}), HERE / "bytes.parquet")
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), HERE / "empty.parquet")


main()
