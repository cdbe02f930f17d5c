//! The formulas: advantages, losses with their gradients, KL estimators and controllers. Slices in, slices out.
