//! The bytes that a plan has for rows of a file are not below those that they allocate, and not much above.

use plimsoll_text::{each_row_of, file_size};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Header and padding of an allocation.
const CHUNK: usize = 16;

#[test]
fn values_are_counted_with_the_room_that_they_have() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    let list = |value: &str, n: usize| format!("{{\"x\": [{}]}}\n", vec![value; n].join(", "));
    let wide = |n: usize| {
        let entries: Vec<String> = (0..n).map(|i| format!("\"{i}\":1")).collect();
        format!("{{{}}}\n", entries.join(","))
    };
    let mut lines = vec!["{}\n".to_string(), "{\"a\": \"\\\\\", \"b\": \"[1,2],{},\\\"[[[\"}\n".to_string()];
    for n in [0, 1, 2, 4, 5, 33, 2000, 2049] {
        lines.extend(
            ["1", "-0.25", "[1]", "{}", "[]", "{\"a\": 1}", "\"a, b\"", "null"].map(|value| list(value, n)),
        );
    }
    lines.extend([1, 3, 4, 7, 8, 14, 15, 28, 29, 100].map(wide));
    for line in lines {
        const ROWS: usize = 8;
        std::fs::write(&path, line.repeat(ROWS)).unwrap();
        let size = file_size(&path, None).unwrap();
        let mut rows = Vec::with_capacity(ROWS);
        let region = Region::new(ALLOCATOR);
        each_row_of(&path, |_, row| {
            rows.push(row);
            Ok(())
        })
        .unwrap();
        let change = region.change();
        let chunks = (change.allocations - change.deallocations) * CHUNK;
        let held = (change.bytes_allocated - change.bytes_deallocated + chunks) as u64;
        let said = size.values.0 + size.json.0;
        assert_eq!(size.rows, ROWS as u64);
        assert!(held <= said && said <= 2 * held + size.json.0, "{line:.60}: {held} held, {said} said");
    }
}
