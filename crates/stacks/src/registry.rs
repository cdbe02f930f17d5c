//! The stacks that are known.

use crate::stack::Stack;

/// Every stack, in the order of the help.
pub static STACKS: &[&Stack] = &[
    &crate::openrlhf::STACK,
    &crate::verl::STACK,
    &crate::trl::STACK,
    &crate::orz::STACK,
    &crate::torchrl::STACK,
    &crate::axolotl::STACK,
    &crate::prime::STACK,
    &crate::swift::STACK,
    &crate::skyrl::STACK,
    &crate::slime::STACK,
];

pub fn find(name: &str) -> Option<&'static Stack> {
    STACKS.iter().copied().find(|stack| stack.name == name)
}
