//! tidy
fn main() {}
