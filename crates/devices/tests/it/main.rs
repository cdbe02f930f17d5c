//! The tables of devices, cards and machines: what is found in them, and what a device is opened with.

use plimsoll_base::{Bytes, DType, PhaseSet};
use plimsoll_device::OpenOptions;
use plimsoll_devices::{Card, Opening, ROWS, Rates, card, host, named, of, open, takes_head_dim};
use plimsoll_memory::Layout;

#[test]
fn a_machine_without_a_row_has_the_rates_of_the_portable_path() {
    let (unknown, scalar) = (Rates::built_in("sve", 3), Rates::built_in("scalar", 3));
    assert_eq!(unknown, scalar);
    assert_eq!(scalar.source, "built-in table for scalar");
    assert_eq!((scalar.flops(DType::F32), scalar.flops(DType::Bf16)), (12e9, 12e9));
}

#[test]
fn threads_add_arithmetic_and_share_the_bandwidth_of_a_socket() {
    let (few, many) = (Rates::built_in("avx2", 2), Rates::built_in("avx2", 64));
    assert_eq!(many.flops(DType::Bf16), 32.0 * few.flops(DType::Bf16));
    assert_eq!((few.bandwidth, many.bandwidth), (34e9, 200e9));
    // A copy reads and writes the same memory; one between host memory and arena is not faster than a core's.
    assert_eq!((many.link(), few.bus(), many.bus()), (100e9, 17e9, 50e9));
}

#[test]
fn each_card_is_found_by_its_name_and_predicts_less_than_its_data_sheet() {
    for row in Card::all() {
        let found =
            Card::parse(&format!(" {} ", row.name.to_ascii_uppercase())).expect("a name of the table");
        assert_eq!(found, row);
        let rates = row.rates();
        let cards = rates.card.expect("a card has these");
        assert!(rates.bandwidth < row.bandwidth && rates.flops_f32 < row.flops_f32, "{}", row.name);
        assert!(
            cards.link < row.link && rates.rollout_share < 1.0 && rates.update_share < 1.0,
            "{}",
            row.name
        );
        assert_eq!((rates.bus(), rates.link()), (row.bus, cards.link));
        assert!(rates.source.to_lowercase().contains(row.name), "{}", rates.source);
    }
    let given = Card::parse("flops=1e14,bandwidth=1TB,memory=8GiB,bus=8e9").expect("numbers").rates();
    assert!(given.source.starts_with("from the numbers given"), "{}", given.source);
    assert_eq!(given.link(), 8e9 * 0.8, "cards without a link exchange over the bus");
}

#[test]
fn a_device_is_found_by_its_name_and_its_layouts_and_the_host_is_the_last() {
    for row in ROWS {
        assert!(
            std::ptr::eq(named(row.kind.name), row) && std::ptr::eq(of(row.kind), row),
            "{}",
            row.kind.name
        );
    }
    assert!(std::ptr::eq(*ROWS.last().expect("a row"), host()));
    assert!(card().has_own_memory() && !host().has_own_memory());
    assert_eq!((host().probe)().map(|probe| probe.name.is_empty()), Ok(false), "every machine has it");
}

#[test]
fn heads_are_taken_if_every_device_takes_them() {
    let taken: Vec<usize> =
        [24, 64, 72, 80, 128, 256, 576, 592].into_iter().filter(|d| takes_head_dim(*d)).collect();
    assert_eq!(taken, [64, 80, 128, 256, 576]);
}

#[test]
fn memory_beyond_the_arena_grows_with_the_ranks_that_it_maps() {
    let peers = |ranks| {
        let sizes = (card().beyond)(ranks, Bytes::mib(1024), 0, 0, false);
        sizes.into_iter().find(|(name, _)| *name == "device.peers").map(|(_, bytes)| bytes)
    };
    // 8 bytes for each 4 KiB of the others.
    assert_eq!((peers(1), peers(2), peers(4)), (None, Some(Bytes::mib(2)), Some(Bytes::mib(6))));
    let network = (card().beyond)(1, Bytes(0), 0, 0, true);
    assert!(network.iter().any(|(name, _)| *name == "device.nccl"), "{network:?}");
    assert_eq!((host().beyond)(4, Bytes::mib(1024), 9, 9, true), []);
}

#[test]
fn the_host_is_opened_with_an_arena_of_the_layout() {
    let mut layout = Layout::new();
    layout.arena("numbers", "test", host().pool, PhaseSet::RESIDENT, &[5], DType::F32).expect("it fits");
    let options = OpenOptions { checked: false, profile: false };
    let (dev, mut arena) = open(&layout, &Opening::alone(host().kind, 1, options)).expect("host memory");
    let numbers = arena.split().0.buf("numbers");
    dev.write_f32(numbers, 1, &[2.5, -1.0]);
    let mut read = [9.0; 5];
    dev.read_f32(numbers, 0, &mut read);
    assert_eq!(read, [0.0, 2.5, -1.0, 0.0, 0.0]);
    assert_eq!(dev.kind(), host().kind);
}
