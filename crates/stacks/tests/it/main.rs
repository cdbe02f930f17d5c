//! What `import` and `doctor --run` make of other stacks' configurations.

mod plans;
