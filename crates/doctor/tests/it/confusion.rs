//! The confusion table of the examples: everything on the diagonal, enough examples of every class.

use plimsoll_doctor::log::self_test::Confusion;

#[test]
fn every_example_is_named_as_expected() {
    let confusion = Confusion::run().expect("memory can be read");
    println!("{}", confusion.table());
    assert!(confusion.wrong.is_empty(), "\n{}", confusion.table());
    for (class, (positive, near)) in &confusion.sizes {
        assert!(*positive >= 2 && *near >= 3, "{class}: {positive} examples, {near} near misses");
    }
}
