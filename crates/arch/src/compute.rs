//! What the products of a policy are computed with: a property of the model, which its files name.

plimsoll_base::names! {
    /// What the linear layers of a policy are computed with.
    #[derive(Default)]
    Compute {
        /// The weights as they are stored.
        #[default]
        Full = "full",
        /// Weights and inputs rounded to numbers of eight bits.
        Fp8 = "fp8",
    }
}
